//! The containers hold what they should, read by offsets written down here.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used, reason = "test helpers")]

use coresift_synth::elf::{Note, Order, Segment};
use coresift_synth::flat::{BlockOrder, Flatten};
use coresift_synth::kdump::{Abi, ZLIB};
use coresift_synth::{Image, KernelLayout, Machine, PAGE, zlib, zlib_stored};
use libdeflater::Decompressor;

fn b0() -> Image {
    Machine::b0(KernelLayout::get("6.12")).cpus(2).build()
}

fn number(file: &[u8], at: usize, len: usize, order: Order) -> u64 {
    let bytes = &file[at..at + len];
    let fold = |n: u64, b: &u8| n << 8 | u64::from(*b);
    if order == Order::Little { bytes.iter().rev().fold(0, fold) } else { bytes.iter().fold(0, fold) }
}

fn unpack(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; PAGE as usize];
    let n = Decompressor::new().zlib_decompress(data, &mut out).unwrap();
    out.truncate(n);
    out
}

#[test]
fn pages_packed_here_are_unpacked_by_a_real_library() {
    let image = b0();
    let mut smaller = 0;
    for pfn in image.ram().iter().cloned().flatten() {
        let page = image.page(pfn);
        let packed = zlib(&page);
        smaller += u32::from(packed.len() < page.len());
        assert_eq!(unpack(&packed), page);
        assert_eq!(unpack(&zlib_stored(&page)), page);
    }
    assert!(smaller > 150, "{smaller} of 256 pages shrink");
    for len in [0, 1, 3, 4, 5, 258, 259, 4095] {
        let data: Vec<u8> = (0..len).map(|i| (i % 7) as u8).collect();
        assert_eq!(unpack(&zlib(&data)), data);
    }
}

/// Reads a page of a kdump file with one bitmap pair, from the header alone.
fn page_of(file: &[u8], order: Order, long: usize, pfn: u64) -> Option<Vec<u8>> {
    let rest = if long == 8 { 424 } else { 412 };
    let word = |at| number(file, at, 4, order) as usize;
    assert_eq!(word(rest + 4), PAGE as usize);
    let (sub, bitmaps) = (word(rest + 8), word(rest + 12));
    let first = (1 + sub) * PAGE as usize;
    let second = first + bitmaps / 2 * PAGE as usize;
    let bit = |map: usize, pfn: u64| file[map + (pfn / 8) as usize] >> (pfn % 8) & 1 == 1;
    if !bit(second, pfn) {
        return None;
    }
    assert!(bit(first, pfn));
    let index = (0..pfn).filter(|p| bit(second, *p)).count();
    let at = (1 + sub + bitmaps) * PAGE as usize + 24 * index;
    let (offset, size, flags) = (number(file, at, 8, order) as usize, word(at + 8), word(at + 12));
    let data = &file[offset..offset + size];
    Some(if flags == ZLIB as usize { unpack(data) } else { data.to_vec() })
}

#[test]
fn kdump_files_of_every_version_abi_and_byte_order_hold_the_pages() {
    let image = b0();
    for version in 0..=6 {
        for (abi, long) in [(Abi::Lp64, 8), (Abi::Ilp32Pack, 4), (Abi::Ilp32Pad, 4)] {
            for order in [Order::Little, Order::Big] {
                let mut kdump = image.kdump().without(31, &["user", "free", "cache"]);
                (kdump.version, kdump.abi, kdump.order) = (version, abi, order);
                kdump.backwards = version % 2 == 0;
                let file = kdump.bytes();
                assert_eq!(&file[..8], b"KDUMP   ");
                for pfn in [0x1000, 0x1040, 0x1060, 0x1128, 0x1150, 0x117f, 0xfff, 0x10ff] {
                    let stored = !["hole", "user", "free", "cache"].contains(&image.truth.class(pfn));
                    let expected = stored.then(|| image.page(pfn).to_vec());
                    assert_eq!(
                        page_of(&file, order, long, pfn),
                        expected,
                        "version {version} {abi:?} {order:?} {pfn:#x}"
                    );
                }
                // VMCOREINFO is where the sub header says, from version 3 on.
                let at = match abi {
                    Abi::Lp64 => (32, 40),
                    Abi::Ilp32Pack => (20, 28),
                    Abi::Ilp32Pad => (24, 32),
                };
                let offset = number(&file, 4096 + at.0, 8, order) as usize;
                let len = number(&file, 4096 + at.1, long, order) as usize;
                let text = if version >= 3 { image.vmcoreinfo.as_bytes() } else { Default::default() };
                assert_eq!(&file[offset..offset + len], text, "version {version} {abi:?} {order:?}");
                // The top of memory, in 64 bits, from version 6 on.
                let top = match abi {
                    Abi::Lp64 => 96,
                    Abi::Ilp32Pack => 72,
                    Abi::Ilp32Pad => 88,
                };
                let expected = if version >= 6 { 0x1180 } else { 0 };
                assert_eq!(number(&file, 4096 + top, 8, order), expected);
            }
        }
    }
}

