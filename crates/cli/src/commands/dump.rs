//! `coresift dump`.

use crate::exit::{self, Exit};
use crate::failure::{self, Failing};
use crate::output::Results;
use crate::size::Size;
use crate::{cause, output, progress, report, signals, stdout};
use coresift_engine::{Choice, DumpOptions, EngineError, Exclusion, Format, Stop, StreamTo, Target};
use coresift_format::codec::Codec;
use coresift_kernel::{ClassSet, DumpLevel};
use std::fs::{Metadata, metadata};
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Make a small dump of a crashed machine's memory
///
/// Reads /proc/vmcore, ELF cores and kdump-compressed files, flattened or not (so
/// that a dump can be filtered again), and writes a kdump-compressed file that
/// crash, drgn and libkdumpfile open, or with --format elf an ELF core. Whatever
/// interrupts it, the file can be read as far as it was written.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment, args_override_self = true)]
pub struct Args {
    /// Leave out the page classes of this dump level, 0 to 31; when the dump
    /// does not fit the target, the next level of the list is tried
    /// [default: 31, or 0 with --exclude]
    #[arg(short = 'd', long = "level", value_name = "N[,N]", value_delimiter = ',', value_parser = level)]
    #[arg(verbatim_doc_comment)]
    levels: Vec<DumpLevel>,
    /// Leave out these page classes, besides those of -d
    #[arg(long, value_name = "CLASSES")]
    exclude: Option<ClassSet>,
    /// Keep these page classes, whatever -d says
    #[arg(long, value_name = "CLASSES", default_value = "", hide_default_value = true)]
    keep: ClassSet,
    /// Leave out pages of the memory map that describe only pages that are left
    /// out; such a dump cannot be filtered again as well, and `kmem -p` of crash
    /// shows less
    #[arg(long, verbatim_doc_comment)]
    exclude_unused_map: bool,
    /// How to compress pages: none, zlib, lzo, snappy or zstd; zlib and zstd
    /// take a level (zstd:9). auto: none, snappy or zstd, by whether the cpus
    /// or the target are measured to be the limit; two runs with it may write
    /// different files (of the same pages), with any other choice they do not
    /// [default: zstd]
    #[arg(long, value_name = "CODEC[:LEVEL]", verbatim_doc_comment)]
    compress: Option<Choice>,
    /// What to write: kdump, or elf, which gdb opens too. Pages of an ELF file
    /// are stored as they are, without --compress
    #[arg(long, value_name = "FORMAT", default_value = "kdump", verbatim_doc_comment)]
    format: Format,
    /// Worker threads
    /// [default: one for each usable cpu, fewer when memory is short]
    #[arg(long, value_name = "N", value_parser = super::threads, verbatim_doc_comment)]
    threads: Option<NonZeroUsize>,
    /// Memory to stay within, as 512M [default: a part of what is available]
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<Size>,
    /// Write at most so many bytes; a dump that needs more is cut short, the most
    /// useful pages first
    #[arg(long, value_name = "SIZE", verbatim_doc_comment)]
    limit: Option<Size>,
    /// End after so many seconds, with what is written by then; the last quarter
    /// of them (at most 10) is kept for the pages a debugger needs first
    #[arg(long, value_name = "SECONDS", value_parser = seconds, verbatim_doc_comment)]
    deadline: Option<Duration>,
    /// Write nothing; tell what a run would do, and whether it would fit
    #[arg(long)]
    dry_run: bool,
    /// Save the kernel log in FILE before anything else is done; that it could
    /// not be saved is told, and stops nothing
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    log: Option<PathBuf>,
    /// The kernel's vmlinux with debug information, for what the dump does not
    /// tell itself; exit code 2 when it is that of another kernel
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    vmlinux: Option<PathBuf>,
    /// Overwrite OUT when it exists
    #[arg(short, long)]
    force: bool,
    /// Write a flattened stream, which needs no seeking and `coresift unflatten` or
    /// `makedumpfile -R` make a file of; the standard output, a FIFO or a device get
    /// one in any case
    #[arg(long, verbatim_doc_comment)]
    flatten: bool,
    /// Print the report as JSON; on the standard error where the dump goes to the
    /// standard output
    #[arg(long, verbatim_doc_comment)]
    json: bool,
    /// A further part, where VMCORE is one part of a split set; once for each
    #[arg(long = "part", value_name = "FILE")]
    parts: Vec<PathBuf>,
    /// The memory: /proc/vmcore, or an ELF or kdump file
    vmcore: PathBuf,
    /// The dump to write; - is the standard output. Several names: parts of
    /// it, written at once and of about the same size, which `coresift join`
    /// and makedumpfile put together
    #[arg(required = true, verbatim_doc_comment)]
    out: Vec<PathBuf>,
}

