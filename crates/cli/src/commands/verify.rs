//! `coresift verify`.

use crate::exit::{self, Exit};
use crate::failure::Failing;
use crate::text::{self, count};
use crate::{output, progress};
use coresift_engine::{DebuggerView, PageProblem, Verdict, Verification, VerifyOptions};
use coresift_kernel::debuginfo::DebugFile;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Say whether a dump is good
///
/// Looks at headers, bitmaps, page descriptors and notes, holds headers and notes
/// against what the kernel's memory says of the same, and reads and decompresses every
/// page. What is wrong is told with page frame number, physical address, file
/// offset and codec flag. (Of the codecs only zlib has a checksum: a changed byte of an
/// lzo, snappy or zstd page that still decompresses, or of one that is not compressed, is
/// not seen.) Then opens it as a debugger would: what it needs first is looked up by name,
/// and the first page that is missing is told with the rule that left it out.
///
/// Exit code 0: good. 3: the dump ended early, was cut short, or is one part of a split
/// set, and what is there is sound; or its kernel is not understood. 4: it is damaged.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// Look at what describes the pages only, do not read them, nor compare the places
    /// of their data
    #[arg(long, verbatim_doc_comment)]
    quick: bool,
    /// The kernel's vmlinux with debug information, for symbols and types that the
    /// dump does not tell or has lost; exit code 2 when it is that of another kernel
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    vmlinux: Option<PathBuf>,
    /// Threads [default: one for each usable cpu]
    #[arg(long, value_name = "N", value_parser = super::threads)]
    threads: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// An ELF core or a kdump-compressed file, flattened or not; or all parts of a
    /// split set
    #[arg(required = true, verbatim_doc_comment)]
    dump: Vec<PathBuf>,
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift verify /var/crash/vmcore
  coresift verify --quick --json vmcore | jq .verdict

{}",
        exit::HELP
    )
}

pub fn run(args: &Args) -> Exit {
    let failing = Failing::new(&args.dump, args.json);
    let debug = match debug_file(args.vmlinux.as_deref(), failing) {
        Ok(debug) => debug,
        Err(exit) => return exit,
    };
    let options = VerifyOptions { read_pages: !args.quick, threads: args.threads, debug };
    let progress = progress::new();
    let result = coresift_engine::verify_set(&args.dump, &options, &*progress);
    progress.finish();
    match result {
        Ok(found) if args.json => output::print_json(&found, exit_of(found.verdict)),
        Ok(found) => output::print(&report(&found, args.dump.len() > 1), exit_of(found.verdict)),
        Err(error) => failing.engine(&error),
    }
}

/// The debug information a user gave; where it cannot be read that was told, and how the command ends.
pub fn debug_file(vmlinux: Option<&Path>, failing: Failing<'_>) -> Result<Option<DebugFile>, Exit> {
    vmlinux.map(DebugFile::vmlinux).transpose().map_err(|error| failing.kernel(&error, None))
}

const fn exit_of(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Good => Exit::Ok,
        // It cannot be said that a debugger finds all it needs.
        Verdict::NotUnderstood | Verdict::Incomplete => Exit::Incomplete,
        Verdict::Damaged => Exit::Damaged,
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "ok",
        Verdict::NotUnderstood => "UNKNOWN",
        Verdict::Incomplete => "INCOMPLETE",
        Verdict::Damaged => "DAMAGED",
    }
}

/// Problems shown as text; JSON has more.
const PROBLEMS_SHOWN: usize = 32;

fn report(found: &Verification, set: bool) -> String {
    let mut out = format!("{} ({}, {})\n", found.file, found.container, text::bytes(found.file_bytes));
    let mut line = |text: String| {
        let _infallible = writeln!(out, "{text}");
    };
    for check in &found.checks {
        line(format!("  {:<12} {:<10}  {}", check.what, word(check.verdict), check.detail));
    }
    for problem in found.problems.iter().take(PROBLEMS_SHOWN) {
        line(page(problem));
    }
    if found.problems.len() > PROBLEMS_SHOWN {
        line(format!("  and {} more, with --json", count((found.problems.len() - PROBLEMS_SHOWN) as u64)));
    }
    debugger(&found.debugger, &mut line);
    let pages = if found.pages_read { "pages read" } else { "pages looked up" };
    // Also of pages whose data are damaged it is not true that they were read.
    let read = match found.pages.lost() {
        0 => count(found.pages.stored),
        _ => format!("{} of {}", count(found.pages.sound), count(found.pages.stored)),
    };
    line(format!("{read} {pages} in {}", text::seconds(found.seconds)));
    line(conclusion(found, set));
    out
}

