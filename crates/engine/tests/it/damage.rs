//! Every place of a small dump damaged in turn: no damage that matters is called good, and repair never gives a page other bytes.

use crate::common::place;
use crate::reader::Dump;
use coresift_engine::{RepairOptions, Silent, Stop, Verdict, Verification, VerifyOptions, repair, verify};
use coresift_format::codec::{Codec, Decompressor};
use coresift_synth::{Image, KernelLayout, Machine};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use tempfile::TempDir;

const PAGE: usize = 4096;
/// Bytes of a damaged run.
const RUN: usize = 64;
/// Where the notes are.
const NOTES: usize = PAGE + 104;

/// A 6.12 kernel with symbols, so that its memory tells what the headers should say.
fn image() -> Image {
    Machine::new(KernelLayout::get("6.12"))
        .cpus(2)
        .symbols()
        .ram(0x1000..0x1080)
        .ram(0x3000..0x3060)
        .pages("@0x3000 20 zero\n@0x3020 16 buddy order=4\n@0x3030 20 anon\n@0x3044 8 slab order=2")
        .build()
}

/// The pages as a reader has them that believes headers, bitmap and descriptors, as libkdumpfile does; `None` where it says that it
/// cannot read one.
fn believed(file: &[u8]) -> Option<BTreeMap<u64, Option<Vec<u8>>>> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    if file.get(..8)? != b"KDUMP   " || u32_at(428)? as usize != PAGE {
        return None;
    }
    let (sub, blocks) = (u32_at(432)? as usize, u32_at(436)? as usize);
    let (version, narrow) = (u32_at(8)?, u32_at(440)?);
    let pages = if version >= 6 { u64_at(PAGE + 96)? } else { narrow.into() };
    let second = sub.checked_add(1)?.checked_mul(PAGE)?.checked_add(blocks.checked_mul(PAGE)? / 2)?;
    let mut at = second.checked_add(blocks.checked_mul(PAGE)? / 2)?;
    let mut found = BTreeMap::new();
    let mut decompressor = Decompressor::new();
    for pfn in 0..pages {
        let byte = file.get(second + (pfn / 8) as usize)?;
        if byte >> (pfn % 8) & 1 == 0 {
            continue;
        }
        let mut page = vec![0; PAGE];
        let read = || {
            let (offset, size, flags) = (u64_at(at)? as usize, u32_at(at + 8)? as usize, u32_at(at + 12)?);
            let stored = file.get(offset..offset.checked_add(size)?).filter(|_| offset != 0)?;
            decompressor.decompress(Codec::from_flags(flags).ok()?, stored, &mut page).ok()
        };
        let read = { read }();
        found.insert(pfn, read.map(|()| page));
        at += 24;
    }
    Some(found)
}

struct Bench {
    place: TempDir,
    good: Vec<u8>,
    pages: BTreeMap<u64, Option<Vec<u8>>>,
}

impl Bench {
    fn new(good: Vec<u8>) -> Self {
        let mut pages = BTreeMap::new();
        Dump::read(good.clone()).pages(|pfn, page| {
            pages.insert(pfn, page.map(<[u8]>::to_vec));
        });
        assert_eq!(believed(&good).as_ref(), Some(&pages));
        Self { place: place(), good, pages }
    }

    fn verify(&self, file: &[u8]) -> Option<Verification> {
        let path = self.place.path().join("damaged");
        std::fs::write(&path, file).unwrap();
        let options = VerifyOptions { read_pages: true, threads: NonZeroUsize::new(1), debug: None };
        verify(&path, &options, &Silent).ok()
    }

    /// Damages the file, and says what is wrong with what is made of it.
    fn damage(&self, at: usize, what: &str, change: impl FnOnce(&mut [u8]), needed: bool) -> Option<String> {
        let mut file = self.good.clone();
        change(&mut file);
        if file == self.good {
            return None;
        }
        let found = self.verify(&file);
        let good = found.as_ref().is_some_and(|found| found.verdict == Verdict::Good);
        let same = believed(&file).as_ref() == Some(&self.pages);
        if good && (needed || !same) {
            return Some(format!("{what} at {at}: called good (pages are {})", if same { "right" } else { "wrong" }));
        }
        let out = self.place.path().join("repaired");
        let options =
            RepairOptions { read_pages: true, threads: NonZeroUsize::new(1), force: true, stop: Stop::default() };
        repair(&self.place.path().join("damaged"), &out, &options, &Silent).ok()?;
        let repaired = believed(&std::fs::read(&out).unwrap()).unwrap();
        let wrong = repaired.iter().find(|(pfn, page)| page.is_some() && self.pages.get(*pfn) != Some(*page));
        wrong.map(|(pfn, _)| format!("{what} at {at}: page {pfn:#x} has other bytes after repair"))
    }
}

