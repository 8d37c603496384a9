//! The file that pages are copied to, of one format or the other.

use crate::elf_writer::ElfWriter;
use crate::target::WriteFailed;
use crate::worker::Batch;
use crate::writer::Writer;

/// A file whose headers are written.
pub enum FileWriter<'a> {
    /// A kdump-compressed file.
    Kdump(Box<Writer>),
    /// An ELF core.
    Elf(ElfWriter<'a>),
}

impl FileWriter<'_> {
    /// Whether every page takes its own place, as it is: there are no descriptors that could say something else.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Elf(_))
    }

    /// The writer of a kdump-compressed file, if it is one.
    #[must_use]
    pub fn into_kdump(self) -> Option<Writer> {
        match self {
            Self::Kdump(writer) => Some(*writer),
            Self::Elf(_) => None,
        }
    }

    /// Writes the data of one batch, and returns where. On failure the pages whose data did get written can be read.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn batch(&mut self, batch: &Batch) -> Result<u64, WriteFailed> {
        match self {
            Self::Kdump(writer) => writer.batch(batch),
            Self::Elf(writer) => writer.batch(batch),
        }
    }

    /// Of a dry run that only counts what is needed, for there was no room: where the file would end, in bytes.
    #[must_use]
    pub fn short(&self) -> Option<u64> {
        match self {
            Self::Kdump(writer) => writer.short(),
            Self::Elf(writer) => writer.short(),
        }
    }

    /// Free bytes of the target, where that is known.
    #[must_use]
    pub fn room(&self) -> Option<u64> {
        match self {
            Self::Kdump(writer) => writer.room(),
            Self::Elf(writer) => writer.room(),
        }
    }

    /// Leaves a target that failed: a file is as it should be, a stream whose reader is still there gets its mark and its end.
    pub fn give_up(self) {
        match self {
            Self::Kdump(writer) => writer.give_up(),
            Self::Elf(writer) => writer.give_up(),
        }
    }

    /// Writes what is left, waits until it is on the medium, and takes the mark of an incomplete file away if the file is
    /// `complete`.
    ///
    /// # Errors
    /// The target is full or cannot be written; the mark stays then.
    pub fn finish(self, complete: bool) -> Result<(), WriteFailed> {
        match self {
            Self::Kdump(writer) => writer.finish(complete),
            Self::Elf(writer) => writer.finish(complete),
        }
    }
}
