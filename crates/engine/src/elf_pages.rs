//! Which pages an ELF core gets: known before its first byte is written, for the headers in front of the pages say where each is.
//!
//! ```text
//! pages to keep ─ chunk by chunk, on all threads ─> read ─┬─> pages with data
//!                                                         └─> zeros ─┬─> beside data, and too few for a header: data too
//!                                                                    └─> headers without data
//! ```

use crate::batches::BATCH_BYTES;
use crate::budget::WORKER_STACK;
use crate::observer::{Observer, Stage};
use crate::stop::Stop;
use crate::worker::is_zero;
use coresift_format::{CHUNK_PAGES, CHUNK_SHIFT, ChunkBits, MemoryView, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Fewer neighbouring pages of zeros than this have data where they touch pages with data: a header of their own would split those in
/// two, and readers go through all headers for every page. At level 31, two lab cores of 8 GiB have 25,000 and 19,000 runs of zeros, all
/// but 127 of them shorter (128 MB of a file of 2.4 GB), and otherwise 1,000 headers.
const SHORT_ZEROS: u64 = 4;
/// Pages that could not be read which are remembered one by one.
const MAX_LOST: usize = 4096;

/// Page sets of a whole input that are there at one time: the pages to keep, of these slab pages and others, those with data and zeros.
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
    /// The pages whose class stays.
    pub keep: &'a PageSet,
    /// Whether pages filled with zeros get no data.
    pub without_zeros: bool,
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
    /// Those that are zeros without data.
    pub holes: PageSet,
    /// Pages filled with zeros, in `holes` or with data; where zeros were not looked for, those that were known before.
    pub zero: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Pages that could not be read, with the reason, ascending.
    pub lost: Vec<(Pfn, String)>,
    /// Their number; `lost` keeps only the first.
    pub lost_count: u64,
}

/// What was found so far.
#[derive(Default)]
struct Told {
    done: u64,
    read: u64,
    zero: u64,
    lost: Vec<(Pfn, String)>,
    lost_count: u64,
}

/// The pages of one chunk, each in one of these or lost.
#[derive(Default)]
struct Found {
    data: ChunkBits,
    zero: ChunkBits,
}

