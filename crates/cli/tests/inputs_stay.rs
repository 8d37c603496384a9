//! Whatever is named as an output, no input is lost.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::Place;

#[test]
fn the_log_of_a_dump_is_not_saved_over_a_part_of_its_input() {
    let place = Place::new();
    assert_eq!(place.shell("$P dump -d 0 vmcore p1 p2").code, Some(0));
    let parts = ["p1", "p2"].map(|part| place.get(part));
    for log in ["p1", "p2"] {
        let ended = place.shell(&format!("$P dump --force --part p2 --log {log} p1 out"));
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(ended.err.contains("that is the input") || ended.out.contains("that is the input"), "{}", ended.err);
        assert!(["p1", "p2"].map(|part| place.get(part)) == parts, "--log {log}");
    }
}

#[test]
fn a_core_in_parts_is_refused_before_the_parts_are_touched() {
    let place = Place::new();
    place.put("a", b"precious");
    let ended = place.shell("$P dump --format elf --force vmcore a b");
    assert_eq!(ended.code, Some(1), "{}", ended.out);
    assert_eq!((place.get("a").as_slice(), place.has("b")), (&b"precious"[..], false));
}

#[test]
fn the_log_and_vmcoreinfo_are_not_written_over_what_they_are_read_from() {
    let place = Place::new();
    let core = place.get("vmcore");
    for line in ["--dump-dmesg -f vmcore vmcore", "-g vmcore -x vmcore"] {
        assert_eq!(place.makedumpfile(line).code, Some(1), "{line}");
        assert!(place.get("vmcore") == core, "{line}");
    }
}

#[test]
fn a_repaired_part_still_knows_its_set() {
    let place = Place::new();
    assert_eq!(
        place.shell("$P dump -d 0 vmcore p1 p2 p3 && $P repair p2 whole && $P join p1 whole p3 out").code,
        Some(0)
    );
    let part = place.shell("$P info whole").out.lines().find(|line| line.starts_with("Part")).map(str::to_owned);
    assert_eq!(part, place.shell("$P info p2").out.lines().find(|line| line.starts_with("Part")).map(str::to_owned));
    assert!(part.is_some());
}
