//! Repairing dumps that were cut or damaged, and verifying what comes of it.

use crate::common::{dump, place};
use crate::reader::Dump;
use coresift_engine::{
    EngineError, Fault, Repair, RepairOptions, Silent, Stop, Verdict, Verification, VerifyOptions, repair, verify,
};
use coresift_format::{FormatError, Input, Notes, Pfn, PhysAddr};
use coresift_synth::{Image, KernelLayout, Machine};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tempfile::TempDir;

fn options() -> RepairOptions {
    RepairOptions { read_pages: true, threads: NonZeroUsize::new(2), force: true, stop: Stop::default() }
}

fn image() -> Image {
    Machine::new(KernelLayout::get("6.12"))
        .cpus(2)
        .ram(0x1000..0x1080)
        .ram(0x3000..0x3060)
        .pages("@0x3000 20 zero\n@0x3020 16 buddy order=4\n@0x3030 20 anon\n@0x3044 8 slab order=2")
        .build()
}

/// Files of one image: ours in order of need, and one in the order of addresses.
fn files(image: &Image) -> Vec<Vec<u8>> {
    let ours = dump(crate::common::core(image), &crate::common::options(31)).1;
    vec![ours, image.kdump().without(16, &["free"]).bytes()]
}

struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(place())
    }

    fn repair(&self, file: &[u8]) -> Result<(Repair, Vec<u8>), EngineError> {
        let (path, out) = (self.0.path().join("in"), self.0.path().join("out"));
        std::fs::write(&path, file).unwrap();
        let report = repair(&path, &out, &options(), &Silent)?;
        let (had, has) = (file.len() as u64, std::fs::metadata(&out).unwrap().len());
        assert!(has <= had + (2 << 20), "{has} bytes made of {had}");
        assert_eq!(std::fs::read(&path).unwrap(), file, "the input is not touched");
        Ok((report, std::fs::read(&out).unwrap()))
    }

    fn verify(&self, file: &[u8], read_pages: bool) -> Verification {
        let path = self.0.path().join("verified");
        std::fs::write(&path, file).unwrap();
        verify(&path, &VerifyOptions { read_pages, threads: NonZeroUsize::new(2), debug: None }, &Silent).unwrap()
    }
}

/// The pages a file has, by a reader that shares no layout with the library.
fn pages(file: &[u8]) -> BTreeMap<u64, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    Dump::read(file.to_vec()).pages(|pfn, page| {
        found.insert(pfn, page.map(<[u8]>::to_vec));
    });
    found
}

/// What `out` has is what `whole` has there, and it is marked where anything is missing. Returns the pages it has.
fn holds_what_is_left(report: &Repair, out: &[u8], whole: &BTreeMap<u64, Option<Vec<u8>>>, what: &str) -> u64 {
    let found = pages(out);
    for (pfn, page) in &found {
        assert!(page.is_none() || page == &whole[pfn], "{what}: page frame {pfn:#x}");
    }
    let sound = found.values().flatten().count() as u64;
    assert_eq!((report.pages.sound, report.pages.stored), (sound, found.len() as u64), "{what}");
    assert_eq!(Dump::read(out.to_vec()).incomplete(), !report.complete, "{what}");
    sound
}

#[test]
fn a_whole_dump_verifies_as_good_and_is_repaired_to_itself() {
    let bench = Bench::new();
    for file in files(&image()) {
        for read in [true, false] {
            let found = bench.verify(&file, read);
            assert_eq!((found.verdict, found.problems.len()), (Verdict::Good, 0), "{:?}", found.checks);
            assert_eq!(found.pages.sound, found.pages.stored);
        }
        let (report, out) = bench.repair(&file).unwrap();
        assert!(report.complete && report.changed.is_empty(), "{report:?}");
        assert_eq!(out, file);
    }
}

#[test]
fn c15_a_dump_cut_at_every_512_bytes_is_repaired_as_far_as_its_headers_reach() {
    let bench = Bench::new();
    for file in files(&image()) {
        let whole = pages(&file);
        let mut before = 0;
        for end in (512..file.len()).step_by(512) {
            let what = format!("cut at {end}");
            match bench.repair(&file[..end]) {
                Err(EngineError::Input(FormatError::CutShort { .. } | FormatError::Unknown { .. })) => {
                    assert!(end < 4096 + 104, "{what}");
                }
                Err(error) => panic!("{what}: {error}"),
                Ok((report, out)) => {
                    assert!(end >= 4096 + 104 && !report.complete, "{what}");
                    let sound = holds_what_is_left(&report, &out, &whole, &what);
                    assert!(sound >= before, "{what}: a longer piece has {sound} pages, a shorter one had {before}");
                    before = sound;
                    let again = bench.verify(&out, true);
                    assert_eq!(again.verdict, Verdict::Incomplete, "{what}: {:?}", again.checks);
                }
            }
        }
        assert!(before + 4 >= whole.len() as u64, "{before} of {}", whole.len());
    }
}

