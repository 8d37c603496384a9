//! `coresift pages`, on a dump: a live machine changes while it is looked at.
#![cfg(feature = "census")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ended, PROGRAM, Place};
use coresift_synth::lab;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a run printed, which has to be done.
fn done(place: &Place, line: &str) -> String {
    let ended = place.run(line);
    assert_eq!(ended.code, Some(0), "{line}: {}", ended.err);
    ended.out
}

fn json(place: &Place, line: &str) -> Value {
    serde_json::from_str(&done(place, line)).unwrap()
}

#[test]
fn every_format_gives_the_same_counts_as_the_dump() {
    let place = Place::new();
    let by = "--by class,order,mapping,zone,node,slab,cgroup,file,flags --json";
    let wanted = json(&place, &format!("pages summary {by} vmcore"));
    assert_eq!(wanted["pages"], 384);
    for name in ["t.parquet", "t.csv", "t.jsonl"] {
        for order in ["class", "pfn"] {
            done(&place, &format!("pages snapshot -f --order {order} -o {name} vmcore"));
            let told = json(&place, &format!("pages summary {by} {name}"));
            // Readers of CSV cannot tell a text without characters from none.
            let but_empty = |told: &Value| told["groups"].to_string().replace("\"\"", "null");
            assert_eq!(but_empty(&told), but_empty(&wanted), "{name}");
            let changed = json(&place, &format!("pages diff --json vmcore {name}"));
            assert_eq!(changed["frames"]["moves"], Value::Array(Vec::new()), "{name}");
            assert!(
                changed["changes"].as_object().unwrap().values().all(|c| c.as_array().unwrap().is_empty()),
                "{name}"
            );
        }
    }
}

#[test]
fn a_snapshot_is_the_same_for_any_number_of_threads() {
    let place = Place::new();
    for name in ["t.parquet", "t.csv"] {
        done(&place, &format!("pages snapshot -f --threads 1 -o {name} vmcore"));
        let one = place.get(name);
        done(&place, &format!("pages snapshot -f --threads 3 -o {name} vmcore"));
        assert!(place.get(name) == one, "{name}");
    }
}

#[test]
fn the_summary_counts_as_the_machine_was_made() {
    let place = Place::new();
    let told = json(&place, "pages summary --json vmcore");
    let truth = common::image().truth;
    for group in told["groups"].as_array().unwrap() {
        let class = group["class"].as_str().unwrap();
        if class != "kernel" {
            assert_eq!(group["pages"], truth.count(class), "{class}");
        }
    }
    assert_eq!(told["bytes"], 384 * 4096);
}

#[test]
fn what_moved_between_two_snapshots_is_told() {
    let place = Place::empty();
    place.put("a.csv", b"pfn,class,cgroup,cgroup_path\n1,free,,\n2,free,,\n3,user,5,/a\n4,slab,,\n");
    place.put("b.csv", b"pfn,class,cgroup,cgroup_path\n1,user,5,/a\n2,user,6,\"/b,c\"\n3,user,5,/a\n300000,slab,,\n");
    let told = json(&place, "pages diff --json a.csv b.csv");
    let frames = serde_json::json!({"only_a": 1, "only_b": 1, "moves": [{"from": "free", "to": "user", "pages": 2}]});
    assert_eq!(told["frames"], frames);
    let classes = serde_json::json!([
        {"class": "free", "a_pages": 2, "b_pages": 0},
        {"class": "user", "a_pages": 1, "b_pages": 3},
    ]);
    assert_eq!(told["changes"]["class"], classes);
    insta::assert_snapshot!("pages-diff", done(&place, "pages diff a.csv b.csv"));
    insta::assert_snapshot!("pages-top", done(&place, "pages top cgroups -n 1 b.csv"));
    place.put("late.csv", b"pfn,class\n300000,free\n1,free\n");
    let ended = place.run("pages diff a.csv late.csv");
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("page frame 1 comes after later ones"), "{}", ended.err);
}

#[test]
fn summaries_read_as_reviewed() {
    let place = Place::empty();
    place.put(
        "t.csv",
        b"pfn,address,class,zone,node,order,cgroup_path,time,source,host,kernel\n\
          1,4096,free,DMA,0,,,2026-11-30T17:30:52Z,live,a,6.12.0\n\
          2,8192,user,Normal,0,0,\"/x\"\"y\\z\",2026-11-30T17:30:52Z,live,a,6.12.0\n\
          3,12288,user,Normal,1,0,,2026-11-30T17:30:52Z,live,a,6.12.0\n",
    );
    for (name, options) in [
        ("text", ""),
        ("by", "--by class,zone,node"),
        ("json", "--json"),
        ("prometheus", "--prometheus"),
        ("prometheus-cgroup", "--prometheus --by cgroup"),
    ] {
        insta::assert_snapshot!(
            format!("pages-summary-{name}"),
            done(&place, &format!("pages summary {options} t.csv"))
        );
    }
}

