//! Zones: the kernel's count of free pages, and its free lists.

use crate::machine::{Opened, pfns, translate};
use coresift_format::{Input, Pfn};
use coresift_kernel::{Kernel, KernelError, nodes};
use coresift_synth::{Image, KernelLayout, LAYOUTS, Machine, Model, PAGE};
use std::sync::Arc;

/// Free blocks in two zones (below and above 4 GiB) and, one of them, over the end of a chunk of page frames.
fn machine(layout: KernelLayout, model: Model) -> Image {
    let text = "
        @0x1100 32 buddy order=5
        @0x1120  3 buddy
        @0x1200 512 buddy order=9
        @0x7e00 1024 buddy order=9
        @0x100000 2048 buddy order=10
        @0x100804 4 buddy order=2";
    Machine::new(layout)
        .model(model)
        .ram(0x1000..0x1400)
        .ram(0x7e00..0x8200)
        .ram(0x100000..0x100810)
        .pages(text)
        .build()
}

fn free(image: &Image) -> Vec<u64> {
    image.truth.pfns(&["free"]).collect()
}

#[test]
fn the_free_lists_hold_the_free_pages_under_every_kernel() {
    for layout in LAYOUTS {
        for model in [Model::SparseVmemmap, Model::SparseExtreme] {
            let opened = Opened::new(machine(layout, model));
            let expected = free(&opened.image);
            assert_eq!(expected.len(), 3623);
            let walked = nodes::walk_free_lists(&opened.kernel, opened.memory()).unwrap();
            assert_eq!(pfns(&walked), expected, "{} {model:?}", layout.name);
            let counted = nodes::free_pages(&opened.kernel, opened.memory()).unwrap();
            assert_eq!(counted, expected.len() as u64, "{} {model:?}", layout.name);
        }
    }
}

#[test]
fn a_machine_without_numa_has_one_node() {
    for name in ["2.6.32", "6.12"] {
        let opened = Opened::new(Machine::b0_with(KernelLayout::get(name), Model::Flat).build());
        let walked = nodes::walk_free_lists(&opened.kernel, opened.memory()).unwrap();
        assert_eq!(pfns(&walked), free(&opened.image), "{name}");
        assert_eq!(nodes::free_pages(&opened.kernel, opened.memory()).unwrap(), 40);
    }
}

/// Physical address of the `lru` of a page's struct page.
fn lru(opened: &Opened, pfn: u64) -> u64 {
    let at = opened.kernel.memmap.page(Pfn(pfn)).unwrap();
    translate(&opened.image, at.0 + opened.image.layout.page.lru)
}

#[test]
fn a_list_that_is_broken_in_any_way_frees_nothing() {
    let layout = KernelLayout::get("2.6.32");
    let whole = || Opened::new(machine(layout, Model::SparseVmemmap));
    let good = whole();
    let (first, second) = (lru(&good, 0x1120), lru(&good, 0x1122));
    let virt = |pfn| good.kernel.memmap.page(Pfn(pfn)).unwrap().0 + layout.page.lru;
    // Where a link leads: into the page itself, to a page of another order, nowhere, back without a way forth.
    let edits: [(&str, u64, u64); 6] = [
        ("to itself", first, virt(0x1120)),
        ("to a block that is not aligned to the order", lru(&good, 0x1200), virt(0x1121)),
        ("to no struct page", first, good.image.symbols["init_task"]),
        ("to an address that is not mapped", first, 0xffff_dead_0000_0000),
        ("to zero", second, 0),
        ("with a wrong way back", first + 8, virt(0x1100)),
    ];
    for (what, at, value) in edits {
        let mut image = machine(layout, Model::SparseVmemmap);
        image.write(at, &value.to_le_bytes());
        let broken = Opened::new(image);
        let error = nodes::walk_free_lists(&broken.kernel, broken.memory());
        assert!(error.is_err(), "{what}: {:?}", error.map(|set| set.len()));
    }
}

