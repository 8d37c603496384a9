//! The headers of a new ELF core.
//!
//! ```text
//! ELF header | PT_NOTE, PT_LOAD... | section header 0, from 65535 program headers on | spare | notes | page data, at a page's border
//! ```

use crate::PageSize;
use crate::elf::Segment;
use crate::elf_class::{E_MACHINE, E_TYPE, ET_CORE, P_TYPE, PN_XNUM, PT_LOAD, PT_NOTE, class};
use crate::endian::{Bits, Endian, Field};

/// Bit of `e_flags` by which makedumpfile marks a file that ended early.
pub const ELF_INCOMPLETE: u32 = 1;

/// Program headers that there is room for behind those of a new file: where pages turn out to be unreadable while they are copied, the
/// headers around them are split.
const SPARE: u64 = 256;

/// What an ELF core is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfKind {
    /// Class.
    pub bits: Bits,
    /// Byte order.
    pub endian: Endian,
    /// `e_machine`.
    pub machine: u16,
    /// `e_flags`, without [`ELF_INCOMPLETE`].
    pub flags: u32,
}

/// Where everything in front of the pages of a new ELF core goes, and its bytes. Offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfLayout {
    kind: ElfKind,
    /// Number of PT_LOADs.
    loads: u64,
    /// Length of the notes.
    notes_len: u64,
    /// Where the PT_LOADs begin.
    pub loads_at: u64,
    /// Where the notes begin.
    pub notes: u64,
    /// Where the page data begin.
    pub data: u64,
}

impl ElfLayout {
    /// The layout of a core with `loads` PT_LOADs, `notes_len` bytes of notes and `data_len` bytes of pages; `None` where the class has
    /// no numbers for a file that long, or none for so many headers.
    #[must_use]
    pub fn new(kind: ElfKind, loads: u64, notes_len: u64, data_len: u64, page: PageSize) -> Option<Self> {
        let class = class(kind.bits);
        let loads_at = class.header_len + class.segment_len;
        let headers_end = loads.checked_mul(class.segment_len)?.checked_add(loads_at)?;
        let extended = loads + 1 >= PN_XNUM;
        let notes =
            headers_end.checked_add(SPARE * class.segment_len + if extended { class.section_len } else { 0 })?;
        // A reader can map page by page what begins at the border of one.
        let data = notes.checked_add(notes_len)?.checked_next_multiple_of(page.bytes() as u64)?;
        let end = data.checked_add(data_len)?;
        let fits = u32::try_from(loads + 1).is_ok() && (kind.bits == Bits::B64 || u32::try_from(end).is_ok());
        fits.then_some(Self { kind, loads, notes_len, loads_at, notes, data })
    }

    /// The same with `loads` PT_LOADs, if there is room for them in front of the notes.
    #[must_use]
    pub fn with_loads(self, loads: u64) -> Option<Self> {
        let class = class(self.kind.bits);
        let other = Self { loads, ..self };
        loads.checked_add(1)?;
        let section = if other.extended() { class.section_len } else { 0 };
        let end = loads.checked_mul(class.segment_len)?.checked_add(self.loads_at + section)?;
        (end <= self.notes).then_some(other)
    }

    /// The same with the notes at `notes`.
    #[must_use]
    pub const fn with_notes(self, notes: u64) -> Self {
        Self { notes, ..self }
    }

    /// Where `e_flags` is, and its bytes.
    #[must_use]
    pub fn flags(&self, incomplete: bool) -> (u64, [u8; 4]) {
        let mut raw = [0; 4];
        let flags = if incomplete { self.kind.flags | ELF_INCOMPLETE } else { self.kind.flags & !ELF_INCOMPLETE };
        self.kind.endian.put(&mut raw, Field { at: 0, size: 4 }, flags.into());
        (class(self.kind.bits).flags.at as u64, raw)
    }

    /// The ELF header, marked `incomplete` or not, and the PT_NOTE behind it.
    #[must_use]
    pub fn head(&self, incomplete: bool) -> Vec<u8> {
        let class = class(self.kind.bits);
        let endian = self.kind.endian;
        let mut header = vec![0; class.header_len as usize];
        let ident = [0x7f, b'E', b'L', b'F', class.ident, if endian == Endian::Little { 1 } else { 2 }, 1];
        header.iter_mut().zip(ident).for_each(|(to, from)| *to = from);
        let mut put = |field, value| endian.put(&mut header, field, value);
        put(E_TYPE, ET_CORE);
        put(E_MACHINE, self.kind.machine.into());
        put(class.version, 1);
        put(class.phoff, class.header_len);
        put(class.ehsize, class.header_len);
        put(class.phentsize, class.segment_len);
        put(class.phnum, (self.loads + 1).min(PN_XNUM));
        if self.extended() {
            put(class.shoff, self.loads_at + self.loads * class.segment_len);
            put(class.shentsize, class.section_len);
            put(class.shnum, 1);
        }
        let (at, flags) = self.flags(incomplete);
        put(Field { at: at as usize, size: 4 }, endian.u32(&flags, 0).unwrap_or_default().into());
        header.extend(self.segment(
            PT_NOTE,
            &Segment {
                file_offset: self.notes,
                file_size: self.notes_len,
                mem_size: self.notes_len,
                align: 4,
                ..Segment::default()
            },
        ));
        header
    }

    /// One PT_LOAD.
    #[must_use]
    pub fn load(&self, segment: &Segment) -> Vec<u8> {
        self.segment(PT_LOAD, segment)
    }

