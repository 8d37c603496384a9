//! A dump in parts, and parts put together.

use crate::common::{check_pages, core, dump, exclusion, kept, options, place};
use crate::reader::Dump;
use coresift_engine::{
    DumpOptions, EngineError, JoinOptions, Joined, Report, Silent, Stop, StopReason, Target, dump_input, dump_set, join,
};
use coresift_format::kdump::KdumpFile;
use coresift_format::{Input, Pfn, PhysicalMemory};
use coresift_synth::{Image, KernelLayout, Machine};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

fn b0() -> Image {
    Machine::b0(KernelLayout::get("6.12")).cpus(2).build()
}

fn parts_in(dir: &TempDir, count: usize) -> Vec<PathBuf> {
    (0..count).map(|i| dir.path().join(format!("part{i}"))).collect()
}

fn split(source: Vec<u8>, paths: &[PathBuf], options: &DumpOptions) -> Result<Report, EngineError> {
    // Boundaries anywhere: the machine is small.
    let target = Target::Parts { paths: paths.to_vec(), block: Some(4096) };
    dump_input(Input::from_bytes(Arc::new(source))?, &target, options, &Silent)
}

fn joined(parts: &[PathBuf], target: &Path, partial: bool) -> Result<Joined, EngineError> {
    join(parts, target, JoinOptions { force: true, partial, ..JoinOptions::default() }, &Silent)
}

fn open(path: &Path) -> KdumpFile {
    Input::open(path).unwrap().into_kdump().unwrap()
}

/// All pages of a dump's file, filtered again at the same level: equal pages give equal bytes.
fn again(file: Vec<u8>, options: &DumpOptions) -> Vec<u8> {
    dump(file, options).1
}

#[test]
fn parts_hold_what_one_file_holds_and_know_each_other() {
    let image = b0();
    for (level, codec) in [(0, "none"), (1, "zlib"), (31, "zstd"), (31, "lzo")] {
        let options = DumpOptions { compression: codec.parse().unwrap(), ..options(level) };
        let single = dump(core(&image), &options).1;
        for count in [2, 3, 7] {
            let dir = place();
            let paths = parts_in(&dir, count);
            let report = split(core(&image), &paths, &options).unwrap();
            assert!(report.complete && report.parts.len() == count);
            let mut next = Pfn(0);
            for (index, path) in paths.iter().enumerate() {
                let part = open(path);
                let range = part.part().unwrap();
                assert_eq!(range.start, next, "level {level}, {codec}, part {index} of {count}");
                next = range.end;
                let known = part.identity().unwrap();
                assert_eq!((known.index, known.count), (index as u32, count as u32));
                assert!(!part.incomplete() && part.count_descriptors().lost() == 0);
            }
            assert_eq!(next, open(&paths[0]).max_pfn());
            let whole = dir.path().join("whole");
            let mut shuffled = paths.clone();
            shuffled.rotate_left(1);
            let told = joined(&shuffled, &whole, false).unwrap();
            assert!(told.complete && told.lost_pages == 0 && told.pages == report.kept_pages);
            let file = std::fs::read(&whole).unwrap();
            assert!(
                again(file.clone(), &options) == again(single.clone(), &options),
                "level {level}, {codec}, {count}"
            );
            let dump = Dump::read(file);
            assert!(!dump.incomplete());
            check_pages(&image, &dump, "joined");
        }
    }
}

#[test]
fn c34_a_dump_that_was_filtered_before_is_split_as_it_is_written_in_one() {
    let image = b0();
    // What the split leaves out is gone before, all of it, a part of it, or none of it.
    for (before, level) in [(31, 31), (1, 31), (31, 1), (0, 31)] {
        let source = dump(core(&image), &options(before)).1;
        let single = dump(source.clone(), &options(level)).1;
        let expected = kept(&image, exclusion(before | level, "", "").classes);
        for number in [3, 2, 16] {
            let what = format!("{before}, then {level} in {number} parts");
            let dir = place();
            let paths = parts_in(&dir, number);
            assert!(split(source.clone(), &paths, &options(level)).unwrap().complete, "{what}");
            let mut pages = 0;
            for path in &paths {
                let part = open(path);
                pages += part.stored().len();
                for (start, end) in part.stored().all_runs() {
                    let mut view = part.view();
                    for pfn in (start.0..end.0).map(Pfn) {
                        let page = view.slice(pfn.addr(part.page_size()), 4096).unwrap();
                        assert_eq!(page, image.page(pfn.0), "{what}: {pfn}");
                    }
                }
            }
            assert_eq!(pages, expected.len() as u64, "{what}");
            let whole = dir.path().join("whole");
            joined(&paths, &whole, false).unwrap();
            assert!(again(std::fs::read(whole).unwrap(), &options(level)) == again(single.clone(), &options(level)));
        }
    }
}

