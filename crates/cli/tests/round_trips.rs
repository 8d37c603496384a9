//! One dump through every format, in any order: the pages stay the same.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod common;

use common::{PROGRAM, Place};
use coresift_format::{Input, PhysAddr};
use coresift_synth::{KernelLayout, Machine};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a dump is made into.
#[derive(Clone, Debug)]
enum Step {
    /// A kdump-compressed file, filtered again.
    Kdump(&'static str),
    /// An ELF core.
    Elf,
    /// A flattened stream, and the file that stands in it.
    FlattenedAndBack,
    /// A flattened stream, which the next step reads as it is.
    Flattened,
    /// So many parts, and these put together, in an order that the number gives.
    Parts(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::sample::select(vec!["none", "zlib", "lzo", "snappy", "zstd"]).prop_map(Step::Kdump),
        Just(Step::Elf),
        Just(Step::FlattenedAndBack),
        Just(Step::Flattened),
        (2..9_usize, any::<usize>()).prop_map(|(parts, order)| Step::Parts(parts, order)),
    ]
}

/// Runs the program; `stdin` is a file.
fn run(arguments: &[&str], files: &[PathBuf]) -> Result<(), TestCaseError> {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).args(files).stdin(Stdio::null());
    let ended = command.output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    prop_assert!(ended.status.success(), "{arguments:?} {files:?}: {}\n{text}", ended.status);
    Ok(())
}

/// The pages of a dump.
fn pages(file: &Path) -> BTreeMap<u64, Vec<u8>> {
    let input = Input::open(file).unwrap();
    let memory = input.memory();
    let mut pages = BTreeMap::new();
    let mut view = memory.view();
    let mut page = vec![0; memory.page_size().bytes()];
    for (start, end) in memory.stored().all_runs() {
        for pfn in start.0..end.0 {
            view.read(PhysAddr(pfn * page.len() as u64), &mut page).unwrap();
            pages.insert(pfn, page.clone());
        }
    }
    pages
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_dump_keeps_its_pages_through_every_format_in_any_order(
        level in prop::sample::select(vec![0, 1, 17, 31]),
        seed in 0..4_u64,
        steps in prop::collection::vec(step(), 1..5),
    ) {
        let place = Place::empty();
        let layout = KernelLayout::get(["5.10", "6.1", "6.12", "7.1"][seed as usize]);
        let spread = |at: u64| format!("@{at} 3 slab\n@{} 2 cache\n@{} 2 anon\n@{} 1 zero\n", at + 3, at + 5, at + 7);
        let text: String = (0x3000..0x3400 + seed * 64).step_by(8).map(spread).collect();
        let image = Machine::new(layout).cpus(2).ram(0x1000..0x1080).ram(0x3000..0x3800).pages(&text).build();
        place.put("vmcore", &image.elf().bytes());
        let level = level.to_string();
        let (first, last) = (place.path("first"), place.path("last"));
        run(&["dump", "-d", &level], &[place.path("vmcore"), first.clone()])?;
        let mut now = place.path("vmcore");
        for (number, step) in steps.iter().enumerate() {
            let next = place.path(&format!("step{number}"));
            match step {
                Step::Kdump(codec) => run(&["dump", "-d", &level, "--compress", codec], &[now, next.clone()])?,
                Step::Elf => run(&["dump", "-d", &level, "--format", "elf"], &[now, next.clone()])?,
                Step::FlattenedAndBack => {
                    let stream = place.path("stream");
                    run(&["dump", "-f", "-d", &level, "--flatten"], &[now, stream.clone()])?;
                    run(&["unflatten"], &[stream, next.clone()])?;
                }
                Step::Flattened => run(&["dump", "-d", &level, "--flatten"], &[now, next.clone()])?,
                Step::Parts(count, order) => {
                    let mut parts: Vec<PathBuf> = (0..*count).map(|n| place.path(&format!("part{number}.{n}"))).collect();
                    run(&["dump", "-d", &level], &[vec![now], parts.clone()].concat())?;
                    parts.rotate_left(order % count);
                    if order % 2 == 0 {
                        parts.reverse();
                    }
                    run(&["join"], &[parts, vec![next.clone()]].concat())?;
                }
            }
            prop_assert!(pages(&next) == pages(&first), "step {number}");
            run(&["verify"], std::slice::from_ref(&next))?;
            now = next;
        }
        run(&["dump", "-d", &level, "--compress", "none"], &[now, last.clone()])?;
        let (before, after) = (pages(&first), pages(&last));
        prop_assert!(!before.is_empty());
        prop_assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        prop_assert!(before == after);
    }
}
