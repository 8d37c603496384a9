//! `coresift repair`.

use super::verify;
use crate::exit::{self, Exit};
use crate::failure::Failing;
use crate::text::{bytes, count};
use crate::{output, progress, signals};
use coresift_engine::{Repair, RepairOptions, Stop};
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Make an openable dump of what is left of one
///
/// Takes a dump cut anywhere behind its headers, or one with damaged headers, bitmaps,
/// descriptors or pages, and writes a file that crash, drgn and libkdumpfile open, marked
/// incomplete. Sound pages are copied as they are; the others are told. DUMP itself is
/// not touched. A page of which it is not certain that the bytes are its own is lost.
/// Of a split set, each part is repaired by itself.
///
/// What the rest of the dump tells is put right: header fields, the notes and their
/// place, bits of the bitmaps, the addresses of an ELF core's segments.
///
/// Exit code 0: nothing was missing. 3: OUT can be read, and lacks what is told, or what
/// is told of it cannot be mended, or its kernel is not understood. 4: not even the
/// headers are left, and nothing was written.
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
    let stop = Stop::default().on_signal(signals::watch());
    let options = RepairOptions { read_pages: !args.quick, threads: args.threads, force: args.force, stop };
    let progress = progress::new();
    let result = coresift_engine::repair(&args.dump, &args.out, &options, &*progress);
    progress.finish();
    match result {
        Ok(done) => {
            // As `verify` of OUT: of a kernel that is not understood nothing tells whether headers and notes are right. What leads to the
            // kernel may be in another part of a set.
            let understood = done.not_understood.is_none() || done.part.is_some();
            let whole = done.complete && done.still.is_empty() && understood;
            let exit = if whole { Exit::Ok } else { Exit::Incomplete };
            if args.json { output::print_json(&done, exit) } else { output::print(&report(&done), exit) }
        }
        Err(error) => Failing::new(std::slice::from_ref(&args.dump), args.json).engine(&error),
    }
}

/// Lost pages shown as text; JSON has more.
const LOST_SHOWN: usize = 32;

fn report(done: &Repair) -> String {
    let mut text = format!("{} ({}, {})\n", done.file, done.container, bytes(done.file_bytes));
    let mut line = |one: String| {
        let _infallible = writeln!(text, "{one}");
    };
    for found in &done.found {
        line(format!("  found    {found}"));
    }
    for changed in &done.changed {
        line(format!("  changed  {changed}"));
    }
    let saved = done.pages.sound.saturating_sub(done.unsaved);
    line(format!("  pages    {} of {} saved", count(saved), count(done.pages.stored)));
    if let Some(why) = &done.ended {
        line(format!("  ended    early, by {why}: {} sound pages are not in it", count(done.unsaved)));
    }
    for (fault, pages) in done.pages.faults().into_iter().filter(|(_, pages)| *pages > 0) {
        line(format!("  lost     {} {}", count(pages), fault.text()));
    }
    for problem in done.lost.iter().take(LOST_SHOWN) {
        line(verify::page(problem));
    }
    if done.lost.len() > LOST_SHOWN {
        line(format!("  and {} more, with --json", count((done.lost.len() - LOST_SHOWN) as u64)));
    }
    for still in &done.still {
        line(format!("  still    {still}"));
    }
    let out = done.out.display();
    let why = done.not_understood.as_ref();
    let unsure =
        why.map_or_else(String::new, |why| format!(", as far as can be told of a kernel not understood: {why}"));
    if !done.still.is_empty() {
        let has = if done.unsaved == 0 { "the sound pages" } else { "a part of the sound pages" };
        line(format!("{out} has {has}, but is still damaged where nothing tells what is right: use another copy."));
        return text;
    }
    line(match (done.complete, &done.part) {
        (true, None) => format!("{out} holds all of it{unsure}."),
        (true, Some(part)) => format!("{out} holds all of {part}{unsure}."),
        (false, None) => format!("{out} can be read; it is marked incomplete."),
        (false, Some(part)) => format!("{out} can be read; it is marked incomplete. It is {part}."),
    });
    text
}
