//! Places of data in the order of the file: which overlap, which of those are right, and what lies between.

use super::overlap::{Doubts, NAMED, Overlap, Place, Places, REMEMBERED, SHARED};
use crate::Pfn;
use std::collections::HashSet;

/// One place, and what of its pages is worth knowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub offset: u64,
    pub size: u32,
    /// Whether no page made of it can be read.
    pub unsound: bool,
    /// The lowest page frame that has it.
    pub pfn: Pfn,
    pub shared: bool,
}

impl Entry {
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.size as u64)
    }

    pub const fn place(&self) -> Place {
        (self.offset, self.size)
    }
}

/// Sorts places by their offset and makes equal ones one.
pub(super) fn compact(places: &mut Vec<Entry>) {
    places.sort_unstable();
    places.dedup_by(|next, first| {
        let same = next.place() == first.place();
        // A sound one comes first.
        first.shared |= same;
        same
    });
}

/// The places of a file whose pages are in the order of their data, as they come; its zero page lies in front.
pub(super) struct InOrder {
    sweep: Option<Sweep>,
    first_data: u64,
    /// The place in front of all others.
    front: Option<Entry>,
    last: Option<Entry>,
}

impl InOrder {
    pub fn new(first_data: u64) -> Self {
        Self { sweep: Some(Sweep::new(first_data)), first_data, front: None, last: None }
    }

    pub fn add(&mut self, entry: Entry) {
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
    pub fn finish(self) -> Option<Sweep> {
        let mut sweep = self.sweep?;
        self.last.into_iter().for_each(|place| sweep.add(place));
        let Some(front) = self.front else { return Some(sweep) };
        sweep.in_front(front).then_some(sweep)
    }
}

/// A walk over all places in the order of the file.
pub(super) struct Sweep {
    pub found: Places,
    pub gaps: Vec<Gap>,
    pub shared: Vec<Place>,
    /// Places that overlap, or a single one.
    cluster: Vec<Entry>,
    /// The end of what the cluster covers.
    reach: u64,
    /// The end of what the one before covered.
    before: u64,
    /// The page of the one before, if it was a single place of one page.
    page_before: Option<Pfn>,
}

/// Bytes between places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub offset: u64,
    pub len: u64,
    /// The pages before and behind it, where these are in order: writers put pages in runs of ascending page frames, so that what lies in
    /// the gap is of pages between them. Where a run ends, the next most often begins with a lower page frame.
    pub between: Option<(Pfn, Pfn)>,
}

impl Sweep {
    pub fn new(first_data: u64) -> Self {
        let mut found = Places::default();
        found.compared = true;
        Self {
            found,
            gaps: Vec::new(),
            shared: Vec::new(),
            cluster: Vec::new(),
            reach: first_data,
            before: first_data,
            page_before: None,
        }
    }

    pub fn add(&mut self, entry: Entry) {
        if entry.offset >= self.reach {
            self.close(Some(entry));
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
            Some(gap) if (gap.offset, gap.len) == (front.offset, u64::from(front.size)) => {
                self.gaps.remove(0);
                self.found.unused -= u64::from(front.size);
                true
            }
            // There is nothing else, or only one other.
            None => self.cluster.is_empty(),
            Some(_) => false,
        }
    }

    /// Ends the cluster, behind which the next begins with `next`.
    pub fn close(&mut self, next: Option<Entry>) {
        if let Some(first) = self.cluster.first() {
            self.page_before = (self.cluster.len() == 1 && !first.shared).then_some(first.pfn);
            if self.cluster.len() > 1 {
                let before = (self.before == first.offset).then_some(first.offset);
                let behind = next.is_none_or(|next| next.offset == self.reach).then_some(self.reach);
                let doubts = doubtful(&self.cluster, before, behind);
                doubts.into_iter().for_each(|place| self.found.doubts.add(place));
            }
            self.cluster.clear();
            self.before = self.reach;
        }
        next.into_iter().for_each(|next| self.gap(next));
    }

    /// Remembers what lies between the cluster before and `next`.
    fn gap(&mut self, next: Entry) {
        let (offset, len) = (self.before, next.offset.saturating_sub(self.before));
        if len == 0 {
            return;
        }
        self.found.unused += len;
        let behind = (!next.shared).then_some(next.pfn);
        let between = self.page_before.zip(behind).filter(|(before, behind)| before < behind);
        if self.gaps.len() < REMEMBERED {
            self.gaps.push(Gap { offset, len, between });
        } else {
            self.found.doubts = Doubts::All;
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
        assert_eq!(sweep.gaps, [Gap { offset: 150, len: 50, between: Some((Pfn(0), Pfn(2))) }]);
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
