//! The ELF core that a new file is before it is known where the pages go: it has the notes, no page, and the mark of an incomplete file.
//!
//! The headers that name the pages take its place without a moment at which the file is none. Its notes, which are in their way, are copied
//! behind them; then all is written but what the header in front brings into force, which comes last, in one write of 176 bytes at the most.

use crate::elf_segments::Placement;
use crate::elf_writer::ElfWriter;
use crate::source::ElfSource;
use crate::target::{Output, WriteFailed};
use coresift_format::{ElfLayout, PageSet, PageSize};
use std::sync::Arc;

/// A core without pages.
pub struct Early {
    layout: ElfLayout,
}

impl Early {
    /// Writes one, if `output` is a file that did not exist (what an existing one holds is given up only when the headers are known to have
    /// room) and has room.
    #[must_use]
    pub fn write(output: &Arc<Output>, source: &ElfSource, page: PageSize) -> Option<Self> {
        if !output.is_new() {
            return None;
        }
        let none = PageSet::none();
        let placement = Placement { data: none, zeros: none, first: &[], lost: none, page };
        let (_, layout) = placement.layout(source.kind, &source.segments, source.notes.len() as u64).ok()?;
        let begun = ElfWriter::begin(Arc::clone(output), layout, placement, &source.segments, &source.notes, None);
        if begun.is_err() {
            output.remove_new();
        }
        begun.ok().map(|_| Self { layout })
    }

    /// Puts the `rest` of a core in its place, which writes what stands behind the first PT_LOAD, up to the pages at `layout`; and then `front`,
    /// its header and that PT_LOAD.
    ///
    /// # Errors
    /// The target is full or cannot be written: it is a core without pages still.
    pub fn replace(
        &self,
        output: &Output,
        layout: ElfLayout,
        notes: &[u8],
        front: &[u8],
        rest: impl FnOnce() -> Result<(), WriteFailed>,
    ) -> Result<(), WriteFailed> {
        let before = output.written();
        let behind = layout.data.max(self.layout.data);
        output.write_at(notes, behind)?;
        self.notes_at(output, behind)?;
        rest()?;
        self.notes_at(output, layout.notes)?;
        output.cut(layout.data)?;
        output.sync()?;
        output.write_at(front, 0)?;
        // As if the file had been empty.
        output.discount(before.max(output.written()).saturating_sub(layout.data));
        Ok(())
    }

    /// Says that the notes are at `at`, where they are on the medium.
    fn notes_at(&self, output: &Output, at: u64) -> Result<(), WriteFailed> {
        output.sync()?;
        output.write_at(&self.layout.with_notes(at).head(true), 0)
    }
}
