//! An ELF core, readable from the moment its headers are there: marked incomplete until the end, and pages that are not written yet lie
//! beyond the end of the file, where every reader takes them for lost.

use crate::elf_segments::Placement;
use crate::target::{Output, WriteFailed};
use crate::worker::Batch;
use crate::writer::Readable;
use coresift_format::{ElfLayout, Segment};
use std::sync::Arc;

/// Bytes of headers that are written together.
const BLOCK: usize = 256 << 10;

/// Writes one ELF core.
pub struct ElfWriter {
    output: Arc<Output>,
    layout: ElfLayout,
    /// Where the next data go.
    end: u64,
}

impl ElfWriter {
    /// Writes all that stands in front of the pages: the program headers of the memory that `sources` describe, as `placement` has it,
    /// and `notes`. From then on the target is an incomplete core without pages.
    ///
    /// # Errors
    /// The target is full or cannot be written, and whether what is there can be read.
    pub fn begin(
        output: Arc<Output>,
        layout: ElfLayout,
        placement: Placement<'_>,
        sources: &[Segment],
        notes: &[u8],
    ) -> Result<Self, (WriteFailed, Readable)> {
        let writer = Self { output, layout, end: layout.data };
        writer
            .output
            .admits(layout.data)
            .and_then(|()| writer.output.empty(0))
            .and_then(|()| writer.headers(placement, sources, notes))
            .map_err(|e| (e, Readable(false)))?;
        Ok(writer)
    }

    fn headers(&self, placement: Placement<'_>, sources: &[Segment], notes: &[u8]) -> Result<(), WriteFailed> {
        let mut block = self.layout.head(true);
        let mut at = 0;
        if self.output.is_stream() {
            // No offset is written twice: the flags, which say whether the file is complete, come last.
            let (flags_at, flags) = self.layout.flags(true);
            let behind = block.split_off(flags_at as usize + flags.len());
            block.truncate(flags_at as usize);
            self.output.write_at(&block, 0)?;
            at = flags_at + flags.len() as u64;
            block = behind;
        }
        let mut flush = |block: &mut Vec<u8>| {
            self.output.write_at(block, at)?;
            at += block.len() as u64;
            block.clear();
            Ok(())
        };
        for header in placement.headers(sources) {
            let file_offset = self.layout.data + header.file_offset;
            block.extend(self.layout.load(&Segment { file_offset, ..header }));
            if block.len() >= BLOCK {
                flush(&mut block)?;
            }
        }
        block.extend(self.layout.section().unwrap_or_default());
        block.extend(notes);
        let padding = self.layout.data.saturating_sub(self.layout.notes + notes.len() as u64);
        block.resize(block.len() + padding as usize, 0);
        flush(&mut block)
    }

    /// Writes the pages of one batch, and returns where.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn batch(&mut self, batch: &Batch) -> Result<u64, WriteFailed> {
        self.pages(batch.stored())
    }

    /// Writes pages behind those that are written, and returns where.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn pages(&mut self, bytes: &[u8]) -> Result<u64, WriteFailed> {
        let start = self.end;
        self.output.write_at(bytes, start)?;
        self.end += bytes.len() as u64;
        Ok(start)
    }

    /// Waits until all is on the medium, and takes the mark of an incomplete file away if the file is `complete`.
    ///
    /// # Errors
    /// The target is full or cannot be written; the mark stays then.
    pub fn finish(self, complete: bool) -> Result<(), WriteFailed> {
        let (at, flags) = self.layout.flags(!complete);
        if self.output.is_stream() {
            self.output.write_at(&flags, at)?;
            return self.output.end();
        }
        self.output.sync()?;
        if complete {
            self.output.write_at(&flags, at)?;
            self.output.sync()?;
        }
        Ok(())
    }

    /// Leaves a target that failed: a file is as it should be, a stream whose reader is still there gets its mark and its end.
    pub fn give_up(self) {
        if self.output.is_stream() {
            // The failure that led here is the one to tell.
            let _another = self.finish(false);
        }
    }

    /// As [`crate::writer::Writer::short`].
    #[must_use]
    pub fn short(&self) -> Option<u64> {
        self.output.short()
    }

    /// Free bytes of the target, where that is known.
    #[must_use]
    pub fn room(&self) -> Option<u64> {
        self.output.room(self.end)
    }
}
