//! Which page a descriptor is of, where the 2nd bitmap lost bits or was given some.
//!
//! Descriptors are in the order of their pages, and a bit is all that tells a descriptor's page: behind the first wrong bit each would
//! be taken for its neighbour's. Some pages tell where they were in memory: a kernel's page often holds addresses of itself. Two such
//! pages, with as many descriptors between them as there are bits, vouch for all between:
//!
//! ```text
//! descriptors  0   1  [2]  3   4  [5]  6   7  [8]  9       [..] tells its page
//! bits         0   1   2   3   4   5   .   6   7   8       one is lost
//!              ── as many ──────── │ one more │ as many ──
//!              certain               in doubt   certain
//! ```

use super::desc::PageDesc;
use super::file::KdumpFile;
use crate::codec::{Codec, Decompressor};
use crate::{PageSet, Pfn, PhysicalMemory, Result};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Descriptors read at a time (384 KiB).
const AT_A_TIME: u64 = 16 << 10;
/// Pages that have to tell the same one behind the other before they are believed: a page may hold what was copied from another, or the
/// memory of a guest.
const BELIEVED: u64 = 3;
/// Pages at the end of a run that are not believed where more than one bit may be wrong: among wrong bits, too, there are as many bits
/// as descriptors here and there, by chance.
const EDGE: usize = 4;
/// Runs that may go on: pages that tell something wrong lie between those that tell the right thing.
const OPEN: usize = 8;
/// Runs that are remembered, and bits that are set or cleared, at the most: far more than a few damaged bytes make.
const MOST: usize = 1 << 16;

/// The 2nd bitmap as the pages tell it.
#[derive(Debug, Default)]
pub struct Realigned {
    /// Bytes of the file that have to be others, by their offset.
    pub bytes: BTreeMap<u64, u8>,
    /// Pages of which it stays unknown which descriptor is theirs.
    pub doubt: PageSet,
}

/// A page that tells where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    rank: u64,
    pfn: u64,
}

/// Anchors with as many descriptors as bits between each two.
#[derive(Clone, Debug, Default)]
struct Run {
    /// The first [`EDGE`] and one more.
    first: Vec<Anchor>,
    /// The last [`EDGE`] and one more.
    last: VecDeque<Anchor>,
    len: u64,
    /// Pages among them that the bitmap lacks.
    lacking: Vec<u64>,
    /// Page frames between two of them where another page says that the bitmap is wrong.
    contradicted: Vec<Range<u64>>,
}

impl Run {
    fn push(&mut self, anchor: Anchor) {
        if self.first.len() <= EDGE {
            self.first.push(anchor);
        }
        if self.last.len() > EDGE {
            self.last.pop_front();
        }
        self.last.push_back(anchor);
        self.len += 1;
    }

    /// What it vouches for, without `edge` anchors at each end.
    fn ends(&self, edge: usize) -> Option<(Anchor, Anchor)> {
        let last = self.last.len().checked_sub(1 + edge)?;
        let ends = (*self.first.get(edge)?, *self.last.get(last)?);
        (ends.0.rank <= ends.1.rank).then_some(ends)
    }
}

impl KdumpFile {
    /// Which bits the 2nd bitmap should have, where it does not have as many as the file has descriptors. `tells` is shown each page
    /// and says which page frame the page itself says it is. Reads all pages once.
    ///
    /// `None` where that cannot be found, as in a part of a split set, whose descriptors are not all its own.
    ///
    /// # Errors
    /// The operating system's.
    pub fn realign(&self, mut tells: impl FnMut(&[u8]) -> Option<Pfn>) -> Result<Option<Realigned>> {
        if self.part().is_some() || self.identity().is_some() {
            return Ok(None);
        }
        let (mut bits, mut cleared) = (self.stored().clone(), Vec::new());
        let Some(count) = self.descriptors_by_data()? else { return Ok(None) };
        // What is no RAM has no page: such a bit is known to be wrong, unless it is the 1st bitmap that is.
        let mut outside = bits.without(&self.maps.first_alone(&*self.bytes)?);
        if bits.len() >= count && bits.len() - count >= outside.len() {
            cleared.extend(pages_of(&outside, Pfn(0)..Pfn(u64::MAX)).take(MOST));
            bits = bits.without(&outside);
            outside = PageSet::default();
        }
        if bits.len() == count && outside.is_empty() {
            return Ok(Some(Realigned { bytes: self.bits_put(&[], &cleared)?, doubt: PageSet::default() }));
        }
        let mut found = Search { ram: self.ram(), bits: &bits, outside: &outside, open: Vec::new(), done: Vec::new() };
        self.each_page(count, |rank, page| {
            if let Some(pfn) = tells(page).filter(|pfn| self.ram().contains(*pfn)) {
                found.add(Anchor { rank, pfn: pfn.0 });
            }
        })?;
        let Some(Plan { gaps, set, clear, doubt }) = found.plan(count, self.max_pfn().0) else { return Ok(None) };
        if gaps == 0 && set.is_empty() {
            return Ok(None);
        }
        cleared.extend(clear);
        let bytes = self.bits_put(&set, &cleared)?;
        Ok(Some(Realigned { bytes, doubt: PageSet::from_ranges(doubt) }))
    }

