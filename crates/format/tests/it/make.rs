//! Writers of dumps that share no layout with the readers: fields are pushed in the order the C structs declare them.

use coresift_format::codec::{Codec, Compression, Compressor};
use coresift_format::kdump::Abi;
use coresift_format::{Bits, Bytes, Endian, PageSize, Window};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// A record in the making.
pub struct Record {
    pub raw: Vec<u8>,
    pub endian: Endian,
}

impl Record {
    pub fn new(endian: Endian) -> Self {
        Self { raw: Vec::new(), endian }
    }

    pub fn push(&mut self, size: usize, value: u64) {
        match self.endian {
            Endian::Little => self.raw.extend(&value.to_le_bytes()[..size]),
            Endian::Big => self.raw.extend(&value.to_be_bytes()[8 - size..]),
        }
    }

    pub fn align(&mut self, to: usize) {
        self.raw.resize(self.raw.len().next_multiple_of(to), 0);
    }
}

pub fn note(endian: Endian, name: &[u8], kind: u64, desc: &[u8]) -> Vec<u8> {
    let mut r = Record::new(endian);
    r.push(4, name.len() as u64 + 1);
    r.push(4, desc.len() as u64);
    r.push(4, kind);
    r.raw.extend(name);
    r.raw.push(0);
    r.align(4);
    r.raw.extend(desc);
    r.align(4);
    r.raw
}

/// Notes of two CPUs and a VMCOREINFO, with a hole before each.
pub fn notes(endian: Endian, text: &[u8]) -> Vec<u8> {
    let hole = vec![0; 20];
    let cpu = |n| note(endian, b"CORE", 1, &[n; 336]);
    [cpu(1), hole.clone(), cpu(2), hole, note(endian, b"VMCOREINFO", 0, text)].concat()
}

/// A page whose bytes tell which it is; compressible.
pub fn page_of(pfn: u64, size: usize) -> Vec<u8> {
    (0..size).map(|i| if i % 8 < 5 { pfn as u8 } else { (i as u64 / 64 * (pfn + 1)) as u8 }).collect()
}

#[derive(Clone)]
pub struct Load {
    pub paddr: u64,
    pub mem_size: u64,
    pub data: Vec<u8>,
    /// What the header says of the data, where that is not the truth.
    pub claims: Option<(u64, u64)>,
}

impl Load {
    pub fn new(paddr: u64, data: &[u8]) -> Self {
        Self { paddr, mem_size: data.len() as u64, data: data.to_vec(), claims: None }
    }

    pub fn spanning(self, mem_size: u64) -> Self {
        Self { mem_size, ..self }
    }

    pub fn claiming(self, offset: u64, size: u64) -> Self {
        Self { claims: Some((offset, size)), ..self }
    }
}

/// An ELF core in the making.
#[derive(Clone)]
pub struct Elf {
    pub bits: Bits,
    pub endian: Endian,
    pub kind: u64,
    pub machine: u64,
    pub header_size: Option<u64>,
    pub phoff: Option<u64>,
    pub entry_pad: u64,
    pub extended: bool,
    pub notes: Vec<Vec<u8>>,
    pub loads: Vec<Load>,
}

impl Elf {
    pub fn new(bits: Bits, endian: Endian) -> Self {
        let notes = vec![notes(endian, b"OSRELEASE=6.1\nPAGESIZE=4096\n")];
        Self {
            bits,
            endian,
            kind: 4,
            machine: 62,
            header_size: None,
            phoff: None,
            entry_pad: 0,
            extended: false,
            notes,
            loads: Vec::new(),
        }
    }

    pub fn le64() -> Self {
        Self::new(Bits::B64, Endian::Little)
    }

