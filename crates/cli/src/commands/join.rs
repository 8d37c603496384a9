//! `coresift join`.

use crate::exit::{self, Exit};
use crate::failure::Failing;
use crate::text::{bytes, count, seconds};
use crate::{output, progress, signals};
use coresift_engine::{JoinOptions, Joined, Stop};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Put the parts of a split dump together
///
/// Takes the parts of one set, as `coresift dump VMCORE OUT...` and `makedumpfile
/// --split` write them, in any order. Pages are copied as they are, without unpacking.
/// Parts that are missing, given twice, or of another set are named, and nothing is
/// written. Where a part is incomplete, so is the dump. OUT is written in places as they
/// become known, so that it has to be a file or a block device, and no pipe.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment, override_usage = "coresift join [OPTIONS] <PART>... <OUT>")]
pub struct Args {
    /// Put together what is there where parts are missing; their pages are lost
    #[arg(long)]
    partial: bool,
    /// Overwrite OUT when it exists
    #[arg(short, long)]
    force: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// The parts, and the dump to write
    #[arg(required = true, num_args = 2.., value_name = "PART")]
    names: Vec<PathBuf>,
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift join part1 part2 part3 vmcore
  coresift join --partial part1 part3 vmcore

{}",
        exit::HELP
    )
}

pub fn run(args: &Args) -> Exit {
    let Some((target, parts)) = args.names.split_last() else { return Exit::Usage };
    if let Err(exit) = super::needs_a_file(target) {
        return exit;
    }
    let stop = Stop::default().on_signal(signals::watch());
    let options = JoinOptions { force: args.force, partial: args.partial, stop };
    let progress = progress::new();
    let result = coresift_engine::join(parts, target, options, &*progress);
    progress.finish();
    match result {
        Ok(joined) => {
            let exit = if joined.complete { Exit::Ok } else { Exit::Incomplete };
            if args.json { output::print_json(&joined, exit) } else { output::print(&text(&joined, target), exit) }
        }
        Err(error) => Failing::new(parts, args.json).engine(&error),
    }
}

fn text(joined: &Joined, target: &Path) -> String {
    let mut out = String::new();
    for part in &joined.parts {
        let lost = if part.lost_pages > 0 { format!(", {} missing", count(part.lost_pages)) } else { String::new() };
        let _infallible = writeln!(
            out,
            "{}: pfn {:#x} to {:#x}, {} pages{lost}",
            part.path,
            part.start_pfn,
            part.end_pfn,
            count(part.pages)
        );
    }
    for problem in &joined.problems {
        let _infallible = writeln!(out, "note: {problem}");
    }
    let state =
        if joined.complete { String::new() } else { format!(", {} missing: incomplete", count(joined.lost_pages)) };
    let _infallible = writeln!(
        out,
        "{}: {} pages in {}, written in {}{state}",
        target.display(),
        count(joined.pages),
        bytes(joined.bytes),
        seconds(joined.seconds)
    );
    out
}
