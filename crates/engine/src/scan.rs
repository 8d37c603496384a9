//! The scan: which pages of the input stay, decided chunk by chunk on all threads.
//!
//! A chunk is 32768 page frames, whose `struct page`s fill 2 MiB. Each is decided by itself; what is decided is put together in
//! order. Where memory has no room for a chunk's pages, only their number is kept, and their bits go into the output's bitmap.

use crate::bitmap::Bitmap;
use crate::budget::WORKER_STACK;
use crate::decide::Decider;
use crate::merge::{Decided, Merge};
use crate::observer::{Observer, Stage};
use crate::selection::Later;
use crate::stop::{Stop, StopReason};
use crate::target::WriteFailed;
use coresift_format::{CHUNK_SHIFT, PageSet, Pfn, PhysicalMemory};
use coresift_kernel::protected::Protected;
use coresift_kernel::{ClassSet, Kernel, Oddity, PageClass, Scanner};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

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
    /// Why it was given up before its end; what it found is then only a part.
    pub stopped: Option<StopReason>,
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
    pub(crate) fn add(&mut self, other: &Self) {
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

    pub(crate) fn add(&mut self, class: PageClass, pages: u64) {
        if let Some(count) = self.0.get_mut(class as usize) {
            *count += pages;
        }
    }

    pub(crate) fn take(&mut self, class: PageClass, pages: u64) {
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
pub struct Limits<'a> {
    /// Threads.
    pub threads: usize,
    /// Bytes of page sets; what each chunk costs at least comes on top.
    pub room: usize,
    /// What ends the scan before it is done.
    pub stop: &'a Stop,
}

impl<'a> Scan<'a> {
    /// Scans within `limits`. The pages of chunks that memory has no room for go into `bitmap`.
    ///
    /// # Errors
    /// The bitmap cannot be written.
    pub fn run(&self, limits: Limits<'_>, bitmap: &Bitmap, observer: &dyn Observer) -> Result<Scanned, WriteFailed> {
        let chunks = Chunks::of(self.kernel);
        let shared = Shared {
            scan: self,
            total: chunks.len() << CHUNK_SHIFT,
            chunks,
            next: AtomicU64::new(0),
            merge: Mutex::new(Merge::new(self.memory.0, limits.room, bitmap)),
            caught_up: Condvar::new(),
            stop: limits.stop,
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
pub struct Chunks {
    /// First chunk and number of chunks of each span, and how many chunks the spans before it have.
    spans: Vec<(u64, u64, u64)>,
}

impl Chunks {
    /// Those of `kernel`.
    #[must_use]
    pub fn of(kernel: &Kernel) -> Self {
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

    /// Their number.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.spans.last().map_or(0, |s| s.2 + s.1)
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
    stop: &'a Stop,
    observer: &'a dyn Observer,
}

impl Shared<'_, '_> {
    fn work(&self) {
        let mut scanner = self.scan.scanner();
        let mut decider = Decider::default();
        let _told = TellPanic(self);
        loop {
            // Before the claim: what is claimed is waited for.
            if let Some(reason) = self.stop.scanning() {
                self.merge().scanned.stopped = Some(reason);
                break;
            }
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = self.chunks.get(index) else { break };
            self.scan.decide(chunk, &mut scanner, &mut decider);
            let decided = Decided::new(chunk, &decider.kinds);
            let mut merge = self.merge();
            let failed = merge.take(index, decided);
            if merge.stopped > 0 && !merge.is_ahead() {
                self.caught_up.notify_all();
            }
            // Whoever has the chunk that all wait for does not stop: it is next.
            while merge.is_ahead() && !merge.given_up {
                merge.stopped += 1;
                merge = self.caught_up.wait(merge).unwrap_or_else(PoisonError::into_inner);
                merge.stopped -= 1;
            }
            let done = merge.next;
            drop(merge);
            if failed {
                break;
            }
            self.observer.progress(Stage::FindPages, done << CHUNK_SHIFT, self.total);
        }
        self.merge().scanned.tally.add(&decider.tally);
    }
}

impl<'m> Shared<'_, 'm> {
    fn merge(&self) -> MutexGuard<'_, Merge<'m>> {
        self.merge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the other threads go when this one panics: they would wait for its chunk.
struct TellPanic<'a, 's, 'm>(&'a Shared<'s, 'm>);

impl Drop for TellPanic<'_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.merge().given_up = true;
            self.0.caught_up.notify_all();
        }
    }
}
