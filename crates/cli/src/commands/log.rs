//! `coresift log`.

use crate::exit::{self, Exit};
use crate::failure::{self, Failing};
use crate::{output, stdout};
use clap::builder::TypedValueParser;
use coresift_format::Input;
use coresift_kernel::KernelError;
use coresift_kernel::printk::{KernelLog, LogProblem, Message, Record, Since};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Print the kernel log that a dump holds
///
/// Any dump will do, an incomplete one too: what can be read is printed, and what
/// is missing is said, with exit code 3. Lines are those of makedumpfile
/// --dump-dmesg; a terminal shows levels and colours besides (NO_COLOR is obeyed).
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// Print only these levels: names or numbers, as err,warn; err+ is err and
    /// what is more important, +err what is less
    #[arg(short, long = "level", value_name = "LEVELS", verbatim_doc_comment)]
    #[arg(value_parser = clap::builder::StringValueParser::new().try_map(|text| levels(&text)))]
    level: Option<Levels>,
    /// Print only what was logged since the log was last cleared
    #[arg(long)]
    since_clear: bool,
    /// The kernel's vmlinux with debug information, for a dump that does not
    /// describe its log
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    vmlinux: Option<PathBuf>,
    /// Print a JSON object for each record
    #[arg(long)]
    json: bool,
    /// An ELF core or a kdump-compressed file, flattened or not; or the parts of a
    /// split set
    #[arg(required = true, verbatim_doc_comment)]
    dump: Vec<PathBuf>,
}

fn help() -> String {
    let names: Vec<&str> = LEVELS.iter().map(|level| level.name).collect();
    format!(
        "\
Levels: {}

Examples:
  coresift log vmcore
  coresift log --level err+ vmcore
  coresift log part1 part2
  coresift log --json vmcore | jq -r 'select(.level == \"warn\") | .text'

{}",
        names.join(" "),
        exit::HELP
    )
}

/// A level of importance: its name as in dmesg(1), and what a terminal shows its text with (SGR parameters).
struct Level {
    name: &'static str,
    colour: &'static str,
}

/// By their number.
const LEVELS: [Level; 8] = [
    Level { name: "emerg", colour: "1;7;31" },
    Level { name: "alert", colour: "7;31" },
    Level { name: "crit", colour: "1;31" },
    Level { name: "err", colour: "31" },
    Level { name: "warn", colour: "1" },
    Level { name: "notice", colour: "" },
    Level { name: "info", colour: "" },
    Level { name: "debug", colour: "2" },
];
/// Time and caller in front of a text.
const PREFIX_COLOUR: &str = "32";
/// Facilities of syslog(3), by their number.
const FACILITIES: [&str; 12] =
    ["kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"];

/// Levels to print, a bit for each.
type Levels = u8;

/// Reads a list of levels as dmesg(1) does.
fn levels(text: &str) -> Result<Levels, String> {
    text.split(',').try_fold(0, |all, item| {
        let name = item.trim_start_matches('+').trim_end_matches('+');
        let number = LEVELS.iter().position(|level| level.name == name).or_else(|| name.parse().ok());
        let number = number.filter(|n| *n < LEVELS.len()).ok_or_else(|| format!("`{item}` is no level"))?;
        let bit = 1u8 << number;
        Ok(all
            | match (item.starts_with('+'), item.ends_with('+')) {
                (false, false) => bit,
                (false, true) => bit | (bit - 1),
                (true, false) => !(bit - 1),
                (true, true) => return Err(format!("`{item}` is all levels; leave the option out")),
            })
    })
}

pub fn run(args: &Args) -> Exit {
    let failing = Failing::new(&args.dump, args.json);
    let input = match Input::open_parts(&args.dump) {
        Ok(input) => input,
        Err(error) => return failing.format(error),
    };
    let debug = match super::verify::debug_file(args.vmlinux.as_deref(), failing) {
        Ok(debug) => debug,
        Err(exit) => return exit,
    };
    let log = match KernelLog::open(&input, debug.as_ref()) {
        Ok(log) => log,
        Err(error) => {
            let causes = vec![format!("{}: no kernel log can be read", input.name()), error.to_string()];
            return failing.tell(causes, advice(&input, &error), failure::exit_of_kernel(&error));
        }
    };
    log.notes().iter().for_each(|note| output::complain(note));
    let (written, problems) = print(args, &log);
    problems.iter().for_each(|problem| output::complain(&problem.to_string()));
    let lost = problems.iter().any(|p| p.wrong.is_loss());
    output::ended_on_stdout(written, if lost { Exit::Incomplete } else { Exit::Ok })
}

/// What to do next about a log that cannot be read.
fn advice(input: &Input, error: &KernelError) -> Option<&'static str> {
    match error {
        KernelError::Read { .. } if input.as_kdump().is_some_and(|file| file.part().is_some()) => {
            Some("the log is in another part of the split set: name all parts")
        }
        KernelError::Read { .. } => Some("`coresift info` tells what the dump holds, and whether it ended early"),
        KernelError::MissingKey { .. } => Some("give the kernel's debug information with --vmlinux"),
        _ => None,
    }
}

