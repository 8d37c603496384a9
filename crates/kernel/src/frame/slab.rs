//! Slab caches.

use super::text::{no_address, text};
use crate::error::Result;
use crate::symbols::{Symbols, Wanted};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};

/// What is asked for here by name.
pub(super) const WANTED: Wanted = Wanted { members: &[("kmem_cache", "name")], ..Wanted::NONE };

/// The longest name that is read; the kernel's own are below 32.
const MOST: usize = 128;

/// How slab caches are named.
#[derive(Clone, Copy, Debug)]
pub struct Slabs {
    name: u64,
    base: VirtAddr,
}

impl Slabs {
    pub(super) fn new(symbols: &Symbols, base: VirtAddr) -> Result<Self> {
        Ok(Self { name: symbols.offset("kmem_cache", "name", "naming slab caches")?, base })
    }

    /// The name of the slab cache at `cache`.
    ///
    /// # Errors
    /// There is none.
    pub fn name(&self, reader: &mut KernelReader<'_>, cache: u64) -> Result<String> {
        let at = VirtAddr(cache).plus(self.name);
        if cache < self.base.0 {
            return Err(no_address("the slab cache of a page", at, cache));
        }
        let name = reader.read_u64(at)?;
        if name < self.base.0 {
            return Err(no_address("the name of a slab cache", at, name));
        }
        text(reader, VirtAddr(name), MOST)
    }
}
