//! The two headers of a kdump-compressed file, as tables of field places for every ABI, used to read and to write.
//!
//! The structs are C structs written by the program of the crashed machine's ABI; places are those of
//! `struct disk_dump_header` and `struct kdump_sub_header` as makedumpfile, QEMU, crash and libkdumpfile know them.

use crate::endian::{Bits, Endian, Field};

/// What a kdump-compressed file begins with.
pub const SIGNATURE: &[u8; 8] = b"KDUMP   ";
/// The newest header version there is.
pub const MAX_VERSION: u32 = 6;
/// `status` bit: the file ended early, for want of space or by a size limit.
pub const STATUS_INCOMPLETE: u32 = 0x08;
/// `status` bit: struct pages of excluded pages were left out.
pub const STATUS_EXCLUDED_VMEMMAP: u32 = 0x10;

/// How the C compiler of the crashed machine laid out a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abi {
    /// 64-bit `long`.
    Lp64,
    /// 32-bit `long`, 64-bit integers aligned to 4: i386, and every 32-bit file QEMU writes.
    Ilp32Packed,
    /// 32-bit `long`, 64-bit integers aligned to 8: ARM, MIPS, PowerPC.
    Ilp32Padded,
}

impl Abi {
    /// Width of a `long`.
    #[must_use]
    pub const fn bits(self) -> Bits {
        match self {
            Self::Lp64 => Bits::B64,
            Self::Ilp32Packed | Self::Ilp32Padded => Bits::B32,
        }
    }

    const fn column(self) -> usize {
        match self {
            Self::Lp64 => 0,
            Self::Ilp32Packed => 1,
            Self::Ilp32Padded => 2,
        }
    }
}

/// ABI and byte order: all it takes to find a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeaderLayout {
    /// Struct layout.
    pub abi: Abi,
    /// Byte order of every integer of the file.
    pub endian: Endian,
}

/// The main header, in block 0. Field names are those of `struct disk_dump_header`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 0 to [`MAX_VERSION`].
    pub header_version: u32,
    /// sysname, nodename, release, version, machine, domainname of the crashed kernel, each ended by a zero byte; all
    /// zero where the writer did not know.
    pub utsname: [[u8; 65]; 6],
    /// Seconds since 1970 of the crash.
    pub tv_sec: i64,
    /// Microseconds of the crash; 0 in practice.
    pub tv_usec: i64,
    /// Codec asked for, [`STATUS_INCOMPLETE`], [`STATUS_EXCLUDED_VMEMMAP`].
    pub status: u32,
    /// Page size of the crashed kernel in bytes, which is also the file's block size.
    pub block_size: u32,
    /// Blocks of sub header and notes.
    pub sub_hdr_size: u32,
    /// Blocks of both bitmaps together.
    pub bitmap_blocks: u32,
    /// One more than the highest page frame number, at most 0xffffffff; from version 6 on see
    /// [`SubHeader::max_mapnr_64`].
    pub max_mapnr: u32,
    /// 0; a relic of diskdump.
    pub total_ram_blocks: u32,
    /// 0; a relic of diskdump.
    pub device_blocks: u32,
    /// 0; a relic of diskdump.
    pub written_blocks: u32,
    /// 0; a relic of diskdump.
    pub current_cpu: u32,
    /// Number of CPUs that left their registers in the notes.
    pub nr_cpus: i32,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            header_version: MAX_VERSION,
            utsname: [[0; 65]; 6],
            tv_sec: 0,
            tv_usec: 0,
            status: 0,
            block_size: 0,
            sub_hdr_size: 0,
            bitmap_blocks: 0,
            max_mapnr: 0,
            total_ram_blocks: 0,
            device_blocks: 0,
            written_blocks: 0,
            current_cpu: 0,
            nr_cpus: 0,
        }
    }
}

