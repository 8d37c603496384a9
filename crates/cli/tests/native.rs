//! `coresift dump` and `coresift info`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ended, PROGRAM, Place, image};
use coresift_synth::kdump::INCOMPLETE;
use coresift_synth::lab;
use serde_json::Value;
use std::process::Stdio;

fn report(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended:?}"))
}

fn left_out(report: &Value) -> Vec<&str> {
    let classes = report["classes"].as_array().unwrap();
    classes.iter().filter(|c| c["excluded_pages"] != 0).map(|c| c["name"].as_str().unwrap()).collect()
}

#[test]
fn without_options_level_31_and_zstd_are_used() {
    let place = Place::new();
    let ended = place.run("dump vmcore out");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for line in ["Original pages  : 0x0000000000000180", "Page classes of 6.12", "Memory: "] {
        assert!(ended.out.lines().any(|l| l.starts_with(line)), "{line} is not in {}", ended.out);
    }
    let info = place.info("out");
    assert_eq!((info["level"].as_u64(), info["compression"].as_str()), (Some(31), Some("zstd")));
}

#[test]
fn classes_are_left_out_and_kept_by_name() {
    let place = Place::new();
    let never = ["offline", "hwpoison"];
    for (options, classes, level) in [
        ("--exclude free", &["free"][..], 16),
        ("--exclude zero,cache", &["zero", "cache"], 3),
        ("-d 31 --keep user,hugetlb,private-cache", &["zero", "cache", "free"], 19),
        ("--keep hugetlb", &["zero", "cache", "private-cache", "user", "free"], 31),
        ("-d 1 --exclude hugetlb", &["zero", "hugetlb"], 9),
        ("-d 0", &[], 0),
    ] {
        let ended = place.run(&format!("dump -f --json {options} vmcore out"));
        assert_eq!(ended.code, Some(0), "{options}: {}", ended.err);
        let report = report(&ended);
        let mut left = left_out(&report);
        left.retain(|class| !never.contains(class));
        assert_eq!(left, classes, "{options}");
        assert_eq!(report["level"], level, "{options}");
        assert_eq!(place.info("out")["level"], level, "{options}");
    }
}

#[test]
fn the_report_as_json_is_all_that_stdout_gets() {
    let place = Place::new();
    let ended = place.run("dump --json --threads 2 --compress zlib:9 --max-memory 256M vmcore out");
    let report = report(&ended);
    assert_eq!(ended.err, "");
    assert_eq!(report["complete"], true);
    assert_eq!(report["compression"], "zlib:9");
    assert_eq!(report["ram_pages"], 384);
    assert_eq!(report["memory_budget"], 256 << 20);
    let truth = image().truth;
    for class in report["classes"].as_array().unwrap() {
        let name = class["name"].as_str().unwrap();
        // Pages of the kernel's own are in the truth table under one name.
        if !["kernel", "zero", "unaccepted"].contains(&name) {
            assert_eq!(class["pages"], truth.count(name), "{name}");
        }
    }
}

#[test]
fn a_dump_that_does_not_fit_ends_with_3_and_its_report() {
    let place = Place::new();
    let ended = place.shell("ulimit -f 400; $P dump --json -d 0 --compress none vmcore out");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert_eq!(report(&ended)["complete"], false);
    assert!(
        ended.err.starts_with("coresift: the largest size of a file (ulimit -f) was reached in out: "),
        "{}",
        ended.err
    );
    assert!(ended.err.contains("\ncoresift:   next: "), "{}", ended.err);
    let info = place.info("out");
    assert_eq!(info["complete"], false);
    assert!(info["pages"]["unwritten"].as_u64().unwrap() > 0);
}

#[test]
fn a_dump_without_seeking_is_a_flattened_stream_and_results_stay_out_of_it() {
    let place = Place::new();
    assert_eq!(place.run("dump vmcore plain").code, Some(0));
    let pages = place.info("plain")["pages"].clone();
    for line in [
        "$P dump --json vmcore - > flat 2> report",
        "$P dump --json vmcore - 2> report | cat > flat",
        "$P dump --json --flatten vmcore flat > report",
        "mkfifo fifo; cat fifo > flat & $P dump --json vmcore fifo > report && wait",
    ] {
        let ended = place.shell(&format!("rm -f flat; {line}"));
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{line}: {}", ended.err);
        let report: Value = serde_json::from_slice(&place.get("report")).unwrap();
        assert_eq!(report["bytes_out"], place.get("flat").len(), "{line}");
        let info = place.info("flat");
        assert_eq!((&info["flattened"], &info["complete"]), (&true.into(), &true.into()), "{line}");
        assert_eq!(info["pages"], pages, "{line}");
    }
}