#[test]
fn zero_pages_share_one_and_lost_pages_have_no_offset() {
    let image = b0();
    let mut kdump = image.kdump();
    kdump.level = 1;
    kdump.lost = [0x1041].into();
    let file = kdump.bytes();
    let descriptors = (1 + number(&file, 432, 4, Order::Little) + number(&file, 436, 4, Order::Little)) as usize * 4096;
    let offset = |pfn: u64| number(&file, descriptors + 24 * (pfn as usize - 0x1000), 8, Order::Little);
    assert_eq!((offset(0x1040), offset(0x1041)), (offset(0x1042), 0));
    assert_eq!(page_of(&file, Order::Little, 8, 0x1040).unwrap(), [0; 4096]);
}

#[test]
fn a_file_past_sixteen_tebibytes_saturates_the_old_field() {
    let top = 0x1_0000_0001;
    let machine = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).ram(top - 1..top);
    let image = machine.build();
    let file = image.kdump().file();
    assert!(file.len() > 1 << 30 && file.stored() < 1 << 20);
    let bytes = file.bytes();
    assert_eq!(number(&bytes, 440, 4, Order::Little), u32::MAX.into());
    assert_eq!(number(&bytes, 4096 + 96, 8, Order::Little), top);
}

/// Puts a flattened stream back together; the number of whole blocks, and whether the end marker came.
fn unflatten(stream: &[u8]) -> (Vec<u8>, usize, bool) {
    assert_eq!(&stream[..16], b"makedumpfile\0\0\0\0");
    let (mut out, mut at, mut blocks) = (Vec::new(), 4096, 0);
    while at + 16 <= stream.len() {
        let target = i64::from_be_bytes(stream[at..at + 8].try_into().unwrap());
        let len = i64::from_be_bytes(stream[at + 8..at + 16].try_into().unwrap());
        if target == -1 && len == -1 {
            return (out, blocks, true);
        }
        let (target, len) = (target as usize, len as usize);
        let Some(data) = stream.get(at + 16..at + 16 + len) else { break };
        out.resize(out.len().max(target + len), 0);
        out[target..target + len].copy_from_slice(data);
        at += 16 + len;
        blocks += 1;
    }
    (out, blocks, false)
}

#[test]
fn flattened_streams_of_any_order_hold_the_file_and_can_be_cut() {
    let file = b0().kdump().bytes();
    for order in [BlockOrder::Ascending, BlockOrder::Descending, BlockOrder::Mixed(7)] {
        for (block, overlap, skip_zero) in
            [(65536, false, false), (4096, true, false), (4096, true, true), (1000, false, true)]
        {
            let flat = Flatten { block, order, overlap, skip_zero, end_marker: true };
            let (back, blocks, ended) = unflatten(&flat.wrap(&file).bytes);
            assert!(ended && back == file, "{flat:?}");
            assert_eq!(blocks, flat.wrap(&file).blocks.len());
        }
    }
    let whole = Flatten { end_marker: false, ..Flatten::default() }.wrap(&file);
    assert_eq!(unflatten(&whole.bytes), (file, whole.blocks.len(), false));
    let last = whole.blocks.last().unwrap();
    for cut in [last.at, last.at + 7, last.at + 16, last.at + 16 + last.len - 1] {
        assert_eq!(unflatten(&whole.bytes[..cut]).1, whole.blocks.len() - 1);
    }
}

/// (type, offset, vaddr, paddr, filesz, memsz) of each program header.
fn headers(file: &[u8]) -> Vec<(u64, u64, u64, u64, u64, u64)> {
    let n = |at: usize, len| number(file, at, len, Order::Little);
    let (phoff, mut count) = (n(32, 8) as usize, n(56, 2));
    if count == 0xffff {
        count = n(n(40, 8) as usize + 44, 4);
    }
    let one = |at: usize| (n(at, 4), n(at + 8, 8), n(at + 16, 8), n(at + 24, 8), n(at + 32, 8), n(at + 40, 8));
    (0..count as usize).map(|i| one(phoff + 56 * i)).collect()
}

