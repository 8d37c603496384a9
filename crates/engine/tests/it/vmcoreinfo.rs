//! VMCOREINFO that is not there, not in its place, not alone, or not in order.

use crate::common::{check, core, dump, exclusion, kept, options, same_pages, try_dump};
use crate::reader::Dump;
use coresift_engine::EngineError;
use coresift_kernel::KernelError;
use coresift_synth::elf::Note;
use coresift_synth::{Image, KernelLayout, Machine, PAGE};
use std::sync::Arc;

/// Changes the text.
type Edit = fn(String) -> String;

/// A machine that has a VMCOREINFO in its memory, as every real one, and where.
fn machine(layout: KernelLayout) -> (Image, u64) {
    let image = Machine::b0(layout).build();
    let there = |pfn: &u64| image.page(*pfn)[12..].starts_with(b"VMCOREINFO\0");
    let pfn = image.ram().iter().cloned().flatten().find(there).unwrap();
    (image, pfn)
}

/// Overwrites the VMCOREINFO in memory.
fn forget(image: &mut Image) {
    let there = |pfn: &u64| image.page(*pfn)[12..].starts_with(b"VMCOREINFO\0");
    let pfn = image.ram().iter().cloned().flatten().find(there).unwrap();
    let end = pfn + (24 + image.vmcoreinfo.len() as u64) / PAGE;
    for page in pfn..=end {
        image.write(page * PAGE, &[0x11; PAGE as usize]);
    }
}

/// The same without.
fn without_any(layout: KernelLayout) -> Image {
    let mut image = machine(layout).0;
    forget(&mut image);
    image
}

fn core_without(image: &Image) -> Vec<u8> {
    image.elf().with_image().without_vmcoreinfo().bytes()
}

#[test]
fn c23_without_any_levels_0_and_1_keep_all_pages_and_others_say_what_to_do() {
    for name in ["4.18", "6.12"] {
        let image = without_any(KernelLayout::get(name));
        let all: Vec<u64> = image.ram().iter().cloned().flatten().collect();
        for level in [0, 1] {
            let (report, file) = dump(core_without(&image), &options(level));
            let dump = Dump::read(file);
            assert_eq!(dump.kept, all, "poisoned and offline pages cannot be told");
            crate::common::check_pages(&image, &dump, name);
            assert!(report.complete && report.release.is_none() && report.classes.is_empty());
            assert!(report.notes.iter().any(|note| note.contains("not understood")), "{:?}", report.notes);
            assert!(dump.vmcoreinfo.is_empty());
        }
        for level in [2, 4, 8, 16, 31] {
            let ended = try_dump(Arc::new(core_without(&image)), &options(level));
            assert!(matches!(ended.result, Err(EngineError::Kernel { error: KernelError::NoVmcoreInfo { .. }, .. })));
            let message = ended.message();
            assert!(message.contains("-d 1") && message.contains("VMCOREINFO"), "{message}");
            assert!(!ended.path.exists());
        }
    }
}

#[test]
fn c23_the_one_in_memory_is_found_and_told_and_written_back() {
    for name in ["2.6.32", "4.18", "5.10", "6.12", "7.1"] {
        let (image, pfn) = machine(KernelLayout::get(name));
        for level in [1, 31] {
            let (report, file) = dump(core_without(&image), &options(level));
            let told = report.notes.iter().find(|note| note.contains("found in memory")).unwrap();
            assert!(told.contains(&format!("{:#x}", pfn * PAGE + 24)) && told.contains(image.layout.release), "{told}");
            assert_eq!(Dump::read(file.clone()).vmcoreinfo, image.vmcoreinfo.as_bytes());
            check(&image, exclusion(level, "", "").classes, &report, file.clone(), name);
            // The dump has it now, and is filtered again without a search.
            let (again, filtered) = dump(file, &options(31));
            assert!(!again.notes.iter().any(|note| note.contains("found in memory")), "{:?}", again.notes);
            let dump = Dump::read(filtered);
            assert!(kept(&image, exclusion(31, "", "").classes).iter().all(|pfn| dump.kept.contains(pfn)));
        }
    }
}

#[test]
fn c23_qemu_dump_without_the_vmcoreinfo_device_is_filtered_like_one_with_it() {
    let image = machine(KernelLayout::get("6.12")).0;
    let (with, without) = (image.elf().as_qemu(true).bytes(), image.elf().as_qemu(false).bytes());
    let pages = |bytes| Dump::read(dump(bytes, &options(31)).1).kept;
    assert_eq!(pages(with), kept(&image, exclusion(31, "", "").classes));
    assert_eq!(pages(without), kept(&image, exclusion(31, "", "").classes));
}

