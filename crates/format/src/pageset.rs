//! A set of page frames, compressed by chunks of 32768 so that memory follows the number of runs, not the amount of RAM.

use crate::Pfn;
use crate::chunk::{BitRuns, CHUNK_PAGES, CHUNK_SHIFT, ChunkBits, WORDS, count_in};

mod builder;

pub use builder::PageSetBuilder;

/// Above this many runs the bitmap is smaller than the run list (4 bytes a run).
const MAX_RUNS: usize = WORDS * 8 / 4;

/// How an entry says which pages of its chunk it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All pages of so many chunks as its `at` says.
    Full,
    /// `runs` runs from `at` on in [`PageSet::runs`].
    Runs,
    /// The bitmap number `at` of [`PageSet::bits`].
    Bits,
}

/// One chunk, or a run of whole ones: 32 bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Number of the first chunk.
    chunk: u64,
    /// Pages of the set before this entry.
    before: u64,
    at: usize,
    runs: u16,
    kind: Kind,
}

/// A set of page frames, built once in ascending order, then only read. What its chunks hold lies in two arrays, without an
/// allocation a chunk: a machine of 4 TiB has 32,768 of them.
#[derive(Clone, Debug, Default)]
pub struct PageSet {
    entries: Vec<Entry>,
    /// Runs of one chunk as (first, last) page, both inclusive so that they fit 16 bits.
    runs: Vec<(u16, u16)>,
    bits: Vec<[u64; WORDS]>,
    len: u64,
}

