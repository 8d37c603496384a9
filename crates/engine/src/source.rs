//! The input of a run, what is known about its kernel, and what of it goes into the headers of the output.

use crate::budget::Budget;
use crate::error::EngineError;
use crate::holes;
use crate::observer::{Event, Observer};
use crate::options::{DumpOptions, Exclusion, Format};
use crate::writer::Metadata;
use coresift_format::codec::{Codec, Compression};
use coresift_format::kdump::{
    Abi, Header, HeaderLayout, Layout, MAX_VERSION, STATUS_EXCLUDED_VMEMMAP, STATUS_INCOMPLETE, SetError, SubHeader,
};
use coresift_format::{
    Bits, Container, ELF_INCOMPLETE, ElfCore, ElfKind, ElfOrigin, Endian, Field, Input, Machine, Notes, PageSize, Pfn,
    Segment,
};
use coresift_kernel::debuginfo::open_kernel;
use coresift_kernel::direct_map::{self, Mapped};
use coresift_kernel::{ClassSet, DumpLevel, Kernel, KernelError, PageClass, VmcoreInfo};

/// What follows where the kernel's symbols cannot be read, as all kernels before 6.0.
const NO_SYMBOLS: &str =
    "per-cpu areas are not guarded, and slab and hugetlb pages not checked against the kernel's count";

/// What follows where an ELF core is made of a file that has no segments, and the kernel in it is not understood.
const NOT_MAPPED: &str = "where the kernel maps memory is not known: each segment of the ELF core has its physical address for the virtual one, \
     as QEMU's have; crash and drgn translate by page tables, gdb finds nothing";

/// The input and what is known about its kernel.
pub struct Source {
    /// The input.
    pub input: Input,
    /// Its kernel, where it is understood.
    pub kernel: Option<Kernel>,
    /// What pages without data may be that the input's writer may have left out.
    unknown: ClassSet,
    /// VMCOREINFO that the input's notes lack, to be added to the output's.
    found_info: Option<Vec<u8>>,
    /// The segments of an ELF core to be made of an input that has none.
    made_segments: Vec<Segment>,
    /// Why pages are missing from the input that no filtering left out.
    pub missing: Option<String>,
    /// Things a user should know.
    pub notes: Vec<String>,
}

/// What of an input goes into the headers of an ELF core.
pub struct ElfSource {
    /// What it is of.
    pub kind: ElfKind,
    /// The notes.
    pub notes: Vec<u8>,
    /// Its memory, in the order of its headers.
    pub segments: Vec<Segment>,
}

impl Source {
    /// Understands `input`, as far as the `options` need it.
    ///
    /// # Errors
    /// The input is of a kind that cannot be written, or its kernel is not understood and has to be.
    pub fn of(mut input: Input, options: &DumpOptions, observer: &dyn Observer) -> Result<Self, EngineError> {
        if input.machine() == Machine::ARM {
            return Err(EngineError::Machine { file: input.name().to_owned(), machine: input.machine().to_string() });
        }
        apply_page_size(&mut input)?;
        let mut notes: Vec<String> = input.problems().iter().map(ToString::to_string).collect();
        let missing = missing_pages(&input);
        notes.extend(missing.iter().cloned());
        let needed = options.exclude.iter().any(|e| {
            let readable = e.classes.without(ClassSet::UNREADABLE);
            readable.iter().any(|class| class != PageClass::Zero)
        });
        let understood = open_kernel(&input, options.debug.as_ref());
        let (kernel, found_info) = match understood {
            Ok((kernel, found)) => {
                notes.extend(found.notes.iter().cloned());
                notes.extend(kernel.notes.iter().cloned());
                if let Err(e) = &kernel.symbols {
                    notes.push(format!("{NO_SYMBOLS}: {e}"));
                }
                let in_notes = found.address.is_none() && input.vmcoreinfo_offset_in_notes().is_some();
                (Some(kernel), (!in_notes).then_some(found.text))
            }
            Err(error)
                if matches!(error, KernelError::OtherKernel(_))
                    || needed && !is_cut_off(&error, missing.is_some() && input.memory().data_pages() > 0) =>
            {
                return Err(EngineError::Kernel { file: input.name().to_owned(), error });
            }
            Err(e) => {
                notes.push(format!(
                    "all pages are kept, poisoned and offline ones too, for the kernel in the dump is not understood: {e}"
                ));
                let text = input.vmcoreinfo().filter(|_| input.vmcoreinfo_offset_in_notes().is_none());
                (None, text.map(<[u8]>::to_vec))
            }
        };
        let unknown = holes::judge(&mut input, kernel.as_ref());
        notes.extend(input.as_elf().and_then(ElfCore::hole_note));
        if options.format == Format::Elf && input.as_elf().is_none() {
            fit_segments(&input, options)?;
        }
        let made_segments = if options.format == Format::Elf && input.as_elf().is_none() {
            let (segments, mapped) = made_segments(&input, kernel.as_ref());
            notes.extend((!mapped).then(|| NOT_MAPPED.to_owned()));
            segments
        } else {
            Vec::new()
        };
        for note in &notes {
            observer.event(Event::Note(note.clone()));
        }
        Ok(Self { input, kernel, unknown, found_info, made_segments, missing, notes })
    }

