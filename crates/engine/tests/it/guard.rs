//! What must be in every dump, whatever its struct page says.

use crate::common::{check_pages, core, dump, exclusion, kept, mark, options, same_pages, struct_page};
use crate::reader::Dump;
use coresift_engine::{DumpOptions, Format, Report};
use coresift_format::Input;
use coresift_kernel::Kernel;
use coresift_synth::{Image, KernelLayout, Leaf, Machine, Model, PAGE};
use std::sync::Arc;

/// The pages of the kind `what` that the guard saved.
fn saved(report: &Report, what: &str) -> u64 {
    report.guard.iter().find(|row| row.what == what).unwrap_or_else(|| panic!("{what}: {:?}", report.guard)).saved
}

/// Gives a page the struct page of a page of the file cache, or of an anonymous one.
fn disguise(image: &mut Image, pfn: u64, anonymous: bool) {
    let object = image.symbols["init_task"];
    let lru = 1 << image.layout.flags.lru;
    mark(image, pfn, lru, Some(object | u64::from(anonymous)));
}

#[test]
fn c07_pages_of_the_kernel_image_are_kept_whatever_they_look_like() {
    for name in ["2.6.32", "4.18", "5.10", "6.12", "7.1"] {
        for anonymous in [false, true] {
            let mut image = Machine::b0(KernelLayout::get(name)).build();
            let pages = image.image.clone();
            for pfn in pages.clone() {
                disguise(&mut image, pfn, anonymous);
            }
            let (report, file) = dump(core(&image), &options(31));
            assert_eq!(saved(&report, "kernel image"), pages.end - pages.start, "{name}");
            let dump = Dump::read(file);
            same_pages(&image, &dump.kept, &kept(&image, exclusion(31, "", "").classes), name);
            check_pages(&image, &dump, name);
            let row = report.classes.iter().find(|row| row.name == if anonymous { "user" } else { "cache" }).unwrap();
            assert_eq!(
                row.pages - row.excluded_pages,
                pages.end - pages.start,
                "{name}: counted as what they look like"
            );
        }
    }
}

#[test]
fn the_kernel_image_is_kept_too_when_an_elf_core_has_it_in_several_headers() {
    for name in ["5.10", "6.12"] {
        let mut image = Machine::b0(KernelLayout::get(name)).build();
        let pages = image.image.clone();
        for pfn in pages.clone() {
            disguise(&mut image, pfn, false);
        }
        let poisoned = pages.start + 3;
        let hwpoison = 1 << image.layout.flags.hwpoison;
        mark(&mut image, poisoned, hwpoison, None);
        let direct = Dump::read(dump(core(&image), &options(31)).1);
        assert!(!direct.kept.contains(&poisoned) && direct.kept.contains(&(poisoned + 1)));
        let elf = dump(core(&image), &DumpOptions { format: Format::Elf, ..options(31) }).1;
        let again = Dump::read(dump(elf, &options(31)).1);
        same_pages(&image, &again.kept, &direct.kept, name);
    }
}

#[test]
fn page_tables_are_kept_whatever_they_look_like() {
    for (name, levels) in [("6.12", 4), ("6.12", 5), ("4.18", 4)] {
        let machine = Machine::b0(KernelLayout::get(name)).linear_leaf(Leaf::K4);
        let mut image = if levels == 5 { machine.five_levels().build() } else { machine.build() };
        let tables = page_tables(&image);
        assert!(tables.len() > levels, "{tables:x?}");
        for pfn in &tables {
            disguise(&mut image, *pfn, pfn % 2 == 0);
        }
        let (report, file) = dump(core(&image), &options(31));
        // The root is in the kernel image, which is counted first.
        assert_eq!(
            saved(&report, "page tables") + saved(&report, "kernel image"),
            tables.len() as u64,
            "{name} {levels}"
        );
        same_pages(&image, &Dump::read(file).kept, &kept(&image, exclusion(31, "", "").classes), name);
    }
}

/// The page frames of all page tables, walked here.
fn page_tables(image: &Image) -> Vec<u64> {
    let levels = if image.page_offset < 0xffff_0000_0000_0000 { 5 } else { 4 };
    let root = image.symbols["init_top_pgt"] - image.image_virt + image.image.start * PAGE;
    let mut tables = vec![root / PAGE];
    let mut todo = vec![(root, levels)];
    while let Some((table, level)) = todo.pop() {
        for entry in image.read(table, PAGE).as_chunks::<8>().0 {
            let entry = u64::from_le_bytes(*entry);
            let next = entry & 0x000f_ffff_ffff_f000;
            if level > 1 && entry & 1 == 1 && entry & 0x80 == 0 && !tables.contains(&(next / PAGE)) {
                tables.push(next / PAGE);
                todo.push((next, level - 1));
            }
        }
    }
    tables.sort_unstable();
    tables
}

#[test]
fn the_memory_map_is_kept_whatever_it_looks_like() {
    for model in [Model::SparseVmemmap, Model::SparseExtreme, Model::Flat] {
        let mut image = Machine::b0_with(KernelLayout::get("6.12"), model).build();
        let maps: Vec<u64> = [0x1000, 0x1040, 0x1100, 0x1140].map(|pfn| struct_page(&image, pfn) / PAGE).to_vec();
        for pfn in &maps {
            disguise(&mut image, *pfn, true);
        }
        let (report, file) = dump(core(&image), &options(31));
        let dump = Dump::read(file);
        assert_eq!(saved(&report, "mem_map"), 4, "{model:?}");
        same_pages(&image, &dump.kept, &kept(&image, exclusion(31, "", "").classes), &format!("{model:?}"));
    }
}

