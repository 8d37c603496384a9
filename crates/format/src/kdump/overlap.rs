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
const REMEMBERED: usize = 1 << 16;
/// Places that several pages share that are remembered.
const SHARED: usize = 1 << 20;
/// Bytes of a gap that are looked at.
const GAP: usize = 64 << 10;
/// Overlaps remembered one by one.
const NAMED: usize = 16;

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
    doubts: Doubts,
}

/// Places of data of which it is not certain whose they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Doubts {
    #[default]
    None,
    Some(HashSet<Place>),
    /// More than can be remembered.
    All,
}

impl Doubts {
    fn add(&mut self, place: Place) {
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
    /// Whether it is in doubt that the data `desc` points at are its page's.
    #[must_use]
    pub fn in_doubt(&self, desc: PageDesc) -> bool {
        match &self.doubts {
            Doubts::None => false,
            Doubts::Some(places) => places.contains(&(desc.offset, desc.size)),
            Doubts::All => true,
        }
    }

    /// Whether there is any such page.
    #[must_use]
    pub fn doubtful(&self) -> bool {
        self.doubts != Doubts::None
    }
}

/// One place, and what of its pages is worth knowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    offset: u64,
    size: u32,
    /// Whether no page made of it can be read.
    unsound: bool,
    /// The lowest page frame that has it.
    pfn: Pfn,
    shared: bool,
}

impl Entry {
    const fn end(&self) -> u64 {
        self.offset.saturating_add(self.size as u64)
    }

    const fn place(&self) -> Place {
        (self.offset, self.size)
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
        self.judge_gaps(&gaps, &shared, lost, &mut found);
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
            if page.state.is_ok() {
                let PageDesc { offset, size, .. } = page.desc;
                each(Entry { offset, size, unsound: unsound.contains(page.pfn), pfn: page.pfn, shared: false });
            } else {
                lost += 1;
            }
        });
        lost
    }

    /// Looks into gaps. In a file that did not end early they hold the data of pages whose descriptors point elsewhere: perhaps at what
    /// other pages share.
    fn judge_gaps(&self, gaps: &[(u64, u64)], shared: &[Place], lost: u64, found: &mut Places) {
        let mut buf = vec![0; GAP];
        let mut holds = |gap: &&(u64, u64)| {
            let len = usize::try_from(gap.1).unwrap_or(GAP).min(GAP);
            let piece = buf.get_mut(..len).unwrap_or_default();
            // A gap that cannot be read may hold anything.
            self.bytes.read_at(gap.0, piece).is_err() || piece.iter().any(|byte| *byte != 0)
        };
        let filled: Vec<(u64, u64)> = gaps.iter().filter(&mut holds).copied().collect();
        found.unclaimed = filled.first().copied();
        if self.incomplete() {
            return;
        }
        for place in shared {
            let size = u64::from(place.1);
            // Several pages of one size leave a multiple of it. A gap of another length is that of the pages without a place, or where
            // there are none, of several pages that point elsewhere.
            let fits = |gap: &(u64, u64)| gap.1 >= size && (gap.1.is_multiple_of(size) || lost == 0);
            if filled.iter().any(fits) {
                found.doubts.add(*place);
            }
        }
    }
}

/// Sorts places by their offset and makes equal ones one.
fn compact(places: &mut Vec<Entry>) {
    places.sort_unstable();
    places.dedup_by(|next, first| {
        let same = next.place() == first.place();
        // A sound one comes first.
        first.shared |= same;
        same
    });
}

/// The places of a file whose pages are in the order of their data, as they come; its zero page lies in front.
struct InOrder {
    sweep: Option<Sweep>,
    first_data: u64,
    /// The place in front of all others.
    front: Option<Entry>,
    last: Option<Entry>,
}

impl InOrder {
    fn new(first_data: u64) -> Self {
        Self { sweep: Some(Sweep::new(first_data)), first_data, front: None, last: None }
    }

    fn add(&mut self, entry: Entry) {
        let Some(sweep) = &mut self.sweep else { return };
        let same = |other: &Entry| other.place() == entry.place() && other.unsound == entry.unsound;
        if entry.offset == self.first_data {
            match &mut self.front {
                None => self.front = Some(entry),
                Some(front) if same(front) => front.shared = true,
                Some(_) => self.sweep = None,
            }
            return;
        }
        match &mut self.last {
            Some(last) if same(last) => last.shared = true,
            Some(last) if entry.offset < last.end() => self.sweep = None,
            last => {
                last.replace(entry).into_iter().for_each(|place| sweep.add(place));
            }
        }
    }

