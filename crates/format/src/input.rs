//! Any dump this project reads, opened.

use crate::bytes::{Bytes, FileBytes};
use crate::detect::{Kind, detect, detect_damaged};
use crate::elf::Segment;
use crate::elf_memory::ElfCore;
use crate::endian::Endian;
use crate::flattened::{Cut, FlattenedBytes};
use crate::kdump::{Header, KdumpFile, Realigned, Region, SetError, SplitSet};
use crate::notes::Notes;
use crate::{FormatError, PageSet, PageSize, PhysicalMemory, Result};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod facts;

/// What holds the memory, inside a flattened stream or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Container {
    /// An ELF core.
    Elf,
    /// A kdump-compressed file.
    Kdump,
}

impl Container {
    /// The name people and JSON see: `elf` or `kdump`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Elf => "elf",
            Self::Kdump => "kdump",
        }
    }
}

enum Source {
    Elf(Box<ElfCore>),
    Kdump(Box<KdumpFile>),
    Set(Box<SplitSet>),
}

/// The VMCOREINFO text: a piece of the notes, or on its own (kdump-compressed version 3).
enum Vmcoreinfo {
    None,
    InNotes(Range<usize>),
    Alone(Vec<u8>),
}

/// A dump, opened: its memory, its notes and what its headers say.
pub struct Input {
    bytes: Arc<dyn Bytes>,
    source: Source,
    notes: Vec<u8>,
    vmcoreinfo: Vmcoreinfo,
    note_cpus: u32,
    flattened: bool,
    cut: Option<Cut>,
    problems: Vec<FormatError>,
    /// What to call a split set.
    name: Option<String>,
    /// Length of the further parts of a split set, in bytes.
    more_len: u64,
    /// Bytes of memory that the index of a flattened stream takes.
    index: usize,
}

