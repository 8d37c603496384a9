//! A file that is made of a stream: which bytes of it have arrived, and the mark of an incomplete file.

use super::blocks::BLOCK_HEADER;
use super::placement::{Frame, MOST_NAMED, Misplaced, Misplacement, Overlap, header_of, overlaps};
use crate::bytes::{Bytes, FileBytes};
use crate::elf_write::ELF_INCOMPLETE;
use crate::endian::{Endian, Field};
use crate::extents::Extent;
use crate::input::Container;
use crate::kdump::{Header, SIGNATURE, STATUS_INCOMPLETE};
use crate::window::Window;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// Runs of bytes that are remembered; more only a stream has that nobody wrote to be read.
const MAX_RUNS: usize = 1 << 20;
/// Blocks that are remembered one by one; of a stream with more, two that follow each other are taken for one, and so on.
const MAX_BLOCKS: usize = 1 << 20;

/// The bytes of a file that were written, as runs, and by which blocks. Takes memory for these, not for their bytes, and at most 112 MiB.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Start of each run but the last one touched, and its end.
    runs: BTreeMap<u64, u64>,
    /// The run touched last: writers go on where they were.
    last: Range<u64>,
    /// The blocks, in the order of the stream.
    blocks: Vec<Extent>,
    /// More runs than are remembered.
    lossy: bool,
}

impl Written {
    /// Adds a run that the block at offset `block` of the stream brings.
    pub fn add(&mut self, range: Range<u64>, block: u64) {
        let source = block.saturating_add(BLOCK_HEADER);
        match self.blocks.last_mut() {
            Some(last) if last.source == source && last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.blocks.push(Extent { start: range.start, end: range.end, source }),
        }
        if self.blocks.len() > MAX_BLOCKS {
            self.coarsen();
        }
        if self.last.end == range.start && !self.last.is_empty() {
            self.last.end = range.end;
            return;
        }
        self.settle();
        self.last = range;
    }

    /// Takes two blocks that follow each other for one: if one is at a wrong place, so may the other be. Without such pairs, which only
    /// a stream has that nobody wrote to be read, those at the end are forgotten, and what they brought is lost.
    fn coarsen(&mut self) {
        let mut joined: Vec<Extent> = Vec::with_capacity(MAX_BLOCKS);
        let mut open = false;
        for block in std::mem::take(&mut self.blocks) {
            match joined.last_mut() {
                Some(last) if open && last.end == block.start => (last.end, open) = (block.end, false),
                _ => {
                    joined.push(block);
                    open = true;
                }
            }
        }
        if joined.len() > MAX_BLOCKS / 4 * 3 {
            self.lossy = true;
            for block in joined.split_off(MAX_BLOCKS / 4 * 3) {
                self.settle();
                self.forget(block.start..block.end);
            }
        }
        self.blocks = joined;
    }

    /// Puts the run touched last among the others.
    pub fn settle(&mut self) {
        let Range { mut start, mut end } = std::mem::take(&mut self.last);
        if start >= end {
            return;
        }
        while let Some((&from, &to)) = self.runs.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.runs.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        if self.runs.len() < MAX_RUNS {
            self.runs.insert(start, end);
        } else {
            self.lossy = true;
        }
    }

    /// Judges what was written by what the headers of the file say: which blocks cannot belong where they say, the first
    /// [`MOST_NAMED`], and whether one may concern what leads to the pages, so that none is sure. All that blocks bring of which one is at a
    /// wrong place is no longer among what was written. `beyond`: a block
    /// was left out already because it lies beyond what the headers describe. [`Self::settle`] must have been called.
    pub fn judge(&mut self, frame: &Frame, beyond: bool) -> (Vec<Misplaced>, bool) {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.sort_unstable_by_key(|block| block.start);
        let mut misplaced = Vec::new();
        let outside = blocks.iter().rev().filter(|block| block.end > frame.longest).take(MOST_NAMED);
        misplaced.extend(outside.map(|block| {
            let why = Misplacement::Beyond { longest: frame.longest };
            Misplaced { block: header_of(block), claims: block.start..block.end, why }
        }));
        let beyond = beyond || !misplaced.is_empty();
        blocks.retain(|block| block.end <= frame.longest);
        self.forget(frame.longest..u64::MAX);
        let first_of = |run: Range<u64>| {
            let first = blocks.get(blocks.partition_point(|block| block.start < run.start))?;
            Some((run, first.start..first.end, header_of(first)))
        };
        let behind_gap = frame.behind_gap(self.runs.iter().filter_map(|(start, end)| first_of(*start..*end)));
        let overlaps = frame.wrong(overlaps(&blocks));
        let in_doubt = frame.in_doubt(&overlaps, beyond, self.end(), |range| self.has(range));
        overlaps.iter().for_each(|overlap| self.forget(overlap.claims.clone()));
        behind_gap.iter().for_each(|found| self.forget(found.claims.clone()));
        let room = MOST_NAMED.saturating_sub(misplaced.len());
        misplaced.extend(overlaps.iter().take(room).map(Overlap::misplaced));
        misplaced.extend(behind_gap);
        (misplaced, in_doubt)
    }