    /// The places, unless one of them was not in order.
    fn finish(self) -> Option<Sweep> {
        let mut sweep = self.sweep?;
        self.last.into_iter().for_each(|place| sweep.add(place));
        let Some(front) = self.front else { return Some(sweep) };
        sweep.in_front(front).then_some(sweep)
    }
}

/// A walk over all places in the order of the file.
struct Sweep {
    found: Places,
    /// Gaps between places: offset and length.
    gaps: Vec<(u64, u64)>,
    shared: Vec<Place>,
    /// Places that overlap, or a single one.
    cluster: Vec<Entry>,
    /// The end of what the cluster covers.
    reach: u64,
    /// The end of what the one before covered.
    before: u64,
}

impl Sweep {
    fn new(first_data: u64) -> Self {
        let found = Places { compared: true, ..Places::default() };
        Self { found, gaps: Vec::new(), shared: Vec::new(), cluster: Vec::new(), reach: first_data, before: first_data }
    }

    fn add(&mut self, entry: Entry) {
        if entry.offset >= self.reach {
            self.close(Some(entry.offset));
        }
        self.count(entry);
        if let Some(before) = self.cluster.last() {
            self.found.overlapping += 1;
            if self.found.first.len() < NAMED {
                let first = (before.pfn, before.offset);
                self.found.first.push(Overlap { first, second: (entry.pfn, entry.offset) });
            }
        }
        if self.cluster.len() < REMEMBERED {
            self.cluster.push(entry);
        } else {
            self.found.doubts = Doubts::All;
        }
        self.reach = self.reach.max(entry.end());
    }

    fn count(&mut self, entry: Entry) {
        self.found.places += 1;
        if entry.shared {
            if self.shared.len() < SHARED {
                self.shared.push(entry.place());
            } else {
                self.found.compared = false;
            }
        }
    }

    /// Adds the place in front of all others, which closes the gap that there was; false where it does not.
    fn in_front(&mut self, front: Entry) -> bool {
        self.count(front);
        match self.gaps.first() {
            Some(gap) if *gap == (front.offset, u64::from(front.size)) => {
                self.gaps.remove(0);
                self.found.unused -= u64::from(front.size);
                true
            }
            // There is nothing else, or only one other.
            None => self.cluster.is_empty(),
            Some(_) => false,
        }
    }

    /// Ends the cluster, behind which the next begins at `next`.
    fn close(&mut self, next: Option<u64>) {
        let Some(start) = self.cluster.first().map(|first| first.offset) else {
            self.gap(self.before, next);
            return;
        };
        if self.cluster.len() > 1 {
            let before = (self.before == start).then_some(start);
            let behind = next.is_none_or(|next| next == self.reach).then_some(self.reach);
            let doubts = doubtful(&self.cluster, before, behind);
            doubts.into_iter().for_each(|place| self.found.doubts.add(place));
        }
        self.cluster.clear();
        self.before = self.reach;
        self.gap(self.reach, next);
    }

    fn gap(&mut self, from: u64, to: Option<u64>) {
        let Some(len) = to.map(|to| to.saturating_sub(from)).filter(|len| *len > 0) else { return };
        self.found.unused += len;
        if self.gaps.len() < REMEMBERED {
            self.gaps.push((from, len));
        }
    }
}

