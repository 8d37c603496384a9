//! Runs that cannot write all they should: no room, a limit, a signal, a deadline.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ended, PROGRAM, Place};
use coresift_synth::{KernelLayout, Machine};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ways to write a dump: a name, options, and the files.
const FORMATS: [(&str, &str, &[&str]); 3] = [
    ("kdump", "--format kdump --compress none", &["out"]),
    ("elf", "--format elf", &["out"]),
    ("split", "--compress none", &["out1", "out2"]),
];

/// Ways to have no room for 1.5 MiB: what goes before the program, and an option of it. Each leaves a half of that, or of two parts.
const NO_ROOM: [(&str, &str, &str); 3] = [
    ("ulimit", "ulimit -f 700;", ""),
    ("limit", "", "--limit 360000"),
    ("tmpfs", "mount -t tmpfs -o size=1m none full && cd full &&", ""),
];

/// Runs a shell line in which `$P` is the program, as root of a user namespace of its own if something is to be mounted. `None` where
/// the system does not allow that: then the other ways have to do.
fn run(place: &Place, line: &str) -> Option<Ended> {
    if !line.contains("mount ") {
        return Some(place.shell(line));
    }
    let namespace = ["--user", "--mount", "--map-root-user"];
    let allowed = Command::new("unshare").args(namespace).args(["mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let mut command = place.command("unshare");
    Some(command.args(namespace).args(["sh", "-c", line]).env("P", PROGRAM).output().unwrap().into())
}

#[test]
fn c13_a_full_target_ends_every_format_with_3_a_saved_log_and_files_that_open() {
    for (format, options, outs) in FORMATS {
        for (kind, before, limit) in NO_ROOM {
            for threads in [1, 2, 8, 64] {
                let place = Place::new();
                std::fs::create_dir(place.path("full")).unwrap();
                let (vmcore, log) = (place.path("vmcore"), place.path("log"));
                let (vmcore, log, outs) = (vmcore.display(), log.display(), outs.join(" "));
                let dump =
                    format!("$P dump --json -d 0 {options} {limit} --threads {threads} --log {log} {vmcore} {outs}");
                // What was mounted is gone afterwards: it is looked at there.
                let info =
                    outs.split(' ').map(|out| format!("$P info --json {out} > {}.json;", place.path(out).display()));
                let line = format!("{before} {dump}; code=$?; {} exit $code", info.collect::<String>());
                let Some(ended) = run(&place, &line) else { continue };
                let what = format!("{format}, {kind}, {threads} threads: {}", ended.err);
                assert_eq!(ended.code, Some(3), "{what}");
                let report: Value = serde_json::from_str(&ended.out).unwrap();
                assert_eq!(report["complete"], false, "{what}");
                assert!(report["kept_pages"].as_u64().unwrap() > 0, "{what}");
                assert!(String::from_utf8(place.get("log")).unwrap().contains("Linux version"), "{what}");
                let mut incomplete = 0;
                for out in outs.split(' ') {
                    let info: Value = serde_json::from_slice(&place.get(&format!("{out}.json"))).unwrap();
                    incomplete += u32::from(info["complete"] == false);
                    assert!(info["kernel"]["release"].as_str().unwrap().starts_with("6.12"), "{what}");
                }
                assert!(incomplete > 0, "{what}");
            }
        }
    }
}

#[test]
fn a_dry_run_ends_with_the_code_and_the_size_of_the_run_for_every_format() {
    for (format, options, outs) in FORMATS {
        let outs = outs.join(" ");
        let mut codes = Vec::new();
        for limit in ["--limit 1", "--limit 40000", "--limit 360000", "--limit 700000", "--limit 10M", ""] {
            let place = Place::new();
            let line = format!("dump --json -d 0 {options} {limit} vmcore {outs}");
            let dry = place.run(&format!("{line} --dry-run"));
            assert!(outs.split(' ').all(|out| !place.has(out)), "{format} {limit}");
            let place = Place::new();
            let real = place.run(&line);
            assert_eq!(dry.code, real.code, "{format} {limit}: {} {}", dry.err, real.err);
            let report = |ended: &Ended| serde_json::from_str::<Value>(&ended.out).unwrap();
            let (dry, real) = (report(&dry), report(&real));
            for field in ["file_bytes", "bytes_out", "kept_pages", "zero_pages", "complete"] {
                assert_eq!(dry[field], real[field], "{format} {limit}: {field}");
            }
            let bytes: usize = outs.split(' ').map(|out| if place.has(out) { place.get(out).len() } else { 0 }).sum();
            assert_eq!(dry["file_bytes"], bytes, "{format} {limit}");
            codes.push(report_code(&real));
        }
        assert_eq!(codes, [false, false, false, codes[3], true, true], "{format}");
    }
}

fn report_code(report: &Value) -> bool {
    report["complete"] == true
}

#[test]
fn a_dry_run_says_whether_the_file_system_has_room() {
    let place = Place::new();
    std::fs::create_dir(place.path("full")).unwrap();
    for (size, code) in [("1m", 3), ("8m", 0)] {
        let mount = format!("mount -t tmpfs -o size={size} none full &&");
        let line = |dry: &str| format!("{mount} $P dump {dry} --json -d 0 --compress none vmcore full/out");
        let (Some(dry), Some(real)) = (run(&place, &line("--dry-run")), run(&place, &line(""))) else { return };
        assert_eq!((dry.code, real.code), (Some(code), Some(code)), "{} {}", dry.err, real.err);
        let space = &serde_json::from_str::<Value>(&dry.out).unwrap()["space"];
        assert_eq!(space["fits"], code == 0, "{space}");
        // As makedumpfile, with its code and its words.
        let line = format!("{mount} $P makedumpfile --dry-run --message-level 22 -d 0 vmcore full/out");
        let ended = run(&place, &line).unwrap();
        assert_eq!(ended.code, Some(i32::from(code != 0)), "{ended:?}");
        assert_eq!(ended.out.contains("No space left on device"), code != 0, "{ended:?}");
        assert!(ended.out.contains("Write bytes     : "), "what is needed is told either way: {ended:?}");
    }
}

#[test]
fn a_dry_run_ends_as_the_run_whatever_is_in_the_way() {
    let place = Place::new();
    place.put("old", &vec![7; 300_000]);
    for target in ["nowhere/out", "old/out", "old", "vmcore", ".", "out/", "", &"n".repeat(300), "new"] {
        for options in ["", "-f", "--flatten", "-f --flatten", "--format elf", "-f -d 0 --limit 1K"] {
            let ended = |dry: &str| {
                let ended = place.shell(&format!("$P dump {dry} {options} vmcore '{target}'"));
                (ended.code, ended.err.replace("nothing readable would be written", "nothing readable was written"))
            };
            let dry = ended("--dry-run");
            assert!(!place.has("new"));
            assert_eq!(dry, ended(""), "{target} {options}");
            place.shell("rm -f new");
            place.put("old", &vec![7; 300_000]);
        }
    }
    let mounted = "mkdir full; mount -t tmpfs -o ro none full && $P dump DRY vmcore full/out 2> /dev/null > /dev/null";
    if let (Some(dry), Some(real)) =
        (run(&place, &mounted.replace("DRY", "--dry-run")), run(&place, &mounted.replace("DRY", "")))
    {
        assert_eq!((dry.code, real.code), (Some(1), Some(1)), "a file system that is read-only");
    }
}

#[test]
fn a_dry_run_knows_how_full_the_file_system_is() {
    let place = Place::new();
    std::fs::create_dir(place.path("full")).unwrap();
    let outs = ["", "1", "2"].map(|n| format!("full/out{n}"));
    let (mut codes, mut looked) = (Vec::new(), 0);
    for options in ["--compress none", "--format elf", "--flatten", "-f", "split"] {
        let (options, files) = if options == "split" {
            ("--compress none", format!("{} {}", outs[1], outs[2]))
        } else {
            (options, outs[0].clone())
        };
        // Nothing free, less than the headers, a half, and about all.
        for used in (1..=600).step_by(66) {
            let fill = format!("mount -t tmpfs -o size=2400k none full && head -c {}k /dev/zero > full/old;", used * 4);
            let old = if options == "-f" { "head -c 20k /dev/zero > full/out;" } else { "" };
            let sizes = "code=$?; [ ! -e full/out ] || stat -c '%s %b' full/out >&2; exit $code";
            let line = |dry: &str| format!("{fill} {old} $P dump {dry} --json -d 0 {options} vmcore {files}; {sizes}");
            let (Some(dry), Some(real)) = (run(&place, &line("--dry-run")), run(&place, &line(""))) else { return };
            assert_eq!(dry.code, real.code, "{options} {used}: {} {}", dry.err, real.err);
            codes.push(real.code);
            if options == "--flatten" || files != outs[0] {
                continue;
            }
            let report = |ended: &Ended| serde_json::from_str::<Value>(&ended.out).unwrap();
            for field in ["file_bytes", "bytes_out", "kept_pages", "zero_pages", "complete"] {
                assert_eq!(report(&dry)[field], report(&real)[field], "{options} {used}: {field}");
            }
            let sizes = real.err.lines().last().and_then(|line| line.split_once(' '));
            if let Some((Ok(size), Ok(blocks))) = sizes.map(|(size, blocks)| (size.parse(), blocks.parse::<u64>())) {
                assert_eq!(report(&real)["file_bytes"], size, "{options} {used}");
                assert!(
                    blocks * 512 >= size,
                    "{options} {used}: a reader that maps a hole of a full tmpfs dies of SIGBUS"
                );
                looked += 1;
            }
        }
    }
    for code in [0, 1, 3] {
        assert!(codes.contains(&Some(code)), "{codes:?}");
    }
    assert!(looked > 20, "{looked}");
}

#[test]
fn an_old_dump_survives_a_run_that_can_write_nothing_readable_and_a_new_one_leaves_nothing() {
    let old = vec![7; 300_000];
    for (line, code) in [
        ("$P dump -f --limit 1K vmcore out", 1),
        ("$P dump -f --limit 1K -d 0,31 vmcore out", 1),
        ("$P dump -f --format elf --limit 1K vmcore out", 1),
        ("$P dump -f --flatten --limit 1K vmcore out", 1),
        ("$P dump -f --limit 1K vmcore out out2", 1),
        ("$P makedumpfile -f -L 1K -d 31 vmcore out", 1),
        ("$P makedumpfile -f -E -L 1K -d 31 vmcore out", 1),
        ("ulimit -f 1; $P dump -f vmcore out", 1),
        ("ulimit -f 1; $P dump -f --format elf vmcore out", 1),
        ("ulimit -f 1; $P dump -f --flatten vmcore out", 1),
        ("ulimit -f 1; $P unflatten -f out < flat", 1),
    ] {
        let place = Place::new();
        assert_eq!(place.shell("$P dump --flatten vmcore flat").code, Some(0));
        place.put("out", &old);
        let ended = place.shell(line);
        assert_eq!(ended.code, Some(code), "{line}: {}", ended.err);
        assert!(place.get("out") == old, "{line}");
        assert!(!ended.err.contains("saves what is whole"), "{line}: {}", ended.err);
        std::fs::remove_file(place.path("out")).unwrap();
        assert_eq!(place.shell(line).code, Some(code), "{line}");
        assert!(!place.has("out") && !place.has("out2"), "{line}");
    }
    let place = Place::new();
    let ended = place.shell("ulimit -f 1; $P dump vmcore out");
    let said = "coresift: the largest size of a file (ulimit -f) was reached in out: nothing readable was written\n";
    assert_eq!(ended.err, format!("{said}coresift:   next: allow a larger file\n"));
}

#[test]
fn a_size_limit_is_told_in_makedumpfile_s_words() {
    let place = Place::new();
    let size = place.makedumpfile("-f -d 31 vmcore out").code.map(|_| place.get("out").len()).unwrap();
    let ended = place.makedumpfile(&format!("-f --message-level 6 -L {} -d 0,31 vmcore out", size - 1));
    let said = format!("\nCan't write the dump file(out). Size limit({}) reached.\n", size - 1);
    let retry = "Retry to create a dumpfile by dump_level(31).\n";
    let incomplete = "This is an incomplete dumpfile, but might analyzable.\n";
    assert_eq!(ended.out, format!("{said}{retry}{said}{incomplete}\nmakedumpfile Failed.\n"), "{ended:?}");
    assert_eq!((ended.code, place.get("out").len()), (Some(1), size - 1));
    assert_eq!(place.makedumpfile(&format!("-f -L {size} -d 0,31 vmcore out")).code, Some(0));
    assert_eq!(place.info("out")["complete"], true);
    // The next step that is named is one that helps.
    let ended = place.run("dump -f --limit 100K --compress zstd -d 31 vmcore out");
    assert!(ended.err.contains("next: allow a larger file\n"), "{}", ended.err);
    assert_eq!(ended.code, Some(3));
}

/// With a core that takes some time.
fn large() -> Place {
    let text = "@0x20000 60000 kernel content=text";
    let machine = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x20000..0x30000).pages(text);
    let place = Place::empty();
    place.put("vmcore", &machine.build().elf().with_image().bytes());
    place
}

/// A run that was started, and whose signals are not a shell's.
fn started(place: &Place, line: &str) -> Child {
    let mut command = place.command(PROGRAM);
    command.args(line.split(' ')).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_signal_ends_a_run_in_order() {
    let place = large();
    for (line, signal, code) in [
        ("dump --compress zlib:12 --threads 1 -d 0 vmcore out", Signal::TERM, 3),
        ("dump --compress zlib:12 --threads 2 -d 0 vmcore out", Signal::INT, 3),
        ("makedumpfile -c -d 0 --num-threads 1 vmcore out", Signal::TERM, 1),
    ] {
        let child = started(&place, line);
        while !place.has("out") || place.get("out").len() < 100_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains("ended the dump in out early"), "{line}: {said}");
        let info = place.info("out");
        assert_eq!((&info["complete"], &info["marked_incomplete"]), (&Value::Bool(false), &Value::Bool(true)));
        std::fs::remove_file(place.path("out")).unwrap();
    }
}

#[test]
fn a_second_signal_ends_a_run_at_once() {
    let place = large();
    assert!(place.command("mkfifo").arg("out").status().unwrap().success());
    // Nobody reads on when it is beyond the essentials, so that it waits in a write and cannot end in order.
    let child = started(&place, "dump -d 0 --compress none vmcore out");
    let mut pipe = std::fs::File::open(place.path("out")).unwrap();
    pipe.read_exact(&mut vec![0; 4 << 20]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(15), "{output:?}");
}

#[test]
fn an_elf_core_is_one_from_before_its_pages_are_looked_at() {
    let place = large();
    let mut seen = [0, 0];
    for millis in 0..30 {
        let mut child = started(&place, "dump --format elf --threads 1 -d 0 vmcore out");
        while !place.has("out") || place.get("out").is_empty() {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_millis(4 * millis));
        child.kill().unwrap();
        let killed = child.wait().unwrap().signal().is_some();
        let info = place.info("out");
        assert_eq!(info["marked_incomplete"], killed, "{info}");
        assert!(info["kernel"]["release"].as_str().unwrap().starts_with("6.12"), "{info}");
        seen[usize::from(info["pages"]["stored"] != 0)] += 1;
        std::fs::remove_file(place.path("out")).unwrap();
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let place = Place::new();
    let ended = place.shell("trap '' TERM; $P dump -d 0 vmcore out & kill -TERM $!; wait $!; echo $?");
    assert!(ended.out.ends_with("\n0\n"), "{ended:?}");
}

#[test]
fn a_deadline_ends_with_3_and_a_file_that_opens() {
    let place = Place::new();
    let ended = place.run("dump --deadline 0 vmcore out");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.err.starts_with("coresift: the deadline ended the dump in out early: "), "{}", ended.err);
    assert_eq!(place.info("out")["marked_incomplete"], true);
    assert_eq!(place.run("dump -f --deadline 86400 vmcore out").code, Some(0));
    assert_eq!(place.run("dump -f --deadline soon vmcore out").code, Some(64));
}