#[test]
fn c23_stale_ones_are_listed_and_never_taken() {
    let text = |release: &str, shift: u64| {
        let real = Machine::b0(KernelLayout::get("6.12")).build();
        let moved = |line: &str| match line.split_once('=') {
            Some((key, value)) if key.starts_with("SYMBOL(") => {
                format!("{key}={:x}", u64::from_str_radix(value, 16).unwrap() + shift)
            }
            Some(("OSRELEASE", _)) => format!("OSRELEASE={release}"),
            _ => line.to_owned(),
        };
        real.vmcoreinfo.lines().map(moved).collect::<Vec<_>>().join("\n") + "\n"
    };
    // Before and behind the real one: of another kernel at the same addresses (the capture kernel's), of the same kernel
    // before a reboot moved it, and one that makes no sense at all.
    let cases = [
        (0x1038, text("6.12.0-capture", 0)),
        (0x1038, text("6.12.0-synth", 0x200_0000)),
        (0x117f, text("6.12.0-capture", 0)),
        (0x117f, "OSRELEASE=5.5.5\nSYMBOL(init_top_pgt)=12\n".to_owned()),
    ];
    for (pfn, stale) in cases {
        let image = Machine::new(KernelLayout::get("6.12"))
            .ram(0x1000..0x1080)
            .ram(0x1100..0x1180)
            .pages("@0x1040 30 cache\n@0x1100 30 anon")
            .plant_vmcoreinfo(pfn, &stale)
            .build();
        let (report, file) = dump(core_without(&image), &options(31));
        let dump = Dump::read(file);
        assert_eq!(dump.vmcoreinfo, image.vmcoreinfo.as_bytes());
        same_pages(&image, &dump.kept, &kept(&image, exclusion(31, "", "").classes), &stale[..40]);
        let listed = report.notes.iter().find(|note| note.contains("passed over")).unwrap();
        assert!(listed.contains(&format!("{:#x}", pfn * PAGE + 24)), "{listed}");
    }
}

#[test]
fn c23_a_stale_one_alone_is_no_vmcoreinfo() {
    let mut image = without_any(KernelLayout::get("6.12"));
    let stale = image.vmcoreinfo.replace("OSRELEASE=6.12.0-synth", "OSRELEASE=6.12.0-other");
    image.write(0x1030 * PAGE, &Note::vmcoreinfo(&stale).bytes(coresift_synth::elf::Order::Little));
    let ended = try_dump(Arc::new(core_without(&image)), &options(31));
    assert!(matches!(ended.result, Err(EngineError::Kernel { error: KernelError::NoVmcoreInfo { .. }, .. })));
}

#[test]
fn c24_phys_base_zero_negative_and_absent() {
    let at = |phys_base: i64| {
        let start = 0x100_0000u64.wrapping_add_signed(phys_base) / PAGE;
        let text = format!("@{} 16 cache\n@{} 16 anon", start + 0x40, start + 0x50);
        Machine::new(KernelLayout::get("6.12")).ram(start..start + 0x80).phys_base(phys_base).pages(&text)
    };
    let absent = |text: String| -> String {
        text.lines().filter(|l| !l.starts_with("NUMBER(phys_base)")).map(|l| format!("{l}\n")).collect()
    };
    for phys_base in [0, -4_194_304, 0x60_0000] {
        let image = at(phys_base).build();
        for core in [core(&image), image.elf().as_qemu(true).bytes()] {
            let (report, file) = dump(core, &options(31));
            let dump = Dump::read(file);
            assert_eq!(dump.phys_base, phys_base.cast_unsigned());
            same_pages(&image, &dump.kept, &kept(&image, exclusion(31, "", "").classes), "given");
            assert!(!report.notes.iter().any(|note| note.contains("phys_base")), "{:?}", report.notes);
        }
        // Absent, but the program header of the image tells it.
        let image = at(phys_base).edit_vmcoreinfo(absent).build();
        let (report, file) = dump(core(&image), &options(31));
        let read = Dump::read(file);
        assert_eq!(read.phys_base, phys_base.cast_unsigned());
        same_pages(&image, &read.kept, &kept(&image, exclusion(31, "", "").classes), "by program header");
        assert!(report.notes.iter().any(|note| note.contains("program header of the kernel image")));
        // Absent, and nothing tells it: only 0 is tried, and believed where a utsname is found by it.
        let ended = try_dump(Arc::new(image.elf().as_qemu(true).bytes()), &options(31));
        if phys_base == 0 {
            assert!(ended.made().0.notes.iter().any(|note| note.contains("nothing better")));
        } else {
            assert!(matches!(ended.result, Err(EngineError::Kernel { .. })), "{:?}", ended.result);
        }
    }
}

#[test]
fn c24_a_wrong_phys_base_is_found_out() {
    let wrong = |text: String| text.replace("NUMBER(phys_base)=0\n", "NUMBER(phys_base)=2097152\n");
    let image = Machine::b0(KernelLayout::get("6.12")).edit_vmcoreinfo(wrong).build();
    let (report, file) = dump(core(&image), &options(31));
    same_pages(&image, &Dump::read(file).kept, &kept(&image, exclusion(31, "", "").classes), "by the program header");
    let told = report.notes.iter().find(|note| note.contains("leads nowhere"));
    assert!(told.is_some_and(|note| note.contains("0x200000")), "{:?}", report.notes);
}

