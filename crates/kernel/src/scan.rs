//! One pass over the memory map: the class of every page frame.

use crate::class::{ClassSet, PageClass};
use crate::kernel::Kernel;
use crate::memmap::MapRange;
use crate::page::{HUGETLB_ORDER, Oddity, PageRules};
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
    /// Page frames without a `struct page`; they count as the kernel's.
    pub unmapped: u64,
    /// Page frames whose `struct page` could not be read; they count as the kernel's.
    pub unread: u64,
    /// Page frames whose `struct page` contradicts itself, and what the first of them said.
    pub odd: u64,
    /// The first oddity.
    pub first_odd: Option<(Pfn, Oddity)>,
}

/// Bytes of memory map looked at through one slice, at most. From a file in the page cache 256 KiB are read and swept at 3.9 ns a
/// struct page, 64 KiB at 4.3, 16 KiB at 5.5, 2 MiB at 4.2; through mappings of any size at 5.6 and more.
const SLICE: u64 = 256 << 10;
/// Behind a block that was jumped over a slice is one page, and grows by this factor to [`SLICE`]: where memory is free or in huge
/// pages, one page of memory map in eight to sixteen is read.
const GROWTH: u64 = 4;

/// The page size of x86-64.
const MAP_PAGE: u64 = 4096;

/// One thread's scanner.
pub struct Scanner<'a> {
    kernel: &'a Kernel,
    reader: KernelReader<'a>,
    skip: ClassSet,
    pair: Vec<u8>,
    /// Bytes of the next slice.
    slice: u64,
    /// The memory map is read page by page up to this page frame's, for a larger slice of it could not be read.
    narrow: Pfn,
    /// Bytes of memory map read so far.
    read: u64,
    /// The last page frame that a block larger than a chunk could begin at, and the block that does.
    large: Option<(Pfn, Option<Block>)>,
}

