//! makedumpfile's command line: `coresift makedumpfile ...`, or the program called by the name `makedumpfile`.
//!
//! ```text
//! args ─ getopt ─> tokens ─ line ─> what was asked ─ rules ─> mode ─> help | version | check | refusal | create
//!          options: a row each ───────────┘                              messages: class ─> stream
//! ```

mod create;
mod debuginfo;
mod dmesg;
mod getopt;
mod help;
mod line;
mod mem_usage;
mod messages;
mod options;
mod progress;
mod rearrange;
mod reassemble;
pub mod report;
mod rules;

use crate::stdout;
use coresift_engine::{StreamTo, Target};
use line::{CommandLine, Invalid, parameter_error};
use messages::{Class, Messages};
use options::{Opt, Support};
use rules::Mode;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// makedumpfile's exit codes.
const COMPLETED: u8 = 0;
const FAILED: u8 = 1;
/// The kernel in the dump is not that of -x or -i.
const OTHER_KERNEL: u8 = 2;

/// Why a run ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// A text was asked for, and printed.
    Shown,
    /// It failed, and the reason was said.
    Failed,
    /// The debug information is that of another kernel, which was said.
    OtherKernel,
}

impl From<Invalid> for Stop {
    fn from(_: Invalid) -> Self {
        Self::Failed
    }
}

/// Runs makedumpfile's command line `args`, without the program's name, and returns its exit code.
pub fn main(args: &[OsString]) -> u8 {
    let out: Box<dyn Write + Send> = match stdout::open() {
        Ok(stdout) => Box::new(stdout),
        Err(_) => Box::new(Closed),
    };
    run(args, Messages::new(out, Box::new(io::stderr())))
}

/// A standard output that is not there.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        stdout::open().and_then(|mut stdout| stdout.write(&[]))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn run(args: &[OsString], mut messages: Messages) -> u8 {
    let tokens = getopt::split(args);
    let given = |opt| tokens.iter().any(|token| token.is(opt));
    // Wherever -F stands: not one message may get into the data.
    if given(Opt::Flatten) {
        messages.keep_stdout_for_data();
    }
    let quiet_end = given(Opt::CheckParams);
    let mem_usage = given(Opt::MemUsage);
    let result =
        CommandLine::read(tokens, &mut messages).map_err(Stop::from).and_then(|line| perform(&line, args, &messages));
    match result {
        // The text was all that was asked for.
        Err(Stop::Shown) => {
            if messages.lost() {
                FAILED
            } else {
                COMPLETED
            }
        }
        Ok(()) => {
            if !quiet_end && !mem_usage {
                messages.raw(Class::Common, "\nmakedumpfile Completed.\n");
            }
            if mem_usage && messages.lost() { FAILED } else { COMPLETED }
        }
        Err(stop) => {
            if !quiet_end {
                messages.raw(Class::Common, "\nmakedumpfile Failed.\n");
            }
            if stop == Stop::OtherKernel { OTHER_KERNEL } else { FAILED }
        }
    }
}

fn perform(line: &CommandLine, args: &[OsString], messages: &Messages) -> Result<(), Stop> {
    for (opt, text) in [(Opt::Help, help::usage as fn() -> String), (Opt::Version, help::version)] {
        if line.has(opt) {
            messages.raw(Class::Common, &text());
            return Err(Stop::Shown);
        }
    }
    messages.raw(Class::Debug, &banner(args));

    let mode = rules::check(line).map_err(|broken| {
        if let Some(text) = broken.0 {
            messages.line(Class::Common, text);
        }
        parameter_error(messages)
    })?;
    line.notes.iter().for_each(|note| messages.note(note));
    rules::notes(line).iter().for_each(|note| messages.note(note));
    if line.has(Opt::CheckParams) {
        missing(line).for_each(|(name, what, _)| {
            messages.note(&format!("{name}: {what} is not built yet; a run with it is refused"));
        });
        return Ok(());
    }
    refuse_missing(line, messages)?;
    note_without_effect(line, messages);
    if mode == Mode::MemUsage {
        return mem_usage::show(line, messages);
    }
    if mode == Mode::Dmesg {
        return dmesg::save(line, messages);
    }
    if mode == Mode::Rearrange {
        let [output] = line.names.as_slice() else { return Err(parameter_error(messages).into()) };
        return rearrange::rearrange(line, Path::new(output), messages);
    }
    if mode == Mode::Generate {
        return debuginfo::generate(line, messages);
    }
    if mode == Mode::Reassemble {
        return reassemble::reassemble(line, messages);
    }
    let Mode::Create(names) = mode else { return Err(parameter_error(messages).into()) };
    let Some((input, outputs)) = names.split_first() else { return Err(parameter_error(messages).into()) };
    let target = match outputs {
        paths if line.has(Opt::Split) => {
            Target::Parts { paths: paths.iter().map(PathBuf::from).collect(), block: line.split_block }
        }
        [] => Target::Stream(StreamTo::Stdout),
        [output] => Target::Path(output.into()),
        _ => return Err(parameter_error(messages).into()),
    };
    create::create(line, Path::new(input), &target, messages)
}

fn banner(args: &[OsString]) -> String {
    let line: String = args.iter().map(|arg| format!("{} ", arg.to_string_lossy())).collect();
    format!("{}\ncommand line: makedumpfile {line}\n\n", help::VERSION_LINE)
}

/// Name, what is not built, and what to do instead, of each option of `line` that this build cannot do.
fn missing(line: &CommandLine) -> impl Iterator<Item = (String, &'static str, &'static str)> + '_ {
    line.options().filter_map(options::row).filter_map(|row| match row.support {
        Support::Missing(what, instead) => Some((row.name(), what, instead)),
        Support::Works | Support::NoEffect(_) => None,
    })
}

fn refuse_missing(line: &CommandLine, messages: &Messages) -> Result<(), Stop> {
    let mut result = Ok(());
    for (name, what, instead) in missing(line) {
        messages.line(Class::Error, &format!("{name}: {what} is not built yet; {instead}"));
        result = Err(Stop::Failed);
    }
    result
}

fn note_without_effect(line: &CommandLine, messages: &Messages) {
    for row in line.options().filter_map(options::row) {
        if let Support::NoEffect(why) = row.support {
            messages.note(&format!("{} has no effect: {why}", row.name()));
        }
    }
    if line.has(Opt::SplitblockSize) && !line.has(Opt::Split) {
        messages.note("--splitblock-size has no effect: nothing is split without --split");
    }
}