fn print(args: &Args, log: &KernelLog<'_>) -> (io::Result<()>, Vec<LogProblem>) {
    let stdout = match stdout::open() {
        Ok(stdout) => stdout,
        Err(error) => return (Err(error), Vec::new()),
    };
    let terminal = stdout.is_terminal();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut out = BufWriter::new(stdout.lock());
    let mut written = Ok(());
    let mut wanted = Filter { levels: args.level, last: None };
    let since = if args.since_clear { Since::Clear } else { Since::Boot };
    let mut line = Vec::new();
    let problems = log.read(since, &mut |record| {
        if !wanted.has(record) {
            return ControlFlow::Continue(());
        }
        line.clear();
        match (args.json, terminal) {
            (true, _) => json(record, &mut line),
            (false, true) => for_terminal(record, colour, &mut line),
            (false, false) => record.line(&mut line),
        }
        written = out.write_all(&line);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if written.is_ok() {
        written = out.flush();
    } else {
        let _unwritten = out.into_parts();
    }
    (written, problems)
}

/// Which records are wanted. One without a level is a line that goes on from the one before.
struct Filter {
    levels: Option<Levels>,
    last: Option<u8>,
}

impl Filter {
    fn has(&mut self, record: &Record) -> bool {
        let Some(levels) = self.levels else { return true };
        self.last = record.level.or(self.last);
        // What is not known to be unwanted is shown.
        self.last.is_none_or(|level| levels & 1u8.checked_shl(level.into()).unwrap_or(0) != 0)
    }
}

/// A record as JSON. Any field may be absent in a later version; null is "the kernel does not keep it", or "not in the dump".
#[derive(Serialize)]
struct Object<'r> {
    /// Number since boot.
    seq: Option<u64>,
    /// Nanoseconds since boot.
    time_ns: Option<u64>,
    facility: Option<String>,
    level: Option<String>,
    /// `T` and the number of a task, or `C` and that of a CPU.
    caller: Option<String>,
    /// Bytes that are not UTF-8 are U+FFFD.
    text: Option<String>,
    dict: BTreeMap<&'r str, &'r str>,
}

fn json(record: &Record, out: &mut Vec<u8>) {
    let name = |names: &[&str], number: u8| {
        names.get(usize::from(number)).map_or_else(|| number.to_string(), |name| (*name).to_owned())
    };
    let object = Object {
        seq: record.seq,
        time_ns: record.time,
        facility: record.facility.map(|number| name(&FACILITIES, number)),
        level: record.level.map(|number| name(&LEVELS.map(|level| level.name), number)),
        caller: record.caller.map(|caller| caller.to_string()),
        text: match &record.message {
            Message::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            Message::Empty => Some(String::new()),
            Message::Lost => None,
        },
        dict: record.dict.iter().map(|(name, value)| (&**name, &**value)).collect(),
    };
    // Such an object can always be written, and memory takes it.
    let _infallible = serde_json::to_writer(&mut *out, &object);
    out.push(b'\n');
}

/// The line for people: the level in front, colours, and nothing in it that would steer the terminal.
fn for_terminal(record: &Record, colour: bool, out: &mut Vec<u8>) {
    let Message::Text(text) = &record.message else { return };
    let level = record.level.and_then(|number| LEVELS.get(usize::from(number)));
    let paint = |out: &mut Vec<u8>, sgr: &str, text: &[u8]| {
        let sgr = Some(sgr).filter(|sgr| colour && !sgr.is_empty());
        if let Some(sgr) = sgr {
            out.extend(format!("\x1b[{sgr}m").bytes());
        }
        out.extend(text);
        if sgr.is_some() {
            out.extend(b"\x1b[0m");
        }
    };
    let name = format!("{:<6} ", level.map_or("", |level| level.name));
    let mut prefix = Vec::new();
    record.prefix(&mut prefix);
    let indent = " ".repeat(name.len() + prefix.len());
    for (number, line) in String::from_utf8_lossy(text).split('\n').enumerate() {
        if number == 0 {
            paint(out, "2", name.as_bytes());
            paint(out, PREFIX_COLOUR, &prefix);
        } else {
            out.extend(indent.bytes());
        }
        let mut safe = String::new();
        for c in line.chars() {
            match c {
                '\t' => safe.push(c),
                c if c.is_control() => safe.extend(format!("\\x{:02x}", u32::from(c)).chars()),
                c => safe.push(c),
            }
        }
        paint(out, level.map_or("", |level| level.colour), safe.as_bytes());
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_dmesg_reads_them() {
        for (text, bits) in [
            ("err", 0b1000),
            ("emerg,debug", 0b1000_0001),
            ("warn+", 0b1_1111),
            ("+notice", 0b1110_0000),
            ("3", 0b1000),
            ("emerg+", 1),
            ("+emerg", 0xff),
            ("crit,+debug", 0b1000_0100),
        ] {
            assert_eq!(levels(text), Ok(bits), "{text}");
        }
        for text in ["", "error", "8", "-1", "err,", "+err+"] {
            assert!(levels(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nothing_in_a_message_steers_the_terminal() {
        let record = Record {
            time: Some(1_500_000_000),
            level: Some(3),
            message: Message::Text(b"a\x1b[2Jb\r\n\xc3\xa4\tc\xff".to_vec()),
            ..Record::default()
        };
        let mut plain = Vec::new();
        for_terminal(&record, false, &mut plain);
        let plain = String::from_utf8(plain).unwrap();
        assert_eq!(plain, "err    [    1.500000] a\\x1b[2Jb\\x0d\n                      ä\tc\u{fffd}\n");
        let mut coloured = Vec::new();
        for_terminal(&record, true, &mut coloured);
        let coloured = String::from_utf8(coloured).unwrap();
        assert!(coloured.contains("\x1b[31ma\\x1b[2Jb\\x0d\x1b[0m\n"), "{coloured:?}");
    }
}
