//! The kept pages in the order they are written, cut into batches.

use crate::selection::{Kinds, Selection};
use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, Pfn};
use std::ops::Range;

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
    /// The pages `start..end` of it.
    pub const fn part(self, start: Pfn, end: Pfn) -> Self {
        let before = start.0.saturating_sub(self.start.0);
        Self { start, pages: end.0.saturating_sub(start.0) as u32, rank: self.rank + before }
    }

    /// Its page frames.
    pub fn pfns(self) -> impl Iterator<Item = Pfn> {
        (self.start.0..self.start.0 + u64::from(self.pages)).map(Pfn)
    }
}

/// One pass over the kept pages, in pfn order, for those of a kind that no pass before it took.
#[derive(Debug)]
pub enum Pass {
    /// Pages of a set, as far as they are kept.
    Of(PageSet),
    /// Slab pages.
    Slab,
    /// The kernel's own.
    Kernel,
    /// All.
    Rest,
}

/// What a debugger needs to open the dump at all: the sets that come before all else.
pub fn essentials(passes: &[Pass]) -> impl Iterator<Item = &PageSet> {
    passes.iter().map_while(|pass| if let Pass::Of(set) = pass { Some(set) } else { None })
}

/// Cuts the kept pages into batches: pass by pass, each in pfn order.
pub struct Batches<'a> {
    selection: &'a Selection<'a>,
    passes: &'a [Pass],
    /// How many of them come before all that is not [`Pass::Of`].
    essential: usize,
    pass: usize,
    chunks: Box<dyn Iterator<Item = u64> + Send + 'a>,
    chunk: u64,
    kinds: Kinds,
    /// Pages of the chunk that are yet to come in this pass.
    bits: ChunkBits,
    scratch: ChunkBits,
    at: u64,
    /// Index of the descriptor of the kept page at or behind place `ranked` of the chunk.
    rank: u64,
    ranked: u64,
    batch_pages: u64,
    next: u64,
    /// Only page frames of this range are handed out.
    within: Range<u64>,
}

impl<'a> Batches<'a> {
    /// Batches of `batch_pages` pages of `selection`, in the order of `passes`, of which the last is [`Pass::Rest`].
    #[must_use]
    pub fn new(selection: &'a Selection<'a>, passes: &'a [Pass], batch_pages: usize) -> Self {
        let mut batches = Self {
            selection,
            passes,
            essential: essentials(passes).count(),
            pass: 0,
            chunks: Box::new(std::iter::empty()),
            chunk: 0,
            kinds: Kinds::default(),
            bits: ChunkBits::default(),
            scratch: ChunkBits::default(),
            at: 1 << CHUNK_SHIFT,
            rank: 0,
            ranked: 0,
            batch_pages: batch_pages as u64,
            next: 0,
            within: 0..u64::MAX,
        };
        batches.chunks = batches.chunks_of(0);
        batches
    }

    /// Whether the last batch belongs to the [`essentials`].
    #[must_use]
    pub const fn essential(&self) -> bool {
        self.pass < self.essential
    }

