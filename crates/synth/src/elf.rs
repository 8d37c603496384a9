//! ELF64 cores, well formed or odd on purpose.

use crate::image::Image;
use crate::sparse::SparseFile;
use crate::{PAGE, SECTION_PAGES, START_KERNEL_MAP};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where every CPU is, behind `_stext`.
pub(crate) const RIP: u64 = 0x123;

/// Byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As x86-64.
    Little,
    /// As s390x.
    Big,
}

/// One note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Name without its NUL.
    pub name: String,
    /// Type.
    pub kind: u32,
    /// Descriptor.
    pub desc: Vec<u8>,
}

impl Note {
    /// A note of any name and type.
    #[must_use]
    pub fn new(name: &str, kind: u32, desc: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), kind, desc: desc.into() }
    }

    /// The kernel's key/value text.
    #[must_use]
    pub fn vmcoreinfo(text: &str) -> Self {
        Self::new("VMCOREINFO", 0, text)
    }

    /// What a CPU of a kernel with these symbols left in its registers when it stopped, in the core's notes and in `crash_notes`.
    pub(crate) fn saved(cpu: u32, symbols: &BTreeMap<String, u64>) -> Self {
        Self::prstatus(cpu, symbols["_stext"] + RIP, symbols["init_task"])
    }

    /// Registers of a CPU: 336 bytes, of which the process id, `rip` and `rsp` are set.
    #[must_use]
    pub fn prstatus(cpu: u32, rip: u64, rsp: u64) -> Self {
        let mut desc = vec![0; 336];
        desc[32..36].copy_from_slice(&cpu.to_le_bytes());
        desc[112 + 8 * 16..][..8].copy_from_slice(&rip.to_le_bytes());
        desc[112 + 8 * 19..][..8].copy_from_slice(&rsp.to_le_bytes());
        Self::new("CORE", 1, desc)
    }

    /// What QEMU adds for each CPU of an x86 guest (440 bytes, version 1).
    #[must_use]
    pub fn qemu(cr3: u64) -> Self {
        let mut desc = vec![0; 440];
        desc[..8].copy_from_slice(&[1, 0, 0, 0, 184, 1, 0, 0]);
        desc[416..424].copy_from_slice(&cr3.to_le_bytes());
        Self::new("QEMU", 0, desc)
    }

    /// An entry that was never filled: the 12 zero bytes of a CPU that never stopped, with no name and no descriptor.
    #[must_use]
    pub fn empty() -> Self {
        Self::new("", 0, Vec::new())
    }

    /// Header, name and descriptor, each padded to 4 bytes.
    #[must_use]
    pub fn bytes(&self, order: Order) -> Vec<u8> {
        let name = if self.name.is_empty() { Vec::new() } else { [self.name.as_bytes(), b"\0"].concat() };
        let mut out = Vec::new();
        for n in [name.len() as u32, self.desc.len() as u32, self.kind] {
            out.extend(if order == Order::Little { n.to_le_bytes() } else { n.to_be_bytes() });
        }
        for part in [&name, &self.desc] {
            out.extend(part);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }
}

/// One PT_LOAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `p_paddr`, in bytes; all ones where there is none.
    pub paddr: u64,
    /// `p_vaddr`.
    pub vaddr: u64,
    /// `p_memsz`, in bytes.
    pub memsz: u64,
    /// `p_filesz`, in bytes.
    pub filesz: u64,
    /// Physical address the bytes are taken from, where it is not `paddr`.
    pub source: Option<u64>,
    /// Number of the segment whose file bytes this one uses too.
    pub shares: Option<usize>,
}

impl Segment {
    /// All bytes of a physical range.
    #[must_use]
    pub fn new(paddr: u64, vaddr: u64, len: u64) -> Self {
        Self { paddr, vaddr, memsz: len, filesz: len, source: None, shares: None }
    }
}

/// An ELF core before it is written. Change any field, then ask for [`Elf::bytes`].
#[derive(Clone, Debug)]
pub struct Elf<'a> {
    image: &'a Image,
    /// Where the program headers go; 64 is right behind the ELF header.
    pub phoff: u64,
    /// Puts two section headers at 64, before the program headers, as QEMU does (with [`Self::phoff`] 192), and says `e_ehsize` 8.
    pub qemu_headers: bool,
    /// Writes the number of program headers into section header 0, as is needed from 65535 on.
    pub extended_numbering: bool,
    /// Segments begin at multiples of this in the file.
    pub align: u64,
    /// One PT_NOTE for each inner list.
    pub notes: Vec<Vec<Note>>,
    /// The PT_LOADs, in order.
    pub segments: Vec<Segment>,
    /// `e_flags`.
    pub flags: u32,
}

