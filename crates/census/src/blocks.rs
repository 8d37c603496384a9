//! Frames counted by where they are: how many of each class are in each block of physical memory.

use crate::frames::{Column, Frames, NULL_LONG};
use crate::schema::ColumnId;
use coresift_kernel::PageClass;
use std::collections::BTreeMap;

/// The smallest blocks: 16 page frames, 64 KiB of 4 KiB pages.
const FINEST: u32 = 4;
/// Blocks this large hold all page frames there can be.
const COARSEST: u32 = 52;

/// Frames of each class, in the order of [`PageClass::ALL`].
pub type ByClass = [u64; PageClass::ALL.len()];

/// Blocks of a power of two page frames, as small as their number allows.
#[derive(Clone, Debug)]
pub struct BlockCounts {
    shift: u32,
    most: usize,
    blocks: BTreeMap<u64, ByClass>,
}

impl BlockCounts {
    /// No frames yet, to be counted in at most `most` blocks.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { shift: FINEST, most, blocks: BTreeMap::new() }
    }

    /// Page frames of a block.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        1 << self.shift
    }

    /// The blocks that have frames, by number: the first page frame is that many times [`Self::frames`].
    pub fn blocks(&self) -> impl Iterator<Item = (u64, &ByClass)> {
        self.blocks.iter().map(|(number, counts)| (*number, counts))
    }

    /// Counts `frames`. A row without a page frame number, as tables of others may have it, is not counted.
    pub fn count(&mut self, frames: &Frames) {
        let (Column::Long(pfns), Column::Class(classes)) =
            (frames.column(ColumnId::Pfn), frames.column(ColumnId::Class))
        else {
            return;
        };
        // Neighbours are in one block, nearly always.
        let mut here: Option<(u64, ByClass)> = None;
        for (pfn, class) in pfns.iter().zip(classes).filter(|(pfn, _)| **pfn != NULL_LONG) {
            let number = pfn.cast_unsigned() >> self.shift;
            if here.is_none_or(|(last, _)| last != number) {
                self.put(here.replace((number, ByClass::default())));
            }
            if let Some(count) = here.as_mut().and_then(|(_, counts)| counts.get_mut(*class as usize)) {
                *count += 1;
            }
        }
        self.put(here);
        self.coarsen();
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: Self) {
        let shift = self.shift.max(other.shift);
        self.coarsen_to(shift);
        for (number, counts) in other.blocks {
            self.put(Some((number >> (shift - other.shift), counts)));
        }
        self.coarsen();
    }

    fn put(&mut self, block: Option<(u64, ByClass)>) {
        if let Some((number, counts)) = block {
            let sums = self.blocks.entry(number).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, more)| *sum += more);
        }
    }

    /// Makes blocks larger until they are few enough.
    fn coarsen(&mut self) {
        while self.blocks.len() > self.most.max(1) && self.shift < COARSEST {
            self.coarsen_to(self.shift + 1);
        }
    }

    fn coarsen_to(&mut self, shift: u32) {
        let by = shift - self.shift;
        if by > 0 {
            self.shift = shift;
            for (number, counts) in std::mem::take(&mut self.blocks) {
                self.put(Some((number >> by, counts)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(runs: &[(u64, u64)], most: usize) -> BlockCounts {
        let mut frames = Frames::default();
        let mut counts = BlockCounts::new(most);
        for run in runs {
            frames.start(&[*run]);
            let mut part = BlockCounts::new(most);
            part.count(&frames);
            counts.merge(part);
        }
        counts
    }

    #[test]
    fn blocks_are_as_small_as_their_number_allows_whatever_the_order() {
        let runs = [(0, 100), (100, 1000), (5000, 5003)];
        for most in [1, 2, 7, 64, 1000] {
            let counts = counted(&runs, most);
            let backwards = counted(&[runs[2], runs[1], runs[0]], most);
            let all = |counts: &BlockCounts| counts.blocks().map(|(n, c)| (n, *c)).collect::<Vec<_>>();
            assert_eq!((counts.frames(), all(&counts)), (backwards.frames(), all(&backwards)), "{most}");
            assert!(all(&counts).len() <= most);
            assert_eq!(all(&counts).iter().flat_map(|(_, c)| c).sum::<u64>(), 1003);
        }
        let fine = counted(&runs, 1000);
        assert_eq!(fine.frames(), 16);
        let numbers: Vec<u64> = fine.blocks().map(|(number, _)| number).collect();
        assert_eq!(numbers, (0..63).chain([312]).collect::<Vec<_>>());
        assert_eq!(fine.blocks().last().unwrap().1[PageClass::Kernel as usize], 3);
    }
}
