//! ELF cores.

use crate::make::{Elf, Failing, Load, flatten, note, page_of};
use coresift_format::{
    Bits, Bytes, Container, ElfCore, ElfOrigin, Endian, FileBytes, FormatError, Input, Machine, MemoryView, PageSet,
    PageSize, Pfn, PhysAddr, PhysicalMemory, ReadError, Window, faults_taken, guard_faults,
};
use proptest::prelude::*;
use std::io::Write;
use std::sync::{Arc, Mutex};

fn open(file: Vec<u8>) -> Input {
    Input::from_bytes(Arc::new(file)).unwrap()
}

fn pages(set: &PageSet) -> Vec<u64> {
    set.all_runs().flat_map(|(s, e)| s.0..e.0).collect()
}

fn read(view: &mut dyn MemoryView, addr: u64, len: usize) -> Result<Vec<u8>, ReadError> {
    let mut buf = vec![0xee; len];
    view.read(PhysAddr(addr), &mut buf)?;
    assert_eq!(view.slice(PhysAddr(addr), len).unwrap(), buf, "slice and read agree");
    Ok(buf)
}

#[test]
fn every_class_and_byte_order_is_read() {
    for bits in [Bits::B32, Bits::B64] {
        for endian in [Endian::Little, Endian::Big] {
            let mut elf = Elf::new(bits, endian).load(Load::new(0x10_0000, &page_of(7, 8192)));
            elf.machine = 40;
            let input = open(elf.build());
            assert_eq!((input.container(), input.flattened()), (Container::Elf, false));
            assert_eq!((input.bits(), input.byte_order(), input.machine()), (bits, endian, Machine::ARM));
            assert_eq!(input.cpus(), 2);
            assert_eq!(input.vmcoreinfo(), Some(&b"OSRELEASE=6.1\nPAGESIZE=4096\n"[..]));
            let at = input.vmcoreinfo_offset_in_notes().unwrap() as usize;
            assert!(input.notes()[at..].starts_with(b"OSRELEASE"));
            assert!(input.incomplete(), "e_flags bit 0");
            let segment = input.segments()[0];
            assert_eq!((segment.paddr, segment.file_size, segment.mem_size, segment.flags), (0x10_0000, 8192, 8192, 6));
            assert_eq!(pages(input.memory().ram()), [0x100, 0x101]);
            assert_eq!(input.memory().max_pfn(), Pfn(0x102));
            let mut view = input.memory().view();
            assert_eq!(read(&mut *view, 0x10_0000, 8192).unwrap(), page_of(7, 8192));
            assert_eq!(read(&mut *view, 0x10_0ffd, 7).unwrap(), page_of(7, 8192)[0xffd..][..7]);
        }
    }
}

#[test]
fn c26_program_headers_are_where_e_phoff_says() {
    for (phoff, header_size) in [(128, 64), (192, 8), (4096, 0)] {
        let mut elf = Elf::le64().load(Load::new(0, &page_of(1, 4096)));
        elf.phoff = Some(phoff);
        elf.header_size = Some(header_size);
        let input = open(elf.build());
        assert_eq!(input.cpus(), 2, "{phoff}");
        assert_eq!(read(&mut *input.memory().view(), 0, 4096).unwrap(), page_of(1, 4096));
    }
}

#[test]
fn program_headers_may_be_wider_than_they_need_but_not_narrower() {
    let mut elf = Elf::le64().load(Load::new(0, &page_of(1, 4096))).load(Load::new(8192, &page_of(2, 4096)));
    elf.entry_pad = 8;
    assert_eq!(open(elf.build()).segments().len(), 2);
    let mut file = elf.build();
    file[54] = 55;
    let error = Input::from_bytes(Arc::new(file)).err().unwrap();
    assert!(matches!(error, FormatError::BadField { field: "e_phentsize", offset: 54, .. }), "{error}");
}

#[test]
fn extended_numbering_is_read_from_the_first_section_header() {
    for bits in [Bits::B32, Bits::B64] {
        let mut elf = Elf::new(bits, Endian::Big);
        elf.extended = true;
        for i in 0..3 {
            elf = elf.load(Load::new(i * 4096, &page_of(i, 4096)));
        }
        assert_eq!(open(elf.build()).segments().len(), 3);
    }
}

#[test]
fn more_segments_than_e_phnum_can_count() {
    let mut elf = Elf::le64();
    elf.extended = true;
    elf.loads = (0..70_000).map(|i| Load::new(2 * i * 4096, &[i as u8])).collect();
    let input = open(elf.build());
    assert_eq!(input.segments().len(), 70_000);
    assert_eq!(input.memory().stored().len(), 70_000);
    assert_eq!(read(&mut *input.memory().view(), 2 * 69_999 * 4096, 2).unwrap(), [69_999u64 as u8, 0]);
}

