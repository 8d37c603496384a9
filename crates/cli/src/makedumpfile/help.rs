//! The texts of -h and -v.

use super::options::{ROWS, Row, Support};
use std::fmt::Write;

/// The makedumpfile release whose command line this is, as -v prints it.
pub const VERSION_LINE: &str = "makedumpfile: version 1.7.9 (released on 20 Apr 2026)";

/// Where the help text of an option begins, and where it ends at the latest.
const COLUMN: usize = 28;
const WIDTH: usize = 80;

/// The text of -v. Scripts look at the codec lines to learn what they may ask for; every codec is always built in.
pub fn version() -> String {
    let ours = env!("CARGO_PKG_VERSION");
    format!(
        "{VERSION_LINE}\nlzo\tenabled\nsnappy\tenabled\nzstd\tenabled\n\n\
         This is coresift {ours} with makedumpfile's command line.\n"
    )
}

/// The text of -h.
pub fn usage() -> String {
    let mut text = String::from(
        "
LZO support:
  enabled
snappy support:
  enabled
zstd support:
  enabled

Usage:
  Make a dump of a crashed kernel, or of an ELF or kdump file of one:
  # makedumpfile    [-c|-l|-p|-z] [-d LEVEL] [OPTION...] VMCORE DUMPFILE

  Check a command line without opening any file:
  # makedumpfile --check-params [OPTION...] VMCORE DUMPFILE

Available options:
",
    );
    let built = |row: &&Row| !matches!(row.support, Support::Missing(..));
    ROWS.iter().filter(built).for_each(|row| option(&mut text, row));
    text.push_str("\nOptions of makedumpfile that are known, but not built yet (a run is refused):\n");
    ROWS.iter().filter(|row| !built(row)).for_each(|row| option(&mut text, row));
    text.push_str(TABLES);
    text
}

const TABLES: &str = "
Dump levels: add up what to leave out. 31 leaves out all of it, 0 (the default)
nothing; pages that must not be read (offline, hardware poisoned) never get in.

  Level  leaves out
      1  pages filled with zeros
      2  file cache without private data
      4  file cache, with or without private data
      8  pages of processes
     16  free pages

Message levels: add up what to print. The default is 7.

  Level  prints                                      to
      1  progress                                    standard error
      2  common messages                             standard output
      4  errors and notes                            standard error
      8  debugging messages                          standard output
     16  the report                                  standard output

Exit codes: 0 the dump is complete; 1 it failed or is incomplete; 2 the kernel
of the dump is not the one of the file given with -x or -i.
";

/// `  -d LEVEL   text`, the text wrapped.
fn option(out: &mut String, row: &Row) {
    let spellings: Vec<String> =
        row.short.map(|c| format!("-{c}")).into_iter().chain(row.long.map(|l| format!("--{l}"))).collect();
    let head = format!("  {} {}", spellings.join(", "), row.value.unwrap_or_default());
    let head = head.trim_end();
    let help = match row.support {
        Support::NoEffect(why) => format!("{}; no effect here: {why}", row.help),
        _ => row.help.to_owned(),
    };
    let mut line = format!("{head:<COLUMN$}");
    if head.len() >= COLUMN {
        line.push_str("  ");
    }
    let mut empty = true;
    for word in help.split_whitespace() {
        if !empty && line.len() + 1 + word.len() > WIDTH {
            let _infallible = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(COLUMN);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    let _infallible = writeln!(out, "{}", line.trim_end());
}
