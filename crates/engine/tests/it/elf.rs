//! ELF cores out: read with offsets by the gABI, sharing no layout with the library.

use crate::common::{core, dump, exclusion, kept, options, place, same_pages, try_dump};
use crate::reader::Dump;
use coresift_engine::{
    DumpOptions, Format, Report, Silent, State, Subject, Target, Verdict, VerifyOptions, explain, verify,
};
use coresift_format::{Bytes, Endian, Input, Pfn, Window};
use coresift_kernel::PageClass;
use coresift_synth::elf::{Order, Segment};
use coresift_synth::kdump::{Abi, INCOMPLETE};
use coresift_synth::{Image, KernelLayout, LAYOUTS, Machine, PAGE};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

/// A PT_LOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    offset: u64,
    vaddr: u64,
    paddr: u64,
    filesz: u64,
    memsz: u64,
}

/// An ELF64 core of little endian, its headers read.
struct Core {
    file: Vec<u8>,
    incomplete: bool,
    notes: Vec<u8>,
    loads: Vec<Load>,
    extended: bool,
}

impl Core {
    fn read(file: Vec<u8>) -> Self {
        let at = |at: u64, n: usize| -> u64 {
            let mut raw = [0; 8];
            raw[..n].copy_from_slice(&file[at as usize..at as usize + n]);
            u64::from_le_bytes(raw)
        };
        assert_eq!(&file[..7], b"\x7fELF\x02\x01\x01");
        // e_type ET_CORE, e_machine EM_X86_64, e_version; e_ehsize, e_phentsize.
        assert_eq!((at(16, 2), at(18, 2), at(20, 4), at(52, 2), at(54, 2)), (4, 62, 1, 64, 56));
        let (phoff, shoff, mut phnum) = (at(32, 8), at(40, 8), at(56, 2));
        let extended = phnum == 0xffff;
        if extended {
            // e_shentsize, e_shnum; sh_type, sh_size, sh_info.
            assert_eq!((at(58, 2), at(60, 2), at(shoff + 4, 4), at(shoff + 32, 8)), (64, 1, 0, 1));
            phnum = at(shoff + 44, 4);
            assert_eq!(shoff, phoff + 56 * phnum);
        } else {
            assert_eq!((shoff, at(60, 2)), (0, 0));
        }
        let (mut notes, mut loads) = (Vec::new(), Vec::new());
        for header in (0..phnum).map(|i| phoff + 56 * i) {
            let (offset, filesz) = (at(header + 8, 8), at(header + 32, 8));
            match at(header, 4) {
                4 => notes.extend_from_slice(&file[offset as usize..(offset + filesz) as usize]),
                1 => loads.push(Load {
                    offset,
                    vaddr: at(header + 16, 8),
                    paddr: at(header + 24, 8),
                    filesz,
                    memsz: at(header + 40, 8),
                }),
                other => panic!("a program header of type {other}"),
            }
        }
        let incomplete = at(48, 4) & 1 == 1;
        Self { incomplete, notes, loads, extended, file }
    }

    /// The page frames it has no data for: zeros.
    fn holes(&self) -> BTreeSet<u64> {
        let hole = |l: &Load| (l.paddr + l.filesz).div_ceil(PAGE)..(l.paddr + l.memsz).div_ceil(PAGE);
        self.loads.iter().flat_map(hole).collect()
    }

    /// The page frames it describes: those it has.
    fn pages(&self) -> Vec<u64> {
        self.holes().into_iter().chain(self.data().into_keys()).collect::<BTreeSet<u64>>().into_iter().collect()
    }

    /// Where the data of each page are that has some; all headers agree about it.
    fn data(&self) -> BTreeMap<u64, u64> {
        let mut data = BTreeMap::new();
        for l in &self.loads {
            for pfn in l.paddr / PAGE..(l.paddr + l.filesz).div_ceil(PAGE) {
                let at = l.offset + pfn * PAGE - l.paddr;
                assert_eq!(*data.entry(pfn).or_insert(at), at, "page frame {pfn:#x} is in the file twice");
            }
        }
        data
    }

    fn page(&self, at: u64) -> Option<&[u8]> {
        self.file.get(at as usize..(at + PAGE) as usize)
    }
}

