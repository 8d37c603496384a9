//! Every kernel layout, memory model and dump level: the pages kept, their bytes, and the numbers of the report.

use crate::common::{check, check_pages, core, dump, exclusion, kept, mark, options, place, same_pages};
use crate::reader::Dump;
use coresift_engine::{DumpOptions, Exclusion, Report, Silent, Target};
use coresift_format::codec::Codec;
use coresift_kernel::PageClass;
use coresift_synth::elf::Segment;
use coresift_synth::{Image, KernelLayout, LAYOUTS, Leaf, Machine, Model, PAGE};

const LEVELS: [u8; 7] = [0, 1, 2, 4, 8, 16, 31];
const MODELS: [Model; 4] = [Model::SparseVmemmap, Model::SparseExtreme, Model::Sparse, Model::Flat];

/// Level, classes left out besides, classes kept all the same.
const CHANGED: [(u8, &str, &str); 8] = [
    (0, "cache", ""),
    (0, "private-cache,hugetlb", ""),
    (1, "free,user", ""),
    (31, "", "hugetlb"),
    (31, "", "user,zero"),
    (31, "", "free,unaccepted"),
    (14, "unaccepted", "private-cache"),
    (31, "", "zero,cache,private-cache,user,hugetlb,free,unaccepted"),
];

/// One of everything, in large pages and small.
const ODD: &str = "
    @0x100a    3 image-cache
    @0x2000  512 anon-thp
    @0x2200  512 file-thp
    @0x2400  512 hugetlb
    @0x2600  512 hugetlb pool
    @0x2800 1024 hugetlb hvo
    @0x2c00   64 anon-thp order=4
    @0x2c40    4 ksm
    @0x2c44    4 swapcache
    @0x2c48    4 shmem-swapcache
    @0x2c4c    4 owner-priv
    @0x2c50    4 tail garbage
    @0x2c54    4 buddy order=52
    @0x2c58    8 slab order=3 mapping-odd
    @0x2c60    4 slab mapping-odd
    @0x2c64    4 anon content=zero
    @0x2c68    4 cache content=same
    @0x2c6c    4 kernel content=noise
    @0x2c70    4 hwpoison
    @0x2c74    4 offline
    @0x2c78    8 private-cache
    @0x2d00    1 buddy
    @0x2d02    2 buddy order=1
    @0x2d04    4 buddy order=2
    @0x2d08    8 buddy order=3
    @0x2d10   16 buddy order=4
    @0x2d20   32 buddy order=5
    @0x2d40   64 buddy order=6
    @0x2d80  128 buddy order=7
    @0x2e00  256 buddy order=8
    @0x3000 2048 unaccepted
    @0x3800 1024 buddy order=10
    @0x3c00  512 buddy order=9";

fn odd(layout: KernelLayout) -> Machine {
    Machine::new(layout).ram(0x1000..0x3e80).removed_section(9).linear_leaf(Leaf::M2).pages(ODD)
}

/// Uncompressed, for the codec is not what these tests are about and takes most of the time.
fn plain(exclude: Exclusion) -> DumpOptions {
    DumpOptions { exclude: vec![exclude], compression: Codec::None.into(), ..options(0) }
}

/// Dumps `image` without what `exclude` names and compares pages, bytes and counts with the truth table.
fn check_dump(image: &Image, exclude: Exclusion, what: &str) {
    let (report, file) = dump(core(image), &plain(exclude));
    check(image, exclude.classes, &report, file, what);
    check_counts(image, exclude, &report, what);
}

fn check_counts(image: &Image, exclude: Exclusion, report: &Report, what: &str) {
    // A kernel that does not mark its free pages has them on lists, which are walked only to leave them out.
    let free_is_known = image.layout.since(3, 9, 0) || exclude.classes.has(PageClass::Free);
    for row in report.classes.iter().filter(|row| row.name != "zero") {
        let truth = |class| image.truth.count(class);
        let mut expected = match row.name {
            "kernel" => truth("kernel") + truth("zero") + if free_is_known { 0 } else { truth("free") },
            "free" if !free_is_known => 0,
            class => truth(class),
        };
        let left_out = if row.excluded { expected } else { 0 };
        assert_eq!(row.excluded_pages, left_out, "{what}: {} pages left out", row.name);
        // Pages of the image that look like cache are counted as what they look like, and kept.
        let guarded = report.guard.iter().map(|row| row.saved).sum::<u64>();
        match row.name {
            "cache" if image_is_marked(image) => expected += 3,
            "kernel" if image_is_marked(image) => expected -= 3,
            _ => {}
        }
        let should_be_guarded = if image_is_marked(image) && exclude.classes.has(PageClass::Cache) { 3 } else { 0 };
        assert_eq!(guarded, should_be_guarded, "{what}: pages kept by the guard");
        assert_eq!(row.pages, expected, "{what}: {} pages", row.name);
    }
    let zero = report.classes.iter().find(|row| row.name == "zero").unwrap();
    assert_eq!((zero.pages, zero.excluded), (report.zero_pages, exclude.classes.has(PageClass::Zero)), "{what}");
    assert_eq!(report.level, exclude.level.number(), "{what}");
}