/// The places of a cluster that may be wrong. `before`: the cluster's start, where another place ends there; `behind`: its end, where
/// another begins there or the data end.
///
/// A place that begins where one ends, and ends where one begins, is right, unless another such place overlaps it. One that overlaps only
/// what cannot be read is right if one of both holds.
fn doubtful(cluster: &[Entry], before: Option<u64>, behind: Option<u64>) -> Vec<Place> {
    let ends: HashSet<u64> = cluster.iter().map(Entry::end).chain(before).collect();
    let starts: HashSet<u64> = cluster.iter().map(|entry| entry.offset).chain(behind).collect();
    let fits = |entry: &Entry| u8::from(ends.contains(&entry.offset)) + u8::from(starts.contains(&entry.end()));
    let sound: Vec<(&Entry, u8)> = cluster.iter().filter(|e| !e.unsound).map(|entry| (entry, fits(entry))).collect();
    let mut doubts = Vec::new();
    // In the order of their starts: what reaches furthest before a place, and the start of the next, tell whether it overlaps another.
    let (mut any, mut proven) = (0, 0);
    for (i, (entry, fit)) in sound.iter().enumerate() {
        let overlapped = |least: u8, reach: u64| {
            let next = sound.get(i + 1..).unwrap_or_default().iter().find(|(_, fit)| *fit >= least);
            reach > entry.offset || next.is_some_and(|(next, _)| next.offset < entry.end())
        };
        let right = match fit {
            2 => !overlapped(2, proven),
            1 => !overlapped(0, any),
            _ => false,
        };
        if !right {
            doubts.push(entry.place());
        }
        any = any.max(entry.end());
        if *fit == 2 {
            proven = proven.max(entry.end());
        }
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(list: &[(u64, u32)]) -> Vec<Entry> {
        let mut all: Vec<Entry> = (0..)
            .zip(list)
            .map(|(pfn, place)| Entry { offset: place.0, size: place.1, unsound: false, pfn: Pfn(pfn), shared: false })
            .collect();
        compact(&mut all);
        all
    }

    fn swept(list: &[(u64, u32)]) -> Sweep {
        let mut sweep = Sweep::new(100);
        places(list).into_iter().for_each(|place| sweep.add(place));
        sweep.close(None);
        sweep
    }

    #[test]
    fn places_one_behind_the_other_are_in_no_doubt() {
        let sweep = swept(&[(100, 50), (150, 50), (200, 10), (150, 50)]);
        assert_eq!((sweep.found.places, sweep.found.overlapping, sweep.gaps.len()), (3, 0, 0));
        assert!(!sweep.found.doubtful());
        assert_eq!(sweep.shared, [(150, 50)]);
    }

    #[test]
    fn of_places_that_overlap_those_that_fit_their_neighbours_are_right() {
        // The place at 150 was moved to 210: it lies across two others.
        let sweep = swept(&[(100, 50), (210, 50), (200, 40), (240, 60), (300, 10)]);
        assert_eq!(sweep.found.doubts, Doubts::Some(HashSet::from([(210, 50), (200, 40)])), "a gap is before one");
        assert_eq!(sweep.gaps, [(150, 50)]);
        let sweep = swept(&[(100, 50), (150, 50), (310, 50), (250, 50), (300, 40), (340, 60)]);
        assert_eq!(sweep.found.doubts, Doubts::Some(HashSet::from([(310, 50)])));
    }

    #[test]
    fn where_nothing_tells_which_is_right_all_are_in_doubt() {
        // Moved by 16 into the next, which now has a gap before it.
        let sweep = swept(&[(100, 50), (166, 50), (200, 50), (250, 50)]);
        assert_eq!(sweep.found.doubts, Doubts::Some(HashSet::from([(166, 50), (200, 50)])));
        // Two ways to cover the same bytes.
        let sweep = swept(&[(100, 50), (150, 100), (150, 40), (190, 60), (250, 10)]);
        assert_eq!(sweep.found.doubts, Doubts::Some(HashSet::from([(150, 100), (150, 40), (190, 60)])));
    }

    #[test]
    fn files_in_order_are_gone_through_at_once_with_the_same_outcome() {
        let lists: [&[(u64, u32)]; 5] = [
            &[(150, 50), (100, 50), (200, 10), (100, 50), (210, 5)],
            &[(100, 50), (150, 50), (160, 10)],
            &[(100, 50), (170, 50), (220, 10), (220, 10)],
            &[(170, 50), (100, 50)],
            &[(150, 50), (200, 10), (150, 50)],
        ];
        let mut at_once = 0;
        for list in lists {
            let mut in_order = InOrder::new(100);
            for (pfn, place) in (0..).zip(list) {
                let pfn = Pfn(pfn);
                in_order.add(Entry { offset: place.0, size: place.1, unsound: false, pfn, shared: false });
            }
            let Some(mut sweep) = in_order.finish() else { continue };
            at_once += 1;
            sweep.close(None);
            let slow = swept(list);
            let sorted = |mut shared: Vec<Place>| {
                shared.sort_unstable();
                shared
            };
            assert_eq!(sweep.found, slow.found, "{list:?}");
            assert_eq!((sweep.gaps, sorted(sweep.shared)), (slow.gaps, sorted(slow.shared)), "{list:?}");
        }
        assert_eq!(at_once, 1);
    }
}
