//! The scan: which pages of the input stay, decided chunk by chunk on all threads.
//!
//! A chunk is 32768 page frames, whose `struct page`s fill 2 MiB. Each is decided by itself; what is decided is put together in
//! order. Where memory has no room for a chunk's pages, only their number is kept, and their bits go into the output's bitmap.

use crate::bitmap::Bitmap;
use crate::budget::WORKER_STACK;
use crate::observer::{Observer, Stage};
use crate::selection::{Kinds, Later};
use crate::target::WriteFailed;
use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use coresift_kernel::protected::Protected;
use coresift_kernel::{ClassSet, ClassSink, Kernel, Oddity, PageClass, Scanner, is_poisoned};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// What is to be scanned, and what to leave out.
#[derive(Debug)]
pub struct Scan<'a> {
    /// The kernel whose memory map is read.
    pub kernel: &'a Kernel,
    /// The input.
    pub memory: Memory<'a>,
    /// The classes to leave out.
    pub excluded: ClassSet,
    /// Memory that stays, whatever its class.
    pub protected: Vec<Protected>,
    /// Free pages, where the free lists told them.
    pub free: Option<PageSet>,
}

/// The input.
#[derive(Clone, Copy)]
pub struct Memory<'a>(pub &'a dyn PhysicalMemory);

impl std::fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Scanned {
    /// The pages that stay, those without `struct page` among them, but for the chunks of `later`.
    pub keep: PageSet,
    /// Of these, slab pages.
    pub slab: PageSet,
    /// Of these, pages that are neither slab nor the kernel's own.
    pub other: PageSet,
    /// Chunks that memory had no room for, whose bits are in the bitmap.
    pub later: Vec<Later>,
    /// Numbers of pages.
    pub tally: Tally,
}

/// Numbers of pages that a scan comes across.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// RAM pages by class.
    pub counts: Counts,
    /// Pages of the input that are left out, by class.
    pub dropped: Counts,
    /// Pages that were saved for each kind of protected memory.
    pub saved: Vec<u64>,
    /// Bytes of memory map read.
    pub bytes: u64,
    /// Page frames whose `struct page` could not be read.
    pub unread: u64,
    /// Page frames whose `struct page` contradicts itself.
    pub odd: u64,
    /// The lowest of them.
    pub first_odd: Option<(Pfn, Oddity)>,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.counts.merge(&other.counts);
        self.dropped.merge(&other.dropped);
        self.saved.resize(self.saved.len().max(other.saved.len()), 0);
        for (sum, n) in self.saved.iter_mut().zip(&other.saved) {
            *sum += n;
        }
        self.bytes += other.bytes;
        self.unread += other.unread;
        self.odd += other.odd;
        self.first_odd = match (self.first_odd, other.first_odd) {
            (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
            (a, b) => a.or(b),
        };
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

/// What a scan may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Threads.
    pub threads: usize,
    /// Bytes of page sets; what each chunk costs at least comes on top.
    pub room: usize,
}

impl<'a> Scan<'a> {
    /// Scans within `limits`. The pages of chunks that memory has no room for go into `bitmap`.
    ///
    /// # Errors
    /// The bitmap cannot be written.
    pub fn run(&self, limits: Limits, bitmap: &Bitmap, observer: &dyn Observer) -> Result<Scanned, WriteFailed> {
        let chunks = Chunks::of(self.kernel);
        let shared = Shared {
            scan: self,
            total: chunks.spans.iter().map(|s| s.1).sum::<u64>() << CHUNK_SHIFT,
            chunks,
            next: AtomicU64::new(0),
            merge: Mutex::new(Merge::new(self.memory.0.stored(), limits.room, bitmap)),
            caught_up: Condvar::new(),
            observer,
        };
        std::thread::scope(|scope| {
            for _ in 1..limits.threads.max(1) {
                let worker = std::thread::Builder::new().name("find pages".to_owned()).stack_size(WORKER_STACK);
                // Without a further thread the scan only takes longer.
                let _ = worker.spawn_scoped(scope, || shared.work());
            }
            shared.work();
        });
        shared.merge.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
    }