/// Whether it is a machine of [`ODD`], with pages of the kernel image on the LRU.
fn image_is_marked(image: &Image) -> bool {
    image.ram()[0].end > 0x2000
}

#[test]
fn b0_is_dumped_as_its_truth_table_says_under_every_kernel_model_and_level() {
    for layout in LAYOUTS {
        for model in MODELS {
            let image = Machine::b0_with(layout, model).build();
            for level in LEVELS {
                check_dump(&image, exclusion(level, "", ""), &format!("{} {model:?} level {level}", layout.name));
            }
        }
    }
}

#[test]
fn classes_kept_and_left_out_by_name_change_just_those_pages_under_every_kernel() {
    for layout in LAYOUTS {
        let image = Machine::b0(layout).build();
        for (level, also, keep) in CHANGED {
            let what = format!("{} level {level} exclude {also} keep {keep}", layout.name);
            check_dump(&image, exclusion(level, also, keep), &what);
        }
    }
}

#[test]
fn large_pages_and_odd_pages_are_dumped_as_the_truth_table_says_under_every_kernel() {
    for layout in LAYOUTS {
        let image = odd(layout).build();
        for (level, keep) in [(0, ""), (6, ""), (31, "hugetlb"), (31, "")] {
            check_dump(&image, exclusion(level, "", keep), &format!("{} level {level} keep {keep}", layout.name));
        }
    }
}

#[test]
fn a_gigantic_page_is_one_page_over_eight_sections() {
    for name in ["4.18", "6.6", "6.12", "7.1"] {
        // In the middle of its first and last section there is something else on both sides.
        let text = "@0x3f000 4096 anon\n@0x40000 262144 hugetlb order=18 hvo content=zero\n@0x80000 4096 cache";
        let machine = Machine::new(KernelLayout::get(name)).ram(0x1000..0x3000).ram(0x3e000..0x82000);
        let image = machine.pages(text).build();
        let mut elf = image.elf().with_image();
        let last = elf.segments.pop().unwrap();
        let cut =
            |from: u64, to: u64| Segment::new(from * PAGE, last.vaddr + (from * PAGE - last.paddr), (to - from) * PAGE);
        elf.segments.push(cut(0x3e000, 0x40000));
        elf.segments.push(cut(0x80000, 0x82000));
        // The huge page's bytes are a hole at the end of the file, which would take long to write.
        elf.segments.push(Segment { filesz: 0, ..cut(0x40000, 0x80000) });
        let place = place();
        let source = place.path().join("vmcore");
        let mut file = elf.file();
        let header = elf.phoff + 56 * elf.segments.len() as u64;
        file.put(header + 8, &file.len().to_le_bytes());
        file.put(header + 32, &(1u64 << 30).to_le_bytes());
        file.extend_to(file.len() + (1 << 30));
        file.save(&source).unwrap();
        for (level, keep) in [(31, ""), (31, "hugetlb")] {
            let what = format!("{name} level {level} keep {keep}");
            let exclude = exclusion(level, "", keep);
            let target = place.path().join("out");
            let options = DumpOptions { force: true, threads: Some(3), ..plain(exclude) };
            let report = coresift_engine::dump(&source, &Target::Path(target.clone()), &options, &Silent).unwrap();
            let dump = Dump::read(std::fs::read(&target).unwrap());
            same_pages(&image, &dump.kept, &kept(&image, exclude.classes), &what);
            let row = report.classes.iter().find(|row| row.name == "hugetlb").unwrap();
            let left_out = if keep.is_empty() { 1 << 18 } else { 0 };
            assert_eq!((row.pages, row.excluded_pages), (1 << 18, left_out), "{what}");
            if keep.is_empty() {
                check_pages(&image, &dump, &what);
            }
        }
    }
}

