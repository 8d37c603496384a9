//! `coresift verify` and `coresift repair`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use common::{Place, image};
use coresift_synth::kdump::INCOMPLETE;
use serde_json::Value;

/// Dumps of one image, each odd in its way, and how the three commands end on it.
const FILES: [(&str, [i32; 2]); 6] =
    [("good", [0, 0]), ("marked", [3, 3]), ("cut", [3, 3]), ("bad", [4, 3]), ("stump", [4, 4]), ("empty", [4, 4])];

fn bench() -> Place {
    let place = Place::empty();
    let image = image();
    let good = image.kdump().without(16, &["free"]).bytes();
    place.put("good", &good);
    let mut marked = image.kdump();
    marked.status |= INCOMPLETE;
    marked.lost = image.truth.pfns(&["slab"]).collect();
    place.put("marked", &marked.bytes());
    place.put("cut", &good[..good.len() - 10_000]);
    let mut bad = good.clone();
    let middle = bad.len() - 5000;
    bad[middle..middle + 64].fill(0x55);
    place.put("bad", &bad);
    place.put("stump", &good[..4096]);
    place.put("empty", b"");
    place
}

#[test]
fn verdicts_are_exit_codes() {
    let place = bench();
    for (name, [verify, repair]) in FILES {
        let ended = place.run(&format!("verify {name}"));
        assert_eq!(ended.code, Some(verify), "{name}: {ended:?}");
        let ended = place.run(&format!("repair {name} {name}-repaired"));
        assert_eq!(ended.code, Some(repair), "{name}: {ended:?}");
        assert_eq!(place.has(&format!("{name}-repaired")), repair != 4, "{name}");
        if repair != 4 {
            let ended = place.run(&format!("verify {name}-repaired"));
            assert_eq!(ended.code, Some(repair), "{name}: {ended:?}");
        }
    }
    let ended = place.run("verify missing");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let ended = place.run("repair good cut");
    assert_eq!(ended.code, Some(1), "an existing file is not overwritten: {ended:?}");
}

#[test]
fn reports_read_as_reviewed() {
    let place = bench();
    let mut text = String::new();
    for (name, [_, repair]) in FILES {
        if repair == 4 {
            continue;
        }
        for line in [format!("verify {name}"), format!("repair {name} {name}-out")] {
            text.push_str(&format!("$ coresift {line}\n{}\n", place.run(&line).out));
        }
    }
    // What a debugger looks for is reviewed where it is walked.
    let mut walking = false;
    let mut kept = String::new();
    for line in text.lines() {
        walking = (walking || line.starts_with("As a debugger")) && !line.contains(" pages read in ");
        match line.split_once(" pages read in ") {
            _ if walking => {}
            Some((pages, _)) => kept.push_str(&format!("{pages} pages read in TIME\n")),
            None => kept.push_str(&format!("{line}\n")),
        }
    }
    insta::assert_snapshot!("reports", kept);
}

#[test]
fn json_names_the_page_its_address_and_its_place() {
    let place = bench();
    let ended = place.run("verify --json bad");
    let found: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(found["verdict"], "damaged");
    let problem = &found["problems"][0];
    assert_eq!(problem["fault"], "undecodable");
    assert_eq!(problem["address"].as_u64().unwrap(), problem["pfn"].as_u64().unwrap() << 12);
    for field in ["descriptor", "data", "size", "flags"] {
        assert!(problem[field].is_u64(), "{field}: {problem}");
    }
}