    /// How many descriptors there are: page data begin directly behind the last.
    fn descriptors_by_data(&self) -> Result<Option<u64>> {
        let size = PageDesc::SIZE as u64;
        let (mut lowest, mut rank) = (u64::MAX, 0);
        while self.descriptor_at(rank) < lowest {
            let raw = self.read_descriptors(rank, AT_A_TIME)?;
            if raw.is_empty() {
                break;
            }
            for desc in raw {
                let at = self.descriptor_at(rank);
                if at >= lowest {
                    break;
                }
                let whole = desc.offset > at && (desc.offset - self.descriptors()).is_multiple_of(size);
                if whole && desc.offset < self.bytes().len() && self.plausible(desc) {
                    lowest = lowest.min(desc.offset);
                }
                rank += 1;
            }
        }
        Ok((lowest < u64::MAX).then(|| (lowest - self.descriptors()) / size))
    }

    /// Whether size and codec of `desc` are what a writer writes.
    fn plausible(&self, desc: PageDesc) -> bool {
        let block = self.page_size().bytes() as u64;
        let codec = Codec::from_flags(desc.flags);
        (1..=block).contains(&desc.size.into())
            && codec.is_ok_and(|codec| codec != Codec::None || u64::from(desc.size) == block)
    }

    /// Shows `each` the pages of the first `count` descriptors that can be read, with their rank.
    fn each_page(&self, count: u64, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
        let (mut decompressor, mut page) = (Decompressor::new(), vec![0; self.page_size().bytes()]);
        let mut stored = vec![0; self.page_size().bytes()];
        for first in (0..count).step_by(AT_A_TIME as usize) {
            for (rank, desc) in (first..).zip(self.read_descriptors(first, AT_A_TIME.min(count - first))?) {
                let (Ok(codec), true) = (Codec::from_flags(desc.flags), self.plausible(desc)) else { continue };
                let stored = stored.get_mut(..desc.size as usize).unwrap_or_default();
                // A page that cannot be read tells nothing.
                let whole = self.bytes().read_at(desc.offset, stored).is_ok_and(|read| read == stored.len());
                if whole && decompressor.decompress(codec, stored, &mut page).is_ok() {
                    each(rank, &page);
                }
            }
        }
        Ok(())
    }

    /// The bytes of the 2nd bitmap that change when the bits of the pages `set` are set and those of `cleared` cleared.
    fn bits_put(&self, set: &[u64], cleared: &[u64]) -> Result<BTreeMap<u64, u8>> {
        let mut bytes = BTreeMap::new();
        for (pfn, on) in set.iter().map(|pfn| (pfn, true)).chain(cleared.iter().map(|pfn| (pfn, false))) {
            let (at, bit) = self.bit_of(Pfn(*pfn));
            let byte = match bytes.entry(at) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let raw = crate::bytes::read_exact(self.bytes(), "2nd bitmap", at, 1)?;
                    entry.insert(raw.first().copied().unwrap_or_default())
                }
            };
            *byte = if on { *byte | bit } else { *byte & !bit };
        }
        Ok(bytes)
    }
}

/// Bits to be set, those to be cleared, and ranges of pages that stay in doubt.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// Places where bits and descriptors disagree.
    gaps: u64,
    set: Vec<u64>,
    clear: Vec<u64>,
    doubt: Vec<(Pfn, Pfn)>,
}

/// The anchors seen so far.
struct Search<'a> {
    ram: &'a PageSet,
    bits: &'a PageSet,
    /// Pages of `bits` that are no RAM by the 1st bitmap, where it is not known which of the two is wrong.
    outside: &'a PageSet,
    /// Runs that may go on, the last one that did at the end.
    open: Vec<Run>,
    done: Vec<Run>,
}