#[test]
fn any_number_of_threads_writes_the_same_parts() {
    let image = b0();
    let bytes = |threads, max_memory| {
        let dir = place();
        let paths = parts_in(&dir, 3);
        split(core(&image), &paths, &DumpOptions { threads: Some(threads), max_memory, ..options(31) }).unwrap();
        paths.iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>()
    };
    let one = bytes(1, None);
    assert!(one == bytes(2, None) && one == bytes(5, None));
    assert!(one == bytes(5, Some(10 << 20)), "parts one after the other, where memory allows no more");
}

#[test]
fn more_parts_than_pages_leave_empty_ones_that_are_valid() {
    let options = options(31);
    let source = core(&b0());
    let kept = dump(source.clone(), &options).0.kept_pages;
    let dir = place();
    let paths = parts_in(&dir, kept as usize + 3);
    let report = split(source.clone(), &paths, &options).unwrap();
    assert!(report.complete && report.parts.iter().filter(|part| part.pages == 0).count() >= 3);
    let whole = dir.path().join("whole");
    let told = joined(&paths, &whole, false).unwrap();
    assert!(told.complete);
    assert!(again(std::fs::read(whole).unwrap(), &options) == again(dump(source, &options).1, &options));
}

#[test]
fn parts_that_cannot_be_are_named_before_anything_is_written() {
    let image = b0();
    let dir = place();
    let (good, missing) = (dir.path().join("good"), dir.path().join("nowhere/part"));
    let message = |paths: &[PathBuf]| split(core(&image), paths, &options(31)).unwrap_err().to_string();
    assert!(message(&[good.clone(), missing]).contains("nowhere/part"));
    assert!(message(&[good.clone(), good.clone()]).contains("is named twice"));
    assert!(!good.exists());
    std::fs::write(&good, "mine").unwrap();
    assert!(message(&[dir.path().join("new"), good.clone()]).contains("exists"));
    assert!(!dir.path().join("new").exists() && std::fs::read(&good).unwrap() == b"mine");
    let input = dir.path().join("input");
    std::fs::write(&input, core(&image)).unwrap();
    let target = Target::Parts { paths: vec![dir.path().join("new"), input.clone()], block: None };
    let forced = DumpOptions { force: true, ..options(31) };
    let error = dump_set(std::slice::from_ref(&input), &target, &forced, &Silent).unwrap_err();
    assert!(matches!(error, EngineError::TargetIsInput { .. }), "{error}");
    let target = Target::Parts { paths: parts_in(&dir, 2), block: Some(4097) };
    let error = dump_set(&[input], &target, &forced, &Silent).unwrap_err();
    assert!(matches!(error, EngineError::SplitBlock { .. }), "{error}");
}

#[test]
fn a_split_block_bounds_where_parts_begin() {
    let dir = place();
    let paths = parts_in(&dir, 3);
    let target = Target::Parts { paths: paths.clone(), block: Some(64 << 12) };
    let input = Input::from_bytes(Arc::new(core(&b0()))).unwrap();
    dump_input(input, &target, &options(0), &Silent).unwrap();
    for path in &paths[1..] {
        let start = open(path).part().unwrap().start;
        assert!(start.0.is_multiple_of(64) || start == open(path).max_pfn(), "{start}");
    }
}

#[test]
fn crash_can_count_the_pages_of_every_part() {
    let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1100).ram(0x3000..0x7000).build();
    let dir = place();
    let paths = parts_in(&dir, 3);
    let target = Target::Parts { paths: paths.clone(), block: None };
    dump_input(Input::from_bytes(Arc::new(core(&image))).unwrap(), &target, &options(0), &Silent).unwrap();
    let starts: Vec<u64> = paths.iter().map(|path| open(path).part().unwrap().start.0).collect();
    assert!(starts.iter().all(|start| start.is_multiple_of(4096)), "{starts:?}");
    assert!(starts[1] > 0 && starts[2] > starts[1], "{starts:?}");
}

