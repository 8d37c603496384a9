//! A dump that cannot be finished: whatever it was cut by, the file opens, says that it is incomplete, and each page it claims
//! is right.

use crate::common::{core, dump, exclusion, options, place, try_dump};
use crate::reader::Dump;
use coresift_engine::{DumpOptions, EngineError, Event, Observer, Stage, Target, dump_input};
use coresift_format::Input;
use coresift_synth::{Image, KernelLayout, Machine};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

fn machine() -> Image {
    let text = "@0x1200 512 anon-thp content=text\n@0x1400 200 cache\n@0x1500 100 slab\n@0x1600 64 zero\n@0x1650 32 slab content=same";
    Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x1200..0x1680).pages(text).build()
}

/// Checks an unfinished file and returns the number of pages it has.
fn check_unfinished(image: &Image, file: Vec<u8>, what: &str) -> u64 {
    let input = Input::from_bytes(Arc::new(file.clone())).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(input.incomplete(), "{what}: not marked");
    let dump = Dump::read(file);
    assert_eq!(dump.vmcoreinfo, image.vmcoreinfo.as_bytes(), "{what}");
    let (mut present, mut absent) = (0, 0);
    let mut view = input.memory().view();
    dump.pages(|pfn, bytes| {
        let mut ours = [0; 4096];
        let read = view.read(coresift_format::PhysAddr(pfn << 12), &mut ours);
        match bytes {
            Some(bytes) => {
                assert!(bytes == image.page(pfn), "{what}: page frame {pfn:#x}");
                assert!(read.is_ok() && ours == bytes, "{what}: page frame {pfn:#x} through the library");
                present += 1;
            }
            None => {
                assert!(read.unwrap_err().to_string().contains("incomplete"), "{what}: page frame {pfn:#x}");
                absent += 1;
            }
        }
    });
    assert_eq!(present + absent, dump.kept.len() as u64);
    present
}

/// Runs the ignored test `name` of this file in a process of its own, in which writing past a size limit is an error and no
/// signal.
fn in_a_process_of_its_own(name: &str) {
    let shell = "trap '' XFSZ; exec \"$@\"";
    let name = format!("cut_short::{name}");
    let test = std::env::current_exe().unwrap();
    let mut child = Command::new("sh");
    child.args(["-c", shell, "sh"]).arg(test).args(["--exact", &name, "--ignored", "--nocapture"]);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// No file can grow beyond `bytes` from here on.
fn limit(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

#[test]
fn c13_a_target_that_fills_up_at_any_point_leaves_a_readable_dump() {
    in_a_process_of_its_own("target_that_fills_up");
}

#[test]
#[ignore = "sets limits on the process: run by c13_a_target_that_fills_up_at_any_point_leaves_a_readable_dump"]
fn target_that_fills_up() {
    let image = machine();
    for (level, codec, step) in [(0, "none", 64_007), (31, "lzo", 9_001)] {
        let source = core(&image);
        let asked = DumpOptions { compression: codec.parse().unwrap(), ..options(level) };
        let (whole, bytes) = dump(source.clone(), &asked);
        let size = bytes.len() as u64;
        let mut last = 0;
        for (i, room) in (0..size).step_by(step).chain([size - 1]).enumerate() {
            let what = format!("level {level}, {room} of {size} bytes");
            let threads = Some([1, 2, 8, 64][i % 4]);
            limit(Some(room));
            let ended = try_dump(Arc::new(source.clone()), &DumpOptions { threads, ..asked.clone() });
            limit(None);
            let Err(EngineError::NoSpace { kept, report, .. }) = &ended.result else {
                panic!("{what}: {:?}", ended.result)
            };
            assert!(*kept == whole.kept_pages || *kept == 0 && report.kept_pages == 0, "{what}");
            assert!(!report.complete, "{what}");
            let file = ended.bytes();
            if file.is_empty() {
                assert_eq!(report.kept_pages, 0, "{what}");
                assert!(ended.message().contains("nothing readable"), "{what}");
                continue;
            }
            let present = check_unfinished(&image, file, &what);
            assert_eq!(present, report.kept_pages, "{what}: the report knows what is in the file");
            assert!(present >= last, "{what}: more room holds more pages");
            last = present;
        }
        assert!(last + 64 > whole.kept_pages, "with one byte too few, all but the last pages are there");
        // With just as much room as it takes, the dump is whole.
        limit(Some(size));
        let ended = try_dump(Arc::new(source), &asked);
        limit(None);
        assert!(ended.made().1 == bytes);
    }
}

#[test]
fn c16_the_next_level_is_tried_when_a_dump_does_not_fit() {
    in_a_process_of_its_own("next_level");
}

#[test]
#[ignore = "sets limits on the process: run by c16_the_next_level_is_tried_when_a_dump_does_not_fit"]
fn next_level() {
    let image = machine();
    let source = core(&image);
    let alone = |level| dump(source.clone(), &options(level)).1;
    let sizes = [0, 2, 31].map(|level| alone(level).len() as u64);
    let list = DumpOptions { exclude: [0, 2, 31].map(|n| exclusion(n, "", "")).to_vec(), ..options(0) };
    assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2], "{sizes:?}");
    for (i, level) in [0, 2, 31].into_iter().enumerate() {
        for room in [sizes[i], sizes[i] + 1] {
            limit(Some(room));
            let ended = try_dump(Arc::new(source.clone()), &list);
            limit(None);
            let retries = ended.events.iter().filter(|e| matches!(e, Event::Retry { .. })).count();
            assert_eq!(retries, i, "{room} bytes");
            let (report, bytes) = ended.made();
            assert_eq!(report.level, level);
            assert!(report.complete && bytes == alone(level), "nothing is left of the levels tried before");
        }
    }
    limit(Some(sizes[2] - 1));
    let ended = try_dump(Arc::new(source), &list);
    limit(None);
    assert!(matches!(ended.result, Err(EngineError::NoSpace { .. })));
    check_unfinished(&image, ended.bytes(), "the last of the list did not fit either");
}