#[test]
fn c15_a_stream_that_was_cut_ends_with_3_and_everything_that_arrived() {
    let place = Place::new();
    assert_eq!(place.run("dump --compress none vmcore plain").code, Some(0));
    assert_eq!(place.run("dump --compress none --flatten vmcore flat").code, Some(0));
    for line in ["unflatten flat out", "unflatten --json flat out", "unflatten - out"] {
        let ended = place.shell(&format!("rm -f out; $P {line} < flat"));
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{line}");
        assert!(place.get("out") == place.get("plain"), "{line}");
    }
    let stream = place.get("flat");
    place.put("cut", &stream[..stream.len() * 2 / 3]);
    let ended = place.run("unflatten --json cut salvaged");
    assert_eq!(ended.code, Some(3));
    assert!(ended.err.contains("; what arrived is saved, marked incomplete\n"), "{}", ended.err);
    let told = report(&ended);
    assert_eq!(told["complete"], false);
    let lost = told["lost_pages"].as_u64().unwrap();
    let runs = told["lost_page_frames"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| run["pages"].as_u64().unwrap()).sum::<u64>(), lost);
    let info = place.info("salvaged");
    assert_eq!((&info["marked_incomplete"], &info["complete"]), (&true.into(), &false.into()));
    assert!(lost > 0 && info["pages"]["unwritten"] == lost, "{lost}: {}", info["pages"]);
    // Read in place, the stream has the same pages.
    assert_eq!(place.info("cut")["pages"]["stored_as_is"], info["pages"]["stored_as_is"]);
    let ended = place.shell("cat flat flat | $P unflatten twice");
    assert_eq!(ended.code, Some(0));
    assert!(ended.err.contains("another flattened stream follows"), "{}", ended.err);
    assert!(place.get("twice") == place.get("plain"));
    let ended = place.shell("gzip -c flat > flat.gz; $P info flat.gz");
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("gzip -dc"), "{}", ended.err);
}

#[test]
fn failures_end_with_1_or_4_and_say_what_to_do() {
    let place = Place::new();
    place.put("text", b"no dump at all");
    place.put("taken", b"");
    for (line, said) in [
        ("dump missing out", "missing: "),
        ("dump vmcore taken", "taken exists; choose another name"),
        ("dump vmcore nowhere/out", "cannot open the target nowhere/out: No such file"),
        ("dump vmcore .", "cannot open the target .: "),
        ("dump --max-memory 1 vmcore out", "the memory budget of 1 bytes is too small"),
    ] {
        let ended = place.run(line);
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{line}: {}", ended.err);
        assert!(ended.err.starts_with(&format!("coresift: {said}")), "{line}: {}", ended.err);
        assert!(!place.has("out"), "{line}");
    }
    let ended = place.run("dump text out");
    assert_eq!((ended.code, ended.out.as_str()), (Some(4), ""), "{}", ended.err);
    assert!(ended.err.starts_with("coresift: text: not a crash dump"), "{}", ended.err);
}

#[test]
fn info_reads_as_reviewed() {
    let place = Place::empty();
    let image = image();
    place.put("elf", &image.elf().bytes());
    let mut part = image.kdump().without(16, &["free"]);
    part.status |= INCOMPLETE;
    part.lost = image.truth.pfns(&["slab"]).collect();
    place.put("incomplete", &part.bytes());
    let whole = image.kdump().bytes();
    place.put("flat", &coresift_synth::flat::Flatten::default().wrap(&whole).bytes);
    place.put("cut", &whole[..whole.len() - 10_000]);
    for (name, code) in [("elf", 0), ("incomplete", 3), ("flat", 0), ("cut", 3)] {
        let ended = place.run(&format!("info {name}"));
        assert_eq!((ended.code, ended.err.as_str()), (Some(code), ""), "{name}");
        insta::assert_snapshot!(format!("info-{name}"), ended.out);
    }
    insta::assert_snapshot!("info-json", place.run("info --json incomplete").out);
}

#[test]
fn a_kdump_file_cut_anywhere_is_described_or_refused() {
    let place = Place::empty();
    let whole = image().kdump().bytes();
    let mut described = 0;
    for end in (0..whole.len()).step_by(whole.len() / 60) {
        place.put("cut", &whole[..end]);
        let ended = place.run("info --json cut");
        match ended.code {
            Some(3) => {
                described += 1;
                assert_eq!(report(&ended)["complete"], false, "cut at {end}");
            }
            Some(4) => assert!(ended.err.starts_with("coresift: "), "cut at {end}: {}", ended.err),
            code => panic!("cut at {end}: {code:?} {}", ended.err),
        }
    }
    assert!(described > 30, "{described}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure_but_a_full_disk_is() {
    let place = Place::new();
    for line in ["info vmcore", "info --json vmcore", "dump vmcore out", "--help", "makedumpfile -h"] {
        let mut child = place.command(PROGRAM);
        let mut child = child.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended: Ended = child.wait_with_output().unwrap().into();
        assert!(!ended.err.contains("panic"), "{line}: {}", ended.err);
        assert_eq!(ended.code, Some(0), "{line}: {}", ended.err);
    }
    for line in ["info vmcore", "dump -f --json vmcore out"] {
        let ended = place.shell(&format!("$P {line} > /dev/full"));
        assert_eq!(ended.code, Some(1), "{line}");
        assert!(ended.err.starts_with("coresift: cannot write to the standard output: "), "{}", ended.err);
    }
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_become_complete_dumps_at_every_codec() {
    for core in lab::folders() {
        let place = Place::empty();
        let input = core.join("vmcore");
        for codec in ["none", "zlib", "lzo", "snappy", "zstd"] {
            let mut command = place.command(PROGRAM);
            command.args(["dump", "-f", "--json", "--compress", codec]).arg(&input).arg("out");
            let ended: Ended = command.output().unwrap().into();
            assert_eq!(ended.code, Some(0), "{}: {}", core.display(), ended.err);
            let report = report(&ended);
            assert!(report["checks"].as_array().unwrap().iter().all(|c| c["warning"] == false), "{}", ended.out);
            let info = place.info("out");
            assert_eq!(info["complete"], true, "{}", core.display());
            assert_eq!(info["pages"]["stored"], report["kept_pages"], "{}", core.display());
            assert_eq!(info["kernel"]["release"], report["release"], "{}", core.display());
        }
    }
}
