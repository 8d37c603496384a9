//! The native commands, each defined once: the parser, the help text and the snapshots of it come from here.

mod ask;
mod dump;
mod explain;
mod info;
mod join;
mod log;
#[cfg(feature = "census")]
mod pages;
mod repair;
pub mod unflatten;
mod verify;

use crate::exit::{self, Exit};
use crate::output::{complain, ended_on_stdout};
use crate::stdout;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::Path;

/// Turns a crashed Linux machine's memory into a small, correct, readable dump
#[derive(Parser)]
#[command(name = "coresift", version, after_help = exit::HELP, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Dump(dump::Args),
    Info(info::Args),
    Join(join::Args),
    Log(log::Args),
    Verify(verify::Args),
    Explain(explain::Args),
    #[cfg(feature = "census")]
    Pages(pages::Args),
    Repair(repair::Args),
    Unflatten(unflatten::Args),
    /// Take the place of makedumpfile (its options: `coresift makedumpfile -h`)
    ///
    /// A link to this program called `makedumpfile` does the same.
    #[command(disable_help_flag = true)]
    Makedumpfile {
        /// makedumpfile's options and file names
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        args: Vec<OsString>,
    },
}

/// Refuses `-` as the name of a file that cannot be written from beginning to end, and so not to the standard output.
fn needs_a_file(out: &Path) -> Result<(), Exit> {
    if out.as_os_str() != "-" {
        return Ok(());
    }
    complain(
        "OUT cannot be the standard output, for it is not written from beginning to end; name a file (./- for one that is called -)",
    );
    Err(Exit::Usage)
}

/// Reads the value of --threads.
fn threads(text: &str) -> Result<NonZeroUsize, &'static str> {
    text.parse().map_err(|_| "there has to be 1 thread at least")
}

/// Runs the command line `args`, which begin with the program's name.
pub fn main(args: &[OsString]) -> Exit {
    match Cli::try_parse_from(args) {
        Ok(Cli { command: Command::Dump(args) }) => dump::run(&args),
        Ok(Cli { command: Command::Info(args) }) => info::run(&args),
        Ok(Cli { command: Command::Join(args) }) => join::run(&args),
        Ok(Cli { command: Command::Log(args) }) => log::run(&args),
        Ok(Cli { command: Command::Verify(args) }) => verify::run(&args),
        Ok(Cli { command: Command::Explain(args) }) => explain::run(&args),
        #[cfg(feature = "census")]
        Ok(Cli { command: Command::Pages(args) }) => pages::run(&args),
        Ok(Cli { command: Command::Repair(args) }) => repair::run(&args),
        Ok(Cli { command: Command::Unflatten(args) }) => unflatten::run(&args),
        // `main` takes this command before clap sees its options; what is left are spellings clap alone understands.
        Ok(Cli { command: Command::Makedumpfile { .. } }) => {
            complain("`makedumpfile` must be the first argument");
            Exit::Usage
        }
        Err(error) => {
            if error.use_stderr() {
                let _lost = error.print();
                return Exit::Usage;
            }
            // Help or the version, which was asked for.
            ended_on_stdout(stdout::open().and_then(|_| error.print()), Exit::Ok)
        }
    }
}