    /// One more than the last byte that was written.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, end)| *end).max(self.last.end)
    }

    /// Takes `range` out of what was written.
    fn forget(&mut self, range: Range<u64>) {
        while let Some((&start, &end)) = self.runs.range(..range.end).next_back().filter(|(_, end)| **end > range.start)
        {
            self.runs.remove(&start);
            if end > range.end {
                self.runs.insert(range.end, end);
            }
            if start < range.start {
                self.runs.insert(start, range.start);
            }
        }
    }

    /// The first run that ends behind `offset`. [`Self::settle`] must have been called.
    #[must_use]
    pub fn next(&self, offset: u64) -> Option<Range<u64>> {
        let before = self.runs.range(..=offset).next_back().filter(|(_, end)| **end > offset);
        before.or_else(|| self.runs.range(offset..).next()).map(|(start, end)| *start..*end)
    }

    /// Whether all of `range` was written, as far as it is remembered.
    #[must_use]
    pub fn has(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.next(range.start).is_some_and(|run| run.start <= range.start && run.end >= range.end)
    }

    /// The parts of `range` that were not written.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            while at < range.end {
                let run = self.next(at).unwrap_or(range.end..range.end);
                let gap = at..run.start.min(range.end);
                at = run.end.max(at.saturating_add(1));
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
            None
        })
    }

    /// Whether there were more runs than are remembered, so that what was written may seem not to be.
    #[must_use]
    pub const fn lossy(&self) -> bool {
        self.lossy
    }
}

/// The file that was made of a stream which was cut short: what did not arrive is lost, though it reads as zeros.
pub struct Rearranged {
    /// The file.
    pub file: FileBytes,
    /// What arrived of it, settled.
    pub written: Written,
}

impl Bytes for Rearranged {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn window(&self, _offset: u64, _len: usize) -> Option<Window> {
        None
    }

    fn next_written(&self, offset: u64) -> Option<Range<u64>> {
        self.written.next(offset).map(|run| run.start.max(offset)..run.end)
    }

    fn lacks(&self, range: Range<u64>) -> bool {
        !self.written.has(&range)
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.file.next_data(offset)
    }
}

/// Bytes of a file's beginning that hold the mark of an incomplete file, whatever its container.
pub const MARK_WITHIN: usize = 1024;

/// Sets the mark of an incomplete file in `head`, the first [`MARK_WITHIN`] bytes of a dump, and returns its container; `None`,
/// and nothing changed, where it is none.
pub fn mark_incomplete(head: &mut [u8]) -> Option<Container> {
    if head.starts_with(SIGNATURE) {
        let layout = Header::layout_of(head);
        let at = Header::offset_of("status", layout.abi) as usize;
        let status = layout.endian.u32(head, at)? | STATUS_INCOMPLETE;
        layout.endian.put(head, Field { at, size: 4 }, status.into());
        return Some(Container::Kdump);
    }
    // e_flags, of the class and the byte order that e_ident tells.
    let (class, order) = (*head.get(4)?, *head.get(5)?);
    let at = match class {
        _ if !head.starts_with(b"\x7fELF") => return None,
        1 => 36,
        _ => 48,
    };
    let endian = if order == 2 { Endian::Big } else { Endian::Little };
    let flags = endian.u32(head, at)? | ELF_INCOMPLETE;
    endian.put(head, Field { at, size: 4 }, flags.into());
    Some(Container::Elf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_written_is_known_to_the_byte(ranges in proptest::collection::vec((0u64..60, 0u64..12), 0..20), from in 0u64..70, len in 0u64..30) {
            let mut written = Written::default();
            for (start, len) in &ranges {
                written.add(*start..start + len, 7);
            }
            written.settle();
            let truth = |at: u64| ranges.iter().any(|(start, len)| (*start..start + len).contains(&at));
            prop_assert_eq!(written.has(&(from..from + len)), (from..from + len).all(truth));
            let gaps: Vec<_> = written.gaps(from..from + len).collect();
            let lacking: Vec<u64> = gaps.iter().cloned().flatten().collect();
            let expected: Vec<u64> = (from..from + len).filter(|at| !truth(*at)).collect();
            prop_assert_eq!(lacking, expected);
            prop_assert!(gaps.windows(2).all(|w| w[0].end < w[1].start));
        }
    }
}
