//! What only a terminal is shown of the kernel log: levels and colours.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use common::{PROGRAM, Place};
use coresift_synth::{KernelLayout, LogRecord, Machine};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::Read;
use std::process::Stdio;

/// What `coresift` prints to a terminal.
fn on_terminal(place: &Place, words: &[&str], environment: &[(&str, &str)]) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let mut command = place.command(PROGRAM);
    command.args(words).env_remove("NO_COLOR").envs(environment.iter().copied());
    let mut child = command.stdout(Stdio::from(theirs)).stderr(Stdio::piped()).spawn().unwrap();
    // Theirs is closed here, so that reading ends with the program: by an error, as terminals do.
    drop(command);
    let (mut text, mut piece, mut ours) = (Vec::new(), [0; 4096], File::from(ours));
    while let Ok(n @ 1..) = ours.read(&mut piece) {
        text.extend(&piece[..n]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // The line discipline makes each newline two characters.
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

fn records() -> Vec<LogRecord> {
    let levels = ["panic", "error", "warning", "information"].into_iter().zip([0, 3, 4, 6]);
    let record = |(number, (text, level))| LogRecord { level, caller: 1 << 31 | 2, ..LogRecord::new(number, text) };
    (0..).map(|number| number * 1_000_000).zip(levels).map(record).collect()
}

/// The ring of 5.10, records with the caller's number, and text whose levels stand in front of the lines.
#[test]
fn a_terminal_is_shown_levels_and_colours_and_the_caller_of_every_form_of_log() {
    for (release, caller) in [("6.12", "[      C2] "), ("3.10", ""), ("2.6.32", "")] {
        let place = Place::empty();
        let image = Machine::new(KernelLayout::get(release)).ram(0x1000..0x1080).log(records()).build();
        place.put("vmcore", &image.elf().bytes());
        let line = |time: &str, level: &str, text: &str| format!("{level:<6} [    0.{time}] {caller}{text}\n");
        let plain = line("000000", "emerg", "panic")
            + &line("001000", "err", "error")
            + &line("002000", "warn", "warning")
            + &line("003000", "info", "information");
        assert_eq!(on_terminal(&place, &["log", "vmcore"], &[("NO_COLOR", "1")]), plain, "{release}");
        let coloured = on_terminal(&place, &["log", "vmcore"], &[]);
        for text in ["\x1b[1;7;31mpanic\x1b[0m\n", "\x1b[31merror\x1b[0m\n", "\x1b[1mwarning\x1b[0m\n", "information\n"]
        {
            assert!(coloured.contains(text), "{release}: {coloured:?}");
        }
        let parts = coloured.split('\x1b').enumerate();
        let bare: String = parts.map(|(i, part)| if i == 0 { part } else { part.split_once('m').unwrap().1 }).collect();
        assert_eq!(bare, plain, "{release}: nothing but colours is added");
        // A file gets neither.
        let file = place.run("log vmcore").out;
        assert!(!file.contains('\x1b') && !file.contains("emerg"), "{release}: {file}");
    }
}
