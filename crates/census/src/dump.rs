//! The page frames of a dump, by its memory map.
//!
//! ```text
//! Scanner ─ class of each frame, as a dump decides it ┐
//! struct pages, a piece of the map at a time ─────────┼─ single pages, blocks ─> rows
//! FrameLayout ─ pointed ─ file, slab cache, cgroup ───┘   (what was looked up is remembered by its address, a thread)
//! ```

mod blocks;
mod pieces;
mod pointed;
mod reader;

use crate::error::Result;
use crate::names::{NameId, Names};
use crate::source::{FrameReader, Provenance, Source};
use crate::zones::Zones;
use coresift_format::{Input, PageSet, Pfn};
use coresift_kernel::debuginfo::{DebugFile, open_kernel};
use coresift_kernel::frame::FrameLayout;
use coresift_kernel::{Kernel, KernelError, crash_time, field, nodes};
use pointed::PathRoom;
use reader::DumpReader;
use std::path::Path;

/// A dump whose kernel is understood.
pub struct Dump {
    input: Input,
    kernel: Kernel,
    layout: FrameLayout,
    ranges: Vec<(Pfn, Pfn)>,
    /// Free pages, where only the free lists tell them.
    free: Option<PageSet>,
    names: Names,
    zones: Zones,
    provenance: Provenance,
    source: NameId,
    paths: PathRoom,
}

impl Dump {
    /// The dump `input`. `debug` tells what kernels before Linux 6.0 do not tell of themselves.
    ///
    /// # Errors
    /// The kernel in it cannot be understood, or `debug` is of another one.
    pub fn open(input: Input, debug: Option<&DebugFile>) -> Result<Self> {
        let (kernel, found) = open_kernel(&input, debug)?;
        Ok(Self::new(input, kernel, found.notes))
    }

    /// The dump `input`, in which `kernel` was found; `notes` is what is to be known about how.
    #[must_use]
    pub fn new(input: Input, kernel: Kernel, notes: Vec<String>) -> Self {
        let memory = input.memory();
        let layout = FrameLayout::find(&kernel, memory);
        let names = Names::default();
        let mut unknown: Vec<String> = notes.into_iter().chain(kernel.notes.iter().cloned()).collect();
        unknown.extend(unknown_columns(&layout));
        let free = if kernel.rules.knows_buddy() {
            None
        } else {
            let walked = nodes::walk_free_lists(&kernel, memory);
            let failed = |e| unknown.push(format!("free pages count as the kernel's: {e}"));
            walked.map_err(failed).ok()
        };
        let time = crash_time(&input, &kernel.info);
        if time.is_none() {
            unknown.push(
                "the time is that of 1970: neither the dump's header nor VMCOREINFO tells when it was".to_owned(),
            );
        }
        let name = Path::new(input.name());
        let provenance = Provenance {
            source: name.file_name().map_or_else(|| input.name().to_owned(), |n| n.to_string_lossy().into_owned()),
            host: field(&kernel.utsname[..], 1),
            kernel: kernel.release.clone(),
            time: time.unwrap_or(0),
            unknown,
        };
        Self {
            ranges: memory.ram().all_runs().collect(),
            zones: layout.zones.as_ref().map(|spans| Zones::of_spans(spans, &names)).unwrap_or_default(),
            source: names.id(&provenance.source),
            paths: PathRoom::default(),
            input,
            kernel,
            layout,
            free,
            names,
            provenance,
        }
    }

    /// The kernel in it.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }
}

/// The columns that `layout` does not tell, a sentence each.
fn unknown_columns(layout: &FrameLayout) -> Vec<String> {
    let mut unknown: Vec<String> =
        layout.words.unknown().map(|words| format!("{words} are null: {NO_WORDS}")).collect();
    let mut ways = |columns: &str, problem: Option<&KernelError>| {
        unknown.extend(problem.map(|error| format!("{columns} are null: {error}")));
    };
    ways("inodes, devices and paths of files", layout.files.as_ref().err());
    ways("slab caches", layout.slabs.as_ref().err());
    ways("cgroups", layout.cgroups.as_ref().err());
    ways("node and zone", layout.zones.as_ref().err());
    unknown
}

/// Why words of a `struct page` are not known.
const NO_WORDS: &str = "neither VMCOREINFO nor the kernel's types tell where they are";

impl Source for Dump {
    fn ranges(&self) -> &[(Pfn, Pfn)] {
        &self.ranges
    }

    fn page_size(&self) -> u64 {
        self.input.memory().page_size().bytes() as u64
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn reader(&self) -> Result<Box<dyn FrameReader + '_>> {
        Ok(Box::new(DumpReader::new(self)))
    }
}
