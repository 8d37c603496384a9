//! Where results cannot go, and names that are no text.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ended, PROGRAM, Place};
use coresift_synth::kdump::INCOMPLETE;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Lines whose standard output is the result.
const PRINTING: [&str; 21] = [
    "info vmcore",
    "info --json vmcore",
    "log vmcore",
    "log --json vmcore",
    "verify vmcore",
    "verify --json vmcore",
    "explain vmcore pfn:0x1000",
    "explain --json vmcore pfn:0x1000",
    "dump --dry-run vmcore out",
    "dump -f --json vmcore out",
    "dump -f vmcore -",
    "repair -f --json vmcore out",
    "--help",
    "dump --help",
    "--version",
    "makedumpfile -h",
    "makedumpfile -v",
    "makedumpfile -F vmcore",
    "makedumpfile -F --dump-dmesg vmcore",
    "makedumpfile --mem-usage vmcore",
    "makedumpfile -F --dry-run vmcore",
];

#[test]
fn a_standard_output_that_is_closed_or_full_fails_every_command_that_prints() {
    let place = Place::new();
    for line in PRINTING {
        for to in [">&-", "> /dev/full"] {
            // A dry run of a stream writes nothing; but where there is no standard output, it would not end well either.
            if line.contains("-F --dry-run") && to.contains("full") {
                continue;
            }
            let ended = place.shell(&format!("$P {line} {to}"));
            assert_eq!(ended.code, Some(1), "{line} {to}: {}", ended.err);
        }
        // A caller's own /dev/null takes everything.
        let ended = place.shell(&format!("$P {line} > /dev/null"));
        assert_eq!(ended.code, Some(0), "{line} > /dev/null: {}", ended.err);
        let ended = place.shell(&format!("$P {line} 1<> /dev/null"));
        assert_eq!(ended.code, Some(0), "{line} 1<> /dev/null: {}", ended.err);
    }
    let ended = place.shell("$P info vmcore >&-");
    assert_eq!(ended.err, "coresift: cannot write to the standard output: Bad file descriptor\n");
}

#[test]
fn a_good_dump_stays_good_where_its_report_cannot_be_printed() {
    let place = Place::new();
    for (line, to) in
        [("dump", ">&-"), ("dump", "> /dev/full"), ("makedumpfile", ">&-"), ("makedumpfile", "> /dev/full")]
    {
        let ended = place.shell(&format!("rm -f out; $P {line} -d 31 vmcore out {to}"));
        assert_eq!(ended.code, Some(0), "{line} {to}: {}", ended.err);
        assert_eq!(place.info("out")["complete"], true, "{line} {to}");
    }
}

/// A name with a byte that is in no UTF-8 text.
fn odd(name: &str) -> OsString {
    OsString::from_vec([name.as_bytes(), b"\xff"].concat())
}

/// Runs `coresift` with the words of `line`; those that begin with `@` are odd names.
fn run(place: &Place, line: &str) -> Ended {
    let word = |word: &str| word.strip_prefix('@').map_or_else(|| OsString::from(word), odd);
    place.command(PROGRAM).args(line.split(' ').map(word)).output().unwrap().into()
}

#[test]
fn every_command_takes_names_that_are_not_utf_8() {
    let place = Place::new();
    let put = |name: &str, bytes: &[u8]| {
        place.put(name, bytes);
        std::fs::write(place.path("").join(odd(name)), bytes).unwrap();
    };
    put("vmcore", &place.get("vmcore"));
    put("text", b"no dump at all");
    let image = common::image();
    let mut part = image.kdump();
    part.status |= INCOMPLETE;
    put("part", &part.bytes());
    for line in [
        "dump -f --flatten @vmcore @flat",
        "dump -f -d 0 @vmcore @p1 @p2",
        "dump -f --format elf --log @log @vmcore @elf",
        "dump -f --limit 40000 -d 0 @vmcore @out",
        "dump @vmcore @p1",
        "dump @vmcore @no/where",
        "dump @text @out",
        "dump @nothing @out",
        "dump @vmcore @vmcore",
        "dump --vmlinux @text @vmcore @out",
        "info @vmcore",
        "info @nothing",
        "info @p1 @p2",
        "log @p1 @p2",
        "log @text",
        "verify @vmcore",
        "verify @part",
        "verify @text",
        "explain @vmcore pfn:0x1000",
        "explain @text pfn:0x1000",
        "repair -f @part @mended",
        "repair @part @vmcore",
        "join -f @p1 @p2 @joined",
        "join @p1 @text @joined2",
        "unflatten -f @flat @plain",
        "unflatten -f @text @plain2",
    ] {
        for json in ["", "--json "] {
            let (command, rest) = line.split_once(' ').unwrap();
            let line = format!("{command} {json}{rest}");
            let (ended, plain) = (run(&place, &line), run(&place, &line.replace('@', "")));
            assert!(ended.code.is_some_and(|code| code < 64), "{line}: {ended:?}");
            assert_eq!((ended.code, ended.err.is_empty()), (plain.code, plain.err.is_empty()), "{line}: {}", ended.err);
            assert_eq!(ended.out.is_empty(), plain.out.is_empty(), "{line}");
            if !json.is_empty() && !ended.out.is_empty() && command != "log" {
                let told: Value = serde_json::from_str(&ended.out).unwrap();
                assert!(told.is_object(), "{line}: {}", ended.out);
            }
        }
    }
    let told = |line: &str| serde_json::from_str::<Value>(&run(&place, line).out).unwrap();
    assert_eq!(told("dump --json @vmcore @p1")["input"], "vmcore\\xff");
    assert_eq!(told("dump -f --json @vmcore @p1 @p2")["parts"][1]["path"], "p2\\xff");
    assert_eq!(told("repair -f --json @part @mended")["out"], "mended\\xff");
}

#[test]
fn the_log_is_not_saved_over_an_input_whose_name_is_not_utf_8() {
    let place = Place::new();
    let core = place.get("vmcore");
    std::fs::write(place.path("").join(odd("vmcore")), &core).unwrap();
    let ended = run(&place, "dump -f --log @vmcore @vmcore out");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("that is the input"), "{ended:?}");
    assert!(std::fs::read(place.path("").join(odd("vmcore"))).unwrap() == core);
}