#[test]
fn poisoned_pages_are_left_out_wherever_they_are() {
    let layout = KernelLayout::get("6.12");
    let mut image = Machine::b0(layout).build();
    let tables = page_tables(&image);
    // A page of the image that nothing needs, and a page of the memory map.
    let poisoned = [image.image.end - 1, struct_page(&image, 0x1100) / PAGE];
    for pfn in poisoned {
        mark(&mut image, pfn, 1 << layout.flags.hwpoison, None);
    }
    for level in [0, 31] {
        let (report, file) = dump(core(&image), &options(level));
        let dump = Dump::read(file);
        assert!(poisoned.iter().all(|pfn| !dump.kept.contains(pfn)), "level {level}");
        assert!(tables.iter().all(|pfn| dump.kept.contains(pfn)));
        assert!(report.guard.iter().all(|row| row.saved == 0), "{:?}", report.guard);
    }
}

#[test]
fn memory_behind_the_image_is_guarded_only_where_nothing_tells_the_images_end() {
    // The last mapping of the image is of 2 MiB, in which all of B0's cache lies.
    for (name, header, told) in
        [("5.10", true, true), ("5.10", false, false), ("6.12", true, true), ("6.12", false, true)]
    {
        let image = Machine::b0(KernelLayout::get(name)).build();
        let elf = if header { image.elf().with_image() } else { image.elf() };
        let (report, file) = dump(elf.bytes(), &options(31));
        let dump = Dump::read(file);
        let cache = (0x1128..0x1146).filter(|pfn| dump.kept.contains(pfn)).count();
        assert_eq!(cache, if told { 0 } else { 30 }, "{name} header {header}");
        assert_eq!(saved(&report, "kernel image") == 0, told, "{name} header {header}");
        let free = (0x1100..0x1128).filter(|pfn| dump.kept.contains(pfn)).count();
        assert_eq!(free, 0, "{name}: what is free is no part of the image");
        check_pages(&image, &dump, name);
    }
}

#[test]
fn a_header_that_claims_too_much_for_the_image_is_not_believed() {
    let image = Machine::b0(KernelLayout::get("5.10")).build();
    let mut elf = image.elf().with_image();
    // One that does not even hold _stext.
    elf.segments[0].vaddr += 0x20_0000;
    let input = Input::from_bytes(Arc::new(elf.bytes())).unwrap();
    let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
    assert!(kernel.image.is_some());
    let (report, file) = dump(elf.bytes(), &options(31));
    assert!(saved(&report, "kernel image") > 0, "the whole area is guarded");
    assert!(Dump::read(file).kept.contains(&image.image.start));
}

/// The page frames of the CPUs' units of per-cpu memory.
fn per_cpu_pages(image: &Image) -> Vec<u64> {
    let word = |virt: u64| {
        let at = virt - image.image_virt + image.image.start * PAGE;
        u64::from_le_bytes(image.read(at, 8).try_into().unwrap())
    };
    let (start, offsets) = (image.symbols["__per_cpu_start"], image.symbols["__per_cpu_offset"]);
    let units = (0..u64::from(image.cpus)).map(|cpu| word(offsets + cpu * 8).wrapping_add(start));
    units.map(|unit| (unit - image.page_offset) / PAGE).collect()
}

#[test]
fn per_cpu_areas_are_kept_whatever_they_look_like() {
    for name in ["6.1", "6.6", "6.12", "6.16", "7.1"] {
        for cpus in [1, 5] {
            let mut image = Machine::b0(KernelLayout::get(name)).cpus(cpus).image_pages(40).symbols().build();
            let units = per_cpu_pages(&image);
            assert_eq!(units.len(), cpus as usize);
            for pfn in &units {
                disguise(&mut image, *pfn, pfn % 2 == 0);
            }
            let (report, file) = dump(core(&image), &options(31));
            assert_eq!(saved(&report, "per-cpu areas"), cpus.into(), "{name}: {:?}", report.notes);
            let dump = Dump::read(file);
            same_pages(&image, &dump.kept, &kept(&image, exclusion(31, "", "").classes), name);
            assert!(!report.notes.iter().any(|note| note.contains("not protected")), "{:?}", report.notes);
        }
    }
    // Without the symbols that lead there the report says so.
    let (report, _) = dump(core(&Machine::b0(KernelLayout::get("6.12")).build()), &options(31));
    assert!(report.notes.iter().any(|note| note.contains("per-cpu areas are not protected")), "{:?}", report.notes);
}

#[test]
fn what_the_kernel_gave_back_of_its_image_is_no_part_of_it() {
    for name in ["6.1", "6.12", "7.1"] {
        let mut image = Machine::b0(KernelLayout::get(name)).image_pages(40).symbols().build();
        let pages = image.image.clone();
        for pfn in pages.clone() {
            disguise(&mut image, pfn, false);
        }
        let (report, file) = dump(core(&image), &options(31));
        let dump = Dump::read(file);
        let in_image: Vec<u64> = pages.clone().filter(|pfn| dump.kept.contains(pfn)).collect();
        assert_eq!(in_image, (pages.start..pages.end - 4).collect::<Vec<_>>(), "{name}: all but init and brk");
        assert_eq!(saved(&report, "kernel image"), 36, "{name}");
    }
}
