//! Which pages an ELF core gets: known before its first byte is written, for the headers in front of the pages say where each is.
//!
//! ```text
//! pages to keep ─ chunk by chunk, on all threads ─> less those filled with zeros ─> plus those in short gaps ─> pages with data
//! ```

use crate::batches::BATCH_BYTES;
use crate::budget::WORKER_STACK;
use crate::observer::{Observer, Stage};
use crate::stop::Stop;
use crate::worker::is_zero;
use coresift_format::{
    CHUNK_PAGES, CHUNK_SHIFT, ChunkBits, MemoryView, PageSet, PageSetBuilder, Pfn, PhysicalMemory, Segment,
};
use coresift_kernel::{Kernel, KernelReader, must_not_be_read};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Fewer neighbouring pages than this that could be left out are kept where pages with data stand on both sides of them: each gap is
/// another program header, and readers go through all of these for every page. The number is makedumpfile's.
pub const SHORT_GAP: u64 = 256;
/// Pages that could not be read which are remembered one by one.
const MAX_LOST: usize = 4096;

/// Page sets of a whole input that are there at one time: the pages to keep, of these slab pages and others, those without zeros, and
/// those of the file.
const SETS: u64 = 5;

/// Memory that the page sets of an ELF core of `stored` take at the most, in bytes: a bit a page each.
#[must_use]
pub fn sets(stored: &PageSet) -> u64 {
    SETS * stored.chunks().count() as u64 * (CHUNK_PAGES / 8)
}

/// What is to be decided.
pub struct Asked<'a> {
    /// The input.
    pub memory: &'a dyn PhysicalMemory,
    /// Its kernel, where it is understood.
    pub kernel: Option<&'a Kernel>,
    /// The pages whose class stays.
    pub keep: &'a PageSet,
    /// Whether pages filled with zeros are left out.
    pub without_zeros: bool,
    /// Whether each page is read even so, since some may be lost: once there are headers, a page without data can only be filled with zeros.
    pub read_all: bool,
    /// The segments of the input: a gap between two of them is none.
    pub segments: &'a [Segment],
    /// Threads.
    pub threads: usize,
    /// When to end early: what is not tested by then stays, as far as there is time to copy it.
    pub stop: &'a Stop,
}

/// The pages of an ELF core.
#[derive(Debug, Default)]
pub struct ElfPages {
    /// Those with data.
    pub data: PageSet,
    /// Pages that were to be kept, and are filled with zeros.
    pub zero: u64,
    /// Pages with data that could be left out, but stand in a short gap.
    pub gaps: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Pages that could not be read, with the reason, ascending.
    pub lost: Vec<(Pfn, String)>,
    /// Their number; `lost` keeps only the first.
    pub lost_count: u64,
}

impl Asked<'_> {
    /// Decides. Every page that may be zero is read for it.
    #[must_use]
    pub fn decide(&self, observer: &dyn Observer) -> ElfPages {
        let read = self.without_zeros || self.read_all;
        let mut pages = if read { self.read(observer) } else { ElfPages::default() };
        let found = std::mem::take(&mut pages.data);
        let kept = if read { &found } else { self.keep };
        let spans = self.spans();
        let stored = self.memory.stored();
        pages.data = self.by_chunk(stored, || {
            let mut filler = Filler::new(self);
            let spans = &spans;
            move |chunk: u64, bits: &mut ChunkBits| filler.fill(chunk, kept, spans, bits)
        });
        pages.gaps = pages.data.len() - kept.len();
        pages
    }

    /// The pages to keep, as far as they can be read, and, where that is asked for, without those filled with zeros.
    #[must_use]
    pub fn read(&self, observer: &dyn Observer) -> ElfPages {
        let told = Mutex::new((0, Vec::new(), 0));
        let data = self.by_chunk(self.keep, || {
            let (mut view, mut scratch) = (self.memory.view(), ChunkBits::default());
            let told = &told;
            move |chunk: u64, bits: &mut ChunkBits| {
                self.keep.copy_chunk(chunk, &mut scratch);
                if self.stop.scanning().is_some() {
                    bits.unite(&scratch);
                    return;
                }
                let mut lost = Vec::new();
                self.test(&mut *view, chunk, &scratch, bits, &mut lost);
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                told.0 += scratch.count();
                told.2 += lost.len() as u64;
                told.1.extend(lost);
                told.1.sort_by_key(|(pfn, _): &(Pfn, String)| pfn.0);
                told.1.truncate(MAX_LOST);
                // Under the lock, so that what a receiver is told only grows.
                observer.progress(Stage::FindPages, told.0, self.keep.len());
            }
        });
        let (read, lost, lost_count) = told.into_inner().unwrap_or_else(PoisonError::into_inner);
        ElfPages {
            zero: self.keep.len() - data.len() - lost_count,
            gaps: 0,
            bytes: read * self.memory.page_size().bytes() as u64,
            data,
            lost,
            lost_count,
        }
    }

    /// Sets in `found` which of the pages `asked` of a chunk are to be kept.
    fn test(
        &self,
        view: &mut dyn MemoryView,
        chunk: u64,
        asked: &ChunkBits,
        found: &mut ChunkBits,
        lost: &mut Vec<(Pfn, String)>,
    ) {
        let page = self.memory.page_size();
        let size = page.bytes();
        let base = chunk << CHUNK_SHIFT;
        let stays = |bytes: &[u8]| !self.without_zeros || !is_zero(bytes);
        for (start, end) in asked.runs() {
            let mut at = start;
            while at < end {
                let pages = (end - at).min((BATCH_BYTES / size).max(1) as u64);
                match view.slice(Pfn(base + at).addr(page), pages as usize * size) {
                    Ok(bytes) => {
                        for (index, bytes) in (at..).zip(bytes.chunks_exact(size)) {
                            if stays(bytes) {
                                found.set(index, index + 1);
                            }
                        }
                    }
                    Err(_) => (at..at + pages).for_each(|index| {
                        match view.slice(Pfn(base + index).addr(page), size).map(stays) {
                            Ok(true) => found.set(index, index + 1),
                            Ok(false) => {}
                            Err(error) => lost.push((Pfn(base + index), error.to_string())),
                        }
                    }),
                }
                at += pages;
            }
        }
    }

    /// The page frames of each segment.
    fn spans(&self) -> Vec<(Pfn, Pfn)> {
        let page = self.memory.page_size();
        let end = |s: &Segment| page.pages_for(s.paddr.saturating_add(s.mem_size.max(s.file_size)));
        self.segments.iter().map(|s| (Pfn(s.paddr >> page.shift()), Pfn(end(s)))).collect()
    }

    /// The pages that a worker finds in the chunks of `of`, each worker on a thread of its own.
    fn by_chunk<W: FnMut(u64, &mut ChunkBits)>(&self, of: &PageSet, worker: impl Fn() -> W + Sync) -> PageSet {
        let claims = Mutex::new(of.chunks().enumerate());
        let done = Mutex::new(InOrder::default());
        let work = || {
            let mut find = worker();
            let mut bits = ChunkBits::default();
            loop {
                let claim = claims.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((index, chunk)) = claim else { return };
                bits.clear();
                find(chunk, &mut bits);
                let found = PageSet::of_chunk(chunk, &bits);
                done.lock().unwrap_or_else(PoisonError::into_inner).take(index, found);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.max(1) {
                let thread = std::thread::Builder::new().name("find zeros".to_owned()).stack_size(WORKER_STACK);
                // Without a further thread it only takes longer.
                let _ = thread.spawn_scoped(scope, work);
            }
            work();
        });
        done.into_inner().unwrap_or_else(PoisonError::into_inner).set.finish()
    }
}