    /// Memory of the segments that are made for an ELF core, twice: the writer has its own. In bytes.
    #[must_use]
    pub fn segments_memory(&self) -> u64 {
        2 * (self.made_segments.len() * size_of::<Segment>()) as u64
    }

    /// One more than the highest page frame the output speaks of: that of an earlier dump, else where the memory map and the pages
    /// the input has end. What a program header claims beyond is memory that the kernel never managed (`mem=`), or none at all.
    #[must_use]
    pub fn max_mapnr(&self) -> Pfn {
        let memory = self.input.memory();
        if self.input.container() == Container::Kdump {
            return memory.max_pfn();
        }
        let Some(kernel) = &self.kernel else { return memory.stored().end() };
        let mapped = kernel.memmap.ranges().last().map_or(Pfn(0), |r| r.end);
        // Nor are zeros memory that the kernel does not know, where no data are.
        let data_end = self.input.as_elf().map_or(memory.stored().end(), ElfCore::data_end);
        data_end.max(mapped.min(memory.ram().end()))
    }

    /// Everything in front of the page data of a file, in which there are no pages yet.
    ///
    /// # Errors
    /// The format cannot describe all pages of the input, or what the input says was erased from it cannot be read.
    pub fn metadata(&self, compression: Compression, level: DumpLevel) -> Result<Metadata, EngineError> {
        let max_mapnr = self.max_mapnr().0;
        let layout = self.layout();
        let page = self.input.memory().page_size();
        let (notes, info) = self.output_notes();
        let pages = self.input.memory().stored().len();
        let regions = Layout::new(page, layout.abi, notes.len() as u64, max_mapnr, pages)
            .ok_or(EngineError::TooLarge { max_mapnr, pages })?
            .with_pages(0);
        let before = self.input.kdump_header();
        let (tv_sec, tv_usec) = self.crash_time();
        // Of an earlier dump's marks, only that it lacks memory map pages is still true.
        let status = before.map_or(0, |(h, _)| h.status & STATUS_EXCLUDED_VMEMMAP);
        let header = Header {
            header_version: MAX_VERSION,
            utsname: self.utsname(),
            tv_sec,
            tv_usec,
            status: status & !STATUS_INCOMPLETE | compression.codec.flag(),
            block_size: page.bytes() as u32,
            sub_hdr_size: regions.sub_hdr_size,
            bitmap_blocks: regions.bitmap_blocks,
            max_mapnr: u32::try_from(max_mapnr).unwrap_or(u32::MAX),
            nr_cpus: i32::try_from(self.input.cpus()).unwrap_or(i32::MAX),
            ..Header::default()
        };
        let (offset_vmcoreinfo, size_vmcoreinfo) = info.map_or((0, 0), |(at, len)| (regions.notes + at, len));
        let sub_header = SubHeader {
            phys_base: match (&self.kernel, before) {
                (Some(kernel), _) => kernel.phys_base,
                (None, Some((_, sub))) => sub.phys_base,
                (None, None) => 0,
            },
            dump_level: level.number().into(),
            offset_vmcoreinfo,
            size_vmcoreinfo,
            offset_note: if notes.is_empty() { 0 } else { regions.notes },
            size_note: notes.len() as u64,
            max_mapnr_64: max_mapnr,
            ..SubHeader::default()
        };
        let erase_info = self.input.erase_info()?;
        Ok(Metadata { layout, header, sub_header, notes, erase_info, identity: None, regions })
    }

