//! A dump made from a dump.

use crate::common::{check, core, dump, exclusion, kept, level, options, same_pages, try_dump};
use crate::reader::Dump;
use coresift_engine::{DumpOptions, EngineError, Event};
use coresift_format::{Input, PhysAddr};
use coresift_kernel::PageClass;
use coresift_synth::elf::Order;
use coresift_synth::flat::{BlockOrder, Flatten};
use coresift_synth::kdump::Abi;
use coresift_synth::{Image, KernelLayout, LAYOUTS, Machine};
use std::sync::Arc;

fn b0(name: &str) -> Image {
    Machine::b0(KernelLayout::get(name)).cpus(2).build()
}

#[test]
fn filtering_in_two_steps_gives_the_bytes_of_one() {
    for layout in LAYOUTS {
        // Before 6.0 only the program header of a core bounds the kernel image, so the guard keeps more of a dump.
        if !layout.since(6, 0, 0) {
            continue;
        }
        let image = Machine::b0(layout).cpus(2).build();
        let direct = dump(core(&image), &options(31)).1;
        for (codec, first) in [("zlib", 1), ("zstd", 0), ("none", 16), ("snappy", 3), ("lzo", 31)] {
            let step = DumpOptions { compression: codec.parse().unwrap(), ..options(first) };
            let between = dump(core(&image), &step).1;
            let (report, both) = dump(between, &options(31));
            assert!(both == direct, "{}: level {first}, {codec}, then 31", layout.name);
            assert_eq!(report.container, "kdump");
        }
    }
}

#[test]
fn filtering_an_old_kernel_in_two_steps_never_keeps_less() {
    for name in ["2.6.32", "3.10", "4.18", "5.10"] {
        let image = b0(name);
        let expected = kept(&image, exclusion(31, "", "").classes);
        let (_, file) = dump(dump(core(&image), &options(1)).1, &options(31));
        let dump = Dump::read(file);
        assert!(expected.iter().all(|pfn| dump.kept.contains(pfn)), "{name}");
        assert!(dump.kept.iter().all(|pfn| !["offline", "hwpoison"].contains(&image.truth.class(*pfn)) || name < "3"));
        crate::common::check_pages(&image, &dump, name);
    }
}

#[test]
fn header_notes_time_and_cpus_are_handed_on() {
    let image = b0("6.12");
    let source = core(&image);
    let notes = Input::from_bytes(Arc::new(source.clone())).unwrap().notes().to_vec();
    let mut file = source;
    for _ in 0..3 {
        file = dump(file, &options(1)).1;
        let dump = Dump::read(file.clone());
        assert_eq!(dump.release, "6.12.0-synth");
        assert_eq!((dump.seconds, dump.cpus, dump.level), (1_700_000_000, 2, 1));
        assert_eq!(dump.notes, notes);
        assert_eq!(dump.vmcoreinfo, image.vmcoreinfo.as_bytes());
        assert_eq!(dump.max_mapnr, 0x1180);
    }
}