    pub fn load(mut self, load: Load) -> Self {
        self.loads.push(load);
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let long = if self.bits == Bits::B64 { 8 } else { 4 };
        let (header, entry, section) = if long == 8 { (64, 56, 64) } else { (52, 32, 40) };
        let entry = entry + self.entry_pad;
        let phoff = self.phoff.unwrap_or(header);
        let count = (self.notes.len() + self.loads.len()) as u64;
        let shoff = if self.extended { phoff + entry * count } else { 0 };
        let mut data_at = phoff + entry * count + section;

        let mut r = Record::new(self.endian);
        r.raw.extend(b"\x7fELF");
        r.push(1, if long == 8 { 2 } else { 1 });
        r.push(1, if self.endian == Endian::Little { 1 } else { 2 });
        r.push(1, 1);
        r.align(16);
        r.push(2, self.kind);
        r.push(2, self.machine);
        r.push(4, 1);
        r.push(long, 0);
        r.push(long, phoff);
        r.push(long, shoff);
        r.push(4, 1);
        r.push(2, self.header_size.unwrap_or(header));
        r.push(2, entry);
        r.push(2, if self.extended { 0xffff } else { count });
        r.push(2, section);
        r.push(2, self.extended.into());
        r.push(2, 0);
        assert_eq!(r.raw.len() as u64, header);
        r.raw.resize(phoff as usize, 0xcc);

        let mut data = Vec::new();
        for (kind, load) in
            self.notes.iter().map(|n| (4, Load::new(0, n))).chain(self.loads.iter().map(|l| (1, l.clone())))
        {
            let (offset, size) = load.claims.unwrap_or((data_at, load.data.len() as u64));
            let start = r.raw.len() as u64;
            r.push(4, kind);
            if long == 8 {
                r.push(4, 6);
            }
            r.push(long, offset);
            r.push(long, load.paddr.wrapping_add(0xffff_8880_0000_0000));
            r.push(long, load.paddr);
            r.push(long, size);
            r.push(long, load.mem_size);
            if long == 4 {
                r.push(4, 6);
            }
            r.push(long, 0);
            r.raw.resize((start + entry) as usize, 0xdd);
            data_at += load.data.len() as u64;
            data.extend(load.data);
        }
        if self.extended {
            r.raw.resize(r.raw.len() + if long == 8 { 44 } else { 28 }, 0);
            r.push(4, count);
        }
        r.raw.resize((phoff + entry * count + section) as usize, 0);
        r.raw.extend(data);
        r.raw
    }
}

/// A kdump-compressed file in the making.
#[derive(Clone)]
pub struct Kdump {
    pub abi: Abi,
    pub endian: Endian,
    pub version: u64,
    pub block: u64,
    pub machine: &'static str,
    pub status: u64,
    pub phys_base: u64,
    pub max_mapnr: u64,
    pub codec: Codec,
    pub text: Vec<u8>,
    /// Pages that exist but are not in the file.
    pub excluded: Vec<u64>,
    pub pages: BTreeMap<u64, Vec<u8>>,
    pub part: Option<(u64, u64)>,
    /// Replaces the descriptor of a page: offset, size, flags.
    pub descriptors: BTreeMap<u64, (u64, u64, u64)>,
    pub one_bitmap: bool,
}

impl Kdump {
    pub fn new(abi: Abi, endian: Endian, version: u64) -> Self {
        Self {
            abi,
            endian,
            version,
            block: 4096,
            machine: if abi == Abi::Lp64 { "x86_64" } else { "i686" },
            status: 1,
            phys_base: 0,
            max_mapnr: 70_000,
            codec: Codec::Zlib,
            text: b"OSRELEASE=6.1\nPAGESIZE=4096\n".to_vec(),
            excluded: vec![5, 40_000],
            pages: [0, 1, 2, 9, 33_000, 69_999].map(|pfn| (pfn, page_of(pfn, 4096))).into(),
            part: None,
            descriptors: BTreeMap::new(),
            one_bitmap: false,
        }
    }

    pub fn le64() -> Self {
        Self::new(Abi::Lp64, Endian::Little, 6)
    }

    fn sub_header_len(&self) -> u64 {
        let sizes = match self.abi {
            Abi::Lp64 => [8, 16, 32, 48, 64, 80, 104],
            Abi::Ilp32Packed => [4, 8, 20, 32, 44, 56, 80],
            Abi::Ilp32Padded => [4, 8, 20, 40, 56, 72, 96],
        };
        sizes[self.version as usize]
    }

    pub fn notes(&self) -> Vec<u8> {
        if self.version >= 4 { notes(self.endian, &self.text) } else { Vec::new() }
    }

    /// File offset of the descriptors.
    pub fn descriptors_at(&self) -> u64 {
        let (sub, bitmap) = self.blocks();
        (1 + sub + bitmap) * self.block
    }

    /// File offset of the page data.
    pub fn data_at(&self) -> u64 {
        // As makedumpfile does, room for the descriptors of all parts.
        self.descriptors_at() + 24 * self.pages.len() as u64
    }

    /// File offset of the descriptor of a page.
    pub fn descriptor_at(&self, pfn: u64) -> u64 {
        self.descriptors_at() + 24 * self.held().take_while(|p| *p < pfn).count() as u64
    }

