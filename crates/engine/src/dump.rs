//! A dump, from the input's name to the report.

use crate::error::EngineError;
use crate::log;
use crate::names::same_file;
use crate::observer::{Event, Observer};
use crate::options::{DumpOptions, Format, Target};
use crate::report::Report;
use crate::source::Source;
use crate::split;
use crate::target::{Full, Output, WriteFailed};
use crate::writer::Readable;
use coresift_format::Input;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

mod attempt;
mod elf;
mod ended;
mod usage;

use attempt::Head;
pub(crate) use attempt::Run;
pub(crate) use ended::{Ended, Failed};
use ended::{failure, lacking};

pub use usage::usage;

/// Makes a dump of `input` at `target`.
///
/// # Errors
/// The input cannot be understood, the target exists or cannot be opened, or writing failed; what was written by then is a
/// readable dump, marked incomplete.
pub fn dump(
    input: &Path,
    target: &Target,
    options: &DumpOptions,
    observer: &dyn Observer,
) -> Result<Report, EngineError> {
    dump_set(&[input.to_owned()], target, options, observer)
}

/// As [`dump`], of an input that is the parts of a split set, in any order; or of a single file.
///
/// # Errors
/// As [`dump`], or the parts are not of one set.
pub fn dump_set(
    inputs: &[PathBuf],
    target: &Target,
    options: &DumpOptions,
    observer: &dyn Observer,
) -> Result<Report, EngineError> {
    let started = Instant::now();
    // Before the input, which may take long to open.
    check(target, options)?;
    for path in target.files() {
        if inputs.iter().any(|input| same_file(input, path)) {
            return Err(EngineError::TargetIsInput { path: path.to_owned() });
        }
    }
    let input = match inputs {
        [one] => Input::open_with(one, options.map_input)?,
        parts => Input::open_parts(parts)?,
    };
    run(input, inputs, target, options, observer, started)
}

/// Whether all files of the target can become one, before any is touched.
fn check(target: &Target, options: &DumpOptions) -> Result<(), EngineError> {
    match target {
        Target::Parts { .. } if options.format == Format::Elf => Err(EngineError::ElfInParts),
        Target::Parts { paths, .. } => split::check(paths, options.force),
        Target::Path(path) if options.format == Format::Elf => {
            Output::check_elf(path).and_then(|()| Output::check_target(target, options.force))
        }
        one => Output::check_target(one, options.force),
    }
}

/// As [`dump`], of an input that is open already, for instance of bytes that are in no file.
///
/// # Errors
/// As [`dump`].
pub fn dump_input(
    input: Input,
    target: &Target,
    options: &DumpOptions,
    observer: &dyn Observer,
) -> Result<Report, EngineError> {
    run(input, &[], target, options, observer, Instant::now())
}

fn run(
    input: Input,
    names: &[PathBuf],
    target: &Target,
    options: &DumpOptions,
    observer: &dyn Observer,
    started: Instant,
) -> Result<Report, EngineError> {
    check(target, options)?;
    // Whatever else fails, the log is there; but a dry run writes nothing.
    let log = options.log.as_deref().filter(|_| !options.dry_run);
    let log = log.map(|log| log::save(&input, names, log, target, options, observer));
    let source = Source::of(input, options, observer)?;
    let align = split::align(target, source.input.memory().page_size())?;
    let mut attempts = options.exclude.iter().peekable();
    let mut outputs = Vec::new();
    let mut failures = Vec::new();
    while let Some(asked) = attempts.next() {
        let exclusion = source.raise(*asked, observer);
        let mut run = Run::new(&source, options, exclusion, started, outputs.is_empty())?;
        let head = Head::of(&source, options, exclusion)?;
        // The input is understood and can be described: only now is the target touched.
        if outputs.is_empty() {
            let opened = Output::open_target(target, options.force, options.dry_run)?;
            outputs = opened.into_iter().map(|output| Arc::new(output.with_limit(options.limit))).collect();
        }
        let ended = match outputs.as_slice() {
            parts if matches!(target, Target::Parts { .. }) => match &head {
                Head::Kdump(meta) => run.attempt_parts(meta, parts, align, observer)?,
                Head::Elf(_) => return Err(EngineError::ElfInParts),
            },
            [output] => run.attempt(head, output, observer)?.map(|why| Failed::of(0, why)),
            _ => return Err(EngineError::NothingAsked),
        };
        // A dry run goes on to the end all the same, to tell what is needed.
        let stopped = matches!(ended, Some(Failed { ended: Ended::Stopped(_), .. }));
        let lacking = lacking(&outputs).filter(|_| !stopped);
        let readable = ended.as_ref().map_or(Readable(true), |failed| failed.readable);
        let ended = lacking.map(|(file, room)| Failed::of(file, (Ended::NoRoom(room), readable))).or(ended);
        let (kept, since) = (run.kept, run.started_here);
        let mut report = run.finish(&outputs);
        report.attempts.clone_from(&failures);
        report.notes.splice(0..0, log.iter().flat_map(|row| row.notes.iter().cloned()));
        report.log.clone_from(&log);
        for (row, path) in report.parts.iter_mut().zip(target.files()) {
            row.path.clone_from(path);
        }
        let Some(Failed { file, ended, readable: Readable(readable) }) = ended else {
            report.complete = source.missing.is_none() && report.unreadable_pages == 0;
            return Ok(report);
        };
        let path = target.file(file).to_owned();
        report.ended = Some(ended.to_string());
        let failed = match ended {
            Ended::Write(failed) => failed,
            Ended::NoRoom(_) => WriteFailed { done: 0, offset: 0, error: io::ErrorKind::StorageFull.into() },
            Ended::Stopped(why) => {
                return Err(EngineError::Stopped { path, why, kept, readable, report: Box::new(report) });
            }
        };
        // What is in a stream cannot be taken back: there is no second attempt.
        let stream = outputs.iter().find(|output| output.is_stream());
        let begun = |stream: &Output| stream.written() > 0 || failed.error.kind() == io::ErrorKind::BrokenPipe;
        if let Some(stream) = stream.filter(|stream| begun(stream))
            && failed.full().and_then(Full::limit).is_none()
        {
            return Err(EngineError::Stream { path, written: stream.written(), error: failed.error });
        }
        let Some(full) = failed.full() else {
            return Err(EngineError::Write { path, offset: failed.offset, error: failed.error, readable });
        };
        match attempts.peek().filter(|_| stream.is_none()) {
            Some(next) => {
                observer.event(Event::Retry { level: next.level, full });
                failures.push(failure(&report, kept, since));
            }
            None => return Err(EngineError::NoSpace { path, full, kept, readable, report: Box::new(report) }),
        }
    }
    Err(EngineError::NothingAsked)
}