#[test]
fn several_note_segments_are_one_behind_the_other() {
    let mut elf = Elf::le64().load(Load::new(0, &[1; 4096]));
    let cpu = |n| note(Endian::Little, b"CORE", 1, &[n; 336]);
    // The middle one ends at no multiple of 4.
    let odd = [cpu(2), vec![0]].concat();
    elf.notes = vec![cpu(1), odd.clone(), note(Endian::Little, b"VMCOREINFO", 0, b"A=1\n")];
    let input = open(elf.build());
    assert_eq!(input.cpus(), 2);
    assert_eq!(input.vmcoreinfo(), Some(&b"A=1\n"[..]));
    assert_eq!(input.notes().len(), 356 + 360 + 12 + 12 + 4);
}

#[test]
fn a_core_without_notes_opens() {
    let mut elf = Elf::le64().load(Load::new(0, &[1; 4096]));
    elf.notes.clear();
    let input = open(elf.build());
    assert_eq!((input.cpus(), input.vmcoreinfo(), input.vmcoreinfo_offset_in_notes()), (0, None, None));
}

#[test]
fn the_first_segment_in_the_file_wins_where_segments_overlap() {
    let elf = Elf::le64()
        .load(Load::new(0x2000, &[1; 0x1800]))
        .load(Load::new(0x1000, &[2; 0x4000]))
        .load(Load::new(0x2000, &[3; 0x1000]));
    let input = open(elf.build());
    let got = read(&mut *input.memory().view(), 0x1000, 0x4000).unwrap();
    let expected = [vec![2; 0x1000], vec![1; 0x1800], vec![2; 0x1800]].concat();
    assert_eq!(got, expected);
    assert_eq!(input.memory().stored().len(), 4);
}

#[test]
fn a_segment_without_data_does_not_hide_one_that_has_them() {
    let elf = Elf::le64().load(Load::new(0x1000, &[]).spanning(0x3000)).load(Load::new(0x2000, &[7; 0x1000]));
    let input = open(elf.build());
    assert_eq!(pages(input.memory().ram()), [1, 2, 3]);
    assert_eq!(pages(input.memory().known_zero()), [1, 3]);
    assert_eq!(read(&mut *input.memory().view(), 0x2000, 16).unwrap(), [7; 16]);
}

#[test]
fn segments_that_touch_inside_a_page_complete_each_other_and_the_rest_is_zero() {
    let elf = Elf::le64()
        .load(Load::new(0x1100, &[1; 0x300]))
        .load(Load::new(0x1400, &[2; 0x200]))
        .load(Load::new(0x1800, &[3; 0x1000]));
    let input = open(elf.build());
    assert_eq!(pages(input.memory().ram()), [1, 2]);
    assert_eq!(pages(input.memory().stored()), [1, 2]);
    let expected =
        [vec![0; 0x100], vec![1; 0x300], vec![2; 0x200], vec![0; 0x200], vec![3; 0x1000], vec![0; 0x800]].concat();
    assert_eq!(read(&mut *input.memory().view(), 0x1000, 0x2000).unwrap(), expected);
}

#[test]
fn c21_memory_without_data_is_zeros_that_need_not_be_read_unless_it_may_have_been_left_out() {
    let elf = Elf::le64()
        .load(Load::new(0x1000, &[1; 0x1800]).spanning(0x4000))
        .load(Load::new(0x8000, &[]).spanning(0x2000))
        .load(Load::new(0xc000, &[5; 0x1000]));
    let input = open(elf.build());
    let memory = input.memory();
    assert_eq!(pages(memory.ram()), [1, 2, 3, 4, 8, 9, 12]);
    assert_eq!(pages(memory.stored()), [1, 2, 3, 4, 8, 9, 12]);
    assert_eq!(pages(memory.known_zero()), [3, 4, 8, 9], "a page with any data is to be read");
    assert_eq!((memory.data_pages(), input.as_elf().unwrap().data_end()), (3, Pfn(13)));
    let mut view = memory.view();
    let first = [vec![1; 0x1800], vec![0; 0x2800]].concat();
    assert_eq!(read(&mut *view, 0x1000, 0x4000).unwrap(), first);
    assert_eq!(read(&mut *view, 0x8123, 0x1800).unwrap(), [0; 0x1800]);
    assert!(matches!(read(&mut *view, 0x5000, 1), Err(ReadError::NotPresent { addr: PhysAddr(0x5000) })));
    assert!(matches!(read(&mut *view, u64::MAX, 2), Err(ReadError::NotPresent { .. })));
    assert!(input.as_elf().unwrap().hole_note().unwrap().starts_with("4 pages"));
    assert!(input.problems().is_empty(), "{:?}", input.problems());
    let mut input = open(elf.build());
    input.set_unknown(PageSet::from_ranges([(Pfn(4), Pfn(9))]));
    let core = input.as_elf().unwrap();
    assert_eq!((pages(core.stored()), pages(core.known_zero())), (vec![1, 2, 3, 9, 12], vec![3, 9]));
    assert_eq!(pages(core.ram()), [1, 2, 3, 4, 8, 9, 12]);
    assert_eq!(read(&mut *core.view(), 0x8123, 0x100).unwrap(), [0; 0x100], "as other readers have it");
}

