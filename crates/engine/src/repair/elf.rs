//! Writing an ELF core of the sound pages of another.

use super::{Failed, Job, Repair, notes};
use crate::elf_segments::Placement;
use crate::elf_writer::ElfWriter;
use crate::observer::Stage;
use crate::source::{add_origin, joined};
use coresift_format::{ELF_INCOMPLETE, ElfCore, ElfKind};
use std::sync::Arc;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

impl Job<'_> {
    /// Writes an ELF core of the sound pages; those that are not written yet lie beyond its end.
    pub(super) fn elf(&self, core: &ElfCore, report: &mut Repair) -> Result<(), Failed> {
        let (memory, headers) = (self.input.memory(), core.headers());
        self.judge(report);
        if core.segments_without_paddr() > 0 {
            let without = core.segments_without_paddr();
            report.changed.push(format!("{without} segments without a physical address left out"));
        }
        let zeros = memory.known_zero().without(&self.found.bad);
        let data = memory.data().without(&self.found.bad);
        let page = memory.page_size();
        let placement =
            Placement { data: &data, zeros: &zeros, first: &[], lost: coresift_format::PageSet::none(), page };
        let sources = joined(core.segments().iter().filter(|s| s.has_paddr(headers.bits)));
        let kind = ElfKind {
            bits: headers.bits,
            endian: headers.endian,
            machine: headers.machine,
            flags: headers.flags & !ELF_INCOMPLETE,
        };
        let mut notes = match self.mended_notes(report) {
            Some((notes, what)) => {
                report.changed.push(what.to_owned());
                notes
            }
            None => notes::whole(self.input),
        };
        core.origin().into_iter().for_each(|origin| add_origin(&mut notes, headers.endian, origin));
        let (_, layout) = placement.layout(kind, &sources, notes.len() as u64).map_err(Failed::Read)?;
        let mut writer = ElfWriter::begin(Arc::clone(self.output), layout, placement, &sources, &notes, None)
            .map_err(|(failed, _)| failed)?;
        self.readable.set(true);
        let (mut view, mut buf, mut done) = (memory.view(), vec![0; PIECE], 0);
        'copy: for (start, end) in data.all_runs() {
            let mut at = start;
            while at < end {
                if self.stopped() {
                    break 'copy;
                }
                let pages = (end.0 - at.0).min((PIECE / page.bytes()) as u64);
                let piece = buf.get_mut(..pages as usize * page.bytes()).unwrap_or_default();
                // Each page was read before, but for --quick; what cannot be read now is zeros, as it would be in a copy.
                if view.read(at.addr(page), piece).is_err() {
                    self.unread.set(true);
                    piece.fill(0);
                }
                if let Err(failed) = writer.pages(piece) {
                    done += (failed.done / page.bytes()) as u64;
                    self.unless_full(failed)?;
                    break 'copy;
                }
                done += pages;
                self.observer.progress(Stage::CopyPages, done, data.len());
                at = at.plus(pages);
            }
        }
        report.unsaved = data.len() - done;
        self.admit(report);
        Ok(writer.finish(report.complete)?)
    }
}
