//! What an ELF core of this program tells beside its headers, in a note that other readers ignore: which memory was left out of it, and by
//! which dump level. (A kdump-compressed file has its 1st bitmap and its sub header for that.) Without the note, memory that no header
//! describes is no memory, and memory without data may be zeros or what was left out.

use crate::Endian;
use crate::notes::Notes;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;

/// How a core was made.
///
/// ```text
/// note CORESIFT, type 0:  LEVEL=31
///                         RAM=1000-9fc00          physical addresses in hexadecimal, the end exclusive; a line for each range
///                         PARTIAL=1               where there are too many ranges: the shorter ones are not told
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfOrigin {
    /// Dump level.
    pub level: u8,
    /// Physical addresses of memory in bytes, start and end.
    pub ram: Vec<(u64, u64)>,
    /// Whether there is more memory than `ram` tells.
    pub partial: bool,
}

impl ElfOrigin {
    /// Name of the note. Its type is 0, as VMCOREINFO's: by a type alone, gdb would take it for registers.
    pub const NAME: &'static [u8] = b"CORESIFT";

    /// Ranges of memory that the note tells at the most. Lab cores of 8 GiB have 4; each takes 40 bytes, and every reader reads all notes.
    pub const MAX_RAM: usize = 1 << 16;

    /// What of the memory `ranges`, ascending, the note tells: the longest [`Self::MAX_RAM`] of them, ascending; and whether there were more. No
    /// more than these are in memory.
    #[must_use]
    pub fn longest(ranges: impl Iterator<Item = (u64, u64)>) -> (Vec<(u64, u64)>, bool) {
        let mut kept = BinaryHeap::new();
        let mut partial = false;
        for (start, end) in ranges {
            // Of the same length, the lower one stays.
            kept.push(Reverse((end.saturating_sub(start), Reverse(start))));
            if kept.len() > Self::MAX_RAM {
                kept.pop();
                partial = true;
            }
        }
        let mut kept: Vec<_> = kept.into_iter().map(|Reverse((len, Reverse(start)))| (start, start + len)).collect();
        kept.sort_unstable();
        (kept, partial)
    }

    /// The text of the note.
    #[must_use]
    pub fn text(&self) -> String {
        let partial = if self.partial { "PARTIAL=1\n" } else { "" };
        self.ram.iter().fold(format!("LEVEL={}\n{partial}", self.level), |mut text, (start, end)| {
            let _infallible = writeln!(text, "RAM={start:x}-{end:x}");
            text
        })
    }

    /// Takes the note out of `notes`, where it is in them. Lines that are torn or unknown say nothing.
    pub(crate) fn take(notes: &mut Vec<u8>, endian: Endian) -> Option<Self> {
        let found = Notes::new(notes, endian).find(|note| note.name == Self::NAME)?;
        let origin = Self::parse(found.desc);
        let (start, end) = (found.start, found.desc_offset.saturating_add(found.desc.len()).next_multiple_of(4));
        notes.drain(start..end.min(notes.len()));
        Some(origin)
    }

    fn parse(text: &[u8]) -> Self {
        let mut origin = Self::default();
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        // The last number of a torn note is another one: only lines that end count.
        let lines = text.split_inclusive(|b| *b == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
        for line in lines.filter_map(|line| std::str::from_utf8(line).ok()) {
            match line.split_once('=') {
                Some(("LEVEL", level)) => origin.level = level.parse().unwrap_or(0),
                Some(("PARTIAL", partial)) => origin.partial = partial == "1",
                Some(("RAM", range)) => {
                    let range = range.split_once('-').and_then(|(start, end)| Some((number(start)?, number(end)?)));
                    origin.ram.extend(range.filter(|(start, end)| start < end));
                }
                _ => {}
            }
        }
        origin
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn note(name: &[u8], text: &[u8]) -> Vec<u8> {
        let mut raw = [name.len() as u32 + 1, text.len() as u32, 0].map(u32::to_le_bytes).concat();
        for part in [&[name, b"\0"].concat()[..], text] {
            raw.extend(part);
            raw.resize(raw.len().next_multiple_of(4), 0);
        }
        raw
    }

    proptest! {
        #[test]
        fn what_is_told_is_read_and_the_other_notes_stay(
            level: u8, ranges in proptest::collection::vec((0u64..1 << 52, 1u64..1 << 40), 0..20), before in 0usize..3, after in 0usize..3,
        ) {
            let ram = ranges.into_iter().map(|(start, len)| (start, start + len)).collect();
            let origin = ElfOrigin { level, ram, partial: level % 2 == 0 };
            let others = |n: usize| note(b"CORE", b"registers").repeat(n);
            let mut notes = [others(before), note(ElfOrigin::NAME, origin.text().as_bytes()), others(after)].concat();
            prop_assert_eq!(ElfOrigin::take(&mut notes, Endian::Little), Some(origin));
            prop_assert_eq!(&notes, &others(before + after));
            prop_assert_eq!(ElfOrigin::take(&mut notes, Endian::Little), None);
        }
    }

    #[test]
    fn of_too_much_memory_the_longest_ranges_are_told() {
        let range = |i: u64| (i << 16, (i << 16) + if i == 7 { 0x2000 } else { 0x1000 });
        let (all, partial) = ElfOrigin::longest((0..9).map(range));
        assert_eq!((all, partial), ((0..9).map(range).collect::<Vec<_>>(), false));
        let most = ElfOrigin::MAX_RAM as u64;
        let ranges = (0..2 * most).map(|i| range(2 * most - 1 - i));
        let (told, partial) = ElfOrigin::longest(ranges);
        assert_eq!((told.len() as u64, partial), (most, true));
        assert!(told.contains(&range(7)) && told.is_sorted() && told.last() == Some(&range(most - 1)));
    }

    #[test]
    fn a_note_that_is_torn_or_says_more_is_read_as_far_as_it_goes() {
        let whole = note(ElfOrigin::NAME, b"LEVEL=31\nNEW=1\nRAM=1000-2000\nRAM=5000-4000\nRAM=x-1\nRAM=3000-4000\n");
        for len in 0..=whole.len() {
            let mut notes = whole[..len].to_vec();
            let origin = ElfOrigin::take(&mut notes, Endian::Little);
            assert_eq!(origin.is_some(), len >= 21, "{len}");
            assert!(origin.is_none() || notes.is_empty());
            assert!(
                origin.unwrap_or_default().ram.iter().all(|range| [(0x1000, 0x2000), (0x3000, 0x4000)].contains(range))
            );
        }
    }
}