#[test]
fn pages_whose_header_lost_its_p_filesz_are_damaged_and_no_zeros() {
    let loads = [(0x10_0000, 0x4000), (0x20_0000, 0x3000), (0x30_0000, 0x2000)];
    let of = |at: u64, len: u64| Load::new(at, &page_of(at >> 20, len as usize)).spanning(len + 0x2000);
    let whole = loads.iter().fold(Elf::le64(), |elf, (at, len)| elf.load(of(*at, *len)));
    let sound = open(whole.build());
    assert!(sound.problems().is_empty(), "{:?}", sound.problems());
    let zeros = pages(sound.memory().known_zero());
    assert_eq!(zeros, [0x104, 0x105, 0x203, 0x204, 0x302, 0x303]);
    for (index, (at, len)) in loads.into_iter().enumerate() {
        for kept in [0, 0x1000] {
            let mut elf = whole.clone();
            let offset = sound.segments()[index].file_offset;
            elf.loads[index] = of(at, len).claiming(offset, kept);
            let input = open(elf.build());
            let core = input.as_elf().unwrap();
            assert_eq!(pages(core.damaged()), pages_of(at + kept, at + len), "{at:#x}, {kept}");
            assert_eq!(pages(core.known_zero()), zeros, "{at:#x}: the others stay");
            assert!(core.stored().len() + core.damaged().len() == sound.memory().stored().len());
            assert!(matches!(read(&mut *core.view(), at + kept, 1), Err(ReadError::Corrupt { .. })));
            let problems = input.problems().iter().map(ToString::to_string).collect::<String>();
            assert!(problems.contains("p_filesz"), "{problems}");
        }
    }
}

fn pages_of(start: u64, end: u64) -> Vec<u64> {
    (start / 0x1000..end / 0x1000).collect()
}

#[test]
fn what_a_core_tells_of_itself_is_memory_that_was_left_out_and_no_note() {
    let origin = ElfOrigin { level: 31, ram: vec![(0x1000, 0x8000), (0x9800, 0xa800)], partial: false };
    let mut elf = Elf::le64().load(Load::new(0x1000, &[1; 0x1000])).load(Load::new(0x2000, &[]).spanning(0x1000));
    let before = open(elf.build());
    elf.notes.push(note(Endian::Little, "CORESIFT".as_bytes(), 0, origin.text().as_bytes()));
    let input = open(elf.build());
    assert_eq!(input.notes(), before.notes());
    assert_eq!((input.level(), before.level()), (Some(31), None));
    let core = input.as_elf().unwrap();
    assert_eq!((core.origin(), core.hole_note()), (Some(&origin), None));
    assert_eq!(pages(core.ram()), [1, 2, 3, 4, 5, 6, 7, 9, 10]);
    assert_eq!((pages(core.stored()), pages(core.known_zero())), (vec![1, 2], vec![2]));
    assert!(matches!(read(&mut *core.view(), 0x3000, 1), Err(ReadError::Excluded { pfn: Pfn(3), level: 31 })));
}

#[test]
fn c22_segments_without_a_physical_address_are_left_alone_and_counted() {
    for (bits, none) in [(Bits::B64, u64::MAX), (Bits::B32, u64::from(u32::MAX))] {
        let mut elf = Elf::new(bits, Endian::Little);
        for i in 0..50 {
            let paddr = if i % 2 == 0 { none } else { i * 0x1000 };
            elf = elf.load(Load::new(paddr, &page_of(i, 4096)));
        }
        let core = ElfCore::open(Arc::new(elf.build()), PageSize::K4).unwrap();
        assert_eq!(core.segments_without_paddr(), 25);
        assert_eq!(core.segments().len(), 50);
        assert_eq!(core.stored().len(), 25);
        assert_eq!(core.max_pfn(), Pfn(50));
        assert_eq!(read(&mut *core.view(), 0x31000, 4096).unwrap(), page_of(49, 4096));
    }
}