    /// Everything in front of the page data of an ELF core but the headers of the pages, which only these decide. Segments without a
    /// physical address stand for no memory of their own, and are left out. A kdump-compressed input has no segments: they are made.
    ///
    /// # Errors
    /// What the input says was erased from it cannot be read.
    pub fn elf(&self, level: DumpLevel) -> Result<ElfSource, EngineError> {
        let Some(core) = self.input.as_elf() else { return self.elf_of_kdump(level) };
        let headers = core.headers();
        Ok(ElfSource {
            kind: ElfKind {
                bits: headers.bits,
                endian: headers.endian,
                machine: headers.machine,
                flags: headers.flags & !ELF_INCOMPLETE,
            },
            notes: self.with_origin(self.output_notes().0, level),
            segments: joined(core.segments().iter().filter(|s| s.has_paddr(headers.bits))),
        })
    }

    /// The notes of an ELF core of dump level `level`, with one that tells of what is left out.
    fn with_origin(&self, mut notes: Vec<u8>, level: DumpLevel) -> Vec<u8> {
        let page = self.input.memory().page_size();
        let address = |pfn: Pfn| pfn.0.saturating_mul(page.bytes() as u64);
        let runs = self.input.memory().ram().all_runs().map(|(start, end)| (address(start), address(end)));
        let (ram, partial) = ElfOrigin::longest(runs);
        add_origin(&mut notes, self.input.byte_order(), &ElfOrigin { level: level.number(), ram, partial });
        notes
    }

    fn elf_of_kdump(&self, level: DumpLevel) -> Result<ElfSource, EngineError> {
        let endian = self.input.byte_order();
        let mut notes = self.output_notes().0;
        // Of a file that was an ELF core before, the notes tell it already.
        let erased = self.input.erase_info()?;
        let erased = erased.strip_prefix(&*Notes::new(&notes, endian).erase_info()).unwrap_or(&erased);
        if !erased.is_empty() {
            append_note(&mut notes, endian, b"ERASEINFO", erased);
        }
        // As kexec does for i386 with PAE, whose memory ends where 32 bits do not reach.
        let narrow = self.made_segments.iter().all(|s| s.paddr.saturating_add(s.mem_size) <= 1 << 32);
        let bits = if narrow { self.input.bits() } else { Bits::B64 };
        Ok(ElfSource {
            kind: ElfKind { bits, endian, machine: self.input.machine().0, flags: 0 },
            notes: self.with_origin(notes, level),
            segments: self.made_segments.clone(),
        })
    }

    /// What was left out of the input before stays left out.
    pub fn raise(&self, asked: Exclusion, observer: &dyn Observer) -> Exclusion {
        let maybe = (!self.unknown.is_empty()).then(|| DumpLevel::describing(self.unknown));
        let recorded = self.input.level().and_then(|level| u8::try_from(level).ok()).and_then(DumpLevel::new).or(maybe);
        let before = recorded.filter(|_| self.input.kdump_header().is_none_or(|(header, _)| header.header_version > 0));
        // What cannot be told apart is kept, and the level says so.
        let wanted = asked.level;
        let asked = if self.kernel.is_some() { asked } else { only_zeros(asked) };
        let Some(before) = before else { return asked };
        let recorded = DumpLevel::new(asked.level.number() | before.number()).unwrap_or(asked.level);
        if recorded != asked.level && recorded != wanted {
            observer.event(Event::LevelRaised { asked: asked.level, input: before, recorded });
        }
        Exclusion { classes: asked.classes, level: recorded }
    }

