//! `--dump-dmesg` with makedumpfile's messages.

use super::create::{may_read, may_write};
use super::line::CommandLine;
use super::messages::{Class, Messages};
use super::options::Opt;
use super::{Stop, debuginfo};
use crate::{cause, stdout};
use coresift_engine::{open_log_file, same_file, write_log};
use coresift_format::Input;
use coresift_kernel::KernelError;
use coresift_kernel::printk::{KernelLog, LogProblem, Since, Wrong};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// What the standard output is called.
const STDOUT: &str = "STDOUT";

/// Writes the kernel log of the first name of `line` to the second, or to the standard output with -F.
pub fn save(line: &CommandLine, messages: &Messages) -> Result<(), Stop> {
    let (input, output) = match line.names.as_slice() {
        [input] => (Path::new(input), None),
        [input, output] => (Path::new(input), Some(Path::new(output))),
        _ => return Err(super::parameter_error(messages).into()),
    };
    let force = line.has(Opt::Force);
    let name = output.map_or_else(|| STDOUT.to_owned(), |path| path.display().to_string());
    if let Some(Err(error)) = output.map(|path| may_write(path, force)) {
        return fail(messages, &format!("Can't open the dump file ({name}). {}", cause::text(&error)));
    }
    if output.is_some_and(|output| same_file(input, output)) {
        return fail(messages, &format!("Can't open the dump file({name}). It is the dump memory"));
    }
    may_read(input, messages)?;
    let input = match Input::open_with(input, !line.has(Opt::NonMmap)) {
        Ok(input) => input,
        Err(error) => {
            cause::chain(&error).for_each(|text| messages.line(Class::Error, &text));
            return Err(Stop::Failed);
        }
    };
    let debug = debuginfo::open(line, messages);
    let log = KernelLog::open(&input, debug.as_ref()).map_err(|error| not_found(&input, &error, messages))?;
    log.notes().iter().for_each(|note| messages.note(note));
    let since = if line.has(Opt::PartialDmesg) { Since::Clear } else { Since::Boot };
    let limit = limit(line);
    let written = match output {
        None => stdout::open().and_then(|stdout| write_log(&log, since, Limited::new(stdout, limit))),
        Some(path) => match open_log_file(path, force) {
            Ok(file) => write_log(&log, since, Limited::new(file, limit)),
            Err(error) => return fail(messages, &format!("Can't open the dump file({name}). {}", cause::text(&error))),
        },
    };
    match written {
        Ok(problems) => {
            problems.iter().for_each(|problem| tell(problem, messages));
            if problems.iter().any(|p| p.wrong.is_loss()) {
                return Err(Stop::Failed);
            }
            messages.raw(Class::Common, &format!("\nThe dmesg log is saved to {name}.\n"));
            Ok(())
        }
        Err(error) => {
            let why = match (error.kind(), limit) {
                (ErrorKind::StorageFull, Some(limit)) if error.raw_os_error().is_none() => {
                    format!("Size limit({limit}) reached.")
                }
                _ => cause::text(&error),
            };
            messages.raw(Class::Common, &format!("\nCan't write the log file({name}). {why}\n"));
            Err(Stop::Failed)
        }
    }
}

/// The value of -L, in bytes.
fn limit(line: &CommandLine) -> Option<u64> {
    line.limit
}

fn fail(messages: &Messages, text: &str) -> Result<(), Stop> {
    messages.line(Class::Error, text);
    Err(Stop::Failed)
}

fn not_found(input: &Input, error: &KernelError, messages: &Messages) -> Stop {
    match error {
        KernelError::NoVmcoreInfo { .. } => {
            messages.line(Class::Common, &format!("{} doesn't contain vmcoreinfo.", input.name()));
        }
        // A line that people look for; the next names the key.
        KernelError::MissingKey { .. } => messages.line(Class::Error, "Can't find some symbols for log_buf."),
        KernelError::OtherKernel(mismatch) => return debuginfo::other_kernel(mismatch, messages),
        _ => {}
    }
    messages.line(Class::Error, &format!("{}: no kernel log can be read: {error}", input.name()));
    Stop::Failed
}

/// What is wrong with the log, in makedumpfile's words where it has some.
fn tell(problem: &LogProblem, messages: &Messages) {
    let known = match problem.wrong {
        Wrong::Cycle => "Cycle when parsing dmesg detected.",
        Wrong::Outside => "Index outside log_buf detected.",
        other => {
            let text = problem.to_string();
            return if other.is_loss() { messages.line(Class::Error, &text) } else { messages.note(&text) };
        }
    };
    for text in [known, "The printk log_buf is most likely corrupted.", &problem.first] {
        messages.line(Class::Error, text);
    }
}

/// A writer that has no more room than -L says.
struct Limited<W> {
    inner: W,
    left: Option<u64>,
}

impl<W> Limited<W> {
    const fn new(inner: W, left: Option<u64>) -> Self {
        Self { inner, left }
    }
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(left) = &mut self.left else { return self.inner.write(bytes) };
        let room = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
        if room == 0 && !bytes.is_empty() {
            return Err(ErrorKind::StorageFull.into());
        }
        let done = self.inner.write(bytes.get(..room).unwrap_or_default())?;
        *left -= done as u64;
        Ok(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
