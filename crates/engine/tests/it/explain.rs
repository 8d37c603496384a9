//! Why a page is in a dump or not.

use crate::common::{core, dump, exclusion, kept, options, place};
use crate::reader::Dump;
use coresift_engine::{Explanation, Explanations, Fault, State, Subject, explain};
use coresift_format::{Pfn, PhysAddr};
use coresift_kernel::VirtAddr;
use coresift_synth::{Image, KernelLayout, Machine, PAGE};

fn explained(file: &[u8], subjects: &[Subject]) -> Explanations {
    let place = place();
    let path = place.path().join("dump");
    std::fs::write(&path, file).unwrap();
    explain(&path, subjects, None).unwrap()
}

fn page(file: &[u8], pfn: u64) -> Explanation {
    explained(file, &[Subject::Pfn(Pfn(pfn))]).pages.remove(0)
}

fn image() -> Image {
    Machine::new(KernelLayout::get("6.12"))
        .cpus(2)
        .ram(0x1000..0x1080)
        .ram(0x3000..0x3100)
        .pages(
            "@0x3000 20 zero
             @0x3020 16 hugetlb order=4
             @0x3030  4 hwpoison
             @0x3034  4 offline
             @0x3040 32 buddy order=5
             @0x3060  8 buddy order=3
             @0x3068 30 cache
             @0x3086 10 private-cache
             @0x3090 30 anon
             @0x30b0 16 slab order=2",
        )
        .build()
}

#[test]
fn the_class_is_that_by_which_the_dump_was_made_and_the_state_what_became_of_the_page() {
    for name in ["2.6.32", "4.18", "5.10", "6.1", "6.6", "6.12", "7.1"] {
        let image = Machine::b0(KernelLayout::get(name)).build();
        let (_, file) = dump(core(&image), &options(31));
        let kept = kept(&image, exclusion(31, "", "").classes);
        let all: Vec<u64> = image.ram().iter().cloned().flatten().collect();
        let subjects: Vec<Subject> = all.iter().map(|pfn| Subject::Pfn(Pfn(*pfn))).collect();
        let found = explained(&file, &subjects);
        assert!(found.failed.is_empty());
        for (pfn, found) in all.iter().zip(&found.pages) {
            let (truth, kernel) = (image.truth.class(*pfn), found.kernel.as_ref().unwrap());
            assert!(
                kernel.class == truth || ["kernel", "zero", "unaccepted"].contains(&truth),
                "{name} {pfn:#x}: {} is {truth}",
                kernel.class
            );
            let expected = if kept.binary_search(pfn).is_ok() { State::Kept } else { State::LeftOut };
            assert_eq!(found.file.state, expected, "{name} {pfn:#x} {truth}: {}", found.why);
            assert!(found.why.contains(kernel.class), "{name} {pfn:#x}: {}", found.why);
        }
    }
}

#[test]
fn blocks_flags_and_rules_are_named() {
    let image = image();
    let (_, file) = dump(core(&image), &options(31));
    let of = |pfn| page(&file, pfn);
    let kernel = |pfn| of(pfn).kernel.unwrap();
    assert_eq!(kernel(0x3047).block, Some((0x3040, 5)), "inside a free block");
    assert_eq!(kernel(0x3060).block, Some((0x3060, 3)));
    assert_eq!(kernel(0x302f).block, Some((0x3020, 4)), "inside a huge page");
    assert_eq!(kernel(0x302f).tail_of, Some(0x3020));
    assert_eq!(kernel(0x3068).block, None);
    assert_eq!(kernel(0x3040).page_type, Some("buddy"));
    assert!(kernel(0x3086).flag_names.iter().any(|name| name == "PG_private"));
    assert!(kernel(0x3090).mapping.unwrap() & 1 == 1);
    assert!(kernel(0x1000).protected.contains(&"kernel image"), "{:?}", kernel(0x1000));
    for (pfn, rule) in [
        (0x3047, "it is free, which bit 16 of dump level 31 leaves out"),
        (0x3068, "it is cache, which bit 2 of dump level 31 leaves out"),
        (0x3086, "it is private-cache, which bit 4 of dump level 31 leaves out"),
        (0x3090, "it is user, which bit 8 of dump level 31 leaves out"),
        (0x3020, "it is hugetlb, which bit 8 of dump level 31 leaves out"),
        (0x3030, "it is hwpoison, which no dump may read"),
        (0x30b0, "it is slab, which no dump level leaves out"),
        (0x3003, "it is kernel, which no dump level leaves out; it is all zeros"),
        (0x2000, "the 1st bitmap has no RAM there"),
    ] {
        assert_eq!(of(pfn).why, rule, "{pfn:#x}");
    }
}

#[test]
fn the_place_in_the_file_and_the_pages_that_share_it_are_told() {
    let image = image();
    let (_, file) = dump(core(&image), &options(31));
    let dump = Dump::read(file.clone());
    let rank = dump.kept.iter().position(|pfn| *pfn == 0x3003).unwrap();
    let desc = dump.descriptor(rank);
    let found = page(&file, 0x3003).file;
    assert_eq!((found.data, found.size, found.codec), (Some(desc.offset), Some(desc.size), Some("none")));
    assert_eq!(found.zero, Some(true));
    let zeros = (0..dump.kept.len()).filter(|rank| dump.descriptor(*rank).offset == desc.offset).count() as u64;
    assert!(zeros >= 20);
    assert_eq!((found.sharers, found.first_sharers.len()), (zeros - 1, 4));
    assert!(!found.first_sharers.contains(&0x3003));
}

#[test]
fn a_page_that_was_never_written_or_lies_beyond_the_end_is_lost() {
    let image = image();
    let mut made = image.kdump();
    made.lost = [0x3068].into();
    let file = made.bytes();
    let found = page(&file, 0x3068);
    assert_eq!((found.file.state, found.file.fault), (State::Lost, Some(Fault::Unwritten)));
    let found = page(&file[..file.len() - 5000], 0x30ff);
    assert_eq!((found.file.state, found.file.fault), (State::Lost, Some(Fault::BeyondEnd)), "{}", found.why);
    let whole = core(&image);
    let found = page(&whole[..whole.len() - 5000], 0x30ff);
    assert_eq!(
        (found.file.state, found.file.fault),
        (State::Lost, Some(Fault::BeyondEnd)),
        "an ELF core: {}",
        found.why
    );
}

#[test]
fn addresses_lead_to_their_page_and_those_that_lead_nowhere_are_told_beside_the_others() {
    let image = image();
    let (_, file) = dump(core(&image), &options(31));
    let init_task = image.symbols["init_uts_ns"];
    let subjects = [
        Subject::Physical(PhysAddr(0x3090 * PAGE + 17)),
        Subject::Virtual(VirtAddr(init_task)),
        Subject::Virtual(VirtAddr(0xffff_ffff_ffff_f000)),
        Subject::Symbol("init_uts_ns".to_owned()),
        Subject::Symbol("no_such_symbol".to_owned()),
    ];
    let found = explained(&file, &subjects);
    let pfns: Vec<u64> = found.pages.iter().map(|page| page.pfn).collect();
    assert_eq!(pfns.len(), 3);
    assert_eq!(pfns[0], 0x3090);
    assert_eq!(pfns[1], (init_task - image.image_virt) / PAGE + image.image.start);
    assert_eq!(pfns[1], pfns[2]);
    assert_eq!(found.failed.len(), 2, "{:?}", found.failed);
}
