//! Where the struct pages are, under every memory model.

use crate::machine::{Opened, open, translate};
use coresift_format::{Input, Pfn};
use coresift_kernel::{Kernel, KernelError, MemoryModel, VirtAddr};
use coresift_synth::elf::Segment;
use coresift_synth::{KernelLayout, LAYOUTS, Machine, Model, PAGE};
use std::sync::Arc;

#[test]
fn each_model_is_told_and_leads_from_page_frames_to_struct_pages_and_back() {
    for layout in LAYOUTS {
        for (model, told) in [
            (Model::SparseVmemmap, MemoryModel::SparseExtreme),
            (Model::SparseExtreme, MemoryModel::SparseExtreme),
            (Model::Sparse, MemoryModel::Sparse),
            (Model::Flat, MemoryModel::Flat),
        ] {
            let machine = Machine::b0_with(layout, model).ram(0x8010..0x8030).pages("@0x8010 16 cache");
            let opened = Opened::new(machine.build());
            let map = &opened.kernel.memmap;
            assert_eq!((map.model, map.struct_size), (told, layout.page.size), "{} {model:?}", layout.name);
            for pfn in opened.image.ram().iter().cloned().flatten() {
                let at = map.page(Pfn(pfn)).unwrap();
                assert_eq!(map.pfn_of(at), Some(Pfn(pfn)));
                for inside in [1, 8, layout.page.size - 1] {
                    assert_eq!(map.pfn_of(at.plus(inside)), None, "only a struct page's beginning is one");
                }
            }
            // The right ones: a page of the cache says so at that place.
            let at = translate(&opened.image, map.page(Pfn(0x8011)).unwrap().0);
            let flags = u64::from_le_bytes(opened.image.read(at, 8).try_into().unwrap());
            assert!(flags >> layout.flags.lru & 1 == 1, "{} {model:?}", layout.name);
            assert!(map.pfn_of(VirtAddr(0xffff_8000_0000_0000)).is_none());
        }
    }
}

#[test]
fn neighbouring_sections_of_one_array_are_one_range_and_others_are_not() {
    let machine = |model| Machine::new(KernelLayout::get("6.12")).model(model).ram(0x1000..0x3000).ram(0x6000..0x9000);
    for (model, ranges) in [(Model::SparseVmemmap, 1), (Model::SparseExtreme, 2), (Model::Flat, 1)] {
        let opened = Opened::new(machine(model).build());
        assert_eq!(opened.kernel.memmap.ranges().len(), ranges, "{model:?}");
        let parts: u64 = opened.kernel.memmap.covering(Pfn(0x7ff0), Pfn(0x8010)).map(|r| r.end.0 - r.start.0).sum();
        assert_eq!(parts, 0x20, "{model:?}");
        assert_eq!(opened.kernel.memmap.covering(Pfn(1 << 20), Pfn(1 << 21)).count(), 0);
    }
}

#[test]
fn the_address_of_the_pointer_to_the_roots_is_understood_too() {
    // VMCOREINFO has the pointer's value; with symbols of a vmlinux it would be the pointer's own address.
    let mut image = Machine::b0(KernelLayout::get("6.12")).build();
    let roots = image.symbols["mem_section"];
    let pointer = image.symbols["vmap_area_list"];
    let at = translate(&image, pointer);
    image.write(at, &roots.to_le_bytes());
    image.vmcoreinfo = image
        .vmcoreinfo
        .replace(&format!("SYMBOL(mem_section)={roots:x}"), &format!("SYMBOL(mem_section)={pointer:x}"));
    let opened = Opened::new(image);
    assert_eq!(opened.kernel.memmap.model, MemoryModel::SparseExtreme);
    assert!(opened.kernel.memmap.page(Pfn(0x1100)).is_some());
}