impl<'a> Elf<'a> {
    /// What a capture kernel shows: notes of each CPU and VMCOREINFO, one segment for each range of RAM with addresses of the linear map.
    /// Kernels that export no `NUMBER(phys_base)` get the segment of the kernel image, too, which tells it (see [`Self::with_image`]).
    pub(crate) fn of(image: &'a Image) -> Self {
        let mut notes: Vec<Note> = (0..image.cpus).map(|cpu| Note::saved(cpu, &image.symbols)).collect();
        notes.push(Note::vmcoreinfo(&image.vmcoreinfo));
        // Sections whose contents repeat have one another's bytes in the file, too.
        let (tail, period) = image.tail.as_ref().map_or((u64::MAX, SECTION_PAGES), |t| (t.first, t.period()));
        let mut segments = Vec::new();
        let mut shared = None;
        for r in image.ram() {
            let mut push = |pfns: Range<u64>, shares: Option<usize>| {
                let (start, len) = (pfns.start * PAGE, (pfns.end - pfns.start) * PAGE);
                segments.push(Segment { shares, ..Segment::new(start, image.page_offset + start, len) });
                segments.len() - 1
            };
            if r.start < tail {
                push(r.start..r.end.min(tail), None);
            }
            for start in (r.start.max(tail)..r.end).step_by(period as usize) {
                let i = push(start..(start + period).min(r.end), shared);
                shared.get_or_insert(i);
            }
        }
        let elf = Self {
            image,
            phoff: 64,
            qemu_headers: false,
            extended_numbering: false,
            align: PAGE,
            notes: vec![notes],
            segments,
            flags: 0,
        };
        if image.layout.since(4, 10, 0) { elf } else { elf.with_image() }
    }

    /// Puts a segment of the kernel image with its own virtual addresses in front; it overlaps the RAM segment, as in a real /proc/vmcore.
    #[must_use]
    pub fn with_image(mut self) -> Self {
        let image = &self.image.image;
        let already =
            self.segments.first().is_some_and(|s| s.vaddr >= START_KERNEL_MAP && s.vaddr == self.image.image_virt);
        if !already {
            let segment = Segment::new(image.start * PAGE, self.image.image_virt, (image.end - image.start) * PAGE);
            self.segments.insert(0, segment);
            self.segments.iter_mut().filter_map(|s| s.shares.as_mut()).for_each(|number| *number += 1);
        }
        self
    }

    /// What QEMU's `dump-guest-memory` writes: section headers before the program headers, virtual addresses from 0, QEMU's own notes,
    /// and VMCOREINFO only with the vmcoreinfo device.
    #[must_use]
    pub fn as_qemu(mut self, vmcoreinfo: bool) -> Self {
        self.qemu_headers = true;
        self.phoff = 192;
        self.align = 1;
        self.segments.retain(|s| s.vaddr < START_KERNEL_MAP);
        for s in &mut self.segments {
            s.vaddr = s.paddr;
        }
        let root = self.image.symbols["init_top_pgt"] - self.image.image_virt + self.image.image.start * PAGE;
        for notes in &mut self.notes {
            notes.retain(|n| vmcoreinfo || n.name != "VMCOREINFO");
            let cpus = notes.iter().filter(|n| n.name == "CORE").count();
            let at = notes.iter().position(|n| n.name == "VMCOREINFO").unwrap_or(notes.len());
            notes.splice(at..at, (0..cpus).map(|_| Note::qemu(root)));
        }
        self
    }

    /// Takes the VMCOREINFO notes out.
    #[must_use]
    pub fn without_vmcoreinfo(mut self) -> Self {
        for notes in &mut self.notes {
            notes.retain(|n| n.name != "VMCOREINFO");
        }
        self
    }

    /// Cuts the segment that holds physical address `at` in two there, inside a page if need be.
    ///
    /// # Panics
    /// If no segment holds it, or a cut there would leave an empty piece.
    pub fn split(&mut self, at: u64) {
        let i = self
            .segments
            .iter()
            .position(|s| s.paddr < at && at < s.paddr + s.memsz)
            .expect("a segment around the cut");
        let s = self.segments[i].clone();
        assert!(s.filesz == s.memsz && s.shares.is_none(), "only whole segments of their own are cut");
        let head = at - s.paddr;
        self.segments[i] = Segment { memsz: head, filesz: head, ..s.clone() };
        let tail = Segment {
            paddr: at,
            vaddr: s.vaddr + head,
            memsz: s.memsz - head,
            filesz: s.memsz - head,
            source: s.source.map(|p| p + head),
            ..s
        };
        self.segments.insert(i + 1, tail);
    }

