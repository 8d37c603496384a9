//! One dump in several files, written at once.
//!
//! ```text
//! all parts begun ─ plan ─ weigh ─ cut ─> a range of page frames a part
//!     lane 1: part 1 ── pipeline ──> file 1 ┐
//!     lane 2: part 2 ── pipeline ──> file 2 ├─ all written? ─> the marks of incomplete files go
//!     ...                                   ┘
//! ```
//!
//! Each part has a pipeline of its own, with its share of the threads, so that the disks of all parts are written at the same time
//! and no file waits for another. A part whose disk is full ends; the others are finished. The marks stay in all parts then, as
//! makedumpfile has it: the set is incomplete, whichever part one looks at.

use crate::batches::{BATCH_BYTES, Batches};
use crate::dump::{Ended, Failed, Run};
use crate::error::EngineError;
use crate::file_writer::FileWriter;
use crate::lock::Lock;
use crate::names::same_file;
use crate::observer::{Event, Observer, Stage};
use crate::options::Target;
use crate::pipeline::{Copied, Copying, copy};
use crate::plan::Plan;
use crate::report::PartRow;
use crate::target::{Output, WriteFailed, directory};
use crate::weigh::{Weighed, cut, weigh};
use crate::writer::{Metadata, Readable, Writer};
use coresift_format::codec::CodecError;
use coresift_format::kdump::PartIdentity;
use coresift_format::{PageSize, Pfn};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Page frames that crash (9.0.2) counts together when it looks for the descriptors of a part: a part that begins elsewhere than at a
/// multiple of this is read wrongly, and the set does not open. libkdumpfile and makedumpfile take any boundary.
const CRASH_SECTION: u64 = 4096;

/// Checks that every one of `paths` can become a part, before any is touched.
///
/// # Errors
/// The first that cannot, and why.
pub fn check(paths: &[PathBuf], force: bool) -> Result<(), EngineError> {
    for (index, path) in paths.iter().enumerate() {
        Output::check(path, force)?;
        let existing = path.exists();
        // /dev/null may take any number of them.
        let regular = !existing || path.is_file();
        let same = |other: &&PathBuf| same_file(other, path) || !existing && same_new_file(other, path);
        if regular && let Some(other) = paths.iter().take(index).find(same) {
            return Err(EngineError::PartTwice { path: path.clone(), other: other.clone() });
        }
    }
    Ok(())
}

/// What the boundaries between parts are multiples of, in page frames, where `target` has parts.
///
/// # Errors
/// [`EngineError::SplitBlock`].
pub fn align(target: &Target, page: PageSize) -> Result<u64, EngineError> {
    let page = page.bytes() as u64;
    match target {
        Target::Parts { block: Some(block), .. } if *block == 0 || !block.is_multiple_of(page) => {
            Err(EngineError::SplitBlock { block: *block, page })
        }
        Target::Parts { block: Some(block), .. } => Ok(block / page),
        Target::Parts { block: None, .. } | Target::Path(_) | Target::Stream(_) => Ok(CRASH_SECTION),
    }
}

/// Whether two names of files that do not exist yet are names of one.
fn same_new_file(one: &Path, other: &Path) -> bool {
    let (one, other) = (behind_links(one), behind_links(other));
    one.file_name() == other.file_name() && same_file(directory(&one), directory(&other))
}

/// Links that are followed, as the kernel has it (MAXSYMLINKS).
const MAX_LINKS: usize = 40;

/// The name of the file that `path` is to become, behind links to what does not exist.
fn behind_links(path: &Path) -> PathBuf {
    let next = |at: &PathBuf| Some(directory(at).join(std::fs::read_link(at).ok()?));
    std::iter::successors(Some(path.to_owned()), next).take(MAX_LINKS).last().unwrap_or_default()
}

/// One part on its way.
struct Part {
    /// `None` once it failed.
    writer: Option<Writer>,
    range: Range<Pfn>,
    /// Indices of its pages among all.
    ranks: Range<u64>,
    copied: Copied,
    failed: Option<(Ended, Readable)>,
}

impl Part {
    fn begin(begun: Result<Writer, (WriteFailed, Readable)>) -> Self {
        let (writer, failed) = match begun {
            Ok(writer) => (Some(writer), None),
            Err((failed, readable)) => (None, Some((Ended::Write(failed), readable))),
        };
        Self { writer, range: Pfn(0)..Pfn(0), ranks: 0..0, copied: Copied::default(), failed }
    }

    /// Does a step of the writing, if nothing went wrong before; a failure ends the part.
    fn step(&mut self, step: impl FnOnce(&mut Writer) -> Result<(), (WriteFailed, Readable)>) {
        if let Some(writer) = &mut self.writer
            && let Err((failed, readable)) = step(writer)
        {
            (self.failed, self.writer) = (Some((Ended::Write(failed), readable)), None);
        }
    }
}