#[test]
fn poison_in_the_middle_of_a_large_page_is_left_out_alone() {
    for name in ["4.18", "6.1", "6.12", "7.1"] {
        let layout = KernelLayout::get(name);
        let mut image = odd(layout).build();
        for pfn in [0x2010, 0x2210, 0x2c05] {
            mark(&mut image, pfn, 1 << layout.flags.hwpoison, None);
        }
        for (level, poisoned) in [(0, 3), (8, 1), (2, 2), (31, 0)] {
            let what = format!("{name} level {level}");
            let exclude = exclusion(level, "", "");
            let (report, file) = dump(core(&image), &plain(exclude));
            let mut expected = kept(&image, exclude.classes);
            expected.retain(|pfn| ![0x2010, 0x2210, 0x2c05].contains(pfn));
            let dump = Dump::read(file);
            same_pages(&image, &dump.kept, &expected, &what);
            check_pages(&image, &dump, &what);
            let found = report.classes.iter().find(|row| row.name == "hwpoison").unwrap();
            // Of a large page that is left out whole, no page is asked.
            assert_eq!(found.pages, 4 + poisoned, "{what}");
        }
    }
}

#[test]
fn c02_slab_as_page_type_is_kept_at_level_8_and_31() {
    for name in ["6.10", "6.12", "7.1"] {
        let text = "@0x1100 8 slab order=3 mapping-odd\n@0x1108 4 slab mapping-odd\n@0x110c 4 anon";
        let image = Machine::new(KernelLayout::get(name)).ram(0x1000..0x1080).ram(0x1100..0x1180).pages(text).build();
        for level in [8, 31] {
            let (report, file) = dump(core(&image), &options(level));
            let kept = Dump::read(file).kept;
            assert!((0x1100..0x110c).all(|slab| kept.contains(&slab)), "{name} level {level}");
            assert!((0x110c..0x1110).all(|anon| !kept.contains(&anon)), "{name} level {level}");
            assert_eq!(report.excluded(PageClass::User), 4);
        }
    }
}

#[test]
fn c03_slab_whose_fields_make_mapping_odd_is_no_anonymous_page() {
    for name in ["6.1", "6.3", "6.4", "6.6", "6.9"] {
        let image = Machine::b0(KernelLayout::get(name)).pages("@0x1030 8 slab mapping-odd").build();
        let (_, file) = dump(core(&image), &options(31));
        let kept = Dump::read(file).kept;
        assert!((0x1030..0x1038).all(|slab| kept.contains(&slab)), "{name}");
    }
}

#[test]
fn c05_hugetlb_pages_are_told_in_every_way_they_were_ever_marked() {
    use coresift_synth::layout::{Compound, Version};
    let old = KernelLayout::get("4.4");
    let fields = |version, dtor, order, width| KernelLayout {
        release: "4.9.0-synth",
        version,
        compound: Compound::Fields { dtor, order, width },
        ..old
    };
    let ways = [
        (
            "a pointer to the destructor",
            KernelLayout { release: "3.18.0-synth", version: Version(3, 18, 0), ..KernelLayout::get("3.10") },
        ),
        ("words of 32 bits", fields(Version(4, 9, 0), 40, 44, 4)),
        ("words of 16 bits", fields(Version(4, 9, 0), 40, 42, 2)),
        ("bytes", KernelLayout::get("6.1")),
        ("bytes of the folio", KernelLayout::get("6.3")),
        ("a flag", KernelLayout::get("6.6")),
        ("a page type", KernelLayout::get("6.9")),
        ("a page type in the top byte", KernelLayout::get("6.12")),
    ];
    for (what, layout) in ways {
        let text = "@0x1200 512 hugetlb\n@0x1400 512 hugetlb pool\n@0x1600 512 anon-thp\n@0x1800 512 file-thp";
        let image = Machine::new(layout).ram(0x1000..0x1080).ram(0x1200..0x1a00).pages(text).build();
        for (level, hugetlb, user, cache) in [(31, 1024, 512, 512), (8, 1024, 512, 0), (2, 0, 0, 512)] {
            let (report, file) = dump(core(&image), &options(level));
            let counts = [PageClass::HugeTlb, PageClass::User, PageClass::Cache].map(|class| report.excluded(class));
            assert_eq!(counts, [hugetlb, user, cache], "{what}, level {level}");
            same_pages(&image, &Dump::read(file).kept, &kept(&image, exclusion(level, "", "").classes), what);
        }
    }
}

