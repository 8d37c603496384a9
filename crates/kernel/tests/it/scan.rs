//! One pass over the memory map: ranges that cover RAM, in order, of the right class.

use crate::machine::Opened;
use coresift_format::{Bytes, CHUNK_PAGES, Input, PageSet, Pfn, Window};
use coresift_kernel::{ChunkScan, ClassSet, ClassSink, Kernel, Oddity, PageClass, Scanner, is_poisoned};
use coresift_synth::{Image, KernelLayout, LAYOUTS, Leaf, Machine, Model, PAGE};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Takes what a scan says, and holds it to its promise: ascending, without overlap.
#[derive(Default)]
struct Ranges {
    at: u64,
    classes: BTreeMap<u64, PageClass>,
}

impl ClassSink for Ranges {
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
        assert!(start.0 >= self.at && start < end, "{start} to {end} after {:#x}", self.at);
        self.at = end.0;
        self.classes.extend((start.0..end.0).map(|pfn| (pfn, class)));
    }
}

fn scan(opened: &Opened, chunk: u64, skip: ClassSet) -> (ChunkScan, BTreeMap<u64, PageClass>) {
    let mut ranges = Ranges::default();
    let out = Scanner::new(&opened.kernel, opened.memory(), skip).scan_chunk(chunk, opened.memory().ram(), &mut ranges);
    let in_chunk: Vec<u64> =
        opened.image.ram().iter().cloned().flatten().filter(|pfn| pfn / CHUNK_PAGES == chunk).collect();
    assert!(ranges.classes.keys().copied().eq(in_chunk), "the ranges cover the RAM of the chunk, and nothing else");
    (out, ranges.classes)
}

/// The truth table's class, as a scan without a look at the contents tells it.
fn expected(image: &Image, pfn: u64) -> PageClass {
    let free_is_marked = image.layout.since(3, 9, 0);
    match image.truth.class(pfn) {
        "zero" => PageClass::Kernel,
        "free" if !free_is_marked => PageClass::Kernel,
        class => PageClass::ALL.into_iter().find(|c| c.name() == class).unwrap(),
    }
}

#[test]
fn every_page_of_b0_has_its_class_under_every_kernel_whatever_is_skipped() {
    for layout in LAYOUTS {
        for model in [Model::SparseVmemmap, Model::SparseExtreme, Model::Sparse, Model::Flat] {
            let opened = Opened::new(Machine::b0_with(layout, model).build());
            for skip in [ClassSet::NONE, ClassSet::SELECTABLE, ClassSet::of(&[PageClass::User])] {
                let (out, classes) = scan(&opened, 0, skip);
                assert_eq!(out, ChunkScan::default(), "{} {model:?}", layout.name);
                for (pfn, class) in classes {
                    assert_eq!(class, expected(&opened.image, pfn), "{} {model:?} {pfn:#x}", layout.name);
                }
            }
        }
    }
}

#[test]
fn a_block_larger_than_a_chunk_is_known_in_each_chunk_by_itself() {
    let machine = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x3000).ram(0x40000..0x90000);
    let opened = Opened::new(machine.pages("@0x40000 262144 hugetlb order=18 content=zero").build());
    for skip in [ClassSet::NONE, ClassSet::of(&[PageClass::HugeTlb])] {
        for chunk in (8..16).rev() {
            let (out, classes) = scan(&opened, chunk, skip);
            assert_eq!(out, ChunkScan::default());
            assert!(classes.len() == 0x8000 && classes.values().all(|class| *class == PageClass::HugeTlb));
        }
        let (_, behind) = scan(&opened, 16, skip);
        assert!(behind.values().all(|class| *class != PageClass::HugeTlb));
    }
}

#[test]
fn what_a_block_covers_is_not_read() {
    let machine = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x3000).ram(0x8000..0x10000);
    let free = Opened::new(machine.clone().pages("@0x8000 32768 buddy order=10").build());
    let cache = Opened::new(machine.pages("@0x8000 32768 cache content=zero").build());
    let read = |opened: &Opened| {
        let mut scanner = Scanner::new(&opened.kernel, opened.memory(), ClassSet::of(&[PageClass::Free]));
        let mut ranges = Ranges::default();
        scanner.scan_chunk(1, opened.memory().ram(), &mut ranges);
        scanner.bytes_read()
    };
    assert!(read(&cache) >= 64 * CHUNK_PAGES);
    let free = read(&free);
    assert!(free <= 32 * 2 * PAGE, "a page and a bit for each of 32 blocks, not {free}");
}