/// The sub header, at the start of block 1. Field names are those of `struct kdump_sub_header`; a field younger than
/// the file's header version is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubHeader {
    /// x86-64: what the kernel text was moved by, modulo 2^64; arm64 and riscv64: first RAM address; else 0.
    pub phys_base: u64,
    /// Since version 1: the dump level (exclusion bits) the file was written with.
    pub dump_level: i32,
    /// Since version 2: 1 for a part of a split set.
    pub split: i32,
    /// Since version 2: first page of this part, cut to the width of a long.
    pub start_pfn: u64,
    /// Since version 2: one more than the last page of this part, cut to the width of a long.
    pub end_pfn: u64,
    /// Since version 3: file offset of the VMCOREINFO text.
    pub offset_vmcoreinfo: u64,
    /// Since version 3: length of the VMCOREINFO text in bytes.
    pub size_vmcoreinfo: u64,
    /// Since version 4: file offset of the ELF notes.
    pub offset_note: u64,
    /// Since version 4: length of the ELF notes in bytes.
    pub size_note: u64,
    /// Since version 5: file offset of the text that says what was erased.
    pub offset_eraseinfo: u64,
    /// Since version 5: length of that text in bytes.
    pub size_eraseinfo: u64,
    /// Since version 6: first page of this part.
    pub start_pfn_64: u64,
    /// Since version 6: one more than the last page of this part.
    pub end_pfn_64: u64,
    /// Since version 6: one more than the highest page frame number.
    pub max_mapnr_64: u64,
}

/// C type of a field, which gives its width.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// 4 bytes on every ABI.
    Int,
    /// 8 bytes on every ABI.
    Wide,
    /// As wide as a `long`, unsigned.
    Ulong,
    /// As wide as a `long`, signed: a `time_t`.
    Time,
}

/// A number of a header: since which version, where on 64, 32 packed, 32 padded, and which struct field it is.
struct Row<H> {
    name: &'static str,
    since: u32,
    kind: Kind,
    at: [usize; 3],
    get: fn(&H) -> u64,
    set: fn(&mut H, u64),
}

impl<H> Row<H> {
    fn field(&self, abi: Abi) -> Field {
        let size = match (self.kind, abi.bits()) {
            (Kind::Int, _) | (Kind::Ulong | Kind::Time, Bits::B32) => 4,
            (Kind::Wide, _) | (Kind::Ulong | Kind::Time, Bits::B64) => 8,
        };
        Field { at: self.at.get(abi.column()).copied().unwrap_or_default(), size }
    }
}

macro_rules! rows {
    ($($field:ident : $ty:ty, $since:literal, $kind:ident, [$($at:literal),+];)+) => {
        &[$(Row {
            name: stringify!($field),
            since: $since,
            kind: Kind::$kind,
            at: [$($at),+],
            get: |h| h.$field as u64,
            set: |h, v| h.$field = v as $ty,
        }),+]
    };
}

const HEADER: &[Row<Header>] = rows! {
    header_version: u32, 0, Int, [8, 8, 8];
    tv_sec: i64, 0, Time, [408, 404, 404];
    tv_usec: i64, 0, Time, [416, 408, 408];
    status: u32, 0, Int, [424, 412, 412];
    block_size: u32, 0, Int, [428, 416, 416];
    sub_hdr_size: u32, 0, Int, [432, 420, 420];
    bitmap_blocks: u32, 0, Int, [436, 424, 424];
    max_mapnr: u32, 0, Int, [440, 428, 428];
    total_ram_blocks: u32, 0, Int, [444, 432, 432];
    device_blocks: u32, 0, Int, [448, 436, 436];
    written_blocks: u32, 0, Int, [452, 440, 440];
    current_cpu: u32, 0, Int, [456, 444, 444];
    nr_cpus: i32, 0, Int, [460, 448, 448];
};

const SUB_HEADER: &[Row<SubHeader>] = rows! {
    phys_base: u64, 0, Ulong, [0, 0, 0];
    dump_level: i32, 1, Int, [8, 4, 4];
    split: i32, 2, Int, [12, 8, 8];
    start_pfn: u64, 2, Ulong, [16, 12, 12];
    end_pfn: u64, 2, Ulong, [24, 16, 16];
    offset_vmcoreinfo: u64, 3, Wide, [32, 20, 24];
    size_vmcoreinfo: u64, 3, Ulong, [40, 28, 32];
    offset_note: u64, 4, Wide, [48, 32, 40];
    size_note: u64, 4, Ulong, [56, 40, 48];
    offset_eraseinfo: u64, 5, Wide, [64, 44, 56];
    size_eraseinfo: u64, 5, Ulong, [72, 52, 64];
    start_pfn_64: u64, 6, Wide, [80, 56, 72];
    end_pfn_64: u64, 6, Wide, [88, 64, 80];
    max_mapnr_64: u64, 6, Wide, [96, 72, 88];
};