#[test]
fn c30_odd_texts_are_read_by_exact_key() {
    let odd: [(&str, Edit); 6] = [
        ("CRLF", |t| t.replace('\n', "\r\n")),
        ("no final newline", |t| t.trim_end().to_owned()),
        ("later duplicates", |t| t + "SIZE(page)=56\nNUMBER(PG_lru)=1\n"),
        ("keys that begin like others", |t| {
            format!("SIZE(page=1\nSIZE(page)x=2\nNUMBER(PG_lru)2=9\nXSIZE(page)=3\n{t}")
                .replace("OSRELEASE", "OSRELEASE")
        }),
        ("hexadecimal numbers", |t| {
            let head = t.lines().find_map(|l| l.strip_prefix("NUMBER(PG_head_mask)=")).unwrap().to_owned();
            let hex = format!("NUMBER(PG_head_mask)=0x{:x}", head.parse::<u64>().unwrap());
            t.replace(&format!("NUMBER(PG_head_mask)={head}"), &hex)
        }),
        ("lines that are none", |t| t.replacen('\n', "\n\n=\nnonsense\n\u{fffd}\n", 1)),
    ];
    let pages = kept(&Machine::b0(KernelLayout::get("6.1")).build(), exclusion(31, "", "").classes);
    for (what, edit) in odd {
        let image = Machine::b0(KernelLayout::get("6.1")).edit_vmcoreinfo(edit).build();
        let (report, file) = dump(core(&image), &options(31));
        let dump = Dump::read(file);
        assert_eq!(dump.kept, pages, "{what}");
        assert_eq!(dump.vmcoreinfo, image.vmcoreinfo.as_bytes(), "{what}: handed on as it is");
        let duplicates = report.notes.iter().any(|n| n.contains("SIZE(page), NUMBER(PG_lru)"));
        assert_eq!(duplicates, what == "later duplicates", "{what}: {:?}", report.notes);
    }
}

#[test]
fn c30_torn_texts_are_an_error_that_names_what_is_missing_or_a_dump_that_keeps_more() {
    for name in ["4.18", "6.12"] {
        let mut image = Machine::b0(KernelLayout::get(name)).pages("@0x1030 8 slab mapping-odd").build();
        forget(&mut image);
        // Behind the first digit of each value, and behind each line.
        let text = image.vmcoreinfo.clone();
        let digits = text.match_indices('=').map(|(at, _)| at + 2);
        for len in digits.chain(text.match_indices('\n').map(|(at, _)| at + 1)) {
            let mut elf = image.elf().with_image();
            let note = elf.notes[0].iter_mut().find(|n| n.name == "VMCOREINFO").unwrap();
            note.desc.truncate(len);
            let source = elf.bytes();
            let what = format!("{name}, up to {:?}", image.vmcoreinfo[..len].lines().last());
            for level in [2, 31] {
                let ended = try_dump(Arc::new(source.clone()), &options(level));
                if let Err(e) = &ended.result {
                    assert!(matches!(e, EngineError::Kernel { .. }) && e.to_string().len() > 20, "{what}: {e}");
                    continue;
                }
                // What is not known is kept.
                let dump = Dump::read(ended.bytes());
                let expected = kept(&image, exclusion(level, "", "").classes);
                let lost = expected.iter().find(|pfn| !dump.kept.contains(pfn));
                assert!(lost.is_none(), "{what}, level {level}: lost {:?}", lost.map(|pfn| image.truth.class(*pfn)));
                crate::common::check_pages(&image, &dump, &what);
            }
            // Levels 0 and 1 need nothing of it.
            if len % 16 == 0 {
                assert!(try_dump(Arc::new(source), &options(1)).result.unwrap().complete, "{what}");
            }
        }
    }
}

#[test]
fn c30_a_value_of_the_wrong_kind_names_its_key() {
    let cases: [(&str, Edit); 4] = [
        ("SIZE(page)", |t| t.replace("SIZE(page)=64", "SIZE(page)=-1")),
        ("NUMBER(PG_lru)", |t| t.replace("NUMBER(PG_lru)=", "NUMBER(PG_lru)=1234567")),
        ("SYMBOL(init_uts_ns)", |t| t.replace("SYMBOL(init_uts_ns)=", "SYMBOL(init_uts_ns)=zz")),
        ("PAGESIZE", |t| t.replace("PAGESIZE=4096", "PAGESIZE=65536")),
    ];
    for (key, edit) in cases {
        let image = Machine::b0(KernelLayout::get("6.12")).edit_vmcoreinfo(edit).build();
        let message = try_dump(Arc::new(core(&image)), &options(31)).message();
        assert!(message.contains(key), "{key}: {message}");
    }
}