impl Run<'_> {
    /// Makes the dump in the files `outputs`, cut at multiples of `align` page frames; returns the first that ended early, if one did.
    pub(crate) fn attempt_parts(
        &mut self,
        meta: &Metadata,
        outputs: &[Arc<Output>],
        align: u64,
        observer: &dyn Observer,
    ) -> Result<Option<Failed>, EngineError> {
        let memory = self.source.input.memory();
        let asked = format!("{} {} {} {align}", outputs.len(), self.exclusion.classes, self.options.compression);
        let set = set_number(meta, &asked);
        let count = outputs.len() as u32;
        let begin = |(index, output): (u32, &Arc<Output>)| {
            let identity = Some(PartIdentity { set, index, count });
            // What was erased is said once, in the first part: putting parts together adds up what they say.
            let erase_info = if index == 0 { meta.erase_info.clone() } else { Vec::new() };
            let meta = Metadata { identity, erase_info, ..meta.clone() };
            Part::begin(Writer::begin(Arc::clone(output), meta, memory.ram()))
        };
        let mut parts: Vec<Part> = (0..count).zip(outputs).map(begin).collect();
        let planned = parts.iter().position(|part| part.writer.is_some());
        let Some((planned, bitmap)) = planned.and_then(|i| Some((i, parts.get(i)?.writer.as_ref()?.kept()))) else {
            return Ok(first_failed(parts));
        };
        let plan = match self.plan(bitmap, observer) {
            Ok(plan) => plan,
            Err(failed) => {
                let readable = parts.get(planned).and_then(|part| part.writer.as_ref()).map(Writer::readable);
                return Ok(Some(Failed::of(planned, (Ended::Write(failed), readable.unwrap_or(Readable(false))))));
            }
        };
        self.cut(&plan, &mut parts, align)?;
        for (index, part) in parts.iter_mut().enumerate() {
            let (range, ranks) = (part.range.clone(), part.ranks.clone());
            part.step(|writer| writer.select_part(&plan.selection, &range, &ranks, index == planned));
        }
        let parts = self.copy_parts(&plan, parts, observer)?;
        Ok(self.end(parts, outputs))
    }

    /// Gives each part its range of page frames, so that all take about the same in their files. Parts that are left over
    /// are empty, at the end.
    fn cut(&mut self, plan: &Plan<'_>, parts: &mut [Part], align: u64) -> Result<(), CodecError> {
        let memory = self.source.input.memory();
        let clock = Instant::now();
        let (_, threads) = self.lanes(1, plan.memory());
        let Weighed { slices, pages } =
            weigh(memory, &plan.selection, self.options.compression, threads, &self.options.stop)?;
        let end = self.source.max_mapnr();
        let mut ranges = cut(&slices, parts.len(), end, align).into_iter();
        let mut rank = 0;
        for part in parts {
            part.range = ranges.next().unwrap_or(end..end);
            let next = if part.range.end == end { plan.selection.len() } else { plan.selection.rank(part.range.end) };
            part.ranks = rank..next;
            rank = next;
        }
        self.stage("weigh pages", clock, pages, pages * memory.page_size().bytes() as u64);
        Ok(())
    }

    fn lanes(&self, parts: usize, page_sets: u64) -> (usize, usize) {
        let wanted = self.wanted_threads();
        self.budget.lanes(parts, wanted, self.options.compression.largest(), self.fixed + page_sets)
    }

    /// Copies the pages of all `parts` as planned, and writes all but the last header of each.
    fn copy_parts(
        &mut self,
        plan: &Plan<'_>,
        parts: Vec<Part>,
        observer: &dyn Observer,
    ) -> Result<Vec<Part>, EngineError> {
        let memory = self.source.input.memory();
        let clock = Instant::now();
        let (lanes, threads) = self.lanes(parts.len(), plan.memory());
        self.report.threads = threads;
        let sum = Sum { observer, done: AtomicU64::new(0), total: plan.selection.len() };
        let batch_pages = (BATCH_BYTES / memory.page_size().bytes()).max(1);
        let (choice, stop) = (self.options.compression, &self.options.stop);
        let one = |mut part: Part, threads: usize| -> Result<Part, CodecError> {
            let Some(writer) = part.writer.take() else { return Ok(part) };
            let batches = Batches::new(&plan.selection, &plan.passes, batch_pages).within(&part.range);
            let total = part.ranks.end - part.ranks.start;
            let own = OnePart { sum: &sum, done: AtomicU64::new(0) };
            let how = Copying { choice, threads, stop };
            let (mut copied, writer) = copy(memory, batches, total, FileWriter::Kdump(Box::new(writer)), how, &own)?;
            part.failed = copied.failed.take().map(|failed| (Ended::Write(failed), Readable(true)));
            part.writer = writer.and_then(FileWriter::into_kdump).filter(|_| part.failed.is_none());
            part.step(|writer| writer.close().map_err(|failed| (failed, Readable(true))));
            if let Some(why) = copied.stopped.or(plan.stopped) {
                part.failed.get_or_insert((Ended::Stopped(why), Readable(true)));
            }
            part.copied = copied;
            Ok(part)
        };
        let queue = Lock::new("parts to copy", parts.into_iter().enumerate());
        let done = Lock::new("parts copied", Vec::new());
        let lane = |threads: usize| {
            loop {
                let Some((index, part)) = queue.hold().next() else { return };
                let part = one(part, threads);
                done.hold().push((index, part));
            }
        };
        std::thread::scope(|scope| {
            for number in 1..lanes {
                let share = share(threads, lanes, number);
                let thread = std::thread::Builder::new().name("part".to_owned());
                // A lane that cannot be had leaves its parts to the others.
                let _ = thread.spawn_scoped(scope, move || lane(share));
            }
            lane(share(threads, lanes, 0));
        });
        let mut done = done.into_inner();
        done.sort_by_key(|(index, _)| *index);
        let parts = done.into_iter().map(|(_, part)| part).collect::<Result<Vec<_>, _>>()?;
        let copied = |count: fn(&Copied) -> u64| parts.iter().map(|part| count(&part.copied)).sum();
        self.stage("copy pages", clock, copied(|c| c.pages), copied(|c| c.bytes_in));
        self.report.unreadable_pages = plan.selection.lost();
        Ok(parts)
    }

    /// Takes the marks away where all parts are whole, and accounts for them.
    fn end(&mut self, mut parts: Vec<Part>, outputs: &[Arc<Output>]) -> Option<Failed> {
        let lost = self.report.unreadable_pages;
        let mut all = Copied::default();
        for (part, output) in parts.iter_mut().zip(outputs) {
            self.report.parts.push(PartRow {
                start_pfn: part.range.start.0,
                end_pfn: part.range.end.0,
                pages: part.copied.pages,
                bytes: output.written(),
                failed: part.failed.as_ref().map(|(ended, _)| ended.to_string()),
                ..PartRow::default()
            });
            all.merge(std::mem::take(&mut part.copied));
        }
        self.account(&all);
        self.report.unreadable_pages += lost;
        if self.source.missing.is_none()
            && self.report.unreadable_pages == 0
            && parts.iter().all(|part| part.failed.is_none())
        {
            for part in &mut parts {
                let ended = part.writer.take().map_or(Ok(()), Writer::complete);
                part.failed = ended.err().map(|failed| (Ended::Write(failed), Readable(true)));
            }
        }
        first_failed(parts)
    }
}