fn elf(level: u8) -> DumpOptions {
    DumpOptions { format: Format::Elf, ..options(level) }
}

/// Memory, by the library's reader.
fn ram(file: &[u8]) -> BTreeSet<u64> {
    let input = Input::from_bytes(Arc::new(file.to_vec())).unwrap();
    input.memory().ram().all_runs().flat_map(|(start, end)| start.0..end.0).collect()
}

fn check(image: &Image, level: u8, report: &Report, file: Vec<u8>, what: &str) -> Core {
    assert!(ram(&file).into_iter().eq(image.ram().iter().cloned().flatten()), "{what}: RAM");
    let core = Core::read(file);
    assert!(report.complete && !core.incomplete, "{what}");
    let excluded = exclusion(level, "", "").classes;
    same_pages(image, &core.pages(), &kept(image, excluded), what);
    let (data, holes) = (core.data(), core.holes());
    for (pfn, at) in &data {
        assert!(core.page(*at) == Some(&image.page(*pfn)[..]), "{what}: the bytes of page frame {pfn:#x}");
    }
    let zero = |pfn: &u64| image.page(*pfn).iter().all(|b| *b == 0);
    assert!(holes.iter().all(|pfn| zero(pfn) && !data.contains_key(pfn)), "{what}");
    // Zeros have data only beside data, and where they are few; or where they were not looked for.
    let zeros: Vec<u64> = data.keys().copied().filter(zero).collect();
    if excluded.has(PageClass::Zero) {
        for run in zeros.chunk_by(|a, b| a + 1 == *b) {
            let (before, behind) = (run[0].wrapping_sub(1), run[run.len() - 1] + 1);
            let beside = [before, behind].iter().any(|pfn| data.contains_key(pfn));
            assert!(run.len() < 4 && beside, "{what}: {run:x?} have data");
        }
    } else {
        assert!(holes.is_empty(), "{what}");
    }
    assert_eq!(report.kept_pages, core.pages().len() as u64, "{what}");
    assert_eq!(report.zero_pages, if excluded.has(PageClass::Zero) { (zeros.len() + holes.len()) as u64 } else { 0 });
    let row = report.elf.unwrap();
    assert_eq!((row.segments, row.hole_pages), (core.loads.len() as u64, holes.len() as u64), "{what}");
    core
}

/// Memory with gaps of every kind: short ones, long ones, at the beginning, at the end, with pages in them that must not be read.
fn gaps() -> Image {
    let text = "
        @0x1100 255 cache
        @0x11ff   1 slab
        @0x1200 256 cache
        @0x1300   8 slab
        @0x1310   8 anon
        @0x1318   1 hwpoison
        @0x1319   7 anon
        @0x1320   8 slab
        @0x1330   1 offline
        @0x1331   1 zero
        @0x1340   8 slab
        @0x1400 512 buddy order=9
        @0x1604   8 zero
        @0x1700   4 slab
        @0x1780 128 cache";
    Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x1100..0x1800).pages(text).build()
}

#[test]
fn an_elf_core_has_the_pages_of_each_level_at_their_addresses() {
    for layout in LAYOUTS {
        let image = Machine::b0(layout).cpus(2).build();
        let source = core(&image);
        let before = Input::from_bytes(Arc::new(source.clone())).unwrap();
        for level in [0, 1, 2, 31] {
            let what = format!("{}, level {level}", layout.name);
            let (report, file) = dump(source.clone(), &elf(level));
            let core = check(&image, level, &report, file, &what);
            let again = Input::from_bytes(Arc::new(core.file.clone())).unwrap();
            assert_eq!((again.notes(), again.level()), (before.notes(), Some(level.into())), "{what}: notes");
            for load in &core.loads {
                let of = before.segments().iter().find(|s| (s.vaddr..s.vaddr + s.mem_size).contains(&load.vaddr));
                let of = of.unwrap_or_else(|| panic!("{what}: {load:x?} is nowhere in the source"));
                assert_eq!(load.vaddr - of.vaddr, load.paddr - of.paddr, "{what}: {load:x?}");
                assert!(load.vaddr + load.memsz <= of.vaddr + of.mem_size, "{what}: {load:x?}");
            }
        }
    }
}

