//! What can be saved of a dump that was cut or damaged, as a dump that every reader opens.
//!
//! ```text
//! file ─ Input::salvage ─> realign.rs: bits of the 2nd bitmap, segments at wrong addresses
//!                      ─> verify::check_pages ─> bad pages
//!   kdump.rs: headers (mark set, mend.rs) ─> notes, bitmaps ─> page data as they are ─> sync
//!                                        ─> descriptors, zeros for bad pages ─> sync
//!   elf.rs:   new program headers, of the sound pages only, and the mark
//! ```
//!
//! Page data of a kdump-compressed file keep their places, so that nothing is compressed anew and pages that share data still do. A page
//! of which it is not certain that the bytes are its own is lost.

mod elf;
mod kdump;
mod mend;
pub(crate) mod notes;
mod realign;

use mend::Witnesses;

use crate::error::EngineError;
use crate::names::same_file;
use crate::observer::{Observer, Silent};
use crate::stop::{Stop, StopReason};
use crate::target::{Output, WriteFailed};
use crate::verify::Verdict;
use crate::verify::{
    Effort, Look, PageCheck, PageCounts, PageProblem, against_kernel, bitmap_faults, check_pages, check_structure,
    disagreements, ended_early, lone_part, misplaced, salvage,
};
use coresift_format::kdump::BitmapFaults;
use coresift_format::{FormatError, Input};
use coresift_kernel::Kernel;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to repair.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// Read every page, and give up those that cannot be decompressed; otherwise only what describes them is looked at.
    pub read_pages: bool,
    /// Threads; `None`: one for each usable cpu.
    pub threads: Option<NonZeroUsize>,
    /// Overwrite an existing target.
    pub force: bool,
    /// When to end before it is done.
    pub stop: Stop,
}

/// What was done. Any field may be absent in a later version.
#[derive(Debug, Serialize)]
pub struct Repair {
    /// The damaged dump.
    pub file: String,
    /// Its length in bytes.
    pub file_bytes: u64,
    /// `elf` or `kdump`, with `flattened ` before it where it is wrapped.
    pub container: String,
    /// The repaired dump.
    #[serde(serialize_with = "crate::names::serialize")]
    pub out: PathBuf,
    /// Whether it holds all that the damaged one promises.
    pub complete: bool,
    /// Of a part of a split set, which one: the others are needed to read it.
    pub part: Option<String>,
    /// Why its kernel is not understood: then nothing tells whether headers and notes are right.
    pub not_understood: Option<String>,
    /// What was wrong with the headers.
    pub found: Vec<String>,
    /// What was changed in them.
    pub changed: Vec<String>,
    /// Pages of the damaged dump by how reading them went.
    pub pages: PageCounts,
    /// Sound pages that are not in the repaired dump, because writing ended early.
    pub unsaved: u64,
    /// Why writing ended early.
    pub ended: Option<String>,
    /// The first of the lost pages, ascending.
    pub lost: Vec<PageProblem>,
    /// What is still damaged in the repaired dump, because nothing tells what is right.
    pub still: Vec<String>,
    /// Page size in bytes.
    pub page_size: u64,
}