#[test]
fn ram_without_struct_pages_is_the_kernels_and_counted() {
    // The dump claims a section of RAM that mem_section does not have.
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let opened = Opened::new(image);
    let ram = PageSet::from_ranges([(Pfn(0x1100), Pfn(0x1180)), (Pfn(0x4_8000), Pfn(0x4_8010))]);
    let mut ranges = Ranges::default();
    let out = Scanner::new(&opened.kernel, opened.memory(), ClassSet::NONE).scan_chunk(9, &ram, &mut ranges);
    assert_eq!((out.unmapped, out.unread), (16, 0));
    assert!(ranges.classes.values().all(|class| *class == PageClass::Kernel) && ranges.classes.len() == 16);
}

#[test]
fn struct_pages_that_are_not_mapped_or_not_in_the_dump_are_counted() {
    let mut image = Machine::b0(KernelLayout::get("6.12")).build();
    let map = crate::machine::translate(&image, 0xffff_ea00_0000_0000 + 0x1140 * 64) / 4096;
    image.truth = Machine::b0(KernelLayout::get("6.12")).build().truth;
    let mut elf = image.elf().with_image();
    elf.split(map * 4096);
    elf.split((map + 1) * 4096);
    elf.segments.retain(|s| s.paddr != map * 4096);
    let input = Input::from_bytes(Arc::new(elf.bytes())).unwrap();
    let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
    let mut ranges = Ranges::default();
    let out = Scanner::new(&kernel, input.memory(), ClassSet::NONE).scan_chunk(0, input.memory().ram(), &mut ranges);
    assert_eq!((out.unmapped, out.unread), (0, 64));
    assert!((0x1140..0x1180).all(|pfn| ranges.classes[&pfn] == PageClass::Kernel));
    assert_eq!(ranges.classes[&0x1128], PageClass::Cache, "its neighbours are told as ever");
}

/// A file that cannot be read in some places, and counts the bytes asked for.
struct Bad {
    bytes: Vec<u8>,
    bad: Vec<Range<u64>>,
    asked: AtomicU64,
}

impl Bytes for Bad {
    fn name(&self) -> &str {
        "bad"
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.asked.fetch_add(buf.len() as u64, Ordering::Relaxed);
        if self.bad.iter().any(|bad| bad.start < offset + buf.len() as u64 && offset < bad.end) {
            return Err(io::ErrorKind::Other.into());
        }
        Bytes::read_at(&self.bytes, offset, buf)
    }

    fn window(&self, _: u64, _: usize) -> Option<Window> {
        None
    }
}