#[test]
fn what_is_left_out_is_in_no_program_header_and_zeros_are_in_one_without_data() {
    let image = gaps();
    for level in [0, 1, 2, 8, 31] {
        let (report, file) = dump(core(&image), &elf(level));
        let core = check(&image, level, &report, file, &format!("level {level}"));
        let (pages, data) = (core.pages(), core.data());
        assert!(!pages.contains(&0x1318) && !pages.contains(&0x1330), "what must not be read");
        if level == 31 {
            for left_out in [0x1100, 0x11fe, 0x1200, 0x1310, 0x1400, 0x17ff] {
                assert!(!pages.contains(&left_out), "{left_out:#x}");
            }
            assert!(core.holes().contains(&0x1604) && data.contains_key(&0x1331) && data.contains_key(&0x1700));
        }
    }
}

#[test]
fn the_same_bytes_come_out_for_any_number_of_threads() {
    let image = gaps();
    for level in [0, 1, 31] {
        let all = dump(core(&image), &DumpOptions { threads: Some(1), ..elf(level) }).1;
        for threads in [2, 3, 16] {
            assert!(
                dump(core(&image), &DumpOptions { threads: Some(threads), ..elf(level) }).1 == all,
                "level {level}"
            );
        }
    }
}

#[test]
fn a_core_that_was_filtered_is_filtered_again_to_the_same_dump() {
    for name in ["6.12", "7.1"] {
        let image = Machine::b0(KernelLayout::get(name)).build();
        for level in [0, 1, 2, 8, 16, 17, 26, 30, 31] {
            let direct = dump(core(&image), &options(level)).1;
            let filtered = dump(core(&image), &elf(level)).1;
            let (report, again) = dump(filtered.clone(), &options(level));
            assert_eq!((report.container.as_str(), report.ram_pages), ("elf", 256));
            assert!(again == direct, "{name}, level {level}");
            assert!(dump(filtered.clone(), &elf(level)).1 == filtered, "{name}, level {level}: elf again");
        }
    }
}

#[test]
fn a_page_in_two_segments_and_parts_of_pages_are_described_as_they_were() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let mut source = image.elf().with_image();
    source.split(0x1010 * PAGE + 1234);
    source.split(0x1158 * PAGE + 1);
    for level in [0, 31] {
        let (report, file) = dump(source.bytes(), &elf(level));
        let core = Core::read(file);
        assert!(report.complete);
        let whole = Core::read(dump(image.elf().with_image().bytes(), &elf(level)).1);
        assert_eq!(core.pages(), whole.pages(), "level {level}");
        for (pfn, at) in core.data() {
            assert!(core.page(at) == Some(&image.page(pfn)[..]), "page frame {pfn:#x}");
        }
    }
}

/// The pages in which an input without data at `there` stands for zeros, and the input.
fn with_holes(image: &Image) -> (Vec<u8>, impl Fn(&u64) -> bool) {
    let mut source = image.elf().with_image();
    let second = source.segments.pop().unwrap();
    let piece = |from: u64, pages: u64, filesz: u64| Segment {
        filesz,
        ..Segment::new(from * PAGE, second.vaddr + (from - 0x1100) * PAGE, pages * PAGE)
    };
    source.segments.extend([
        piece(0x1100, 0x28, 0),
        piece(0x1128, 0x28, 0x28 * PAGE),
        piece(0x1150, 0x30, 0x10 * PAGE),
    ]);
    (source.bytes(), |pfn: &u64| *pfn < 0x1100 || (0x1128..0x1160).contains(pfn))
}

