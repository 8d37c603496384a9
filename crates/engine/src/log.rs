//! The kernel log of a dump, as lines of text.

use crate::names::path_text;
use crate::names::same_file;
use crate::observer::{Event, Observer};
use crate::options::{DumpOptions, Target};
use crate::report::LogRow;
use crate::target::directory;
use coresift_format::Input;
use coresift_kernel::KernelError;
use coresift_kernel::printk::{KernelLog, LogProblem, Since};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Written at a time: a log of the usual size is a few writes.
const BUFFER: usize = 64 << 10;

/// Opens a log file: a new one with mode 0600; an existing one, which keeps its mode, only with `force`.
///
/// # Errors
/// What the system said.
pub fn open_log_file(path: &Path, force: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    options.open(path)
}

/// Writes the lines of `log` to `out`; returns what is wrong with the log. What was written before a failure stays.
///
/// # Errors
/// What `out` said.
pub fn write_log(log: &KernelLog<'_>, since: Since, out: impl Write) -> io::Result<Vec<LogProblem>> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    let mut line = Vec::new();
    let mut failed = None;
    let problems = log.read(since, &mut |record| {
        line.clear();
        record.line(&mut line);
        match out.write_all(&line) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    match failed {
        Some(error) => {
            // What the failed write left in the buffer is not tried again when it goes.
            let _unwritten = out.into_parts();
            Err(error)
        }
        None => out.flush().map(|()| problems),
    }
}

/// Saves the log of `input`, opened by the `names`, in the file `path`, before anything else is done with the input: `target` is where
/// the dump will be.
/// A failure is told and stops nothing.
pub(crate) fn save(
    input: &Input,
    names: &[PathBuf],
    path: &Path,
    target: &Target,
    options: &DumpOptions,
    observer: &dyn Observer,
) -> LogRow {
    let mut row = LogRow { path: path_text(path), ..LogRow::default() };
    match saved(input, names, path, target, options) {
        Ok((bytes, problems)) => {
            row.bytes = bytes;
            row.complete = problems.iter().all(|p| !p.wrong.is_loss());
            row.notes.extend(problems.iter().map(|p| format!("kernel log: {p}")));
        }
        Err(why) => row.notes.push(format!("the kernel log is not saved in {}: {why}", path.display())),
    }
    row.notes.iter().cloned().for_each(|note| observer.event(Event::Note(note)));
    row
}

fn saved(
    input: &Input,
    names: &[PathBuf],
    path: &Path,
    target: &Target,
    options: &DumpOptions,
) -> Result<(u64, Vec<LogProblem>), SaveFailed> {
    let targets = target.files().iter().map(|file| (file.as_path(), "the target of the dump"));
    let inputs = names.iter().map(|file| (file.as_path(), "the input"));
    for (other, what) in targets.chain(inputs) {
        if same_file(path, other) || place(path).is_some_and(|p| Some(p) == place(other)) {
            return Err(SaveFailed::Taken(what));
        }
    }
    let log = KernelLog::open(input, options.debug.as_ref())?;
    let file = open_log_file(path, options.force)?;
    let problems = write_log(&log, Since::Boot, &file)?;
    // What comes next may be a reset.
    file.sync_all()?;
    Ok((file.metadata()?.len(), problems))
}

/// The directory and name of a file that may not exist yet.
fn place(path: &Path) -> Option<(PathBuf, &OsStr)> {
    Some((directory(path).canonicalize().ok()?, path.file_name()?))
}

#[derive(Debug, thiserror::Error)]
enum SaveFailed {
    #[error("that is {0}; choose another name")]
    Taken(&'static str),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    File(#[from] io::Error),
}
