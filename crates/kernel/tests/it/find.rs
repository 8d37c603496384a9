//! Finding the kernel: its VMCOREINFO, its page tables, its image and what else must stay.

use crate::machine::{Opened, open, pfns};
use coresift_format::{Bytes, Input, Window};
use coresift_kernel::protected::{MEM_MAP, Protected, find};
use coresift_kernel::{FoundInfo, Kernel, KernelError, NoteCpus, find_in_memory};
use coresift_synth::elf::{Note, Order};
use coresift_synth::{Image, KernelLayout, LAYOUTS, Leaf, Machine, PAGE};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

fn input(image: &Image, notes: bool) -> Input {
    let elf = image.elf().with_image();
    let bytes = if notes { elf.bytes() } else { elf.without_vmcoreinfo().bytes() };
    Input::from_bytes(Arc::new(bytes)).unwrap()
}

#[test]
fn every_kernel_is_found_under_every_way_of_paging() {
    for layout in LAYOUTS {
        let base = Machine::b0(layout).cpus(3);
        let mut machines = vec![base.clone(), base.clone().kaslr(0x1a80_0000), base.clone().linear_leaf(Leaf::K4)];
        if layout.since(4, 17, 0) {
            machines.push(base.clone().five_levels());
        }
        if layout.since(5, 2, 0) {
            machines.push(base.clone().sme_bit(47));
            machines.push(base.clone().sme_bit(51).five_levels());
        }
        for machine in machines {
            let opened = Opened::new(machine.build());
            let kernel = &opened.kernel;
            assert_eq!(kernel.release, layout.release);
            assert_eq!(kernel.phys_base, opened.image.phys_base.cast_unsigned(), "{}", layout.name);
            let version = kernel.version.unwrap();
            assert_eq!((version.0, version.1), (layout.version.0.into(), layout.version.1.into()));
            let pages = opened.image.image.clone();
            let image = find(kernel, opened.memory()).0;
            let image = image.iter().find(|kind| kind.what == "kernel image").unwrap();
            assert_eq!(pfns(&image.pages), pages.collect::<Vec<_>>(), "{}", layout.name);
        }
    }
}

#[test]
fn the_note_in_the_dump_comes_before_any_in_memory() {
    let image = Machine::b0(KernelLayout::get("6.12")).plant_vmcoreinfo(0x1030, "OSRELEASE=1.2.3\n").build();
    let found = FoundInfo::of(&input(&image, true)).unwrap();
    assert_eq!((found.text, found.address, found.notes.len()), (image.vmcoreinfo.clone().into_bytes(), None, 0));
}

#[test]
fn texts_in_memory_are_found_as_notes_and_as_text_once_each_and_in_order() {
    let text = "OSRELEASE=6.12.0-other\nPAGESIZE=4096\n";
    let machine = Machine::b0(KernelLayout::get("6.12"))
        .plant_vmcoreinfo(0x1030, text)
        .plant(0x1031, text)
        .plant(0x1032, "OSRELEASE=5.4.0\n")
        // Not at the start of a page, or no text behind the name: no candidates.
        .plant(0x1033, [b"    ", &Note::vmcoreinfo(text).bytes(Order::Little)[..]].concat())
        .plant(0x1034, Note::vmcoreinfo("PAGESIZE=4096\n").bytes(Order::Little));
    let image = machine.build();
    let found = find_in_memory(input(&image, false).memory());
    let texts: Vec<(u64, String)> = found
        .into_iter()
        .map(|c| (c.address.0, String::from_utf8(c.text).unwrap()))
        .filter(|c| c.1 != image.vmcoreinfo)
        .collect();
    assert_eq!(texts, [(0x1030 * PAGE + 24, text.to_owned()), (0x1032 * PAGE, "OSRELEASE=5.4.0\n".to_owned())]);
}

#[test]
fn a_memory_full_of_texts_is_not_searched_for_ever() {
    let mut machine = Machine::b0(KernelLayout::get("6.12"));
    for pfn in 0x1050..0x1070 {
        machine = machine.plant(pfn, format!("OSRELEASE={pfn}\n"));
    }
    // The hugetlb pages of B0 are there, so that the text is all that is planted.
    let image = machine.build();
    assert_eq!(find_in_memory(input(&image, false).memory()).len(), 16);
}