#[test]
fn a_stream_cut_anywhere_is_repaired() {
    let bench = Bench::new();
    let file = image().kdump().bytes();
    let whole = pages(&file);
    let stream = coresift_synth::flat::Flatten::default().wrap(&file).bytes;
    let mut most = 0;
    for end in (4096..stream.len()).step_by(4 * 512 + 16) {
        match bench.repair(&stream[..end]) {
            Err(EngineError::Input(error)) => assert!(end < 3 * 4096, "cut at {end}: {error}"),
            Err(error) => panic!("cut at {end}: {error}"),
            Ok((report, out)) => {
                most = most.max(holds_what_is_left(&report, &out, &whole, &format!("stream cut at {end}")));
            }
        }
    }
    assert!(most + 8 > whole.len() as u64, "{most} of {}", whole.len());
}

#[test]
fn a_page_that_cannot_be_decompressed_is_named_and_becomes_a_lost_page() {
    let bench = Bench::new();
    let file = image().kdump().bytes();
    let whole = pages(&file);
    let dump = Dump::read(file.clone());
    let rank = dump.kept.iter().position(|pfn| *pfn == 0x3035).unwrap();
    let desc = dump.descriptor(rank);
    assert_eq!(desc.flags, 1, "a zlib page");
    let mut bad = file;
    bad[(desc.offset + u64::from(desc.size) / 2) as usize] ^= 0x10;
    let found = bench.verify(&bad, true);
    assert_eq!(found.verdict, Verdict::Damaged);
    let [problem] = &found.problems[..] else { panic!("{:?}", found.problems) };
    assert_eq!((problem.pfn, problem.address, problem.fault), (0x3035, 0x303_5000, Fault::Undecodable));
    assert_eq!((problem.data, problem.size, problem.flags), (Some(desc.offset), Some(desc.size), Some(1)));
    assert_eq!(bench.verify(&bad, false).verdict, Verdict::Good, "--quick does not look at the data");
    let (report, out) = bench.repair(&bad).unwrap();
    assert_eq!((report.pages.undecodable, report.lost.len()), (1, 1));
    holds_what_is_left(&report, &out, &whole, "one bad page");
    assert_eq!(pages(&out)[&0x3035], None);
    assert_eq!(bench.verify(&out, true).verdict, Verdict::Incomplete);
}

/// Moves the descriptor of a page onto the data of another, `bytes` from their start.
fn moved(file: &[u8], pfn: u64, onto: u64, bytes: u64) -> Vec<u8> {
    let dump = Dump::read(file.to_vec());
    let rank = |pfn| dump.kept.iter().position(|kept| *kept == pfn).unwrap();
    let offset = dump.descriptor(rank(onto)).offset + bytes;
    let at = dump.descriptors + 24 * rank(pfn);
    let mut bad = file.to_vec();
    bad[at..at + 8].copy_from_slice(&offset.to_le_bytes());
    bad
}

#[test]
fn a_page_whose_descriptor_points_at_anothers_data_is_lost_and_the_other_is_not() {
    let bench = Bench::new();
    let image = image();
    let mut made = image.kdump().without(17, &["free"]);
    made.codec = 0;
    let file = made.bytes();
    let whole = pages(&file);
    // Right onto the data of the other, and across those of two.
    for bytes in [0, 16] {
        let bad = moved(&file, 0x3035, 0x3031, bytes);
        assert_eq!(bench.verify(&bad, true).verdict, Verdict::Damaged);
        let (report, out) = bench.repair(&bad).unwrap();
        holds_what_is_left(&report, &out, &whole, "a moved descriptor");
        let [lost] = &report.lost[..] else { panic!("{:?}", report.lost) };
        assert_eq!((lost.pfn, lost.pages, lost.fault), (0x3035, 1, Fault::Contested));
    }
}

