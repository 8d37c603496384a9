//! Reading kernel memory a block at a time, at most one block of it in memory.

use crate::error::Result;
use crate::virt::{VirtAddr, VirtualMemory};

/// Read at a time where one piece follows another: fits the L2 cache of any core, and calls are few.
const BLOCK: usize = 64 << 10;
const PAGE: usize = 4096;

/// Kernel memory of which a block is at hand.
pub(crate) struct ReadAhead<'m> {
    mem: &'m mut dyn VirtualMemory,
    start: VirtAddr,
    block: Vec<u8>,
}

impl<'m> ReadAhead<'m> {
    pub(crate) fn new(mem: &'m mut dyn VirtualMemory) -> Self {
        Self { mem, start: VirtAddr(0), block: Vec::new() }
    }

    /// What is at hand from `at` on: `n` bytes at least, and more where they can be read.
    ///
    /// # Errors
    /// One of the `n` bytes cannot be read.
    #[inline]
    pub(crate) fn get(&mut self, at: VirtAddr, n: usize) -> Result<&[u8]> {
        if self.at_hand(at).is_none_or(|bytes| bytes.len() < n) {
            self.fill(at, n)?;
        }
        Ok(self.at_hand(at).unwrap_or_default())
    }

    #[inline]
    fn at_hand(&self, at: VirtAddr) -> Option<&[u8]> {
        self.block.get(usize::try_from(at.0.wrapping_sub(self.start.0)).ok()?..)
    }

    /// Reads a block from `at` on. What cannot be read behind the page in which the `n` bytes end is not missed: a table may be the
    /// last thing in its page.
    #[cold]
    fn fill(&mut self, at: VirtAddr, n: usize) -> Result<()> {
        let to_page_end = |n: usize| {
            let before = at.0 as usize % PAGE;
            (before + n).next_multiple_of(PAGE) - before
        };
        // A block elsewhere is read for a type or two.
        let follows = self.at_hand(at).is_some();
        let most = if follows { to_page_end(n.max(BLOCK)) } else { to_page_end(n) };
        self.start = at;
        self.block.resize(most, 0);
        if self.mem.read_virt(at, &mut self.block).is_ok() {
            return Ok(());
        }
        self.block.truncate(to_page_end(n));
        self.mem.read_virt(at, &mut self.block).inspect_err(|_| self.block.clear())
    }
}
