//! One pass over the memory map: the class of every page frame.

use crate::class::{ClassSet, PageClass};
use crate::kernel::Kernel;
use crate::memmap::MapRange;
use crate::page::{Oddity, Verdict};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use coresift_format::{CHUNK_SHIFT, PageSet, Pfn, PhysAddr, PhysicalMemory};

/// Receives the classes of page frames: ascending ranges that cover the RAM of a chunk.
pub trait ClassSink {
    /// The page frames `start..end` are of `class`.
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass);
}

/// What one chunk's scan leaves to its caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkScan {
    /// A block that reaches beyond the chunk: the pages up to here are of this class. Blocks are aligned to their size, so it
    /// covers each following chunk whole or not at all, whatever that chunk's own scan said.
    pub spill: Option<(Pfn, PageClass)>,
    /// Page frames without a `struct page`; they count as the kernel's.
    pub unmapped: u64,
    /// Page frames whose `struct page` could not be read; they count as the kernel's.
    pub unread: u64,
    /// Page frames whose `struct page` contradicts itself, and what the first of them said.
    pub odd: u64,
    /// The first oddity.
    pub first_odd: Option<(Pfn, Oddity)>,
}

/// Bytes of memory map looked at through one slice.
const SLICE: u64 = 256 << 10;

/// The page size of x86-64.
const MAP_PAGE: u64 = 4096;

/// One thread's scanner.
pub struct Scanner<'a> {
    kernel: &'a Kernel,
    reader: KernelReader<'a>,
    skip: ClassSet,
    pair: Vec<u8>,
    /// The memory map is read page by page up to this page frame's, for a larger slice of it could not be read.
    narrow: Pfn,
}

/// A block being walked.
#[derive(Clone, Copy)]
struct Block {
    end: Pfn,
    class: PageClass,
    /// Whether each page has to be asked for poison.
    ask: bool,
}

impl<'a> Scanner<'a> {
    /// A scanner of `memory`. Blocks of the classes in `skip` are taken whole, without a look at their inner pages; of the others
    /// each page is asked whether it is poisoned.
    #[must_use]
    pub fn new(kernel: &'a Kernel, memory: &'a dyn PhysicalMemory, skip: ClassSet) -> Self {
        let pair = vec![0; 2 * kernel.rules.size()];
        Self { kernel, reader: KernelReader::new(memory, &kernel.paging), skip, pair, narrow: Pfn(0) }
    }

    /// Tells `sink` the class of each page frame of chunk number `chunk` that is in `ram`, ascending.
    pub fn scan_chunk(&mut self, chunk: u64, ram: &PageSet, sink: &mut impl ClassSink) -> ChunkScan {
        let chunk_end = Pfn((chunk + 1) << CHUNK_SHIFT);
        let mut out = ChunkScan::default();
        let mut block: Option<Block> = None;
        for (start, end) in ram.runs(Pfn(chunk << CHUNK_SHIFT), chunk_end) {
            let mut at = start;
            for range in self.kernel.memmap.covering(start, end) {
                if range.start > at {
                    out.unmapped += range.start.0 - at.0;
                    sink.pages(at, range.start, PageClass::Kernel);
                }
                self.scan_range(range, &mut block, sink, &mut out);
                at = range.end;
            }
            if at < end {
                out.unmapped += end.0 - at.0;
                sink.pages(at, end, PageClass::Kernel);
            }
        }
        out.spill = block.filter(|b| b.end > chunk_end).map(|b| (b.end, b.class));
        out
    }

    fn scan_range(
        &mut self,
        range: MapRange,
        block: &mut Option<Block>,
        sink: &mut impl ClassSink,
        out: &mut ChunkScan,
    ) {
        let size = self.kernel.rules.size() as u64;
        let mut at = range.start;
        self.narrow = range.start;
        while at < range.end {
            if let Some(b) = block.as_ref().filter(|b| b.end > at && !b.ask) {
                let end = b.end.min(range.end);
                sink.pages(at, end, b.class);
                at = end;
                continue;
            }
            let map = range.map.plus((at.0 - range.start.0) * size);
            let left = range.end.0 - at.0;
            at = self.scan_slice(at, map, left, block, sink, out);
        }
    }