#[test]
fn c21_what_an_input_has_no_data_for_and_may_have_left_out_is_in_no_format() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let (source, there) = with_holes(&image);
    let never_left_out = kept(&image, exclusion(31, "", "").classes);
    let unknown = |pfn: &u64| !there(pfn) && !never_left_out.contains(pfn);
    let absent = image.ram().iter().cloned().flatten().filter(unknown).count() as u64;
    for level in [0, 1, 31] {
        let (report, file) = dump(source.clone(), &elf(level));
        let said = report.notes.iter().filter(|note| note.contains("p_filesz below p_memsz")).count();
        assert!(report.complete && said == 1, "{:?}", report.notes);
        assert!(report.absent_pages == absent && absent > 0, "level {level}: {} of {absent}", report.absent_pages);
        let core = Core::read(file.clone());
        assert!(core.holes().iter().any(|pfn| !there(pfn)), "zeros stay");
        assert!(!core.pages().iter().any(unknown), "level {level}: what nobody knows is not handed out");
        let zeros = core.data().into_iter().filter(|(pfn, _)| !there(pfn));
        assert!(zeros.count() < 4, "level {level}: nothing is in the file that was not, but beside data");
        let (report, direct) = dump(source.clone(), &options(level));
        assert!(report.complete);
        let kdump = Dump::read(direct.clone());
        assert_eq!(kdump.kept, core.pages(), "level {level}");
        assert!(report.zero_pages as usize >= core.holes().len());
        let (report, again) = dump(file, &options(level));
        assert!(again == direct && report.notes.iter().all(|note| !note.contains("p_filesz")), "level {level}");
    }
}

#[test]
fn explain_and_verify_tell_what_is_not_known_from_what_is_zeros() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let (source, there) = with_holes(&image);
    let never_left_out = kept(&image, exclusion(31, "", "").classes);
    let folder = place();
    let path = folder.path().join("core");
    std::fs::write(&path, source).unwrap();
    let holes: Vec<u64> = image.ram().iter().cloned().flatten().filter(|pfn| !there(pfn)).collect();
    let subjects: Vec<Subject> = holes.iter().map(|pfn| Subject::Pfn(Pfn(*pfn))).collect();
    let told = explain(&path, &subjects, None).unwrap().pages;
    for (pfn, page) in holes.iter().zip(&told) {
        let zeros = never_left_out.contains(pfn);
        assert_eq!(page.file.state, if zeros { State::Kept } else { State::LeftOut }, "{pfn:#x}");
        assert_eq!(page.why.contains("which means zeros"), zeros, "{pfn:#x}: {}", page.why);
        assert_eq!(page.why.contains("does not tell the two apart"), !zeros, "{pfn:#x}: {}", page.why);
    }
    let unknown = holes.iter().filter(|pfn| !never_left_out.contains(pfn)).count();
    let found = verify(&path, &VerifyOptions { read_pages: true, ..VerifyOptions::default() }, &Silent).unwrap();
    let row = found.checks.iter().find(|check| check.what == "holes").unwrap();
    assert_eq!(row.verdict, Verdict::Good);
    assert!(row.detail.contains(&format!("{unknown} may be zeros or have been left out")), "{}", row.detail);
    assert_eq!(found.pages.stored, image.ram().iter().cloned().flatten().count() as u64 - unknown as u64);
}

#[test]
fn a_header_of_our_own_core_that_claims_more_than_its_zeros_adds_no_page_and_is_named() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let (_, sound) = dump(core(&image), &elf(31));
    let loads = Core::read(sound.clone()).loads;
    let pages = |file: &[u8]| dump(file.to_vec(), &options(31)).1;
    let whole = Dump::read(pages(&sound)).kept;
    for (index, load) in loads.iter().enumerate() {
        for memsz in [1 << 45, load.memsz + (1 << 24)] {
            let mut bad = sound.clone();
            // PT_NOTE stands first.
            let at = 64 + 56 * (index + 1) + 40;
            bad[at..at + 8].copy_from_slice(&u64::to_le_bytes(memsz));
            let input = Input::from_bytes(Arc::new(bad.clone())).unwrap();
            let named = input.problems().iter().any(|problem| problem.to_string().contains("p_memsz"));
            assert!(named, "{load:x?}: {:?}", input.problems());
            let kept = Dump::read(pages(&bad)).kept;
            assert!(kept.iter().all(|pfn| whole.contains(pfn)), "{load:x?}: no page is added");
        }
    }
}

#[test]
fn zeros_of_an_input_are_not_read_whatever_they_span() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let mut source = image.elf().with_image();
    let hole = |at: u64, len: u64| Segment { filesz: 0, ..Segment::new(at, image.page_offset + at, len) };
    source.segments.push(hole(1 << 40, 1 << 42));
    let (report, with) = dump(source.bytes(), &options(31));
    let without = dump(image.elf().with_image().bytes(), &options(31)).1;
    assert_eq!((report.complete, report.total_pages < 1 << 20), (true, true), "the kernel has no struct page for them");
    assert_eq!(Dump::read(with).kept, Dump::read(without).kept);
    let (report, file) = dump(source.bytes(), &elf(31));
    assert!(report.complete);
    assert!(Core::read(file).pages().into_iter().all(|pfn| pfn < 0x2000));
}

