//! Places of page data in the file: whose overlap without being the same, and what lies between them.
//!
//! Every writer puts the data of one page directly behind those of another, so the places of a sound file cover its data without a gap.
//! A descriptor whose offset or size was damaged leaves a gap where its data are, and claims what is another's:
//!
//! ```text
//! descriptors ─ places in file order ─> clusters of places that overlap ─> the place that fits its neighbours is right, the others are
//!                                   └─> gaps that hold something         ─>    in doubt; so are places several pages share that fit a gap
//! ```

use super::desc::PageDesc;
use super::file::KdumpFile;
use super::sweep::{Entry, Gap, InOrder, Sweep, compact};
use super::walk::Loss;
use crate::{PageSet, Pfn, PhysicalMemory};
use std::collections::HashSet;

/// Places of data remembered at a time (48 MiB). A file with more, whose pages are not in the order of their data, is gone through in ranges
/// of file offsets, one after the other.
const PLACES: usize = 1 << 21;
/// The most such ranges, each of which costs reading all descriptors: 268 million places, 1 TiB of pages. Places behind them are not
/// compared ([`Places::compared`]).
const RANGES: u64 = 128;
/// Ranges of equal length a file is counted in before it is gone through.
const BUCKETS: u64 = 1 << 14;
/// Places that overlap, one cluster of them, and places in doubt that are remembered; a file with more is damaged beyond telling.
pub(super) const REMEMBERED: usize = 1 << 16;
/// Places that several pages share that are remembered.
pub(super) const SHARED: usize = 1 << 20;
/// Bytes of a gap that are looked at.
const GAP: usize = 64 << 10;
/// Overlaps remembered one by one.
pub(super) const NAMED: usize = 16;

/// Where data lie: file offset and length in bytes.
pub type Place = (u64, u32);

/// The data of two pages that overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The page whose data begin first, and where they do, in bytes from the start of the file.
    pub first: (Pfn, u64),
    /// The other.
    pub second: (Pfn, u64),
}

/// What was found of the data's places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Places of data in the file.
    pub places: u64,
    /// Pages that share the place of another: the zero page, or equal pages.
    pub shared: u64,
    /// Places that overlap the one before.
    pub overlapping: u64,
    /// The first of them.
    pub first: Vec<Overlap>,
    /// Bytes from the end of the descriptors to the end of the last page's data that belong to no page.
    pub unused: u64,
    /// Of the gaps that hold something else than zeros, file offset and length of the first, in bytes.
    pub unclaimed: Option<(u64, u64)>,
    /// Whether all places were compared.
    pub compared: bool,
    pub(super) doubts: Doubts,
    /// Places that several pages share, where `between` is not empty.
    shared_places: HashSet<Place>,
    /// Page frames, both ends not among them, of which one has its data in a gap though its descriptor points elsewhere.
    between: Vec<(Pfn, Pfn)>,
}

/// Places of data of which it is not certain whose they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Doubts {
    #[default]
    None,
    Some(HashSet<Place>),
    /// More than can be remembered.
    All,
}

impl Doubts {
    pub fn add(&mut self, place: Place) {
        match self {
            Self::None => *self = Self::Some(HashSet::from([place])),
            Self::Some(places) if places.len() < REMEMBERED => {
                places.insert(place);
            }
            Self::Some(_) => *self = Self::All,
            Self::All => {}
        }
    }
}

impl Places {
    /// Whether it is in doubt that the data `desc` points at are those of `pfn`.
    #[must_use]
    pub fn in_doubt(&self, pfn: Pfn, desc: PageDesc) -> bool {
        let place = (desc.offset, desc.size);
        let of_gap = || {
            let next = self.between.partition_point(|(start, _)| *start < pfn);
            next.checked_sub(1).and_then(|last| self.between.get(last)).is_some_and(|(_, end)| pfn < *end)
        };
        match &self.doubts {
            Doubts::All => true,
            Doubts::Some(places) if places.contains(&place) => true,
            _ => self.shared_places.contains(&place) && of_gap(),
        }
    }

    /// Whether there may be any such page.
    #[must_use]
    pub fn doubtful(&self) -> bool {
        self.doubts != Doubts::None || !self.between.is_empty()
    }
}