    /// Scans some of the `left` pages from `at` on, whose `struct page`s begin at `map`; returns where it stopped, which is `at`
    /// where it is to be tried again with less.
    fn scan_slice(
        &mut self,
        at: Pfn,
        map: VirtAddr,
        left: u64,
        block: &mut Option<Block>,
        sink: &mut impl ClassSink,
        out: &mut ChunkScan,
    ) -> Pfn {
        let rules = &self.kernel.rules;
        let size = rules.size();
        // One more than is left, so that the last page's successor can be asked.
        let mut want = ((left + 1) * size as u64).min(SLICE);
        if at < self.narrow {
            want = want.min(rest_of_page(map));
        }
        let piece = self.reader.contiguous(map, want).ok();
        let whole = piece.map_or(0, |(_, len)| len / size as u64);
        if whole < 2 {
            return self.scan_pair(at, map, left, block, sink, out);
        }
        let (phys, len) = piece.unwrap_or((PhysAddr(0), 0));
        let Ok(bytes) = self.reader.physical().slice(phys, len as usize) else {
            if len > rest_of_page(map) {
                self.narrow = at.plus(whole);
                return at;
            }
            return self.scan_pair(at, map, left, block, sink, out);
        };
        // The last whole struct page of the slice only serves as the one before's successor.
        let usable = (whole - 1).min(left);
        let end = at.plus(usable);
        let mut walk = Walk { at, block, sink, out, skip: self.skip };
        while walk.at < end {
            let index = (walk.at.0 - at.0) as usize * size;
            let page = bytes.get(index..index + size).unwrap_or_default();
            let next = || bytes.get(index + size..index + 2 * size);
            walk.step(
                end,
                || rules.classify(Pfn(at.0 + (index / size) as u64), page, next),
                || rules.is_poisoned(page),
            );
        }
        walk.at
    }

    /// The same for one page whose `struct page`, or the one behind it, crosses a border of physical memory or of the mapping.
    fn scan_pair(
        &mut self,
        at: Pfn,
        map: VirtAddr,
        left: u64,
        block: &mut Option<Block>,
        sink: &mut impl ClassSink,
        out: &mut ChunkScan,
    ) -> Pfn {
        let rules = &self.kernel.rules;
        let size = rules.size();
        let (page, next) = self.pair.split_at_mut(size);
        if self.reader.read_virt(map, page).is_err() {
            // Either it reaches into the next page, or its page is lost with all that begin in it.
            let lost = rest_of_page(map).div_ceil(size as u64).min(left);
            out.unread += lost;
            sink.pages(at, at.plus(lost), PageClass::Kernel);
            return at.plus(lost);
        }
        let end = at.plus(1.min(left));
        let next = self.reader.read_virt(map.plus(size as u64), next).is_ok().then_some(&*next);
        let page = &*page;
        let mut walk = Walk { at, block, sink, out, skip: self.skip };
        walk.step(end, || rules.classify(at, page, || next), || rules.is_poisoned(page));
        walk.at
    }
}

/// Whether the page frame `pfn` must not be read for hardware poison, by its own `struct page`; false where that cannot be read. For
/// pages of a block that was taken whole, whose inner pages a scan does not ask.
pub fn is_poisoned(kernel: &Kernel, reader: &mut KernelReader<'_>, pfn: Pfn) -> bool {
    let Some(map) = kernel.memmap.page(pfn) else { return false };
    let mut page = vec![0; kernel.rules.size()];
    reader.read_virt(map, &mut page).is_ok() && kernel.rules.is_poisoned(&page)
}

/// Bytes from `addr` to the end of its page: what is mapped, and what a dump has, goes by pages.
const fn rest_of_page(addr: VirtAddr) -> u64 {
    MAP_PAGE - addr.0 % MAP_PAGE
}

/// The state of a walk over neighbouring pages.
struct Walk<'w, S> {
    at: Pfn,
    block: &'w mut Option<Block>,
    sink: &'w mut S,
    out: &'w mut ChunkScan,
    skip: ClassSet,
}

impl<S: ClassSink> Walk<'_, S> {
    /// Handles the page at `self.at` and whatever block it heads, up to `end`.
    #[inline]
    fn step(&mut self, end: Pfn, classify: impl FnOnce() -> Verdict, poisoned: impl FnOnce() -> bool) {
        if let Some(b) = self.block.as_ref().filter(|b| b.end > self.at) {
            // Only pages of blocks that have to be asked come here; the others are jumped over.
            let class = if poisoned() { PageClass::HwPoison } else { b.class };
            return self.emit(self.at.plus(1), class);
        }
        let verdict = classify();
        if let Some(odd) = verdict.odd {
            self.out.odd += 1;
            self.out.first_odd.get_or_insert((self.at, odd));
        }
        if verdict.order == 0 {
            return self.emit(self.at.plus(1), verdict.class);
        }
        let block_end = self.at.plus(1 << verdict.order);
        // The flag of a hugetlb head speaks for the whole page (and HVO lets inner struct pages repeat it).
        let ask = !(self.skip.has(verdict.class)
            || matches!(verdict.class, PageClass::HugeTlb | PageClass::HwPoison | PageClass::Unaccepted));
        *self.block = Some(Block { end: block_end, class: verdict.class, ask });
        if ask {
            let class = if poisoned() { PageClass::HwPoison } else { verdict.class };
            self.emit(self.at.plus(1), class);
        } else {
            self.emit(block_end.min(end), verdict.class);
        }
    }

    #[inline]
    fn emit(&mut self, end: Pfn, class: PageClass) {
        self.sink.pages(self.at, end, class);
        self.at = end;
    }
}