    /// Memory of what it knows beforehand, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let protected: usize = self.protected.iter().map(|kind| kind.pages.memory()).sum();
        protected + self.free.as_ref().map_or(0, PageSet::memory)
    }

    /// A scanner of the memory map for [`Self::decide`].
    #[must_use]
    pub fn scanner(&self) -> Scanner<'a> {
        Scanner::new(self.kernel, self.memory.0, self.excluded)
    }

    /// Decides which pages of chunk number `chunk` stay.
    pub fn decide(&self, chunk: u64, scanner: &mut Scanner<'_>, decider: &mut Decider) {
        let before = scanner.bytes_read();
        decider.begin(chunk, self);
        let scanned = scanner.scan_chunk(chunk, self.memory.0.ram(), decider);
        decider.finish(chunk, self);
        decider.tally.add(&Tally {
            bytes: scanner.bytes_read() - before,
            unread: scanned.unread,
            odd: scanned.odd,
            first_odd: scanned.first_odd,
            ..Tally::default()
        });
    }
}

/// The numbers of the chunks that have `struct page`s, ascending.
struct Chunks {
    /// First chunk and number of chunks of each span, and how many chunks the spans before it have.
    spans: Vec<(u64, u64, u64)>,
}

impl Chunks {
    fn of(kernel: &Kernel) -> Self {
        let mut spans: Vec<(u64, u64, u64)> = Vec::new();
        for range in kernel.memmap.ranges() {
            let (mut first, end) = (range.start.0 >> CHUNK_SHIFT, range.end.0.div_ceil(1 << CHUNK_SHIFT));
            let before = spans.last().map_or(0, |s| s.2 + s.1);
            match spans.last_mut() {
                Some(last) if last.0 + last.1 >= first => {
                    first = last.0 + last.1;
                    last.1 += end.saturating_sub(first);
                }
                _ => spans.push((first, end - first, before)),
            }
        }
        Self { spans }
    }

    /// The chunk of index `index`, counted from 0.
    fn get(&self, index: u64) -> Option<u64> {
        let span = self.spans.partition_point(|s| s.2 <= index).checked_sub(1)?;
        let (first, count, before) = *self.spans.get(span)?;
        (index - before < count).then_some(first + index - before)
    }
}

/// What is shared by the scanning threads.
struct Shared<'a, 'm> {
    scan: &'a Scan<'a>,
    chunks: Chunks,
    /// Index of the next chunk that nobody has taken.
    next: AtomicU64,
    merge: Mutex<Merge<'m>>,
    caught_up: Condvar,
    total: u64,
    observer: &'a dyn Observer,
}

impl Shared<'_, '_> {
    fn work(&self) {
        let mut scanner = self.scan.scanner();
        let mut decider = Decider::default();
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = self.chunks.get(index) else { break };
            self.scan.decide(chunk, &mut scanner, &mut decider);
            let Kinds { keep, slab, other } = &decider.kinds;
            let decided = Decided {
                chunk,
                keep: PageSet::of_chunk(chunk, keep),
                slab: PageSet::of_chunk(chunk, slab),
                other: PageSet::of_chunk(chunk, other),
            };
            let mut merge = self.merge.lock().unwrap_or_else(PoisonError::into_inner);
            let failed = merge.take(index, decided);
            if merge.waiting.is_empty() {
                self.caught_up.notify_all();
            }
            // Whoever has the chunk that all wait for does not stop: taking it empties what waits.
            while merge.waiting.len() > MOST_WAITING && !failed {
                merge = self.caught_up.wait(merge).unwrap_or_else(PoisonError::into_inner);
            }
            let done = merge.next;
            drop(merge);
            if failed {
                break;
            }
            self.observer.progress(Stage::FindPages, done << CHUNK_SHIFT, self.total);
        }
        self.merge.lock().unwrap_or_else(PoisonError::into_inner).scanned.tally.add(&decider.tally);
    }
}

/// One chunk, decided.
struct Decided {
    chunk: u64,
    keep: PageSet,
    slab: PageSet,
    other: PageSet,
}

/// Bytes of page sets that no chunk is put off for.
const CHEAP: usize = 128;
/// Chunks that may wait for one before them; a thread that is further ahead stops.
const MOST_WAITING: usize = 256;

