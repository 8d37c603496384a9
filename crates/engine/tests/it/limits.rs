//! A limit on the file's size, a dry run that foretells what it does, and runs that are told to end.

use crate::common::{core, dump, exclusion, options, place, try_dump};
use crate::reader::Dump;
use coresift_engine::{
    DumpOptions, EngineError, Event, Full, Observer, Report, Stage, Stop, StopReason, Target, dump_input,
};
use coresift_format::Input;
use coresift_synth::{Image, KernelLayout, Machine};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn machine() -> Image {
    let text = "@0x1200 512 anon-thp content=text\n@0x1400 200 cache\n@0x1500 100 slab\n@0x1600 64 zero\n@0x1650 32 slab content=same";
    Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x1200..0x1680).pages(text).build()
}

/// How a run ended, in words that a dry run shares with the run it foretells.
fn outcome(result: &Result<Report, EngineError>) -> (String, Report) {
    match result {
        Ok(report) => (format!("complete {}", report.complete), report.clone()),
        Err(EngineError::NoSpace { full, kept, readable, report, .. }) => {
            (format!("full {full:?} {kept} {readable}"), (**report).clone())
        }
        Err(error) => panic!("{error}"),
    }
}

/// The numbers of a report, but for what is measured.
fn numbers(report: &Report) -> Vec<u64> {
    let Report { kept_pages, zero_pages, shared_pages, bytes_in, bytes_out, file_bytes, .. } = *report;
    let attempts = report.attempts.iter().flat_map(|row| [row.level.into(), row.pages, row.kept_pages, row.file_bytes]);
    let classes = report.classes.iter().map(|row| row.excluded_pages);
    [kept_pages, zero_pages, shared_pages, bytes_in, bytes_out, file_bytes]
        .into_iter()
        .chain(attempts)
        .chain(classes)
        .collect()
}

#[test]
fn c16_a_dry_run_foretells_the_outcome_of_every_limit() {
    let image = machine();
    let source = core(&image);
    for (levels, codec, step) in [(&[0][..], "none", 70_001), (&[31], "zstd", 6_007), (&[0, 31], "lzo", 40_009)] {
        let asked = DumpOptions {
            exclude: levels.iter().map(|n| exclusion(*n, "", "")).collect(),
            compression: codec.parse().unwrap(),
            ..options(0)
        };
        let (whole, bytes) = dump(source.clone(), &asked);
        let size = bytes.len() as u64;
        assert_eq!(whole.file_bytes, size);
        // Below the header, at the bitmap, at the descriptors, at one page: what stands where the header says.
        let header = Dump::read(bytes.clone());
        let first = (0..header.kept.len()).map(|rank| header.descriptor(rank).offset).min().unwrap();
        let edges =
            [0, 1, 4095, 4096, 8192, 12_288, 16_384, first - 1, first, first + 4095, first + 4096, first + 4097];
        let mut last = 0;
        let mut limits: Vec<u64> = (0..size).step_by(step).chain(edges).chain([size - 1, size, size + 1]).collect();
        limits.sort_unstable();
        for (i, limit) in limits.into_iter().enumerate() {
            let what = format!("level {levels:?}, {limit} of {size} bytes");
            let with = |threads, dry_run| {
                let options = DumpOptions { limit: Some(limit), threads: Some(threads), dry_run, ..asked.clone() };
                try_dump(Arc::new(source.clone()), &options)
            };
            let (real, dry) = (with([1, 2, 8, 64][i % 4], false), with([8, 1, 64, 2][i % 4], true));
            assert!(!dry.path.exists(), "{what}");
            let ((ended, report), (foretold, prediction)) = (outcome(&real.result), outcome(&dry.result));
            assert_eq!(foretold, ended, "{what}");
            assert_eq!(numbers(&prediction), numbers(&report), "{what}");
            let file = real.bytes();
            assert_eq!(file.len() as u64, report.file_bytes, "{what}");
            assert!(report.file_bytes <= limit, "{what}: the limit is kept");
            assert_eq!(
                report.complete,
                limit >= size || levels.len() > 1 && report.level == 31 && report.ended.is_none()
            );
            if report.level == levels[0] && !file.is_empty() {
                let present = opened(&image, file, &what);
                assert_eq!(present, report.kept_pages, "{what}");
                assert!(present >= last, "{what}: more room holds more pages");
                last = present;
            }
        }
    }
}