impl KdumpFile {
    /// Looks for pages whose data overlap, and for gaps between data; `unsound` are pages that cannot be read though their descriptors
    /// can be true.
    ///
    /// Reads all descriptors once where pages are in the order of their data (makedumpfile, QEMU); else twice, and once more for each
    /// 2 million places. Memory: 70 MiB at the most.
    ///
    /// Data of descriptors that cannot be read are not known.
    #[must_use]
    pub fn places(&self, unsound: &PageSet) -> Places {
        let width = (self.bytes.len() / BUCKETS).max(1).next_multiple_of(self.page_size().bytes() as u64);
        let mut counts = vec![0u64; (self.bytes.len() / width + 1) as usize];
        let (mut described, mut last) = (0u64, None);
        let mut in_order = InOrder::new(self.first_data());
        let lost = self.each_place(unsound, |entry| {
            described += 1;
            in_order.add(entry);
            // Neighbours that are zero share a place: they would make a bucket look full.
            if last != Some(entry.offset)
                && let Some(count) = counts.get_mut((entry.offset / width) as usize)
            {
                *count += 1;
            }
            last = Some(entry.offset);
        });
        let mut sweep = match in_order.finish() {
            Some(sweep) => sweep,
            None => self.sweep(unsound, &counts, width),
        };
        sweep.close(None);
        let Sweep { mut found, gaps, shared, .. } = sweep;
        found.shared = described.saturating_sub(found.places);
        self.judge_gaps(&gaps, shared, lost, &mut found);
        found
    }

    /// Goes through all places in the order of the file, of which `counts` begin in each `width` bytes of it.
    fn sweep(&self, unsound: &PageSet, counts: &[u64], width: u64) -> Sweep {
        let mut sweep = Sweep::new(self.first_data());
        let (mut from, mut ranges) = (0, 0);
        while from < counts.len() {
            let mut sum = 0;
            let fits = |count: &&u64| {
                sum += **count;
                sum < PLACES as u64
            };
            let buckets = counts.get(from..).unwrap_or_default().iter().take_while(fits).count().max(1);
            let range = from as u64 * width..(from + buckets) as u64 * width;
            from += buckets;
            ranges += 1;
            if ranges > RANGES {
                sweep.found.compared = false;
                break;
            }
            let (mut places, mut full): (Vec<Entry>, bool) = (Vec::new(), false);
            self.each_place(unsound, |entry| {
                if !range.contains(&entry.offset) || full {
                    return;
                }
                match places.last_mut() {
                    Some(last) if last.place() == entry.place() && last.unsound == entry.unsound => last.shared = true,
                    _ => places.push(entry),
                }
                if places.len() >= PLACES {
                    compact(&mut places);
                    full = places.len() >= PLACES - PLACES / 8;
                }
            });
            // More places in so little of the file than any writer makes.
            sweep.found.compared &= !full;
            compact(&mut places);
            places.into_iter().for_each(|place| sweep.add(place));
        }
        sweep
    }

    /// Shows `each` the place of every page that has one; the number of those that have none.
    fn each_place(&self, unsound: &PageSet, mut each: impl FnMut(Entry)) -> u64 {
        let mut lost = 0;
        self.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
            // A descriptor of which it is not known whose it is has its place all the same.
            let unassigned = matches!(page.state, Err((Loss::Unassigned, _)));
            if page.state.is_ok() || unassigned && self.can_be_true(page.pfn, page.at, page.desc).is_ok() {
                let PageDesc { offset, size, .. } = page.desc;
                let unsound = unsound.contains(page.pfn) && !unassigned;
                each(Entry { offset, size, unsound, pfn: page.pfn, shared: false });
            } else {
                lost += 1;
            }
        });
        lost
    }

    /// Looks into gaps. In a file that did not end early they hold the data of pages whose descriptors point elsewhere: perhaps at what
    /// other pages share.
    fn judge_gaps(&self, gaps: &[Gap], shared: Vec<Place>, lost: u64, found: &mut Places) {
        let mut buf = vec![0; GAP];
        let mut holds = |gap: &&Gap| {
            let len = usize::try_from(gap.len).unwrap_or(GAP).min(GAP);
            let piece = buf.get_mut(..len).unwrap_or_default();
            // A gap that cannot be read may hold anything.
            self.bytes.read_at(gap.offset, piece).is_err() || piece.iter().any(|byte| *byte != 0)
        };
        let filled: Vec<&Gap> = gaps.iter().filter(&mut holds).collect();
        found.unclaimed = filled.first().map(|gap| (gap.offset, gap.len));
        if self.incomplete() {
            return;
        }
        let known: Vec<(Pfn, Pfn)> = filled.iter().filter_map(|gap| gap.between).collect();
        let others: Vec<u64> = filled.iter().filter(|gap| gap.between.is_none()).map(|gap| gap.len).collect();
        for place in &shared {
            let size = u64::from(place.1);
            // Several pages of one size leave a multiple of it. A gap of another length is that of the pages without a place, or where
            // there are none, of several pages that point elsewhere.
            if others.iter().any(|len| *len >= size && (len.is_multiple_of(size) || lost == 0)) {
                found.doubts.add(*place);
            }
        }
        if !known.is_empty() {
            found.shared_places = shared.into_iter().collect();
            found.between = merged(known);
        }
    }
}

/// Ranges in order, none of which overlaps the next.
fn merged(mut ranges: Vec<(Pfn, Pfn)>) -> Vec<(Pfn, Pfn)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joined = next.0 < last.1;
        if joined {
            last.1 = last.1.max(next.1);
        }
        joined
    });
    ranges
}
