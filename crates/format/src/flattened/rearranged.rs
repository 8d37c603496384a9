//! A file that is made of a stream: which bytes of it have arrived, and the mark of an incomplete file.

use super::placement::{Frame, MOST_NAMED, Misplaced, Misplacement};
use crate::bytes::{Bytes, FileBytes};
use crate::elf_write::ELF_INCOMPLETE;
use crate::endian::{Endian, Field};
use crate::input::Container;
use crate::kdump::{Header, SIGNATURE, STATUS_INCOMPLETE};
use crate::window::Window;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// Runs of bytes that are remembered; more only a stream has that nobody wrote to be read.
const MAX_RUNS: usize = 1 << 20;
/// Places written twice that are remembered one by one.
const MAX_TWICE: usize = 4096;

/// The bytes of a file that were written, as runs, and by which blocks. Takes memory for the runs, not for their bytes, and at most
/// 80 MiB.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Start of each run but the last one touched; its end, and its first block.
    runs: BTreeMap<u64, (u64, u64)>,
    /// The run touched last: writers go on where they were.
    last: Range<u64>,
    /// Offset in the stream of the block that the last run began with.
    last_block: u64,
    /// Bytes that were written twice, each time with the offset in the stream of the block that begins there.
    twice: Vec<(Range<u64>, u64)>,
    /// More runs than are remembered.
    lossy: bool,
}

impl Written {
    /// Adds a run that the block at offset `block` of the stream brings.
    pub fn add(&mut self, range: Range<u64>, block: u64) {
        if self.last.end == range.start && !self.last.is_empty() {
            self.last.end = range.end;
            return;
        }
        self.settle();
        (self.last, self.last_block) = (range, block);
    }

    /// Puts the run touched last among the others.
    pub fn settle(&mut self) {
        let Range { mut start, mut end } = std::mem::take(&mut self.last);
        if start >= end {
            return;
        }
        let own = start..end;
        let mut first = self.last_block;
        while let Some((&from, &(to, block))) = self.runs.range(..=end).next_back().filter(|(_, run)| run.0 >= start) {
            self.runs.remove(&from);
            let both = own.start.max(from)..own.end.min(to);
            let beginning = if both.start == own.start { self.last_block } else { block };
            self.note_twice(both, beginning);
            if from < start {
                first = block;
            }
            (start, end) = (start.min(from), end.max(to));
        }
        if self.runs.len() < MAX_RUNS {
            self.runs.insert(start, (end, first));
        } else {
            self.lossy = true;
        }
    }

    fn note_twice(&mut self, both: Range<u64>, block: u64) {
        if both.is_empty() {
            return;
        }
        let full = self.twice.len() >= MAX_TWICE;
        match self.twice.last_mut() {
            Some((last, _)) if full => *last = last.start.min(both.start)..last.end.max(both.end),
            _ => self.twice.push((both, block)),
        }
    }

    /// Judges what was written by what the headers of the file say: which blocks cannot belong where they say, the first
    /// [`MOST_NAMED`], and whether one may concern the bitmaps ([`Frame::in_doubt`]). Bytes written twice that should not be are no longer
    /// among those written. [`Self::settle`] must have been called.
    pub fn judge(&mut self, frame: &Frame) -> (Vec<Misplaced>, bool) {
        let mut misplaced = Vec::new();
        for (&start, &(end, block)) in self.runs.range(..).rev().take_while(|(_, run)| run.0 > frame.longest) {
            if misplaced.len() < MOST_NAMED {
                let why = Misplacement::Beyond { longest: frame.longest };
                misplaced.push(Misplaced { block, claims: start..end, why });
            }
        }
        self.forget(frame.longest..u64::MAX);
        let behind_gap = frame.behind_gap(self.runs.iter().map(|(start, (end, block))| (*start..*end, *block)));
        self.twice.retain(|(both, _)| both.end > frame.once);
        let twice = std::mem::take(&mut self.twice);
        let disputed: Vec<Range<u64>> = twice.iter().map(|(both, _)| both.clone()).collect();
        let in_doubt = frame.in_doubt(&disputed, self.end(), |range| self.has(range));
        for (claims, block) in twice {
            self.forget(claims.clone());
            if misplaced.len() < MOST_NAMED {
                misplaced.push(Misplaced { block, claims, why: Misplacement::Overlap });
            }
        }
        misplaced.extend(behind_gap);
        (misplaced, in_doubt)
    }

    /// One more than the last byte that was written.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, run)| run.0).max(self.last.end)
    }

    /// Takes `range` out of what was written.
    fn forget(&mut self, range: Range<u64>) {
        while let Some((&start, &(end, block))) =
            self.runs.range(..range.end).next_back().filter(|(_, run)| run.0 > range.start)
        {
            self.runs.remove(&start);
            if end > range.end {
                self.runs.insert(range.end, (end, block));
            }
            if start < range.start {
                self.runs.insert(start, (range.start, block));
            }
        }
    }

    /// The first run that ends behind `offset`. [`Self::settle`] must have been called.
    #[must_use]
    pub fn next(&self, offset: u64) -> Option<Range<u64>> {
        let before = self.runs.range(..=offset).next_back().filter(|(_, run)| run.0 > offset);
        before.or_else(|| self.runs.range(offset..).next()).map(|(start, run)| *start..run.0)
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