#[test]
fn c22_segments_without_a_physical_address_are_not_written() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let mut source = image.elf().with_image();
    let module = Segment { source: Some(0x1010 * PAGE), ..Segment::new(u64::MAX, 0xffff_c900_0000_0000, 4 * PAGE) };
    source.segments.insert(0, module);
    let (report, file) = dump(source.bytes(), &elf(31));
    check(&image, 31, &report, file, "kcore");
}

#[test]
fn more_than_65534_segments_are_counted_in_the_section_header() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let mut source = image.elf().with_image();
    // Page frames without a struct page, far apart: they stay. All have the bytes of the first.
    let real = source.segments.len();
    for i in 0..70_000u64 {
        let at = (0x10_0000 + 2 * i) * PAGE;
        let shares = (i > 0).then_some(real);
        let page = Segment { source: Some(0x1010 * PAGE), shares, ..Segment::new(at, image.page_offset + at, PAGE) };
        source.segments.push(page);
    }
    let (report, file) = dump(source.bytes(), &elf(31));
    assert!(report.complete);
    let core = Core::read(file.clone());
    assert!(core.extended && core.loads.len() > 70_000);
    let data = core.data();
    let far = (0..70_000).map(|i| 0x10_0000 + 2 * i).filter(|pfn| data.contains_key(pfn)).count();
    assert_eq!(far, 70_000);
    assert!(
        data.iter()
            .filter(|(pfn, _)| **pfn >= 0x10_0000)
            .all(|(_, at)| core.page(*at) == Some(&image.page(0x1010)[..]))
    );
    let again = Input::from_bytes(Arc::new(file)).unwrap();
    assert_eq!(again.segments().len(), core.loads.len());
}

#[test]
fn a_kdump_compressed_input_becomes_the_core_that_its_source_would_have_become() {
    for name in ["5.10", "6.12"] {
        let image = Machine::b0(KernelLayout::get(name)).build();
        let (_, direct) = dump(core(&image), &elf(31));
        let ended = try_dump(Arc::new(image.kdump().bytes()), &elf(31));
        let report = ended.result.unwrap();
        assert!(report.complete, "{name}: {:?}", report.notes);
        let (direct, ours) = (Core::read(direct), Core::read(std::fs::read(&ended.path).unwrap()));
        assert_eq!(ram(&direct.file), ram(&ours.file), "{name}");
        // Without segments the kernel image is guarded by more.
        let again = Dump::read(dump(image.kdump().bytes(), &options(31)).1);
        same_pages(&image, &ours.pages(), &again.kept, name);
        assert!(direct.pages().iter().all(|pfn| again.kept.contains(pfn)), "{name}");
        let (one, other) = (direct.data(), ours.data());
        for (pfn, at) in &one {
            assert_eq!(direct.page(*at), ours.page(other[pfn]), "{name}: pfn {pfn:#x}");
        }
        // At the addresses of the direct map, and the image at its own.
        let places = |core: &Core| core.loads.iter().map(|l| l.vaddr.wrapping_sub(l.paddr)).collect::<BTreeSet<u64>>();
        assert_eq!(places(&ours), places(&direct), "{name}");
    }
}