fn help() -> String {
    let bits: String = DumpLevel::BITS.iter().map(|(bit, classes)| format!("  {bit:>2}  {classes}\n")).collect();
    format!(
        "\
Page classes: {selectable}

Dump levels are sums of
{bits}
Examples:
  coresift dump /proc/vmcore /var/crash/vmcore
  coresift dump -d 11,31 --compress lzo /proc/vmcore /var/crash/vmcore
  coresift dump /proc/vmcore /disk1/part1 /disk2/part2
  coresift dump --exclude zero,free --compress zstd:9 vmcore small
  coresift dump --keep hugetlb --json vmcore small > report.json
  coresift dump --limit 2G --deadline 120 /proc/vmcore /var/crash/vmcore
  coresift dump /proc/vmcore - | ssh host 'coresift unflatten vmcore'

{exit}",
        selectable = ClassSet::SELECTABLE,
        exit = exit::HELP
    )
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a time is a number of seconds, as 90 or 0.5".into())
}

fn level(text: &str) -> Result<DumpLevel, String> {
    text.parse().ok().and_then(DumpLevel::new).ok_or_else(|| "a dump level is a number from 0 to 31".into())
}

impl Args {
    /// Where the dump goes, and where the results go then.
    fn target(&self) -> (Target, Results) {
        let path = match self.out.as_slice() {
            [one] => one.clone(),
            several => return (Target::Parts { paths: several.to_vec(), block: None }, Results::Stdout),
        };
        if path.as_os_str() == "-" {
            return (Target::Stream(StreamTo::Stdout), Results::Stderr);
        }
        let stream = self.flatten || takes_a_stream_only(&path);
        (if stream { Target::Stream(StreamTo::Path(path)) } else { Target::Path(path) }, Results::Stdout)
    }

    fn options(&self) -> Result<DumpOptions, String> {
        let exclude = self.exclude.unwrap_or_default();
        let both = exclude.intersection(self.keep);
        if !both.is_empty() {
            return Err(format!("{both} is in --exclude and in --keep; take it out of one"));
        }
        let default = if self.exclude.is_none() { 31 } else { 0 };
        let levels: Vec<DumpLevel> =
            if self.levels.is_empty() { DumpLevel::new(default).into_iter().collect() } else { self.levels.clone() };
        Ok(DumpOptions {
            exclude: levels.into_iter().map(|level| Exclusion::new(level, exclude, self.keep)).collect(),
            format: self.format,
            compression: self.compress.unwrap_or(Codec::Zstd.into()),
            threads: self.threads.map(NonZeroUsize::get),
            max_memory: self.max_memory.map(|size| size.0.get()),
            force: self.force,
            dry_run: self.dry_run,
            limit: self.limit.map(|size| size.0.get()),
            stop: self.deadline.map_or(Stop::default(), |time| Stop::default().after(time)).on_signal(signals::watch()),
            exclude_unused_map: self.exclude_unused_map,
            debug: None,
            map_input: true,
            log: self.log.clone(),
        })
    }
}

/// Whether there is no seeking in what `path` names.
fn takes_a_stream_only(path: &Path) -> bool {
    let null = |a: &Metadata| metadata("/dev/null").is_ok_and(|b| a.rdev() == b.rdev());
    metadata(path).is_ok_and(|to| to.file_type().is_fifo() || to.file_type().is_char_device() && !null(&to))
}

pub fn run(args: &Args) -> Exit {
    let options = match args.options() {
        Ok(options) => options,
        Err(text) => {
            output::complain(&text);
            return Exit::Usage;
        }
    };
    let (target, results) = args.target();
    if results == Results::Stderr && io::stdout().is_terminal() {
        output::complain("a dump is nothing for a terminal: redirect the standard output, or name a file");
        return Exit::Usage;
    }
    if results == Results::Stderr
        && let Err(error) = stdout::open()
    {
        return output::ended_on_stdout(Err(error), Exit::Failed);
    }
    if args.format == Format::Elf && args.compress.is_some() {
        output::complain("--compress has no effect: the pages of an ELF core are stored as they are");
    }
    let inputs: Vec<PathBuf> = std::iter::once(&args.vmcore).chain(&args.parts).cloned().collect();
    let failing = Failing { inputs: &inputs, json: args.json.then_some(results) };
    let debug = match super::verify::debug_file(args.vmlinux.as_deref(), failing) {
        Ok(debug) => debug,
        Err(exit) => return exit,
    };
    let options = DumpOptions { debug, ..options };
    let progress = progress::new();
    let result = coresift_engine::dump_set(&inputs, &target, &options, &*progress);
    progress.finish();
    let (report, exit) = match result {
        Ok(report) => {
            let exit = if report.complete { Exit::Ok } else { Exit::Incomplete };
            (report, exit)
        }
        Err(error) => {
            let exit = failure::exit_of(&error, &inputs);
            let (EngineError::NoSpace { report, .. } | EngineError::Stopped { report, .. }) = &error else {
                return failing.engine(&error);
            };
            output::complain_chain(cause::chain(&error), cause::advice(&error));
            ((**report).clone(), exit)
        }
    };
    if args.json {
        return results.print_json(&report, exit);
    }
    let told = results.print(&report::text(&report), exit);
    // A report for people that cannot be printed makes the dump no worse: kdump scripts must not throw it away for that. Of a dry run
    // the report is all there is.
    if args.dry_run { told } else { exit }
}
