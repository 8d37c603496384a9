//! Creating a dump with makedumpfile's messages.

use super::line::CommandLine;
use super::messages::{Class, Messages};
use super::options::Opt;
use super::progress::Progress;
use super::{Stop, debuginfo, report};
use crate::{cause, signals, stdout};
use coresift_engine::{DumpOptions, EngineError, Exclusion, Format, Full, Report, Stop as EngineStop, Target};
use coresift_format::codec::Codec;
use coresift_kernel::{ClassSet, KernelError};
use std::fs::File;
use std::io;
use std::path::Path;

/// What makedumpfile calls the standard output.
const STDOUT: &str = "STDOUT";

/// Makes a dump of `input` in `target`.
pub fn create(line: &CommandLine, input: &Path, target: &Target, messages: &Messages) -> Result<(), Stop> {
    // Both checks come before any work; the dry run has them too, as makedumpfile's.
    for output in target.files() {
        if let Err(error) = may_write(output, line.has(Opt::Force)) {
            let why = cause::text(&error);
            messages.line(Class::Error, &format!("Can't open the dump file ({}). {why}", output.display()));
            return Err(Stop::Failed);
        }
    }
    may_read(input, messages)?;
    if target.files().is_empty()
        && let Err(error) = stdout::open()
    {
        messages.raw(Class::Common, &format!("\nCan't write the dump file({STDOUT}). {}\n", cause::text(&error)));
        return Err(Stop::Failed);
    }

    let output = target.files().first().map_or(Path::new(STDOUT), |path| path);
    let debug = debuginfo::open(line, messages);
    if let Some(addr) = line.vtop {
        debuginfo::translate(addr, input, debug.as_ref(), messages);
    }
    let progress = Progress::new(messages, input, output);
    let options = DumpOptions { debug, ..options(line) };
    let result = coresift_engine::dump(input, target, &options, &progress);
    progress.end();
    match result {
        Ok(done) => {
            messages.raw(Class::Debug, &crate::report::evidence(&done));
            messages.raw(Class::Report, &format!("{}\n{}\n", report::steps(&done), report::lines(&done)));
            tell_checks(&done, messages);
            if done.unused_map_pages > 0 {
                messages.raw(Class::Common, &format!("\nExcluded {} unused vmemmap pages\n", done.unused_map_pages));
            }
            if !done.complete {
                messages.line(Class::Common, INCOMPLETE);
                return Err(Stop::Failed);
            }
            messages.raw(Class::Common, &saved(target));
            Ok(())
        }
        Err(EngineError::Kernel { error: KernelError::OtherKernel(mismatch), .. }) => {
            Err(debuginfo::other_kernel(&mismatch, messages))
        }
        Err(error) => {
            if let EngineError::NoSpace { report, .. } = &error
                && report.dry_run
            {
                messages.raw(Class::Report, &format!("{}\n{}\n", report::steps(report), report::lines(report)));
                messages.note(&error.to_string());
            }
            failed(&error, input, messages);
            Err(Stop::Failed)
        }
    }
}

/// Where the dump is.
fn saved(target: &Target) -> String {
    let names: Vec<String> = target.files().iter().map(|path| path.display().to_string()).collect();
    match names.split_last() {
        None => format!("\nThe dumpfile is saved to {STDOUT}.\n"),
        Some((one, [])) => format!("\nThe dumpfile is saved to {one}.\n"),
        Some((last, rest)) => format!("\nThe dumpfiles are saved to {}, and {last}.\n", rest.join(", ")),
    }
}

pub const INCOMPLETE: &str = "This is an incomplete dumpfile, but might analyzable.";

