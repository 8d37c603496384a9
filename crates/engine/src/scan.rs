//! The scan: which pages of the input stay, decided chunk by chunk on all threads.
//!
//! A chunk is 32768 page frames, whose `struct page`s fill 2 MiB. Threads take the next chunk and decide it by themselves; what
//! reaches over a chunk's end is settled when all are done.

use crate::budget::WORKER_STACK;
use crate::observer::{Observer, Stage};
use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use coresift_kernel::protected::Protected;
use coresift_kernel::{ChunkScan, ClassSet, ClassSink, Kernel, Oddity, PageClass, Scanner, is_poisoned};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What is to be scanned, and what to leave out.
pub struct Scan<'a> {
    /// The kernel whose memory map is read.
    pub kernel: &'a Kernel,
    /// The input.
    pub memory: &'a dyn PhysicalMemory,
    /// The classes to leave out.
    pub excluded: ClassSet,
    /// Memory that stays, whatever its class.
    pub protected: &'a [Protected],
    /// Free pages, where the free lists told them.
    pub free: Option<&'a PageSet>,
    /// Receives progress.
    pub observer: &'a dyn Observer,
}

/// What a scan found.
#[derive(Debug)]
pub struct Scanned {
    /// The pages that stay; those without `struct page` among them.
    pub keep: PageSet,
    /// Of these, slab pages.
    pub slab: PageSet,
    /// Of these, the kernel's pages that are of no other class.
    pub kernel: PageSet,
    /// Pages that must not be read, whatever else is true of them.
    pub unreadable: PageSet,
    /// RAM pages by class.
    pub counts: Counts,
    /// Pages of the input that are left out, by class.
    pub dropped: Counts,
    /// Pages that were saved for each kind of protected memory.
    pub saved: Vec<u64>,
    /// Page frames looked at.
    pub pages: u64,
    /// Page frames whose `struct page` could not be read.
    pub unread: u64,
    /// Page frames whose `struct page` contradicts itself.
    pub odd: u64,
    /// The lowest of them.
    pub first_odd: Option<(Pfn, Oddity)>,
}

impl Scan<'_> {
    /// Scans with `threads` threads.
    #[must_use]
    pub fn run(&self, threads: usize) -> Scanned {
        let shared =
            Shared { scan: self, chunks: Mutex::new(ChunkCursor::new(self.kernel)), done: Mutex::new(Done::default()) };
        std::thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                let worker = std::thread::Builder::new().name("find pages".to_owned()).stack_size(WORKER_STACK);
                // Without a further thread the scan only takes longer.
                let _ = worker.spawn_scoped(scope, || shared.work());
            }
            shared.work();
        });
        let mut done = shared.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.apply_spills(self);
        done.merge(self)
    }
}

/// Numbers of pages by class.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts([u64; PageClass::ALL.len()]);

impl Counts {
    /// The number of a class.
    #[must_use]
    pub fn of(&self, class: PageClass) -> u64 {
        self.0.get(class as usize).copied().unwrap_or(0)
    }

    fn add(&mut self, class: PageClass, pages: u64) {
        if let Some(count) = self.0.get_mut(class as usize) {
            *count += pages;
        }
    }

    fn take(&mut self, class: PageClass, pages: u64) {
        if let Some(count) = self.0.get_mut(class as usize) {
            *count = count.saturating_sub(pages);
        }
    }

    fn merge(&mut self, other: &Self) {
        for (sum, n) in self.0.iter_mut().zip(other.0) {
            *sum += n;
        }
    }
}

/// Hands out the numbers of the chunks that have `struct page`s, ascending.
struct ChunkCursor<'a> {
    kernel: &'a Kernel,
    range: usize,
    next: u64,
}

impl<'a> ChunkCursor<'a> {
    fn new(kernel: &'a Kernel) -> Self {
        Self { kernel, range: 0, next: 0 }
    }

    fn next(&mut self) -> Option<u64> {
        loop {
            let range = self.kernel.memmap.ranges().get(self.range)?;
            let chunk = self.next.max(range.start.0 >> CHUNK_SHIFT);
            if chunk << CHUNK_SHIFT < range.end.0 {
                self.next = chunk + 1;
                return Some(chunk);
            }
            self.range += 1;
        }
    }

    fn total(kernel: &Kernel) -> u64 {
        kernel.memmap.ranges().iter().map(|r| r.end.0 - r.start.0).sum()
    }
}

/// What is shared by the scanning threads.
struct Shared<'a> {
    scan: &'a Scan<'a>,
    chunks: Mutex<ChunkCursor<'a>>,
    done: Mutex<Done>,
}

/// One chunk, scanned.
#[derive(Debug)]
struct Chunk {
    keep: PageSet,
    slab: PageSet,
    kernel: PageSet,
    unreadable: PageSet,
    counts: Counts,
    dropped: Counts,
    saved: Vec<u64>,
}

/// All chunks scanned so far.
#[derive(Debug, Default)]
struct Done {
    chunks: BTreeMap<u64, Chunk>,
    spills: Vec<(u64, Pfn, PageClass)>,
    pages: u64,
    unread: u64,
    odd: u64,
    first_odd: Option<(Pfn, Oddity)>,
}