    /// The section header behind the program headers, in a file that counts these in it.
    #[must_use]
    pub fn section(&self) -> Option<Vec<u8>> {
        let class = class(self.kind.bits);
        self.extended().then(|| {
            let mut raw = vec![0; class.section_len as usize];
            self.kind.endian.put(&mut raw, class.sh_size, 1);
            self.kind.endian.put(&mut raw, class.sh_info, self.loads + 1);
            raw
        })
    }

    const fn extended(&self) -> bool {
        self.loads + 1 >= PN_XNUM
    }

    fn segment(&self, kind: u64, segment: &Segment) -> Vec<u8> {
        let class = class(self.kind.bits);
        let mut raw = vec![0; class.segment_len as usize];
        let fields = [
            (P_TYPE, kind),
            (class.p_flags, segment.flags.into()),
            (class.p_offset, segment.file_offset),
            (class.p_vaddr, segment.vaddr),
            (class.p_paddr, segment.paddr),
            (class.p_filesz, segment.file_size),
            (class.p_memsz, segment.mem_size),
            (class.p_align, segment.align),
        ];
        for (field, value) in fields {
            self.kind.endian.put(&mut raw, field, value);
        }
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ElfHeaders, PageSize};
    use proptest::prelude::*;

    /// A file of these headers, without pages.
    fn file(layout: &ElfLayout, segments: &[Segment], notes: &[u8], incomplete: bool) -> Vec<u8> {
        let mut bytes = layout.head(incomplete);
        assert_eq!(bytes.len() as u64, layout.loads_at);
        segments.iter().for_each(|s| bytes.extend(layout.load(s)));
        bytes.extend(layout.section().unwrap_or_default());
        assert!(bytes.len() as u64 <= layout.notes);
        bytes.resize(layout.notes as usize, 0);
        bytes.extend(notes);
        bytes.resize(layout.data as usize, 0);
        bytes
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            values in proptest::collection::vec(any::<[u64; 6]>(), 1..20), notes in proptest::collection::vec(1u8.., 1..40),
            machine: u16, flags: u32, wide: bool, big: bool, incomplete: bool,
        ) {
            let bits = if wide { Bits::B64 } else { Bits::B32 };
            let endian = if big { Endian::Big } else { Endian::Little };
            let limit = |v: u64| if wide { v } else { v & u64::from(u32::MAX) };
            let segments: Vec<Segment> = values.iter().map(|v| Segment {
                file_offset: limit(v[0]), vaddr: limit(v[1]), paddr: limit(v[2]), file_size: limit(v[3]), mem_size: limit(v[4]),
                flags: v[5] as u32, align: limit(v[5]),
            }).collect();
            let kind = ElfKind { bits, endian, machine, flags: flags & !ELF_INCOMPLETE };
            let layout = ElfLayout::new(kind, segments.len() as u64, notes.len() as u64, 0, PageSize::K4).unwrap();
            let read = ElfHeaders::read(&file(&layout, &segments, &notes, incomplete)).unwrap();
            prop_assert_eq!(read.segments, segments);
            prop_assert_eq!(&read.notes[..notes.len()], &notes[..]);
            prop_assert_eq!((read.bits, read.endian, read.machine), (bits, endian, machine));
            prop_assert_eq!(read.flags, kind.flags | u32::from(incomplete));
        }
    }

    #[test]
    fn more_than_65534_program_headers_are_counted_in_a_section_header() {
        for bits in [Bits::B64, Bits::B32] {
            let kind = ElfKind { bits, endian: Endian::Little, machine: 62, flags: 0 };
            for loads in [65533, 65534, 65535, 70_000] {
                let segments: Vec<Segment> =
                    (0..loads).map(|i| Segment { paddr: i << 12, mem_size: 4096, ..Segment::default() }).collect();
                let layout = ElfLayout::new(kind, loads, 4, 0, PageSize::K4).unwrap();
                assert_eq!(layout.section().is_some(), loads >= 65534, "{loads}");
                let read = ElfHeaders::read(&file(&layout, &segments, &[7; 4], false)).unwrap();
                assert_eq!((read.segments.len() as u64, read.notes), (loads, vec![7; 4]));
            }
        }
    }

    #[test]
    fn headers_are_added_as_long_as_there_is_room() {
        for (loads, most) in [(3, 3 + SPARE), (65_533, 65_533 + SPARE - 2), (70_000, 70_000 + SPARE)] {
            let kind = ElfKind { bits: Bits::B64, endian: Endian::Little, machine: 62, flags: 0 };
            let layout = ElfLayout::new(kind, loads, 4, 0, PageSize::K4).unwrap();
            let more = layout.with_loads(most).unwrap();
            assert_eq!((more.notes, more.data), (layout.notes, layout.data));
            assert!(layout.with_loads(most + 1).is_none() && layout.with_loads(u64::MAX).is_none(), "{loads}");
        }
    }

    #[test]
    fn a_file_too_long_for_its_class_is_refused() {
        let of = |bits, data| {
            let kind = ElfKind { bits, endian: Endian::Little, machine: 3, flags: 0 };
            ElfLayout::new(kind, 1, 0, data, PageSize::K4).is_some()
        };
        assert!(of(Bits::B32, (4 << 30) - 20_480) && !of(Bits::B32, 4 << 30));
        assert!(of(Bits::B64, 4 << 40) && !of(Bits::B64, u64::MAX));
    }
}