#[test]
fn a_circle_that_does_not_come_home_ends() {
    // Two blocks that point at each other and not at the head of their list.
    let mut image = machine(KernelLayout::get("2.6.32"), Model::SparseVmemmap);
    let opened = Opened::new(image.clone());
    let virt = |pfn| opened.kernel.memmap.page(Pfn(pfn)).unwrap().0 + opened.image.layout.page.lru;
    let (a, b) = (0x1120, 0x1121);
    for (from, to) in [(a, b), (b, a)] {
        image.write(lru(&opened, from), &virt(to).to_le_bytes());
        image.write(lru(&opened, from) + 8, &virt(to).to_le_bytes());
    }
    let circle = Opened::new(image);
    let error = nodes::walk_free_lists(&circle.kernel, circle.memory()).unwrap_err();
    assert!(matches!(error, KernelError::Implausible { .. }), "{error}");
}

#[test]
fn what_leads_to_the_lists_and_is_missing_is_named() {
    let keys = [
        "OFFSET(zone.free_area)",
        "SIZE(free_area)",
        "LENGTH(zone.free_area)",
        "OFFSET(free_area.free_list)",
        "SIZE(list_head)",
        "OFFSET(list_head.next)",
        "OFFSET(list_head.prev)",
        "OFFSET(page.lru)",
        "OFFSET(pglist_data.node_zones)",
        "OFFSET(pglist_data.nr_zones)",
        "SIZE(zone)",
        "OFFSET(zone.spanned_pages)",
    ];
    for key in keys {
        let mut image = machine(KernelLayout::get("4.18"), Model::SparseVmemmap);
        let text: String = image.vmcoreinfo.split_inclusive('\n').filter(|line| !line.starts_with(key)).collect();
        assert_ne!(text, image.vmcoreinfo, "{key}");
        image.vmcoreinfo = text;
        let opened = Opened::new(image);
        let error = nodes::walk_free_lists(&opened.kernel, opened.memory()).unwrap_err().to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
    let mut image = machine(KernelLayout::get("4.18"), Model::SparseVmemmap);
    image.vmcoreinfo = image.vmcoreinfo.replace("NUMBER(NR_FREE_PAGES)=0", "NUMBER(NR_FREE_PAGES)=100000");
    let opened = Opened::new(image);
    assert!(nodes::free_pages(&opened.kernel, opened.memory()).unwrap_err().to_string().contains("NR_FREE_PAGES"));
}

#[test]
fn an_order_that_cannot_be_is_an_error_before_anything_is_walked() {
    for (orders, ok) in [(11, true), (16, true), (17, false), (64, false)] {
        let mut image = machine(KernelLayout::get("2.6.32"), Model::SparseVmemmap);
        image.vmcoreinfo =
            image.vmcoreinfo.replace("LENGTH(zone.free_area)=11", &format!("LENGTH(zone.free_area)={orders}"));
        let opened = Opened::new(image);
        let walked = nodes::walk_free_lists(&opened.kernel, opened.memory()).map(|set| set.len());
        match walked {
            Err(KernelError::BadValue { .. }) => assert!(!ok, "{orders}"),
            _ => assert!(ok, "{orders}: {walked:?}"),
        }
    }
}

#[test]
fn a_free_block_outside_the_ram_of_the_dump_frees_nothing() {
    let image = machine(KernelLayout::get("2.6.32"), Model::SparseVmemmap);
    let mut elf = image.elf().with_image();
    let (start, end) = (0x1200 * PAGE, 0x1400 * PAGE);
    elf.split(start);
    elf.segments.retain(|s| !(start..end).contains(&s.paddr));
    let input = Input::from_bytes(Arc::new(elf.bytes())).unwrap();
    assert!(!input.memory().ram().contains(Pfn(0x1200)));
    let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
    let walked = nodes::walk_free_lists(&kernel, input.memory()).unwrap();
    let expected: Vec<u64> = free(&image).into_iter().filter(|pfn| !(0x1200..0x1400).contains(pfn)).collect();
    assert!(expected.len() < free(&image).len());
    assert_eq!(pfns(&walked), expected);
}
