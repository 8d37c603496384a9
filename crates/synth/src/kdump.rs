//! kdump-compressed files of every header version, ABI and byte order.

use crate::PAGE;
use crate::elf::{Note, Order};
use crate::image::Image;
use crate::sparse::SparseFile;
use crate::zlib::zlib;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Page flag and status bit: zlib.
pub const ZLIB: u32 = 1;
/// Page flag and status bit: LZO1X.
pub const LZO: u32 = 2;
/// Page flag and status bit: snappy.
pub const SNAPPY: u32 = 4;
/// Status bit: the file ended early.
pub const INCOMPLETE: u32 = 8;
/// Page flag and status bit: zstd.
pub const ZSTD: u32 = 0x20;

/// Widths and alignment of the machine that wrote the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// 64-bit longs.
    Lp64,
    /// 32-bit longs, 64-bit members aligned to 4: i386, and all 32-bit files of QEMU.
    Ilp32Pack,
    /// 32-bit longs, 64-bit members aligned to 8: ARM, MIPS, PowerPC.
    Ilp32Pad,
}

/// Where the fields of the main header are, for 64-bit and 32-bit longs: seconds, microseconds, then `status` and what follows.
const HEADER: [(u64, u64, u64); 2] = [(408, 416, 424), (404, 408, 412)];

/// Sub header: since which version, bytes (0 means a long), offsets in the three ABIs.
#[rustfmt::skip]
const SUB: [(i32, usize, [u64; 3]); 14] = [
    (0, 0, [0, 0, 0]),    // phys_base
    (1, 4, [8, 4, 4]),    // dump_level
    (2, 4, [12, 8, 8]),   // split
    (2, 0, [16, 12, 12]), // start_pfn
    (2, 0, [24, 16, 16]), // end_pfn
    (3, 8, [32, 20, 24]), // offset_vmcoreinfo
    (3, 0, [40, 28, 32]), // size_vmcoreinfo
    (4, 8, [48, 32, 40]), // offset_note
    (4, 0, [56, 40, 48]), // size_note
    (5, 8, [64, 44, 56]), // offset_eraseinfo
    (5, 0, [72, 52, 64]), // size_eraseinfo
    (6, 8, [80, 56, 72]), // start_pfn_64
    (6, 8, [88, 64, 80]), // end_pfn_64
    (6, 8, [96, 72, 88]), // max_mapnr_64
];
/// Size of the sub header.
const SUB_SIZE: [u64; 3] = [104, 80, 96];

/// A kdump-compressed file before it is written. Change any field, then ask for [`Kdump::bytes`].
#[derive(Clone, Debug)]
pub struct Kdump<'a> {
    image: &'a Image,
    /// `header_version`, 0 to 6.
    pub version: i32,
    /// Widths and alignment.
    pub abi: Abi,
    /// Byte order.
    pub order: Order,
    /// `dump_level`. Bit 0 makes zero pages share one.
    pub level: i32,
    /// Status flags.
    pub status: u32,
    /// Codec tried on each page: [`ZLIB`], or 0 for none. Pages that do not shrink are stored as they are.
    pub codec: u32,
    /// Page frames that exist.
    pub ram: BTreeSet<u64>,
    /// Page frames stored.
    pub stored: BTreeSet<u64>,
    /// Pages given as bytes with their flag, instead of what the image holds.
    pub given: BTreeMap<u64, (u32, Vec<u8>)>,
    /// Pages whose descriptor was never written.
    pub lost: BTreeSet<u64>,
    /// The notes (from version 4; version 3 has the VMCOREINFO text alone).
    pub notes: Vec<Note>,
    /// Text of erased items (from version 5).
    pub eraseinfo: String,
    /// A part of a split set: the page frames it holds.
    pub part: Option<Range<u64>>,
    /// Page data from the last page to the first: descriptors may point anywhere.
    pub backwards: bool,
    /// `max_mapnr`.
    pub max_mapnr: u64,
}