#[test]
fn pages_beyond_the_end_of_the_file_exist_but_are_lost() {
    let elf = Elf::le64().load(Load::new(0x1000, &page_of(1, 0x2000))).load(Load::new(0x10_0000, &page_of(2, 0x4000)));
    let mut file = elf.build();
    file.truncate(file.len() - 0x1800);
    let len = file.len() as u64;
    let input = open(file);
    match input.problems() {
        [FormatError::CutShort { offset, end, .. }] => assert_eq!((*offset, *end), (len, len + 0x1800)),
        other => panic!("{other:?}"),
    }
    let core = input.as_elf().unwrap();
    assert_eq!(pages(core.ram()), [1, 2, 0x100, 0x101, 0x102, 0x103]);
    assert_eq!(pages(core.stored()), [1, 2, 0x100, 0x101]);
    assert_eq!(pages(core.beyond_end()), [0x102, 0x103]);
    let mut view = core.view();
    assert_eq!(read(&mut *view, 0x10_0000, 0x2000).unwrap(), page_of(2, 0x4000)[..0x2000]);
    assert!(
        matches!(read(&mut *view, 0x10_0000, 0x4000), Err(ReadError::Truncated { pfn: Pfn(0x102), len: l, .. }) if l == len)
    );
    assert!(matches!(read(&mut *view, 0x10_3000, 1), Err(ReadError::Truncated { pfn: Pfn(0x103), .. })));
}

#[test]
fn claims_of_all_the_address_space_take_no_memory_and_no_time() {
    let elf = Elf::le64()
        .load(Load::new(0, &[1; 16]).spanning(u64::MAX))
        .load(Load::new(0x123, &[]).claiming(64, u64::MAX))
        .load(Load::new(u64::MAX - 5, &[3; 64]).claiming(u64::MAX - 3, 1 << 40))
        .load(Load::new(1 << 52, &[]).claiming(1 << 40, 1 << 60).spanning(1 << 63));
    let input = open(elf.build());
    assert_eq!(input.memory().ram().len(), 1 << 52);
    assert!(input.memory().stored().len() < 4, "no more pages than the file has bytes for");
    assert!(input.memory().ram().memory() + input.memory().stored().memory() < 16 << 10);
    let mut view = input.memory().view();
    assert_eq!(read(&mut *view, 0, 16).unwrap(), [1; 16]);
    assert!(read(&mut *view, 1 << 52, 1).is_err());
    assert!(read(&mut *view, u64::MAX - 5, 3).is_err());
}

#[test]
fn data_that_no_block_of_a_flattened_stream_brings_are_lost() {
    let elf =
        Elf::le64().load(Load::new(0x1000, &page_of(1, 0x1800)).claiming(0x10_0000, 1 << 57).spanning(1 << 57)).build();
    let last = [7];
    let stream = flatten([
        (0, &elf[..]),
        (0x10_0000, &page_of(2, 0x1800)[..]),
        (0x10_3800, &page_of(3, 0x800)[..]),
        (0x10_0000 + (1 << 57), &last[..]),
    ]);
    let input = open(stream);
    let core = input.as_elf().unwrap();
    assert_eq!(pages(core.stored()), [1, 2, 4], "pages of which at least a byte was written");
    assert_eq!(core.ram().len(), 1 << 45);
    assert_eq!(core.beyond_end().len() + 3, core.ram().len());
    assert!(core.beyond_end().contains(Pfn(3)) && !core.beyond_end().contains(Pfn(4)));
    let problem = input.problems().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(problem.contains("p_filesz") && problem.contains("lost"), "{problem}");
    let mut view = core.view();
    assert_eq!(read(&mut *view, 0x1000, 0x1800).unwrap(), page_of(2, 0x1800));
    assert_eq!(read(&mut *view, 0x2800, 0x800).unwrap(), [0; 0x800]);
    assert!(matches!(read(&mut *view, 0x3000, 1), Err(ReadError::Truncated { pfn: Pfn(3), .. })));
    assert_eq!(read(&mut *view, 0x4800, 0x800).unwrap(), page_of(3, 0x800));
}

#[test]
fn a_gap_in_the_data_of_a_flattened_core_is_lost_with_the_block_behind_it() {
    let elf = Elf::le64().load(Load::new(0x1000, &[0; 0x4000])).build();
    let at = elf.len() - 0x4000;
    // No writer leaves a gap: either what belongs there is elsewhere, or what stands behind it does.
    let input = open(flatten([
        (0, &elf[..at + 0x1000]),
        (at as u64 + 0x2000, &[9; 0x1000]),
        (at as u64 + 0x3000, &[8; 0x1000]),
    ]));
    assert_eq!((pages(input.memory().stored()), input.problems().len()), (vec![1, 4], 1));
    let mut view = input.memory().view();
    assert_eq!(read(&mut *view, 0x1000, 0x1000).unwrap(), [0; 0x1000]);
    assert!(read(&mut *view, 0x2000, 0x1000).is_err() && read(&mut *view, 0x3000, 0x1000).is_err());
    assert_eq!(read(&mut *view, 0x4000, 0x1000).unwrap(), [8; 0x1000]);
}

