//! Commands that take all parts of a split set as one dump.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::Place;

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