impl<'a> Kdump<'a> {
    /// A version 6 file with every page, zlib where it helps.
    pub(crate) fn of(image: &'a Image) -> Self {
        let ram: BTreeSet<u64> = image.ram().iter().cloned().flatten().collect();
        let mut notes: Vec<Note> = (0..image.cpus).map(|cpu| Note::saved(cpu, &image.symbols)).collect();
        notes.push(Note::vmcoreinfo(&image.vmcoreinfo));
        Self {
            image,
            version: 6,
            abi: Abi::Lp64,
            order: Order::Little,
            level: 0,
            status: ZLIB,
            codec: ZLIB,
            stored: ram.clone(),
            ram,
            given: BTreeMap::new(),
            lost: BTreeSet::new(),
            notes,
            eraseinfo: String::new(),
            part: None,
            backwards: false,
            max_mapnr: image.ram().last().map_or(0, |r| r.end),
        }
    }

    /// Leaves out the pages of these classes, and says so with a level.
    #[must_use]
    pub fn without(mut self, level: i32, classes: &[&str]) -> Self {
        self.level = level;
        self.stored.retain(|pfn| !classes.contains(&self.image.truth.class(*pfn)));
        self
    }

    /// Gives the stored form of a page.
    #[must_use]
    pub fn given(mut self, pfn: u64, flags: u32, bytes: impl Into<Vec<u8>>) -> Self {
        self.given.insert(pfn, (flags, bytes.into()));
        self
    }