/// The share of lane `number` of `lanes` in `threads` threads, at least one.
fn share(threads: usize, lanes: usize, number: usize) -> usize {
    (threads / lanes + usize::from(number < threads % lanes)).max(1)
}

/// The first part that could not be written, else the first that was told to end.
fn first_failed(parts: Vec<Part>) -> Option<Failed> {
    let failed = parts.into_iter().enumerate().filter_map(|(file, part)| Some(Failed::of(file, part.failed?)));
    failed.min_by_key(|failed| (matches!(failed.ended, Ended::Stopped(_)), failed.file))
}

/// A number that differs between sets whose parts must not be mixed, and is the same for every run that writes the same files: of what
/// stands in front of the pages and of what was `asked`.
fn set_number(meta: &Metadata, asked: &str) -> u64 {
    let header = meta.header.encode(meta.layout);
    let sub = meta.sub_header.encode(meta.header.header_version, meta.layout);
    // FNV-1a, 64 bits.
    let bytes = header.iter().chain(&sub).chain(&meta.notes).copied().chain(asked.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Adds up the progress of all parts.
struct Sum<'a> {
    observer: &'a dyn Observer,
    done: AtomicU64,
    total: u64,
}

struct OnePart<'a> {
    sum: &'a Sum<'a>,
    /// What this part told last.
    done: AtomicU64,
}

impl Observer for OnePart<'_> {
    fn progress(&self, stage: Stage, done: u64, _: u64) {
        // One thread at a time writes a part, and tells how far it is.
        let more = done.saturating_sub(self.done.swap(done, Ordering::Relaxed));
        let all = self.sum.done.fetch_add(more, Ordering::Relaxed) + more;
        self.sum.observer.progress(stage, all, self.sum.total);
    }

    fn event(&self, event: Event) {
        self.sum.observer.event(event);
    }
}
