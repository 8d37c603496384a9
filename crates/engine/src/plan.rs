//! Which pages to keep, and in what order they are written.

use crate::budget::WORKER_STACK;
use crate::observer::{Observer, Stage};
use crate::report::{ClassRow, GuardRow};
use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use coresift_kernel::is_poisoned;
use coresift_kernel::protected::{self, Protected};
use coresift_kernel::{ChunkScan, ClassSet, ClassSink, Kernel, Oddity, PageClass, Scanner, anchors, nodes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// Numbers of pages by class.
#[derive(Clone, Copy, Debug, Default)]
struct Counts([u64; PageClass::ALL.len()]);

impl Counts {
    fn of(&self, class: PageClass) -> u64 {
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

/// What is to be written.
#[derive(Debug, Default)]
pub struct Plan {
    /// The pages that get a descriptor.
    pub keep: PageSet,
    /// Pages to write first, in this order, each set in pfn order, as far as they are in `keep`; the rest of `keep` follows.
    pub first: Vec<PageSet>,
    /// Pages that must not be read, whatever else is true of them.
    unreadable: PageSet,
    /// A row a class; `excluded_pages` counts what this plan drops of the pages the input has.
    pub classes: Vec<ClassRow>,
    /// What the guard protected.
    pub guard: Vec<GuardRow>,
    /// Bytes of memory map read.
    pub bytes_in: u64,
    /// Things a user should know.
    pub notes: Vec<String>,
}

impl Plan {
    /// The plan without any knowledge of the kernel: all pages the input has.
    pub fn keep_all(memory: &dyn PhysicalMemory) -> Self {
        Self { keep: memory.stored().clone(), ..Self::default() }
    }

    /// Scans the memory map with `threads` threads and leaves out the pages of the classes in `excluded`.
    pub fn filter(
        kernel: &Kernel,
        memory: &dyn PhysicalMemory,
        excluded: ClassSet,
        threads: usize,
        observer: &dyn Observer,
    ) -> Self {
        let (protected, mut notes) = protected::find(kernel, memory);
        let free = free_by_lists(kernel, memory, excluded, &mut notes);
        let scan = Scan {
            kernel,
            memory,
            excluded,
            protected: &protected,
            free: free.as_ref(),
            chunks: Mutex::new(ChunkCursor::new(kernel)),
            done: Mutex::new(Done::default()),
            observer,
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                let worker = std::thread::Builder::new().name("find pages".to_owned()).stack_size(WORKER_STACK);
                // Without a further thread the scan only takes longer.
                let _ = worker.spawn_scoped(scope, || scan.work());
            }
            scan.work();
        });
        let done = scan.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut plan = done.into_plan(kernel, memory, excluded, &protected, free.is_some(), notes);
        let memmap = plan.guard_memmap(kernel, memory);
        plan.order(protected, anchors::find(kernel, memory), memmap);
        plan
    }

    /// Puts in front what a debugger needs to open the dump at all: page tables, per-cpu areas, where the memory map hangs, and the
    /// kernel image; then slab, which `first` begins with, the memory map, and the kernel's other pages, which it ends with.
    fn order(&mut self, protected: Vec<Protected>, anchors: PageSet, memmap: PageSet) {
        let (image, small): (Vec<_>, Vec<_>) = protected.into_iter().partition(|kind| kind.what == protected::IMAGE);
        let union =
            |sets: Vec<Protected>| sets.into_iter().fold(PageSet::default(), |all, kind| united(&all, &kind.pages));
        self.first.insert(0, union(image));
        self.first.insert(0, united(&union(small), &anchors));
        self.first.insert(3, memmap);
    }

    /// Memory the page sets occupy, in bytes.
    pub fn memory(&self) -> u64 {
        self.first.iter().chain([&self.keep, &self.unreadable]).map(|set| set.memory() as u64).sum()
    }

    /// Keeps the pages that hold the `struct page`s of kept pages, and returns them.
    fn guard_memmap(&mut self, kernel: &Kernel, memory: &dyn PhysicalMemory) -> PageSet {
        let mut needed = Vec::new();
        for chunk in self.keep.chunks() {
            let (start, end) = (Pfn(chunk << CHUNK_SHIFT), Pfn((chunk + 1) << CHUNK_SHIFT));
            needed.extend(protected::memmap_pages(kernel, memory, start, end));
        }
        let needed = PageSet::from_ranges(needed);
        let mut lost = PageSetBuilder::default();
        let (mut bits, mut other) = (ChunkBits::default(), ChunkBits::default());
        let mut reader = kernel.reader(memory);
        for chunk in needed.chunks() {
            needed.copy_chunk(chunk, &mut bits);
            memory.stored().copy_chunk(chunk, &mut other);
            bits.intersect(&other);
            for not_lost in [&self.keep, &self.unreadable] {
                not_lost.copy_chunk(chunk, &mut other);
                bits.subtract(&other);
            }
            other.clear();
            for (start, end) in bits.runs() {
                for index in (start..end).filter(|i| is_poisoned(kernel, &mut reader, Pfn((chunk << CHUNK_SHIFT) + i)))
                {
                    other.set(index, index + 1);
                }
            }
            bits.subtract(&other);
            lost.push(chunk, &bits);
        }
        let lost = lost.finish();
        self.guard.push(GuardRow { what: "mem_map", pages: needed.len(), saved: lost.len() });
        if !lost.is_empty() {
            self.keep = united(&self.keep, &lost);
        }
        needed
    }
}

/// The pages of either set.
fn united(one: &PageSet, other: &PageSet) -> PageSet {
    let chunks: BTreeSet<u64> = one.chunks().chain(other.chunks()).collect();
    let (mut bits, mut more) = (ChunkBits::default(), ChunkBits::default());
    let mut set = PageSetBuilder::default();
    for chunk in chunks {
        one.copy_chunk(chunk, &mut bits);
        other.copy_chunk(chunk, &mut more);
        bits.unite(&more);
        set.push(chunk, &bits);
    }
    set.finish()
}

/// Free pages by the free lists, where the pages themselves do not tell and they are to be left out.
fn free_by_lists(
    kernel: &Kernel,
    memory: &dyn PhysicalMemory,
    excluded: ClassSet,
    notes: &mut Vec<String>,
) -> Option<PageSet> {
    if kernel.rules.knows_buddy() || !excluded.has(PageClass::Free) {
        return None;
    }
    match nodes::walk_free_lists(kernel, memory) {
        Ok(set) => Some(set),
        Err(e) => {
            notes.push(format!(
                "free pages are kept: this kernel does not mark them, and their lists cannot be walked: {e}"
            ));
            None
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
struct Scan<'a> {
    kernel: &'a Kernel,
    memory: &'a dyn PhysicalMemory,
    excluded: ClassSet,
    protected: &'a [Protected],
    free: Option<&'a PageSet>,
    chunks: Mutex<ChunkCursor<'a>>,
    done: Mutex<Done>,
    observer: &'a dyn Observer,
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

impl Scan<'_> {
    fn work(&self) {
        let mut scanner = Scanner::new(self.kernel, self.memory, self.excluded);
        let mut bits = Bits::default();
        let total = ChunkCursor::total(self.kernel);
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
            self.observer.progress(Stage::FindPages, pages, total);
        }
    }

    fn chunk(&self, chunk: u64, scanner: &mut Scanner<'_>, bits: &mut Bits) -> (ChunkScan, Chunk) {
        bits.start(chunk, self.memory, self.excluded, self.protected);
        let scanned = scanner.scan_chunk(chunk, self.memory.ram(), bits);
        if let Some(free) = self.free {
            bits.mark_free(chunk, free);
        }
        let mut reader = None;
        let poisoned = |pfn| {
            let reader = reader.get_or_insert_with(|| self.kernel.reader(self.memory));
            is_poisoned(self.kernel, reader, pfn)
        };
        (scanned, bits.finish(chunk, self.protected, poisoned))
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
    fn into_plan(
        mut self,
        kernel: &Kernel,
        memory: &dyn PhysicalMemory,
        excluded: ClassSet,
        protected: &[Protected],
        by_lists: bool,
        mut notes: Vec<String>,
    ) -> Plan {
        self.apply_spills(kernel, memory, excluded, protected);
        let mut counts = Counts::default();
        let mut dropped = Counts::default();
        let mut saved = vec![0; protected.len()];
        let mut keep = Sets::new(memory.stored());
        let mut slab = PageSetBuilder::default();
        let mut kernel_pages = PageSetBuilder::default();
        let mut unreadable = PageSetBuilder::default();
        for (number, chunk) in self.chunks {
            counts.merge(&chunk.counts);
            dropped.merge(&chunk.dropped);
            for (sum, n) in saved.iter_mut().zip(&chunk.saved) {
                *sum += n;
            }
            keep.push(number, chunk.keep);
            slab.append(chunk.slab);
            kernel_pages.append(chunk.kernel);
            unreadable.append(chunk.unreadable);
        }
        if self.unread > 0 {
            notes.push(format!("the struct page of {} page frames could not be read; they are kept", self.unread));
        }
        if let Some((pfn, Oddity::BuddyOrder(order))) = self.first_odd {
            notes.push(format!(
                "{} pages are marked as free blocks of an order that cannot be (the first is {pfn}, order {order}); they are kept",
                self.odd
            ));
        }
        let evidence = kernel.rules.evidence();
        let classes = PageClass::ALL
            .iter()
            .map(|class| ClassRow {
                name: class.name(),
                pages: counts.of(*class),
                excluded: excluded.has(*class),
                excluded_pages: dropped.of(*class),
                evidence: match evidence.iter().find(|e| e.0 == *class).and_then(|e| e.1.clone()) {
                    None if *class == PageClass::Free && by_lists => Some("the free lists of all zones".to_owned()),
                    told => told,
                },
            })
            .collect();
        let guard = protected
            .iter()
            .zip(saved)
            .map(|(kind, saved)| GuardRow { what: kind.what, pages: kind.pages.len(), saved })
            .collect();
        Plan {
            keep: keep.finish(),
            first: vec![slab.finish(), kernel_pages.finish()],
            unreadable: unreadable.finish(),
            classes,
            guard,
            bytes_in: self.pages * kernel.rules.size() as u64,
            notes,
        }
    }

    /// Lets blocks that reach beyond their chunk (1 GiB hugetlb pages) speak for the chunks they cover, whole.
    fn apply_spills(
        &mut self,
        kernel: &Kernel,
        memory: &dyn PhysicalMemory,
        excluded: ClassSet,
        protected: &[Protected],
    ) {
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
struct Sets<'a> {
    stored: &'a PageSet,
    builder: PageSetBuilder,
    next: u64,
}

impl<'a> Sets<'a> {
    fn new(stored: &'a PageSet) -> Self {
        Self { stored, builder: PageSetBuilder::default(), next: 0 }
    }

    fn push(&mut self, chunk: u64, keep: PageSet) {
        self.copy_to(chunk);
        self.builder.append(keep);
        self.next = chunk + 1;
    }

    fn copy_to(&mut self, chunk: u64) {
        let rest = self.stored.runs(Pfn(self.next << CHUNK_SHIFT), Pfn(chunk << CHUNK_SHIFT));
        self.builder.append(PageSet::from_ranges(rest));
    }

    fn finish(mut self) -> PageSet {
        self.copy_to(1 << (64 - CHUNK_SHIFT - 1));
        self.builder.finish()
    }
}