#[test]
fn c08_unaccepted_memory_is_left_out_with_free_pages_and_costs_nothing_where_it_cannot_be_told() {
    let text = "@0x1400 3072 unaccepted";
    for (name, told) in [("6.16", true), ("6.12", false)] {
        let image = Machine::new(KernelLayout::get(name)).ram(0x1000..0x1080).ram(0x1400..0x2000).pages(text).build();
        let (report, file) = dump(core(&image), &options(16));
        assert_eq!(report.excluded(PageClass::Unaccepted), if told { 3072 } else { 0 }, "{name}");
        let dump = Dump::read(file);
        let rest = dump.kept.iter().filter(|pfn| **pfn >= 0x1400).count();
        assert_eq!(rest, if told { 0 } else { 3072 }, "{name}");
        // All on the one page of zeros.
        let offsets: std::collections::BTreeSet<u64> =
            (dump.kept.len() - rest..dump.kept.len()).map(|rank| dump.descriptor(rank).offset).collect();
        assert!(offsets.len() <= 1, "{name}: {offsets:?}");
    }
}

#[test]
fn c10_free_block_of_an_order_that_cannot_be_is_kept_and_told_once() {
    for (order, text) in [(52, "@0x1030 4 buddy order=52"), (11, "@0x1030 4 buddy order=11")] {
        let image = Machine::b0(KernelLayout::get("6.12")).pages(text).build();
        let (report, file) = dump(core(&image), &options(31));
        let kept = Dump::read(file).kept;
        assert!((0x1030..0x1034).all(|odd| kept.contains(&odd)));
        assert_eq!(report.excluded(PageClass::Free), 40);
        let told: Vec<&String> = report.notes.iter().filter(|note| note.contains("order")).collect();
        assert_eq!(told.len(), 1, "{:?}", report.notes);
        assert!(
            told[0].contains("4 pages") && told[0].contains("0x1030") && told[0].contains(&format!("order {order}"))
        );
    }
}

#[test]
fn c10_free_block_that_does_not_begin_where_its_order_must_is_kept() {
    let layout = KernelLayout::get("6.12");
    let mut image = Machine::b0(layout).build();
    let at = crate::common::struct_page(&image, 0x1124);
    image.write(at + layout.page.private, &3u64.to_le_bytes());
    let (report, file) = dump(core(&image), &options(16));
    let dump = Dump::read(file);
    // The block of two pages said it has eight; its second page is no block of its own.
    assert!(dump.kept.contains(&0x1124) && dump.kept.contains(&0x1125));
    assert_eq!(report.excluded(PageClass::Free), 38);
    check_pages(&image, &dump, "one block with a wrong order");
}

#[test]
fn c11_section_entry_of_removed_memory_is_skipped() {
    for model in [Model::SparseVmemmap, Model::SparseExtreme, Model::Sparse] {
        for name in ["4.4", "5.10", "6.12"] {
            let machine = Machine::b0_with(KernelLayout::get(name), model).removed_section(1).removed_section(9);
            check_dump(&machine.build(), exclusion(31, "", ""), &format!("{name} {model:?}"));
        }
    }
}

#[test]
fn c11_removed_section_that_the_dump_still_calls_ram_is_kept_as_it_is() {
    // Memory that was taken out after the capture kernel's list of RAM was made.
    let image = Machine::b0(KernelLayout::get("6.12")).removed_section(9).build();
    let mut elf = image.elf().with_image();
    let mut removed = Segment::new(9 << 27, image.page_offset + (9 << 27), 16 * PAGE);
    removed.source = Some(0x1128 * PAGE);
    elf.segments.push(removed);
    let (report, file) = dump(elf.bytes(), &options(31));
    let dump = Dump::read(file);
    let there: Vec<u64> = dump.kept.iter().copied().filter(|pfn| *pfn >= 9 << 15).collect();
    assert_eq!(there, (9 << 15..(9 << 15) + 16).collect::<Vec<u64>>());
    assert!(!report.notes.iter().any(|note| note.contains("struct page")), "nobody looked: {:?}", report.notes);
    assert_eq!(report.excluded(PageClass::Cache), 30);
}