/// Puts chunks together in their order. Pages of the input that no chunk speaks of have no `struct page`; they stay.
struct Merge<'a> {
    stored: &'a PageSet,
    room: usize,
    bitmap: &'a Bitmap,
    /// Index of the chunk that is next in order; those behind it wait.
    next: u64,
    waiting: BTreeMap<u64, Decided>,
    /// Number of the chunk behind the last one taken.
    end: u64,
    keep: PageSetBuilder,
    slab: PageSetBuilder,
    other: PageSetBuilder,
    scanned: Scanned,
    failed: Option<WriteFailed>,
}

impl<'a> Merge<'a> {
    fn new(stored: &'a PageSet, room: usize, bitmap: &'a Bitmap) -> Self {
        Self {
            stored,
            room,
            bitmap,
            next: 0,
            waiting: BTreeMap::new(),
            end: 0,
            keep: PageSetBuilder::default(),
            slab: PageSetBuilder::default(),
            other: PageSetBuilder::default(),
            scanned: Scanned::default(),
            failed: None,
        }
    }

    /// Takes the chunk of index `index`; returns whether the scan has failed.
    fn take(&mut self, index: u64, decided: Decided) -> bool {
        self.waiting.insert(index, decided);
        while let Some(decided) = self.waiting.remove(&self.next) {
            self.next += 1;
            if let Err(failed) = self.append(&decided) {
                self.failed.get_or_insert(failed);
            }
        }
        self.failed.is_some()
    }

    fn append(&mut self, decided: &Decided) -> Result<(), WriteFailed> {
        self.copy_to(decided.chunk);
        self.end = decided.chunk + 1;
        let [keep, slab, other] = [&decided.keep, &decided.slab, &decided.other];
        let has = self.keep.memory() + self.slab.memory() + self.other.memory();
        let more = keep.memory() + slab.memory() + other.memory();
        if more > CHEAP && has + more > self.room && !keep.is_empty() {
            let mut bits = ChunkBits::default();
            keep.copy_chunk(decided.chunk, &mut bits);
            self.bitmap.write(decided.chunk, &bits)?;
            let before = self.scanned.later.last().map_or(0, |l| l.before + l.pages);
            self.scanned.later.push(Later { chunk: decided.chunk, pages: keep.len(), before });
            return Ok(());
        }
        self.keep.append(keep);
        self.slab.append(slab);
        self.other.append(other);
        Ok(())
    }

    fn copy_to(&mut self, chunk: u64) {
        let rest = self.stored.runs(Pfn(self.end << CHUNK_SHIFT), Pfn(chunk << CHUNK_SHIFT));
        self.keep.append(&PageSet::from_ranges(rest));
    }

    fn finish(mut self) -> Result<Scanned, WriteFailed> {
        self.copy_to(1 << (64 - CHUNK_SHIFT - 1));
        match self.failed {
            Some(failed) => Err(failed),
            None => Ok(Scanned {
                keep: self.keep.finish(),
                slab: self.slab.finish(),
                other: self.other.finish(),
                ..self.scanned
            }),
        }
    }
}

/// Decides one chunk after the other, and counts.
#[derive(Debug, Default)]
pub struct Decider {
    /// The pages of the last chunk that stay.
    pub kinds: Kinds,
    /// Numbers of pages of all chunks.
    pub tally: Tally,
    base: u64,
    excluded: ClassSet,
    /// Whether the input has all page frames of the chunk.
    full: bool,
    /// Those it has; filled in only where that is not all.
    stored: ChunkBits,
    /// Whether the input has all RAM pages of the chunk.
    whole: bool,
    /// Whether something protected is in the chunk; only then what follows is filled in.
    guarded: bool,
    free: ChunkBits,
    /// Pages that must not be read: not even the guard brings them back.
    unreadable: ChunkBits,
    left_out: Vec<(u64, u64, PageClass)>,
    scratch: ChunkBits,
}