/// A way to damage a run of bytes: its name, and what becomes of the byte at a place.
type Way = (&'static str, fn(usize, u8) -> u8);

const WAYS: [Way; 4] = [
    ("zeros", |_, _| 0),
    ("ones", |_, _| 0xff),
    ("inverted", |_, byte| !byte),
    ("noise", |at, _| (at as u32).wrapping_mul(2_654_435_761).wrapping_shr(13) as u8 ^ 0x5a),
];

/// Parts of a file whose damage nobody can tell, because nothing else says the same and no checksum covers it.
fn unprovable(dump: &Dump) -> Vec<(Range<usize>, &'static str)> {
    let mut all = vec![
        (408..424, "the time of the crash"),
        (444..460, "relics of diskdump"),
        (464..PAGE, "nothing"),
        (PAGE + 8..PAGE + 12, "another dump level"),
        (PAGE + 56..PAGE + 57, "padding behind the last note"),
        (PAGE + 64..PAGE + 80, "eraseinfo there is none of"),
    ];
    for rank in 0..dump.kept.len() {
        let desc = dump.descriptor(rank);
        if desc.flags == 0 {
            all.push((desc.offset as usize..desc.offset as usize + PAGE, "bytes of a page stored as it is"));
        }
        all.push((
            dump.descriptors + 24 * rank + 16..dump.descriptors + 24 * rank + 24,
            "page_flags, which nobody reads",
        ));
    }
    all
}

fn whole(bench: &Bench) {
    let found = bench.verify(&bench.good).unwrap();
    assert_eq!(found.verdict, Verdict::Good, "{:?} {:?}", found.checks, found.debugger);
}

fn held(bad: &[String]) {
    assert!(
        bad.is_empty(),
        "{} in all:\n{}",
        bad.len(),
        bad.iter().take(40).map(|b| format!("{b}\n")).collect::<String>()
    );
}

/// One damage in so many is tried, so that the test takes seconds: all of what is small, some of the page data.
const DATA_STEP: usize = 61;
const EMPTY_STEP: usize = 13;

#[test]
fn no_run_of_64_bytes_that_matters_can_be_damaged_unnoticed() {
    let image = image();
    let bench = Bench::new(image.kdump().without(17, &["free"]).bytes());
    whole(&bench);
    let dump = Dump::read(bench.good.clone());
    let unprovable = unprovable(&dump);
    let data = dump.descriptors + 24 * dump.kept.len();
    let mut bad = Vec::new();
    for (i, start) in (0..bench.good.len()).step_by(RUN).enumerate() {
        let run = start..(start + RUN).min(bench.good.len());
        // Of a bitmap, or padding.
        let empty = bench.good[run.clone()].iter().all(|byte| *byte == 0);
        let step = if start >= data {
            DATA_STEP
        } else if empty {
            EMPTY_STEP
        } else {
            1
        };
        if i % step != 0 {
            continue;
        }
        let ways = if start < data { &WAYS[..] } else { &WAYS[..1] };
        for (way, byte) in ways {
            let damage = |file: &mut [u8]| {
                for at in run.clone().filter(|at| !unprovable.iter().any(|(range, _)| range.contains(at))) {
                    file[at] = byte(at, file[at]);
                }
            };
            bad.extend(bench.damage(start, way, damage, run.start >= NOTES && run.end <= NOTES + dump.notes.len()));
        }
    }
    held(&bad);
}

#[test]
fn no_bit_of_a_header_or_descriptor_that_matters_can_be_flipped_unnoticed() {
    let image = image();
    let bench = Bench::new(image.kdump().without(17, &["free"]).bytes());
    let dump = Dump::read(bench.good.clone());
    let unprovable = unprovable(&dump);
    // Five letters of each name of utsname, or all that it has; behind that nobody looks.
    let name = |i: usize| {
        12 + 65 * i..12 + 65 * i + bench.good[12 + 65 * i..].iter().take(5).position(|b| *b == 0).unwrap_or(5)
    };
    let header = (0..12).chain((0..6).flat_map(name)).chain(424..464).chain(PAGE..PAGE + 104);
    let descriptors = (0..dump.kept.len()).step_by(7).flat_map(|rank| (0..16).map(move |at| (rank, at)));
    let descriptors = descriptors.map(|(rank, at)| dump.descriptors + 24 * rank + at);
    let mut bad = Vec::new();
    for at in header.chain(descriptors) {
        if !unprovable.iter().any(|(range, _)| range.contains(&at)) {
            bad.extend(bench.damage(at, "a flipped bit", |file| file[at] ^= 1 << (at * 5 % 8), at < PAGE + 104));
        }
    }
    held(&bad);
}

#[test]
fn vmcoreinfo_is_held_against_the_kernels_own() {
    let image = image();
    let bench = Bench::new(image.kdump().without(17, &["free"]).bytes());
    let text = bench.good.windows(10).position(|w| w == b"OSRELEASE=").unwrap();
    let mut bad = Vec::new();
    for at in (text..text + image.vmcoreinfo.len()).step_by(23) {
        bad.extend(bench.damage(at, "a flipped bit", |file| file[at] ^= 1, true));
    }
    held(&bad);
}