#[test]
fn program_headers_are_where_they_are_asked_to_be() {
    let image = b0();
    let plain = headers(&image.elf().bytes());
    assert_eq!(plain.iter().map(|h| h.0).collect::<Vec<_>>(), [4, 1, 1]);
    for phoff in [64, 128, 192, 4096 + 8] {
        let mut elf = image.elf();
        elf.phoff = phoff;
        elf.extended_numbering = phoff == 128;
        let file = elf.bytes();
        assert_eq!(number(&file, 32, 8, Order::Little), phoff);
        for h in headers(&file).iter().filter(|h| h.0 == 1) {
            assert_eq!(&file[h.1 as usize..(h.1 + h.4) as usize], image.read(h.3, h.4));
        }
    }
    let qemu = image.elf().as_qemu(false).bytes();
    assert_eq!((qemu[52], number(&qemu, 32, 8, Order::Little), number(&qemu, 40, 8, Order::Little)), (8, 192, 64));
    let note = headers(&qemu)[0];
    let notes = &qemu[note.1 as usize..(note.1 + note.4) as usize];
    assert!(notes.windows(5).any(|w| w == b"QEMU\0") && !notes.windows(10).any(|w| w == b"VMCOREINFO"));
}

#[test]
fn more_segments_than_sixteen_bits_count_are_numbered_in_the_section_header() {
    let image = b0();
    let mut elf = image.elf();
    let first = Segment::new(0x1000 * PAGE, 0, PAGE);
    elf.segments = vec![first.clone()];
    elf.segments.extend((1..70_000).map(|i| Segment { shares: Some(0), ..Segment::new((0x1000 + i) * PAGE, 0, PAGE) }));
    let file = elf.bytes();
    assert_eq!(number(&file, 56, 2, Order::Little), 0xffff);
    let all = headers(&file);
    assert_eq!(all.len(), 70_001);
    assert!(all[1..].iter().all(|h| h.1 == all[1].1));
}

#[test]
fn odd_segments_say_what_they_were_told() {
    let image = b0();
    let mut elf = image.elf();
    elf.split(0x100_0800);
    elf.segments[1].filesz -= 0x3000;
    elf.segments.push(Segment { filesz: 0, ..Segment::new(0x200_0000, 0, 0x4000) });
    elf.segments.push(Segment {
        paddr: u64::MAX,
        source: Some(0x100_0000),
        ..Segment::new(0, 0xffff_c900_0000_0000, 0x2000)
    });
    elf.notes.push(vec![Note::empty(), Note::new("LINUX", 0x700, "device")]);
    let file = elf.bytes();
    let all = headers(&file);
    assert_eq!(all.iter().map(|h| h.0).collect::<Vec<_>>(), [4, 4, 1, 1, 1, 1, 1]);
    let joined =
        [(all[2].1, 0x800), (all[3].1, 0x800)].map(|(at, n)| file[at as usize..at as usize + n].to_vec()).concat();
    assert_eq!(joined, image.page(0x1000));
    assert_eq!((all[3].4, all[3].5), (0x80_000 - 0x800 - 0x3000, 0x80_000 - 0x800));
    assert_eq!((all[5].4, all[5].5), (0, 0x4000));
    assert_eq!(all[6].3, u64::MAX);
    assert_eq!(&file[all[6].1 as usize..][..4096], image.page(0x1000));
}

#[test]
fn a_planted_note_is_in_memory_and_the_true_one_too() {
    let machine =
        Machine::b0(KernelLayout::get("6.12")).plant_vmcoreinfo(0x1054, "OSRELEASE=5.0-stale\nPAGESIZE=4096\n");
    let image = machine.edit_vmcoreinfo(|text| text.replace('\n', "\r\n")).build();
    let memory: Vec<u8> = image.ram().iter().cloned().flatten().flat_map(|pfn| image.page(pfn)).collect();
    let notes = memory.windows(22).filter(|w| w.starts_with(b"VMCOREINFO\0\0OSRELEASE=")).count();
    assert_eq!(notes, 2);
    assert!(image.vmcoreinfo.starts_with("OSRELEASE=6.12.0-synth\r\nBUILD-ID="));
}
