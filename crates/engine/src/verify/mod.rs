//! Is a dump good? Its structure, each of its pages, and what a debugger finds in it.
//!
//! ```text
//! file ─ Input::salvage ─> structure.rs: headers, bitmaps, descriptors, places of data, notes
//!                      │     fields.rs: header fields that have to agree
//!                      ├─> pages.rs: every page read and decompressed, on all cpus; whose data are whose
//!                      ├─> witness.rs: headers and notes against what the kernel's memory says of the same
//!                      │     segments.rs: program headers against its mappings
//!                      └─> debugger.rs: banner, cpus, tasks, modules, stacks; the first missing page, and the rule that dropped it
//! ```

mod debugger;
mod fault;
mod fields;
mod pages;
mod segments;
mod structure;
mod witness;

pub(crate) use debugger::kernel;
pub use debugger::{DebuggerStep, DebuggerView};
pub use fault::{Fault, PageCounts};
pub(crate) use fields::{disagreements, known_status};
pub use pages::PageProblem;
pub(crate) use pages::{Look, PageCheck, check as check_pages, misfit};
pub(crate) use segments::misplaced;
pub(crate) use structure::check as check_structure;
pub use structure::{Check, Verdict};
pub(crate) use structure::{bitmap_faults, ended_early, outside_ram};
pub(crate) use witness::{Effort, check as against_kernel, kernel_texts, knew_kernel};

use crate::error::EngineError;
use crate::holes;
use crate::observer::Observer;
use crate::stop::Stop;
use coresift_format::{FileBytes, Input};
use coresift_kernel::debuginfo::DebugFile;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// How thoroughly to look.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// Read and decompress every page, and compare the places of their data; otherwise only what describes them is looked at.
    pub read_pages: bool,
    /// Threads; `None`: one for each usable cpu.
    pub threads: Option<NonZeroUsize>,
    /// Debug information of the kernel, for symbols and types that the dump does not tell or has lost.
    pub debug: Option<DebugFile>,
}