    /// The file in memory.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.file().bytes()
    }

    /// The file, with holes where memory is zero.
    #[must_use]
    pub fn file(&self) -> SparseFile {
        let mut out = SparseFile::default();
        let (mut at, headers) = self.headers();
        out.put(0, &headers);
        for (offset, s) in self.offsets(&mut at).into_iter().zip(&self.segments) {
            if s.shares.is_some() {
                continue;
            }
            let source = s.source.unwrap_or(s.paddr);
            for piece in (0..s.filesz).step_by(1 << 20) {
                out.put(offset + piece, &self.image.read(source + piece, (s.filesz - piece).min(1 << 20)));
            }
        }
        out
    }

    /// File offset of each segment's bytes; `at` is the end of the headers.
    fn offsets(&self, at: &mut u64) -> Vec<u64> {
        let mut offsets: Vec<u64> = Vec::with_capacity(self.segments.len());
        for s in &self.segments {
            let offset = match s.shares {
                Some(other) => offsets[other],
                None => at.next_multiple_of(self.align),
            };
            if s.shares.is_none() {
                *at = offset + s.filesz;
            }
            offsets.push(offset);
        }
        offsets
    }

    /// Everything before the first segment's bytes, and its length.
    fn headers(&self) -> (u64, Vec<u8>) {
        let phnum = self.notes.len() + self.segments.len();
        let extended = self.extended_numbering || phnum >= 0xffff;
        let after_headers = self.phoff + 56 * phnum as u64;
        let shoff = match (self.qemu_headers, extended) {
            (true, _) => 64,
            (false, true) => after_headers,
            (false, false) => 0,
        };
        assert!(!self.qemu_headers || self.phoff >= 192, "the section headers are at 64 to 192");
        let notes: Vec<Vec<u8>> =
            self.notes.iter().map(|list| list.iter().flat_map(|n| n.bytes(Order::Little)).collect()).collect();
        let mut at = after_headers + if extended && !self.qemu_headers { 64 } else { 0 };
        let note_offsets: Vec<u64> = notes
            .iter()
            .map(|n| {
                let here = at.next_multiple_of(4);
                at = here + n.len() as u64;
                here
            })
            .collect();
        let end = at;
        let offsets = self.offsets(&mut at);

        let mut out = vec![0; end as usize];
        let mut put = |at: u64, bytes: &[u8]| out[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        put(0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        put(16, &[4, 0, 62, 0, 1, 0, 0, 0]);
        put(32, &self.phoff.to_le_bytes());
        put(40, &shoff.to_le_bytes());
        put(48, &self.flags.to_le_bytes());
        put(52, &(if self.qemu_headers { 8u16 } else { 64 }).to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &(if extended { 0xffff } else { phnum as u16 }).to_le_bytes());
        if shoff != 0 {
            put(58, &64u16.to_le_bytes());
            put(60, &(if self.qemu_headers { 2u16 } else { 1 }).to_le_bytes());
            put(shoff + 32, &1u64.to_le_bytes());
            put(shoff + 44, &(if extended { phnum as u32 } else { 0 }).to_le_bytes());
        }
        let mut header = |i: usize, kind: u32, fields: [u64; 6]| {
            let at = self.phoff + 56 * i as u64;
            put(at, &kind.to_le_bytes());
            put(at + 4, &(if kind == 1 { 7u32 } else { 0 }).to_le_bytes());
            for (n, field) in fields.iter().enumerate() {
                put(at + 8 + 8 * n as u64, &field.to_le_bytes());
            }
        };
        for (i, (offset, bytes)) in note_offsets.iter().zip(&notes).enumerate() {
            let len = bytes.len() as u64;
            header(i, 4, [*offset, 0, 0, len, len, 4]);
        }
        for (i, (s, offset)) in self.segments.iter().zip(&offsets).enumerate() {
            header(notes.len() + i, 1, [*offset, s.vaddr, s.paddr, s.filesz, s.memsz, 0]);
        }
        for (offset, bytes) in note_offsets.iter().zip(&notes) {
            put(*offset, bytes);
        }
        (end, out)
    }
}
