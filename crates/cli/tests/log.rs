//! The kernel log: `coresift log`, `--dump-dmesg`, and `coresift dump --log`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ended, PROGRAM, Place};
use coresift_synth::{Image, KernelLayout, Log, LogRecord, Machine, PAGE, lab};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SAVED: &str = "\nThe dmesg log is saved to log.\n\nmakedumpfile Completed.\n";
const FAILED: &str = "\nmakedumpfile Failed.\n";

fn records() -> Vec<LogRecord> {
    let mut records: Vec<LogRecord> = [
        (0, "Linux version 6.12.0-synth"),
        (1_500_000_000, "pci 0000:00:01.0: BAR 0\nassigned"),
        (2_000_000_000, "quiet"),
        (81_000_090_000, "Kernel panic - not syncing: \u{e4}"),
    ]
    .map(|(ns, text)| LogRecord::new(ns, text))
    .into();
    (records[1].level, records[1].device) = (4, Some(("pci", "+pci:0000:00:01.0")));
    (records[2].level, records[2].facility) = (7, 3);
    (records[3].level, records[3].caller) = (0, 1 << 31 | 2);
    records
}

const TEXT: &str = "\
[    0.000000] [      T1] Linux version 6.12.0-synth
[    1.500000] [      T1] pci 0000:00:01.0: BAR 0
                          assigned
[    2.000000] [      T1] quiet
[   81.000090] [      C2] Kernel panic - not syncing: \\xc3\\xa4
";

fn image(release: &str) -> Image {
    let log = Log { cleared: 2, ..records().into() };
    Machine::new(KernelLayout::get(release)).ram(0x1000..0x1080).log(log).build()
}

fn place() -> Place {
    let place = Place::empty();
    place.put("vmcore", &image("6.12").elf().bytes());
    place
}

/// Physical address of a symbol of the kernel image.
fn phys(image: &Image, symbol: &str) -> u64 {
    image.symbols[symbol] - image.image_virt + image.image.start * PAGE
}

#[test]
fn the_log_of_any_container_is_printed() {
    let place = place();
    let image = image("6.12");
    let kdump = image.kdump().bytes();
    place.put("kdump", &kdump);
    place.put("flat", &coresift_synth::flat::Flatten::default().wrap(&kdump).bytes);
    for name in ["vmcore", "kdump", "flat"] {
        let expected = Ended { code: Some(0), out: TEXT.into(), err: String::new() };
        assert_eq!(place.run(&format!("log {name}")), expected, "{name}");
    }
}

#[test]
fn levels_and_the_last_clear_choose_records() {
    let place = place();
    let lines: Vec<&str> = TEXT.split_inclusive('\n').collect();
    let warn = lines[1].to_owned() + lines[2];
    for (options, expected) in [
        ("--level warn", warn.clone()),
        ("-l warn,debug", warn.clone() + lines[3]),
        ("-l err+", lines[4].to_owned()),
        ("-l +info", lines[0].to_owned() + lines[3]),
        ("--since-clear", lines[3].to_owned() + lines[4]),
        ("--since-clear -l 7", lines[3].to_owned()),
    ] {
        let ended = place.run(&format!("log {options} vmcore"));
        assert_eq!((ended.code, ended.out, ended.err.as_str()), (Some(0), expected, ""), "{options}");
    }
    assert_eq!(place.run("log -l loud vmcore").code, Some(64));
}

#[test]
fn json_has_an_object_for_each_record() {
    let place = place();
    insta::assert_snapshot!("log-json", place.run("log --json vmcore").out);
    place.put("old", &image("3.10").elf().bytes());
    insta::assert_snapshot!("log-json-records", place.run("log --json old").out);
    place.put("older", &image("2.6.32").elf().bytes());
    insta::assert_snapshot!("log-json-text", place.run("log --json older").out);
}

#[test]
fn what_can_be_read_of_an_incomplete_dump_is_printed_and_the_code_is_3() {
    let place = Place::empty();
    let log = Log { size_bits: Some(14), ..records().into() };
    let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).image_pages(40).log(log).build();
    // The text of the ring is behind 128 descriptors and infos.
    let page = (phys(&image, "printk_rb_static") + 88 + 128 * (24 + 88)) / PAGE;
    let mut kdump = image.kdump();
    kdump.lost.insert(page);
    place.put("part", &kdump.bytes());
    let ended = place.run("log part");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.err.starts_with("coresift: pieces of the log are not in the dump (the text of record 0x"),
        "{}",
        ended.err
    );
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    let ended = place.makedumpfile("--dump-dmesg part log");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), FAILED), "{}", ended.err);
    assert!(place.has("log"));
}