impl ClassSink for Decider {
    #[inline]
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
        let (start, end) = (start.0 - self.base, end.0 - self.base);
        self.tally.counts.add(class, end - start);
        if !self.excluded.has(class) {
            self.kinds.keep.set(start, end);
            match class {
                PageClass::Slab => self.kinds.slab.set(start, end),
                PageClass::Kernel => {}
                _ => self.kinds.other.set(start, end),
            }
            return;
        }
        let pages = if self.whole { end - start } else { self.stored.count_in(start, end) };
        self.tally.dropped.add(class, pages);
        if self.guarded {
            self.left_out.push((start, end, class));
            if class == PageClass::Free {
                self.free.set(start, end);
            }
            if ClassSet::UNREADABLE.has(class) {
                self.unreadable.set(start, end);
            }
        }
    }
}

impl Decider {
    fn begin(&mut self, chunk: u64, scan: &Scan<'_>) {
        self.base = chunk << CHUNK_SHIFT;
        self.excluded = scan.excluded;
        let (from, to) = (Pfn(self.base), Pfn(self.base + (1 << CHUNK_SHIFT)));
        let (ram, stored) = (scan.memory.0.ram(), scan.memory.0.stored());
        self.full = ram.has_chunk(chunk) && stored.has_chunk(chunk);
        self.whole = self.full;
        if !self.full {
            ram.copy_chunk(chunk, &mut self.scratch);
            stored.copy_chunk(chunk, &mut self.stored);
            self.whole = self.scratch == self.stored;
        }
        for bits in [&mut self.kinds.keep, &mut self.kinds.slab, &mut self.kinds.other] {
            bits.clear();
        }
        self.guarded = scan.protected.iter().any(|kind| kind.pages.runs(from, to).next().is_some());
        if self.guarded {
            self.free.clear();
            self.unreadable.clear();
            self.left_out.clear();
        }
    }

    fn finish(&mut self, chunk: u64, scan: &Scan<'_>) {
        if let Some(free) = &scan.free {
            self.leave_out_free(chunk, free);
        }
        if !self.whole {
            for bits in [&mut self.kinds.keep, &mut self.kinds.slab, &mut self.kinds.other] {
                bits.intersect(&self.stored);
            }
        }
        self.tally.saved.resize(scan.protected.len(), 0);
        if self.guarded {
            self.bring_back(chunk, scan);
        }
    }

    /// Takes the pages of `free` for free, whatever the scan said: those of kernels that do not mark them look like the kernel's.
    fn leave_out_free(&mut self, chunk: u64, free: &PageSet) {
        let Kinds { keep, slab, other } = &mut self.kinds;
        free.copy_chunk(chunk, &mut self.scratch);
        self.scratch.intersect(keep);
        self.scratch.subtract(slab);
        self.scratch.subtract(other);
        let moved = self.scratch.count();
        keep.subtract(&self.scratch);
        if self.guarded {
            self.free.unite(&self.scratch);
        }
        self.tally.counts.take(PageClass::Kernel, moved);
        self.tally.counts.add(PageClass::Free, moved);
        if !self.whole {
            self.scratch.intersect(&self.stored);
        }
        self.tally.dropped.add(PageClass::Free, self.scratch.count());
    }

    /// Keeps what is protected. Whether a page of it is poisoned is asked page by page: it may lie inside a block that was taken
    /// whole.
    fn bring_back(&mut self, chunk: u64, scan: &Scan<'_>) {
        let mut reader = None;
        let mut poisoned = |pfn| {
            let reader = reader.get_or_insert_with(|| scan.kernel.reader(scan.memory.0));
            is_poisoned(scan.kernel, reader, pfn)
        };
        for (kind, sum) in scan.protected.iter().zip(&mut self.tally.saved) {
            kind.pages.copy_chunk(chunk, &mut self.scratch);
            if !self.full {
                self.scratch.intersect(&self.stored);
            }
            self.scratch.subtract(&self.unreadable);
            if kind.free_inside {
                self.scratch.subtract(&self.free);
            }
            self.scratch.subtract(&self.kinds.keep);
            let mut at = 0;
            while let Some((start, end)) = self.scratch.next_run(at) {
                for index in (start..end).filter(|index| poisoned(Pfn(self.base + index))) {
                    self.scratch.unset(index, index + 1);
                    self.unreadable.set(index, index + 1);
                }
                at = end;
            }
            *sum += self.scratch.count();
            self.kinds.keep.unite(&self.scratch);
            for (start, end, class) in &self.left_out {
                self.tally.dropped.take(*class, self.scratch.count_in(*start, *end));
            }
        }
    }
}
