//! `coresift unflatten`.

use crate::exit::{self, Exit};
use crate::failure::Failing;
use crate::text::{bytes, count, rate, seconds};
use crate::{output, signals};
use coresift_engine::{Stop, StreamFrom, UnflattenOptions, Unflattened, unflatten};
use std::path::{Path, PathBuf};

/// Make a file of a flattened stream
///
/// Reads the stream from STREAM, or from the standard input, and writes the file
/// inside. Until the stream's end marker has arrived the file is marked incomplete.
/// Of a stream that is cut short or damaged, of one that does not fit and on SIGTERM,
/// SIGINT or SIGHUP everything that arrived is saved, the mark stays, and what is lost
/// is listed. Where not even the headers of the dump arrived there is no file, and what
/// OUT was before is left alone. (No command needs this: all read flattened files.)
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment, override_usage = "coresift unflatten [OPTIONS] [STREAM] <OUT>")]
pub struct Args {
    /// Overwrite OUT when it exists
    #[arg(short, long)]
    force: bool,
    /// Print what was made, and all that is lost, as JSON
    #[arg(long)]
    json: bool,
    /// STREAM, which may be a FIFO or a device; - is the standard input, as it is
    /// without STREAM; and OUT, the file to write
    #[arg(value_name = "STREAM|OUT", num_args = 1..=2, required = true, verbatim_doc_comment)]
    names: Vec<PathBuf>,
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift unflatten vmcore < vmcore.flat
  coresift unflatten vmcore.flat vmcore
  gzip -dc dump.202611302347.gz | coresift unflatten --json vmcore

{}",
        exit::HELP
    )
}

/// Where the stream named `name` is.
pub fn from(name: &Path) -> StreamFrom {
    if name.as_os_str() == "-" { StreamFrom::Stdin } else { StreamFrom::Path(name.to_owned()) }
}

pub fn run(args: &Args) -> Exit {
    let (stream, out) = match args.names.as_slice() {
        [stream, out] => (from(stream), out),
        [out] => (StreamFrom::Stdin, out),
        _ => return Exit::Usage,
    };
    if let Err(exit) = super::needs_a_file(out) {
        return exit;
    }
    let stop = Stop::default().on_signal(signals::watch());
    match unflatten(&stream, out, UnflattenOptions { force: args.force, dry_run: false, stop }) {
        Ok(made) => {
            let exit = if made.complete { Exit::Ok } else { Exit::Incomplete };
            told(&made).iter().for_each(|line| output::complain(line));
            if args.json { output::print_json(&made, exit) } else { output::print(&text(&made, out), exit) }
        }
        Err(error) => {
            let input: Vec<PathBuf> = match stream {
                StreamFrom::Path(path) => vec![path],
                StreamFrom::Stdin => Vec::new(),
            };
            Failing::new(&input, args.json).engine(&error)
        }
    }
}

/// Lost runs shown as text; JSON has more.
const SHOWN: usize = 10;

/// What is wrong with a stream and the file made of it, a line each; nothing where all is well.
pub fn told(made: &Unflattened) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(made.misplaced.iter().map(|what| format!("{}: {what}", made.input)));
    if !made.complete {
        let cut = made.cut.as_ref().map_or("it is damaged", |cut| cut);
        lines.push(format!("{}: {cut}; what arrived is saved, marked incomplete", made.input));
        if made.pages > 0 {
            let descriptors = match made.descriptors_taken_back {
                0 => String::new(),
                n => format!("; {} descriptors were taken back, for what they point at did not arrive", count(n)),
            };
            lines.push(format!("lost: {} of {} pages{descriptors}", count(made.lost_pages), count(made.pages)));
        }
        let ranges = made.lost.iter().map(|l| format!("lost: bytes {} to {} of the file, {}", l.start, l.end, l.what));
        let pages = made.lost_page_frames.iter().map(|l| format!("lost: {} pages from pfn {:#x}", l.pages, l.pfn));
        for runs in [ranges.collect::<Vec<_>>(), pages.collect()] {
            lines.extend(runs.iter().take(SHOWN).cloned());
            if runs.len() > SHOWN {
                lines.push(format!("lost: {} more such runs (--json lists them)", count((runs.len() - SHOWN) as u64)));
            }
        }
    }
    lines.extend(made.notes.iter().map(|note| format!("note: {note}")));
    lines.extend(made.follows.iter().map(|follows| format!("note: {follows}")));
    lines
}

fn text(made: &Unflattened, out: &Path) -> String {
    let speed = rate(made.bytes, made.seconds).map_or_else(String::new, |rate| format!(", {}/s", bytes(rate)));
    format!(
        "{}: a{} {} file of {} out of {} blocks, in {}{speed}\n",
        out.display(),
        if made.complete { "" } else { "n incomplete" },
        made.container.unwrap_or("headless"),
        bytes(made.file_bytes),
        count(made.blocks),
        seconds(made.seconds),
    )
}