/// A block being walked.
#[derive(Clone, Copy, Debug)]
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
        let reader = KernelReader::new(memory, &kernel.paging);
        Self { kernel, reader, skip, pair, slice: MAP_PAGE, narrow: Pfn(0), read: 0, large: None }
    }

    /// Bytes of memory map read so far.
    #[must_use]
    pub const fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Tells `sink` the class of each page frame of chunk number `chunk` that is in `ram`, ascending, neighbours of one class at once.
    /// Each chunk can be scanned by itself: a block that began in an earlier one is found by its head.
    pub fn scan_chunk(&mut self, chunk: u64, ram: &PageSet, sink: &mut impl ClassSink) -> ChunkScan {
        let (chunk_start, chunk_end) = (Pfn(chunk << CHUNK_SHIFT), Pfn((chunk + 1) << CHUNK_SHIFT));
        let mut out = ChunkScan::default();
        let mut block = self.large_block(chunk_start, ram);
        let mut sink = Joined { sink, run: None };
        for (start, end) in ram.runs(chunk_start, chunk_end) {
            let mut at = start;
            for range in self.kernel.memmap.covering(start, end) {
                if range.start > at {
                    out.unmapped += range.start.0 - at.0;
                    sink.pages(at, range.start, PageClass::Kernel);
                }
                self.scan_range(range, &mut block, &mut sink, &mut out);
                at = range.end;
            }
            if at < end {
                out.unmapped += end.0 - at.0;
                sink.pages(at, end, PageClass::Kernel);
            }
        }
        sink.flush();
        out
    }

    /// The block that begins before the chunk at `start` and covers it. Blocks are aligned to their size, and only hugetlb pages
    /// are larger than a chunk, so there is one place where its head can be.
    fn large_block(&mut self, start: Pfn, ram: &PageSet) -> Option<Block> {
        let head = Pfn(start.0 >> HUGETLB_ORDER << HUGETLB_ORDER);
        if head == start {
            return None;
        }
        if let Some((_, known)) = self.large.filter(|(at, _)| *at == head) {
            return known.filter(|b| b.end > start);
        }
        let block = self.block_at(head, ram);
        self.large = Some((head, block));
        block.filter(|b| b.end > start)
    }

    /// The block larger than a chunk that `head` begins, if it does.
    fn block_at(&mut self, head: Pfn, ram: &PageSet) -> Option<Block> {
        let map = self.kernel.memmap.page(head).filter(|_| ram.contains(head))?;
        self.reader.read_virt(map, &mut self.pair).ok()?;
        let (page, next) = self.pair.split_at(self.kernel.rules.size());
        let verdict = self.kernel.rules.classify(head, page, || Some(next));
        let large = u32::from(verdict.order) > CHUNK_SHIFT;
        large.then(|| Block { end: head.plus(1 << verdict.order), class: verdict.class, ask: false })
    }

    fn scan_range(
        &mut self,
        range: MapRange,
        block: &mut Option<Block>,
        sink: &mut Joined<'_, impl ClassSink>,
        out: &mut ChunkScan,
    ) {
        let size = self.kernel.rules.size() as u64;
        let mut at = range.start;
        self.narrow = range.start;
        while at < range.end {
            if let Some(b) = block.as_ref().filter(|b| b.end > at && !b.ask) {
                let end = b.end.min(range.end);
                sink.pages(at, end, b.class);
                if (end.0 - at.0) * size > MAP_PAGE {
                    self.slice = MAP_PAGE;
                }
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
        sink: &mut Joined<'_, impl ClassSink>,
        out: &mut ChunkScan,
    ) -> Pfn {
        let rules = &self.kernel.rules;
        let size = rules.size();
        // To the end of a page, and one more than that or than is left, so that the last page's successor can be asked.
        let most = self.slice - (MAP_PAGE - rest_of_page(map)) + size as u64;
        let mut want = ((left + 1) * size as u64).min(most);
        if at < self.narrow {
            want = want.min(rest_of_page(map));
        }
        self.slice = (self.slice * GROWTH).min(SLICE);
        let piece = self.reader.contiguous(map, want).ok();
        let whole = piece.map_or(0, |(_, len)| len / size as u64);
        if whole < 2 {
            return self.scan_pair(at, map, left, block, sink, out);
        }
        let (phys, len) = piece.unwrap_or((PhysAddr(0), 0));
        self.read += len;
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
        let mut walk = Walk { at, block, sink, out, skip: self.skip, jumped: 0 };
        while walk.at < end {
            let index = (walk.at.0 - at.0) as usize * size;
            let pages = bytes.get(index..whole as usize * size).unwrap_or_default();
            walk.step(end, rules, pages);
        }
        if walk.jumped > usable / 2 {
            self.slice = MAP_PAGE;
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
        sink: &mut Joined<'_, impl ClassSink>,
        out: &mut ChunkScan,
    ) -> Pfn {
        let rules = &self.kernel.rules;
        let size = rules.size();
        self.read += 2 * size as u64;
        let (page, next) = self.pair.split_at_mut(size);
        if self.reader.read_virt(map, page).is_err() {
            // Either it reaches into the next page, or its page is lost with all that begin in it.
            let lost = rest_of_page(map).div_ceil(size as u64).min(left);
            out.unread += lost;
            sink.pages(at, at.plus(lost), PageClass::Kernel);
            return at.plus(lost);
        }
        let end = at.plus(1.min(left));
        let whole = if self.reader.read_virt(map.plus(size as u64), next).is_ok() { 2 } else { 1 };
        let mut walk = Walk { at, block, sink, out, skip: self.skip, jumped: 0 };
        walk.step(end, rules, self.pair.get(..whole * size).unwrap_or_default());
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

/// Whether the page frame `pfn` is better not read where that is not needed: its own `struct page` says that it is poisoned, offline, or
/// memory that a confidential guest has not accepted, or cannot be read.
pub fn must_not_be_read(kernel: &Kernel, reader: &mut KernelReader<'_>, pfn: Pfn) -> bool {
    let Some(map) = kernel.memmap.page(pfn) else { return true };
    let mut page = vec![0; kernel.rules.size()];
    if reader.read_virt(map, &mut page).is_err() || kernel.rules.is_poisoned(&page) {
        return true;
    }
    let class = kernel.rules.classify(pfn, &page, || None).class;
    ClassSet::UNREADABLE.has(class) || class == PageClass::Unaccepted
}

/// Bytes from `addr` to the end of its page: what is mapped, and what a dump has, goes by pages.
const fn rest_of_page(addr: VirtAddr) -> u64 {
    MAP_PAGE - addr.0 % MAP_PAGE
}

/// The state of a walk over neighbouring pages.
struct Walk<'w, 's, S> {
    at: Pfn,
    block: &'w mut Option<Block>,
    sink: &'w mut Joined<'s, S>,
    out: &'w mut ChunkScan,
    skip: ClassSet,
    /// Pages that were jumped over.
    jumped: u64,
}

impl<S: ClassSink> Walk<'_, '_, S> {
    /// Handles the page at `self.at`, whose `struct page` is the first of `pages`, and whatever block it heads or pages behind it that say
    /// the same, up to `end`.
    #[inline]
    fn step(&mut self, end: Pfn, rules: &PageRules, pages: &[u8]) {
        let size = rules.size();
        let page = pages.get(..size).unwrap_or_default();
        let left = (end.0 - self.at.0) as usize;
        if let Some(b) = self.block.filter(|b| b.end > self.at) {
            // Only pages of blocks that have to be asked come here; the others are jumped over.
            let left = left.min((b.end.0 - self.at.0) as usize);
            let healthy = rules.healthy(pages.get(..left * size).unwrap_or_default());
            return match healthy {
                0 => self.emit(self.at.plus(1), PageClass::HwPoison),
                n => self.emit(self.at.plus(n as u64), b.class),
            };
        }
        let verdict = rules.classify(self.at, page, || pages.get(size..2 * size));
        if let Some(odd) = verdict.odd {
            self.out.odd += 1;
            self.out.first_odd.get_or_insert((self.at, odd));
        }
        if verdict.order == 0 {
            let alike =
                if verdict.odd.is_none() { rules.alike(pages.get(..left * size).unwrap_or_default()) } else { 0 };
            return self.emit(self.at.plus(1 + alike as u64), verdict.class);
        }
        let block_end = self.at.plus(1 << verdict.order);
        // The flag of a hugetlb head speaks for the whole page (and HVO lets inner struct pages repeat it).
        let ask = !(self.skip.has(verdict.class)
            || matches!(verdict.class, PageClass::HugeTlb | PageClass::HwPoison | PageClass::Unaccepted));
        *self.block = Some(Block { end: block_end, class: verdict.class, ask });
        if ask {
            let class = if rules.is_poisoned(page) { PageClass::HwPoison } else { verdict.class };
            self.emit(self.at.plus(1), class);
        } else {
            let to = block_end.min(end);
            self.jumped += to.0 - self.at.0 - 1;
            self.emit(to, verdict.class);
        }
    }

    #[inline]
    fn emit(&mut self, end: Pfn, class: PageClass) {
        self.sink.pages(self.at, end, class);
        self.at = end;
    }
}

/// Joins neighbours of one class before it tells a sink of them.
struct Joined<'s, S> {
    sink: &'s mut S,
    run: Option<(Pfn, Pfn, PageClass)>,
}

impl<S: ClassSink> Joined<'_, S> {
    #[inline]
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
        match &mut self.run {
            Some(run) if run.1 == start && run.2 == class => run.1 = end,
            _ => {
                self.flush();
                self.run = Some((start, end, class));
            }
        }
    }

    fn flush(&mut self) {
        if let Some((start, end, class)) = self.run.take() {
            self.sink.pages(start, end, class);
        }
    }
}