/// What an entry holds.
enum Body<'a> {
    Full,
    Runs(&'a [(u16, u16)]),
    Bits(&'a [u64; WORDS]),
}

const NO_BITS: [u64; WORDS] = [0; WORDS];
static NONE: PageSet = PageSet { entries: Vec::new(), runs: Vec::new(), bits: Vec::new(), len: 0 };

impl PageSet {
    /// No pages.
    #[must_use]
    pub fn none() -> &'static Self {
        &NONE
    }

    /// The set of the given ranges `start..end`, which may come in any order and overlap.
    #[must_use]
    pub fn from_ranges(ranges: impl IntoIterator<Item = (Pfn, Pfn)>) -> Self {
        let mut ranges: Vec<(u64, u64)> = ranges.into_iter().map(|(s, e)| (s.0, e.0)).filter(|(s, e)| s < e).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for (start, end) in ranges {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let mut builder = PageSetBuilder::default();
        let mut bits = ChunkBits::default();
        let mut open = None;
        for (mut start, end) in merged {
            while start < end {
                let chunk = start >> CHUNK_SHIFT;
                if open != Some(chunk) {
                    if let Some(done) = open.replace(chunk) {
                        builder.push(done, &bits);
                        bits.clear();
                    }
                    let whole = (end - start) >> CHUNK_SHIFT;
                    if start & (CHUNK_PAGES - 1) == 0 && whole > 0 {
                        open = None;
                        builder.push_full(chunk, whole);
                        start += whole << CHUNK_SHIFT;
                        continue;
                    }
                }
                let stop = end.min((chunk + 1) << CHUNK_SHIFT);
                bits.set(start & (CHUNK_PAGES - 1), stop - (chunk << CHUNK_SHIFT));
                start = stop;
            }
        }
        if let Some(done) = open {
            builder.push(done, &bits);
        }
        builder.finish()
    }

    /// Number of pages in the set.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether no page is in the set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the highest page of the set; 0 when it is empty.
    #[must_use]
    pub fn end(&self) -> Pfn {
        self.runs(Pfn(self.entries.last().map_or(0, |e| (e.end() - 1) << CHUNK_SHIFT)), Pfn(u64::MAX))
            .last()
            .map_or(Pfn(0), |(_, end)| end)
    }

    /// Whether `pfn` is in the set.
    #[must_use]
    pub fn contains(&self, pfn: Pfn) -> bool {
        let inside = pfn.0 & (CHUNK_PAGES - 1);
        self.entry(pfn.0 >> CHUNK_SHIFT).is_some_and(|e| match self.body(e) {
            Body::Full => true,
            Body::Runs(runs) => {
                let i = runs.partition_point(|r| u64::from(r.1) < inside);
                runs.get(i).is_some_and(|r| u64::from(r.0) <= inside)
            }
            Body::Bits(words) => words.get((inside / 64) as usize).is_some_and(|w| w >> (inside % 64) & 1 == 1),
        })
    }

    /// Whether all pages of chunk number `chunk` are in the set.
    #[must_use]
    pub fn has_chunk(&self, chunk: u64) -> bool {
        self.entry(chunk).is_some_and(|e| e.kind == Kind::Full)
    }

    /// Number of pages of the set below `pfn`: the index of its page descriptor.
    #[must_use]
    pub fn rank(&self, pfn: Pfn) -> u64 {
        let chunk = pfn.0 >> CHUNK_SHIFT;
        let inside = pfn.0 & (CHUNK_PAGES - 1);
        let i = self.entries.partition_point(|e| e.end() <= chunk);
        let Some(e) = self.entries.get(i) else { return self.len };
        if chunk < e.chunk {
            return e.before;
        }
        e.before
            + match self.body(e) {
                Body::Full => pfn.0 - (e.chunk << CHUNK_SHIFT),
                Body::Runs(runs) => runs
                    .iter()
                    .take_while(|r| u64::from(r.0) < inside)
                    .map(|r| (u64::from(r.1) + 1).min(inside) - u64::from(r.0))
                    .sum(),
                Body::Bits(words) => count_in(words, 0, inside),
            }
    }

    /// The page with `rank` pages of the set below it: the owner of that page descriptor.
    #[must_use]
    pub fn page_of_rank(&self, rank: u64) -> Option<Pfn> {
        let entry = self.entries.get(self.entries.partition_point(|e| e.before <= rank).checked_sub(1)?)?;
        let mut left = rank - entry.before;
        for (start, end) in self.entry_runs(entry, 0) {
            if left < end - start {
                return Some(Pfn(start + left));
            }
            left -= end - start;
        }
        None
    }

    /// The maximal runs `start..end` of the set within `from..to`, ascending. Runs that touch across chunks come as one.
    pub fn runs(&self, from: Pfn, to: Pfn) -> impl Iterator<Item = (Pfn, Pfn)> + '_ {
        let first = self.entries.partition_point(|e| e.end() <= from.0 >> CHUNK_SHIFT);
        let mut pieces = self
            .entries
            .get(first..)
            .unwrap_or_default()
            .iter()
            .take_while(move |e| e.chunk << CHUNK_SHIFT < to.0)
            .flat_map(move |e| self.entry_runs(e, from.0))
            .take_while(move |(s, _)| *s < to.0)
            .map(move |(s, e)| (s.max(from.0), e.min(to.0)))
            .filter(|(s, e)| s < e)
            .peekable();
        std::iter::from_fn(move || {
            let (start, mut end) = pieces.next()?;
            while let Some((_, e)) = pieces.next_if(|p| p.0 == end) {
                end = e;
            }
            Some((Pfn(start), Pfn(end)))
        })
    }

    /// All runs of the set.
    pub fn all_runs(&self) -> impl Iterator<Item = (Pfn, Pfn)> + '_ {
        self.runs(Pfn(0), Pfn(u64::MAX))
    }

    /// Numbers of the chunks that hold at least one page, ascending.
    pub fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().flat_map(|e| e.chunk..e.end())
    }

    /// Writes the bits of chunk number `chunk` over `bits`.
    pub fn copy_chunk(&self, chunk: u64, bits: &mut ChunkBits) {
        match self.entry(chunk).map(|e| self.body(e)) {
            None => bits.clear(),
            Some(Body::Full) => bits.fill(),
            Some(Body::Bits(words)) => bits.0.copy_from_slice(words),
            Some(Body::Runs(runs)) => {
                bits.clear();
                for r in runs {
                    bits.set(u64::from(r.0), u64::from(r.1) + 1);
                }
            }
        }
    }

    /// The set that holds the pages `bits` of chunk number `chunk`.
    #[must_use]
    pub fn of_chunk(chunk: u64, bits: &ChunkBits) -> Self {
        let mut builder = PageSetBuilder::default();
        builder.push(chunk, bits);
        builder.finish()
    }

    /// The pages that are not in `other`. Runs of whole chunks take one step, however long they are.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let (mut bits, mut less) = (ChunkBits::default(), ChunkBits::default());
        let mut builder = PageSetBuilder::default();
        for e in &self.entries {
            let mut chunk = e.chunk;
            while chunk < e.end() {
                let next = other.entries.get(other.entries.partition_point(|o| o.end() <= chunk));
                let untouched = next.map_or(e.end(), |o| o.chunk.clamp(chunk, e.end())) - chunk;
                match next {
                    Some(o) if untouched == 0 && o.kind == Kind::Full => chunk = o.end(),
                    _ if untouched > 0 && e.kind == Kind::Full => {
                        builder.push_full(chunk, untouched);
                        chunk += untouched;
                    }
                    _ => {
                        self.copy_chunk(chunk, &mut bits);
                        other.copy_chunk(chunk, &mut less);
                        bits.subtract(&less);
                        builder.push(chunk, &bits);
                        chunk += 1;
                    }
                }
            }
        }
        builder.finish()
    }

    /// The pages of all `sets`. Runs of whole chunks take one step, however long they are.
    #[must_use]
    pub fn united<'a>(sets: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let (mut bits, mut more) = (ChunkBits::default(), ChunkBits::default());
        let mut united = PageSetBuilder::default();
        let mut done = 0;
        loop {
            let next = |set: &'a Self| set.entries.get(set.entries.partition_point(|entry| entry.end() <= done));
            let Some(chunk) = sets.clone().filter_map(next).map(|entry| entry.chunk.max(done)).min() else { break };
            let full = |entry: &&Entry| entry.chunk <= chunk && entry.kind == Kind::Full;
            done = if let Some(end) = sets.clone().filter_map(next).filter(full).map(Entry::end).max() {
                united.push_full(chunk, end - chunk);
                end
            } else {
                bits.clear();
                for set in sets.clone() {
                    set.copy_chunk(chunk, &mut more);
                    bits.unite(&more);
                }
                united.push(chunk, &bits);
                chunk + 1
            };
        }
        united.finish()
    }

    /// Memory the set occupies, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.runs.capacity() * size_of::<(u16, u16)>()
            + self.bits.capacity() * size_of::<[u64; WORDS]>()
    }

    fn entry(&self, chunk: u64) -> Option<&Entry> {
        let i = self.entries.partition_point(|e| e.end() <= chunk);
        self.entries.get(i).filter(|e| e.chunk <= chunk)
    }

    fn body(&self, e: &Entry) -> Body<'_> {
        match e.kind {
            Kind::Full => Body::Full,
            Kind::Runs => Body::Runs(self.runs.get(e.at..e.at + usize::from(e.runs)).unwrap_or_default()),
            Kind::Bits => Body::Bits(self.bits.get(e.at).unwrap_or(&NO_BITS)),
        }
    }

    /// The runs of `e` that end behind `from`; the first may begin before it.
    fn entry_runs(&self, e: &Entry, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let base = e.chunk << CHUNK_SHIFT;
        let inside = from.saturating_sub(base);
        let (whole, runs, words) = match self.body(e) {
            Body::Full => (Some((base, e.end() << CHUNK_SHIFT)), &[][..], &[][..]),
            Body::Runs(runs) => (None, runs, &[][..]),
            Body::Bits(words) => (None, &[][..], &words[..]),
        };
        let first = runs.partition_point(|r| u64::from(r.1) < inside);
        let runs = runs
            .get(first..)
            .unwrap_or_default()
            .iter()
            .map(move |r| (base + u64::from(r.0), base + u64::from(r.1) + 1));
        let at = if words.is_empty() { CHUNK_PAGES } else { inside };
        let bits = BitRuns { words, at }.map(move |(s, e)| (base + s, base + e));
        whole.into_iter().chain(runs).chain(bits)
    }
}

