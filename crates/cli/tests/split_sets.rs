//! Commands that take all parts of a split set as one dump.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{PROGRAM, Place};
use coresift_synth::{KernelLayout, Machine};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

fn parts() -> Place {
    let place = Place::new();
    assert_eq!(place.shell("$P dump -d 31 vmcore p1 p2 p3 && $P dump -d 31 vmcore one").code, Some(0));
    place
}

#[test]
fn a_set_is_verified_part_by_part_and_seen_as_one() {
    let place = parts();
    let json = |line: &str| -> serde_json::Value {
        let ended = place.shell(line);
        serde_json::from_str(&ended.out).unwrap_or_else(|_| unreachable!("{}", ended.err))
    };
    let (set, one) = (json("$P verify --json p3 p1 p2"), json("$P verify --json one"));
    assert_eq!(set["pages"], one["pages"]);
    let steps = |found: &serde_json::Value| found["debugger"]["steps"].to_string();
    assert_eq!(steps(&set), steps(&one));
    assert_eq!(set["verdict"], one["verdict"]);
    let missing = place.shell("$P verify p1 p3");
    assert_eq!(missing.code, Some(3), "{}", missing.out);
}

#[test]
fn a_page_of_a_set_is_explained_with_the_part_that_has_it() {
    let place = parts();
    let page = "pfn:0x30b0";
    let (set, one) = (
        place.shell(&format!("$P explain --part p2 --part p3 p1 {page}")),
        place.shell(&format!("$P explain one {page}")),
    );
    assert_eq!((set.code, one.code), (Some(0), Some(0)), "{}", set.err);
    let without_place = |text: &str| -> Vec<String> {
        let own = ["Part ", "Descriptor", "Data", "  also"];
        text.lines().filter(|line| !own.iter().any(|own| line.starts_with(own))).map(str::to_owned).collect()
    };
    assert_eq!(without_place(&set.out), without_place(&one.out));
    assert!(set.out.lines().any(|line| line.starts_with("Part ")), "{}", set.out);
}

#[test]
fn a_set_that_cannot_be_opened_whole_leaves_no_file_behind() {
    let place = Place::new();
    let names: Vec<String> = (0..60).map(|i| format!("p{i}")).collect();
    place.put("p3", b"mine");
    let ended = place.shell(&format!("ulimit -n 40; $P dump -f vmcore {}", names.join(" ")));
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let left: Vec<&String> = names.iter().filter(|name| place.has(name)).collect();
    assert_eq!((left, place.get("p3")), (vec![&names[3]], b"mine".to_vec()));
}

#[test]
fn a_lone_dash_is_no_name_for_what_has_to_be_a_file() {
    let place = parts();
    for line in ["$P join p1 p2 p3 -", "$P unflatten - < p1", "$P unflatten p1 -"] {
        let ended = place.shell(line);
        assert_eq!(ended.code, Some(64), "{line}: {}", ended.err);
        assert!(ended.err.contains("OUT cannot be the standard output"), "{}", ended.err);
        assert!(!place.has("-"), "{line}");
    }
}

#[test]
fn only_the_native_command_advises_partial() {
    let place = parts();
    let native = place.run("join p1 p3 out");
    assert_eq!(native.code, Some(1));
    assert!(native.err.contains("(part 2 of 3)") && native.err.contains("--partial"), "{}", native.err);
    let personality = place.makedumpfile("--reassemble p1 p3 out");
    assert_eq!(personality.code, Some(1));
    assert!(!personality.out.contains("--partial") && !personality.err.contains("--partial"), "{personality:?}");
}

/// Parts of some size, and how long they are together.
fn large_parts() -> (Place, u64) {
    let text = "@0x20000 30000 kernel content=text";
    let machine = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x20000..0x28000).pages(text);
    let place = Place::empty();
    place.put("vmcore", &machine.build().elf().with_image().bytes());
    assert_eq!(place.run("dump -d 0 --compress none vmcore p1 p2 p3").code, Some(0));
    let len = ["p1", "p2", "p3"].iter().map(|part| place.get(part).len() as u64).sum();
    (place, len)
}

#[test]
fn a_join_that_is_killed_leaves_a_marked_file_or_none_and_the_parts_as_they_were() {
    let (place, len) = large_parts();
    let parts = ["p1", "p2", "p3"].map(|part| place.get(part));
    let mut unfinished = 0;
    for (try_, eighth) in (0..4).flat_map(|try_| (0..8).map(move |eighth| (try_, eighth))) {
        let mut command = place.command(PROGRAM);
        let mut child = command.args(["join", "p1", "p2", "p3", "out"]).stderr(Stdio::null()).spawn().unwrap();
        let reached = || std::fs::metadata(place.path("out")).map_or(0, |out| out.len());
        // From before the first byte on.
        while eighth > 0 && reached() < len * eighth / 8 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(50));
        }
        std::thread::sleep(Duration::from_micros(700) * try_);
        // One that has ended by itself cannot be killed.
        let _ended = child.kill();
        let killed = child.wait().unwrap().signal().is_some();
        assert!(["p1", "p2", "p3"].iter().zip(&parts).all(|(part, old)| place.get(part) == *old));
        if !place.has("out") {
            continue;
        }
        let out = place.get("out");
        std::fs::remove_file(place.path("unfinished")).ok();
        std::fs::rename(place.path("out"), place.path("unfinished")).unwrap();
        if out.iter().all(|byte| *byte == 0) {
            assert!(killed, "created, and nothing is in it yet");
            continue;
        }
        let info = place.info("unfinished");
        assert_eq!(info["marked_incomplete"], info["complete"] == false, "{info}");
        if info["marked_incomplete"] == true {
            assert!(killed);
            unfinished += 1;
            let verified = place.run("verify unfinished");
            assert_eq!(verified.code, Some(3), "{eighth}/8: {}{}", verified.out, verified.err);
        } else {
            assert_eq!(place.run("verify unfinished").code, Some(0));
        }
    }
    assert!(unfinished > 0, "no kill came in the middle");
}
