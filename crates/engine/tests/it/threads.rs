//! The bytes of a dump follow from its input and its options: not from threads, memory budget, or the way the input is read.

use crate::common::{check, core, dump, exclusion, options, place, try_dump};
use coresift_engine::{DumpOptions, EngineError, Exclusion, Format, Report, Silent, Target};
use coresift_format::Bytes;
use coresift_format::codec::Codec;
use coresift_synth::huge::{Mix, huge};
use coresift_synth::{Image, KernelLayout, Machine, Model};
use std::sync::Arc;

const THREADS: [usize; 5] = [1, 2, 3, 8, 16];
const CODECS: [&str; 7] = ["none", "zlib", "zlib:4", "lzo", "snappy", "zstd", "zstd:3"];

/// Runs of all classes that are shorter, as long, and longer than a batch, over two chunks of page frames.
fn mixed(layout: KernelLayout) -> Image {
    let text = "
        @0x1200 512 anon-thp
        @0x1400 300 cache
        @0x1530 100 slab
        @0x1600 200 zero
        @0x1700  63 anon
        @0x1740  65 kernel content=noise
        @0x1800  64 ksm
        @0x7e00 512 buddy order=9
        @0x8000  40 slab
        @0x8040 200 private-cache
        @0x8200 512 hugetlb";
    Machine::new(layout).ram(0x1000..0x1900).ram(0x7e00..0x8400).pages(text).build()
}

fn with(level: u8, codec: &str, threads: usize) -> DumpOptions {
    DumpOptions { compression: codec.parse().unwrap(), threads: Some(threads), ..options(level) }
}

#[test]
fn every_number_of_threads_writes_the_same_bytes_with_every_codec() {
    let image = mixed(KernelLayout::get("6.12"));
    let source = core(&image);
    for codec in CODECS {
        for level in [0, 31] {
            let (report, one) = dump(source.clone(), &with(level, codec, 1));
            check(&image, exclusion(level, "", "").classes, &report, one.clone(), codec);
            for threads in &THREADS[1..] {
                let (report, many) = dump(source.clone(), &with(level, codec, *threads));
                assert!(one == many, "{codec}, level {level}, {threads} threads");
                assert_eq!(report.threads, *threads);
            }
        }
    }
}

#[test]
fn every_number_of_threads_writes_the_same_bytes_of_every_machine() {
    let machines = [
        Machine::b0(KernelLayout::get("2.6.32")),
        Machine::b0_with(KernelLayout::get("4.4"), Model::Flat),
        Machine::b0_with(KernelLayout::get("5.10"), Model::SparseExtreme).kaslr(0x40_0000),
        Machine::b0(KernelLayout::get("7.1")).five_levels(),
    ];
    for machine in machines {
        let image = machine.build();
        for level in [1, 31] {
            let (_, one) = dump(core(&image), &with(level, "lzo", 1));
            for threads in &THREADS[1..] {
                assert!(one == dump(core(&image), &with(level, "lzo", *threads)).1, "{} {threads}", image.layout.name);
            }
        }
    }
}

#[test]
fn the_same_run_again_writes_the_same_bytes() {
    let source = core(&mixed(KernelLayout::get("6.1")));
    let first = dump(source.clone(), &with(11, "zstd", 8)).1;
    for _ in 0..10 {
        assert!(first == dump(source.clone(), &with(11, "zstd", 8)).1);
    }
}

#[test]
fn a_memory_budget_changes_the_threads_and_not_the_bytes() {
    let source = core(&mixed(KernelLayout::get("6.12")));
    let (_, all) = dump(source.clone(), &with(31, "zlib", 4));
    let mut fewest = usize::MAX;
    for mib in [12, 14, 16, 64, 4096] {
        let options = DumpOptions { max_memory: Some(mib << 20), ..with(31, "zlib", 4) };
        let (report, bytes) = dump(source.clone(), &options);
        assert!(all == bytes, "{mib} MiB");
        assert_eq!(report.memory_budget, mib << 20);
        fewest = fewest.min(report.threads);
    }
    assert!(fewest < 4, "no budget was small enough to matter");
    let options = DumpOptions { max_memory: Some(1 << 20), ..with(31, "zlib", 4) };
    let ended = try_dump(Arc::new(source), &options);
    let Err(EngineError::Budget { budget, needed }) = &ended.result else { panic!("{:?}", ended.result) };
    assert_eq!(*budget, 1 << 20);
    assert!(*needed > 1 << 20 && *needed < 16 << 20 && !ended.path.exists(), "the target is not touched");
    // What the message says is enough.
    let (report, bytes) =
        dump(core(&mixed(KernelLayout::get("6.12"))), &DumpOptions { max_memory: Some(*needed), ..options });
    assert!(report.threads == 1 && all == bytes);
}