#[test]
fn one_part_that_does_not_fit_leaves_the_others_finished_and_all_marked() {
    let image = b0();
    let dir = place();
    let paths = parts_in(&dir, 3);
    let whole = split(core(&image), &paths, &options(0)).unwrap();
    let limit = whole.parts.iter().map(|part| part.bytes).max().unwrap() - 4096;
    let forced = DumpOptions { force: true, limit: Some(limit), ..options(0) };
    let error = split(core(&image), &paths, &forced).unwrap_err();
    assert!(matches!(error, EngineError::NoSpace { readable: true, .. }), "{error}");
    let lost: Vec<u64> = paths.iter().map(|path| open(path).count_descriptors().lost()).collect();
    assert!(lost.iter().any(|lost| *lost > 0), "{lost:?}");
    assert!(paths.iter().all(|path| open(path).incomplete()));
    let out = dir.path().join("whole");
    let told = joined(&paths, &out, false).unwrap();
    assert!(!told.complete && told.lost_pages == lost.iter().sum::<u64>());
    let lacking = lost.iter().filter(|lost| **lost > 0).count();
    assert_eq!(told.problems.len(), lacking, "only those that lack something: {:?}", told.problems);
    for (path, lost) in paths.iter().zip(&lost).filter(|(_, lost)| **lost > 0) {
        let named = |problem: &&String| problem.starts_with(&path.display().to_string());
        let problem = told.problems.iter().find(named).unwrap();
        assert!(problem.contains(&format!("it lacks {lost} of the ")), "{problem}");
    }
    assert!(Dump::read(std::fs::read(out).unwrap()).incomplete());
}

#[test]
fn a_set_whose_run_was_killed_while_it_took_the_marks_away_is_joined_whole_and_marked() {
    let image = b0();
    let dir = place();
    let paths = parts_in(&dir, 3);
    split(core(&image), &paths, &options(31)).unwrap();
    let status = 424;
    for (marked, count) in [(&paths[1..], 2), (&paths[2..], 1), (&paths[..], 3)] {
        for path in marked {
            let mut part = std::fs::read(path).unwrap();
            part[status] |= 8;
            std::fs::write(path, part).unwrap();
        }
        let out = dir.path().join("whole");
        let told = joined(&paths, &out, false).unwrap();
        assert_eq!((told.complete, told.lost_pages), (false, 0));
        let [problem] = &*told.problems else { panic!("{:?}", told.problems) };
        assert!(problem.starts_with(&format!("no page is missing, but {count} of 3 parts")), "{problem}");
        let whole = Dump::read(std::fs::read(out).unwrap());
        assert!(whole.incomplete());
        check_pages(&image, &whole, "joined");
        for path in marked {
            let mut part = std::fs::read(path).unwrap();
            part[status] &= !8;
            std::fs::write(path, part).unwrap();
        }
    }
    assert!(joined(&paths, &dir.path().join("whole"), false).unwrap().complete);
}

#[test]
fn parts_that_cannot_all_be_opened_leave_nothing_behind_and_old_files_as_they_were() {
    let dir = place();
    let [one, old, link] = ["one", "old", "link"].map(|name| dir.path().join(name));
    std::os::unix::fs::symlink("one", &link).unwrap();
    let twice = split(core(&b0()), &[one.clone(), link.clone()], &options(31)).unwrap_err();
    assert!(matches!(twice, EngineError::TargetExists { .. }), "{twice}");
    let forced = DumpOptions { force: true, ..options(31) };
    let twice = split(core(&b0()), &[one.clone(), link.clone()], &forced).unwrap_err();
    assert!(matches!(twice, EngineError::PartTwice { .. }), "{twice}");
    assert!(!one.exists());
    // Opening the last one fails.
    std::fs::write(&old, "mine").unwrap();
    let (missing, lost) = (dir.path().join("dangling"), dir.path().join("nowhere/file"));
    std::os::unix::fs::symlink(lost, &missing).unwrap();
    let error = split(core(&b0()), &[one.clone(), old.clone(), missing], &forced).unwrap_err();
    assert!(matches!(error, EngineError::TargetOpen { .. }), "{error}");
    assert!(!one.exists() && std::fs::read(&old).unwrap() == b"mine");
}

#[test]
fn join_ends_in_order_when_it_is_told_to() {
    let image = b0();
    let dir = place();
    let paths = parts_in(&dir, 3);
    split(core(&image), &paths, &options(0)).unwrap();
    let out = dir.path().join("whole");
    let stop = Stop::default().on_signal(Arc::new(15.into()));
    let options = JoinOptions { stop, ..JoinOptions::default() };
    let error = join(&paths, &out, options, &Silent).unwrap_err();
    assert!(matches!(error, EngineError::Interrupted { readable: true, why: StopReason::Signal(15), .. }), "{error}");
    let made = Dump::read(std::fs::read(out).unwrap());
    assert!(made.incomplete());
    let mut there = 0;
    made.pages(|pfn, bytes| {
        assert!(bytes.is_none_or(|bytes| bytes == image.page(pfn)), "{pfn:#x}");
        there += u64::from(bytes.is_some());
    });
    assert!(there < open(&paths[0]).stored_in_set().unwrap().len());
}