impl Asked<'_> {
    /// Decides. Every page is read for it, also where zeros stay: once there are headers, not much can be taken out of them any more, and of a
    /// stream nothing; its place would hold zeros that are none.
    #[must_use]
    pub fn decide(&self, observer: &dyn Observer) -> ElfPages {
        let told = Mutex::new(Told::default());
        let [data, holes] = self.by_chunk(|| {
            let (mut view, mut keep) = (self.memory.view(), ChunkBits::default());
            let told = &told;
            move |chunk: u64, found: &mut Found| {
                self.keep.copy_chunk(chunk, &mut keep);
                let (read, lost) = self.find(&mut *view, chunk, &keep, found);
                let zero = found.zero.count();
                keep_short(found);
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                told.add(&keep, read, zero, lost);
                // Under the lock, so that what a receiver is told only grows.
                observer.progress(Stage::FindPages, told.done, self.keep.len());
            }
        });
        let Told { read, zero, lost, lost_count, .. } = told.into_inner().unwrap_or_else(PoisonError::into_inner);
        ElfPages { data, holes, zero, bytes: read * self.memory.page_size().bytes() as u64, lost, lost_count }
    }

    /// Puts the pages `keep` of a chunk into `found`; returns how many were read, and which could not be.
    fn find(
        &self,
        view: &mut dyn MemoryView,
        chunk: u64,
        keep: &ChunkBits,
        found: &mut Found,
    ) -> (u64, Vec<(Pfn, String)>) {
        self.memory.known_zero().copy_chunk(chunk, &mut found.zero);
        found.zero.intersect(keep);
        let mut rest = keep.clone();
        rest.subtract(&found.zero);
        if self.stop.scanning().is_some() {
            found.data.unite(&rest);
            return (0, Vec::new());
        }
        let mut lost = Vec::new();
        self.test(view, chunk, &rest, found, &mut lost);
        (rest.count(), lost)
    }

    /// Reads the pages `asked` of a chunk.
    fn test(
        &self,
        view: &mut dyn MemoryView,
        chunk: u64,
        asked: &ChunkBits,
        found: &mut Found,
        lost: &mut Vec<(Pfn, String)>,
    ) {
        let page = self.memory.page_size();
        let size = page.bytes();
        let base = chunk << CHUNK_SHIFT;
        let mut put = |index: u64, bytes: &[u8]| {
            let zero = self.without_zeros && is_zero(bytes);
            let bits = if zero { &mut found.zero } else { &mut found.data };
            bits.set(index, index + 1);
        };
        for (start, end) in asked.runs() {
            let mut at = start;
            while at < end {
                let pages = (end - at).min((BATCH_BYTES / size).max(1) as u64);
                match view.slice(Pfn(base + at).addr(page), pages as usize * size) {
                    Ok(bytes) => (at..).zip(bytes.chunks_exact(size)).for_each(|(index, bytes)| put(index, bytes)),
                    Err(_) => {
                        for index in at..at + pages {
                            match view.slice(Pfn(base + index).addr(page), size) {
                                Ok(bytes) => put(index, bytes),
                                Err(error) => lost.push((Pfn(base + index), error.to_string())),
                            }
                        }
                    }
                }
                at += pages;
            }
        }
    }

    /// What a worker finds in the chunks of the pages to keep, each worker on a thread of its own: pages with data, and zeros.
    fn by_chunk<W: FnMut(u64, &mut Found)>(&self, worker: impl Fn() -> W + Sync) -> [PageSet; 2] {
        let claims = Mutex::new(self.keep.chunks().enumerate());
        let done = Mutex::new(InOrder::default());
        let work = || {
            let mut find = worker();
            let mut found = Found::default();
            loop {
                let claim = claims.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((index, chunk)) = claim else { return };
                found.data.clear();
                found.zero.clear();
                find(chunk, &mut found);
                let sets = [&found.data, &found.zero].map(|bits| PageSet::of_chunk(chunk, bits));
                done.lock().unwrap_or_else(PoisonError::into_inner).take(index, sets);
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
        done.into_inner().unwrap_or_else(PoisonError::into_inner).sets.map(PageSetBuilder::finish)
    }
}

impl Told {
    fn add(&mut self, keep: &ChunkBits, read: u64, zero: u64, lost: Vec<(Pfn, String)>) {
        self.done += keep.count();
        self.read += read;
        self.zero += zero;
        self.lost_count += lost.len() as u64;
        self.lost.extend(lost);
        self.lost.sort_by_key(|(pfn, _): &(Pfn, String)| pfn.0);
        self.lost.truncate(MAX_LOST);
    }
}

/// Gives data to the zeros of a chunk that are not worth a header: [`SHORT_ZEROS`].
fn keep_short(found: &mut Found) {
    let Found { data, zero } = found;
    let mut at = 0;
    while let Some((start, end)) = zero.next_run(at) {
        at = end;
        let beside = |index: Option<u64>| index.is_some_and(|index| data.get(index));
        if end - start < SHORT_ZEROS && (beside(start.checked_sub(1)) || beside(Some(end))) {
            data.set(start, end);
            zero.unset(start, end);
        }
    }
}

/// Chunks put together in their order.
#[derive(Default)]
struct InOrder {
    sets: [PageSetBuilder; 2],
    next: usize,
    waiting: BTreeMap<usize, [PageSet; 2]>,
}

impl InOrder {
    fn take(&mut self, index: usize, found: [PageSet; 2]) {
        self.waiting.insert(index, found);
        while let Some(found) = self.waiting.remove(&self.next) {
            self.sets.iter_mut().zip(&found).for_each(|(set, found)| set.append(found));
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_zeros_beside_data_have_data_and_no_others() {
        let bits = |runs: &[(u64, u64)]| {
            let mut bits = ChunkBits::default();
            runs.iter().for_each(|(start, end)| bits.set(*start, *end));
            bits
        };
        let zeros = [(0, 1), (11, 14), (21, 25), (30, 33), (40, 41), (CHUNK_PAGES - 2, CHUNK_PAGES)];
        let mut found = Found { data: bits(&[(1, 3), (10, 11), (20, 21), (33, 34)]), zero: bits(&zeros) };
        keep_short(&mut found);
        assert_eq!(found.zero, bits(&[(21, 25), (40, 41), (CHUNK_PAGES - 2, CHUNK_PAGES)]));
        assert_eq!(found.data, bits(&[(0, 3), (10, 14), (20, 21), (30, 34)]));
    }
}