#[test]
fn a_lost_page_of_the_memory_map_costs_a_page_and_no_slice() {
    for name in ["2.6.32", "6.12"] {
        let machine = Machine::new(KernelLayout::get(name)).ram(0x1000..0x1400).ram(0x8000..0x10000);
        let image = machine.pages("@0x8000 32768 cache content=zero").build();
        let size = image.layout.page.size;
        let source = image.elf().with_image().bytes();
        let whole = Input::from_bytes(Arc::new(source.clone())).unwrap();
        let kernel = Kernel::open(&whole, image.vmcoreinfo.as_bytes()).unwrap();
        // Every eighth page of the memory map of the second chunk.
        let map = kernel.memmap.page(Pfn(0x8000)).unwrap().0;
        let lost: Vec<u64> = (map / PAGE * PAGE..map + size * CHUNK_PAGES).step_by(8 * PAGE as usize).skip(1).collect();
        let bad = lost.iter().map(|page| {
            let at = crate::machine::translate(&image, *page);
            let segment =
                whole.segments().iter().rev().find(|s| (s.paddr..s.paddr + s.file_size).contains(&at)).unwrap();
            let start = segment.file_offset + at - segment.paddr;
            start..start + PAGE
        });
        let file = Arc::new(Bad { bytes: source, bad: bad.collect(), asked: AtomicU64::new(0) });
        let input = Input::from_bytes(Arc::clone(&file) as Arc<dyn Bytes>).unwrap();
        file.asked.store(0, Ordering::Relaxed);
        let mut ranges = Ranges::default();
        let mut scanner = Scanner::new(&kernel, input.memory(), ClassSet::NONE);
        let out = scanner.scan_chunk(1, input.memory().ram(), &mut ranges);
        let is_lost = |pfn: &u64| {
            let at = map + (pfn - 0x8000) * size;
            lost.iter().any(|page| at < page + PAGE && *page < at + size)
        };
        let expected: Vec<u64> = (0x8000..0x10000).filter(is_lost).collect();
        assert_eq!(out.unread, expected.len() as u64, "{name}");
        for (pfn, class) in &ranges.classes {
            let told = if is_lost(pfn) { PageClass::Kernel } else { PageClass::Cache };
            assert_eq!(*class, told, "{name} {pfn:#x}");
        }
        let asked = file.asked.load(Ordering::Relaxed);
        assert!(asked < 4 * size * CHUNK_PAGES, "{name}: {asked} bytes read of a memory map of {}", size * CHUNK_PAGES);
    }
}

#[test]
fn poison_inside_a_block_that_is_taken_whole_can_be_asked_for() {
    let mut image = Machine::b0(KernelLayout::get("6.12")).pages("@0x1020 16 buddy order=4").build();
    let bad = crate::machine::translate(&image, 0xffff_ea00_0000_0000 + 0x1025 * 64);
    let flags = u64::from_le_bytes(image.read(bad, 8).try_into().unwrap()) | 1 << image.layout.flags.hwpoison;
    image.write(bad, &flags.to_le_bytes());
    let opened = Opened::new(image);
    let free = ClassSet::of(&[PageClass::Free]);
    assert_eq!(scan(&opened, 0, free).1[&0x1025], PageClass::Free);
    assert_eq!(scan(&opened, 0, ClassSet::NONE).1[&0x1025], PageClass::HwPoison);
    let mut reader = opened.kernel.reader(opened.memory());
    let poisoned = (0x1020..0x1030).filter(|pfn| is_poisoned(&opened.kernel, &mut reader, Pfn(*pfn)));
    assert_eq!(poisoned.collect::<Vec<_>>(), [0x1025]);
    assert!(!is_poisoned(&opened.kernel, &mut reader, Pfn(1 << 30)));
}

#[test]
fn odd_pages_are_counted_and_the_first_is_named() {
    let machine = Machine::b0(KernelLayout::get("6.12")).pages("@0x1030 3 buddy order=52\n@0x1038 1 buddy order=11");
    let (out, _) = scan(&Opened::new(machine.build()), 0, ClassSet::NONE);
    assert_eq!((out.odd, out.first_odd), (4, Some((Pfn(0x1030), Oddity::BuddyOrder(52)))));
}

#[test]
fn large_leaves_and_pages_that_straddle_their_borders_are_read_alike() {
    // 56 bytes do not divide 4096: struct pages cross the borders of pages that are mapped one by one.
    for name in ["2.6.32", "6.12"] {
        let text = "@0x8000 512 hugetlb\n@0x8200 100 cache\n@0x8300 256 buddy order=8\n@0x8400 300 anon";
        let machine = Machine::new(KernelLayout::get(name)).ram(0x1000..0x1400).ram(0x7000..0x9000).pages(text);
        let machines = [
            machine.clone(),
            machine.clone().linear_leaf(Leaf::K4).model(Model::SparseExtreme),
            machine.model(Model::Flat),
        ];
        for machine in machines {
            let opened = Opened::new(machine.build());
            for chunk in [0, 1] {
                for (pfn, class) in scan(&opened, chunk, ClassSet::NONE).1 {
                    assert_eq!(class, expected(&opened.image, pfn), "{name} {pfn:#x}");
                }
            }
        }
    }
}