#[test]
fn page_tables_are_all_protected_and_nothing_else_is() {
    for (layout, five) in [("4.18", false), ("6.12", false), ("7.1", true)] {
        let machine = Machine::b0(KernelLayout::get(layout)).linear_leaf(Leaf::K4);
        let opened = Opened::new(if five { machine.five_levels() } else { machine }.build());
        let (found, _) = find(&opened.kernel, opened.memory());
        let tables = found.iter().find(|kind| kind.what == "page tables").unwrap();
        let image = &opened.image;
        let levels = if five { 5 } else { 4 };
        let root = image.symbols["init_top_pgt"] - image.image_virt + image.image.start * PAGE;
        let mut expected = BTreeSet::from([root / PAGE]);
        let mut todo = vec![(root, levels)];
        while let Some((table, level)) = todo.pop() {
            for entry in image.read(table, PAGE).as_chunks::<8>().0 {
                let entry = u64::from_le_bytes(*entry);
                let next = entry & 0x000f_ffff_ffff_f000;
                if level > 1 && entry & 0x81 == 1 && expected.insert(next / PAGE) {
                    todo.push((next, level - 1));
                }
            }
        }
        assert_eq!(pfns(&tables.pages), expected.into_iter().collect::<Vec<_>>(), "{layout}");
    }
}

#[test]
fn the_memory_map_is_protected_as_the_pages_its_struct_pages_are_in() {
    for name in ["2.6.32", "6.12"] {
        let opened = Opened::new(Machine::b0(KernelLayout::get(name)).build());
        let size = opened.image.layout.page.size;
        let (found, _) = find(&opened.kernel, opened.memory());
        let memmap = found.iter().find(|kind| kind.what == MEM_MAP).unwrap();
        let expected: BTreeSet<u64> = opened
            .kernel
            .memmap
            .ranges()
            .iter()
            .flat_map(|r| (0..r.end.0 - r.start.0).map(|n| r.map.0 + n * size))
            .flat_map(|at| [at, at + size - 1].map(|virt| crate::machine::translate(&opened.image, virt) / PAGE))
            .collect();
        assert_eq!(pfns(&memmap.pages), expected.into_iter().collect::<Vec<_>>(), "{name}");
        assert!(pfns(&memmap.pages).iter().all(|pfn| opened.image.memmap_frames.contains(pfn)), "{name}");
    }
}

#[test]
fn a_utsname_that_is_none_refuses_the_translation() {
    let mut image = Machine::b0(KernelLayout::get("6.12")).build();
    let at = image.symbols["init_uts_ns"] - image.image_virt + image.image.start * PAGE;
    image.write(at, b"Minix");
    let error = open(&image).1.err().unwrap();
    assert!(matches!(error, KernelError::Implausible { .. }) && error.to_string().contains("Linux"), "{error}");
}

#[test]
fn another_architecture_is_named() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let mut bytes = image.elf().bytes();
    bytes[18..20].copy_from_slice(&183u16.to_le_bytes());
    let input = Input::from_bytes(Arc::new(bytes)).unwrap();
    let error = Kernel::open(&input, image.vmcoreinfo.as_bytes()).err().unwrap();
    assert!(matches!(&error, KernelError::Architecture { machine } if machine == "aarch64"), "{error}");
}

#[test]
fn another_architecture_is_not_searched_for_a_vmcoreinfo() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let mut bytes = image.elf().with_image().without_vmcoreinfo().bytes();
    bytes[18..20].copy_from_slice(&183u16.to_le_bytes());
    let error = FoundInfo::of(&Input::from_bytes(Arc::new(bytes)).unwrap()).err().unwrap();
    assert!(matches!(&error, KernelError::Architecture { machine } if machine == "aarch64"), "{error}");
}

/// A /proc/vmcore whose memory must not be read blindly.
struct Live(Vec<u8>);

impl Bytes for Live {
    fn name(&self) -> &str {
        "/proc/vmcore"
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        assert!(offset < PAGE, "memory is read");
        Bytes::read_at(&self.0, offset, buf)
    }

