//! The standard output of native commands: results, and nothing else. Where it carries a dump, results go to the standard error.

use crate::exit::Exit;
use crate::{cause, stdout};
use std::io::{self, ErrorKind, Write};

/// Where results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// To the standard output.
    Stdout,
    /// To the standard error, for the standard output carries a dump.
    Stderr,
}

impl Results {
    /// Writes `text` and tells how the command ends, which is `exit` unless the text could not be written.
    ///
    /// A reader that has seen enough (`| head`) is no failure.
    pub fn print(self, text: &str, exit: Exit) -> Exit {
        let put = |out: &mut dyn Write| out.write_all(text.as_bytes()).and_then(|()| out.flush());
        let (written, name) = match self {
            Self::Stdout => (stdout::open().and_then(|mut out| put(&mut out)), "output"),
            Self::Stderr => (put(&mut io::stderr()), "error"),
        };
        ended(written, name, exit)
    }

    /// Writes `value` as JSON.
    pub fn print_json(self, value: &impl serde::Serialize, exit: Exit) -> Exit {
        match serde_json::to_string_pretty(value) {
            Ok(mut text) => {
                text.push('\n');
                self.print(&text, exit)
            }
            Err(error) => {
                complain(&format!("cannot write the result as JSON: {error}"));
                Exit::Failed
            }
        }
    }
}

/// How a command ends that has `written` to the standard `name`: with `exit`, unless that failed.
fn ended(written: io::Result<()>, name: &str, exit: Exit) -> Exit {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            complain(&format!("cannot write to the standard {name}: {}", cause::text(&error)));
            Exit::Failed
        }
        _ => exit,
    }
}

/// How a command ends that has `written` to the standard output by itself.
pub fn ended_on_stdout(written: io::Result<()>, exit: Exit) -> Exit {
    ended(written, "output", exit)
}

/// As [`Results::print`], to the standard output.
pub fn print(text: &str, exit: Exit) -> Exit {
    Results::Stdout.print(text, exit)
}

/// As [`Results::print_json`], to the standard output.
pub fn print_json(value: &impl serde::Serialize, exit: Exit) -> Exit {
    Results::Stdout.print_json(value, exit)
}

/// Writes a line to the standard error, with the program's name in front. One that cannot be written is lost.
pub fn complain(text: &str) {
    let _lost = writeln!(io::stderr(), "coresift: {text}");
}

/// Writes an error, a line for each cause, and what to do next.
pub fn complain_chain(chain: impl Iterator<Item = String>, advice: Option<&str>) {
    for (depth, text) in chain.enumerate() {
        complain(&if depth == 0 { text } else { format!("  caused by: {text}") });
    }
    if let Some(advice) = advice {
        complain(&format!("  next: {advice}"));
    }
}
