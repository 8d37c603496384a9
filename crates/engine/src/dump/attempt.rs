//! One attempt: headers, plan, copy, and the report of it.

use super::ended::{Ended, forecast};
use crate::batches::{BATCH_BYTES, Batches, Pass};
use crate::bitmap::Bitmap;
use crate::budget::{Budget, peak_memory, usable_cpus};
use crate::checks;
use crate::elf_pages;
use crate::error::EngineError;
use crate::file_writer::FileWriter;
use crate::observer::{Event, Observer};
use crate::options::{Choice, DumpOptions, Exclusion, Format};
use crate::pipeline::{Copied, Copying, copy};
use crate::plan::{Plan, Prepared};
use crate::report::{ChosenRow, Report, SpaceRow, StageRow, UnreadableRun};
use crate::scan::{Chunks, Limits};
use crate::selection::Selection;
use crate::source::{ElfSource, Source};
use crate::stop::StopReason;
use crate::target::{Output, WriteFailed};
use crate::writer::{Metadata, Readable, Writer};
use coresift_format::Pfn;
use coresift_format::codec::Codec;
use coresift_format::kdump::STATUS_EXCLUDED_VMEMMAP;
use coresift_kernel::PageClass;
use std::sync::Arc;
use std::time::Instant;

/// What stands in front of the pages.
pub(super) enum Head {
    /// Of a kdump-compressed file.
    Kdump(Box<Metadata>),
    /// Of an ELF core.
    Elf(ElfSource),
}

impl Head {
    pub(super) fn of(source: &Source, options: &DumpOptions, exclusion: Exclusion) -> Result<Self, EngineError> {
        Ok(match options.format {
            Format::Kdump => {
                let mut meta = source.metadata(options.compression.header().into(), exclusion.level)?;
                if options.exclude_unused_map && source.kernel.is_some() {
                    meta.header.status |= STATUS_EXCLUDED_VMEMMAP;
                }
                Self::Kdump(Box::new(meta))
            }
            Format::Elf => Self::Elf(source.elf(exclusion.level)?),
        })
    }
}