impl Entry {
    /// One more than the last chunk.
    fn end(&self) -> u64 {
        self.chunk + if self.kind == Kind::Full { self.at as u64 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn naive(ranges: &[(u64, u64)]) -> BTreeSet<u64> {
        ranges.iter().flat_map(|&(s, e)| s..e).collect()
    }

    fn set_of(ranges: &[(u64, u64)]) -> PageSet {
        PageSet::from_ranges(ranges.iter().map(|&(s, e)| (Pfn(s), Pfn(e))))
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(
            ranges in proptest::collection::vec((0u64..200_000, 0u64..70_000).prop_map(|(s, n)| (s, s + n)), 0..12),
            small in proptest::collection::vec((0u64..40_000, 1u64..3).prop_map(|(s, n)| (s, s + n)), 0..3000),
            probes in proptest::collection::vec(0u64..300_000, 50),
        ) {
            let ranges: Vec<_> = ranges.into_iter().chain(small).collect();
            let (plain, set) = (naive(&ranges), set_of(&ranges));
            prop_assert_eq!(set.len(), plain.len() as u64);
            prop_assert_eq!(set.end().0, plain.last().map_or(0, |l| l + 1));
            for p in probes {
                prop_assert_eq!(set.contains(Pfn(p)), plain.contains(&p));
                prop_assert_eq!(set.rank(Pfn(p)), plain.range(..p).count() as u64);
                prop_assert_eq!(set.page_of_rank(set.rank(Pfn(p))).map(|p| p.0), plain.range(p..).next().copied());
                let chunk = p >> CHUNK_SHIFT;
                let mut bits = ChunkBits::default();
                set.copy_chunk(chunk, &mut bits);
                let counted = plain.range(chunk << CHUNK_SHIFT..p).count() as u64;
                prop_assert_eq!(bits.count_in(0, p - (chunk << CHUNK_SHIFT)), counted);
            }
            let listed: Vec<u64> = set.all_runs().flat_map(|(s, e)| s.0..e.0).collect();
            prop_assert!(listed.iter().eq(plain.iter()));
            let runs: Vec<_> = set.all_runs().collect();
            prop_assert!(runs.windows(2).all(|w| w[0].1 < w[1].0), "runs are maximal and ascend");
            let mut copied = PageSetBuilder::default();
            let mut bits = ChunkBits::default();
            for c in set.chunks() {
                set.copy_chunk(c, &mut bits);
                copied.push(c, &bits);
            }
            prop_assert!(copied.finish().all_runs().eq(set.all_runs()));
        }

        #[test]
        fn what_is_in_one_set_and_not_in_another(
            one in proptest::collection::vec((0u64..200_000, 0u64..140_000).prop_map(|(s, n)| (s, s + n)), 0..5),
            other in proptest::collection::vec((0u64..200_000, 0u64..140_000).prop_map(|(s, n)| (s, s + n)), 0..5),
        ) {
            let left: Vec<u64> = naive(&one).difference(&naive(&other)).copied().collect();
            let set = set_of(&one).without(&set_of(&other));
            prop_assert_eq!(set.len(), left.len() as u64);
            prop_assert!(set.all_runs().flat_map(|(s, e)| s.0..e.0).eq(left));
        }
    }

    #[test]
    fn whole_chunks_that_follow_each_other_are_one_entry_however_they_come() {
        let mut full = ChunkBits::default();
        full.fill();
        let mut builder = PageSetBuilder::default();
        builder.push(3, &full);
        builder.append(&PageSet::of_chunk(4, &full));
        builder.push_full(5, 2);
        builder.append(&PageSet::of_chunk(7, &full));
        let set = builder.finish();
        assert_eq!(
            (set.entries.len(), set.len(), set.rank(Pfn(6 << CHUNK_SHIFT))),
            (1, 5 << CHUNK_SHIFT, 3 << CHUNK_SHIFT)
        );
    }

    #[test]
    fn chunks_that_do_not_ascend_are_ignored() {
        let mut some = ChunkBits::default();
        some.set(1, 4);
        let mut builder = PageSetBuilder::default();
        builder.push_full(5, 2);
        builder.push(6, &some);
        builder.push_full(2, 1);
        builder.append(&PageSet::of_chunk(5, &some));
        builder.push(7, &some);
        let set = builder.finish();
        assert_eq!(set.len(), (2 << CHUNK_SHIFT) + 3);
        assert!(set.chunks().eq(5..8));
    }

    #[test]
    fn a_petabyte_claim_costs_nothing() {
        let set = set_of(&[(0, 1 << 52), ((1 << 52) + 5, (1 << 52) + 9)]);
        assert_eq!(set.len(), (1 << 52) + 4);
        assert!(set.memory() < 4096);
        assert_eq!(set.rank(Pfn((1 << 52) + 7)), (1 << 52) + 2);
        let most = set.without(&set_of(&[(7, 9), (1 << 40, 1 << 51)]));
        assert_eq!(most.len(), (1 << 51) + (1 << 40) + 2);
        let all = PageSet::united([&most, &set_of(&[(0, 1 << 40)]), &set_of(&[(1 << 50, 1 << 51)])].into_iter());
        assert_eq!(all.len(), (1 << 52) + 4 - ((1 << 50) - (1 << 40)));
        assert!(all.memory() < 4096);
    }
}