impl Input {
    /// Opens a dump, whatever its container. A dump that lacks a part which the pages do not depend on is opened all
    /// the same: see [`Self::problems`].
    ///
    /// # Errors
    /// The file cannot be read, is something else, or is damaged so that no page can be found.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, true)
    }

    /// The same, where `map` says whether /proc/vmcore may be mapped; otherwise it is read by copying only.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(path: &Path, map: bool) -> Result<Self> {
        let file = FileBytes::open(path)?;
        Self::from_bytes(Arc::new(if map { file } else { file.with_windows(false) }))
    }

    /// Opens the parts of a split set as one dump, in any order; a single file as [`Self::open`] does. Parts that are missing
    /// or incomplete are among [`Self::problems`].
    ///
    /// # Errors
    /// As [`Self::open`], or two of the files cannot be parts of one set.
    pub fn open_parts(paths: &[PathBuf]) -> Result<Self> {
        let mut inputs = paths.iter().map(|path| Self::open(path)).collect::<Result<Vec<_>>>()?;
        if inputs.len() == 1
            && let Some(one) = inputs.pop()
        {
            return Ok(one);
        }
        Self::from_parts(inputs)
    }

    /// As [`Self::open_parts`], of parts that are open.
    ///
    /// # Errors
    /// As [`Self::open_parts`].
    pub fn from_parts(inputs: Vec<Self>) -> Result<Self> {
        let mut inputs = inputs.into_iter();
        let first = inputs.next().ok_or(SetError::Empty)?;
        let name = match inputs.len() {
            1 => format!("{} and 1 more part", first.name()),
            more => format!("{} and {more} more parts", first.name()),
        };
        let Self {
            bytes, source, notes, vmcoreinfo, note_cpus, mut flattened, mut cut, mut problems, mut index, ..
        } = first;
        let mut more_len = 0;
        let mut parts = vec![source.into_part(&*bytes)?];
        for part in inputs {
            more_len += part.file_len();
            flattened |= part.flattened;
            cut = cut.or(part.cut);
            index += part.index;
            problems.extend(part.problems);
            parts.push(part.source.into_part(&*part.bytes)?);
        }
        let set = SplitSet::new(parts)?;
        problems.extend(set.problems().iter().cloned().map(FormatError::Set));
        let source = Source::Set(Box::new(set));
        Ok(Self {
            bytes,
            source,
            notes,
            vmcoreinfo,
            note_cpus,
            flattened,
            cut,
            problems,
            name: Some(name),
            more_len,
            index,
        })
    }

    /// The kdump-compressed file alone, for a part of a split set.
    ///
    /// # Errors
    /// It is something else, and so no part.
    pub fn into_kdump(self) -> Result<KdumpFile> {
        self.source.into_part(&*self.bytes)
    }

    /// As [`Self::open`], of bytes from elsewhere.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_bytes(bytes: Arc<dyn Bytes>) -> Result<Self> {
        Self::from_bytes_with(bytes, detect, KdumpFile::open)
    }

    /// As [`Self::open`], of a kdump-compressed file that may end anywhere behind its sub header: see [`KdumpFile::salvage`].
    ///
    /// # Errors
    /// As [`Self::open`], where not even the headers are there.
    pub fn salvage(bytes: Arc<dyn Bytes>) -> Result<Self> {
        Self::from_bytes_with(bytes, detect_damaged, KdumpFile::salvage)
    }

    /// The same dump with the 2nd bitmap of its kdump-compressed file as its pages tell it: see [`KdumpFile::realign`].
    ///
    /// # Errors
    /// As [`Self::salvage`].
    pub fn realigned(mut self, with: Realigned) -> Result<Self> {
        if let Source::Kdump(file) = &self.source {
            self.source = Source::Kdump(Box::new(file.realigned(with)?));
        }
        Ok(self)
    }

    /// The same ELF core with the segments `put` read as they should be: each as it is, and as it should be.
    ///
    /// # Errors
    /// As [`Self::salvage`].
    pub fn with_segments(mut self, put: &[(Segment, Segment)]) -> Result<Self> {
        if let Source::Elf(core) = &self.source {
            self.source = Source::Elf(Box::new(core.with_segments(put)?));
        }
        Ok(self)
    }

    fn from_bytes_with(
        bytes: Arc<dyn Bytes>,
        detect: fn(&dyn Bytes) -> Result<Kind>,
        open: fn(Arc<dyn Bytes>) -> Result<KdumpFile>,
    ) -> Result<Self> {
        let file = Arc::clone(&bytes);
        let mut kind = detect(&*bytes)?;
        let (mut inner, mut cut, mut problems, mut index) = (bytes, None, Vec::new(), 0);
        let flattened = kind == Kind::Flattened;
        if flattened {
            let unwrapped = FlattenedBytes::open(inner)?;
            cut = unwrapped.truncated().cloned();
            problems.extend(unwrapped.misplaced().iter().map(|block| block.error(file.name())));
            problems.extend(cut.iter().map(|c| c.error(file.name(), file.len())));
            problems.extend(unwrapped.another().map(|offset| FormatError::OtherFormat {
                file: file.name().to_owned(),
                found: "several flattened streams, one behind the other",
                offset,
                next: "the first is used; `tail -c +OFFSET | coresift unflatten OUT`, with that offset plus 1, unwraps the next",
            }));
            index = unwrapped.memory();
            cut = cut.or_else(|| unwrapped.misplaced().first().map(Cut::of_misplaced));
            inner = Arc::new(unwrapped);
            kind = detect(&*inner)?;
        }
        let mut input = match kind {
            Kind::Elf => Self::elf(inner)?,
            Kind::Kdump => Self::kdump(inner, open)?,
            Kind::Flattened => {
                return Err(FormatError::OtherFormat {
                    file: file.name().to_owned(),
                    found: "a flattened stream inside a flattened stream",
                    offset: 0,
                    next: "unwrap the outer one first, with `makedumpfile -R`",
                });
            }
        };
        problems.append(&mut input.problems);
        Ok(Self { bytes: file, flattened, cut, problems, index, ..input })
    }

    fn elf(bytes: Arc<dyn Bytes>) -> Result<Self> {
        let mut core = ElfCore::open(Arc::clone(&bytes), PageSize::K4)?;
        let (notes, problems) = core.take_notes();
        let endian = core.headers().endian;
        Ok(Self::of(bytes, Source::Elf(Box::new(core)), endian, notes, problems, |found| {
            found.map_or(Vmcoreinfo::None, Vmcoreinfo::InNotes)
        }))
    }

    fn kdump(bytes: Arc<dyn Bytes>, open: fn(Arc<dyn Bytes>) -> Result<KdumpFile>) -> Result<Self> {
        let mut file = open(Arc::clone(&bytes))?;
        let problems = file.take_problems();
        let notes = file.region(Region::Notes)?;
        let text = file.region(Region::Vmcoreinfo)?;
        let sub = file.sub_header();
        let named =
            sub.offset_vmcoreinfo.checked_sub(sub.offset_note).map(|at| at..at.saturating_add(text.len() as u64));
        let endian = file.layout().endian;
        let notes_len = notes.len() as u64;
        Ok(Self::of(bytes, Source::Kdump(Box::new(file)), endian, notes, problems, |found| match (named, found) {
            (Some(range), _) if !text.is_empty() && range.end <= notes_len => {
                Vmcoreinfo::InNotes(range.start as usize..range.end as usize)
            }
            (_, Some(range)) => Vmcoreinfo::InNotes(range),
            _ if text.is_empty() => Vmcoreinfo::None,
            _ => Vmcoreinfo::Alone(text),
        }))
    }

    fn of(
        bytes: Arc<dyn Bytes>,
        source: Source,
        endian: Endian,
        notes: Vec<u8>,
        problems: Vec<FormatError>,
        vmcoreinfo: impl FnOnce(Option<Range<usize>>) -> Vmcoreinfo,
    ) -> Self {
        let scan = Notes::new(&notes, endian);
        let vmcoreinfo = vmcoreinfo(scan.vmcoreinfo());
        let note_cpus = scan.cpus();
        Self {
            bytes,
            source,
            notes,
            vmcoreinfo,
            note_cpus,
            flattened: false,
            cut: None,
            problems,
            name: None,
            more_len: 0,
            index: 0,
        }
    }

    /// What holds the memory.
    #[must_use]
    pub const fn container(&self) -> Container {
        match self.source {
            Source::Elf(_) => Container::Elf,
            Source::Kdump(_) | Source::Set(_) => Container::Kdump,
        }
    }

    /// The name of the container, with `flattened ` before it where it is wrapped.
    #[must_use]
    pub fn container_name(&self) -> String {
        let name = self.container().name();
        if self.flattened { format!("flattened {name}") } else { name.to_owned() }
    }

    /// Whether the container is wrapped in a flattened stream.
    #[must_use]
    pub const fn flattened(&self) -> bool {
        self.flattened
    }

    /// Memory the index of the flattened stream occupies, in bytes; 0 of a file that is none.
    #[must_use]
    pub const fn index_memory(&self) -> usize {
        self.index
    }

    /// How the flattened stream breaks off, where it does, or the first of its blocks that cannot belong where they say.
    #[must_use]
    pub const fn truncated(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// What is wrong with the file although it can be read: each names the field and what to do.
    #[must_use]
    pub fn problems(&self) -> &[FormatError] {
        &self.problems
    }

    /// The memory.
    #[must_use]
    pub const fn memory(&self) -> &dyn PhysicalMemory {
        match &self.source {
            Source::Elf(core) => &**core,
            Source::Kdump(file) => &**file,
            Source::Set(set) => &**set,
        }
    }

    /// Leaves physical addresses (start and end) out of the memory of an ELF core: [`ElfCore::set_aside`].
    pub fn set_aside(&mut self, ranges: Vec<(u64, u64)>) {
        if let Source::Elf(core) = &mut self.source {
            core.set_aside(ranges);
        }
    }

    /// Takes pages of an ELF core for not known: [`ElfCore::set_unknown`].
    pub fn set_unknown(&mut self, pages: PageSet) {
        if let Source::Elf(core) = &mut self.source {
            core.set_unknown(pages);
        }
    }

    /// Sets the page size of an ELF core, which the file itself does not tell (VMCOREINFO does: PAGESIZE).
    ///
    /// # Errors
    /// A kdump-compressed file has pages of another size.
    pub fn set_page_size(&mut self, page: PageSize) -> Result<()> {
        if let Source::Elf(core) = &mut self.source {
            core.set_page_size(page);
        }
        match self.headers() {
            Some(file) if file.page_size() != page => Err(FormatError::BadField {
                file: self.bytes.name().to_owned(),
                field: "block_size",
                offset: Header::offset_of("block_size", file.layout().abi),
                value: file.header().block_size.to_string(),
                rule: format!("the crashed kernel's pages have {} bytes", page.bytes()),
                next: "one of header and VMCOREINFO is damaged: use another copy of the file",
            }),
            _ => Ok(()),
        }
    }
}

impl Source {
    /// The part that a file opened by itself is.
    fn into_part(self, bytes: &dyn Bytes) -> Result<KdumpFile> {
        match self {
            Self::Kdump(file) => Ok(*file),
            Self::Elf(_) | Self::Set(_) => Err(SetError::NotAPart { file: bytes.name().to_owned() }.into()),
        }
    }
}

/// The texts of `files` that say what was erased, one behind the other. Where all parts of a set say the same, it is said once.
///
/// # Errors
/// The operating system's.
pub fn erase_info<'a>(files: impl IntoIterator<Item = &'a KdumpFile>) -> Result<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = Vec::new();
    for file in files {
        let text = file.region(Region::Eraseinfo)?;
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    Ok(texts.concat())
}