impl Shared<'_> {
    fn work(&self) {
        let mut scanner = Scanner::new(self.scan.kernel, self.scan.memory, self.scan.excluded);
        let mut bits = Bits::default();
        let total = ChunkCursor::total(self.scan.kernel);
        loop {
            let Some(chunk) = self.chunks.lock().unwrap_or_else(PoisonError::into_inner).next() else { return };
            let (scanned, result) = self.chunk(chunk, &mut scanner, &mut bits);
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.pages += 1 << CHUNK_SHIFT;
            done.unread += scanned.unread;
            done.odd += scanned.odd;
            if let Some(odd) = scanned.first_odd {
                let first = done.first_odd.get_or_insert(odd);
                if odd.0 < first.0 {
                    *first = odd;
                }
            }
            if let Some((end, class)) = scanned.spill {
                done.spills.push((chunk, end, class));
            }
            done.chunks.insert(chunk, result);
            let pages = done.pages.min(total);
            drop(done);
            self.scan.observer.progress(Stage::FindPages, pages, total);
        }
    }

    fn chunk(&self, chunk: u64, scanner: &mut Scanner<'_>, bits: &mut Bits) -> (ChunkScan, Chunk) {
        bits.start(chunk, self.scan.memory, self.scan.excluded, self.scan.protected);
        let scanned = scanner.scan_chunk(chunk, self.scan.memory.ram(), bits);
        if let Some(free) = self.scan.free {
            bits.mark_free(chunk, free);
        }
        let mut reader = None;
        let poisoned = |pfn| {
            let reader = reader.get_or_insert_with(|| self.scan.kernel.reader(self.scan.memory));
            is_poisoned(self.scan.kernel, reader, pfn)
        };
        (scanned, bits.finish(chunk, self.scan.protected, poisoned))
    }
}

/// The page sets of one chunk while it is scanned.
#[derive(Default)]
struct Bits {
    base: u64,
    excluded: ClassSet,
    stored: ChunkBits,
    /// Whether the input has all RAM pages of the chunk.
    whole: bool,
    drop: ChunkBits,
    /// Of what is dropped, the pages that must not be read: not even the guard brings them back.
    unreadable: ChunkBits,
    free: ChunkBits,
    slab: ChunkBits,
    kernel: ChunkBits,
    scratch: ChunkBits,
    counts: Counts,
    dropped: Counts,
    /// Whether something protected is in the chunk; only then the dropped ranges are remembered.
    guarded: bool,
    ranges: Vec<(u64, u64, PageClass)>,
}

impl ClassSink for Bits {
    #[inline]
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
        let (start, end) = (start.0 - self.base, end.0 - self.base);
        self.counts.add(class, end - start);
        match class {
            PageClass::Slab => self.slab.set(start, end),
            PageClass::Kernel => self.kernel.set(start, end),
            PageClass::Free => self.free.set(start, end),
            _ => {}
        }
        if self.excluded.has(class) {
            let pages = if self.whole { end - start } else { self.stored.count_in(start, end) };
            self.dropped.add(class, pages);
            self.drop.set(start, end);
            if ClassSet::UNREADABLE.has(class) {
                self.unreadable.set(start, end);
            }
            if self.guarded {
                self.ranges.push((start, end, class));
            }
        }
    }
}

impl Bits {
    fn start(&mut self, chunk: u64, memory: &dyn PhysicalMemory, excluded: ClassSet, protected: &[Protected]) {
        self.base = chunk << CHUNK_SHIFT;
        let (from, to) = (Pfn(self.base), Pfn(self.base + (1 << CHUNK_SHIFT)));
        self.guarded = protected.iter().any(|kind| kind.pages.runs(from, to).next().is_some());
        self.ranges.clear();
        self.excluded = excluded;
        memory.ram().copy_chunk(chunk, &mut self.scratch);
        memory.stored().copy_chunk(chunk, &mut self.stored);
        self.whole = self.scratch == self.stored;
        for bits in [&mut self.drop, &mut self.unreadable, &mut self.free, &mut self.slab, &mut self.kernel] {
            bits.clear();
        }
        self.counts = Counts::default();
        self.dropped = Counts::default();
    }

    /// Takes the pages of `free` for free, whatever the scan said: those of kernels that do not mark them look like the kernel's.
    fn mark_free(&mut self, chunk: u64, free: &PageSet) {
        free.copy_chunk(chunk, &mut self.scratch);
        self.scratch.intersect(&self.kernel);
        let moved = self.scratch.count();
        self.kernel.subtract(&self.scratch);
        self.drop.unite(&self.scratch);
        self.free.unite(&self.scratch);
        self.counts.take(PageClass::Kernel, moved);
        self.counts.add(PageClass::Free, moved);
        self.scratch.intersect(&self.stored);
        self.dropped.add(PageClass::Free, self.scratch.count());
    }

