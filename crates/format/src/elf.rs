//! ELF cores: /proc/vmcore, /proc/kcore, QEMU's `dump-guest-memory`, makedumpfile's `-E`.
//!
//! Every program header is looked at once, in file order; [`crate::ElfCore`] serves memory from the result.

use crate::bytes::{Bytes, read_exact, read_some};
use crate::elf_class::{
    Class, E_MACHINE, E_TYPE, ELF32, ELF64, ET_CORE, P_TYPE, PN_XNUM, PT_LOAD, PT_NOTE, PT_OF_OTHERS,
};
use crate::endian::{Bits, Endian};
use crate::error::FETCH_AGAIN;
use crate::{FormatError, Result};
use std::ops::Range;

/// A PT_LOAD program header; addresses and sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Where its data begin in the file.
    pub file_offset: u64,
    /// Virtual address of its first byte.
    pub vaddr: u64,
    /// Physical address of its first byte; all ones where it has none ([`Self::has_paddr`]).
    pub paddr: u64,
    /// Bytes it has in the file.
    pub file_size: u64,
    /// Bytes it spans in memory.
    pub mem_size: u64,
    /// PF_X, PF_W, PF_R.
    pub flags: u32,
    /// Alignment asked for.
    pub align: u64,
}

impl Segment {
    /// Whether the segment stands for physical memory: /proc/kcore gives vmalloc and modules an address of all ones.
    #[must_use]
    pub const fn has_paddr(&self, bits: Bits) -> bool {
        match bits {
            Bits::B32 => self.paddr != u32::MAX as u64,
            Bits::B64 => self.paddr != u64::MAX,
        }
    }
}

/// What the headers of an ELF core say.
#[derive(Debug)]
pub struct ElfHeaders {
    /// Class of the file.
    pub bits: Bits,
    /// Byte order of the file.
    pub endian: Endian,
    /// `e_machine`.
    pub machine: u16,
    /// `e_flags`; one bit is [`crate::ELF_INCOMPLETE`].
    pub flags: u32,
    /// Where the program headers are in the file.
    pub table: Range<u64>,
    /// Bytes of one of them, `e_phentsize`.
    pub entry: u64,
    /// The PT_LOADs in file order.
    pub segments: Vec<Segment>,
    /// The data of all PT_NOTEs, one behind the other, each padded to 4 bytes.
    pub notes: Vec<u8>,
    /// Parts that could not be used, though the rest can.
    pub problems: Vec<FormatError>,
}

/// A program header of a `kind` that no core has, at offset `at`; it is taken for memory where it has addresses.
fn no_type(file: &str, at: u64, kind: u64, memory: bool) -> FormatError {
    let taken = if memory { "this one is taken for memory" } else { "what this one is of is lost" };
    FormatError::BadField {
        file: file.to_owned(),
        field: "p_type",
        offset: at,
        value: kind.to_string(),
        rule: format!("a core has program headers of memory ({PT_LOAD}) and notes ({PT_NOTE}); {taken}"),
        next: FETCH_AGAIN,
    }
}

/// A table of a million bad PT_NOTEs is worth no more messages than this.
const MAX_PROBLEMS: usize = 16;
/// How often the headers of a live machine are read before what they say is taken as it is.
const MAX_REREADS: usize = 8;
/// Section names are looked for in this much of their table.
const NAMES_READ: u64 = 64 << 10;

impl ElfHeaders {
    /// Reads all headers and notes of an ELF core.
    ///
    /// # Errors
    /// A field that no core has, or headers beyond the end of the file.
    pub fn read(bytes: &dyn Bytes) -> Result<Self> {
        if !bytes.is_memory() {
            return Self::read_once(bytes);
        }
        // /proc/kcore makes its headers anew for each read; memory that is added or taken away meanwhile moves the file offsets of all.
        // (The notes differ each time: the task that reads is in them.)
        let mut before = Self::read_once(bytes);
        for _ in 0..MAX_REREADS {
            let again = Self::read_once(bytes);
            match (&before, &again) {
                (Ok(one), Ok(other)) if one.segments == other.segments => return before,
                (Err(one), Err(other)) if one.to_string() == other.to_string() => return before,
                _ => before = again,
            }
        }
        let mut headers = before?;
        headers.problems.push(FormatError::BadField {
            file: bytes.name().to_owned(),
            field: "program headers",
            offset: 0,
            value: format!("other ones each of {MAX_REREADS} times they were read"),
            rule: "they stay what they are while they are read".to_owned(),
            next: "memory is being added or taken away: try again when that is over",
        });
        Ok(headers)
    }