    /// Notes for the output: the input's, and the VMCOREINFO found elsewhere. With it, the offset of the text in them.
    fn output_notes(&self) -> (Vec<u8>, Option<(u64, u64)>) {
        let mut notes = self.input.notes().to_vec();
        if let Some(text) = &self.found_info {
            let at = append_note(&mut notes, self.input.byte_order(), b"VMCOREINFO", text);
            return (notes, Some((at, text.len() as u64)));
        }
        let at = self.input.vmcoreinfo_offset_in_notes();
        let len = self.input.vmcoreinfo().map_or(0, |t| t.len() as u64);
        (notes, at.map(|at| (at, len)))
    }

    fn layout(&self) -> HeaderLayout {
        self.input.kdump_layout().unwrap_or(HeaderLayout {
            abi: match self.input.bits() {
                Bits::B64 => Abi::Lp64,
                Bits::B32 if self.input.machine() == Machine::I386 => Abi::Ilp32Packed,
                Bits::B32 => Abi::Ilp32Padded,
            },
            endian: self.input.byte_order(),
        })
    }

    fn utsname(&self) -> [[u8; 65]; 6] {
        let mut utsname = [[0; 65]; 6];
        if let Some(kernel) = &self.kernel {
            for (field, raw) in utsname.iter_mut().zip(kernel.utsname.as_chunks::<65>().0) {
                *field = *raw;
            }
        } else if let Some((header, _)) = self.input.kdump_header() {
            utsname = header.utsname;
        } else if let Some(machine) = utsname.get_mut(4) {
            // Readers choose the architecture by it.
            for (to, from) in machine.iter_mut().take(64).zip(self.input.machine().to_string().bytes()) {
                *to = from;
            }
        }
        utsname
    }

    /// Seconds and microseconds of the crash: what an earlier dump recorded, else CRASHTIME, else 0.
    fn crash_time(&self) -> (i64, i64) {
        if let Some((header, _)) = self.input.kdump_header()
            && header.tv_sec != 0
        {
            return (header.tv_sec, header.tv_usec);
        }
        let time = self.kernel.as_ref().and_then(|k| k.info.plain_decimal("CRASHTIME").ok().flatten());
        (time.and_then(|t| i64::try_from(t).ok()).unwrap_or(0), 0)
    }
}

/// Takes the page size from VMCOREINFO, as far as it tells one.
///
/// # Errors
/// The headers of a kdump-compressed file say another.
pub fn apply_page_size(input: &mut Input) -> Result<(), EngineError> {
    let page_size = input.vmcoreinfo().map(VmcoreInfo::parse).and_then(|i| i.plain_decimal("PAGESIZE").ok().flatten());
    match page_size.and_then(PageSize::new) {
        Some(page) => Ok(input.set_page_size(page)?),
        None => Ok(()),
    }
}

/// The memory of `segments`; those that continue the one before are joined with it. An ELF core that is filtered has many of these,
/// which would be more each time.
pub(crate) fn joined<'s>(segments: impl Iterator<Item = &'s Segment>) -> Vec<Segment> {
    let mut joined: Vec<Segment> = Vec::new();
    for next in segments {
        let mem_size = next.mem_size.max(next.file_size);
        match joined.last_mut() {
            Some(last)
                if last.paddr.checked_add(last.mem_size) == Some(next.paddr)
                    && last.vaddr.wrapping_add(last.mem_size) == next.vaddr
                    && (last.flags, last.align) == (next.flags, next.align)
                    && last.mem_size.checked_add(mem_size).is_some() =>
            {
                last.mem_size += mem_size;
            }
            _ => joined.push(Segment { mem_size, ..*next }),
        }
    }
    joined
}

/// Holds the segments that are to be made of an input, one a run of RAM, to the memory budget before they are made.
fn fit_segments(input: &Input, options: &DumpOptions) -> Result<(), EngineError> {
    let runs = input.memory().ram().all_runs().count() as u64;
    let each = (size_of::<Mapped>() + 2 * size_of::<Segment>()) as u64;
    let budget = Budget::new(options.max_memory);
    let needed = Budget::needed(Codec::None.into(), runs.saturating_mul(each));
    if needed > budget.bytes {
        return Err(EngineError::Budget { budget: budget.bytes, needed });
    }
    Ok(())
}

