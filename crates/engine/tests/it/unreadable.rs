//! Memory that cannot be read, that the file does not have, or that must not be read.

use crate::common::{check_pages, core, dump, exclusion, kept, options, same_pages, struct_page, try_dump};
use crate::reader::Dump;
use coresift_engine::{DumpOptions, EngineError};
use coresift_format::{Bytes, Input, Window};
use coresift_kernel::PageClass;
use coresift_synth::elf::Segment;
use coresift_synth::{Image, KernelLayout, Machine, PAGE};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const EIO: i32 = 5;

/// A file whose disk has bad spots, which remembers where it was read.
struct Disk {
    bytes: Vec<u8>,
    bad: Vec<Range<u64>>,
    /// Whether it is a /proc/vmcore.
    memory: bool,
    reads: Mutex<Vec<Range<u64>>>,
}

impl Disk {
    fn new(bytes: Vec<u8>, bad: Vec<Range<u64>>) -> Arc<Self> {
        Arc::new(Self { bytes, bad, memory: false, reads: Mutex::default() })
    }

    fn vmcore(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { bytes, bad: Vec::new(), memory: true, reads: Mutex::default() })
    }
}

impl Bytes for Disk {
    fn name(&self) -> &str {
        "disk"
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let asked = offset..offset + buf.len() as u64;
        self.reads.lock().unwrap().push(asked.clone());
        if self.bad.iter().any(|bad| bad.start < asked.end && asked.start < bad.end) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Bytes::read_at(&self.bytes, offset, buf)
    }