#[test]
fn an_unmarked_dump_with_pages_that_were_never_written_is_damaged_until_it_is_marked() {
    let bench = Bench::new();
    let image = image();
    let mut made = image.kdump();
    made.lost = image.truth.pfns(&["slab"]).collect();
    let found = bench.verify(&made.bytes(), true);
    assert_eq!((found.verdict, found.pages.unwritten), (Verdict::Damaged, 8));
    let (report, out) = bench.repair(&made.bytes()).unwrap();
    assert!(!report.complete);
    assert_eq!(bench.verify(&out, true).verdict, Verdict::Incomplete);
}

#[test]
fn regions_outside_the_file_are_taken_out_of_the_headers() {
    let bench = Bench::new();
    let mut file = image().kdump().bytes();
    let whole = pages(&file);
    // offset_vmcoreinfo and offset_eraseinfo of the sub header, nr_cpus of the main header, a bit behind the last page.
    file[4096 + 32..4096 + 40].copy_from_slice(&(1u64 << 60).to_le_bytes());
    file[4096 + 64..4096 + 80].copy_from_slice(&[0x11; 16]);
    file[460..464].copy_from_slice(&(-5i32).to_le_bytes());
    let found = bench.verify(&file, true);
    assert_eq!(found.verdict, Verdict::Damaged, "{:?}", found.checks);
    let (report, out) = bench.repair(&file).unwrap();
    assert_eq!((report.found.len(), report.pages.lost()), (3, 0), "{report:?}");
    holds_what_is_left(&report, &out, &whole, "headers");
    let dump = Dump::read(out.clone());
    assert_eq!(dump.cpus, 2);
    assert!(dump.vmcoreinfo.starts_with(b"OSRELEASE="), "found in the notes");
    assert_eq!(bench.verify(&out, true).verdict, Verdict::Incomplete);
}

#[test]
fn the_outcome_is_the_same_for_any_number_of_threads() {
    let bench = Bench::new();
    let image = image();
    let mut made = image.kdump();
    made.lost = image.ram().iter().cloned().flatten().filter(|pfn| pfn % 3 == 0).collect();
    let path = bench.0.path().join("lossy");
    std::fs::write(&path, made.bytes()).unwrap();
    let run = |threads| {
        let options = VerifyOptions { read_pages: true, threads: NonZeroUsize::new(threads), debug: None };
        format!("{:?}", verify(&path, &options, &Silent).unwrap().problems)
    };
    assert!((2..6).all(|threads| run(threads) == run(1)));
}

#[test]
fn the_target_is_neither_the_input_nor_overwritten_unasked() {
    let bench = Bench::new();
    let path = bench.0.path().join("in");
    std::fs::write(&path, image().kdump().bytes()).unwrap();
    assert!(matches!(repair(&path, &path, &options(), &Silent), Err(EngineError::TargetIsInput { .. })));
    let out = bench.0.path().join("out");
    std::fs::write(&out, b"mine").unwrap();
    let careful = RepairOptions { force: false, ..options() };
    assert!(matches!(repair(&path, &out, &careful, &Silent), Err(EngineError::TargetExists { .. })));
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_happens_to_a_dump_what_repair_makes_is_consistent(
        end in 0usize..1 << 20,
        bytes in proptest::collection::vec((0usize..1 << 20, any::<u8>()), 0..12),
        near in proptest::collection::vec((0usize..20_000, any::<u8>()), 0..4),
    ) {
        let bench = Bench::new();
        let mut file = image().kdump().bytes();
        for (at, byte) in bytes.into_iter().chain(near) {
            let at = at % file.len();
            file[at] = byte;
        }
        file.truncate(end.max(5000).min(file.len()));
        match bench.repair(&file) {
            Err(EngineError::Input(_)) => {}
            Err(error) => panic!("{error}"),
            Ok((report, out)) => {
                let again = bench.verify(&out, true);
                prop_assert_eq!(again.pages.sound, report.pages.sound);
                prop_assert_eq!(again.pages.lost(), again.pages.unwritten, "what is lost is marked as lost: {:?}", again.problems);
                prop_assert_eq!(again.verdict <= Verdict::NotUnderstood, report.complete, "{:?}", again.checks);
            }
        }
    }
}