#[test]
fn a_core_of_a_kdump_compressed_file_has_its_notes_what_was_erased_its_holes_and_its_mark() {
    let image = Machine::b0(KernelLayout::get("6.12")).cpus(2).build();
    let mut source = image.kdump();
    source.eraseinfo = "erase cred.security\n".to_owned();
    source.status |= INCOMPLETE;
    source.lost = (0x1120..0x1130).collect();
    let notes = Input::from_bytes(Arc::new(source.bytes())).unwrap().notes().to_vec();
    let (report, file) = try_dump(Arc::new(source.bytes()), &elf(0)).made();
    let core = Core::read(file.clone());
    assert!(!report.complete && core.incomplete && core.notes.starts_with(&notes));
    let data = core.data();
    assert_eq!(ram(&file).len(), 256, "what is lost exists");
    assert!(core.holes().is_empty(), "what is lost is no zeros");
    let all = kept(&image, exclusion(0, "", "").classes).into_iter().filter(|pfn| !(0x1120..0x1130).contains(pfn));
    same_pages(&image, &data.keys().copied().collect::<Vec<u64>>(), &all.collect::<Vec<u64>>(), "data");
    let again = Input::from_bytes(Arc::new(file.clone())).unwrap();
    assert!(again.incomplete());
    assert_eq!(again.erase_info().unwrap(), source.eraseinfo.as_bytes());
    assert_eq!(again.vmcoreinfo(), Some(image.vmcoreinfo.as_bytes()));
    // And so back and forth.
    let (_, kdump) = dump(file, &options(0));
    assert_eq!(Input::from_bytes(Arc::new(kdump.clone())).unwrap().erase_info().unwrap(), source.eraseinfo.as_bytes());
    let (_, third) = dump(kdump, &elf(0));
    assert_eq!(Core::read(third).notes, core.notes);
}

#[test]
fn a_core_of_an_unknown_kernel_has_physical_addresses_for_virtual_ones_and_says_so() {
    let said =
        |report: &Report| report.notes.iter().any(|note| note.contains("its physical address for the virtual one"));
    let mut image = Machine::b0(KernelLayout::get("6.12")).build();
    image.vmcoreinfo = image.vmcoreinfo.replace("SYMBOL(init_uts_ns)", "SYMBOL(other)");
    let (report, file) = dump(image.kdump().bytes(), &elf(1));
    assert!(report.complete && said(&report), "{:?}", report.notes);
    let core = Core::read(file.clone());
    assert!(core.loads.iter().all(|load| load.vaddr == load.paddr));
    assert_eq!(ram(&file).len(), 256);
    for (pfn, at) in core.data() {
        assert!(core.page(at) == Some(&image.page(pfn)[..]), "page frame {pfn:#x}");
    }
    // An ELF core has addresses already.
    let (report, again) = dump(file.clone(), &elf(1));
    assert!(!said(&report) && again == file);
}

#[test]
fn a_core_of_a_kdump_compressed_file_has_its_class_byte_order_and_machine() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    for (abi, order, ident) in [
        (Abi::Lp64, Order::Little, [2, 1]),
        (Abi::Lp64, Order::Big, [2, 2]),
        (Abi::Ilp32Pack, Order::Little, [1, 1]),
        (Abi::Ilp32Pad, Order::Big, [1, 2]),
    ] {
        let mut source = image.kdump();
        (source.abi, source.order) = (abi, order);
        let before = Input::from_bytes(Arc::new(source.bytes())).unwrap();
        let (_, file) = dump(source.bytes(), &elf(1));
        assert_eq!(file[4..6], ident, "{abi:?}");
        let after = Input::from_bytes(Arc::new(file)).unwrap();
        assert_eq!(
            (after.machine(), after.byte_order()),
            (before.machine(), if order == Order::Big { Endian::Big } else { Endian::Little }),
            "{abi:?}"
        );
        let (before, after) = (before.memory(), after.memory());
        assert!(before.ram().all_runs().eq(after.ram().all_runs()), "{abi:?}");
        let mut pages = [[0; PAGE as usize]; 2];
        for pfn in after.stored().all_runs().flat_map(|(start, end)| start.0..end.0) {
            for (memory, page) in [before, after].into_iter().zip(&mut pages) {
                memory.view().read(coresift_format::PhysAddr(pfn * PAGE), page).unwrap();
            }
            assert!(pages[0] == pages[1] && pages[0] == image.page(pfn), "{abi:?}: page frame {pfn:#x}");
        }
    }
}

/// A file in which some pages cannot be read, and which remembers what was.
struct Disk {
    bytes: Vec<u8>,
    bad: Vec<std::ops::Range<u64>>,
    reads: Mutex<Vec<std::ops::Range<u64>>>,
    /// What can be read once.
    later: Vec<std::ops::Range<u64>>,
}