/// Makes an openable dump `out` of the dump `path`, which is not touched.
///
/// # Errors
/// Not even the headers are left, the target exists or cannot be written, or the input is the target. Unless the error says that what
/// was written can be read, nothing is left of it. That the target was full or the run was stopped is no error once `out` can be
/// read ([`Repair::ended`]).
pub fn repair(
    path: &Path,
    out: &Path,
    options: &RepairOptions,
    observer: &dyn Observer,
) -> Result<Repair, EngineError> {
    Output::check(out, options.force)?;
    if same_file(path, out) {
        return Err(EngineError::TargetIsInput { path: out.to_owned() });
    }
    let (input, put_right) = realign::realign(salvage(path)?)?;
    if input.as_elf().is_some() {
        Output::check_elf(out)?;
    }
    // Places are compared in any case: a page with the bytes of another is worse than a lost one.
    let look = Look { data: options.read_pages, places: true, threads: options.threads };
    let interrupted = || EngineError::Interrupted {
        path: out.to_owned(),
        why: options.stop.scanning().unwrap_or(StopReason::Deadline),
        readable: false,
    };
    let found = check_pages(&input, &look, &options.stop, observer).ok_or_else(interrupted)?;
    let effort = if options.read_pages { Effort::AllPages } else { Effort::Symbols };
    let kernel = crate::verify::kernel(&input, None, effort)?;
    let not_understood = kernel.as_ref().err().map(ToString::to_string);
    let mut kernel = kernel.ok();
    let problems = wrong(&input, &found, kernel.as_ref(), effort);
    if !problems.is_empty() {
        kernel = kernel.map(|kernel| notes::by_own_text(&input, kernel, effort));
    }
    let mut report = Repair {
        file: input.name().to_owned(),
        file_bytes: input.file_len(),
        container: input.container_name(),
        out: out.to_owned(),
        complete: false,
        part: lone_part(&input),
        not_understood,
        found: put_right.iter().map(|(wrong, _)| wrong.clone()).chain(problems).collect(),
        changed: put_right.iter().map(|(_, done)| done.clone()).collect(),
        pages: found.counts,
        unsaved: 0,
        ended: None,
        lost: Vec::new(),
        still: Vec::new(),
        page_size: input.memory().page_size().bytes() as u64,
    };
    let output = Arc::new(Output::open(out, options.force, false)?);
    let job = Job {
        input: &input,
        kernel: kernel.as_ref(),
        effort,
        found: &found,
        output: &output,
        stop: &options.stop,
        observer,
        unread: Cell::new(false),
        readable: Cell::new(false),
        ended: RefCell::new(None),
    };
    let done = match (input.as_kdump(), input.as_elf()) {
        (Some(file), _) => job.kdump(file, &mut report),
        (None, Some(core)) => job.elf(core, &mut report),
        (None, None) => Ok(()),
    };
    let readable = job.readable.get();
    report.ended = job.ended.take();
    report.lost = found.problems;
    if done.is_err() && !readable {
        output.remove_new();
    }
    match done {
        Ok(()) => {
            // Of one in which nothing was wrong, nothing is.
            if !report.complete && !goes_nowhere(out) {
                report.still = still(out, effort)
                    .unwrap_or_else(|error| vec![format!("what was written cannot be read again: {error}")]);
            }
            Ok(report)
        }
        Err(Failed::Read(error)) => Err(error),
        Err(Failed::Write(WriteFailed { offset, error, .. })) => {
            Err(EngineError::Write { path: out.to_owned(), offset, error, readable })
        }
    }
}

/// Whether a repair makes something of `input` that is less damaged.
pub(crate) fn mends(input: &Input, found: &PageCheck, kernel: Option<&Kernel>, effort: Effort) -> bool {
    let lost = found.counts.faults().into_iter().any(|(fault, pages)| fault.is_damage() && pages > 0);
    let unclaimed = found.places.as_ref().is_some_and(|places| places.unclaimed.is_some()) && !ended_early(input);
    let bitmaps =
        input.as_kdump().is_some_and(|file| file.bitmap_faults().is_ok_and(|faults| faults != BitmapFaults::default()));
    let segments = misplaced(input).is_some_and(|wrong| !wrong.is_empty());
    if lost || unclaimed || bitmaps || segments || !input.problems().is_empty() {
        return true;
    }
    let notes = notes::mended(input, kernel, effort);
    let Some(file) = input.as_kdump() else { return notes.is_some() };
    let (mut header, mut sub, mut changed) = (file.header().clone(), file.sub_header().clone(), Vec::new());
    let by = Witnesses {
        input,
        notes: notes.as_ref().map_or(input.notes(), |(notes, _)| notes),
        kernel,
        table: found.table,
    };
    mend::headers(&by, file, &mut header, &mut sub, &mut changed);
    notes.is_some() || !changed.is_empty()
}

/// Whether `out` is a device that keeps nothing (/dev/null).
fn goes_nowhere(out: &Path) -> bool {
    std::fs::metadata(out).is_ok_and(|what| what.file_type().is_char_device())
}