/// The outcome, and what can be done.
fn conclusion(found: &Verification, set: bool) -> String {
    let repair = if set {
        "`coresift repair PART OUT` of each part that is".to_owned()
    } else {
        format!("`coresift repair {} OUT`", found.file)
    };
    let missing = match found.pages.lost() {
        1 => "1 page is missing".to_owned(),
        lost => format!("{} pages are missing", count(lost)),
    };
    let set_only = found.checks.iter().filter(|check| check.verdict != Verdict::Good).all(|check| check.what == "set");
    match found.verdict {
        Verdict::Good => "The dump is good.".to_owned(),
        Verdict::NotUnderstood => {
            "Nothing is wrong with the file, but its kernel is not understood: whether a debugger finds what it needs is not known."
                .to_owned()
        }
        Verdict::Incomplete if set_only && found.checks.iter().any(|check| check.what == "set") => {
            let parts = if set { "the parts that are missing" } else { "all parts of the set" };
            format!("Not the whole dump: name {parts}, too. `coresift join PART... OUT` makes one file of them.")
        }
        Verdict::Incomplete if found.ended_early() && found.pages.lost() == 0 => {
            "The dump is marked as ended early: pages that it does not name may be missing. What is there is sound."
                .to_owned()
        }
        Verdict::Incomplete if found.ended_early() => {
            format!("The dump is incomplete: it ended early and says so; {missing}. What is there is sound.")
        }
        Verdict::Incomplete if found.pages.lost() > 0 => {
            format!(
                "The dump is incomplete: {missing}. What is there is sound; {repair} makes a dump that every reader opens."
            )
        }
        Verdict::Incomplete => {
            format!("The dump is incomplete, and what is there is sound. {repair} makes a dump that every reader opens.")
        }
        Verdict::Damaged if !found.mendable => {
            "The dump is damaged where nothing tells what is right, and repair cannot mend it: use another copy. Its pages are as told above."
                .to_owned()
        }
        Verdict::Damaged => {
            format!("The dump is damaged. Use another copy, or make an openable one of what is sound with {repair}.")
        }
    }
}

/// What a debugger finds, one line a step; a second where something is missing.
fn debugger(found: &DebuggerView, line: &mut impl FnMut(String)) {
    match (&found.release, &found.problem) {
        (Some(release), _) => line(format!("As a debugger opens it: Linux {release}")),
        (None, problem) => {
            line(format!("A debugger does not understand its kernel: {}", problem.as_deref().unwrap_or_default()));
        }
    }
    let mut said = None;
    for step in &found.steps {
        let verdict =
            if step.verdict == Verdict::Good && step.first.is_some() { "unknown" } else { word(step.verdict) };
        let amount = step.found.map_or_else(String::new, |n| format!("{} found, ", count(n)));
        let missing = if step.missing > 0 { format!(", {} parts missing", count(step.missing)) } else { String::new() };
        line(format!("  {:<31} {verdict:<10}  {amount}{} pages{missing}", step.name, count(step.pages)));
        // Most steps of a kernel whose symbols cannot be read say the same.
        if let Some(first) = step.first.as_ref().filter(|first| said != Some(*first)) {
            said = Some(first);
            let rule = step.rule.as_ref().map_or_else(String::new, |rule| format!(": {rule}"));
            let pfn = step.pfn.map_or_else(String::new, |pfn| format!(" (pfn {pfn:#x})"));
            line(format!("    first {first}{pfn}{rule}"));
        }
    }
    if found.without_symbols.is_some() {
        line(
            "The symbols that these steps look by cannot be read from the dump: `--vmlinux FILE` takes those of the kernel's \
             vmlinux, as crash and drgn do."
                .to_owned(),
        );
    }
}

/// One problem: the page, its address, its place in the file, and what is wrong.
pub fn page(problem: &PageProblem) -> String {
    let end = problem.pfn + problem.pages - 1;
    let pfns = if problem.pages == 1 {
        format!("pfn {:#x}", problem.pfn)
    } else {
        format!("pfn {:#x} to {end:#x} ({} pages)", problem.pfn, count(problem.pages))
    };
    let mut place = String::new();
    if let Some(at) = problem.descriptor {
        let _infallible = write!(place, ", descriptor at {at}");
    }
    if let (Some(data), Some(size), Some(flags)) = (problem.data, problem.size, problem.flags) {
        let _infallible = write!(place, ", {size} bytes at {data}, flags {flags:#x}");
    }
    format!("  {pfns}, address {:#x}{place}: {}", problem.address, problem.what)
}