pub(super) fn options(line: &CommandLine) -> DumpOptions {
    let levels = if line.levels.is_empty() { vec![line.first_level()] } else { line.levels.clone() };
    DumpOptions {
        exclude: levels.into_iter().map(|level| Exclusion::new(level, ClassSet::NONE, ClassSet::NONE)).collect(),
        format: if line.has(Opt::Elf) { Format::Elf } else { Format::Kdump },
        compression: line.codec.unwrap_or(Codec::None).into(),
        // makedumpfile has no threads beside --split, and a note says that the number is ignored.
        threads: line.threads.filter(|_| !line.has(Opt::Split)),
        max_memory: None,
        force: line.has(Opt::Force),
        dry_run: line.has(Opt::DryRun),
        limit: line.limit,
        stop: EngineStop::default().on_signal(signals::watch()),
        exclude_unused_map: line.has(Opt::ExcludeUnusedVmemmap),
        debug: None,
        map_input: !line.has(Opt::NonMmap),
        log: None,
    }
}

/// An input that cannot be opened is told in makedumpfile's words.
pub(super) fn may_read(input: &Path, messages: &Messages) -> Result<(), Stop> {
    File::open(input).map(drop).map_err(|error| {
        let text = format!("Can't open the dump memory({}). {}", input.display(), cause::text(&error));
        messages.line(Class::Error, &text);
        Stop::Failed
    })
}

/// An existing target is refused without -f, and with it must be writable.
pub(super) fn may_write(path: &Path, force: bool) -> io::Result<()> {
    use rustix::fs::{Access, access};
    match access(path, Access::EXISTS) {
        Err(_) => Ok(()),
        Ok(()) if force => Ok(access(path, Access::WRITE_OK)?),
        Ok(()) => Err(rustix::io::Errno::EXIST.into()),
    }
}

/// Counts that do not agree with the kernel's own, and pages that could not be read: makedumpfile has no line for them.
fn tell_checks(report: &Report, messages: &Messages) {
    for check in report.checks.iter().filter(|check| check.warning) {
        messages.note(&format!("{}: {} pages found, the kernel counted {}", check.what, check.found, check.kernel));
    }
    if report.unreadable_pages > 0 {
        let first = report
            .unreadable
            .first()
            .map_or_else(String::new, |run| format!(" (first: pfn {:#x}, {})", run.pfn, run.reason));
        messages.note(&format!("{} pages could not be read and were left out{first}", report.unreadable_pages));
    }
}

/// The line of a target that is `full`, as makedumpfile prints it: on the standard output, behind an unfinished progress line.
pub fn no_space(path: &Path, full: Full) -> String {
    let why = match full {
        Full::Space => "No space left on device".to_owned(),
        Full::Limit(bytes) => format!("Size limit({bytes}) reached."),
        Full::FileSize => "File too large".to_owned(),
    };
    format!("\nCan't write the dump file({}). {why}\n", path.display())
}

pub(super) fn failed(error: &EngineError, input: &Path, messages: &Messages) {
    if let EngineError::Kernel { error: KernelError::NoVmcoreInfo { .. }, .. } = error {
        // A line that scripts know; makedumpfile's next one asks for -x or -i, ours says what to do.
        messages.line(Class::Common, &format!("{} doesn't contain vmcoreinfo.", input.display()));
    }
    match error {
        EngineError::SplitBlock { .. } => {
            messages.line(Class::Error, "The splitblock size must be align to page_size.");
        }
        EngineError::NoSpace { path, full, readable, .. } => {
            messages.raw(Class::Common, &no_space(path, *full));
            if *readable {
                messages.line(Class::Common, INCOMPLETE);
            }
        }
        EngineError::Stopped { .. } => {
            messages.line(Class::Error, &error.to_string());
            messages.line(Class::Common, INCOMPLETE);
        }
        EngineError::Stream { error, .. } => {
            let text = format!("\nCan't write the dump file({STDOUT}). {}\n", cause::text(error));
            messages.raw(Class::Common, &text);
        }
        other => {
            cause::chain(other).for_each(|text| messages.line(Class::Error, &text));
            if let Some(advice) = cause::advice(other) {
                messages.line(Class::Error, advice);
            }
        }
    }
}
