//! Our counts beside the kernel's own.

use crate::common::{core, dump, options};
use coresift_engine::{CheckRow, DumpOptions};
use coresift_synth::{Image, KernelLayout, Machine, PAGE};

const TEXT: &str =
    "@0x2000 4096 slab order=3\n@0x3000 1024 hugetlb\n@0x3400 512 hugetlb pool\n@0x3600 64 hugetlb order=4
    @0x4000 3072 buddy order=10";

fn machine(name: &str) -> Image {
    Machine::new(KernelLayout::get(name))
        .ram(0x1000..0x1100)
        .ram(0x2000..0x4c00)
        .image_pages(40)
        .symbols()
        .pages(TEXT)
        .build()
}

/// Uncompressed, which is faster.
fn plain(level: u8) -> DumpOptions {
    DumpOptions { compression: "none".parse().unwrap(), ..options(level) }
}

fn row<'a>(rows: &'a [CheckRow], what: &str) -> &'a CheckRow {
    rows.iter().find(|row| row.what == what).unwrap_or_else(|| panic!("{what}: {rows:?}"))
}

#[test]
fn free_slab_and_hugetlb_pages_are_as_many_as_the_kernel_counted() {
    for name in ["6.1", "6.3", "6.4", "6.6", "6.9", "6.10", "6.12", "6.16", "7.1"] {
        for level in [0, 31] {
            let (report, _) = dump(core(&machine(name)), &plain(level));
            for (what, pages) in [("free", 3072), ("slab", 4096), ("hugetlb", 1600)] {
                let row = row(&report.checks, what);
                assert_eq!(
                    (row.found, row.kernel, row.warning),
                    (pages, pages, false),
                    "{name}, level {level}: {what}"
                );
            }
            assert!(!report.notes.iter().any(|note| note.contains("not checked")), "{:?}", report.notes);
        }
    }
}

#[test]
fn a_count_that_differs_by_more_than_a_few_percent_is_a_warning_with_both_numbers() {
    let at = |image: &Image, symbol: &str| image.symbols[symbol] - image.image_virt + image.image.start * PAGE;
    for (offset, count, warning) in [(48u64, 2731u64, false), (48, 9000, true), (48, 2900, false), (40, 0, true)] {
        let mut image = machine("6.12");
        let place = at(&image, "vm_node_stat") + offset;
        image.write(place, &count.to_le_bytes());
        let (report, _) = dump(core(&image), &plain(31));
        let row = row(&report.checks, "slab");
        assert_eq!(row.warning, warning, "{row:?}");
        let both = format!("{} were found, the kernel's own counter says {}", row.found, row.kernel);
        assert_eq!(report.notes.iter().any(|note| note.contains(&both)), warning, "{:?}", report.notes);
    }
}

#[test]
fn what_cannot_be_compared_is_said() {
    let image = Machine::b0(KernelLayout::get("5.10")).build();
    let (report, _) = dump(core(&image), &options(31));
    assert_eq!(row(&report.checks, "free").kernel, 40);
    assert_eq!(report.checks.len(), 1, "before 6.0 there are no symbols to find the others by");
    let told = report.notes.iter().filter(|note| note.contains("slab and hugetlb pages not checked")).count();
    assert_eq!(told, 1, "{:?}", report.notes);
}