#[test]
fn every_version_abi_and_byte_order_is_read_and_keeps_its_machine() {
    let image = b0("6.12");
    let all: Vec<u64> = image.ram().iter().cloned().flatten().collect();
    for version in 0..=6 {
        for abi in [Abi::Lp64, Abi::Ilp32Pack, Abi::Ilp32Pad] {
            for order in [Order::Little, Order::Big] {
                let mut kdump = image.kdump();
                (kdump.version, kdump.abi, kdump.order) = (version, abi, order);
                kdump.backwards = version % 2 == 1;
                let source = kdump.bytes();
                let before = Input::from_bytes(Arc::new(source.clone())).unwrap();
                for asked in [0, 1] {
                    let what = format!("version {version}, {abi:?}, {order:?}, level {asked}");
                    let (report, file) = dump(source.clone(), &options(asked));
                    assert!(report.complete && report.kept_pages >= all.len() as u64 - 8, "{what}: {:?}", report.notes);
                    let after = Input::from_bytes(Arc::new(file)).unwrap();
                    assert_eq!((after.byte_order(), after.bits()), (before.byte_order(), before.bits()), "{what}");
                    assert_eq!(after.machine(), before.machine(), "{what}");
                    assert_eq!(after.cpus(), before.cpus(), "{what}");
                    let same_text = version < 3 || after.vmcoreinfo() == Some(image.vmcoreinfo.as_bytes());
                    assert!(same_text, "{what}: VMCOREINFO");
                    let (header, sub) = after.kdump_header().unwrap();
                    assert_eq!((header.header_version, sub.dump_level), (6, asked.into()), "{what}");
                    let (memory, mut page) = (after.memory(), [0; 4096]);
                    let mut view = memory.view();
                    for (start, end) in memory.stored().all_runs() {
                        for pfn in start.0..end.0 {
                            view.read(PhysAddr(pfn << 12), &mut page).unwrap();
                            assert!(page == image.page(pfn), "{what}: page frame {pfn:#x}");
                        }
                    }
                    assert_eq!(memory.stored().len(), report.kept_pages, "{what}");
                    assert!(memory.ram().all_runs().eq(before.memory().ram().all_runs()), "{what}");
                }
            }
        }
    }
}

#[test]
fn x86_64_files_of_every_version_are_filtered_like_the_core() {
    let image = b0("6.12");
    let expected = kept(&image, exclusion(31, "", "").classes);
    for version in 0..=6 {
        let mut kdump = image.kdump();
        kdump.version = version;
        // Before version 3 the text is only in memory.
        let (report, file) = dump(kdump.bytes(), &options(31));
        let dump = Dump::read(file);
        same_pages(&image, &dump.kept, &expected, &format!("version {version}"));
        assert_eq!(dump.vmcoreinfo, image.vmcoreinfo.as_bytes(), "version {version}");
        assert_eq!(report.notes.iter().any(|n| n.contains("found in memory")), version < 3, "version {version}");
    }
}

#[test]
fn a_flattened_input_is_the_file_inside_it() {
    let image = b0("6.12");
    let inner = [core(&image), image.kdump().bytes(), dump(core(&image), &options(1)).1];
    let ways = [
        Flatten::default(),
        Flatten { block: 4096, order: BlockOrder::Descending, ..Flatten::default() },
        Flatten { block: 777, order: BlockOrder::Mixed(7), overlap: true, ..Flatten::default() },
    ];
    for file in inner {
        let (plain, expected) = dump(file.clone(), &options(31));
        // Only the headers of the kdump-compressed format are written more than once.
        let once = plain.container == "elf";
        for way in ways.into_iter().filter(|way| !(once && way.overlap)) {
            let (report, bytes) = dump(way.wrap(&file).bytes, &options(31));
            assert!(bytes == expected, "{way:?}");
            assert_eq!(report.container, format!("flattened {}", plain.container));
        }
    }
}

#[test]
fn c15_a_flattened_stream_that_breaks_off_gives_what_it_has_and_says_so() {
    let image = b0("6.12");
    let stream = Flatten { block: 4096, ..Flatten::default() }.wrap(&image.kdump().bytes());
    let whole = dump(stream.bytes.clone(), &options(0)).0.kept_pages;
    let at = |n: usize| stream.blocks[stream.blocks.len() - n].at;
    for cut in [at(9) + 7, at(9) + 16 + 1000, at(9)] {
        let ended = try_dump(Arc::new(stream.bytes[..cut].to_vec()), &options(0));
        let (report, file) = ended.made();
        assert!(!report.complete && report.kept_pages < whole, "cut at {cut}: {} of {whole}", report.kept_pages);
        assert!(report.unreadable_pages + report.absent_pages > 0);
        let dump = Dump::read(file);
        assert!(dump.incomplete());
        dump.pages(|pfn, bytes| assert!(bytes.is_none_or(|b| b == image.page(pfn)), "page frame {pfn:#x}"));
    }
}