    /// Decides the chunk. Whether a page that the guard would bring back is `poisoned` is asked page by page: it may lie inside a
    /// block that was taken whole.
    fn finish(&mut self, chunk: u64, protected: &[Protected], mut poisoned: impl FnMut(Pfn) -> bool) -> Chunk {
        let mut saved = Vec::with_capacity(protected.len());
        for kind in protected {
            kind.pages.copy_chunk(chunk, &mut self.scratch);
            self.scratch.intersect(&self.stored);
            self.scratch.subtract(&self.unreadable);
            if kind.free_inside {
                self.scratch.subtract(&self.free);
            }
            self.scratch.intersect(&self.drop);
            let mut at = 0;
            while let Some((start, end)) = self.scratch.next_run(at) {
                for index in (start..end).filter(|index| poisoned(Pfn(self.base + index))) {
                    self.scratch.unset(index, index + 1);
                    self.unreadable.set(index, index + 1);
                }
                at = end;
            }
            saved.push(self.scratch.count());
            self.drop.subtract(&self.scratch);
            for (start, end, class) in &self.ranges {
                self.dropped.take(*class, self.scratch.count_in(*start, *end));
            }
        }
        let mut keep = self.stored.clone();
        keep.subtract(&self.drop);
        for bits in [&mut self.slab, &mut self.kernel] {
            bits.intersect(&keep);
        }
        Chunk {
            keep: PageSet::of_chunk(chunk, &keep),
            slab: PageSet::of_chunk(chunk, &self.slab),
            kernel: PageSet::of_chunk(chunk, &self.kernel),
            unreadable: PageSet::of_chunk(chunk, &self.unreadable),
            counts: self.counts,
            dropped: self.dropped,
            saved,
        }
    }
}

impl Done {
    /// Puts the chunks together.
    fn merge(self, scan: &Scan<'_>) -> Scanned {
        let mut counts = Counts::default();
        let mut dropped = Counts::default();
        let mut saved = vec![0; scan.protected.len()];
        let mut keep = Kept::new(scan.memory.stored());
        let mut slab = PageSetBuilder::default();
        let mut kernel = PageSetBuilder::default();
        let mut unreadable = PageSetBuilder::default();
        for (number, chunk) in self.chunks {
            counts.merge(&chunk.counts);
            dropped.merge(&chunk.dropped);
            for (sum, n) in saved.iter_mut().zip(&chunk.saved) {
                *sum += n;
            }
            keep.push(number, chunk.keep);
            slab.append(&chunk.slab);
            kernel.append(&chunk.kernel);
            unreadable.append(&chunk.unreadable);
        }
        Scanned {
            keep: keep.finish(),
            slab: slab.finish(),
            kernel: kernel.finish(),
            unreadable: unreadable.finish(),
            counts,
            dropped,
            saved,
            pages: self.pages,
            unread: self.unread,
            odd: self.odd,
            first_odd: self.first_odd,
        }
    }

    /// Lets blocks that reach beyond their chunk (1 GiB hugetlb pages) speak for the chunks they cover, whole.
    fn apply_spills(&mut self, scan: &Scan<'_>) {
        let Scan { kernel, memory, excluded, protected, .. } = *scan;
        let mut bits = Bits::default();
        let mut reader = kernel.reader(memory);
        let mut spills = std::mem::take(&mut self.spills);
        // Threads finish in any order. What a covered chunk said, spills among it, does not count.
        spills.sort_unstable_by_key(|spill| spill.0);
        let mut covered_to = Pfn(0);
        spills.retain(|(chunk, end, _)| {
            let counts = chunk << CHUNK_SHIFT >= covered_to.0;
            covered_to = if counts { covered_to.max(*end) } else { covered_to };
            counts
        });
        for (chunk, end, class) in spills {
            let covered: Vec<u64> =
                self.chunks.range(chunk + 1..end.0.div_ceil(1 << CHUNK_SHIFT)).map(|(n, _)| *n).collect();
            for number in covered {
                bits.start(number, memory, excluded, protected);
                let base = number << CHUNK_SHIFT;
                for (start, stop) in memory.ram().runs(Pfn(base), Pfn(base + (1 << CHUNK_SHIFT))) {
                    bits.pages(start, stop, class);
                }
                self.chunks.insert(number, bits.finish(number, protected, |pfn| is_poisoned(kernel, &mut reader, pfn)));
            }
        }
    }
}

/// The pages to keep: those of scanned chunks as decided, those the kernel has no `struct page` for as the input has them.
struct Kept<'a> {
    stored: &'a PageSet,
    builder: PageSetBuilder,
    next: u64,
}

impl<'a> Kept<'a> {
    fn new(stored: &'a PageSet) -> Self {
        Self { stored, builder: PageSetBuilder::default(), next: 0 }
    }

    fn push(&mut self, chunk: u64, keep: PageSet) {
        self.copy_to(chunk);
        self.builder.append(&keep);
        self.next = chunk + 1;
    }

    fn copy_to(&mut self, chunk: u64) {
        let rest = self.stored.runs(Pfn(self.next << CHUNK_SHIFT), Pfn(chunk << CHUNK_SHIFT));
        self.builder.append(&PageSet::from_ranges(rest));
    }

    fn finish(mut self) -> PageSet {
        self.copy_to(1 << (64 - CHUNK_SHIFT - 1));
        self.builder.finish()
    }
}
