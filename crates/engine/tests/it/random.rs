//! Random machines: whatever lies next to whatever, the dump is what the truth table says.

use crate::common::{check, core, dump, exclusion, options};
use coresift_engine::DumpOptions;
use coresift_kernel::{ClassSet, PageClass};
use coresift_synth::{KernelLayout, LAYOUTS, Leaf, Machine, Model};
use proptest::prelude::*;
use std::fmt::Write;

/// Kinds of pages that come one by one, and lowest and highest orders of those that come in blocks.
const SINGLE: [&str; 15] = [
    "kernel",
    "zero",
    "cache",
    "private-cache",
    "anon",
    "ksm",
    "swapcache",
    "shmem-swapcache",
    "slab",
    "slab mapping-odd",
    "owner-priv",
    "tail",
    "offline",
    "hwpoison",
    "anon content=zero",
];
const BLOCKS: [(&str, u32, u32); 8] = [
    ("buddy", 0, 10),
    ("buddy", 0, 10),
    ("anon-thp", 1, 9),
    ("file-thp", 1, 9),
    ("hugetlb", 1, 9),
    ("hugetlb pool", 1, 9),
    ("slab", 0, 3),
    ("slab mapping-odd", 1, 3),
];
/// RAM that populations fill: two ranges, the second across the border of two sections.
const RANGES: [(u64, u64); 2] = [(0x1100, 0x1700), (0x7e40, 0x8200)];

#[derive(Clone, Debug)]
struct Population {
    kind: prop::sample::Index,
    block: bool,
    order: u32,
    count: u64,
}

fn population() -> impl Strategy<Value = Population> {
    (any::<prop::sample::Index>(), any::<bool>(), 0u32..=10, 1u64..40)
        .prop_map(|(kind, block, order, count)| Population { kind, block, order, count })
}

/// Lays populations one behind the other, aligned as they must be, with pages of the kernel's own between.
fn text(populations: &[Population]) -> String {
    let mut text = String::new();
    let mut left = populations.iter().cycle().take(populations.len() * 2);
    for (start, end) in RANGES {
        let mut at = start;
        for p in left.by_ref() {
            let (kind, order) = if p.block {
                let (kind, lowest, highest) = BLOCKS[p.kind.index(BLOCKS.len())];
                (kind, p.order.clamp(lowest, highest))
            } else {
                (SINGLE[p.kind.index(SINGLE.len())], 0)
            };
            let block = 1 << order;
            let first = at.next_multiple_of(block);
            let count = if p.block { block * (1 + p.count % 3) } else { p.count };
            if first + count > end {
                break;
            }
            let order = if p.block { format!("order={order}") } else { String::new() };
            writeln!(text, "@{first} {count} {kind} {order}").unwrap();
            at = first + count;
        }
    }
    text
}

fn any_classes() -> impl Strategy<Value = ClassSet> {
    let all: Vec<PageClass> = ClassSet::SELECTABLE.iter().collect();
    proptest::sample::subsequence(all.clone(), 0..=all.len()).prop_map(|classes| ClassSet::of(&classes))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_machine_is_dumped_as_its_truth_table_says(
        layout in prop::sample::select(LAYOUTS.to_vec()),
        model in prop::sample::select(vec![Model::SparseVmemmap, Model::SparseExtreme, Model::Sparse, Model::Flat]),
        leaf in prop::sample::select(vec![Leaf::K4, Leaf::M2, Leaf::G1]),
        (five, kaslr, sme) in (any::<bool>(), 0u64..3, any::<bool>()),
        populations in proptest::collection::vec(population(), 1..24),
        level in 0u8..=31,
        (also, keep) in (any_classes(), any_classes()),
        threads in 1usize..5,
        codec in prop::sample::select(vec!["none", "lzo", "snappy"]),
    ) {
        let text = text(&populations);
        let mut machine = Machine::new(layout).model(model).linear_leaf(leaf).kaslr(kaslr * 0x20_0000).pages(&text);
        // The image moves in virtual memory only, so RAM is where it is without KASLR.
        machine = machine.ram(0x1000..0x1080);
        for (start, end) in RANGES {
            machine = machine.ram(start..end);
        }
        if five && layout.since(4, 17, 0) {
            machine = machine.five_levels();
        }
        if sme && layout.since(5, 2, 0) {
            machine = machine.sme_bit(47);
        }
        let image = machine.build();
        let exclude = coresift_engine::Exclusion::new(crate::common::level(level), also, keep);
        let options = DumpOptions {
            exclude: vec![exclude], threads: Some(threads), compression: codec.parse().unwrap(), ..options(0)
        };
        let (report, file) = dump(core(&image), &options);
        check(&image, exclude.classes, &report, file, &format!("{} {model:?}\n{text}", layout.name));
        for row in &report.classes {
            prop_assert_eq!(row.excluded, exclude.classes.has(row_class(row.name)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_steps_keep_what_both_keep(
        populations in proptest::collection::vec(population(), 1..16),
        (first, second) in (0u8..=31, 0u8..=31),
    ) {
        let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x1100..0x1700).ram(0x7e40..0x8200)
            .pages(&text(&populations)).build();
        let both = exclusion(first | second, "", "").classes;
        let plain = |level| DumpOptions { compression: "none".parse().unwrap(), ..options(level) };
        let direct = dump(core(&image), &plain(first | second)).1;
        let (report, twice) = dump(dump(core(&image), &plain(first)).1, &plain(second));
        prop_assert_eq!(report.level, first | second);
        prop_assert!(twice == direct, "{} then {}", first, second);
        let read = crate::reader::Dump::read(twice);
        crate::common::same_pages(&image, &read.kept, &crate::common::kept(&image, both), "twice");
    }
}

fn row_class(name: &str) -> PageClass {
    PageClass::ALL.into_iter().find(|class| class.name() == name).unwrap()
}