#[test]
fn segments_may_share_their_data() {
    let sharing = |offset: u64| {
        let first = Elf::le64().load(Load::new(0, &page_of(1, 1 << 20)));
        (1..2000u64).fold(first, |elf, i| elf.load(Load::new(i << 20, &[]).claiming(offset, 1 << 20).spanning(1 << 20)))
    };
    // The table is as long wherever they point.
    let data = open(sharing(1 << 40).build()).segments()[0].file_offset;
    let input = open(sharing(data).build());
    assert_eq!((input.memory().stored().len(), input.problems().len()), (2000 * 256, 0));
    assert_eq!(read(&mut *input.memory().view(), 7 << 20, 1 << 20).unwrap(), page_of(1, 1 << 20));
}

#[test]
fn a_segment_moved_onto_the_data_of_another_gives_no_page_other_bytes() {
    let elf = || (0..12u64).fold(Elf::le64(), |elf, i| elf.load(load(i)));
    fn load(i: u64) -> Load {
        Load::new(0x10_0000 * (i + 1), &page_of(i + 1, 0x1000 * (1 + i as usize % 3)))
    }
    let sound = open(elf().build());
    assert!(sound.problems().is_empty(), "{:?}", sound.problems());
    // In front of the first there are notes and padding, which it may come to lie on unseen; the last may have been cut.
    let last = sound.segments().len() - 1;
    for (index, segment) in sound.segments().iter().enumerate().take(last).skip(1) {
        for bit in 0..24 {
            for (offset, size) in [
                (segment.file_offset ^ 1 << bit, segment.file_size),
                (segment.file_offset, segment.file_size ^ 1 << bit),
            ] {
                let mut damaged = elf();
                damaged.loads[index] = load(index as u64).claiming(offset, size);
                let what = format!("segment {index} at {offset:#x}, {size:#x} bytes");
                let input = open(damaged.build());
                assert!(!input.problems().is_empty(), "{what}");
                let (mut one, mut other) = (input.memory().view(), sound.memory().view());
                for pfn in pages(sound.memory().stored()) {
                    let Ok(page) = read(&mut *one, pfn << 12, 0x1000) else { continue };
                    assert_eq!(page, read(&mut *other, pfn << 12, 0x1000).unwrap(), "{what}: {pfn:#x}");
                }
            }
        }
    }
}

#[test]
fn a_table_of_program_headers_in_a_hole_is_not_read() {
    let mut elf = Elf::le64().load(Load::new(0x1000, &page_of(1, 0x1000)));
    elf.extended = true;
    let mut file = elf.build();
    file[54..56].copy_from_slice(&0xffffu16.to_le_bytes());
    let shoff = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    file[shoff + 44..shoff + 48].fill(0xff);
    let last = [7];
    let error = Input::from_bytes(Arc::new(flatten([(0, &file[..]), (1 << 62, &last[..])]))).err().unwrap();
    assert!(matches!(error, FormatError::CutShort { .. }) && error.to_string().contains("e_phnum"), "{error}");
}

#[test]
fn the_page_size_can_be_told_later() {
    let elf = Elf::le64().load(Load::new(0x1_8000, &page_of(1, 0x8000))).load(Load::new(0x4_0000, &[9; 0x100]));
    let mut input = open(elf.build());
    assert_eq!(pages(input.memory().ram()).len(), 9);
    input.set_page_size(PageSize::new(65536).unwrap()).unwrap();
    assert_eq!(pages(input.memory().ram()), [1, 4]);
    assert_eq!(input.memory().page_size().bytes(), 65536);
    let expected = [vec![0; 0x8000], page_of(1, 0x8000)].concat();
    assert_eq!(read(&mut *input.memory().view(), 0x1_0000, 0x1_0000).unwrap(), expected);
}