#[test]
fn the_log_is_read_from_the_parts_of_a_split_set() {
    let place = Place::empty();
    let image = image("6.12");
    for (name, pfns) in [("low", 0..0x1040), ("high", 0x1040..0x1080)] {
        let mut part = image.kdump();
        part.stored.retain(|pfn| pfns.contains(pfn));
        part.part = Some(pfns);
        place.put(name, &part.bytes());
    }
    for names in ["low", "low high", "high low"] {
        let ended = place.run(&format!("log {names}"));
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), TEXT), "{names}: {}", ended.err);
    }
    let ended = place.run("log high");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    let next = "  next: the log is in another part of the split set: name all parts\n";
    assert!(ended.err.ends_with(next), "{}", ended.err);
}

#[test]
fn a_dump_without_a_log_is_told_with_the_key_that_is_missing() {
    let place = Place::empty();
    let mut old = image("3.10");
    old.vmcoreinfo = old.vmcoreinfo.replace("SIZE(log)", "SIZE(other)").replace("SIZE(printk_log)", "SIZE(other)");
    place.put("c28", &old.elf().bytes());
    let ended = place.run("log c28");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert!(
        ended.err.contains("the dump lacks SIZE(printk_log), SIZE(log) or SYMBOL(log_end), which the kernel log needs"),
        "{}",
        ended.err
    );
    let ended = place.makedumpfile("--dump-dmesg c28 log");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), FAILED));
    assert!(ended.err.starts_with("makedumpfile: Can't find some symbols for log_buf.\n"), "{}", ended.err);
    assert!(!place.has("log"));
}

#[test]
fn dump_dmesg_writes_the_log_and_says_so() {
    let place = place();
    let run = |line: &str| place.makedumpfile(line);
    let plain = |code, out: &str, err: &str| Ended { code: Some(code), out: out.into(), err: err.into() };

    assert_eq!(run("--dump-dmesg vmcore log"), plain(0, SAVED, ""));
    assert_eq!(place.get("log"), TEXT.as_bytes());
    let mode = std::fs::metadata(place.path("log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let exists = "makedumpfile: Can't open the dump file (log). File exists\n";
    assert_eq!(run("--dump-dmesg vmcore log"), plain(1, FAILED, exists));
    assert_eq!(run("--dump-dmesg --partial-dmesg -f vmcore log"), plain(0, SAVED, ""));
    assert_eq!(place.get("log"), TEXT.as_bytes()[TEXT.find("[    2.0").unwrap()..]);
    assert_eq!(run("--dump-dmesg -F vmcore"), plain(0, TEXT, &SAVED.replace("to log", "to STDOUT")));

    let nowhere = run("--dump-dmesg vmcore nowhere/log");
    let said = "makedumpfile: Can't open the dump file(nowhere/log). No such file or directory\n";
    assert_eq!(nowhere, plain(1, FAILED, said));
    // Options of a dump do not matter to the log.
    assert_eq!(run("--dump-dmesg -c -d 31 --num-threads 3 -f vmcore log"), plain(0, SAVED, ""));
}

#[test]
fn dump_dmesg_keeps_to_the_size_limit() {
    let place = Place::empty();
    let many: Vec<LogRecord> = (0..30).map(|i| LogRecord::new(i, "x".repeat(90))).collect();
    let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).log(many).build();
    place.put("vmcore", &image.elf().bytes());
    let ended = place.makedumpfile("--dump-dmesg -L 1K vmcore log");
    let said = format!("\nCan't write the log file(log). Size limit(1024) reached.\n{FAILED}");
    assert_eq!((ended.code, ended.out), (Some(1), said), "{}", ended.err);
    assert_eq!(place.get("log").len(), 1024);
    let ended = place.makedumpfile("--dump-dmesg -L 1K -F vmcore");
    assert_eq!((ended.code, ended.out.len()), (Some(1), 1024));
    assert!(ended.err.contains("\nCan't write the log file(STDOUT). Size limit(1024) reached.\n"), "{}", ended.err);
    let ended = place.shell("$P makedumpfile --dump-dmesg -F vmcore > /dev/full");
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("\nCan't write the log file(STDOUT). No space left on device\n"), "{}", ended.err);
}

#[test]
fn a_corrupt_log_is_told_in_the_words_of_makedumpfile_and_kept() {
    let place = Place::empty();
    for (len, said) in [(0u16, "Cycle when parsing dmesg detected."), (8, "Index outside log_buf detected.")] {
        let mut image = image("5.4");
        let buffer = phys(&image, "__log_buf");
        let first = u64::from(u16::from_le_bytes(image.read(buffer + 8, 2).try_into().unwrap()));
        image.write(buffer + first + 8, &len.to_le_bytes());
        place.put("vmcore", &image.elf().bytes());
        let ended = place.makedumpfile("--dump-dmesg -f vmcore log");
        let virt = image.symbols["__log_buf"];
        let lines = [
            said.to_owned(),
            "The printk log_buf is most likely corrupted.".to_owned(),
            format!("log_buf = {virt:#x}, idx = {first:#x}"),
        ];
        let expected: String = lines.iter().map(|line| format!("makedumpfile: {line}\n")).collect();
        assert_eq!((ended.code, ended.out.as_str(), ended.err), (Some(1), FAILED, expected));
        assert!(place.get("log").starts_with(b"[    0.000000] Linux version"));
    }
}