    fn read_once(bytes: &dyn Bytes) -> Result<Self> {
        let ident = read_exact(bytes, "ELF identification", 0, 16)?;
        let bad = |field, at: u64, value: u64, rule: &str| FormatError::BadField {
            file: bytes.name().to_owned(),
            field,
            offset: at,
            value: value.to_string(),
            rule: rule.to_owned(),
            next: FETCH_AGAIN,
        };
        let at = |i: usize| ident.get(i).copied().unwrap_or_default();
        let class = match at(4) {
            1 => &ELF32,
            2 => &ELF64,
            v => return Err(bad("e_ident[EI_CLASS]", 4, v.into(), "only 1 (32-bit) and 2 (64-bit) exist")),
        };
        let endian = match at(5) {
            1 => Endian::Little,
            2 => Endian::Big,
            v => return Err(bad("e_ident[EI_DATA]", 5, v.into(), "only 1 (little) and 2 (big endian) exist")),
        };
        let header = read_exact(bytes, "ELF header", 0, class.header_len)?;
        let get = |field| endian.get(&header, field).unwrap_or_default();
        if get(E_TYPE) != ET_CORE {
            return Err(FormatError::OtherFormat {
                file: bytes.name().to_owned(),
                found: match get(E_TYPE) {
                    2 | 3 => "an ELF program (perhaps a vmlinux), not a core",
                    _ => "an ELF file, but not a core",
                },
                offset: E_TYPE.at as u64,
                next: "give the vmcore here, and a vmlinux with -x",
            });
        }
        let count = header_count(bytes, class, endian, &header)?;
        if count == 0 {
            return Err(no_segments(bytes, class, endian, &header));
        }
        let entry = get(class.phentsize);
        if entry < class.segment_len {
            let rule = format!("a program header has {} bytes", class.segment_len);
            return Err(bad("e_phentsize", class.phentsize.at as u64, entry, &rule));
        }
        let mut headers = Self {
            bits: class.bits,
            endian,
            machine: get(E_MACHINE) as u16,
            flags: get(class.flags) as u32,
            table: 0..0,
            entry,
            segments: Vec::new(),
            notes: Vec::new(),
            problems: Vec::new(),
        };
        headers.read_table(bytes, class, get(class.phoff), entry, count)?;
        if headers.segments.is_empty() {
            return Err(no_segments(bytes, class, endian, &header));
        }
        Ok(headers)
    }

    fn read_table(&mut self, bytes: &dyn Bytes, class: &Class, start: u64, entry: u64, count: u64) -> Result<()> {
        // Read in pieces, so that headers wider than they need be take no memory.
        let per_read = (64 << 10) / entry.max(1);
        let end = entry.checked_mul(count).and_then(|n| n.checked_add(start)).unwrap_or(u64::MAX);
        // Most of a flattened stream's file can be a hole, and the table would be read for hours.
        if end > bytes.len() || end - start > bytes.backed() {
            return Err(FormatError::CutShort {
                file: bytes.name().to_owned(),
                what: "program headers (e_phoff, e_phnum)",
                offset: start,
                end,
                len: bytes.len().min(bytes.backed()),
            });
        }
        self.table = start..end;
        let mut notes = Vec::new();
        let mut index = 0;
        while index < count {
            let at = start + index * entry;
            let hole = (bytes.next_data(at) - at) / entry.max(1);
            if hole > 0 {
                // Headers of zeros are of no use (PT_NULL).
                index = index.saturating_add(hole);
                continue;
            }
            let n = per_read.max(1).min(count - index);
            let table = read_exact(bytes, "program headers", at, n * entry)?;
            for (raw, raw_at) in table.chunks_exact(entry as usize).zip((at..).step_by(entry as usize)) {
                let get = |field| self.endian.get(raw, field).unwrap_or_default();
                let segment = || Segment {
                    file_offset: get(class.p_offset),
                    vaddr: get(class.p_vaddr),
                    paddr: get(class.p_paddr),
                    file_size: get(class.p_filesz),
                    mem_size: get(class.p_memsz),
                    flags: get(class.p_flags) as u32,
                    align: get(class.p_align),
                };
                match get(P_TYPE) {
                    PT_LOAD => self.segments.push(segment()),
                    PT_NOTE => notes.push((get(class.p_offset), get(class.p_filesz))),
                    // No writer of a file makes any other; /proc/kcore may change while it is read.
                    kind if get(class.p_filesz) > 0 && !PT_OF_OTHERS.contains(&kind) && !bytes.is_memory() => {
                        // Notes have no address.
                        let memory = segment().vaddr != 0 && segment().mem_size >= segment().file_size;
                        self.segments.extend(memory.then(segment));
                        self.tell(no_type(bytes.name(), raw_at, kind, memory));
                    }
                    _ => {}
                }
            }
            index += n;
        }
        let mut data: Vec<u64> = self.segments.iter().filter(|s| s.file_size > 0).map(|s| s.file_offset).collect();
        data.sort_unstable();
        for (offset, len) in notes {
            let room = data.get(data.partition_point(|start| *start <= offset)).map_or(u64::MAX, |next| next - offset);
            if len > room {
                self.tell(FormatError::BadField {
                    file: bytes.name().to_owned(),
                    field: "p_filesz of PT_NOTE",
                    offset,
                    value: len.to_string(),
                    rule: format!(
                        "the data of a segment begin {room} bytes behind the notes; what is there is no note"
                    ),
                    next: FETCH_AGAIN,
                });
            }
            // Without some notes there are still the pages.
            if let Err(problem) = self.read_notes(bytes, offset, len.min(room)) {
                self.tell(problem);
            }
        }
        Ok(())
    }