/// Where the six utsname fields begin, and how long each is.
const UTSNAME: usize = 12;
const UTS_LEN: usize = 65;

impl Header {
    /// Bytes of the main header: 464 or 452.
    #[must_use]
    pub const fn size(abi: Abi) -> usize {
        match abi.bits() {
            Bits::B64 => 464,
            Bits::B32 => 452,
        }
    }

    /// Reads a header; `None` where `raw` is shorter than one. The signature is not looked at.
    #[must_use]
    pub fn decode(raw: &[u8], layout: HeaderLayout) -> Option<Self> {
        let raw = raw.get(..Self::size(layout.abi))?;
        let mut header = Self::default();
        for row in HEADER {
            let field = row.field(layout.abi);
            (row.set)(&mut header, widen(row.kind, field, layout.endian.get(raw, field)?));
        }
        for (name, from) in header.utsname.iter_mut().zip(raw.get(UTSNAME..)?.chunks_exact(UTS_LEN)) {
            name.copy_from_slice(from);
        }
        Some(header)
    }

    /// The header as it is in the file, signature included.
    #[must_use]
    pub fn encode(&self, layout: HeaderLayout) -> Vec<u8> {
        let mut raw = vec![0; Self::size(layout.abi)];
        for row in HEADER {
            layout.endian.put(&mut raw, row.field(layout.abi), (row.get)(self));
        }
        for (byte, signature) in raw.iter_mut().zip(SIGNATURE) {
            *byte = *signature;
        }
        for (byte, name) in raw.iter_mut().skip(UTSNAME).zip(self.utsname.as_flattened()) {
            *byte = *name;
        }
        raw
    }

    /// ABI and byte order of a main header, as its values tell them.
    #[must_use]
    pub fn layout_of(raw: &[u8]) -> HeaderLayout {
        super::detect::main_header(raw)
    }

    /// The place of a field by its name.
    pub(super) fn field(name: &str, abi: Abi) -> Option<Field> {
        HEADER.iter().find(|row| row.name == name).map(|row| row.field(abi))
    }

    /// File offset of a field by its name, for messages.
    #[must_use]
    pub fn offset_of(name: &str, abi: Abi) -> u64 {
        Self::field(name, abi).map_or(0, |field| field.at as u64)
    }

    /// The text of a utsname field up to its zero byte.
    fn uts(&self, index: usize) -> &[u8] {
        self.utsname.get(index).and_then(|f| f.split(|b| *b == 0).next()).unwrap_or_default()
    }

    /// The machine's name as `uname -m` gives it; empty where unknown.
    #[must_use]
    pub fn machine(&self) -> &[u8] {
        self.uts(4)
    }

    /// The kernel release as `uname -r` gives it; empty where unknown.
    #[must_use]
    pub fn release(&self) -> &[u8] {
        self.uts(2)
    }
}

impl SubHeader {
    /// Bytes of the sub header of a version: 104, 80 or 96 for version 6.
    #[must_use]
    pub fn size(version: u32, abi: Abi) -> usize {
        let rows = SUB_HEADER.iter().filter(|r| r.since <= version);
        let align = match abi {
            // A version below 3 has no 64-bit integer on a 32-bit machine, so nothing is aligned to 8 there.
            Abi::Ilp32Padded if version >= 3 => 8,
            Abi::Ilp32Packed | Abi::Ilp32Padded => 4,
            Abi::Lp64 => 8,
        };
        rows.map(|r| r.field(abi).at + r.field(abi).size).max().unwrap_or(0).next_multiple_of(align)
    }

    /// Reads the fields a file of `version` has; `None` where `raw` ends before the last of them.
    #[must_use]
    pub fn decode(raw: &[u8], version: u32, layout: HeaderLayout) -> Option<Self> {
        let mut sub = Self::default();
        for row in SUB_HEADER.iter().filter(|r| r.since <= version) {
            let field = row.field(layout.abi);
            (row.set)(&mut sub, widen(row.kind, field, layout.endian.get(raw, field)?));
        }
        Some(sub)
    }

    /// The sub header as it is in a file of `version`.
    #[must_use]
    pub fn encode(&self, version: u32, layout: HeaderLayout) -> Vec<u8> {
        let mut raw = vec![0; Self::size(version, layout.abi)];
        for row in SUB_HEADER.iter().filter(|r| r.since <= version) {
            layout.endian.put(&mut raw, row.field(layout.abi), (row.get)(self));
        }
        raw
    }