    /// The file in memory.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.file().bytes()
    }

    /// The file, with holes: bitmaps of a machine whose page frames are far apart are large.
    #[must_use]
    pub fn file(&self) -> SparseFile {
        let abi = self.abi as usize;
        let sub_size = SUB_SIZE[abi];
        let notes: Vec<Vec<u8>> = self.notes.iter().map(|n| n.bytes(self.order)).collect();
        let text = self.notes.iter().position(|n| n.name == "VMCOREINFO");
        // Notes as a whole from version 4; in version 3 the text alone.
        let (tail, text_at) = match (self.version, text) {
            (4.., Some(i)) => {
                (notes.concat(), notes[..i].concat().len() + 12 + "VMCOREINFO\0".len().next_multiple_of(4))
            }
            (4.., None) => (notes.concat(), 0),
            (3, Some(i)) => (self.notes[i].desc.clone(), 0),
            _ => (Vec::new(), 0),
        };
        let text_len = text.map_or(0, |i| self.notes[i].desc.len());
        let sub_blocks = (sub_size + tail.len() as u64).div_ceil(PAGE);
        let bitmap = self.max_mapnr.div_ceil(8).next_multiple_of(PAGE);
        let first_bitmap = PAGE * (1 + sub_blocks);
        let descriptors = first_bitmap + 2 * bitmap;
        let mut out = SparseFile::default();
        out.put(PAGE + sub_size, &tail);
        for (at, set) in [(first_bitmap, &self.ram), (first_bitmap + bitmap, &self.stored)] {
            for pfn in set.iter().filter(|pfn| **pfn < self.max_mapnr) {
                out.set_bits(at + pfn / 8, 1 << (pfn % 8));
            }
        }
        out.extend_to(descriptors + 24 * self.stored.len() as u64);

        self.pages(&mut out, descriptors);
        let erase_at = out.len();
        if self.version >= 5 {
            out.put(erase_at, self.eraseinfo.as_bytes());
        }
        self.header(&mut out, sub_blocks, 2 * bitmap / PAGE);

        let part = self.part.clone().unwrap_or(0..0);
        let note_at = PAGE + sub_size;
        let has_text = text.is_some() && self.version >= 3;
        let has_erase = !self.eraseinfo.is_empty();
        let values = [
            self.image.phys_base as u64,
            self.level as u64,
            self.part.is_some().into(),
            part.start,
            part.end,
            if has_text { note_at + text_at as u64 } else { 0 },
            if has_text { text_len as u64 } else { 0 },
            note_at,
            tail.len() as u64,
            if has_erase { erase_at } else { 0 },
            self.eraseinfo.len() as u64,
            part.start,
            part.end,
            self.max_mapnr,
        ];
        for ((since, size, offsets), value) in SUB.iter().zip(values) {
            if self.version >= *since {
                let size = if *size == 0 { self.long() } else { *size };
                self.put(&mut out, PAGE + offsets[abi], size, value);
            }
        }
        out
    }

    /// Descriptors and page data.
    fn pages(&self, out: &mut SparseFile, descriptors: u64) {
        let mut zero_page = None;
        if self.level & 1 != 0 {
            zero_page = Some(out.len());
            out.extend_to(out.len() + PAGE);
        }
        let here = |pfn: &u64| self.part.as_ref().is_none_or(|p| p.contains(pfn));
        let mut pages: Vec<(u64, u64)> = (0..).zip(self.stored.iter().copied().filter(here)).collect();
        if self.backwards {
            pages.reverse();
        }
        for (index, pfn) in pages {
            if self.lost.contains(&pfn) {
                continue;
            }
            let raw = self.image.page(pfn);
            let zero = raw.iter().all(|b| *b == 0);
            let at = out.len();
            let (offset, flags, bytes) = match (self.given.get(&pfn), zero_page) {
                (Some((flags, bytes)), _) => (at, *flags, bytes.clone()),
                (None, Some(shared)) if zero => (shared, 0, raw.to_vec()),
                (None, _) if self.codec == ZLIB => match zlib(&raw) {
                    small if small.len() < raw.len() => (at, ZLIB, small),
                    _ => (at, 0, raw.to_vec()),
                },
                (None, _) => (at, 0, raw.to_vec()),
            };
            out.put(offset, &bytes);
            let descriptor = descriptors + 24 * index;
            self.put(out, descriptor, 8, offset);
            self.put(out, descriptor + 8, 4, bytes.len() as u64);
            self.put(out, descriptor + 12, 4, flags.into());
        }
    }

    fn header(&self, out: &mut SparseFile, sub_blocks: u64, bitmap_blocks: u64) {
        let (sec, usec, rest) = HEADER[usize::from(self.abi != Abi::Lp64)];
        out.put(0, b"KDUMP   ");
        self.put(out, 8, 4, self.version as u64);
        let machine = match (self.abi, self.order) {
            (Abi::Lp64, Order::Little) => "x86_64",
            (Abi::Lp64, Order::Big) => "s390x",
            (Abi::Ilp32Pack, Order::Little) => "i686",
            (Abi::Ilp32Pack, Order::Big) => "ppc",
            (Abi::Ilp32Pad, _) => "mips",
        };
        let uts = ["Linux", "synth", self.image.layout.release, "#1 SMP", machine, "(none)"];
        for (at, text) in (12..).step_by(65).zip(uts) {
            out.put(at, text.as_bytes());
        }
        self.put(out, sec, self.long(), 1_700_000_000);
        self.put(out, usec, self.long(), 0);
        let cpus = self.notes.iter().filter(|n| n.name == "CORE").count() as u64;
        let saturated = self.max_mapnr.min(u32::MAX.into());
        // status, block_size, sub_hdr_size, bitmap_blocks, max_mapnr, four unused, nr_cpus
        let words = [self.status.into(), PAGE, sub_blocks, bitmap_blocks, saturated, 0, 0, 0, 0, cpus];
        for (at, word) in (rest..).step_by(4).zip(words) {
            self.put(out, at, 4, word);
        }
    }

    fn long(&self) -> usize {
        if self.abi == Abi::Lp64 { 8 } else { 4 }
    }

    /// Writes the low `size` bytes of a value in the file's byte order.
    fn put(&self, out: &mut SparseFile, at: u64, size: usize, value: u64) {
        match self.order {
            Order::Little => out.put(at, &value.to_le_bytes()[..size]),
            Order::Big => out.put(at, &value.to_be_bytes()[8 - size..]),
        }
    }
}