#[test]
fn missing_doubled_and_foreign_parts_are_named() {
    let image = b0();
    let dir = place();
    let paths = parts_in(&dir, 3);
    split(core(&image), &paths, &options(31)).unwrap();
    let other = [dir.path().join("x"), dir.path().join("y"), dir.path().join("z")];
    split(core(&image), &other, &options(1)).unwrap();
    let out = dir.path().join("whole");
    let [one, two, three] = [0, 1, 2].map(|i| paths[i].clone());
    let message = |parts: &[&PathBuf]| {
        let parts: Vec<PathBuf> = parts.iter().map(|path| (*path).clone()).collect();
        joined(&parts, &out, false).unwrap_err().to_string()
    };
    assert!(message(&[&one, &three]).contains("(part 2 of 3)"));
    assert!(message(&[&two, &three]).contains("(part 1 of 3)"));
    assert!(message(&[&one]).contains("(parts 2 to 3 of 3)"));
    assert!(message(&[&one, &two, &one, &three]).contains("give each part once"));
    let foreign = message(&[&one, &other[1], &three]);
    assert!(foreign.contains("/y is not of the same set") || foreign.contains("dump levels"), "{foreign}");
    assert!(!out.exists());
    let told = joined(&[three, one], &out, true).unwrap();
    assert!(!told.complete && told.lost_pages == open(&two).stored().len());
    let error = joined(&[two.clone(), out.clone()], &out, true).unwrap_err();
    assert!(matches!(error, EngineError::TargetIsInput { .. }), "{error}");
}

#[test]
fn a_split_set_is_read_as_one_dump() {
    let image = b0();
    let dir = place();
    let paths = parts_in(&dir, 4);
    split(core(&image), &paths, &options(1)).unwrap();
    let single = dump(dump(core(&image), &options(1)).1, &options(31)).1;
    let out = dir.path().join("out");
    let shuffled = [2, 0, 3, 1].map(|i| paths[i].clone());
    let report = dump_set(&shuffled, &Target::Path(out.clone()), &options(31), &Silent).unwrap();
    assert!(report.complete);
    assert!(std::fs::read(&out).unwrap() == single);
    let set = Input::open_parts(&shuffled[..3]).unwrap();
    assert!(set.incomplete() && set.problems().iter().any(|p| p.to_string().contains("of 4)")));
    let gap = open(&paths[1]).part().unwrap();
    let unread = open(&paths[1]).stored().all_runs().next().unwrap().0;
    assert!(gap.contains(&unread) && !set.memory().stored().contains(unread));
    let error = set.memory().view().slice(unread.addr(set.memory().page_size()), 8).unwrap_err().to_string();
    assert!(error.contains("was not given"), "{error}");
    let forced = DumpOptions { force: true, ..options(31) };
    let report = dump_set(&shuffled[..3], &Target::Path(out), &forced, &Silent).unwrap();
    assert!(!report.complete);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn parts_in_any_order_give_the_pages_of_one_file(
        count in 2usize..9,
        level in prop_oneof![Just(0u8), Just(1), Just(31)],
        turn in 0usize..8,
        backwards: bool,
    ) {
        let image = b0();
        let dir = place();
        let mut paths = parts_in(&dir, count);
        split(core(&image), &paths, &options(level)).unwrap();
        paths.rotate_left(turn % count);
        if backwards {
            paths.reverse();
        }
        let out = dir.path().join("whole");
        prop_assert!(joined(&paths, &out, false).unwrap().complete);
        let single = dump(core(&image), &options(level)).1;
        prop_assert!(again(std::fs::read(out).unwrap(), &options(level)) == again(single, &options(level)));
    }

    #[test]
    fn damaged_parts_never_do_worse_than_an_error(
        which in 0usize..3,
        changes in proptest::collection::vec((0usize..20_000, any::<u8>()), 1..12),
        cut in proptest::option::of(0usize..60_000),
    ) {
        let dir = place();
        let paths = parts_in(&dir, 3);
        split(core(&b0()), &paths, &options(31)).unwrap();
        let mut bytes = std::fs::read(&paths[which]).unwrap();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        std::fs::write(&paths[which], bytes).unwrap();
        let out = dir.path().join("whole");
        if let Ok(told) = joined(&paths, &out, true) {
            prop_assert!(told.pages > 0 || !told.complete);
        }
        if let Ok(set) = Input::open_parts(&paths) {
            let mut view = set.memory().view();
            for (start, _) in set.memory().stored().all_runs().take(50) {
                let _damaged = view.slice(start.addr(set.memory().page_size()), 64).is_ok();
            }
        }
    }
}
