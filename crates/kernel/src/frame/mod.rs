//! What a page frame is of beyond its class: its file, its slab cache, its cgroup.
//!
//! ```text
//! Symbols (BTF or vmlinux) ─ FrameLayout ┬─ FlagNames   page.flags ─> "lru|uptodate"
//!                                        ├─ FrameWords  struct page ─> refcount, mapcount, index, words that point at
//!                                        ├─ Files       address_space ─> inode, device, path
//!                                        ├─ Slabs       kmem_cache ─> name
//!                                        └─ Cgroups     memcg_data ─> inode, path
//! ```
//!
//! Where a member was renamed, the table that asks for it has all its names; which of them the kernel has tells how to read it.

mod cgroup;
mod file;
mod flags;
mod slab;
mod span;
mod text;
mod words;

pub use cgroup::{CgroupOf, Cgroups};
pub use file::{Directories, FileOf, Files};
pub use flags::{FLAGS_WANTED, FlagNames};
pub use slab::Slabs;
pub(crate) use text::text;
pub use words::{FrameWords, MappingKind};

use crate::error::Result;
use crate::kernel::Kernel;
use crate::nodes;
use crate::symbols::Wanted;
use coresift_format::PhysicalMemory;

/// What is asked for here by name.
const WANTED: [&Wanted; 6] =
    [&FLAGS_WANTED, &words::WANTED, &file::WANTED, &slab::WANTED, &cgroup::WANTED, &nodes::SPANS_WANTED];

/// Ways from a `struct page` to what its page frame is of, as far as the kernel tells them.
#[derive(Clone, Debug)]
pub struct FrameLayout {
    /// Names of page flags.
    pub flags: FlagNames,
    /// Words of a `struct page`.
    pub words: FrameWords,
    /// Files, or why none can be told.
    pub files: Result<Files>,
    /// Slab caches, or why none can be told.
    pub slabs: Result<Slabs>,
    /// Cgroups, or why none can be told.
    pub cgroups: Result<Cgroups>,
    /// Zones, or why none can be told.
    pub zones: Result<Vec<nodes::ZoneSpan>>,
}

impl FrameLayout {
    /// Those of `kernel` in `memory`.
    #[must_use]
    pub fn find(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Self {
        let symbols = kernel.lookup(memory, &WANTED);
        let known = symbols.as_ref().map_err(Clone::clone);
        Self {
            flags: FlagNames::new(known.clone().ok(), &kernel.info),
            words: FrameWords::new(known.clone().ok(), kernel),
            files: known.clone().and_then(|symbols| Files::new(symbols, kernel.base)),
            slabs: known.clone().and_then(|symbols| Slabs::new(symbols, kernel.base)),
            cgroups: known.clone().and_then(|symbols| Cgroups::new(symbols, kernel.base)),
            zones: known.and_then(|symbols| nodes::spans(kernel, memory, symbols)),
        }
    }
}