#[test]
fn an_elf_core_cut_anywhere_behind_its_headers_is_repaired() {
    let bench = Bench::new();
    let image = image();
    let file = crate::common::core(&image);
    let mut most = 0;
    for end in (512..file.len()).step_by(4 * 512 + 8).chain([file.len()]) {
        let what = format!("cut at {end}");
        match bench.repair(&file[..end]) {
            Err(EngineError::Input(error)) => assert!(end < 4096, "{what}: {error}"),
            Err(error) => panic!("{what}: {error}"),
            Ok((report, out)) => {
                assert_eq!(report.complete, end == file.len(), "{what}: {report:?}");
                let input = Input::from_bytes(Arc::new(out.clone())).unwrap();
                assert_eq!(input.incomplete(), !report.complete, "{what}");
                assert!(input.problems().is_empty(), "{what}: {:?}", input.problems());
                let memory = input.memory();
                let mut view = memory.view();
                let mut page = vec![0; 4096];
                for pfn in memory.stored().all_runs().flat_map(|(start, end)| start.0..end.0) {
                    view.read(PhysAddr(pfn * 4096), &mut page).unwrap();
                    assert!(page == image.page(pfn), "{what}: page frame {pfn:#x}");
                }
                assert_eq!(memory.stored().len(), report.pages.sound, "{what}");
                most = most.max(report.pages.sound);
                let again = bench.verify(&out, true);
                let expected = if report.complete { Verdict::Good } else { Verdict::Incomplete };
                assert_eq!(again.verdict, expected, "{what}: {:?}", again.checks);
            }
        }
    }
    assert_eq!(most, image.ram().iter().map(|r| r.end - r.start).sum::<u64>());
}

/// An image most of whose pages hold addresses of themselves, as the kernel's do.
fn image_that_tells() -> Image {
    const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
    let mut image = image();
    let pages: Vec<u64> = image.ram().iter().cloned().flatten().filter(|pfn| pfn % 3 != 0).collect();
    for at in pages.into_iter().map(|pfn| (pfn << 12) + 0x440) {
        // A page that was nothing but zeros stays so.
        if image.read(at & !0xfff, 4096).iter().any(|byte| *byte != 0) {
            image.write(at, &[DIRECT_MAP + at; 2].map(u64::to_le_bytes).concat());
        }
    }
    image
}

#[test]
fn a_wrong_bit_of_the_2nd_bitmap_costs_the_pages_near_it_only() {
    let bench = Bench::new();
    for file in files(&image_that_tells()) {
        let whole = pages(&file);
        let (all, second) = (whole.len() as u64, second_bitmap(&file));
        for pfn in [0x1001, 0x1007, 0x1040, 0x107f, 0x2000, 0x3003, 0x3031, 0x305f] {
            let mut damaged = file.clone();
            damaged[second + pfn / 8] ^= 1 << (pfn % 8);
            let (report, out) = bench.repair(&damaged).unwrap();
            let saved = holds_what_is_left(&report, &out, &whole, &format!("bit of {pfn:#x}"));
            assert!(saved + 40 >= all, "bit of {pfn:#x}: {saved} of {all}");
        }
    }
}