impl Search<'_> {
    /// Bits of the pages behind `from` and before `to`.
    fn between(&self, from: u64, to: u64) -> u64 {
        let rank = |pfn| self.bits.rank(Pfn(pfn));
        rank(to).saturating_sub(rank(from) + u64::from(self.bits.contains(Pfn(from))))
    }

    fn add(&mut self, anchor: Anchor) {
        let follows = |run: &Run| {
            run.last.back().is_some_and(|last| {
                last.pfn < anchor.pfn && self.between(last.pfn, anchor.pfn) == anchor.rank - last.rank - 1
            })
        };
        // Not across a run that is believed and says otherwise.
        let since = self.open.iter().rposition(|run| run.len >= BELIEVED).unwrap_or(0);
        let best = (since..self.open.len()).filter(|i| self.open.get(*i).is_some_and(follows));
        let best = best.max_by_key(|i| self.open.get(*i).map_or(0, |run| run.len));
        let contradicted = best.is_some_and(|i| i + 1 < self.open.len());
        let mut run = best.map(|i| self.open.remove(i)).unwrap_or_default();
        if contradicted && let Some(last) = run.last.back() {
            run.contradicted.push(last.pfn + 1..anchor.pfn);
        }
        if !self.bits.contains(Pfn(anchor.pfn)) {
            run.lacking.push(anchor.pfn);
        }
        run.push(anchor);
        self.open.push(run);
        if self.open.len() > OPEN {
            let oldest = self.open.remove(0);
            if oldest.len >= BELIEVED {
                self.done.push(oldest);
            }
        }
    }

    /// What is to be done to the bitmap so that the runs agree with `count` descriptors; `end` is one more than the last page frame.
    /// `None` where there is no way to do it.
    fn plan(mut self, count: u64, end: u64) -> Option<Plan> {
        self.done.append(&mut self.open);
        let mut runs = std::mem::take(&mut self.done);
        runs.retain(|run| run.len >= BELIEVED);
        // Where two contradict each other, the longer one is believed.
        runs.sort_by_key(|run| std::cmp::Reverse(run.len));
        let mut believed: BTreeMap<u64, (Anchor, Anchor, Run)> = BTreeMap::new();
        for run in runs {
            let Some((first, last)) = run.ends(0) else { continue };
            let before = believed.range(..first.rank).next_back().map(|(_, (_, last, _))| *last);
            let behind = believed.range(first.rank..).next().map(|(_, (first, ..))| *first);
            let fits = |a: Anchor, b: Anchor| a.rank < b.rank && a.pfn < b.pfn;
            if before.is_none_or(|before| fits(before, first)) && behind.is_none_or(|behind| fits(last, behind)) {
                believed.insert(first.rank, (first, last, run));
            }
        }
        let runs: Vec<Run> = believed.into_values().map(|(.., run)| run).collect();
        // One wrong bit that explains all outweighs the few pages that say something else.
        let single = self.bits.len().abs_diff(count) == 1;
        let plan = self.between_runs(&runs, 0, count, end)?;
        if single && plan.gaps == 1 { Some(plan) } else { self.between_runs(&runs, EDGE, count, end) }
    }

    /// The plan where `edge` anchors at each end of a run are not believed, and with any, nothing that a page contradicts.
    fn between_runs(&self, runs: &[Run], edge: usize, count: u64, end: u64) -> Option<Plan> {
        let mut plan = Plan::default();
        // Page frames and ranks before `pfn` and `rank` are done with.
        let (mut pfn, mut rank) = (0, 0);
        // Whether a run that is too short to be believed said otherwise there.
        let mut unheard = false;
        for run in runs {
            let Some((first, last)) = run.ends(edge) else {
                unheard = true;
                continue;
            };
            self.gap(pfn..first.pfn, first.rank - rank, unheard || edge > 0 && rank > 0, &mut plan)?;
            unheard = false;
            let inside = |pfn: u64| (first.pfn..=last.pfn).contains(&pfn);
            plan.set.extend(run.lacking.iter().filter(|pfn| inside(**pfn)));
            let contradicted = run.contradicted.iter().filter(|range| inside(range.start) && inside(range.end));
            plan.doubt.extend(contradicted.filter(|_| edge > 0).map(|range| (Pfn(range.start), Pfn(range.end))));
            (pfn, rank) = (last.pfn + 1, last.rank + 1);
        }
        self.gap(pfn..end, count.checked_sub(rank)?, unheard, &mut plan)?;
        (rank > 0 && plan.set.len().max(plan.clear.len()) <= MOST).then_some(plan)
    }

    /// Makes the bits of `pages` as many as there are descriptors for them. If they are not, or it is `doubtful`, which is whose is not
    /// known.
    fn gap(&self, pages: Range<u64>, descriptors: u64, doubtful: bool, plan: &mut Plan) -> Option<()> {
        let (from, to) = (Pfn(pages.start), Pfn(pages.end));
        let within = |set: &PageSet| set.rank(to).saturating_sub(set.rank(from));
        let bits = within(self.bits);
        if bits == descriptors && !doubtful && within(self.outside) == 0 {
            return Some(());
        }
        plan.gaps += u64::from(bits != descriptors);
        plan.doubt.push((from, to));
        let more = usize::try_from(descriptors.saturating_sub(bits)).ok().filter(|more| *more <= MOST)?;
        let fewer = usize::try_from(bits.saturating_sub(descriptors)).ok().filter(|fewer| *fewer <= MOST)?;
        plan.clear.extend(pages_of(self.bits, from..to).take(fewer));
        let before = plan.set.len();
        plan.set.extend(pages_of(self.ram, from..to).filter(|pfn| !self.bits.contains(Pfn(*pfn))).take(more));
        (plan.set.len() - before == more).then_some(())
    }
}

/// The page frames of `set` in `range`.
fn pages_of(set: &PageSet, range: Range<Pfn>) -> impl Iterator<Item = u64> + '_ {
    set.runs(range.start, range.end).flat_map(|(start, end)| start.0..end.0)
}