#[test]
fn c11_a_removed_section_has_no_struct_pages() {
    for model in [Model::SparseVmemmap, Model::SparseExtreme, Model::Sparse] {
        let image = Machine::b0_with(KernelLayout::get("6.12"), model).removed_section(9).build();
        // Taken out after the list of RAM was made.
        let mut elf = image.elf().with_image();
        elf.segments.push(Segment { source: Some(0), ..Segment::new(9 << 27, image.page_offset + (9 << 27), 4096) });
        let input = Input::from_bytes(Arc::new(elf.bytes())).unwrap();
        assert!(input.memory().ram().contains(Pfn(9 << 15)));
        let map = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap().memmap;
        assert_eq!(map.page(Pfn(9 << 15)), None, "{model:?}");
        assert!(map.page(Pfn(0x1100)).is_some());
    }
}

#[test]
fn flags_in_the_low_bits_of_a_section_are_no_address() {
    for flags in [0, 1 << 4, 1 << 5, 3 << 4] {
        let opened = Opened::new(Machine::b0(KernelLayout::get("6.12")).section_flags(flags).build());
        assert_eq!(opened.kernel.memmap.page(Pfn(0)), Some(VirtAddr(0xffff_ea00_0000_0000)), "{flags:#x}");
    }
}

#[test]
fn numbers_that_cannot_be_are_errors_and_no_memory_map() {
    let cases = [
        ("SIZE(page)=64", "SIZE(page)=8"),
        ("SIZE(page)=64", "SIZE(page)=5000"),
        ("SIZE(mem_section)=16", "SIZE(mem_section)=4"),
        ("SIZE(mem_section)=16", "SIZE(mem_section)=8192"),
        ("SECTION_SIZE_BITS)=27", "SECTION_SIZE_BITS)=12"),
        ("SECTION_SIZE_BITS)=27", "SECTION_SIZE_BITS)=64"),
        ("OFFSET(mem_section.section_mem_map)=0", "OFFSET(mem_section.section_mem_map)=9"),
        ("SYMBOL(mem_section)", "SYMBOL(mem_sectionx)"),
    ];
    for (line, odd) in cases {
        let mut image = Machine::b0(KernelLayout::get("6.12")).build();
        assert!(image.vmcoreinfo.contains(line));
        image.vmcoreinfo = image.vmcoreinfo.replace(line, odd);
        let error = open(&image).1.unwrap_err();
        assert!(matches!(error, KernelError::MemoryModel { .. }), "{odd}: {error}");
    }
    // Roots that are no kernel addresses.
    let mut image = Machine::b0(KernelLayout::get("6.12")).build();
    let roots = translate(&image, image.symbols["mem_section"]);
    image.write(roots, &0x1234_5678u64.to_le_bytes());
    let error = open(&image).1.unwrap_err().to_string();
    assert!(error.contains("could not be validated") && error.contains("0x12345678"), "{error}");
    // All three readings fail, and each says why in a few words.
    let mut image = Machine::b0(KernelLayout::get("6.12")).build();
    let nowhere = "SYMBOL(mem_section)=ffffc90000000000";
    image.vmcoreinfo =
        image.vmcoreinfo.replace(&format!("SYMBOL(mem_section)={:x}", image.symbols["mem_section"]), nowhere);
    let error = open(&image).1.unwrap_err().to_string();
    assert!(error.contains("not mapped") && error.len() < 300, "{error}");
}

#[test]
fn ram_that_only_a_header_claims_makes_no_memory_map() {
    for model in [Model::Flat, Model::SparseVmemmap, Model::SparseExtreme] {
        let image = Machine::b0_with(KernelLayout::get("6.12"), model).build();
        let honest = open(&image).1.unwrap();
        for bits in [40, 52, 63] {
            let mut elf = image.elf().with_image();
            let last = elf.segments.last_mut().unwrap();
            last.memsz = 1 << bits;
            let input = Input::from_bytes(Arc::new(elf.bytes())).unwrap();
            assert!(input.memory().ram().len() >= 1 << (bits - 12));
            let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
            let pages = |kernel: &Kernel| kernel.memmap.ranges().iter().map(|r| r.end.0 - r.start.0).sum::<u64>();
            let most = match model {
                // The array ends in a page of its own.
                Model::Flat => pages(&honest) + PAGE / kernel.memmap.struct_size,
                _ => pages(&honest),
            };
            assert!((pages(&honest)..=most).contains(&pages(&kernel)), "{model:?} 2^{bits}: {}", pages(&kernel));
        }
    }
}