    /// The place of a field in the sub header by its name.
    pub(super) fn field(name: &str, abi: Abi) -> Option<Field> {
        SUB_HEADER.iter().find(|row| row.name == name).map(|row| row.field(abi))
    }

    /// Offset of a field in the sub header by its name, for messages.
    #[must_use]
    pub fn offset_of(name: &str, abi: Abi) -> u64 {
        Self::field(name, abi).map_or(0, |field| field.at as u64)
    }
}

/// Extends the sign of a 4-byte `int` or `time_t`; a struct field that is unsigned cuts it off again.
fn widen(kind: Kind, field: Field, value: u64) -> u64 {
    let signed = matches!(kind, Kind::Int | Kind::Time) && field.size == 4;
    if signed { value as u32 as i32 as u64 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ABIS: [Abi; 3] = [Abi::Lp64, Abi::Ilp32Packed, Abi::Ilp32Padded];

    fn layouts() -> impl Iterator<Item = HeaderLayout> {
        ABIS.into_iter().flat_map(|abi| [Endian::Little, Endian::Big].map(|endian| HeaderLayout { abi, endian }))
    }

    #[test]
    fn sizes_are_those_of_the_structs_of_every_version() {
        let by_version = |abi| (0..=6).map(|v| SubHeader::size(v, abi)).collect::<Vec<_>>();
        assert_eq!(by_version(Abi::Lp64), [8, 16, 32, 48, 64, 80, 104]);
        assert_eq!(by_version(Abi::Ilp32Packed), [4, 8, 20, 32, 44, 56, 80]);
        assert_eq!(by_version(Abi::Ilp32Padded), [4, 8, 20, 40, 56, 72, 96]);
    }

    /// What gcc makes of the struct: fields in declared order, each aligned to its own size (or to 4 where packed).
    #[test]
    fn places_are_those_a_compiler_gives() {
        for abi in ABIS {
            let mut at = 0;
            for row in SUB_HEADER {
                let field = row.field(abi);
                let align = if abi == Abi::Ilp32Packed { 4 } else { field.size };
                at = usize::next_multiple_of(at, align);
                assert_eq!(field.at, at, "{} on {abi:?}", row.name);
                at += field.size;
            }
            let mut at = 402;
            for row in HEADER.iter().skip(1) {
                let field = row.field(abi);
                at = usize::next_multiple_of(at, field.size);
                assert_eq!(field.at, at, "{} on {abi:?}", row.name);
                at += field.size;
            }
            assert_eq!(at, Header::size(abi));
        }
    }

    #[test]
    fn a_negative_time_survives_on_every_machine() {
        for layout in layouts() {
            let header = Header { tv_sec: -5, nr_cpus: -1, ..Header::default() };
            assert_eq!(Header::decode(&header.encode(layout), layout).unwrap(), header, "{layout:?}");
        }
    }

    proptest! {
        #[test]
        fn headers_survive_the_round_trip(words: [u32; 10], time in 0i64..i64::from(i32::MAX), name: u8, version in 0u32..=6, longs: [u32; 12]) {
            for layout in layouts() {
                let header = Header {
                    header_version: version,
                    utsname: std::array::from_fn(|i| [name.wrapping_add(i as u8); 65]),
                    tv_sec: time,
                    tv_usec: 7,
                    status: words[0],
                    block_size: words[1],
                    sub_hdr_size: words[2],
                    bitmap_blocks: words[3],
                    max_mapnr: words[4],
                    total_ram_blocks: words[5],
                    device_blocks: words[6],
                    written_blocks: words[7],
                    current_cpu: words[8],
                    nr_cpus: words[9] as i32,
                };
                let raw = header.encode(layout);
                prop_assert_eq!(&raw[..8], b"KDUMP   ");
                prop_assert_eq!(Header::decode(&raw, layout).unwrap(), header);
                prop_assert_eq!(Header::decode(&raw[..raw.len() - 1], layout), None);
                let mut sub = SubHeader::default();
                for (row, value) in SUB_HEADER.iter().filter(|r| r.since <= version).zip(longs) {
                    (row.set)(&mut sub, widen(row.kind, row.field(layout.abi), value.into()));
                }
                let raw = sub.encode(version, layout);
                prop_assert_eq!(SubHeader::decode(&raw, version, layout).unwrap(), sub);
            }
        }
    }
}