#[test]
fn files_have_their_names_only_when_they_are_complete() {
    let place = Place::new();
    place.put("taken", b"old");
    for line in
        ["pages snapshot -o taken vmcore", "pages summary -o taken vmcore", "pages summary --parquet taken vmcore"]
    {
        let ended = place.run(line);
        assert_eq!(ended.code, Some(1), "{line}");
        assert!(ended.err.contains("taken exists; choose another name, or overwrite it with -f"), "{}", ended.err);
        assert_eq!(place.get("taken"), b"old");
    }
    // What fails half way leaves the old file, and nothing else.
    place.put("bad.csv", b"pfn,class\n1,free\n2,blue\n");
    assert_eq!(place.run("pages snapshot -f -o taken bad.csv").code, Some(4));
    let ended = place.shell("ulimit -f 1; $P pages snapshot -f -o taken --format jsonl vmcore; ls -A");
    assert!(ended.err.contains("cannot write"), "{}", ended.err);
    assert_eq!(ended.out, "bad.csv\ntaken\nvmcore\n");
    assert_eq!(place.get("taken"), b"old");
    done(&place, "pages summary -f -o taken --prometheus vmcore");
    assert!(place.get("taken").starts_with(b"# HELP coresift_memory_bytes "));
}

#[test]
fn the_standard_output_gets_the_table_and_nothing_else() {
    let place = Place::new();
    let ended = place.shell("$P pages snapshot -o - --format csv vmcore > out.csv && $P pages snapshot -o file.csv vmcore && cmp out.csv file.csv");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let ended = place.shell("$P pages snapshot -o - --format csv vmcore > /dev/full");
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let ended = place.shell("$P pages summary vmcore > /dev/full");
    assert_eq!(ended.code, Some(1), "{}", ended.err);
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB; and DuckDB and Polars: CORESIFT_PEERS"]
fn other_engines_read_real_snapshots_and_the_documented_queries_run() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::path::PathBuf::from(std::env::var_os("CORESIFT_PEERS").unwrap()).join("bin/python");
    let engines = std::process::Command::new(&python).args(["-c", "import duckdb, polars"]).output().unwrap();
    if !engines.status.success() {
        eprintln!("skipped: no DuckDB and Polars in {}; cargo xtask peers gets them", python.display());
        return;
    }
    let core = lab::folders().into_iter().rfind(|folder| folder.ends_with("6.12-kdump")).unwrap();
    let place = Place::empty();
    for options in [
        &["snapshot", "-o", "frames.parquet"][..],
        &["snapshot", "-o", "frames.csv"],
        &["snapshot", "--order", "pfn", "-o", "later.parquet"],
        &["summary", "--parquet", "summary.parquet"],
    ] {
        let made: Ended =
            place.command(PROGRAM).arg("pages").args(options).arg(core.join("vmcore")).output().unwrap().into();
        assert_eq!(made.code, Some(0), "{options:?}: {}", made.err);
    }
    let mut command = place.command(python);
    command.arg(root.join("xtask/py/page_table.py")).arg(root.join("docs/page-table.md"));
    let read: Ended = command.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap().into();
    assert_eq!(read.code, Some(0), "{}{}", read.out, read.err);
    let pages = place.get("frames.parquet").len() as u64;
    assert!(pages < 2 * (512 << 20) / 4096, "{pages} bytes are more than 2 a frame");
    assert!(place.get("summary.parquet").len() < 100_000);
}

#[test]
fn a_map_has_every_page_once() {
    let place = Place::new();
    let told = json(&place, "pages summary --json vmcore");
    let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
    for group in told["groups"].as_array().unwrap() {
        wanted.insert(group["class"].as_str().unwrap().to_owned(), group["pages"].as_u64().unwrap());
    }
    done(&place, "pages snapshot -o t.parquet vmcore");
    done(&place, "pages map -o once.svg --threads 1 vmcore");
    for (file, of) in [("m.svg", "vmcore"), ("t.svg", "t.parquet")] {
        assert!(done(&place, &format!("pages map -o {file} {of}")).contains("blocks of 64.0 KiB"));
        let picture = String::from_utf8(place.get(file)).unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<g").count(), picture.matches("</g>").count());
        let mut drawn: BTreeMap<String, u64> = BTreeMap::new();
        for title in picture.split("<g><title>").skip(1).map(|rest| rest.split("</title>").next().unwrap()) {
            for class in title.split_once(": ").unwrap().1.split(", ") {
                let (class, pages) = class.split_once(' ').unwrap();
                *drawn.entry(class.to_owned()).or_default() +=
                    pages.replace(|c: char| !c.is_ascii_digit(), "").parse::<u64>().unwrap();
            }
        }
        assert_eq!(drawn, wanted, "{file}");
    }
    assert!(place.get("once.svg") == place.get("m.svg"), "the same for any number of threads");
    assert_eq!(place.run("pages map -o m.png vmcore").code, Some(64));
    assert_eq!(place.run("pages map -o m.svg vmcore").code, Some(1), "it exists");
}