    /// Only those of the page frames `range`; ranks stay those among all kept pages.
    #[must_use]
    pub fn within(mut self, range: &Range<Pfn>) -> Self {
        self.within = range.start.0..range.end.0;
        self.chunks = self.chunks_of(0);
        self
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
                    None if self.pass + 1 < self.passes.len() => {
                        self.pass += 1;
                        self.chunks = self.chunks_of(self.pass);
                    }
                    None => return None,
                }
                continue;
            };
            let pages = (end - start).min(room);
            self.at = start + pages;
            room -= pages;
            self.rank += self.kinds.keep.count_in(self.ranked, start);
            self.ranked = start;
            let start = Pfn((self.chunk << CHUNK_SHIFT) + start);
            match runs.last_mut() {
                Some(last) if last.start.plus(last.pages.into()) == start => last.pages += pages as u32,
                _ => runs.push(Run { start, pages: pages as u32, rank: self.rank }),
            }
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// The chunks to look at in pass number `pass`.
    fn chunks_of(&self, pass: usize) -> Box<dyn Iterator<Item = u64> + Send + 'a> {
        let kernel_was = self.passes.iter().take(pass).any(|p| matches!(p, Pass::Kernel));
        let slab_was = self.passes.iter().take(pass).any(|p| matches!(p, Pass::Slab));
        let chunks: Box<dyn Iterator<Item = u64> + Send + 'a> = match self.passes.get(pass) {
            None => Box::new(std::iter::empty()),
            Some(Pass::Of(set)) => Box::new(set.chunks()),
            Some(Pass::Slab) => Box::new(self.selection.slab_chunks()),
            Some(Pass::Rest) if kernel_was && slab_was => Box::new(self.selection.other_chunks()),
            Some(Pass::Kernel | Pass::Rest) => Box::new(self.selection.chunks()),
        };
        let chunk_range = self.within.start >> CHUNK_SHIFT..self.within.end.div_ceil(1 << CHUNK_SHIFT);
        Box::new(chunks.skip_while(move |c| *c < chunk_range.start).take_while(move |c| *c < chunk_range.end))
    }

    fn load(&mut self, chunk: u64) {
        self.chunk = chunk;
        self.at = 0;
        let kinds_matter = self.passes.iter().take(self.pass + 1).any(|pass| matches!(pass, Pass::Slab | Pass::Kernel));
        self.selection.load(chunk, &mut self.kinds, kinds_matter);
        (self.rank, self.ranked) = (self.selection.before(chunk), 0);
        let Kinds { keep, slab, other } = &self.kinds;
        self.bits.0.copy_from_slice(&*keep.0);
        for (number, pass) in self.passes.iter().enumerate().take(self.pass + 1) {
            let now = number == self.pass;
            match pass {
                Pass::Of(set) => {
                    set.copy_chunk(chunk, &mut self.scratch);
                    if now { self.bits.intersect(&self.scratch) } else { self.bits.subtract(&self.scratch) }
                }
                Pass::Slab if now => self.bits.intersect(slab),
                Pass::Slab => self.bits.subtract(slab),
                Pass::Kernel if now => {
                    self.bits.subtract(slab);
                    self.bits.subtract(other);
                }
                Pass::Kernel => {
                    // What is left of the kept pages is not the kernel's own.
                    self.scratch.0.copy_from_slice(&*slab.0);
                    self.scratch.unite(other);
                    self.bits.intersect(&self.scratch);
                }
                Pass::Rest => {}
            }
        }
        let first = chunk << CHUNK_SHIFT;
        self.bits.unset(0, self.within.start.saturating_sub(first));
        self.bits.unset(self.within.end.saturating_sub(first), u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::borrow::Cow;

    proptest! {
        #[test]
        fn every_kept_page_comes_once_pass_by_pass(
            keep in proptest::collection::vec((0u64..100_000, 1u64..500), 1..40),
            split in proptest::collection::vec(0u8..5, 40),
        ) {
            let ranges: Vec<_> = keep.iter().map(|&(s, n)| (Pfn(s), Pfn(s + n))).collect();
            let keep = PageSet::from_ranges(ranges);
            let pick = |which: u8| PageSet::from_ranges(keep.all_runs().enumerate().filter(|(i, _)| split[i % 40] == which).map(|(_, r)| r));
            let with = |set: PageSet, more: PageSet| PageSet::from_ranges(set.all_runs().chain(more.all_runs()).chain([(Pfn(200_000), Pfn(200_100))]));
            // The second set has the pages of the first again, and pages that are not kept; so has slab some of the first.
            let passes = [Pass::Of(pick(0)), Pass::Of(with(pick(0), pick(1))), Pass::Slab, Pass::Kernel, Pass::Rest];
            let slab = PageSet::from_ranges(pick(0).all_runs().chain(pick(2).all_runs()));
            let selection = Selection::new(Cow::Borrowed(&keep), slab, pick(3));
            let mut batches = Batches::new(&selection, &passes, 64);
            let mut runs = Vec::new();
            let mut seen = Vec::new();
            let mut number = 0;
            while let Some(n) = batches.next(&mut runs) {
                prop_assert_eq!(n, number);
                number += 1;
                prop_assert!(runs.iter().map(|r| r.pages as usize).sum::<usize>() <= 64);
                for r in &runs {
                    prop_assert_eq!(r.rank, keep.rank(r.start));
                    seen.extend(r.pfns().map(|pfn| pfn.0));
                }
            }
            let in_order: Vec<u64> =
                [pick(0), pick(1), pick(2), pick(4), pick(3)].iter().flat_map(|s| s.all_runs()).flat_map(|(s, e)| s.0..e.0).collect();
            prop_assert_eq!(seen, in_order);
        }
    }
}
