//! What each dump level would leave out, without a dump.

use super::attempt::{Run, neighbours};
use super::elf::zeros;
use crate::bitmap::Bitmap;
use crate::elf_pages::Asked;
use crate::error::EngineError;
use crate::observer::Observer;
use crate::options::{DumpOptions, Format};
use crate::report::Report;
use crate::source::Source;
use crate::target::Output;
use coresift_format::{Input, Pfn};
use std::sync::Arc;
use std::time::Instant;

/// Counts the pages of `input` as a dump with the first exclusion of `options` would, zero pages too, and writes nothing. In the report
/// are no bytes written, and pages kept are those that would be.
///
/// # Errors
/// The input cannot be understood.
pub fn usage(input: Input, options: &DumpOptions, observer: &dyn Observer) -> Result<Report, EngineError> {
    let started = Instant::now();
    let options = DumpOptions { format: Format::Elf, dry_run: true, ..options.clone() };
    let source = Source::of(input, &options, observer)?;
    let asked = options.exclude.first().ok_or(EngineError::NothingAsked)?;
    let mut run = Run::new(&source, &options, source.raise(*asked, observer), started, true)?;
    let nothing = Arc::new(Output::nothing());
    let plan = run.plan(Bitmap::new(Arc::clone(&nothing), 0, Pfn(0)), observer);
    // The bitmap has no place for a page, and nothing is put into it.
    let plan = plan.map_err(|failed| EngineError::Write {
        path: "/dev/null".into(),
        offset: failed.offset,
        error: failed.error,
        readable: false,
    })?;
    let clock = Instant::now();
    let tested = Asked {
        memory: source.input.memory(),
        keep: plan.selection.in_memory(),
        without_zeros: true,
        threads: run.threads(plan.memory()),
        stop: &options.stop,
    }
    .decide(observer);
    run.stage("find zeros", clock, plan.selection.len(), tested.bytes);
    zeros(&mut run.report, tested.zero, true);
    run.report.kept_pages = tested.data.len() + tested.holes.len();
    run.report.unreadable_pages = tested.lost_count;
    run.report.unreadable = neighbours(&tested.lost);
    run.report.complete = plan.stopped.is_none();
    Ok(run.finish(&[nothing]))
}