    fn window(&self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn is_memory(&self) -> bool {
        self.memory
    }
}

/// Where page frames are in an ELF core.
fn in_file(core: &[u8], pfns: Range<u64>) -> Range<u64> {
    let input = Input::from_bytes(Arc::new(core.to_vec())).unwrap();
    let at = pfns.start * PAGE;
    // The last: the first may be the kernel image, which overlaps.
    let segment = input.segments().iter().rev().find(|s| s.paddr <= at && at < s.paddr + s.file_size).unwrap();
    let start = segment.file_offset + at - segment.paddr;
    start..start + (pfns.end - pfns.start) * PAGE
}

fn b0() -> Image {
    Machine::b0(KernelLayout::get("6.12")).build()
}

#[test]
fn pages_that_cannot_be_read_are_named_and_left_out_and_the_rest_is_right() {
    let image = b0();
    let source = core(&image);
    // Single pages, neighbours, a run over several batches' ends, and a spot inside one page.
    let cases = [[0x1130..0x1131, 0x1132..0x1133], [0x1041..0x1042, 0x1128..0x1180], [0x1050..0x1053, 0x1170..0x1171]];
    for bad in cases {
        let spots = bad.iter().map(|pfns| in_file(&source, pfns.clone())).map(|r| r.start + 100..r.end - 100);
        let spots: Vec<Range<u64>> = spots.collect();
        for threads in [1, 3] {
            let ended = try_dump(
                Disk::new(source.clone(), spots.clone()),
                &DumpOptions { threads: Some(threads), ..options(0) },
            );
            let (report, file) = ended.made();
            let lost: Vec<u64> = bad.iter().cloned().flatten().collect();
            assert_eq!(report.unreadable_pages, lost.len() as u64);
            let named: Vec<(u64, u64)> = report.unreadable.iter().map(|run| (run.pfn, run.pages)).collect();
            assert_eq!(named, bad.iter().map(|r| (r.start, r.end - r.start)).collect::<Vec<_>>());
            assert!(report.unreadable.iter().all(|run| run.reason.contains("os error 5")), "{:?}", report.unreadable);
            assert!(!report.complete, "something is missing that was asked for");
            let dump = Dump::read(file);
            assert!(dump.incomplete());
            let all = kept(&image, exclusion(0, "", "").classes);
            assert_eq!(report.kept_pages + report.unreadable_pages, all.len() as u64);
            same_pages(&image, &dump.kept, &all, "the 2nd bitmap, of which some have no data");
            dump.pages(|pfn, bytes| match bytes {
                Some(bytes) => assert!(bytes == image.page(pfn) && !lost.contains(&pfn), "page frame {pfn:#x}"),
                None => assert!(lost.contains(&pfn), "page frame {pfn:#x}"),
            });
        }
    }
}

#[test]
fn unreadable_pages_that_are_left_out_anyway_are_nobodys_loss() {
    let image = b0();
    let source = core(&image);
    let spots = vec![in_file(&source, 0x1128..0x1140), in_file(&source, 0x1100..0x1110)];
    let (report, file) = try_dump(Disk::new(source, spots), &options(31)).made();
    assert!(report.complete && report.unreadable_pages == 0);
    let dump = Dump::read(file);
    same_pages(&image, &dump.kept, &kept(&image, exclusion(31, "", "").classes), "level 31");
    check_pages(&image, &dump, "level 31");
}

#[test]
fn page_frames_whose_struct_page_cannot_be_read_are_kept() {
    let image = b0();
    let source = core(&image);
    // The page of the memory map that describes 0x1140..0x1180: cache, anonymous memory, slab.
    let map = struct_page(&image, 0x1140) / PAGE;
    assert_eq!(struct_page(&image, 0x117f) / PAGE, map);
    let spot = in_file(&source, map..map + 1);
    let (report, file) = try_dump(Disk::new(source, vec![spot]), &options(31)).made();
    let dump = Dump::read(file);
    let mut expected = kept(&image, exclusion(31, "", "").classes);
    expected.extend((0x1140..0x1180).filter(|pfn| !["slab"].contains(&image.truth.class(*pfn))));
    expected.sort_unstable();
    expected.dedup();
    same_pages(&image, &dump.kept, &expected, "a hole in the memory map");
    assert!(report.notes.iter().any(|n| n.contains("struct page of 64 page frames")), "{:?}", report.notes);
    assert_eq!((report.unreadable_pages, report.unreadable[0].pfn), (1, map));
}

#[test]
fn what_translation_needs_and_cannot_be_read_is_an_error_that_says_where() {
    let image = b0();
    let source = core(&image);
    let root = (image.symbols["init_top_pgt"] - image.image_virt) / PAGE + image.image.start;
    // The image is in the file twice, by both segments.
    let input = Input::from_bytes(Arc::new(source.clone())).unwrap();
    let at = root * PAGE;
    let spots = input.segments().iter().filter(|s| s.paddr <= at && at < s.paddr + s.file_size);
    let spots = spots.map(|s| s.file_offset + at - s.paddr..s.file_offset + at - s.paddr + PAGE).collect();
    let ended = try_dump(Disk::new(source, spots), &options(31));
    assert!(matches!(ended.result, Err(EngineError::Kernel { .. })));
    assert!(
        ended.message().contains("page table") && ended.message().contains(&format!("{root:#x}")),
        "{}",
        ended.message()
    );
    assert!(!ended.path.exists());
}

#[test]
fn c09_offline_and_poisoned_pages_are_never_read() {
    for name in ["5.4", "6.12", "7.1"] {
        let text = "
            @0x1100 16 offline
            @0x1110  1 hwpoison
            @0x1112 14 cache
            @0x1120 16 slab
            @0x1130  1 offline
            @0x1131 15 slab
            @0x1140  1 hwpoison
            @0x1200 512 anon-thp";
        let image = Machine::new(KernelLayout::get(name)).ram(0x1000..0x1080).ram(0x1100..0x1400).pages(text).build();
        let source = core(&image);
        for number in [0, 1, 8, 31] {
            let disk = Disk::vmcore(source.clone());
            let (report, _) = try_dump(Arc::<Disk>::clone(&disk), &options(number)).made();
            let reads = disk.reads.lock().unwrap();
            assert!(reads.len() > 10);
            for pfn in image.truth.pfns(&["offline", "hwpoison"]) {
                let page = in_file(&source, pfn..pfn + 1);
                let read = reads.iter().find(|r| r.start < page.end && page.start < r.end);
                assert!(
                    read.is_none(),
                    "{name}, level {number}: {} page {pfn:#x} was read by {read:?}",
                    image.truth.class(pfn)
                );
            }
            assert_eq!(report.excluded(PageClass::Offline), 17, "{name}");
        }
    }
}

#[test]
fn a_core_cut_in_the_middle_of_its_memory_gives_what_it_has() {
    let image = b0();
    let source = core(&image);
    let cut_page = in_file(&source, 0x1140..0x1141);
    for cut in [cut_page.start, cut_page.start + 100, cut_page.end] {
        let first_gone = if cut == cut_page.end { 0x1141 } else { 0x1140 };
        let ended = try_dump(Arc::new(source[..cut as usize].to_vec()), &options(0));
        let (report, file) = ended.made();
        assert!(!report.complete);
        assert_eq!((report.absent_pages, report.ram_pages), (0x1180 - first_gone, 256), "cut at {cut}");
        assert!(
            report.notes.iter().any(|note| note.contains(&format!("{} pages", 0x1180 - first_gone))),
            "{:?}",
            report.notes
        );
        let dump = Dump::read(file);
        assert!(dump.incomplete());
        let mut expected = kept(&image, exclusion(0, "", "").classes);
        expected.retain(|pfn| *pfn < first_gone);
        same_pages(&image, &dump.kept, &expected, &format!("cut at {cut}"));
        check_pages(&image, &dump, &format!("cut at {cut}"));
    }
}

#[test]
fn c21_what_an_input_has_no_data_for_is_zeros_where_no_level_leaves_it_out_and_else_absent() {
    let image = b0();
    let mut elf = image.elf().with_image();
    // The second range: its first half without data, then whole, then a part of a page.
    let second = elf.segments.pop().unwrap();
    let piece = |from: u64, pages: u64, filesz: u64| Segment {
        filesz,
        ..Segment::new(from * PAGE, second.vaddr + (from - 0x1100) * PAGE, pages * PAGE)
    };
    elf.segments.extend([
        piece(0x1100, 0x28, 0),
        piece(0x1128, 0x28, 0x28 * PAGE),
        piece(0x1150, 0x30, 0x10 * PAGE + 9),
    ]);
    let there = |pfn: &u64| *pfn < 0x1100 || (0x1128..=0x1160).contains(pfn);
    let never_left_out = kept(&image, exclusion(31, "", "").classes);
    let known = |pfn: &u64| there(pfn) || never_left_out.contains(pfn);
    let unknown = image.ram().iter().cloned().flatten().filter(|pfn| !known(pfn)).count() as u64;
    assert!(unknown > 0 && never_left_out.iter().any(|pfn| !there(pfn)), "both kinds are looked at");
    for number in [0, 1, 31] {
        let (report, file) = dump(elf.bytes(), &options(number));
        let dump = Dump::read(file);
        assert_eq!(dump.ram.len(), 256, "they exist");
        let mut expected = kept(&image, exclusion(number, "", "").classes);
        expected.retain(known);
        same_pages(&image, &dump.kept, &expected, &format!("level {number}"));
        assert_eq!(report.absent_pages, unknown);
        assert!(
            report.level & number == number && report.level > 1,
            "what may be missing is in level {}",
            report.level
        );
        assert!(report.complete, "nothing is missing that was in the input: {:?}", report.notes);
        dump.pages(|pfn, bytes| {
            let mut page = image.page(pfn);
            if !there(&pfn) {
                page.fill(0);
            } else if pfn == 0x1160 {
                page[9..].fill(0);
            }
            assert!(bytes == Some(&page[..]), "page frame {pfn:#x}");
        });
    }
}

#[test]
fn c22_segments_without_a_physical_address_are_skipped() {
    let image = b0();
    let mut elf = image.elf().with_image();
    for (vaddr, at) in [(0xffff_c900_0000_0000, 0), (0xffff_ffff_c000_0000, 1)] {
        let module = Segment { source: Some(0x1010 * PAGE), ..Segment::new(u64::MAX, vaddr, 4 * PAGE) };
        elf.segments.insert(at, module);
    }
    let (report, file) = dump(elf.bytes(), &options(31));
    let dump = Dump::read(file);
    same_pages(&image, &dump.kept, &kept(&image, exclusion(31, "", "").classes), "kcore");
    check_pages(&image, &dump, "kcore");
    assert_eq!(report.total_pages, 0x1180);
}

#[test]
fn c26_headers_in_any_place_and_order_make_the_same_dump() {
    let image = b0();
    let expected = dump(image.elf().with_image().bytes(), &options(31)).1;
    let mut variants = vec![image.elf().with_image(); 5];
    variants[0].phoff = 128;
    variants[1].phoff = 4000;
    (variants[2].phoff, variants[2].qemu_headers) = (192, true);
    variants[3].extended_numbering = true;
    variants[4].align = 1;
    variants[4].split(0x1010 * PAGE + 1234);
    variants[4].split(0x1150 * PAGE);
    for (i, elf) in variants.iter().enumerate() {
        assert!(dump(elf.bytes(), &options(31)).1 == expected, "variant {i}");
    }
}
