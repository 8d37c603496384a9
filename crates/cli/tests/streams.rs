//! `unflatten` and `join` that cannot go to the end: damaged streams, no room, signals.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ended, PROGRAM, Place};
use coresift_synth::{KernelLayout, Machine};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A dump of some MiB as a flattened stream, in a file called `flat`.
fn place() -> Place {
    let machine = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x20000..0x21000);
    let place = Place::empty();
    place.put("vmcore", &machine.pages("@0x20000 4000 kernel content=text").build().elf().with_image().bytes());
    assert_eq!(place.run("dump --compress none -d 0 --flatten vmcore flat").code, Some(0));
    place
}

/// Offsets of the block headers of a stream.
fn blocks(stream: &[u8]) -> Vec<usize> {
    let mut found = vec![4096];
    loop {
        let at = found[found.len() - 1];
        let len = i64::from_be_bytes(stream[at + 8..at + 16].try_into().unwrap());
        if len < 0 {
            found.pop();
            return found;
        }
        found.push(at + 16 + len as usize);
    }
}

#[test]
fn a_block_with_a_flipped_bit_is_named_by_every_command() {
    let place = place();
    let mut stream = place.get("flat");
    let at = blocks(&stream);
    let at = at[at.len() / 2];
    // 2^42 more.
    stream[at + 2] ^= 4;
    place.put("flat", &stream);
    let named = format!("the block at offset {at} of the stream claims offset ");
    for (line, code) in [
        ("unflatten flat out", 3),
        ("info flat", 4),
        ("verify flat", 4),
        ("dump -d 0 flat again", 3),
        ("repair flat mended", 3),
    ] {
        let ended = place.run(line);
        assert_eq!(ended.code, Some(code), "{line}: {ended:?}");
        assert!(ended.err.contains(&named) || ended.out.contains(&named), "{line}: {ended:?}");
    }
    assert!(place.get("out").len() < stream.len() + (1 << 20));
    assert_eq!(place.info("out")["marked_incomplete"], true);
    let personality = place.shell("$P makedumpfile -R again2 < flat");
    assert_eq!(personality.code, Some(1), "{personality:?}");
    assert!(personality.err.contains(&named), "{personality:?}");
}

#[test]
fn a_stream_that_is_cut_is_incomplete_and_not_damaged() {
    let place = place();
    for codec in ["none", "lzo", "snappy", "zstd", "zlib"] {
        let made = place.run(&format!("dump --compress {codec} -d 0 -f --flatten vmcore whole"));
        assert_eq!(made.code, Some(0), "{made:?}");
        let stream = place.get("whole");
        let at = blocks(&stream);
        place.put("cut", &stream[..at[at.len() * 2 / 3] + 17]);
        assert_eq!(place.run("unflatten -f cut out").code, Some(3));
        for file in ["cut", "out"] {
            let ended = place.run(&format!("verify {file}"));
            assert_eq!(ended.code, Some(3), "{codec}, {file}: {ended:?}");
            assert!(!ended.out.contains("DAMAGED"), "{codec}, {file}: {ended:?}");
        }
        // crash sets up those codecs only that the file names.
        assert_eq!(place.info("out")["compression"], place.info("whole")["compression"], "{codec}");
    }
}

#[test]
fn a_stream_that_is_cut_inside_the_headers_leaves_no_file() {
    let place = place();
    let stream = place.get("flat");
    place.put("old", b"mine");
    for len in [4096, 4200, 4112 + 4096] {
        place.put("cut", &stream[..len]);
        let ended = place.run("unflatten cut out");
        assert_eq!(ended.code, Some(4), "{len}: {ended:?}");
        assert!(!place.has("out"));
        assert_eq!(place.run("unflatten -f --json cut old").code, Some(4));
        assert_eq!(place.get("old"), b"mine");
    }
}

#[test]
fn a_full_target_keeps_what_can_be_read_or_nothing() {
    let place = place();
    for (limit, code) in [(1, 1), (30_000, 3)] {
        let ended = place.shell(&format!("ulimit -f {limit}; $P unflatten flat out"));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(place.has("out"), code == 3, "{ended:?}");
        assert!(ended.err.contains("File too large"), "{ended:?}");
    }
    let (saved, whole) = (place.info("out"), place.info("flat"));
    assert_eq!((&saved["complete"], &saved["marked_incomplete"]), (&false.into(), &true.into()));
    assert_eq!(saved["pages"]["beyond_end"], 0, "{saved}");
    let [some, all] = [&saved, &whole].map(|info| info["pages"]["stored"].as_u64().unwrap());
    assert!(some > 0 && some < all, "{saved}");
}

/// `unflatten out` with `sent` bytes of the stream, and more to come.
fn started(place: &Place, sent: &[u8]) -> Child {
    let mut command = place.command(PROGRAM);
    command.args(["unflatten", "out"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(sent).unwrap();
    child
}

fn ended(child: Child, signal: Signal) -> Ended {
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
    // Its end of the pipe stays open meanwhile.
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_signal_ends_unflatten_in_order_though_nothing_comes() {
    let place = place();
    let stream = place.get("flat");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut child = started(&place, &stream[..stream.len() / 2]);
        let pipe = child.stdin.take();
        let ended = ended(child, signal);
        drop(pipe);
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(ended.err.contains("ended it at offset"), "{ended:?}");
        assert_eq!(place.info("out")["marked_incomplete"], true);
        std::fs::remove_file(place.path("out")).unwrap();
    }
    let mut child = started(&place, &stream[..4000]);
    let pipe = child.stdin.take();
    let ended = ended(child, Signal::TERM);
    drop(pipe);
    assert_eq!((ended.code, place.has("out")), (Some(1), false), "{ended:?}");
}