#[test]
fn what_is_no_core_is_named() {
    let kind = |file: Vec<u8>| Input::from_bytes(Arc::new(file)).err().unwrap();
    let mut vmlinux = Elf::le64().load(Load::new(0, &[1; 64]));
    vmlinux.kind = 2;
    assert!(kind(vmlinux.build()).to_string().contains("vmlinux"));
    let empty = kind(Elf::le64().build());
    assert!(matches!(empty, FormatError::BadField { field: "number of PT_LOAD program headers", .. }), "{empty}");
    let mut class = Elf::le64().build();
    class[4] = 3;
    assert!(matches!(kind(class), FormatError::BadField { offset: 4, .. }));
    let mut order = Elf::le64().build();
    order[5] = 0;
    assert!(matches!(kind(order), FormatError::BadField { offset: 5, .. }));
    let mut cut = Elf::le64().load(Load::new(0, &[1; 64])).build();
    cut.truncate(100);
    assert!(matches!(kind(cut), FormatError::CutShort { offset: 64, end: 176, len: 100, .. }));
    let mut xen = Elf::le64().build();
    // No program headers; one section that is its own name table, at the end of the file.
    let at = xen.len() as u64;
    xen[56..58].fill(0);
    xen[40..48].copy_from_slice(&at.to_le_bytes());
    xen[60] = 1;
    let mut section = vec![0; 64];
    section[24..32].copy_from_slice(&(at + 64).to_le_bytes());
    section[32] = 40;
    xen.extend(section);
    xen.extend(b"\0.shstrtab\0.note.Xen\0.xen_pages\0.xen_p2m\0");
    assert!(kind(xen).to_string().contains("xl dump-core"));
}

#[test]
fn notes_beyond_their_place_are_a_problem_not_a_failure() {
    // p_filesz of the PT_NOTE, the first program header.
    let with_notes_of = |loads: &[Load], size: u64| {
        let elf = loads.iter().cloned().fold(Elf::le64(), Elf::load);
        let mut file = elf.build();
        file[64 + 32..64 + 40].copy_from_slice(&size.to_le_bytes());
        file
    };
    let file = with_notes_of(&[Load::new(0, &[]).spanning(4096)], 1 << 40);
    let input = open(file.clone());
    assert!(input.notes().len() <= file.len());
    assert!(matches!(input.problems(), [FormatError::CutShort { what, .. }] if what.contains("PT_NOTE")));
    assert_eq!(input.cpus(), 2);
    // The data of a segment are no notes, however long these are said to be.
    let load = [Load::new(0, &[1; 0x10_0000])];
    let whole = open(Elf::le64().load(load[0].clone()).build());
    for bit in 12..64 {
        let input = open(with_notes_of(&load, whole.notes().len() as u64 | 1 << bit));
        assert_eq!(input.notes(), whole.notes(), "bit {bit}");
        assert!(
            matches!(input.problems(), [FormatError::BadField { field: "p_filesz of PT_NOTE", .. }]),
            "bit {bit}: {:?}",
            input.problems()
        );
    }
}

#[test]
fn a_program_header_of_another_type_is_a_problem() {
    let whole = Elf::le64().load(Load::new(0, &[1; 4096])).load(Load::new(0x10_0000, &[2; 4096])).build();
    for header in 0..3 {
        for bit in 0..32 {
            let mut file = whole.clone();
            let at = 64 + 56 * header;
            file[at + bit / 8] ^= 1 << (bit % 8);
            let input = open(file);
            assert!(
                matches!(input.problems(), [FormatError::BadField { field: "p_type", offset, .. }] if *offset == at as u64),
                "header {header}, bit {bit}: {:?}",
                input.problems()
            );
        }
    }
}

#[test]
fn notes_that_cannot_be_read_are_a_problem_not_a_failure() {
    let mut elf = Elf::le64().load(Load::new(0x1000, &page_of(1, 0x2000)));
    // Behind what is read to see what the file is.
    elf.phoff = Some(8192);
    let whole = elf.build();
    let notes = u64::from_le_bytes(whole[8192 + 8..8192 + 16].try_into().unwrap());
    let bad = notes + 8..notes + 9;
    let input = Input::from_bytes(Arc::new(Failing { inner: Arc::new(whole), bad })).unwrap();
    assert!(matches!(input.problems(), [FormatError::Io { what: "ELF notes", .. }]), "{:?}", input.problems());
    assert_eq!((input.vmcoreinfo(), input.cpus()), (None, 0));
    assert_eq!(read(&mut *input.memory().view(), 0x1000, 0x2000).unwrap(), page_of(1, 0x2000));
}