#[test]
fn c13_the_log_is_saved_before_a_dump_that_does_not_fit() {
    for threads in [1, 2, 8] {
        let place = place();
        let line = format!("ulimit -f 100; $P dump --threads {threads} --log dmesg -d 0 --compress none vmcore out");
        let ended = place.shell(&line);
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert_eq!(place.get("dmesg"), TEXT.as_bytes());
        let mode = std::fs::metadata(place.path("dmesg")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn a_log_that_cannot_be_saved_stops_no_dump() {
    let place = place();
    let core = place.get("vmcore");
    place.put("taken", b"old");
    for (options, note) in [
        ("--log taken", "the kernel log is not saved in taken: File exists"),
        ("--log nowhere/log", "the kernel log is not saved in nowhere/log: No such file"),
        ("--log ./out", "the kernel log is not saved in ./out: that is the target of the dump"),
        ("-f --log vmcore", "the kernel log is not saved in vmcore: that is the input"),
    ] {
        let ended = place.run(&format!("dump --json {options} vmcore out"));
        assert_eq!(ended.code, Some(0), "{options}: {}", ended.err);
        let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        let notes: Vec<&str> = report["notes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        assert!(notes.iter().any(|n| n.starts_with(note)), "{options}: {notes:?}");
        assert_eq!(report["log"]["complete"], false);
        assert_eq!((place.get("taken").as_slice(), place.get("vmcore") == core), (&b"old"[..], true));
        assert_eq!(place.info("out")["complete"], true);
        std::fs::remove_file(place.path("out")).unwrap();
    }
    let ended = place.run("dump --json --log log vmcore out");
    let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["log"], serde_json::json!({"path": "log", "bytes": TEXT.len(), "complete": true}));
    // A dry run writes nothing.
    assert_eq!(place.run("dump --dry-run --log other vmcore out2").code, Some(0));
    assert!(!place.has("other"));
}

#[test]
fn a_reader_of_the_log_that_has_seen_enough_is_no_failure_but_a_full_disk_is() {
    let place = place();
    let mut child =
        place.command(PROGRAM).args(["log", "vmcore"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended: Ended = child.wait_with_output().unwrap().into();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let ended = place.shell("$P log vmcore > /dev/full");
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.starts_with("coresift: cannot write to the standard output: "), "{}", ended.err);
}

/// makedumpfile's bytes as `\xffffffe4` are `\xe4` here (its characters are signed): nothing else may differ.
#[test]
#[ignore = "needs real cores: CORESIFT_LAB; and makedumpfile: CORESIFT_PEERS"]
fn real_cores_have_the_logs_of_makedumpfile() {
    let peers = std::env::var_os("CORESIFT_PEERS").unwrap();
    let makedumpfile = Path::new(&peers).join("bin/makedumpfile");
    for core in lab::folders() {
        let place = Place::empty();
        let input = core.join("vmcore");
        for options in [&["--dump-dmesg"][..], &["--dump-dmesg", "--partial-dmesg"]] {
            let run = |mut command: Command, out: &str| -> Ended {
                command
                    .current_dir(place.path("."))
                    .args(options)
                    .arg("-f")
                    .arg(&input)
                    .arg(out)
                    .output()
                    .unwrap()
                    .into()
            };
            let theirs = run(Command::new(&makedumpfile), "theirs");
            let mut ours = Command::new(PROGRAM);
            ours.arg("makedumpfile");
            let ours = run(ours, "ours");
            assert_eq!(ours.code, Some(0), "{}: {}", core.display(), ours.err);
            // It does not open every core that we do.
            if theirs.code == Some(0) {
                let theirs = String::from_utf8(place.get("theirs")).unwrap().replace("\\xffffff", "\\x");
                assert!(theirs.into_bytes() == place.get("ours"), "{} {options:?}", core.display());
            }
        }
        let mut command = Command::new(PROGRAM);
        let native: Ended = command.arg("log").arg(&input).output().unwrap().into();
        assert_eq!((native.code, native.err.as_str()), (Some(0), ""), "{}", core.display());
        assert!(native.out.lines().next().unwrap().contains("Linux version"), "{}", core.display());
        // The others were taken of a machine that runs.
        if core.to_string_lossy().ends_with("kdump") {
            assert!(native.out.contains("Kernel panic - not syncing"), "{}", core.display());
        }
    }
}