    fn tell(&mut self, problem: FormatError) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// Adds the data of a PT_NOTE. All of them together are at most as long as the file, however often it is pointed at.
    fn read_notes(&mut self, bytes: &dyn Bytes, offset: u64, len: u64) -> Result<()> {
        let room = bytes.backed().saturating_sub(self.notes.len() as u64);
        let notes = read_some(bytes, "ELF notes", offset, len.min(room))?;
        if (notes.len() as u64) < len {
            self.tell(FormatError::CutShort {
                file: bytes.name().to_owned(),
                what: "ELF notes (p_offset, p_filesz of PT_NOTE)",
                offset,
                end: offset.saturating_add(len),
                len: bytes.len(),
            });
        }
        self.notes.extend(notes);
        self.notes.resize(self.notes.len().next_multiple_of(4), 0);
        Ok(())
    }
}

/// The number of program headers, by `e_phnum` or, where it says so, by `sh_info` of the first section header.
fn header_count(bytes: &dyn Bytes, class: &Class, endian: Endian, header: &[u8]) -> Result<u64> {
    let get = |field| endian.get(header, field).unwrap_or_default();
    let (count, shoff) = (get(class.phnum), get(class.shoff));
    if count != PN_XNUM || shoff == 0 {
        return Ok(count);
    }
    let section =
        read_exact(bytes, "first section header (e_shoff), which counts the segments", shoff, class.section_len)?;
    Ok(match endian.get(&section, class.sh_info).unwrap_or_default() {
        0 => PN_XNUM,
        n => n,
    })
}

/// Why a core has no PT_LOAD: Xen's toolstack puts the memory of a guest into sections.
fn no_segments(bytes: &dyn Bytes, class: &Class, endian: Endian, header: &[u8]) -> FormatError {
    let get = |field| endian.get(header, field).unwrap_or_default();
    let names = || -> Option<Vec<u8>> {
        let at = get(class.shoff).checked_add(get(class.shstrndx).checked_mul(get(class.shentsize))?)?;
        let section = read_exact(bytes, "section header", at, class.section_len).ok()?;
        let (offset, len) = (endian.get(&section, class.sh_offset)?, endian.get(&section, class.sh_size)?);
        read_some(bytes, "section names", offset, len.min(NAMES_READ)).ok()
    };
    let xen = get(class.shnum) > 0 && names().is_some_and(|n| n.windows(11).any(|w| w == b".xen_pages\0"));
    let file = bytes.name().to_owned();
    if xen {
        FormatError::OtherFormat {
            file,
            found: "a Xen guest dump made by `xl dump-core`, with the memory in sections",
            offset: class.shoff.at as u64,
            next: "it cannot be filtered; open it in crash as it is",
        }
    } else {
        FormatError::BadField {
            file,
            field: "number of PT_LOAD program headers",
            offset: class.phnum.at as u64,
            value: "0".to_owned(),
            rule: "memory is in PT_LOAD segments".to_owned(),
            next: FETCH_AGAIN,
        }
    }
}
