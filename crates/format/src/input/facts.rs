//! What a dump says of itself: notes, headers, the machine.

use super::{Input, Source, Vmcoreinfo, erase_info};
use crate::Result;
use crate::elf::Segment;
use crate::elf_memory::ElfCore;
use crate::elf_write::ELF_INCOMPLETE;
use crate::endian::{Bits, Endian};
use crate::kdump::{Header, HeaderLayout, KdumpFile, SetError, SubHeader};
use crate::machine::Machine;
use crate::notes::Notes;

/// More CPUs than this no machine has; a header that says so is not believed.
const MAX_CPUS: i32 = 1 << 20;

impl Input {
    /// The note data as they are in the file; of several PT_NOTEs one behind the other.
    #[must_use]
    pub fn notes(&self) -> &[u8] {
        &self.notes
    }

    /// The VMCOREINFO text.
    #[must_use]
    pub fn vmcoreinfo(&self) -> Option<&[u8]> {
        match &self.vmcoreinfo {
            Vmcoreinfo::None => None,
            Vmcoreinfo::InNotes(range) => self.notes.get(range.clone()),
            Vmcoreinfo::Alone(text) => Some(text),
        }
    }

    /// Where in [`Self::notes`] the VMCOREINFO text is, in bytes; `None` where it is not in the notes.
    #[must_use]
    pub const fn vmcoreinfo_offset_in_notes(&self) -> Option<u64> {
        match &self.vmcoreinfo {
            Vmcoreinfo::InNotes(range) => Some(range.start as u64),
            Vmcoreinfo::None | Vmcoreinfo::Alone(_) => None,
        }
    }

    /// Number of CPUs: what a kdump-compressed header says, else the number of register notes.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        match self.kdump_header() {
            Some((header, _)) if (1..=MAX_CPUS).contains(&header.nr_cpus) => header.nr_cpus as u32,
            _ => self.note_cpus,
        }
    }

    /// Both headers of a kdump-compressed file; of a split set, those of its first part.
    #[must_use]
    pub fn kdump_header(&self) -> Option<(&Header, &SubHeader)> {
        self.headers().map(|file| (file.header(), file.sub_header()))
    }

    /// ABI and byte order of a kdump-compressed file's headers.
    #[must_use]
    pub fn kdump_layout(&self) -> Option<HeaderLayout> {
        self.headers().map(KdumpFile::layout)
    }

    pub(super) fn headers(&self) -> Option<&KdumpFile> {
        self.kdump_files().first()
    }

    /// The opened kdump-compressed file, where it is a single one.
    #[must_use]
    pub const fn as_kdump(&self) -> Option<&KdumpFile> {
        match &self.source {
            Source::Elf(_) | Source::Set(_) => None,
            Source::Kdump(file) => Some(file),
        }
    }

    /// The kdump-compressed files that hold the memory: one, or the parts of a split set in the order of their pages; none for an ELF
    /// core.
    #[must_use]
    pub fn kdump_files(&self) -> &[KdumpFile] {
        match &self.source {
            Source::Elf(_) => &[],
            Source::Kdump(file) => std::slice::from_ref(file),
            Source::Set(set) => set.parts(),
        }
    }

    /// What of a split set is missing or incomplete; nothing for anything else.
    #[must_use]
    pub fn set_problems(&self) -> &[SetError] {
        match &self.source {
            Source::Set(set) => set.problems(),
            Source::Elf(_) | Source::Kdump(_) => &[],
        }
    }

    /// The text that says what was erased; of a split set, of all parts; of an ELF core, of its notes.
    ///
    /// # Errors
    /// The operating system's.
    pub fn erase_info(&self) -> Result<Vec<u8>> {
        match self.as_elf() {
            Some(core) => Ok(Notes::new(&self.notes, core.headers().endian).erase_info()),
            None => erase_info(self.kdump_files()),
        }
    }

    /// The dump level that the file records: of a kdump-compressed file its sub header's, of an ELF core its note's.
    #[must_use]
    pub fn level(&self) -> Option<i32> {
        match self.as_elf() {
            Some(core) => core.origin().map(|origin| origin.level.into()),
            None => self.kdump_header().map(|(_, sub)| sub.dump_level),
        }
    }

    /// The opened ELF core.
    #[must_use]
    pub const fn as_elf(&self) -> Option<&ElfCore> {
        match &self.source {
            Source::Elf(core) => Some(core),
            Source::Kdump(_) | Source::Set(_) => None,
        }
    }

    /// The PT_LOADs of an ELF core; none for a kdump-compressed file.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        self.as_elf().map_or(&[], ElfCore::segments)
    }

    /// Whether the file says of itself that it ended early.
    #[must_use]
    pub fn incomplete(&self) -> bool {
        match &self.source {
            Source::Elf(core) => core.headers().flags & ELF_INCOMPLETE != 0,
            Source::Kdump(file) => file.incomplete(),
            Source::Set(set) => !set.problems().is_empty(),
        }
    }

    /// Byte order of the crashed machine.
    #[must_use]
    pub fn byte_order(&self) -> Endian {
        match (&self.source, self.kdump_layout()) {
            (Source::Elf(core), _) => core.headers().endian,
            (_, layout) => layout.map_or(Endian::Little, |layout| layout.endian),
        }
    }

    /// Width of the file's headers: that of the crashed kernel, but for a 32-bit kernel's ELF64 core.
    #[must_use]
    pub fn bits(&self) -> Bits {
        match (&self.source, self.kdump_layout()) {
            (Source::Elf(core), _) => core.headers().bits,
            (_, layout) => layout.map_or(Bits::B64, |layout| layout.abi.bits()),
        }
    }

    /// The machine: `e_machine` of an ELF core, else by the name in the header's utsname.
    #[must_use]
    pub fn machine(&self) -> Machine {
        match (&self.source, self.kdump_header()) {
            (Source::Elf(core), _) => Machine(core.headers().machine),
            (_, header) => Machine::from_uts(header.map_or(&[], |(header, _)| header.machine())),
        }
    }

    /// Length in bytes of the file that was opened (of a flattened stream, the stream).
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.bytes.len().saturating_add(self.more_len)
    }

    /// Whether reading it reaches the memory of a machine itself ([`crate::Bytes::is_memory`]), as /proc/vmcore does.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        self.bytes.is_memory()
    }

    /// The name of the file that was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.bytes.name())
    }
}
