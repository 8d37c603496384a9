//! ELF notes: named pieces of data in a core, among them the registers of each CPU and the kernel's VMCOREINFO.

use crate::endian::Endian;
use std::ops::Range;

/// Bytes of a note's header (`Elf32_Nhdr` and `Elf64_Nhdr` are the same).
const HEADER: usize = 12;
/// Names and descriptors are padded to this in core files of both classes.
const ALIGN: usize = 4;
/// Type of a note named `CORE` with the registers of a CPU.
const NT_PRSTATUS: u32 = 1;

/// One note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note<'a> {
    /// The name, without the zero byte that ends it.
    pub name: &'a [u8],
    /// The type, whose meaning depends on the name.
    pub kind: u32,
    /// Where the note begins in the note data, in bytes.
    pub start: usize,
    /// The descriptor; shorter than the note claims where `torn`.
    pub desc: &'a [u8],
    /// Where the descriptor begins in the note data, in bytes.
    pub desc_offset: usize,
    /// The note data end inside this note.
    pub torn: bool,
}

/// The notes in some note data, in order.
///
/// Notes without a name are stepped over: the buffers of CPUs that never stopped, and the room behind a CPU's last
/// note, are zeros. A note that the data end inside of is the last one.
#[derive(Clone, Copy, Debug)]
pub struct Notes<'a> {
    data: &'a [u8],
    endian: Endian,
    at: usize,
}

impl<'a> Notes<'a> {
    /// The notes in `data`.
    #[must_use]
    pub const fn new(data: &'a [u8], endian: Endian) -> Self {
        Self { data, endian, at: 0 }
    }

    /// Where in the note data the text of the (first) VMCOREINFO note is.
    #[must_use]
    pub fn vmcoreinfo(mut self) -> Option<Range<usize>> {
        self.find(|n| n.name == b"VMCOREINFO").map(|n| n.desc_offset..n.desc_offset + n.desc.len())
    }

    /// The texts of makedumpfile's ERASEINFO notes, one behind the other, without the zeros they end in: the length of the note is an upper
    /// bound, taken before the text was known.
    #[must_use]
    pub fn erase_info(self) -> Vec<u8> {
        let text = |note: Note<'a>| {
            let end = note.desc.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            note.desc.get(..end).unwrap_or_default()
        };
        self.filter(|n| n.name == b"ERASEINFO").flat_map(text).copied().collect()
    }

    /// Number of notes with the registers of a CPU.
    #[must_use]
    pub fn cpus(self) -> u32 {
        self.filter(|n| n.name == b"CORE" && n.kind == NT_PRSTATUS).count() as u32
    }

    /// Words of zeros from `at` on.
    fn zero_words(&self) -> usize {
        self.data.get(self.at..).unwrap_or_default().chunks(ALIGN).take_while(|w| w.iter().all(|b| *b == 0)).count()
    }

    /// Whether a note with a readable name begins at `at`.
    fn named_at(&self, at: usize) -> bool {
        let name = || {
            let len = self.endian.u32(self.data, at)? as usize;
            self.data.get(at.checked_add(HEADER)?..)?.get(..len)
        };
        name()
            .and_then(<[u8]>::split_last)
            .is_some_and(|(end, text)| *end == 0 && text.iter().all(u8::is_ascii_graphic))
    }
}

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        loop {
            let word = |i: usize| self.endian.u32(self.data, self.at.checked_add(4 * i)?);
            let (name_len, desc_len, kind) = (word(0)? as usize, word(1)? as usize, word(2)?);
            if name_len == 0 {
                // A hole need not be a whole number of headers, but what follows it begins with a name length, not 0.
                let behind = self.at.checked_add(self.zero_words() * ALIGN)?;
                if (desc_len == 0 && kind == 0) || self.named_at(behind) {
                    self.at = behind;
                    continue;
                }
            }
            let start = self.at;
            let name_at = start.checked_add(HEADER)?;
            let desc_at = name_at.checked_add(name_len.checked_next_multiple_of(ALIGN)?)?;
            self.at = desc_at.checked_add(desc_len.checked_next_multiple_of(ALIGN)?)?;
            if name_len == 0 {
                continue;
            }
            let name = self.data.get(name_at..name_at.checked_add(name_len)?)?;
            let rest = self.data.get(desc_at..).unwrap_or_default();
            let torn = rest.len() < desc_len;
            let desc = rest.get(..desc_len).unwrap_or(rest);
            let name = name.split(|b| *b == 0).next().unwrap_or_default();
            return Some(Note { name, kind, start, desc, desc_offset: desc_at, torn });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn note(endian: Endian, name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let word = |v: u32| match endian {
            Endian::Little => v.to_le_bytes(),
            Endian::Big => v.to_be_bytes(),
        };
        let mut raw = [word(name.len() as u32), word(desc.len() as u32), word(kind)].concat();
        for part in [name, desc] {
            raw.extend(part);
            raw.resize(raw.len().next_multiple_of(4), 0);
        }
        raw
    }

    #[test]
    fn holes_of_any_length_do_not_stop_the_scan() {
        for endian in [Endian::Little, Endian::Big] {
            for hole in [0, 4, 8, 12, 16, 20, 24, 28, 400] {
                let mut data = note(endian, b"CORE\0", 1, &[1; 336]);
                data.extend(vec![0; hole]);
                data.extend(note(endian, b"CORE\0", 1, &[2; 336]));
                data.extend(vec![0; hole]);
                let text_at = data.len() + 12 + 12;
                data.extend(note(endian, b"VMCOREINFO\0", 0, b"OSRELEASE=6.1\n"));
                let notes = Notes::new(&data, endian);
                assert_eq!(notes.cpus(), 2, "hole of {hole}");
                assert_eq!(notes.vmcoreinfo(), Some(text_at..text_at + 14), "hole of {hole}");
            }
        }
    }

    #[test]
    fn a_note_without_name_is_stepped_over_with_its_descriptor() {
        let mut data = note(Endian::Little, b"", 5, &[9; 10]);
        data.extend(note(Endian::Little, b"CORE\0", 1, &[]));
        let found: Vec<_> = Notes::new(&data, Endian::Little).collect();
        assert_eq!(
            found,
            [Note { name: b"CORE", kind: 1, start: 24, desc: &[], desc_offset: 24 + 12 + 8, torn: false }]
        );
    }

    #[test]
    fn c30_a_vmcoreinfo_of_no_length_or_odd_length_or_torn_off_is_what_is_there() {
        for len in [0, 1, 3, 5] {
            let mut data = note(Endian::Little, b"VMCOREINFO\0", 0, &b"A=1\nB=2\n"[..len]);
            data.extend(note(Endian::Little, b"CORE\0", 1, &[]));
            let notes = Notes::new(&data, Endian::Little);
            assert_eq!(notes.vmcoreinfo(), Some(24..24 + len));
            assert_eq!(notes.cpus(), 1);
        }
        let data = note(Endian::Little, b"VMCOREINFO\0", 0, b"A=1\nB=2\n");
        let mut notes = Notes::new(&data[..24 + 5], Endian::Little);
        let torn = notes.next().unwrap();
        assert!(torn.torn);
        assert_eq!(torn.desc, b"A=1\nB");
        assert_eq!(notes.next(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_end_the_scan_and_stay_inside(data in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300), big: bool) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut last = 0;
            for n in Notes::new(&data, endian) {
                prop_assert!(n.desc_offset >= last + HEADER);
                last = n.desc_offset;
            }
        }
    }
}
