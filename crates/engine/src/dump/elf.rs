//! One attempt at an ELF core: its headers need to know every page, so these are decided to the last before anything is written.

use super::attempt::{Run, neighbours};
use super::ended::Ended;
use crate::batches::Pass;
use crate::bitmap::Bitmap;
use crate::elf_early::Early;
use crate::elf_pages::Asked;
use crate::elf_segments::{Placement, needed_first};
use crate::elf_writer::ElfWriter;
use crate::error::EngineError;
use crate::file_writer::FileWriter;
use crate::observer::Observer;
use crate::report::{ElfRow, Report};
use crate::selection::Selection;
use crate::source::ElfSource;
use crate::target::Output;
use crate::writer::Readable;
use coresift_format::{PageSet, Pfn};
use coresift_kernel::PageClass;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

impl Run<'_> {
    /// Makes the dump; returns why it ended early, if it did.
    pub(super) fn attempt_elf(
        &mut self,
        source: &ElfSource,
        output: &Arc<Output>,
        observer: &dyn Observer,
    ) -> Result<Option<(Ended, Readable)>, EngineError> {
        let failed = |(failed, readable)| Ok(Some((Ended::Write(failed), readable)));
        let memory = self.source.input.memory();
        let early = Early::write(output, source, memory.page_size());
        // No page set is put into the output: memory has room for all of them.
        let nowhere = Bitmap::new(Arc::clone(output), 0, Pfn(0));
        let plan = match self.plan(nowhere, observer) {
            Ok(plan) => plan,
            Err(e) => return failed((e, Readable(early.is_some()))),
        };
        let clock = Instant::now();
        let asked = Asked {
            memory,
            keep: plan.selection.in_memory(),
            without_zeros: self.exclusion.classes.has(PageClass::Zero),
            threads: self.threads(plan.memory()),
            stop: &self.options.stop,
        };
        let pages = asked.decide(observer);
        if pages.bytes > 0 {
            self.stage("find zeros", clock, plan.selection.len(), pages.bytes);
        }
        self.kept = pages.data.len() + pages.holes.len();
        let first = needed_first(&plan.passes, &pages.data);
        let placement = Placement {
            data: &pages.data,
            zeros: &pages.holes,
            first: &first,
            lost: PageSet::none(),
            page: memory.page_size(),
        };
        let layout = placement.layout(source.kind, &source.segments, source.notes.len() as u64);
        let (segments, layout) = layout.inspect_err(|_| {
            if early.is_some() {
                output.remove_new();
            }
        })?;
        self.report.elf = Some(ElfRow { segments, hole_pages: pages.holes.len() });

        let writer =
            match ElfWriter::begin(Arc::clone(output), layout, placement, &source.segments, &source.notes, early) {
                Ok(writer) => FileWriter::Elf(writer),
                Err(e) => return failed(e),
            };
        let passes: Vec<Pass> = first.iter().cloned().map(Pass::Of).chain([Pass::Rest]).collect();
        let selection = Selection::new(Cow::Borrowed(&pages.data), PageSet::default(), PageSet::default());
        let sets = plan.memory()
            + (pages.data.memory() + pages.holes.memory() + 2 * first.iter().map(PageSet::memory).sum::<usize>())
                as u64;
        // What the test for zeros lost, the copy does not know of.
        self.report.unreadable_pages = pages.lost_count;
        self.report.unreadable = neighbours(&pages.lost);
        let ended = self.copy(&selection, &passes, sets, plan.stopped, writer, observer)?;
        self.report.kept_pages += pages.holes.len();
        zeros(&mut self.report, pages.zero, asked.without_zeros);
        Ok(ended)
    }
}

/// Tells of `zero` pages of zeros, which get no data where they are `excluded`.
pub(super) fn zeros(report: &mut Report, zero: u64, excluded: bool) {
    report.zero_pages = zero;
    if let Some(row) = report.classes.iter_mut().find(|row| row.name == PageClass::Zero.name()) {
        row.pages = zero;
        row.excluded_pages = if excluded { zero } else { 0 };
    }
}