/// Reads each page that the file claims, and returns how many it has.
fn opened(image: &Image, file: Vec<u8>, what: &str) -> u64 {
    Input::from_bytes(Arc::new(file.clone())).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut present = 0;
    Dump::read(file).pages(|pfn, bytes| {
        if let Some(bytes) = bytes {
            assert!(bytes == image.page(pfn), "{what}: page frame {pfn:#x}");
            present += 1;
        }
    });
    present
}

#[test]
fn c16_the_report_tells_the_attempts_that_did_not_fit() {
    let source = core(&machine());
    let sizes = [0, 31].map(|level| dump(source.clone(), &options(level)).0.file_bytes);
    let list =
        DumpOptions { exclude: [0, 31].map(|n| exclusion(n, "", "")).to_vec(), limit: Some(sizes[1]), ..options(0) };
    let ended = try_dump(Arc::new(source), &list);
    assert!(
        matches!(ended.events[..], [.., Event::Retry { full: Full::Limit(bytes), .. }] if bytes == sizes[1]),
        "{:?}",
        ended.events
    );
    let report = ended.made().0;
    let [row] = &report.attempts[..] else { panic!("{:?}", report.attempts) };
    assert_eq!((row.level, row.file_bytes), (0, sizes[1]));
    assert!(row.kept_pages < row.pages && row.ended.contains("size limit"), "{row:?}");
    assert!(report.complete && report.level == 31 && report.ended.is_none());
}

/// Gives the signal when a stage has come so far.
struct Signal {
    signal: Arc<AtomicUsize>,
    at: (Stage, u64),
}

impl Observer for Signal {
    fn progress(&self, stage: Stage, done: u64, _: u64) {
        if stage == self.at.0 && done >= self.at.1 {
            self.signal.store(15, Ordering::Relaxed);
        }
    }

    fn event(&self, _: Event) {}
}

fn told_to_end(image: &Image, at: (Stage, u64), threads: usize) -> (EngineError, Vec<u8>) {
    let place = place();
    let path = place.path().join("out");
    let signal = Arc::new(AtomicUsize::new(0));
    let options = DumpOptions {
        stop: Stop::default().on_signal(Arc::clone(&signal)),
        compression: "none".parse().unwrap(),
        threads: Some(threads),
        ..options(31)
    };
    let input = Input::from_bytes(Arc::new(core(image))).unwrap();
    let error = dump_input(input, &Target::Path(path.clone()), &options, &Signal { signal, at }).unwrap_err();
    (error, std::fs::read(path).unwrap())
}

#[test]
fn a_signal_during_the_copy_leaves_what_was_written_marked_incomplete() {
    let text = "@0x1200 4096 kernel content=text\n@0x2200 64 slab";
    let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x1200..0x2280).pages(text).build();
    for threads in [1, 3] {
        let (error, file) = told_to_end(&image, (Stage::CopyPages, 1000), threads);
        let EngineError::Stopped { why: StopReason::Signal(15), readable: true, report, kept, .. } = &error else {
            panic!("{error}")
        };
        assert!(report.kept_pages >= 1000 && report.kept_pages < *kept, "{} of {kept}", report.kept_pages);
        assert!(!report.complete && error.to_string().starts_with("SIGTERM ended the dump"), "{error}");
        assert!(Dump::read(file.clone()).incomplete());
        assert_eq!(opened(&image, file, "told to end"), report.kept_pages);
    }
}