/// Looks at the file whenever a batch was written, while descriptors are: one finds it so if the machine stops there.
struct Snapshots {
    path: PathBuf,
    image: Image,
    pages: Mutex<Vec<u64>>,
    /// What went wrong: a panic in the middle of the copy would leave the other threads waiting.
    wrong: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Observer for Snapshots {
    fn progress(&self, stage: Stage, done: u64, _: u64) {
        if stage == Stage::CopyPages {
            let look = || {
                let present =
                    check_unfinished(&self.image, std::fs::read(&self.path).unwrap(), &format!("after {done} pages"));
                assert!(present <= done);
                present
            };
            match catch_unwind(AssertUnwindSafe(look)) {
                Ok(present) => self.pages.lock().unwrap().push(present),
                Err(panic) => *self.wrong.lock().unwrap() = Some(panic),
            }
        }
    }

    fn event(&self, _: Event) {}
}

#[test]
fn the_file_is_a_readable_dump_at_every_moment_of_the_copy() {
    // Enough pages that descriptors are written before the end.
    let text = "@0x1200 4096 kernel content=text\n@0x2200 64 slab";
    let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x1200..0x2280).pages(text).build();
    for threads in [1, 3] {
        let place = place();
        let path = place.path().join("out");
        let seen =
            Snapshots { path: path.clone(), image: image.clone(), pages: Mutex::default(), wrong: Mutex::default() };
        let input = Input::from_bytes(Arc::new(core(&image))).unwrap();
        let options = DumpOptions { compression: "snappy".parse().unwrap(), threads: Some(threads), ..options(31) };
        let report = dump_input(input, &Target::Path(path.clone()), &options, &seen).unwrap();
        if let Some(panic) = seen.wrong.into_inner().unwrap() {
            resume_unwind(panic);
        }
        let pages = seen.pages.into_inner().unwrap();
        assert!(pages.len() as u64 >= report.kept_pages / 64, "{} looks", pages.len());
        assert!(pages.iter().any(|n| *n > 0 && *n < report.kept_pages), "{pages:?}");
        assert!(!Dump::read(std::fs::read(&path).unwrap()).incomplete(), "the mark is cleared last");
    }
}

#[test]
fn the_most_needed_pages_come_first() {
    let image = machine();
    let (_, file) = dump(core(&image), &options(0));
    let dump = Dump::read(file);
    let offset = |pfn: u64| dump.descriptor(dump.kept.binary_search(&pfn).unwrap()).offset;
    let image_end = image.image.clone().map(offset).max().unwrap();
    let slab_end = (0x1500..0x1564).map(offset).max().unwrap();
    let first_cache = (0x1400..0x14c8).chain(0x1200..0x1400).map(offset).min().unwrap();
    assert!(image_end < slab_end && slab_end < first_cache, "{image_end} {slab_end} {first_cache}");
}
