//! `coresift repair`.

use super::verify;
use crate::exit::{self, Exit};
use crate::text::{self, count};
use crate::{cause, output, progress};
use coresift_engine::{Repair, RepairOptions};
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Make an openable dump of what is left of one
///
/// Takes a dump cut anywhere behind its headers, or one with damaged headers, bitmaps,
/// descriptors or pages, and writes a file that crash, drgn and libkdumpfile open, marked
/// incomplete. Sound pages are copied as they are; the others are told. DUMP itself is
/// not touched.
///
/// Exit code 0: nothing was missing. 3: OUT can be read, and lacks what is told. 4: not
/// even the headers are left, and nothing was written.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// Do not read the pages: those that cannot be decompressed stay in OUT
    #[arg(long)]
    quick: bool,
    /// Threads [default: one for each usable cpu]
    #[arg(long, value_name = "N", value_parser = super::threads)]
    threads: Option<NonZeroUsize>,
    /// Overwrite OUT
    #[arg(short, long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The damaged dump: an ELF core or a kdump-compressed file, flattened or not
    dump: PathBuf,
    /// The new dump
    out: PathBuf,
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift repair vmcore-incomplete vmcore
  coresift repair --json cut fixed | jq .pages

{}",
        exit::HELP
    )
}

pub fn run(args: &Args) -> Exit {
    let options = RepairOptions { read_pages: !args.quick, threads: args.threads, force: args.force };
    let progress = progress::new();
    let result = coresift_engine::repair(&args.dump, &args.out, &options, &*progress);
    progress.finish();
    match result {
        Ok(done) => {
            let exit = if done.complete { Exit::Ok } else { Exit::Incomplete };
            if args.json { output::print_json(&done, exit) } else { output::print(&report(&done), exit) }
        }
        Err(error) => {
            output::complain_chain(cause::chain(&error), cause::advice(&error));
            verify::unopened(&error, std::slice::from_ref(&args.dump))
        }
    }
}

/// Lost pages shown as text; JSON has more.
const LOST_SHOWN: usize = 32;

fn report(done: &Repair) -> String {
    let mut out = format!("{} ({}, {})\n", done.file, done.container, text::bytes(done.file_bytes));
    let mut line = |text: String| {
        let _infallible = writeln!(out, "{text}");
    };
    for found in &done.found {
        line(format!("  found    {found}"));
    }
    for changed in &done.changed {
        line(format!("  changed  {changed}"));
    }
    line(format!("  pages    {} of {} saved", count(done.pages.sound), count(done.pages.stored)));
    for (fault, pages) in done.pages.faults().into_iter().filter(|(_, pages)| *pages > 0) {
        line(format!("  lost     {} {}", count(pages), fault.text()));
    }
    for problem in done.lost.iter().take(LOST_SHOWN) {
        line(verify::page(problem));
    }
    if done.lost.len() > LOST_SHOWN {
        line(format!("  and {} more, with --json", count((done.lost.len() - LOST_SHOWN) as u64)));
    }
    line(if done.complete {
        format!("{} holds all of it.", done.out.display())
    } else {
        format!("{} can be read; it is marked incomplete.", done.out.display())
    });
    out
}
