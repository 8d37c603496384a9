//! What every command says about itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod common;

use common::Place;

fn shown(line: &str) -> String {
    let ended = Place::empty().run(line);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{line}");
    ended.out
}

#[test]
fn help_reads_as_reviewed() {
    for (name, line) in [
        ("coresift", "--help"),
        ("dump", "dump --help"),
        ("info", "info --help"),
        ("join", "join --help"),
        ("log", "log --help"),
        ("verify", "verify --help"),
        ("pages", "pages --help"),
        ("pages-snapshot", "pages snapshot --help"),
        ("pages-summary", "pages summary --help"),
        ("pages-top", "pages top --help"),
        ("pages-diff", "pages diff --help"),
        ("pages-map", "pages map --help"),
        ("repair", "repair --help"),
        ("explain", "explain --help"),
        ("unflatten", "unflatten --help"),
        ("makedumpfile", "makedumpfile -h"),
        ("makedumpfile-version", "makedumpfile -v"),
    ] {
        insta::assert_snapshot!(name, shown(line));
    }
}

#[test]
fn no_line_of_help_is_wider_than_a_terminal() {
    for line in [
        "--help",
        "dump --help",
        "info --help",
        "log --help",
        "verify --help",
        "pages --help",
        "pages snapshot --help",
        "pages summary --help",
        "pages top --help",
        "pages diff --help",
        "pages map --help",
        "repair --help",
        "explain --help",
        "unflatten --help",
        "makedumpfile -h",
    ] {
        let text = shown(line);
        let widest = text.lines().max_by_key(|l| l.len()).unwrap();
        assert!(widest.len() <= 90, "{line}: {widest}");
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(shown("--version"), format!("coresift {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_command_line_that_cannot_be_used_ends_with_64() {
    let place = Place::new();
    for line in [
        "",
        "dump",
        "dump vmcore",
        "dump -d 32 vmcore out",
        "dump -d 1,x vmcore out",
        "dump -d= vmcore out",
        "dump --exclude slab vmcore out",
        "dump --exclude free --keep zero,free vmcore out",
        "dump --compress brotli vmcore out",
        "dump --compress lzo:3 vmcore out",
        "dump --compress zstd:99 vmcore out",
        "dump --threads 0 vmcore out",
        "dump --max-memory 0 vmcore out",
        "dump --max-memory lots vmcore out",
        "info",
        "info --yaml vmcore",
        "--json makedumpfile -v",
        "pages",
        "pages snapshot",
        "pages summary --by colour",
        "pages summary --json --prometheus",
        "pages top colours",
        "pages diff",
    ] {
        let ended = place.run(line);
        assert_eq!((ended.code, ended.out.as_str()), (Some(64), ""), "{line}: {}", ended.err);
        assert!(!ended.err.is_empty(), "{line}");
        assert!(!place.has("out"), "{line}");
    }
}

#[test]
fn texts_say_what_is_wrong_in_words_of_the_command_line() {
    let place = Place::new();
    assert_eq!(place.run("dump -d 31 vmcore filtered").code, Some(0));
    for (line, said, code) in [
        ("dump --threads 0 vmcore out", "there has to be 1 thread at least", 64),
        ("verify --threads 0 vmcore", "there has to be 1 thread at least", 64),
        ("repair --threads none vmcore out", "there has to be 1 thread at least", 64),
        ("verify /dev/null", "/dev/null: this is a device that holds nothing", 1),
        ("unflatten", "Usage: coresift unflatten [OPTIONS] [STREAM] <OUT>", 64),
        ("dump -f --format elf --compress zlib vmcore out", "--compress has no effect: ", 0),
        (
            "dump -f -d 1 filtered out",
            "made with dump level 31: what that left out is not in the dump either, whose level is 31",
            0,
        ),
    ] {
        let ended = place.run(line);
        assert!(ended.err.contains(said), "{line}: {}", ended.err);
        assert_eq!(ended.code, Some(code), "{line}: {}", ended.err);
    }
    for line in ["dump -f --format elf vmcore out", "dump -f filtered out"] {
        let ended = place.run(line);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{line}");
    }
}