/// What `verify` finds damaged in the repaired dump `out`: only what repair cannot mend. Its pages were read before.
fn still(out: &Path, effort: Effort) -> Result<Vec<String>, EngineError> {
    let input = salvage(out)?;
    let look = Look { data: false, places: false, threads: NonZeroUsize::new(1) };
    let found = check_pages(&input, &look, &Stop::default(), &Silent).unwrap_or_default();
    let kernel = crate::verify::kernel(&input, None, effort)?.ok();
    let checks = check_structure(&input, &found)?;
    let checks = checks.into_iter().chain(kernel.iter().flat_map(|kernel| against_kernel(&input, kernel, effort)));
    Ok(checks.filter(|check| check.verdict == Verdict::Damaged).map(|check| check.detail).collect())
}

/// What is wrong besides pages.
fn wrong(input: &Input, found: &PageCheck, kernel: Option<&Kernel>, effort: Effort) -> Vec<String> {
    let mut all: Vec<String> = input.problems().iter().map(ToString::to_string).collect();
    if let Some(file) = input.as_kdump() {
        all.extend(disagreements(input, file, found.table));
        all.extend(file.bitmap_faults().ok().and_then(bitmap_faults));
    }
    all.extend(found.table.and_then(|table| crate::verify::misfit(table.fit)));
    if let Some(kernel) = kernel {
        let checks = against_kernel(input, kernel, effort).into_iter();
        all.extend(checks.filter(|check| check.verdict != Verdict::Good).map(|check| check.detail));
    }
    all
}

/// Why a repair failed.
enum Failed {
    Read(EngineError),
    Write(WriteFailed),
}

impl From<FormatError> for Failed {
    fn from(error: FormatError) -> Self {
        Self::Read(error.into())
    }
}

impl From<WriteFailed> for Failed {
    fn from(failed: WriteFailed) -> Self {
        Self::Write(failed)
    }
}

/// A repair under way.
struct Job<'a> {
    input: &'a Input,
    kernel: Option<&'a Kernel>,
    /// How far to look for what the kernel's memory tells.
    effort: Effort,
    found: &'a PageCheck,
    output: &'a Arc<Output>,
    stop: &'a Stop,
    observer: &'a dyn Observer,
    /// Whether a part of the input could not be read while it was copied.
    unread: Cell<bool>,
    /// Whether what was written can be read.
    readable: Cell<bool>,
    /// Why copying pages ended early.
    ended: RefCell<Option<String>>,
}

impl Job<'_> {
    /// The notes as they should be, and what was changed in them, where something is wrong with the dump.
    fn mended_notes(&self, report: &Repair) -> Option<(Vec<u8>, &'static str)> {
        if report.found.is_empty() { None } else { notes::mended(self.input, self.kernel, self.effort) }
    }

    /// Whether the new file will hold all that the old one promises, and so is not marked.
    fn judge(&self, report: &mut Repair) {
        let input = self.input;
        report.complete = self.found.counts.lost() == 0
            && report.found.is_empty()
            && !input.incomplete()
            && input.truncated().is_none();
        if !report.complete && !input.incomplete() {
            report.changed.push("marked as ended early, so that readers expect pages to be missing".to_owned());
        }
    }

    /// What could not be read now, though nothing was found wrong with it, is zeros in the new file, and what was not copied is lost:
    /// that stays marked.
    fn admit(&self, report: &mut Repair) {
        if self.ended.borrow().is_some() {
            report.complete = false;
        }
        if report.complete && self.unread.get() {
            report.complete = false;
            report.changed.push(
                "left marked as ended early: the disk failed while pages were copied; run it without --quick"
                    .to_owned(),
            );
        }
    }

    /// Whether copying ends here, because somebody wants it to.
    fn stopped(&self) -> bool {
        let Some(why) = self.stop.copying(false) else { return false };
        self.ended.replace(Some(why.to_string()));
        true
    }

    /// Goes on where the target is full and what is there can be read.
    fn unless_full(&self, failed: WriteFailed) -> Result<(), Failed> {
        let Some(full) = failed.full() else { return Err(failed.into()) };
        self.ended.replace(Some(format!("{full} it, at offset {}", failed.offset + failed.done as u64)));
        Ok(())
    }
}