    fn held(&self) -> impl Iterator<Item = u64> + '_ {
        let (start, end) = self.part.unwrap_or((0, u64::MAX));
        self.pages.keys().copied().filter(move |p| (start..end).contains(p))
    }

    fn blocks(&self) -> (u64, u64) {
        let extra = if self.version >= 4 { self.notes().len() } else { self.text.len() } as u64;
        let sub = (self.sub_header_len() + extra).div_ceil(self.block);
        let one = self.max_mapnr.div_ceil(8).div_ceil(self.block);
        (sub, if self.one_bitmap { one } else { 2 * one })
    }

    pub fn build(&self) -> Vec<u8> {
        let long = if self.abi == Abi::Lp64 { 8 } else { 4 };
        let wide = if self.abi == Abi::Ilp32Packed { 4 } else { 8 };
        let (sub_blocks, bitmap_blocks) = self.blocks();
        let mut r = Record::new(self.endian);
        r.raw.extend(b"KDUMP   ");
        r.push(4, self.version);
        for name in ["Linux", "host", "6.1.0", "#1 SMP", self.machine, ""] {
            let end = r.raw.len() + 65;
            r.raw.extend(name.as_bytes());
            r.raw.resize(end, 0);
        }
        r.align(long);
        r.push(long, 1_700_000_000);
        r.push(long, 0);
        for value in
            [self.status, self.block, sub_blocks, bitmap_blocks, self.max_mapnr.min(0xffff_ffff), 0, 0, 0, 0, 2]
        {
            r.push(4, value);
        }
        assert_eq!(r.raw.len(), if long == 8 { 464 } else { 452 });
        r.raw.resize(self.block as usize, 0);

        // The sub header grew by version; `s` is aligned as the struct would be alone.
        let mut s = Record::new(self.endian);
        let notes = self.notes();
        let notes_at = self.block + self.sub_header_len();
        let text_in_notes = notes.windows(self.text.len().max(1)).position(|w| w == self.text).unwrap_or(0) as u64;
        let (start, end) = self.part.unwrap_or((0, 0));
        s.push(long, self.phys_base);
        if self.version >= 1 {
            s.push(4, 31);
        }
        if self.version >= 2 {
            s.push(4, self.part.is_some().into());
            s.push(long, start);
            s.push(long, end);
        }
        let mut pair = |since: u64, offset: u64, size: u64| {
            if self.version >= since {
                s.align(wide);
                s.push(8, if size == 0 { 0 } else { offset });
                s.push(long, size);
            }
        };
        pair(3, notes_at + text_in_notes, self.text.len() as u64);
        pair(4, notes_at, notes.len() as u64);
        pair(5, 0, 0);
        if self.version >= 6 {
            s.align(wide);
            s.push(8, start);
            s.push(8, end);
            s.push(8, self.max_mapnr);
        }
        s.align(if self.version >= 3 { wide } else { long });
        assert_eq!(s.raw.len() as u64, self.sub_header_len());
        r.raw.extend(s.raw);
        r.raw.extend(if self.version == 3 { &self.text } else { &notes });
        r.raw.resize((1 + sub_blocks) as usize * self.block as usize, 0);

        let bitmap = |pfns: &mut dyn Iterator<Item = u64>| {
            let mut bits = vec![0u8; (self.max_mapnr.div_ceil(8)).next_multiple_of(self.block) as usize];
            for pfn in pfns {
                bits[pfn as usize / 8] |= 1 << (pfn % 8);
            }
            bits
        };
        if !self.one_bitmap {
            r.raw.extend(bitmap(&mut self.pages.keys().chain(&self.excluded).copied()));
        }
        r.raw.extend(bitmap(&mut self.pages.keys().copied()));
        assert_eq!(r.raw.len() as u64, self.descriptors_at());

        let mut data: Vec<u8> = Vec::new();
        let data_at = self.data_at();
        let size = PageSize::new(self.block).unwrap();
        let mut compressor = Compressor::new(Compression::from(self.codec), size).unwrap();
        let mut out = vec![0; compressor.max_output().max(size.bytes())];
        for pfn in self.held() {
            let page = &self.pages[&pfn];
            let stored = compressor.compress(page, &mut out).map(|n| &out[..n]);
            let flags = if stored.is_some() { self.codec.flag().into() } else { 0 };
            let stored = stored.unwrap_or(page);
            let desc = (data_at + data.len() as u64, stored.len() as u64, flags);
            let (offset, size, flags) = self.descriptors.get(&pfn).copied().unwrap_or(desc);
            r.push(8, offset);
            r.push(4, size);
            r.push(4, flags);
            r.push(8, 0);
            data.extend(stored);
        }
        r.raw.resize(data_at as usize, 0);
        r.raw.extend(data);
        r.raw
    }
}

/// A flattened stream of the given writes, end marker included.
pub fn flatten<'a>(writes: impl IntoIterator<Item = (u64, &'a [u8])>) -> Vec<u8> {
    let mut stream = b"makedumpfile\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01".to_vec();
    stream.resize(4096, 0);
    for (offset, data) in writes {
        stream.extend(offset.to_be_bytes());
        stream.extend((data.len() as u64).to_be_bytes());
        stream.extend(data);
    }
    stream.extend([0xff; 16]);
    stream
}

/// Bytes some of which the operating system refuses to read.
pub struct Failing {
    pub inner: Arc<dyn Bytes>,
    pub bad: std::ops::Range<u64>,
}

impl Bytes for Failing {
    fn name(&self) -> &str {
        "failing"
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if offset < self.bad.end && offset + buf.len() as u64 > self.bad.start {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.inner.read_at(offset, buf)
    }
    fn window(&self, _offset: u64, _len: usize) -> Option<Window> {
        None
    }
}