#[test]
fn c38_a_level_below_the_inputs_says_what_is_gone_already() {
    let image = b0("6.12");
    let filtered = dump(core(&image), &options(31)).1;
    for asked in [0, 1, 16] {
        let ended = try_dump(Arc::new(filtered.clone()), &options(asked));
        let told = |e: &Event| {
            matches!(e, Event::LevelRaised { asked: a, input, recorded }
                if (*a, *input, *recorded) == (level(asked), level(31), level(31)))
        };
        assert_eq!(ended.events.iter().filter(|e| told(e)).count(), 1, "{:?}", ended.events);
        let (report, file) = ended.made();
        let dump = Dump::read(file);
        assert_eq!((report.level, dump.level), (31, 31), "what the file lacks, not what was asked");
        same_pages(&image, &dump.kept, &kept(&image, exclusion(31, "", "").classes), "as before");
        assert_eq!(report.absent_pages, 256 - report.kept_pages);
        assert_eq!(report.excluded(PageClass::Free), 0, "no page is left out twice");
    }
}

#[test]
fn c38_levels_add_up() {
    let image = b0("6.12");
    let first = dump(core(&image), &options(2)).1;
    let (report, both) = dump(first, &options(24));
    assert_eq!(report.level, 26);
    let direct = dump(core(&image), &options(26)).1;
    assert!(both == direct);
}

#[test]
fn c38_an_input_without_a_page_of_data_is_a_dump_without_one() {
    let image = b0("6.12");
    let mut kdump = image.kdump();
    kdump.stored.clear();
    kdump.level = 31;
    let (report, file) = dump(kdump.bytes(), &options(1));
    let read = Dump::read(file.clone());
    assert!(read.kept.is_empty() && read.ram.len() == 256);
    assert_eq!((report.kept_pages, report.absent_pages, report.ram_pages), (0, 256, 256));
    // And a core without a byte of memory.
    let mut elf = image.elf();
    for segment in &mut elf.segments {
        segment.filesz = 0;
    }
    let (report, file) = dump(elf.bytes(), &options(1));
    assert!(
        Dump::read(file).kept.is_empty() && (report.zero_pages, report.absent_pages) == (0, 256),
        "nobody knows zeros"
    );
    assert!(!report.complete && report.notes.iter().any(|note| note.contains("no page of memory")), "and it is told");
    // What needs the kernel's memory is an error.
    let ended = try_dump(Arc::new(elf.bytes()), &options(31));
    assert!(matches!(ended.result, Err(EngineError::Kernel { .. })), "{:?}", ended.result);
}

#[test]
fn a_part_of_what_was_left_out_can_be_kept_no_more_but_the_rest_is_right() {
    let image = b0("6.12");
    let first = dump(core(&image), &options(16)).1;
    let ask = DumpOptions { exclude: vec![exclusion(31, "", "free,user")], ..options(0) };
    let (report, file) = dump(first, &ask);
    assert!(report.complete);
    let expected = kept(&image, exclusion(31, "", "user").classes);
    same_pages(&image, &Dump::read(file).kept, &expected, "level 16, then all but free and user");
    let direct = dump(core(&image), &DumpOptions { exclude: vec![exclusion(31, "", "user")], ..options(0) });
    check(&image, exclusion(31, "", "user").classes, &direct.0, direct.1, "at once");
}

#[test]
fn the_time_of_the_crash_is_the_kernels_and_then_the_first_dumps() {
    let later = |text: String| text.replace("CRASHTIME=1700000000", "CRASHTIME=1800000001");
    let image = Machine::b0(KernelLayout::get("6.12")).edit_vmcoreinfo(later).build();
    assert_eq!(Dump::read(dump(core(&image), &options(31)).1).seconds, 1_800_000_001);
    // A dump's header says when it was made by whoever made it.
    assert_eq!(Dump::read(dump(image.kdump().bytes(), &options(31)).1).seconds, 1_700_000_000);
    let never = |text: String| text.replace("CRASHTIME=1700000000\n", "");
    let image = Machine::b0(KernelLayout::get("6.12")).edit_vmcoreinfo(never).build();
    assert_eq!(Dump::read(dump(core(&image), &options(31)).1).seconds, 0, "not the time of this run");
}