/// The segments of an input that has none, as a capture kernel makes them, and true; where the kernel does not tell where it maps memory,
/// those of QEMU's `dump-guest-memory` without paging, and false.
fn made_segments(input: &Input, kernel: Option<&Kernel>) -> (Vec<Segment>, bool) {
    let memory = input.memory();
    let mapped = kernel.and_then(|kernel| direct_map::segments(kernel, memory));
    let known = mapped.is_some();
    let mapped = mapped.unwrap_or_else(|| direct_map::ram(memory, 0).collect());
    let segment = |m: &Mapped| Segment {
        vaddr: m.vaddr,
        paddr: m.paddr,
        file_size: m.bytes,
        mem_size: m.bytes,
        flags: READ_WRITE_EXECUTE,
        ..Segment::default()
    };
    (mapped.iter().map(segment).collect(), known)
}

/// PF_R, PF_W and PF_X: the flags of a capture kernel's segments.
const READ_WRITE_EXECUTE: u32 = 7;

/// Appends the note that tells how an ELF core was made.
pub(crate) fn add_origin(notes: &mut Vec<u8>, endian: Endian, origin: &ElfOrigin) {
    append_note(notes, endian, ElfOrigin::NAME, origin.text().as_bytes());
}

/// Appends a note of type 0, and returns where its description begins.
fn append_note(notes: &mut Vec<u8>, endian: Endian, name: &[u8], description: &[u8]) -> u64 {
    let pad = |notes: &mut Vec<u8>| notes.resize(notes.len().next_multiple_of(4), 0);
    pad(notes);
    for number in [name.len() as u64 + 1, description.len() as u64, 0] {
        let mut raw = [0; 4];
        endian.put(&mut raw, Field { at: 0, size: 4 }, number);
        notes.extend_from_slice(&raw);
    }
    notes.extend_from_slice(name);
    notes.push(0);
    pad(notes);
    let at = notes.len() as u64;
    notes.extend_from_slice(description);
    pad(notes);
    at
}

/// Whether an input that is `incomplete`, but not empty, lacks what the kernel's memory is understood by, so that no better try can be made: then all
/// that is left is worth more than nothing.
fn is_cut_off(error: &KernelError, incomplete: bool) -> bool {
    incomplete && !matches!(error, KernelError::NoVmcoreInfo { .. } | KernelError::Architecture { .. })
}

/// What can be left out without knowing the kernel: pages of zeros, if that was asked for.
fn only_zeros(asked: Exclusion) -> Exclusion {
    let zeros = ClassSet::of(&[PageClass::Zero]);
    let classes = asked.classes.intersection(zeros.union(ClassSet::UNREADABLE));
    Exclusion { classes, level: DumpLevel::describing(classes) }
}

/// Why the input does not hold all that it should.
fn missing_pages(input: &Input) -> Option<String> {
    let (cut, damaged) = input.as_elf().map_or((0, 0), |elf| (elf.beyond_end().len(), elf.damaged().len()));
    if input.memory().data_pages() == 0 && cut == 0 {
        Some("the input holds no page of memory; check that it was copied whole".to_owned())
    } else if cut > 0 {
        Some(format!(
            "the input ends early: {cut} pages lie beyond its end and are missing; get a whole copy if there is one"
        ))
    } else if damaged > 0 {
        Some(format!(
            "program headers of the input are damaged, and {damaged} pages missing with them; get another copy if there is one"
        ))
    } else if input.as_kdump().is_some_and(|file| file.part().is_some()) {
        Some("the input is one part of a split set; the pages of the other parts are missing".to_owned())
    } else if input.set_problems().iter().any(|problem| matches!(problem, SetError::Missing { .. })) {
        Some("parts of the split set are missing, and their pages with them".to_owned())
    } else if input.truncated().is_some() {
        Some("the input is a flattened stream that was cut short or is damaged; what it lost is missing".to_owned())
    } else {
        input.incomplete().then(|| "the input is itself marked incomplete; what it lacks is missing".to_owned())
    }
}
