//! Pages of the same content are stored once, and every page is still its own.

use crate::common::{check, core, dump, exclusion, options};
use crate::reader::Dump;
use coresift_engine::DumpOptions;
use coresift_synth::{Image, KernelLayout, Machine};
use std::collections::BTreeMap;

const FIRST: u64 = 0x1200;
/// 192 batches: more than can be under way at one time.
const PAGES: u64 = 192 * 64;

/// Pages that repeat: side by side, far apart, now and then, and such that differ in one byte from ones that do.
fn repetitive() -> Image {
    let machine = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(FIRST..FIRST + PAGES + 512);
    let mut image = machine.pages(&format!("@{FIRST:#x} {PAGES} slab content=noise")).build();
    for i in 0..PAGES {
        let mut page = match i {
            _ if i % 3 == 0 => vec![0x5a; 4096],
            _ if i % 97 < 2 => (0..4096u32).map(|at| (at / 7) as u8).collect(),
            _ if i % 4096 == 5 => vec![0xcc; 4096],
            _ if i % 64 == 31 => vec![0; 4096],
            _ => continue,
        };
        if i % 29 == 0 {
            // Few of these places are among those a page is first told by.
            page[(i * 61 % 4096) as usize] ^= 1;
        }
        image.write((FIRST + i) << 12, &page);
    }
    image
}

/// How many pages each place of the file holds, the zero page's excepted.
fn places(file: &[u8]) -> BTreeMap<u64, u64> {
    let dump = Dump::read(file.to_vec());
    let mut places = BTreeMap::new();
    for rank in 0..dump.kept.len() {
        *places.entry(dump.descriptor(rank).offset).or_default() += 1;
    }
    places.pop_first();
    places
}

#[test]
fn equal_pages_share_their_bytes_and_threads_do_not_matter() {
    let image = repetitive();
    let source = core(&image);
    for codec in ["none", "snappy"] {
        let with = |threads| DumpOptions { compression: codec.parse().unwrap(), threads: Some(threads), ..options(31) };
        let (report, one) = dump(source.clone(), &with(1));
        check(&image, exclusion(31, "", "").classes, &report, one.clone(), codec);
        let places = places(&one);
        let shared: u64 = places.values().map(|pages| pages - 1).sum();
        assert_eq!(report.shared_pages, shared, "{codec}");
        // In a batch a third of the pages is one content; behind the 128th batch nearly all of these are found.
        assert!(shared > PAGES / 3 - 256, "{codec}: {shared} of {PAGES}");
        let most = places.values().max().unwrap();
        assert!(*most > 64 * 20, "{codec}: a place of an early batch serves later ones: {most}");
        for threads in [2, 3, 16, 300] {
            assert!(one == dump(source.clone(), &with(threads)).1, "{codec}, {threads} threads");
        }
    }
}

#[test]
fn a_dump_with_shared_pages_is_filtered_again_to_the_same_bytes() {
    let image = repetitive();
    let direct = dump(core(&image), &options(31)).1;
    let between = dump(core(&image), &DumpOptions { compression: "none".parse().unwrap(), ..options(1) }).1;
    assert!(places(&between).values().any(|pages| *pages > 1));
    assert!(dump(between, &options(31)).1 == direct);
}
