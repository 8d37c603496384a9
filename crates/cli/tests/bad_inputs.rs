//! The same bad file ends every command alike, with an object of JSON where that was asked for.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use common::{Place, image};
use serde_json::Value;

/// Commands with `IN` for the bad file. `OUT` must not be there afterwards.
const COMMANDS: [&str; 8] = [
    "info --json IN",
    "info --json --symbol init_task IN",
    "log --json IN",
    "verify --json IN",
    "explain --json IN pfn:1",
    "repair --json IN OUT",
    "join --json IN OUT",
    "dump --json IN OUT",
];

/// Files that cannot be opened as dumps, how each command ends (1 where the system does not let it, 4 where the file is no dump), and
/// what it advises.
const FILES: [(&str, i32, &str); 6] = [
    ("missing", 1, "check the name"),
    ("dir", 1, "it is a directory: name a file in it"),
    ("empty", 4, "look at where it came from"),
    ("text", 4, "expected an ELF core, a kdump-compressed or a flattened file"),
    ("stump", 4, "fetch it again or use another copy"),
    ("no-version", 4, "fetch it again or use another copy"),
];

#[test]
fn a_file_that_cannot_be_opened_ends_every_command_alike() {
    let place = Place::empty();
    let good = image().kdump().bytes();
    std::fs::create_dir(place.path("dir")).unwrap();
    place.put("empty", b"");
    place.put("text", b"no dump at all");
    place.put("stump", &good[..300]);
    let mut bad = good;
    // A single field could be told from the others.
    bad[8..12].copy_from_slice(&[0xff; 4]);
    bad[428..440].copy_from_slice(&[0xff; 12]);
    place.put("no-version", &bad);
    for (file, code, advice) in FILES {
        for command in COMMANDS {
            let line = command.replace("IN", file).replace("OUT", "out");
            let ended = place.run(&line);
            assert_eq!(ended.code, Some(code), "{line}: {ended:?}");
            let object: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{line}: {ended:?}"));
            assert!(object["error"].as_str().unwrap().starts_with(file), "{line}: {object}");
            assert!(ended.err.contains(advice), "{line}: {ended:?}");
            assert_eq!((&object["input"], &object["exit_code"]), (&file.into(), &code.into()), "{line}");
            assert!(ended.err.starts_with("coresift: "), "{line}: {ended:?}");
            assert!(!place.has("out"), "{line}");
        }
    }
}

#[test]
fn a_pipe_is_called_one_and_only_unflatten_reads_it() {
    let place = Place::new();
    for command in COMMANDS {
        let line = command.replace("IN", "/dev/stdin").replace("OUT", "out");
        let ended = place.shell(&format!("cat vmcore | $P {line}"));
        assert_eq!(ended.code, Some(1), "{line}: {ended:?}");
        assert!(
            ended.err.contains("it is a pipe, which only `unflatten` and `makedumpfile -R` read"),
            "{line}: {ended:?}"
        );
        assert!(!place.has("out"), "{line}");
    }
    let streamed = place.shell("$P dump vmcore - | $P unflatten /dev/stdin out");
    assert_eq!(streamed.code, Some(0), "{streamed:?}");
}

#[test]
fn a_single_part_is_called_one_and_never_good_or_complete() {
    let place = Place::new();
    assert_eq!(place.run("dump -d 0 vmcore p1 p2").code, Some(0));
    let needed = "part 1 of 2 of a split set: the other parts are needed";
    let ended = place.run("verify p1");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.out.contains(needed) && !ended.out.contains("is good"), "{}", ended.out);
    let info = place.info("p1");
    assert_eq!((&info["complete"], &info["lone_part"]), (&false.into(), &needed.into()));
    let ended = place.run("repair p1 q1");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("q1 holds all of part 1 of 2") && ended.out.contains("needed"), "{}", ended.out);
    assert!(place.run("explain p1 pfn:0x1000").out.contains(needed));
    let ended = place.run("verify p1 p2");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(place.run("verify q1 p2").code, Some(0));
}

#[test]
fn a_full_target_ends_repair_with_what_fits_or_with_nothing() {
    let place = Place::empty();
    place.put("good", &image().kdump().bytes());
    // Blocks of 512 bytes: room for headers, descriptors and some pages.
    let ended = place.shell("ulimit -f 200; $P repair good some");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.out.contains("sound pages are not in it"), "{}", ended.out);
    assert_eq!(place.run("verify some").code, Some(3));
    let info = place.info("some");
    assert!(info["pages"]["stored"].as_u64() > Some(0) && info["marked_incomplete"] == true, "{info}");
    let ended = place.shell("ulimit -f 8; $P repair good none");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(!place.has("none"), "{ended:?}");
}