/// One attempt.
pub(crate) struct Run<'a> {
    pub(crate) source: &'a Source,
    pub(crate) options: &'a DumpOptions,
    pub(crate) exclusion: Exclusion,
    started: Instant,
    /// When the attempt began, which for the first is when the run did.
    pub(super) started_here: Instant,
    /// Whether no other attempt was made before.
    first: bool,
    pub(crate) budget: Budget,
    /// Memory of page sets that is taken whatever the budget, in bytes.
    pub(crate) fixed: u64,
    /// Memory that the page sets of the plan and of the file take at the most, where the file holds none of them, in bytes.
    sets: u64,
    /// Pages to write, once that is known.
    pub(crate) kept: u64,
    pub(crate) report: Report,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        source: &'a Source,
        options: &'a DumpOptions,
        exclusion: Exclusion,
        started: Instant,
        first: bool,
    ) -> Result<Self, EngineError> {
        let input = &source.input;
        let memory = input.memory();
        let report = Report {
            input: input.name().to_owned(),
            container: input.container_name(),
            format: options.format.to_string(),
            release: source.kernel.as_ref().map(|k| k.release.clone()),
            level: exclusion.level.number(),
            compression: compression(options).to_string(),
            page_size: memory.page_size().bytes() as u64,
            total_pages: source.max_mapnr().0,
            ram_pages: memory.ram().len(),
            absent_pages: memory.ram().len() - memory.stored().len(),
            dry_run: options.dry_run,
            notes: source.notes.clone(),
            ..Report::default()
        };
        let budget = Budget::new(options.max_memory);
        let input_sets = (memory.ram().memory() + memory.stored().memory() + input.index_memory()) as u64;
        let map = source.kernel.as_ref().map_or((0, 0), |k| (k.memmap.memory() as u64, Chunks::of(k).len()));
        let fixed = Budget::fixed(input_sets + map.0, map.1);
        let sets = match options.format {
            // There is no bitmap in the file that could hold one.
            Format::Elf => elf_pages::sets(memory.stored()).saturating_add(source.segments_memory()),
            Format::Kdump => 0,
        };
        let needed = Budget::needed(compression(options).largest(), fixed + sets);
        // Sets of a kdump-compressed file find room in the file; without that, too much ends by the system's hand.
        if (budget.given || options.format == Format::Elf) && needed > budget.bytes {
            return Err(EngineError::Budget { budget: budget.bytes, needed });
        }
        let started_here = if first { started } else { Instant::now() };
        Ok(Self { source, options, exclusion, started, started_here, first, budget, fixed, sets, kept: 0, report })
    }

    /// Threads that were asked for.
    pub(crate) fn wanted_threads(&self) -> usize {
        self.options.threads.unwrap_or_else(usable_cpus).max(1)
    }

    pub(super) fn threads(&self, page_sets: u64) -> usize {
        self.budget.threads(self.wanted_threads(), compression(self.options).largest(), self.fixed + page_sets)
    }

    /// Makes the dump; returns why it ended early, if it did.
    pub(super) fn attempt(
        &mut self,
        head: Head,
        output: &Arc<Output>,
        observer: &dyn Observer,
    ) -> Result<Option<(Ended, Readable)>, EngineError> {
        let failed = |(failed, readable)| Ok(Some((Ended::Write(failed), readable)));
        let meta = match head {
            Head::Kdump(meta) => *meta,
            Head::Elf(source) => return self.attempt_elf(&source, output, observer),
        };
        let memory = self.source.input.memory();
        let mut writer = match Writer::begin(Arc::clone(output), meta, memory.ram()) {
            Ok(writer) => writer,
            Err(e) => return failed(e),
        };
        let plan = match self.plan(writer.kept(), observer) {
            Ok(plan) => plan,
            Err(e) => return failed((e, writer.readable())),
        };
        match writer.select(&plan.selection) {
            Ok(()) => {
                let writer = FileWriter::Kdump(Box::new(writer));
                self.copy(&plan.selection, &plan.passes, plan.memory(), plan.stopped, writer, observer)
            }
            Err(e) => {
                writer.give_up();
                failed(e)
            }
        }
    }

    pub(crate) fn plan(&mut self, bitmap: Bitmap, observer: &dyn Observer) -> Result<Plan<'a>, WriteFailed> {
        let memory = self.source.input.memory();
        let mut plan = match &self.source.kernel {
            Some(kernel) => {
                let prepared = Prepared::new(kernel, memory, self.exclusion.classes, &self.options.stop);
                let limits = Limits {
                    threads: self.threads(self.sets),
                    room: match self.options.format {
                        Format::Kdump => self.budget.room(self.options.compression.largest(), self.fixed),
                        Format::Elf => usize::MAX,
                    },
                    stop: &self.options.stop,
                };
                self.stage("understand", self.started_here, 0, 0);
                let clock = Instant::now();
                let mut plan = Plan::filter(prepared, limits, bitmap, observer)?;
                if self.options.exclude_unused_map && plan.stopped.is_none() {
                    plan.leave_out_unused_map(kernel, memory);
                }
                self.stage("find pages", clock, memory.ram().len(), plan.bytes_in);
                plan
            }
            None => {
                self.stage("understand", self.started_here, 0, 0);
                Plan::keep_all(memory)
            }
        };
        if let Some(kernel) = &self.source.kernel
            && plan.stopped.is_none()
        {
            let (rows, notes) = checks::compare(kernel, memory, &plan.classes);
            self.report.checks = rows;
            plan.notes.extend(notes);
        }
        if plan.selection.later() > 0 {
            plan.notes.push(format!(
                "the page set of {} of {} chunks of 32768 page frames did not fit the memory budget; they are scanned again for each kind of page",
                plan.selection.later(),
                plan.selection.chunks().count()
            ));
        }
        // A second attempt finds the same pages.
        for note in plan.notes.iter().filter(|_| self.first) {
            observer.event(Event::Note(note.clone()));
        }
        self.report.notes.append(&mut plan.notes);
        self.report.classes = std::mem::take(&mut plan.classes);
        self.report.guard = std::mem::take(&mut plan.guard);
        self.report.unused_map_pages = plan.unused_map;
        self.kept = plan.selection.len();
        Ok(plan)
    }

    /// Writes the pages of `selection` in the order of `passes`, beside `page_sets` bytes of page sets, which are not all where the
    /// scan was `stopped`; returns why it ended early, if it did.
    pub(super) fn copy(
        &mut self,
        selection: &Selection<'_>,
        passes: &[Pass],
        page_sets: u64,
        stopped: Option<StopReason>,
        writer: FileWriter<'_>,
        observer: &dyn Observer,
    ) -> Result<Option<(Ended, Readable)>, EngineError> {
        let memory = self.source.input.memory();
        let clock = Instant::now();
        let threads = self.threads(page_sets);
        self.report.threads = threads;
        let batches = Batches::new(selection, passes, (BATCH_BYTES / memory.page_size().bytes()).max(1));
        let total = selection.len();
        let how = Copying { choice: compression(self.options), threads, stop: &self.options.stop };
        let (copied, writer) = copy(memory, batches, total, writer, how, observer)?;
        self.account(&copied);
        self.report.unreadable_pages += selection.lost();
        self.stage("copy pages", clock, copied.pages, copied.bytes_in);
        let stopped = copied.stopped.or(stopped);
        let failed = match (copied.failed, writer) {
            (None, Some(writer)) => {
                let complete = stopped.is_none() && self.source.missing.is_none() && self.report.unreadable_pages == 0;
                writer.finish(complete).err()
            }
            (failed, writer) => {
                writer.into_iter().for_each(FileWriter::give_up);
                failed
            }
        };
        Ok(failed.map(Ended::Write).or(stopped.map(Ended::Stopped)).map(|ended| (ended, Readable(true))))
    }

    pub(crate) fn account(&mut self, copied: &Copied) {
        let report = &mut self.report;
        report.kept_pages = copied.pages;
        report.zero_pages = copied.zero;
        report.shared_pages = copied.shared;
        let chosen = copied.chosen.iter();
        report.chosen =
            chosen.map(|(how, batches)| ChosenRow { compression: how.to_string(), batches: *batches }).collect();
        report.unreadable_pages += copied.lost_count;
        let mut lost = copied.lost.clone();
        lost.sort_by_key(|l| l.0);
        report.unreadable.extend(neighbours(&lost));
        let excluded = self.exclusion.classes.has(PageClass::Zero);
        if let Some(row) = report.classes.iter_mut().find(|row| row.name == PageClass::Zero.name()) {
            row.pages = copied.zero;
            row.excluded_pages = if excluded { copied.zero } else { 0 };
        }
    }

    pub(crate) fn stage(&mut self, name: &'static str, clock: Instant, pages: u64, bytes: u64) {
        self.report.stages.push(StageRow { name, seconds: clock.elapsed().as_secs_f64(), pages, bytes });
        self.report.bytes_in += bytes;
    }

    pub(super) fn finish(mut self, outputs: &[Arc<Output>]) -> Report {
        let told: u64 = self.report.unreadable.iter().map(|run| run.pages).sum();
        self.report.unreadable_more = self.report.unreadable_pages.saturating_sub(told);
        self.report.bytes_out = outputs.iter().map(|output| output.written()).sum();
        self.report.file_bytes = outputs.iter().map(|output| output.len()).sum();
        self.report.space =
            forecast(outputs).map(|room| SpaceRow { needed: room.needed, free: room.room(), fits: room.fits() });
        self.report.seconds = self.started.elapsed().as_secs_f64();
        self.report.peak_memory = peak_memory();
        self.report.memory_budget = self.budget.bytes;
        self.report
    }
}

/// How pages are compressed: not at all in an ELF core.
pub(super) fn compression(options: &DumpOptions) -> Choice {
    match options.format {
        Format::Kdump => options.compression,
        Format::Elf => Codec::None.into(),
    }
}

/// Joins neighbouring pages lost for the same reason.
pub(super) fn neighbours(lost: &[(Pfn, String)]) -> Vec<UnreadableRun> {
    let mut runs: Vec<UnreadableRun> = Vec::new();
    for (pfn, reason) in lost {
        // The reason begins with the page's own number.
        let reason =
            reason.split_once(' ').and_then(|(_, rest)| rest.split_once(' ')).map_or(&**reason, |(_, rest)| rest);
        match runs.last_mut() {
            Some(run) if run.pfn + run.pages == pfn.0 && run.reason == reason => run.pages += 1,
            _ => runs.push(UnreadableRun { pfn: pfn.0, pages: 1, reason: reason.to_owned() }),
        }
    }
    runs
}
