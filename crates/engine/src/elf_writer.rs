//! An ELF core, readable from the moment its headers are there: marked incomplete until the end, and pages that are not written yet lie
//! beyond the end of the file, where crash, drgn, gdb and coresift take them for lost (libkdumpfile reads zeros). Pages that cannot be read when it is their turn are taken out of the
//! headers before anything stands in their place.

use crate::elf_early::Early;
use crate::elf_segments::Placement;
use crate::target::{Output, WriteFailed};
use crate::worker::Batch;
use crate::writer::Readable;
use coresift_format::{ElfLayout, PageSet, Pfn, Segment};
use std::sync::Arc;

/// Bytes of headers that are written together.
const BLOCK: usize = 256 << 10;

/// Writes one ELF core.
pub struct ElfWriter<'a> {
    output: Arc<Output>,
    layout: ElfLayout,
    placement: Placement<'a>,
    /// The memory that the program headers describe.
    sources: &'a [Segment],
    /// Pages that could not be read when they were to be written.
    lost: Vec<(Pfn, Pfn)>,
    /// Where the next data go.
    end: u64,
}

impl<'a> ElfWriter<'a> {
    /// Writes all that stands in front of the pages: the program headers of the memory that `sources` describe, as `placement` has it,
    /// and `notes`, in the place of an `early` core if there is one. From then on the target is an incomplete core without pages.
    ///
    /// # Errors
    /// The target is full or cannot be written, and whether what is there can be read.
    pub fn begin(
        output: Arc<Output>,
        layout: ElfLayout,
        placement: Placement<'a>,
        sources: &'a [Segment],
        notes: &[u8],
        early: Option<Early>,
    ) -> Result<Self, (WriteFailed, Readable)> {
        let writer = Self { output, layout, placement, sources, lost: Vec::new(), end: layout.data };
        let admitted = writer.output.admits(layout.data).inspect_err(|_| {
            if early.is_some() {
                writer.output.remove_new();
            }
        });
        let replaced = early.filter(|_| admitted.is_ok()).and_then(|early| writer.replace(&early, notes).ok());
        admitted
            .and_then(|()| match replaced {
                Some(()) => Ok(()),
                None => writer.output.empty(0).and_then(|()| writer.headers(notes)),
            })
            .map_err(|e| (e, Readable(false)))?;
        Ok(writer)
    }

    fn headers(&self, notes: &[u8]) -> Result<(), WriteFailed> {
        let mut head = self.layout.head(true);
        let mut at = 0;
        if self.output.is_stream() {
            // No offset is written twice: the flags, which say whether the file is complete, come last.
            let (flags_at, flags) = self.layout.flags(true);
            let behind = head.split_off(flags_at as usize + flags.len());
            head.truncate(flags_at as usize);
            self.output.write_at(&head, 0)?;
            at = flags_at + flags.len() as u64;
            head = behind;
        }
        self.behind(0, at, head, notes)
    }

    /// As [`Self::headers`], in the place of an early core.
    fn replace(&self, early: &Early, notes: &[u8]) -> Result<(), WriteFailed> {
        let mut front = self.layout.head(true);
        let first = self.placement.headers(self.sources).next().unwrap_or_default();
        front.extend(self.load(first));
        let at = front.len() as u64;
        early.replace(&self.output, self.layout, notes, &front, || self.behind(1, at, Vec::new(), notes))
    }

    /// Writes `block` at `at`, and behind it all headers but the first `skipped`, the notes, and zeros up to the pages.
    fn behind(&self, skipped: usize, at: u64, block: Vec<u8>, notes: &[u8]) -> Result<(), WriteFailed> {
        let (at, mut block) = self.table(self.placement, skipped, at, block)?;
        block.resize(self.layout.notes.saturating_sub(at) as usize, 0);
        block.extend(notes);
        block.resize(self.layout.data.saturating_sub(at) as usize, 0);
        self.output.write_at(&block, at)
    }

    /// Writes `block` at `at`, and behind it the program headers of the memory but the first `skipped`; returns what is left to write, and where.
    fn table(
        &self,
        placement: Placement<'_>,
        skipped: usize,
        mut at: u64,
        mut block: Vec<u8>,
    ) -> Result<(u64, Vec<u8>), WriteFailed> {
        for header in placement.headers(self.sources).skip(skipped) {
            if block.len() >= BLOCK {
                self.output.write_at(&block, at)?;
                at += block.len() as u64;
                block.clear();
            }
            block.extend(self.load(header));
        }
        block.extend(self.layout.section().unwrap_or_default());
        Ok((at, block))
    }

    /// A program header, from one with a file offset that begins with the first page's.
    fn load(&self, header: Segment) -> Vec<u8> {
        let file_offset = self.layout.data + header.file_offset;
        self.layout.load(&Segment { file_offset, ..header })
    }

    /// Takes what is lost out of the headers. Until their number is written, too, the last of them are not looked at: what they describe is
    /// lost for that moment.
    fn leave_out(&mut self) -> Result<(), WriteFailed> {
        let mut lost = PageSet::from_ranges(self.lost.iter().copied());
        let mut gap = 1;
        let layout = loop {
            let placement = Placement { lost: &lost, ..self.placement };
            let loads = placement.headers(self.sources).count() as u64;
            if let Some(layout) = self.layout.with_loads(loads) {
                break layout;
            }
            // Where there is no header left, what lies between lost pages is left out with them, in short gaps first.
            lost = PageSet::from_ranges(lost.all_runs().map(|(start, end)| {
                let near = lost.runs(end, end.plus(gap)).next();
                (start, near.map_or(end, |(next, _)| next))
            }));
            gap *= 2;
        };
        self.layout = layout;
        let (at, block) = self.table(Placement { lost: &lost, ..self.placement }, 0, layout.loads_at, Vec::new())?;
        self.output.write_at(&block, at)?;
        self.output.write_at(&layout.head(true), 0)
    }

    /// Writes the pages of one batch, and returns where.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn batch(&mut self, batch: &Batch) -> Result<u64, WriteFailed> {
        // Of a stream the headers are gone: what is lost is zeros there, in a file that is marked and with a report that names it.
        if !batch.lost.is_empty() && !self.output.is_stream() {
            self.lost.extend(batch.lost.iter().map(|(pfn, _)| (*pfn, pfn.plus(1))));
            self.leave_out().map_err(|failed| WriteFailed { done: 0, ..failed })?;
        }
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