#[test]
fn an_unreadable_page_is_named_and_its_neighbours_are_read() {
    let elf = Elf::le64().load(Load::new(0x10_0000, &page_of(1, 0x8000))).build();
    let data_at = elf.len() as u64 - 0x8000;
    let bad = data_at + 0x3010..data_at + 0x3020;
    let core = ElfCore::open(Arc::new(Failing { inner: Arc::new(elf), bad }), PageSize::K4).unwrap();
    let mut view = core.view();
    let mut buf = vec![0; 0x8000];
    let error = view.read(PhysAddr(0x10_0000), &mut buf).unwrap_err();
    assert!(matches!(&error, ReadError::Io { pfn: Pfn(0x103), error } if error.raw_os_error() == Some(5)), "{error}");
    assert!(matches!(view.slice(PhysAddr(0x10_2ff0), 64), Err(ReadError::Io { pfn: Pfn(0x103), .. })));
    assert_eq!(view.slice(PhysAddr(0x10_4000), 0x4000).unwrap(), &page_of(1, 0x8000)[0x4000..]);
    assert_eq!(view.slice(PhysAddr(0x10_0000), 0x3000).unwrap(), &page_of(1, 0x8000)[..0x3000]);
}

#[test]
fn a_file_cut_while_it_is_read_gives_an_error_never_false_zeros() {
    guard_faults().unwrap();
    let elf = Elf::le64().load(Load::new(0x10_0000, &[0xa5; 4 << 20])).build();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&elf).unwrap();
    let core = ElfCore::open(Arc::new(FileBytes::open(file.path()).unwrap().with_windows(true)), PageSize::K4).unwrap();
    let mut view = core.view();
    assert_eq!(view.slice(PhysAddr(0x10_0000), 1 << 20).unwrap(), &vec![0xa5; 1 << 20]);
    file.as_file().set_len(elf.len() as u64 - (3 << 20) + 0x800).unwrap();
    let before = faults_taken();
    assert_eq!(view.slice(PhysAddr(0x10_0000), 0x1000).unwrap(), &[0xa5; 0x1000]);
    let error = view.slice(PhysAddr(0x10_0000), 2 << 20).unwrap_err();
    assert!(matches!(error, ReadError::Truncated { pfn: Pfn(0x200), .. }), "{error}");
    assert!(faults_taken() > before, "this came by a fault in a window");
    assert_eq!(view.slice(PhysAddr(0x10_0000), 0x1000).unwrap(), &[0xa5; 0x1000], "the rest is still there");
    let mut buf = [0; 0x1000];
    assert!(view.read(PhysAddr(0x30_0000), &mut buf).is_err());
}

/// A file that remembers the windows it was asked for, in pages.
struct Watched {
    file: FileBytes,
    windows: Mutex<Vec<(u64, usize)>>,
}

impl Bytes for Watched {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        self.windows.lock().unwrap().push((offset / 0x1000, len / 0x1000));
        self.file.window(offset, len)
    }
}

#[test]
fn pieces_of_three_pages_and_those_that_follow_are_mapped_others_are_read() {
    const PAGES: u64 = 16 << 8;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let elf = Elf::le64().load(Load::new(0, &page_of(1, PAGES as usize * 0x1000))).build();
    file.write_all(&elf).unwrap();
    let file = FileBytes::open(file.path()).unwrap().with_windows(true);
    let watched = Arc::new(Watched { file, windows: Mutex::default() });
    let core = ElfCore::open(Arc::clone(&watched) as Arc<dyn Bytes>, PageSize::K4).unwrap();
    let at = core.segments()[0].file_offset / 0x1000;
    let asked = |pages: &mut dyn Iterator<Item = (u64, usize)>| {
        let mut view = core.view();
        pages.for_each(|(page, len)| assert!(view.slice(PhysAddr(page * 0x1000), len * 0x1000).is_ok()));
        std::mem::take(&mut *watched.windows.lock().unwrap()).into_iter().map(|(p, n)| (p - at, n)).collect::<Vec<_>>()
    };
    // The first page follows nothing and is too small to be mapped alone.
    assert_eq!(asked(&mut (0..1000).map(|page| (page, 1))), [(1, 256), (257, 256), (513, 256), (769, 256)]);
    assert_eq!(asked(&mut (0..PAGES).step_by(512).map(|page| (page, 1))), [], "pages far from each other are read");
    assert_eq!(asked(&mut [(0, 3), (1000, 2), (2000, 300)].into_iter()), [(0, 256), (2000, 300)]);
    assert_eq!(asked(&mut [(0, 3), (200, 56), (256, 2), (4090, 3)].into_iter()), [(0, 256), (256, 256), (4090, 6)]);
}