#[test]
fn a_signal_during_the_scan_leaves_what_a_debugger_needs_to_open_the_dump() {
    let text = "@0x20000 4096 slab\n@0x40000 4096 slab";
    let image = Machine::new(KernelLayout::get("6.12"))
        .ram(0x1000..0x1080)
        .ram(0x20000..0x22000)
        .ram(0x40000..0x42000)
        .pages(text)
        .build();
    let (_, whole) = dump(core(&image), &options(31));
    for threads in [1, 3] {
        let (error, file) = told_to_end(&image, (Stage::FindPages, 1), threads);
        let EngineError::Stopped { readable: true, report, kept, .. } = &error else { panic!("{error}") };
        assert_eq!(report.kept_pages, *kept, "all of the essentials, for there is time for them");
        assert!(
            report.notes.iter().any(|note| note.contains("only those that a debugger needs")),
            "{:?}",
            report.notes
        );
        let (part, whole) = (Dump::read(file.clone()), Dump::read(whole.clone()));
        assert!(part.incomplete() && part.kept.len() < whole.kept.len(), "{} of {}", part.kept.len(), whole.kept.len());
        let image_pages: Vec<u64> = image.image.clone().collect();
        assert!(image_pages.iter().all(|pfn| part.kept.binary_search(pfn).is_ok()), "the kernel image");
        assert_eq!(opened(&image, file, "scan"), report.kept_pages);
    }
}

#[test]
fn a_deadline_that_has_passed_leaves_a_file_that_opens() {
    let image = machine();
    let stop = Stop::default().after(Duration::ZERO);
    let ended = try_dump(Arc::new(core(&image)), &DumpOptions { stop, ..options(31) });
    let Err(EngineError::Stopped { why: StopReason::Deadline, readable: true, report, .. }) = &ended.result else {
        panic!("{:?}", ended.result)
    };
    assert_eq!(report.kept_pages, 0);
    let dump = Dump::read(ended.bytes());
    assert!(dump.incomplete());
    assert_eq!(dump.vmcoreinfo, image.vmcoreinfo.as_bytes());
}

/// Panics in the middle of a stage.
struct Panicking(Stage);

impl Observer for Panicking {
    fn progress(&self, stage: Stage, _: u64, _: u64) {
        assert!(stage != self.0, "as asked");
    }

    fn event(&self, _: Event) {}
}

#[test]
fn a_thread_that_panics_ends_the_run_rather_than_hanging_it() {
    let image = machine();
    for stage in [Stage::FindPages, Stage::CopyPages] {
        for threads in [1, 2, 8] {
            let place = place();
            let input = Input::from_bytes(Arc::new(core(&image))).unwrap();
            let target = Target::Path(place.path().join("out"));
            let options = DumpOptions { threads: Some(threads), ..options(0) };
            let run = || dump_input(input, &target, &options, &Panicking(stage)).map(|report| report.complete);
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{stage:?}, {threads} threads");
            if let Target::Path(path) = &target {
                assert!(Dump::read(std::fs::read(path).unwrap()).incomplete());
            }
        }
    }
}

#[test]
fn an_input_that_lost_what_explains_it_is_saved_all_the_same() {
    // The kernel image and its page tables are in the first pages of the file.
    let image = machine();
    let source = image.elf().bytes();
    let mut fallen_back = 0;
    for pages in (2..160).step_by(9) {
        let cut = source[..pages << 12].to_vec();
        let (report, file) = dump(cut, &options(31));
        let dump = Dump::read(file.clone());
        let what = format!("{pages} pages: {:?}", report.notes);
        assert!(!report.complete && dump.incomplete() && !dump.kept.is_empty(), "{what}");
        if report.classes.is_empty() {
            fallen_back += 1;
            assert_eq!((report.level, dump.level), (1, 1), "{what}");
            assert!(report.notes.iter().any(|note| note.starts_with("all pages are kept")), "{what}");
        }
        opened(&image, file, &what);
    }
    assert!((1..18).contains(&fallen_back), "{fallen_back}");
}

#[test]
fn an_input_without_a_page_is_no_complete_dump() {
    let image = machine();
    let mut elf = image.elf();
    elf.segments.iter_mut().for_each(|segment| segment.filesz = 0);
    let (report, file) = dump(elf.bytes(), &options(1));
    assert!(!report.complete && Dump::read(file).incomplete());
    assert!(report.notes.iter().any(|note| note.contains("no page of memory")), "{:?}", report.notes);
}

#[test]
fn auto_with_a_level_is_told_apart_from_a_codec_nobody_knows() {
    use coresift_engine::Choice;
    let error = |text: &str| text.parse::<Choice>().unwrap_err().to_string();
    assert!(error("auto:3").starts_with("auto takes no level"));
    assert!(error("automatic").contains("no codec is called"));
}