    fn window(&self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn is_memory(&self) -> bool {
        true
    }
}

#[test]
fn the_memory_of_a_machine_is_not_searched() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let bytes = image.elf().with_image().without_vmcoreinfo().bytes();
    assert!(FoundInfo::of(&Input::from_bytes(Arc::new(bytes.clone())).unwrap()).is_ok(), "a file is");
    let error = FoundInfo::of(&Input::from_bytes(Arc::new(Live(bytes))).unwrap()).err().unwrap();
    assert!(matches!(error, KernelError::NoVmcoreInfo { .. }));
    assert!(error.to_string().contains("not searched") && error.to_string().contains("poisoned"), "{error}");
}

#[test]
fn a_kdump_file_that_does_not_name_its_machine_is_tried_as_x86_64() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let mut bytes = image.kdump().bytes();
    // The six names of utsname, behind signature and version.
    bytes[12..12 + 6 * 65].fill(0);
    let kernel = |bytes: &[u8]| {
        let input = Input::from_bytes(Arc::new(bytes.to_vec())).unwrap();
        Kernel::open(&input, image.vmcoreinfo.as_bytes())
    };
    assert!(kernel(&bytes).unwrap().release.starts_with("6.12"));
    bytes[12 + 4 * 65..][..3].copy_from_slice(b"vax");
    assert!(matches!(kernel(&bytes), Err(KernelError::Architecture { .. })));
}

#[test]
fn duplicates_and_unknown_releases_are_told() {
    let image = Machine::b0(KernelLayout { release: "9.9.9-synth", ..KernelLayout::get("7.1") })
        .edit_vmcoreinfo(|text| text + "PAGESIZE=8192\n")
        .build();
    let notes = Opened::new(image).kernel.notes;
    assert!(notes.iter().any(|note| note.contains("PAGESIZE")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("9.9.9-synth")), "{notes:?}");
}

#[test]
fn per_cpu_areas_larger_than_the_memory_of_the_dump_are_none() {
    let whole = Machine::b0(KernelLayout::get("6.12")).cpus(3).image_pages(40).symbols().build();
    let (input, kernel) = open(&whole);
    let (found, notes) = find(&kernel.unwrap(), input.memory());
    let pages =
        |found: &[Protected]| found.iter().find(|kind| kind.what == "per-cpu areas").map(|kind| kind.pages.len());
    assert_eq!(pages(&found), Some(3), "{notes:?}");

    // Units of 64 MiB in a machine of less.
    let mut image = whole;
    let physical = |image: &Image, name: &str| image.symbols[name] - image.image_virt + image.image.start * PAGE;
    let nr_pages = physical(&image, "pcpu_chunk_of_boot") + 88;
    image.write(nr_pages, &0x4000u32.to_le_bytes());
    let (input, kernel) = open(&image);
    let (found, notes) = find(&kernel.unwrap(), input.memory());
    assert_eq!(pages(&found), None);
    assert!(notes.iter().any(|n| n.contains("per-cpu") && n.contains("more than the memory")), "{notes:?}");
}

/// What /proc/vmcore shows of eight CPUs, of which three never stopped: five notes, and nothing saved by those three.
#[test]
fn c25_notes_of_five_of_eight_cpus_are_told_by_what_the_cpus_saved() {
    let mut image = Machine::b0(KernelLayout::get("6.12")).cpus(8).image_pages(40).symbols().build();
    let stopped = [0u32, 2, 3, 5, 7];
    let phys = |image: &Image, name: &str| image.symbols[name] - image.image_virt + image.image.start * PAGE;
    let word = |image: &Image, at: u64| u64::from_le_bytes(image.read(at, 8).try_into().unwrap());
    let notes = word(&image, phys(&image, "crash_notes"));
    for cpu in (0..8).filter(|cpu| !stopped.contains(cpu)) {
        let offset = word(&image, phys(&image, "__per_cpu_offset") + u64::from(cpu) * 8);
        let at = notes.wrapping_add(offset) - image.page_offset;
        image.write(at, &[0; 356]);
    }
    let mut core = image.elf();
    // The one of cpu 5 comes last: their order is no help either.
    let order = [0, 2, 3, 7, 5];
    let all = std::mem::take(&mut core.notes[0]);
    core.notes[0] = order.map(|cpu| all[cpu as usize].clone()).into_iter().chain(all[8..].iter().cloned()).collect();
    let input = Input::from_bytes(Arc::new(core.bytes())).unwrap();
    let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
    let found = NoteCpus::find(&kernel, &input).unwrap();
    assert_eq!(found, NoteCpus { possible: 8, notes: order.map(Some).to_vec(), unsaved: 0 });
}
