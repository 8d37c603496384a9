//! Leaving out what the memory map says of pages that are left out.

use crate::common::{core, dump, options};
use crate::reader::Dump;
use coresift_engine::DumpOptions;
use coresift_format::{Input, Pfn};
use coresift_kernel::Kernel;
use coresift_synth::{KernelLayout, Machine};
use std::collections::BTreeSet;
use std::sync::Arc;

#[test]
fn pages_of_the_memory_map_go_when_all_they_describe_is_left_out_and_stay_otherwise() {
    for name in ["5.10", "6.12"] {
        let machine = Machine::new(KernelLayout::get(name)).ram(0x1000..0x3000).ram(0x8000..0x9000);
        let image = machine.pages("@0x8000 700 cache\n@0x8300 1 slab\n@0x8301 1279 anon\n").build();
        let (_, whole) = dump(core(&image), &options(31));
        let (report, less) = dump(core(&image), &DumpOptions { exclude_unused_map: true, ..options(31) });
        let (whole, less) = (Dump::read(whole), Dump::read(less));
        let (all, kept): (BTreeSet<u64>, BTreeSet<u64>) =
            (whole.kept.iter().copied().collect(), less.kept.iter().copied().collect());
        let gone: BTreeSet<u64> = all.difference(&kept).copied().collect();
        assert!(kept.is_subset(&all) && gone.len() as u64 == report.unused_map_pages, "{name}");
        // 64 struct pages of 64 bytes in a page.
        let input = Input::from_bytes(Arc::new(core(&image))).unwrap();
        let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
        let mut reader = kernel.reader(input.memory());
        let mut of = |block: u64| {
            let at = kernel.memmap.page(Pfn(block * 64)).unwrap();
            reader.translate(at).unwrap().0.0 / 4096
        };
        for block in (0x1000 / 64..0x3000 / 64).chain(0x8000 / 64..0x9000 / 64) {
            let needed = (block * 64..block * 64 + 64).any(|pfn| all.contains(&pfn) && !gone.contains(&pfn));
            let was_needed = (block * 64..block * 64 + 64).any(|pfn| all.contains(&pfn));
            assert_eq!(gone.contains(&of(block)), !was_needed, "{name}: block {block:#x}");
            assert!(!needed || kept.contains(&of(block)), "{name}: block {block:#x}");
        }
        assert!(!gone.is_empty(), "{name}");
    }
}
