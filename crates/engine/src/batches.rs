//! The kept pages in the order they are written, cut into batches.

use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, Pfn};

/// Bytes of pages in a batch. 256 KiB in and about 100 KiB out are small enough to stay in a core's L2 cache while they are
/// tested and compressed, and large enough that claiming and writing a batch costs nothing beside that.
pub const BATCH_BYTES: usize = 256 << 10;

/// A run of neighbouring kept pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First page.
    pub start: Pfn,
    /// Number of pages.
    pub pages: u32,
    /// Index of the first page's descriptor.
    pub rank: u64,
}

impl Run {
    /// Its page frames.
    pub fn pfns(self) -> impl Iterator<Item = Pfn> {
        (self.start.0..self.start.0 + u64::from(self.pages)).map(Pfn)
    }
}

/// Cuts the kept pages into batches: the sets of `first` one after the other, then what is left, each in pfn order.
pub struct Batches<'a> {
    keep: &'a PageSet,
    first: &'a [PageSet],
    pass: usize,
    chunks: Box<dyn Iterator<Item = u64> + Send + 'a>,
    chunk: u64,
    bits: ChunkBits,
    scratch: ChunkBits,
    at: u64,
    /// The kept pages of the chunk.
    kept: ChunkBits,
    /// A page of the chunk, and how many kept pages are before it: asking the whole set for each run took 0.9 us, and batches are
    /// claimed under a lock.
    ranked: (u64, u64),
    batch_pages: u64,
    next: u64,
}

impl<'a> Batches<'a> {
    /// Batches of `batch_pages` pages of `keep`, of which those in the sets `first` come first, a page at its first chance.
    #[must_use]
    pub fn new(keep: &'a PageSet, first: &'a [PageSet], batch_pages: usize) -> Self {
        Self {
            keep,
            first,
            pass: 0,
            chunks: Box::new(first.first().unwrap_or(keep).chunks()),
            chunk: 0,
            bits: ChunkBits::default(),
            scratch: ChunkBits::default(),
            at: 1 << CHUNK_SHIFT,
            kept: ChunkBits::default(),
            ranked: (0, 0),
            batch_pages: batch_pages as u64,
            next: 0,
        }
    }

    /// Fills `runs` with the next batch, at most a batch's number of pages, and returns its number, counted from 0; `None` when all
    /// pages have been handed out. No batch crosses a pass.
    pub fn next(&mut self, runs: &mut Vec<Run>) -> Option<u64> {
        runs.clear();
        let mut room = self.batch_pages;
        while room > 0 {
            let Some((start, end)) = self.bits.next_run(self.at) else {
                match self.chunks.next() {
                    Some(chunk) => self.load(chunk),
                    None if !runs.is_empty() => break,
                    None if self.pass < self.first.len() => {
                        self.pass += 1;
                        self.chunks = Box::new(self.first.get(self.pass).unwrap_or(self.keep).chunks());
                    }
                    None => return None,
                }
                continue;
            };
            let pages = (end - start).min(room);
            self.at = start + pages;
            room -= pages;
            let rank = self.ranked.1 + self.kept.count_in(self.ranked.0, start);
            self.ranked = (start, rank);
            let start = Pfn((self.chunk << CHUNK_SHIFT) + start);
            match runs.last_mut() {
                Some(last) if last.start.plus(last.pages.into()) == start => last.pages += pages as u32,
                _ => runs.push(Run { start, pages: pages as u32, rank }),
            }
        }
        self.next += 1;
        Some(self.next - 1)
    }

    fn load(&mut self, chunk: u64) {
        self.chunk = chunk;
        self.at = 0;
        self.keep.copy_chunk(chunk, &mut self.kept);
        self.ranked = (0, self.keep.rank(Pfn(chunk << CHUNK_SHIFT)));
        match self.first.get(self.pass) {
            Some(set) => {
                set.copy_chunk(chunk, &mut self.bits);
                // A page set is only an order; what is written is `keep`.
                self.bits.intersect(&self.kept);
            }
            None => self.keep.copy_chunk(chunk, &mut self.bits),
        }
        for set in self.first.iter().take(self.pass) {
            set.copy_chunk(chunk, &mut self.scratch);
            self.bits.subtract(&self.scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kept_page_comes_once_the_first_sets_first(
            keep in proptest::collection::vec((0u64..100_000, 1u64..500), 1..40),
            split in proptest::collection::vec(0u8..3, 40),
        ) {
            let ranges: Vec<_> = keep.iter().map(|&(s, n)| (Pfn(s), Pfn(s + n))).collect();
            let keep = PageSet::from_ranges(ranges);
            let pick = |which: u8| PageSet::from_ranges(keep.all_runs().enumerate().filter(|(i, _)| split[i % 40] == which).map(|(_, r)| r));
            // The second set has the pages of the first again, and pages that are not kept.
            let more = PageSet::from_ranges(pick(0).all_runs().chain(pick(1).all_runs()).chain([(Pfn(200_000), Pfn(200_100))]));
            let first = [pick(0), more];
            let mut batches = Batches::new(&keep, &first, 64);
            let mut runs = Vec::new();
            let mut seen = Vec::new();
            let mut number = 0;
            while let Some(n) = batches.next(&mut runs) {
                prop_assert_eq!(n, number);
                number += 1;
                prop_assert!(runs.iter().map(|r| r.pages as usize).sum::<usize>() <= 64);
                for r in &runs {
                    prop_assert_eq!(r.rank, keep.rank(r.start));
                    seen.extend(r.start.0..r.start.0 + u64::from(r.pages));
                }
            }
            let in_order: Vec<u64> = [&first[0], &pick(1), &pick(2)].iter().flat_map(|s| s.all_runs()).flat_map(|(s, e)| s.0..e.0).collect();
            prop_assert_eq!(seen, in_order);
        }
    }
}