#[test]
fn bits_outside_ram_that_make_up_for_lost_ones_are_seen() {
    let bench = Bench::new();
    for file in files(&image_that_tells()) {
        let (whole, second) = (pages(&file), second_bitmap(&file));
        let mut damaged = file.clone();
        // Two pages before the RAM, and two of the RAM less: as many bits as descriptors.
        damaged[second + 0xff8 / 8] |= 0b1000_0001;
        damaged[second + 0x1000 / 8] &= 0b0011_1111;
        let found = bench.verify(&damaged, true);
        assert_eq!(found.verdict, Verdict::Damaged, "{:?}", found.checks);
        let (report, out) = bench.repair(&damaged).unwrap();
        let saved = holds_what_is_left(&report, &out, &whole, "pages before the RAM");
        assert!(saved + 40 >= whole.len() as u64, "{saved} of {}", whole.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_damage_of_the_2nd_bitmap_gives_a_page_other_bytes(
        at in 0usize..0x3060 / 8,
        bytes in proptest::collection::vec(any::<u8>(), 1..32),
        ours: bool,
    ) {
        let file = files(&image_that_tells()).remove(usize::from(!ours));
        let (whole, second) = (pages(&file), second_bitmap(&file));
        let mut damaged = file.clone();
        let len = bytes.len().min(0x3060 / 8 - at);
        damaged[second + at..second + at + len].copy_from_slice(&bytes[..len]);
        let (report, out) = Bench::new().repair(&damaged).unwrap();
        holds_what_is_left(&report, &out, &whole, &format!("{len} bytes at {at}"));
    }
}

#[test]
fn no_flipped_bit_of_a_segments_addresses_costs_any() {
    let bench = Bench::new();
    let file = crate::common::core(&image_that_tells());
    let whole = Input::from_bytes(Arc::new(file.clone())).unwrap();
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let headers = (64..4096).step_by(56).filter(|at| number(*at) & 0xffff_ffff == 1);
    let headers: Vec<usize> = headers.take(whole.segments().len()).collect();
    assert_eq!(headers.len(), whole.segments().len());
    // p_vaddr and p_paddr.
    let fields = headers.into_iter().flat_map(|header| header + 16..header + 32);
    for (at, bit) in fields.flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let what = format!("bit {bit} of the byte at {at}");
        let mut damaged = file.clone();
        damaged[at] ^= 1 << bit;
        let found = bench.verify(&damaged, true);
        assert_eq!(found.verdict, Verdict::Damaged, "{what}: {:?}", found.checks);
        let (_, out) = bench.repair(&damaged).unwrap();
        let out = Input::from_bytes(Arc::new(out)).unwrap();
        assert!(out.memory().stored().all_runs().eq(whole.memory().stored().all_runs()), "{what}");
        let mut pages = [vec![0; 4096], vec![0; 4096]];
        for pfn in whole.memory().stored().all_runs().flat_map(|(start, end)| start.0..end.0) {
            let [one, other] = &mut pages;
            whole.memory().view().read(PhysAddr(pfn * 4096), one).unwrap();
            out.memory().view().read(PhysAddr(pfn * 4096), other).unwrap();
            assert!(one == other, "{what}: page frame {pfn:#x}");
        }
    }
}

#[test]
fn no_flipped_bit_of_the_place_of_the_notes_costs_any() {
    let bench = Bench::new();
    let image = image();
    for file in files(&image) {
        let whole = Input::from_bytes(Arc::new(file.clone())).unwrap();
        // offset_note and size_note.
        for (at, bit) in (4096 + 48..4096 + 64).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            let what = format!("bit {bit} of the byte at {at}");
            let (report, out) = bench.repair(&damaged).unwrap_or_else(|error| panic!("{what}: {error}"));
            let out = Input::from_bytes(Arc::new(out)).unwrap();
            let notes = whole.notes().trim_ascii_end();
            assert_eq!(out.notes().get(..notes.len()), Some(notes), "{what}: {:?}", report.found);
            assert_eq!(out.vmcoreinfo(), whole.vmcoreinfo(), "{what}");
        }
    }
}

#[test]
fn no_flipped_bit_of_a_field_that_leads_to_the_pages_costs_any() {
    let bench = Bench::new();
    let image = image();
    for file in files(&image) {
        let whole = pages(&file);
        // signature, header_version, block_size, sub_hdr_size, bitmap_blocks, max_mapnr; of the sub header split, the ranges of a part,
        // offset_note and max_mapnr_64.
        let fields = [0..12, 428..444, 4096 + 12..4096 + 32, 4096 + 48..4096 + 56, 4096 + 80..4096 + 104];
        for (at, bit) in fields.into_iter().flatten().flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            let what = format!("bit {bit} of the byte at {at}");
            let (report, out) = bench.repair(&damaged).unwrap_or_else(|error| panic!("{what}: {error}"));
            let saved = holds_what_is_left(&report, &out, &whole, &what);
            assert_eq!(saved, whole.len() as u64, "{what}: {:?}", report.found);
            assert!(!report.found.is_empty(), "{what}: nothing was found wrong");
        }
    }
}

#[test]
fn no_flipped_bit_of_one_copy_of_a_parts_range_costs_any() {
    let bench = Bench::new();
    let image = image();
    let mut part = image.kdump();
    part.part = Some(0x1000..0x2000);
    let whole = part.bytes();
    // start_pfn and end_pfn, then start_pfn_64 and end_pfn_64.
    let fields = [4096 + 16..4096 + 32, 4096 + 80..4096 + 96];
    for (at, bit) in fields.into_iter().flatten().flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let what = format!("bit {bit} of the byte at {at}");
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << bit;
        let (report, out) = bench.repair(&damaged).unwrap();
        let out = Input::from_bytes(Arc::new(out)).unwrap();
        assert_eq!(out.memory().stored().all_runs().collect::<Vec<_>>(), [(Pfn(0x1000), Pfn(0x1080))], "{what}");
        let mut page = vec![0; 4096];
        for pfn in 0x1000..0x1080 {
            out.memory().view().read(PhysAddr(pfn * 4096), &mut page).unwrap();
            assert!(page == image.page(pfn), "{what}: page frame {pfn:#x}");
        }
        assert!(!report.found.is_empty(), "{what}: nothing was found wrong");
    }
}