/// Chunks put together in their order.
#[derive(Default)]
struct InOrder {
    set: PageSetBuilder,
    next: usize,
    waiting: BTreeMap<usize, PageSet>,
}

impl InOrder {
    fn take(&mut self, index: usize, found: PageSet) {
        self.waiting.insert(index, found);
        while let Some(found) = self.waiting.remove(&self.next) {
            self.set.append(&found);
            self.next += 1;
        }
    }
}

/// One thread's way to the pages in short gaps.
struct Filler<'a> {
    asked: &'a Asked<'a>,
    view: Box<dyn MemoryView + 'a>,
    reader: Option<KernelReader<'a>>,
    kept: ChunkBits,
}

impl<'a> Filler<'a> {
    fn new(asked: &'a Asked<'a>) -> Self {
        let reader = asked.kernel.map(|kernel| kernel.reader(asked.memory));
        Self { asked, view: asked.memory.view(), reader, kept: ChunkBits::default() }
    }

    /// Sets in `bits` the pages of `kept` in a chunk, and those of the segments `spans` that stand in a short gap between them (or in front
    /// of the first of a segment). What must not be read is never brought back in this way.
    fn fill(&mut self, chunk: u64, kept: &PageSet, spans: &[(Pfn, Pfn)], bits: &mut ChunkBits) {
        let (base, top) = (chunk << CHUNK_SHIFT, (chunk + 1) << CHUNK_SHIFT);
        kept.copy_chunk(chunk, &mut self.kept);
        bits.unite(&self.kept);
        if self.asked.stop.scanning().is_some() {
            return;
        }
        for (start, end) in spans.iter().filter(|(start, end)| start.0 < top && end.0 > base) {
            // A gap that reaches beyond these is not short.
            let from = start.0.max(base.saturating_sub(SHORT_GAP));
            let to = end.0.min(top + SHORT_GAP);
            let mut before = (from == start.0).then_some(from);
            for (first, last) in kept.runs(Pfn(from), Pfn(to)) {
                if let Some(gap) = before.filter(|gap| first.0 - gap < SHORT_GAP) {
                    for pfn in gap.max(base)..first.0.min(top) {
                        let index = pfn - base;
                        if !bits.get(index) && self.may_read(Pfn(pfn)) {
                            bits.set(index, index + 1);
                        }
                    }
                }
                before = Some(last.0);
            }
        }
        debug_assert!(bits.count() <= CHUNK_PAGES);
    }

    /// Whether the input has a page, and reading it is safe and works.
    fn may_read(&mut self, pfn: Pfn) -> bool {
        let page = self.asked.memory.page_size();
        let forbidden = match (self.asked.kernel, &mut self.reader) {
            (Some(kernel), Some(reader)) => must_not_be_read(kernel, reader, pfn),
            // Without a kernel nothing but zeros is left out, and those were read.
            _ => false,
        };
        !forbidden && self.asked.memory.stored().contains(pfn) && self.view.slice(pfn.addr(page), page.bytes()).is_ok()
    }
}