#[test]
fn a_page_set_beyond_the_budget_changes_no_byte() {
    let image = huge(KernelLayout::get("6.12"), 20 << 30, &Mix::fragmented());
    let source: Arc<dyn Bytes> = Arc::new(core(&image));
    let put_off = |report: &Report| report.notes.iter().any(|note| note.contains("did not fit the memory budget"));
    let (report, all) = try_dump(Arc::clone(&source), &with(31, "snappy", 2)).made();
    assert!(!put_off(&report));
    for threads in [1, 4] {
        let options = DumpOptions { max_memory: Some(10 << 20), ..with(31, "snappy", threads) };
        let (small, bytes) = try_dump(Arc::clone(&source), &options).made();
        assert!(put_off(&small), "{:?}", small.notes);
        assert!(small.complete && bytes == all, "{threads} threads");
        assert_eq!((small.kept_pages, small.bytes_out), (report.kept_pages, report.bytes_out));
    }
}

#[test]
fn the_page_sets_of_an_elf_core_count_against_the_budget() {
    let image = huge(KernelLayout::get("6.12"), 20 << 30, &Mix::fragmented());
    let source: Arc<dyn Bytes> = Arc::new(core(&image));
    let elf = |mib: u64| DumpOptions {
        format: Format::Elf,
        dry_run: true,
        max_memory: Some(mib << 20),
        ..with(31, "none", 2)
    };
    let ended = try_dump(Arc::clone(&source), &elf(1));
    let Err(EngineError::Budget { needed, .. }) = ended.result else { panic!("{:?}", ended.result) };
    let kdump = DumpOptions { format: Format::Kdump, ..elf(1) };
    let Err(EngineError::Budget { needed: less, .. }) = try_dump(Arc::clone(&source), &kdump).result else { panic!() };
    // Five bits a page.
    assert_eq!(needed - less, (20 << 30) / 4096 * 5 / 8);
    let asked = DumpOptions { max_memory: Some(needed), ..elf(0) };
    assert!(try_dump(source, &asked).made().0.complete, "what the message says is enough");
}

#[test]
fn an_input_is_the_same_mapped_read_or_in_memory() {
    let source = core(&mixed(KernelLayout::get("6.12")));
    let place = place();
    let (input, output) = (place.path().join("vmcore"), place.path().join("out"));
    std::fs::write(&input, &source).unwrap();
    let (_, all) = dump(source, &with(31, "zlib", 2));
    for map_input in [false, true] {
        let options = DumpOptions { map_input, force: true, ..with(31, "zlib", 2) };
        coresift_engine::dump(&input, &Target::Path(output.clone()), &options, &Silent).unwrap();
        assert!(all == std::fs::read(&output).unwrap(), "map_input {map_input}");
    }
}

#[test]
fn c36_any_combination_of_options_makes_a_dump() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let source = core(&image);
    // More threads than cpus, than batches and than pages.
    for threads in [None, Some(0), Some(1), Some(7), Some(300)] {
        for codec in [Codec::None, Codec::Zlib, Codec::Lzo, Codec::Snappy, Codec::Zstd] {
            for (level, also, keep) in [(0, "", ""), (31, "", "free"), (1, "user,free", "zero")] {
                for (dry_run, map_input, max_memory) in [(false, true, None), (true, false, Some(64 << 20))] {
                    let exclude = exclusion(level, also, keep);
                    let options = DumpOptions {
                        exclude: vec![exclude, exclusion(31, "", "")],
                        format: Format::Kdump,
                        compression: codec.into(),
                        threads,
                        max_memory,
                        force: dry_run,
                        dry_run,
                        exclude_unused_map: false,
                        map_input,
                        ..options(0)
                    };
                    let what = format!("{options:?}");
                    let (report, bytes) = dump(source.clone(), &options);
                    if dry_run {
                        assert!(bytes.is_empty() && report.complete && report.kept_pages > 0, "{what}");
                    } else {
                        check(&image, exclude.classes, &report, bytes, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn a_dry_run_predicts_the_size_and_every_number() {
    let source = core(&mixed(KernelLayout::get("6.12")));
    for level in [0, 31] {
        let (real, bytes) = dump(source.clone(), &with(level, "lzo", 3));
        let (dry, none) = dump(source.clone(), &DumpOptions { dry_run: true, ..with(level, "lzo", 3) });
        assert!(none.is_empty() && !bytes.is_empty());
        assert_eq!((real.kept_pages, real.zero_pages), (dry.kept_pages, dry.zero_pages));
        assert_eq!(real.bytes_out, dry.bytes_out, "level {level}");
        assert_eq!(format!("{:?}", real.classes), format!("{:?}", dry.classes));
    }
}

#[test]
fn an_empty_list_of_levels_is_an_error_that_touches_nothing() {
    let none: Vec<Exclusion> = Vec::new();
    let ended =
        try_dump(Arc::new(core(&mixed(KernelLayout::get("6.12")))), &DumpOptions { exclude: none, ..options(0) });
    assert!(matches!(ended.result, Err(EngineError::NothingAsked)) && !ended.path.exists());
}