#[test]
fn no_flipped_bit_of_the_notes_costs_any() {
    let bench = Bench::new();
    let image = Machine::new(KernelLayout::get("6.12")).cpus(2).symbols().ram(0x1000..0x1100).build();
    let elf = crate::common::core(&image);
    for file in [image.kdump().bytes(), elf] {
        let whole_input = Input::from_bytes(Arc::new(file.clone())).unwrap();
        let whole = whole_input.notes().trim_ascii_end();
        let start = file.windows(whole.len()).position(|window| window == whole).unwrap();
        for at in (start..start + whole.len()).step_by(29) {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << (at % 8);
            let what = at - start;
            let found = bench.verify(&damaged, true);
            let (report, out) = bench.repair(&damaged).unwrap();
            let again = bench.verify(&out, true);
            let notes = Input::from_bytes(Arc::new(out)).unwrap().notes().to_vec();
            assert_eq!(found.verdict, Verdict::Damaged, "{what}: {:?}", found.checks);
            let registers = Notes::new(whole, whole_input.byte_order()).filter(|note| note.name == b"CORE");
            let mut registers = registers.map(|note| note.desc_offset..note.desc_offset + note.desc.len());
            if whole_input.as_elf().is_some() && registers.any(|place| place.contains(&what)) {
                // Of two copies that nothing protects, any may be the damaged one.
                assert!(!found.mendable && report.still.len() == 1 && again.verdict == Verdict::Damaged, "{what}");
                assert!(notes.starts_with(&damaged[start..start + whole.len()]), "{what}: {:?}", report.changed);
                continue;
            }
            assert!(found.mendable, "{what}: {:?}", found.checks);
            assert_eq!(
                (again.verdict, &report.still[..]),
                (Verdict::Incomplete, &[][..]),
                "{what}: {:?}",
                again.checks
            );
            assert!(notes.starts_with(whole), "{what}: {:?}", report.changed);
        }
    }
}

#[test]
fn what_nothing_tells_is_named_and_not_mended_again_and_again() {
    let bench = Bench::new();
    let mut file = image().kdump().bytes();
    // dump_level: nothing else in the file has it.
    file[4096 + 8 + 3] ^= 0x40;
    let (report, out) = bench.repair(&file).unwrap();
    assert!(matches!(&report.still[..], [still] if still.contains("dump_level")), "{:?}", report.still);
    for file in [file, out] {
        let found = bench.verify(&file, true);
        assert_eq!((found.verdict, found.mendable), (Verdict::Damaged, false), "{:?}", found.checks);
    }
}

#[test]
fn a_damaged_vmcoreinfo_is_taken_from_the_kernels_memory() {
    let bench = Bench::new();
    let image = Machine::new(KernelLayout::get("6.12")).cpus(2).symbols().ram(0x1000..0x1100).build();
    let file = image.kdump().bytes();
    let text = |file: &[u8]| Input::from_bytes(Arc::new(file.to_vec())).unwrap().vmcoreinfo().unwrap().to_vec();
    let whole = text(&file);
    let start = file.windows(whole.len()).position(|window| window == whole).unwrap();
    let (mut mended, mut tried) = (0, 0);
    for at in (start..start + whole.len()).step_by(37) {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        let (report, out) = bench.repair(&damaged).unwrap();
        if report.complete {
            // A line that the note alone has.
            continue;
        }
        tried += 1;
        if report.changed.iter().any(|changed| changed.contains("VMCOREINFO taken")) {
            mended += 1;
            assert_eq!(text(&out), whole, "{at}");
        }
    }
    // What finds the kernel itself cannot be missed.
    assert!(mended * 2 > tried, "{mended} of {tried}");
}

fn second_bitmap(file: &[u8]) -> usize {
    let input = Input::from_bytes(Arc::new(file.to_vec())).unwrap();
    let header = input.kdump_header().unwrap().0;
    (1 + header.sub_hdr_size + header.bitmap_blocks / 2) as usize * 4096
}