/// What was found. Any field may be absent in a later version.
#[derive(Debug, Serialize)]
pub struct Verification {
    /// The dump.
    pub file: String,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// `elf` or `kdump`, with `flattened ` before it where it is wrapped.
    pub container: String,
    /// Whether its writer marked it as ended early.
    pub marked_incomplete: bool,
    /// The outcome.
    pub verdict: Verdict,
    /// The structure, part by part.
    pub checks: Vec<Check>,
    /// Whether the bytes of every page were read.
    pub pages_read: bool,
    /// Pages by how reading them went.
    pub pages: PageCounts,
    /// The first problems with pages, ascending.
    pub problems: Vec<PageProblem>,
    /// What a debugger finds.
    pub debugger: DebuggerView,
    /// Whether `repair` makes a better dump of it: where it is damaged, and the rest of it tells what is right or which pages are sound.
    pub mendable: bool,
    /// Page size in bytes.
    pub page_size: u64,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl Verification {
    /// Whether nothing is wrong but that the dump ended early, as its mark says: every reader opens it as it is.
    #[must_use]
    pub fn ended_early(&self) -> bool {
        let marked = self.checks.iter().all(|check| match check.what {
            "mark" | "pages" => check.verdict <= Verdict::Incomplete,
            _ => check.verdict == Verdict::Good,
        });
        marked && self.marked_incomplete && self.pages.lost() == self.pages.unwritten
    }
}

/// Opens the dump `path` even where it ends inside its bitmaps.
pub(crate) fn salvage(path: &Path) -> Result<Input, EngineError> {
    let mut input = Input::salvage(Arc::new(FileBytes::open(path)?))?;
    crate::source::apply_page_size(&mut input)?;
    Ok(input)
}

/// As [`salvage`], of the parts of a split set; or of a single file.
///
/// # Errors
/// As [`salvage`], or the parts are not of one set.
pub(crate) fn salvage_set(paths: &[PathBuf]) -> Result<Input, EngineError> {
    let [path] = paths else {
        let mut input = Input::open_parts(paths)?;
        crate::source::apply_page_size(&mut input)?;
        return Ok(input);
    };
    salvage(path)
}

/// Checks the `parts` of the split set `input` one after another.
fn check_parts(
    input: &Input,
    parts: &[PathBuf],
    options: &VerifyOptions,
    observer: &dyn Observer,
) -> Result<(PageCheck, Vec<Check>), EngineError> {
    let missing = input.set_problems().iter();
    let mut checks: Vec<Check> =
        missing.map(|why| Check { what: "set", verdict: Verdict::Incomplete, detail: why.to_string() }).collect();
    let mut all = PageCheck::default();
    for part in parts {
        let one = salvage(part)?;
        let found = look(&one, options, observer);
        let name = part.display();
        checks.extend(
            structure::check(&one, &found)?
                .into_iter()
                .map(|check| Check { detail: format!("{name}: {}", check.detail), ..check }),
        );
        all.add(found);
    }
    Ok((all, checks))
}

fn look(input: &Input, options: &VerifyOptions, observer: &dyn Observer) -> PageCheck {
    let look = Look { data: options.read_pages, places: options.read_pages, threads: options.threads };
    // Nobody stops it.
    check_pages(input, &look, &Stop::default(), observer).unwrap_or_default()
}

/// What to say of a part of a split set that was opened without the others; nothing of anything else.
#[must_use]
pub fn lone_part(input: &Input) -> Option<String> {
    let file = input.as_kdump()?;
    let needed = "of a split set: the other parts are needed";
    match (file.identity(), file.part()) {
        (Some(known), _) => Some(format!("{known} {needed}")),
        (None, Some(range)) => Some(format!("the part with pfn {:#x} to {:#x} {needed}", range.start.0, range.end.0)),
        (None, None) => None,
    }
}

/// Looks at the dump `path`.
///
/// # Errors
/// The file cannot be read, its headers are not there or cannot be true, or the debug information is of another kernel.
pub fn verify(path: &Path, options: &VerifyOptions, observer: &dyn Observer) -> Result<Verification, EngineError> {
    verify_set(&[path.to_owned()], options, observer)
}

/// As [`verify`], of a split set, whose parts are in `paths` in any order: each part is checked by itself, and the debugger's view is that
/// of all together.
///
/// # Errors
/// As [`verify`], or the parts are not of one set.
pub fn verify_set(
    paths: &[PathBuf],
    options: &VerifyOptions,
    observer: &dyn Observer,
) -> Result<Verification, EngineError> {
    let started = Instant::now();
    let mut input = salvage_set(paths)?;
    // Before the pages, which may take long: the debug information may be that of another kernel.
    let effort = if options.read_pages { Effort::AllPages } else { Effort::Symbols };
    let kernel = kernel(&input, options.debug.as_ref(), effort)?;
    holes::judge(&mut input, kernel.as_ref().ok());
    let (found, mut checks) = match paths {
        [_] => {
            let found = look(&input, options, observer);
            let mut checks = structure::check(&input, &found)?;
            let part = lone_part(&input).map(|detail| Check { what: "set", verdict: Verdict::Incomplete, detail });
            checks.extend(part);
            (found, checks)
        }
        parts => check_parts(&input, parts, options, observer)?,
    };
    if let Ok(kernel) = &kernel {
        checks.extend(against_kernel(&input, kernel, effort));
    }
    let damaged = checks.iter().any(|check| check.verdict == Verdict::Damaged);
    let mendable = damaged && crate::repair::mends(&input, &found, kernel.as_ref().ok(), effort);
    let debugger = debugger::view(&input, kernel);
    let verdicts = checks.iter().map(|check| check.verdict).chain(debugger.steps.iter().map(|step| step.verdict));
    let understood = if debugger.problem.is_none() { Verdict::Good } else { Verdict::NotUnderstood };
    let verdict = verdicts.fold(understood, Verdict::max);
    Ok(Verification {
        file: input.name().to_owned(),
        file_bytes: input.file_len(),
        container: input.container_name(),
        marked_incomplete: input.incomplete(),
        verdict,
        checks,
        pages_read: options.read_pages,
        pages: found.counts,
        problems: found.problems,
        debugger,
        mendable,
        page_size: input.memory().page_size().bytes() as u64,
        seconds: started.elapsed().as_secs_f64(),
    })
}
