//! What a dump may be written to, and what is left alone.

use crate::common::{core, options, place};
use crate::reader::Dump;
use coresift_engine::{DumpOptions, EngineError, Report, Silent, Target, dump_input};
use coresift_format::Input;
use coresift_synth::{KernelLayout, Machine};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

fn run(path: &Path, options: &DumpOptions) -> Result<Report, EngineError> {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let input = Input::from_bytes(Arc::new(core(&image))).unwrap();
    dump_input(input, &Target::Path(path.to_owned()), options, &Silent)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_new_file_is_readable_by_its_owner_alone() {
    let place = place();
    let path = place.path().join("vmcore");
    run(&path, &options(31)).unwrap();
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn an_existing_file_is_refused_and_not_touched() {
    let place = place();
    let path = place.path().join("vmcore");
    for content in [&b"someone's only copy"[..], b""] {
        std::fs::write(&path, content).unwrap();
        for dry_run in [false, true] {
            let error = run(&path, &DumpOptions { dry_run, ..options(31) }).unwrap_err();
            assert!(matches!(&error, EngineError::TargetExists { path: named } if *named == path), "{error}");
            assert!(error.to_string().contains("-f"), "{error}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[test]
fn an_existing_file_is_overwritten_whole_when_forced_and_keeps_its_mode() {
    let place = place();
    let (path, fresh) = (place.path().join("vmcore"), place.path().join("fresh"));
    // Longer than the dump, and no zeros that could be taken for descriptors never written.
    std::fs::write(&path, vec![0xee; 4 << 20]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    run(&path, &DumpOptions { force: true, ..options(31) }).unwrap();
    run(&fresh, &options(31)).unwrap();
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&fresh).unwrap());
    assert_eq!(mode(&path), 0o640);
    // A dry run leaves even what it may overwrite.
    std::fs::write(&path, b"kept").unwrap();
    run(&path, &DumpOptions { force: true, dry_run: true, ..options(31) }).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

#[test]
fn the_null_device_needs_no_force_and_the_report_is_whole() {
    let report = run(Path::new("/dev/null"), &options(31)).unwrap();
    assert!(report.complete && report.kept_pages > 100 && report.bytes_out > 100_000, "{report:#?}");
}

#[test]
fn what_can_hold_no_dump_is_refused_with_its_kind() {
    let place = place();
    let cases = [
        (place.path().to_owned(), "a directory"),
        ("/dev/zero".into(), "a character device"),
        (place.path().join("nowhere/vmcore"), "No such file"),
    ];
    for (path, why) in cases {
        for force in [false, true] {
            let error = run(&path, &DumpOptions { force, ..options(31) }).unwrap_err();
            assert!(matches!(error, EngineError::TargetOpen { .. }) && error.to_string().contains(why), "{error}");
        }
    }
}

#[test]
fn a_link_is_followed_and_a_dangling_one_is_not_filled_in_silence() {
    let place = place();
    let (link, file) = (place.path().join("link"), place.path().join("file"));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert!(run(&link, &options(31)).is_err());
    assert!(!file.exists());
    std::fs::write(&file, b"old").unwrap();
    assert!(matches!(run(&link, &options(31)), Err(EngineError::TargetExists { .. })));
    run(&link, &DumpOptions { force: true, ..options(31) }).unwrap();
    assert!(!Dump::read(std::fs::read(&file).unwrap()).incomplete());
}

#[test]
fn an_input_that_is_not_understood_leaves_the_target_alone() {
    let place = place();
    let (input, path) = (place.path().join("input"), place.path().join("out"));
    std::fs::write(&input, b"no dump at all").unwrap();
    let error = coresift_engine::dump(&input, &Target::Path(path.clone()), &options(31), &Silent).unwrap_err();
    assert!(matches!(error, EngineError::Input(_)), "{error}");
    assert!(!path.exists());
    std::fs::write(&path, b"old").unwrap();
    let forced = DumpOptions { force: true, ..options(31) };
    coresift_engine::dump(&input, &Target::Path(path.clone()), &forced, &Silent).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"old", "an old dump is better than none");
}