proptest! {
    /// Random segments against plain bytes: mapped, copied and in memory.
    #[test]
    fn reads_and_slices_are_the_bytes_of_the_first_segment_that_has_them(
        loads in proptest::collection::vec((0u64..0x9000, 0usize..0x5000, 0u64..0x3000), 1..6),
        asked in proptest::collection::vec((0u64..0xc000, 1usize..0x5000), 1..12),
        rough in proptest::bool::ANY,
    ) {
        let mut elf = Elf::le64();
        for (i, (paddr, len, more)) in loads.iter().enumerate() {
            let round = |v: u64| if rough { v } else { v & !0xfff };
            let data: Vec<u8> = (0..round(*len as u64)).map(|b| (b / 7) as u8 ^ (i as u8) << 5).collect();
            elf = elf.load(Load::new(round(*paddr), &data).spanning(data.len() as u64 + round(*more)));
        }
        let has = |at: u64| elf.loads.iter().find(|l| (l.paddr..l.paddr + l.data.len() as u64).contains(&at));
        let exists = |at: u64| elf.loads.iter().any(|l| (l.paddr..l.paddr + l.mem_size).contains(&at));
        let page_has = |at: u64, what: &dyn Fn(u64) -> bool| (at & !0xfff..(at & !0xfff) + 0x1000).any(what);
        let file = elf.build();
        let mut on_disk = tempfile::NamedTempFile::new().unwrap();
        on_disk.write_all(&file).unwrap();
        let mapped: Arc<dyn Bytes> = Arc::new(FileBytes::open(on_disk.path()).unwrap().with_windows(true));
        let copied: Arc<dyn Bytes> = Arc::new(FileBytes::open(on_disk.path()).unwrap());
        for bytes in [mapped, copied, Arc::new(file)] {
            let core = ElfCore::open(bytes, PageSize::K4).unwrap();
            for at in (0..0x12).map(|p| p * 0x1000) {
                prop_assert_eq!(core.stored().contains(Pfn(at / 0x1000)), page_has(at, &exists));
                let zero = page_has(at, &exists) && !page_has(at, &|a| has(a).is_some());
                prop_assert_eq!(core.known_zero().contains(Pfn(at / 0x1000)), zero);
                prop_assert_eq!(core.ram().contains(Pfn(at / 0x1000)), page_has(at, &exists));
            }
            let mut view = core.view();
            for (start, len) in &asked {
                let expected: Option<Vec<u8>> = (*start..start + *len as u64).map(|at| match has(at) {
                    Some(l) => Some(l.data[(at - l.paddr) as usize]),
                    None => page_has(at, &exists).then_some(0),
                }).collect();
                let mut buf = vec![0xee; *len];
                let read = view.read(PhysAddr(*start), &mut buf).ok().map(|()| buf);
                prop_assert_eq!(&read, &expected);
                let slice = view.slice(PhysAddr(*start), *len).ok().map(<[u8]>::to_vec);
                prop_assert_eq!(&slice, &expected);
            }
        }
    }
}

/// A /proc/kcore: its headers are made anew for each read, of the next of `files` each time the ELF header is read.
struct Kcore {
    files: Vec<Vec<u8>>,
    /// How often the ELF header was read.
    at: Mutex<usize>,
}

impl Bytes for Kcore {
    fn name(&self) -> &str {
        "kcore"
    }

    fn len(&self) -> u64 {
        1 << 40
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut at = self.at.lock().unwrap();
        if offset == 0 && buf.len() == 16 {
            *at += 1;
        }
        // The program headers already are those of the next.
        let number = if offset == 0 { *at - 1 } else { *at };
        let file = &self.files[number.min(self.files.len() - 1)];
        let n = buf.len().min(file.len().saturating_sub(offset as usize));
        buf[..n].copy_from_slice(&file[offset as usize..][..n]);
        Ok(n)
    }

    fn window(&self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn is_memory(&self) -> bool {
        true
    }
}

#[test]
fn c22_headers_that_change_while_they_are_read_are_read_again() {
    let with = |loads: u64| {
        let all = (0..loads).map(|i| Load::new(0x10_0000 * (i + 1), &page_of(i + 1, 4096)));
        all.fold(Elf::le64(), Elf::load).build()
    };
    let files = vec![with(2), with(5), with(3)];
    let headers = coresift_format::ElfHeaders::read(&Kcore { files, at: Mutex::new(0) }).unwrap();
    assert_eq!(headers.segments.len(), 3, "those that stay");
    assert!(headers.problems.is_empty(), "{:?}", headers.problems);
    let restless = (0..40).map(|i| with(2 + i % 2)).collect();
    let headers = coresift_format::ElfHeaders::read(&Kcore { files: restless, at: Mutex::new(0) }).unwrap();
    assert!(headers.problems.iter().any(|p| p.to_string().contains("program headers")), "{:?}", headers.problems);
}

#[test]
fn addresses_set_aside_are_no_memory() {
    let mut input = open(Elf::le64().load(Load::new(0x10_0000, &page_of(7, 8192))).build());
    input.set_aside(vec![(0x10_1000, 0x20_0000)]);
    assert_eq!(pages(input.memory().ram()), [0x100]);
    assert_eq!(pages(input.memory().stored()), [0x100]);
}