impl Bytes for Disk {
    fn name(&self) -> &str {
        "disk"
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let asked = offset..offset + buf.len() as u64;
        let meets = |range: &std::ops::Range<u64>, other: &std::ops::Range<u64>| {
            range.start < other.end && other.start < range.end
        };
        let mut reads = self.reads.lock().unwrap();
        let again = |later: &&std::ops::Range<u64>| meets(later, &asked) && reads.iter().any(|read| meets(read, later));
        let failed = self.bad.iter().any(|bad| meets(bad, &asked)) || self.later.iter().find(again).is_some();
        reads.push(asked);
        drop(reads);
        if failed {
            return Err(io::Error::from_raw_os_error(5));
        }
        Bytes::read_at(&self.bytes, offset, buf)
    }

    fn window(&self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn is_memory(&self) -> bool {
        true
    }
}

/// Where page frame `pfn` is in `core`, by each segment.
fn places(core: &[u8], pfn: u64) -> Vec<std::ops::Range<u64>> {
    let read = Core::read(core.to_vec());
    let at = pfn * PAGE;
    let of = |l: &&Load| l.paddr <= at && at < l.paddr + l.filesz;
    read.loads.iter().filter(of).map(|l| l.offset + at - l.paddr).map(|at| at..at + PAGE).collect()
}

#[test]
fn c09_offline_and_poisoned_pages_are_never_read_for_an_elf_core() {
    let image = gaps();
    let source = core(&image);
    for level in [0, 1, 31] {
        let disk =
            Arc::new(Disk { bytes: source.clone(), bad: Vec::new(), reads: Mutex::default(), later: Vec::new() });
        let (report, _) = try_dump(Arc::<Disk>::clone(&disk), &elf(level)).made();
        assert!(report.complete);
        let reads = disk.reads.lock().unwrap();
        for page in [0x1318, 0x1330].iter().flat_map(|pfn| places(&source, *pfn)) {
            let read = reads.iter().find(|r| r.start < page.end && page.start < r.end);
            assert!(read.is_none(), "level {level}: {page:x?} was read by {read:x?}");
        }
    }
}

#[test]
fn a_page_that_cannot_be_read_is_told_and_leaves_the_core_marked() {
    let image = gaps();
    let source = core(&image);
    // A slab page, and a cache page, which is nobody's loss.
    let bad = [0x1302, 0x1108].iter().flat_map(|pfn| places(&source, *pfn)).collect();
    let bad: Vec<_> = bad;
    for (level, lost) in [(31, vec![0x1302]), (0, vec![0x1108, 0x1302])] {
        let disk =
            Arc::new(Disk { bytes: source.clone(), bad: bad.clone(), reads: Mutex::default(), later: Vec::new() });
        let (report, file) = try_dump(disk, &elf(level)).made();
        assert!(!report.complete);
        assert_eq!(report.unreadable_pages, lost.len() as u64, "level {level}");
        assert!(report.unreadable.iter().map(|run| (run.pfn, run.pages)).eq(lost.iter().map(|pfn| (*pfn, 1))));
        assert!(report.unreadable[0].reason.contains("os error 5"));
        let core = Core::read(file);
        assert!(core.incomplete);
        let data = core.data();
        assert!(!data.contains_key(&0x1302) && !data.contains_key(&0x1108), "level {level}: no zeros in their place");
        for (pfn, at) in &data {
            assert!(core.page(*at) == Some(&image.page(*pfn)[..]), "page frame {pfn:#x}");
        }
    }
}

#[test]
fn pages_that_fail_when_they_are_to_be_copied_are_in_no_header_and_the_others_stay() {
    let text = "@0x20000 2000 kernel content=text";
    let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(0x20000..0x20800).pages(text).build();
    let source = core(&image);
    // One page, then every other one: more than there is room for in headers of their own.
    let many: Vec<u64> = (0x20100..0x20400).step_by(2).collect();
    for (lost, threads) in [(vec![0x20123], 1), (vec![0x20123, 0x20124, 0x20200], 4), (many, 2)] {
        let later: Vec<_> = lost.iter().flat_map(|pfn| places(&source, *pfn)).collect();
        let disk = Arc::new(Disk { bytes: source.clone(), bad: Vec::new(), reads: Mutex::default(), later });
        let (report, file) = try_dump(disk, &DumpOptions { threads: Some(threads), ..elf(0) }).made();
        assert_eq!((report.complete, report.unreadable_pages), (false, lost.len() as u64));
        let core = Core::read(file);
        assert!(core.incomplete);
        let data = core.data();
        assert!(lost.iter().all(|pfn| !data.contains_key(pfn)), "no zeros in their place");
        for (pfn, at) in &data {
            assert!(core.page(*at) == Some(&image.page(*pfn)[..]), "page frame {pfn:#x}");
        }
        let near = |pfn: &u64| lost.first() <= Some(pfn) && Some(pfn) <= lost.last();
        assert!(
            (0x20000..0x20800)
                .filter(|pfn| lost.len() < 9 && !lost.contains(pfn) || !near(pfn))
                .all(|pfn| data.contains_key(&pfn))
        );
    }
}

#[test]
fn a_block_device_is_refused_before_anything_is_written_to_it() {
    let place = place();
    let (input, device) = (place.path().join("core"), place.path().join("device"));
    std::fs::write(&input, core(&gaps())).unwrap();
    // Only root may make one; it has no driver behind it, so that opening it fails in another way.
    let made = std::process::Command::new("mknod").arg(&device).args(["b", "7", "250"]).output();
    if !made.is_ok_and(|out| out.status.success()) {
        return;
    }
    let target = Target::Path(device);
    for dry_run in [false, true] {
        let options = DumpOptions { force: true, dry_run, ..elf(31) };
        let refused = coresift_engine::dump(&input, &target, &options, &Silent).unwrap_err().to_string();
        assert!(refused.contains("an ELF core needs a file") && refused.contains("or give a file"), "{refused}");
    }
}

#[test]
fn c22_the_pages_of_a_kcore_are_counted_and_what_has_no_address_is_skipped() {
    let image = gaps();
    let mut kcore = image.elf().with_image();
    // Memory in many small pieces, and between them what has no physical address.
    for pfn in (0x1104..0x1800).step_by(4) {
        kcore.split(pfn * PAGE);
    }
    for vaddr in [0xffff_c900_0000_0000, 0xffff_ffff_c000_0000] {
        let none = Segment { source: Some(0x1010 * PAGE), ..Segment::new(u64::MAX, vaddr, 4 * PAGE) };
        kcore.segments.insert(2, none);
    }
    let input = Input::from_bytes(Arc::new(kcore.bytes())).unwrap();
    let report = coresift_engine::usage(input, &options(31), &Silent).unwrap();
    for (class, name) in [(PageClass::Cache, "cache"), (PageClass::User, "user"), (PageClass::Free, "free")] {
        assert_eq!(report.excluded(class), image.truth.count(name), "{name}");
    }
    let all = dump(kcore.bytes(), &options(31)).0;
    assert_eq!(report.excluded(PageClass::Zero), all.zero_pages);
    assert_eq!((report.kept_pages, report.ram_pages), (all.kept_pages, all.ram_pages));
    assert!(report.complete && report.bytes_out == 0);
}

#[test]
fn c19_memory_at_8_and_16_tib_and_2_to_the_44_is_described_in_64_bits() {
    let image = Machine::b0(KernelLayout::get("6.12")).build();
    let mut source = image.elf().with_image();
    let ends = [(8 << 40) - PAGE, (16 << 40) - PAGE, 1 << 44];
    for at in ends {
        source.segments.push(Segment { source: Some(0x1010 * PAGE), ..Segment::new(at, image.page_offset + at, PAGE) });
    }
    let highest = ((1 << 44) >> 12) + 1;
    let (_, file) = dump(source.bytes(), &elf(31));
    let core = Core::read(file);
    let data = core.data();
    for at in ends {
        assert!(core.page(data[&(at >> 12)]) == Some(&image.page(0x1010)[..]), "{at:#x}");
    }
    let (report, file) = dump(source.bytes(), &options(31));
    assert_eq!(report.total_pages, highest);
    let input = Input::from_bytes(Arc::new(file)).unwrap();
    let (header, sub) = input.kdump_header().unwrap();
    assert_eq!((header.max_mapnr, sub.max_mapnr_64), (u32::MAX, highest), "the 32-bit field is saturated");
    let mut view = input.memory().view();
    let mut page = [0; PAGE as usize];
    for at in ends {
        view.read(coresift_format::PhysAddr(at), &mut page).unwrap();
        assert!(page[..] == image.page(0x1010)[..], "{at:#x}");
    }
}
