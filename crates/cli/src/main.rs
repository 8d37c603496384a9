//! The program `coresift`: commands, and makedumpfile's command line. All printing of the project is in this crate.
//!
//! ```text
//! argv ─ name is `makedumpfile`, or first argument is ─> makedumpfile/ ─┐
//!      └ else ─> commands/ (clap) ──────────────────────────────────────┴─> coresift_engine ─> report, exit code
//! ```

mod allocator;
mod cause;
mod commands;
mod exit;
mod failure;
mod makedumpfile;
mod output;
mod progress;
mod report;
#[cfg(test)]
mod sample;
mod signals;
mod size;
mod stdout;
mod text;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A dump on a disk that fails, or one that is cut short while it is read, loses pages, not the run. Should the system refuse
    // the handler, it would not be worth stopping a dump for.
    let _unguarded = coresift_format::guard_faults();
    signals::survive_file_size_limit();
    allocator::keep_small();
    let args: Vec<OsString> = std::env::args_os().collect();
    let called_makedumpfile =
        args.first().is_some_and(|name| Path::new(name).file_name() == Some("makedumpfile".as_ref()));
    match args.as_slice() {
        [_, rest @ ..] if called_makedumpfile => makedumpfile::main(rest).into(),
        [_, first, rest @ ..] if first == "makedumpfile" => makedumpfile::main(rest).into(),
        all => commands::main(all).into(),
    }
}
