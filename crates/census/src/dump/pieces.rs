//! The memory map, a piece at a time.

use super::Dump;
use coresift_kernel::{KernelReader, MapRange, VirtAddr, VirtualMemory};

/// Struct pages of a piece: 256 KiB stay in the second-level cache while a few passes go over them.
pub const PIECE: u64 = 4096;
/// The page size of x86-64: what is mapped, and what a dump has, goes by pages.
const MAP_PAGE: u64 = 4096;

/// Struct pages as they lie in memory.
pub struct Pieces<'d> {
    dump: &'d Dump,
    reader: KernelReader<'d>,
    buffer: Vec<u8>,
}

impl<'d> Pieces<'d> {
    pub fn new(dump: &'d Dump) -> Self {
        Self { dump, reader: dump.kernel.reader(dump.input.memory()), buffer: Vec::new() }
    }

    /// The struct pages from `at` on that can be read, at most [`PIECE`] and those of `range`, and behind them that of the next page frame,
    /// if there is one; with their number. An empty piece has the number of those that cannot be read.
    pub fn read(&mut self, range: MapRange, at: u64) -> (&[u8], u64) {
        let size = self.dump.kernel.rules.size() as u64;
        let left = range.end.0 - at;
        let map = range.map.plus((at - range.start.0) * size);
        let want = left.min(PIECE);
        // The last one's successor tells what compound page it heads.
        if self.fill(map, (want + 1) * size) || self.fill(map, want * size) {
            return (&self.buffer, want);
        }
        // Something is missing: the rest goes by pages of the map.
        let within = (MAP_PAGE - map.0 % MAP_PAGE).div_ceil(size).clamp(1, want);
        if self.fill(map, (within + 1) * size) || self.fill(map, within * size) {
            return (&self.buffer, within);
        }
        if within > 1 && self.fill(map, (within - 1) * size) {
            return (&self.buffer, within - 1);
        }
        self.buffer.clear();
        (&self.buffer, within)
    }

    /// The `struct page` at `map` and the one behind it.
    pub fn pair(&mut self, map: VirtAddr) -> Option<&[u8]> {
        let size = self.dump.kernel.rules.size() as u64;
        self.fill(map, 2 * size).then_some(&self.buffer)
    }

    fn fill(&mut self, map: VirtAddr, len: u64) -> bool {
        self.buffer.resize(len as usize, 0);
        self.reader.read_virt(map, &mut self.buffer).is_ok()
    }
}
