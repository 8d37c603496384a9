//! Runs of the engine, and what they should give.

use crate::reader::Dump;
use coresift_engine::{
    DumpOptions, EngineError, Event, Exclusion, Format, Observer, Report, Stage, Stop, Target, dump_input,
};
use coresift_format::{Bytes, Input, Pfn};
use coresift_kernel::{ClassSet, DumpLevel, Kernel, PageClass};
use coresift_synth::Image;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A directory for outputs, in memory where the machine has such a place: a run waits until its file is on the medium.
pub fn place() -> TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { TempDir::new_in(shm).unwrap() } else { TempDir::new().unwrap() }
}

pub fn level(number: u8) -> DumpLevel {
    DumpLevel::new(number).unwrap()
}

/// Dump level `number`, changed by lists such as `hugetlb,free`.
pub fn exclusion(number: u8, also: &str, keep: &str) -> Exclusion {
    Exclusion::new(level(number), also.parse().unwrap(), keep.parse().unwrap())
}

/// Two threads, zlib, dump level `number`.
pub fn options(number: u8) -> DumpOptions {
    DumpOptions {
        exclude: vec![exclusion(number, "", "")],
        format: Format::Kdump,
        compression: "zlib".parse().unwrap(),
        threads: Some(2),
        max_memory: None,
        force: false,
        dry_run: false,
        limit: None,
        stop: Stop::default(),
        exclude_unused_map: false,
        debug: None,
        map_input: true,
        log: None,
    }
}

/// Remembers what it is told.
#[derive(Default)]
pub struct Seen {
    events: Mutex<Vec<Event>>,
    /// Progress beyond the end: no panic here, in the middle of the copy, for that would leave the other threads waiting.
    beyond: Mutex<Option<(Stage, u64, u64)>>,
}

impl Observer for Seen {
    fn progress(&self, stage: Stage, done: u64, total: u64) {
        if done > total {
            self.beyond.lock().unwrap().get_or_insert((stage, done, total));
        }
    }

    fn event(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

/// What a capture kernel shows as /proc/vmcore: RAM, and the kernel image with its own addresses.
pub fn core(image: &Image) -> Vec<u8> {
    image.elf().with_image().bytes()
}

/// Physical address of the `struct page` of a page frame.
pub fn struct_page(image: &Image, pfn: u64) -> u64 {
    let input = Input::from_bytes(Arc::new(core(image))).unwrap();
    let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
    let at = kernel.memmap.page(Pfn(pfn)).unwrap();
    kernel.reader(input.memory()).translate(at).unwrap().0.0
}

/// Sets page flags, and `mapping` if it is given, in the `struct page` of a page frame, behind the truth table's back.
pub fn mark(image: &mut Image, pfn: u64, flags: u64, mapping: Option<u64>) {
    let at = struct_page(image, pfn);
    let old = u64::from_le_bytes(image.read(at, 8).try_into().unwrap());
    image.write(at, &(old | flags).to_le_bytes());
    if let Some(mapping) = mapping {
        let offset = image.layout.page.mapping;
        image.write(at + offset, &mapping.to_le_bytes());
    }
}

/// A run that may fail: what it returned, what it told, and where its file is.
pub struct Ended {
    pub result: Result<Report, EngineError>,
    pub events: Vec<Event>,
    pub path: PathBuf,
    _place: TempDir,
}

impl Ended {
    /// Its file; nothing where there is none.
    pub fn bytes(&self) -> Vec<u8> {
        if self.path.exists() { std::fs::read(&self.path).unwrap() } else { Vec::new() }
    }

    /// The report of a run that went well, and its file.
    pub fn made(self) -> (Report, Vec<u8>) {
        let bytes = self.path.exists().then(|| self.bytes());
        (self.result.unwrap(), bytes.unwrap_or_default())
    }

    /// The message of a run that did not.
    pub fn message(&self) -> String {
        match &self.result {
            Ok(report) => panic!("the run went well: {report:#?}"),
            Err(e) => e.to_string(),
        }
    }
}

/// Runs the engine on bytes from anywhere.
pub fn try_dump(bytes: Arc<dyn Bytes>, options: &DumpOptions) -> Ended {
    let place = place();
    let path = place.path().join("out");
    let seen = Seen::default();
    let result = Input::from_bytes(bytes)
        .map_err(EngineError::from)
        .and_then(|input| dump_input(input, &Target::Path(path.clone()), options, &seen));
    assert_eq!(seen.beyond.into_inner().unwrap(), None, "no stage handles more pages than there are");
    Ended { result, events: seen.events.into_inner().unwrap(), path, _place: place }
}

/// Runs the engine on a file's bytes; the run must go well.
pub fn dump(bytes: Vec<u8>, options: &DumpOptions) -> (Report, Vec<u8>) {
    try_dump(Arc::new(bytes), options).made()
}

/// The page frames of `image` that a dump without the classes of `excluded` has: all RAM but those. Pages of zeros have a
/// descriptor, whatever the level.
pub fn kept(image: &Image, excluded: ClassSet) -> Vec<u64> {
    let left_out = excluded.without(ClassSet::of(&[PageClass::Zero]));
    let names: Vec<&str> = left_out.iter().map(|c| c.name()).chain(["hole"]).collect();
    image.truth.runs().filter(|run| !names.contains(&run.1)).flat_map(|run| run.0).collect()
}

/// Holds the dump `file` to `image`: it exists as RAM what exists, has what `excluded` leaves, and each page is the image's.
pub fn check(image: &Image, excluded: ClassSet, report: &Report, file: Vec<u8>, what: &str) {
    let dump = Dump::read(file);
    let expected = kept(image, excluded);
    assert!(!dump.incomplete(), "{what}");
    assert_eq!((dump.version, dump.level), (6, report.level.into()), "{what}: version and level");
    assert!(dump.ram.iter().copied().eq(image.ram().iter().cloned().flatten()), "{what}: the 1st bitmap");
    same_pages(image, &dump.kept, &expected, what);
    let zero = check_pages(image, &dump, what);
    assert!(report.complete, "{what}");
    assert_eq!((report.kept_pages, report.zero_pages), (expected.len() as u64, zero), "{what}: kept and zero pages");
    assert_eq!(report.ram_pages, dump.ram.len() as u64, "{what}");
    assert_eq!((report.unreadable_pages, report.absent_pages), (0, 0), "{what}");
}

/// Every page of the dump holds the image's bytes; the number of those that are all zero.
pub fn check_pages(image: &Image, dump: &Dump, what: &str) -> u64 {
    let mut zero = 0;
    dump.pages(|pfn, bytes| {
        let source = image.page(pfn);
        assert!(bytes == Some(&source[..]), "{what}: the bytes of page frame {pfn:#x} ({})", image.truth.class(pfn));
        zero += u64::from(source.iter().all(|b| *b == 0));
    });
    zero
}

/// As `assert_eq`, but says what the first differing page is.
pub fn same_pages(image: &Image, found: &[u64], expected: &[u64], what: &str) {
    if found == expected {
        return;
    }
    let only = |a: &[u64], b: &[u64]| -> Vec<String> {
        let rest = a.iter().filter(|pfn| b.binary_search(pfn).is_err());
        rest.take(8).map(|pfn| format!("{pfn:#x} {}", image.truth.class(*pfn))).collect()
    };
    panic!(
        "{what}: {} pages kept instead of {}; too many: {:?}; missing: {:?}",
        found.len(),
        expected.len(),
        only(found, expected),
        only(expected, found)
    );
}
