//! Kdump-compressed files.

use crate::make::{Failing, Kdump, page_of};
use coresift_format::codec::Codec;
use coresift_format::kdump::{Abi, Layout, STATUS_INCOMPLETE, SubHeader};
use coresift_format::{
    Container, Endian, FileBytes, FormatError, Input, Machine, MemoryView, PageSet, PageSize, Pfn, PhysAddr, ReadError,
};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

fn open(file: Vec<u8>) -> Input {
    Input::from_bytes(Arc::new(file)).unwrap()
}

fn fails(file: Vec<u8>) -> FormatError {
    Input::from_bytes(Arc::new(file)).err().expect("a field is wrong")
}

fn pages(set: &PageSet) -> Vec<u64> {
    set.all_runs().flat_map(|(s, e)| s.0..e.0).collect()
}

fn page(view: &mut dyn MemoryView, pfn: u64) -> Result<Vec<u8>, ReadError> {
    view.slice(PhysAddr(pfn * 4096), 4096).map(<[u8]>::to_vec)
}

fn corrupt(view: &mut dyn MemoryView, pfn: u64) -> String {
    match page(view, pfn) {
        Err(ReadError::Corrupt { pfn: Pfn(p), what }) if p == pfn => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_abi_byte_order_version_and_codec_is_read() {
    for abi in [Abi::Lp64, Abi::Ilp32Packed, Abi::Ilp32Padded] {
        for endian in [Endian::Little, Endian::Big] {
            for version in 0..=6 {
                for codec in Codec::ALL {
                    let mut file = Kdump::new(abi, endian, version);
                    file.codec = codec;
                    file.phys_base = 0x1234_5000;
                    file.machine = match abi {
                        Abi::Lp64 => "ppc64",
                        Abi::Ilp32Packed => "i686",
                        Abi::Ilp32Padded => "ppc",
                    };
                    let input = open(file.build());
                    let what = format!("{abi:?} {endian:?} {version} {codec}");
                    assert_eq!(input.container(), Container::Kdump);
                    assert_eq!((input.byte_order(), input.bits()), (endian, abi.bits()), "{what}");
                    assert_eq!(input.machine(), Machine::from_uts(file.machine.as_bytes()));
                    assert!(input.problems().is_empty(), "{what}: {:?}", input.problems());
                    let (header, sub) = input.kdump_header().unwrap();
                    assert_eq!((header.header_version, header.release()), (version as u32, &b"6.1.0"[..]));
                    assert_eq!(sub.phys_base, 0x1234_5000);
                    assert_eq!(sub.dump_level, if version >= 1 { 31 } else { 0 });
                    assert_eq!(input.cpus(), 2);
                    assert_eq!(input.notes(), file.notes(), "{what}");
                    assert_eq!(input.vmcoreinfo(), (version >= 3).then_some(&file.text[..]), "{what}");
                    assert_eq!(input.vmcoreinfo_offset_in_notes().is_some(), version >= 4);
                    assert_eq!(input.memory().max_pfn(), Pfn(70_000));
                    assert_eq!(pages(input.memory().ram()), [0, 1, 2, 5, 9, 33_000, 40_000, 69_999]);
                    assert_eq!(pages(input.memory().stored()), [0, 1, 2, 9, 33_000, 69_999]);
                    let mut view = input.memory().view();
                    for (pfn, expected) in &file.pages {
                        assert_eq!(page(&mut *view, *pfn).unwrap(), *expected, "{what} page {pfn}");
                    }
                    let mut buf = vec![0; 3 * 4096];
                    view.read(PhysAddr(0), &mut buf).unwrap();
                    assert_eq!(buf, [0, 1, 2].map(|p| page_of(p, 4096)).concat());
                    let level = if version >= 1 { 31 } else { 0 };
                    assert!(matches!(page(&mut *view, 5), Err(ReadError::Excluded { level: l, .. }) if l == level));
                    assert!(matches!(page(&mut *view, 3), Err(ReadError::NotPresent { .. })));
                    assert!(matches!(page(&mut *view, 70_000), Err(ReadError::NotPresent { .. })));
                }
            }
        }
    }
}

#[test]
fn pieces_across_pages_and_many_pages_are_read() {
    let mut file = Kdump::le64();
    file.pages = (100..400).map(|p| (p, page_of(p, 4096))).collect();
    let input = open(file.build());
    let plain: Vec<u8> = (100..400).flat_map(|p| page_of(p, 4096)).collect();
    let mut view = input.memory().view();
    for (from, len) in [(0, 300 * 4096), (4095, 2), (5000, 100_000), (8192, 4096), (299 * 4096 + 1, 4095), (7, 0)] {
        let addr = PhysAddr(100 * 4096 + from as u64);
        assert_eq!(view.slice(addr, len).unwrap(), &plain[from..from + len]);
        let mut buf = vec![0; len];
        view.read(addr, &mut buf).unwrap();
        assert_eq!(buf, plain[from..from + len]);
    }
    // There and back again, through the cache of pages.
    for pfn in (100..400).rev().chain(100..400).step_by(7) {
        assert_eq!(page(&mut *view, pfn).unwrap(), page_of(pfn, 4096));
    }
    assert!(matches!(view.slice(PhysAddr(399 * 4096), 5000), Err(ReadError::NotPresent { .. })));
}

#[test]
fn pages_of_64_kib_are_read() {
    let mut file = Kdump::new(Abi::Lp64, Endian::Little, 6);
    file.machine = "aarch64";
    file.block = 65536;
    file.pages = [1, 2, 500].map(|p| (p, page_of(p, 65536))).into();
    let input = open(file.build());
    assert_eq!(input.memory().page_size().bytes(), 65536);
    let got = input.memory().view().slice(PhysAddr(500 << 16), 65536).unwrap().to_vec();
    assert_eq!(got, page_of(500, 65536));
}

#[test]
fn descriptors_may_share_an_offset() {
    let mut file = Kdump::le64();
    file.codec = Codec::None;
    file.pages.insert(100, vec![0; 4096]);
    // Page 100 is the fifth of the file, and every page is stored raw.
    let zeros = file.data_at() + 4 * 4096;
    for pfn in [1, 9, 33_000] {
        file.descriptors.insert(pfn, (zeros, 4096, 0));
    }
    let input = open(file.build());
    let mut view = input.memory().view();
    for pfn in [1, 9, 100, 33_000, 1] {
        assert_eq!(page(&mut *view, pfn).unwrap(), [0; 4096]);
    }
    assert_eq!(page(&mut *view, 0).unwrap(), page_of(0, 4096));
    assert_eq!(page(&mut *view, 2).unwrap(), page_of(2, 4096));
    assert_eq!(page(&mut *view, 69_999).unwrap(), page_of(69_999, 4096));
}

#[test]
fn a_part_of_a_split_set_holds_its_range() {
    for version in [2, 5, 6] {
        let mut file = Kdump::new(Abi::Lp64, Endian::Little, version);
        file.part = Some((2, 33_001));
        let input = open(file.build());
        assert_eq!(input.as_kdump().unwrap().part(), Some(Pfn(2)..Pfn(33_001)));
        assert_eq!(pages(input.memory().stored()), [2, 9, 33_000]);
        assert_eq!(input.memory().ram().len(), 8);
        let mut view = input.memory().view();
        for pfn in [33_000, 2, 9] {
            assert_eq!(page(&mut *view, pfn).unwrap(), page_of(pfn, 4096), "version {version}");
        }
        assert!(matches!(page(&mut *view, 1), Err(ReadError::Excluded { .. })));
    }
}

#[test]
fn pages_of_32_bit_arm_are_counted_from_the_start_of_ram() {
    for base in [0x8000_0000u64, 0x6020_0000] {
        let mut file = Kdump::new(Abi::Ilp32Padded, Endian::Little, 6);
        file.machine = "armv7l";
        file.phys_base = base;
        let input = open(file.build());
        let first = base / 4096;
        assert_eq!(pages(input.memory().stored()), [0, 1, 2, 9, 33_000, 69_999].map(|p| p + first));
        assert_eq!(input.memory().max_pfn(), Pfn(first + 70_000));
        assert_eq!(page(&mut *input.memory().view(), first + 33_000).unwrap(), page_of(33_000, 4096));
    }
    let mut odd = Kdump::new(Abi::Ilp32Padded, Endian::Little, 6);
    odd.machine = "armv7l";
    odd.phys_base = 0x8000_1000;
    assert!(matches!(fails(odd.build()), FormatError::BadField { field: "phys_base", offset: 4096, .. }));
}

#[test]
fn one_bitmap_stands_for_both() {
    let mut file = Kdump::new(Abi::Lp64, Endian::Little, 1);
    file.one_bitmap = true;
    file.excluded.clear();
    // 70000 pages are 3 blocks of bitmap, which is no two bitmaps.
    let input = open(file.build());
    assert_eq!(pages(input.memory().ram()), pages(input.memory().stored()));
    assert_eq!(page(&mut *input.memory().view(), 69_999).unwrap(), page_of(69_999, 4096));
}

#[test]
fn c19_pages_above_16_tib_are_found_by_the_64_bit_fields() {
    let small = Kdump::le64();
    let built = small.build();
    let page_size = PageSize::K4;
    let max: u64 = (1 << 32) + 100;
    let notes = small.notes();
    let layout = Layout::new(page_size, Abi::Lp64, notes.len() as u64, max, 2).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let put = |at: u64, bytes: &[u8]| file.as_file().write_all_at(bytes, at).unwrap();
    // Headers and notes of the small file, with the counts of a machine of 16 TiB.
    put(0, &built[..8192]);
    put(436, &layout.bitmap_blocks.to_le_bytes());
    put(440, &u32::MAX.to_le_bytes());
    put(4096 + 96, &max.to_le_bytes());
    for pfn in [7, max - 1] {
        put(layout.bitmap1 + pfn / 8, &[1 << (pfn % 8)]);
        put(layout.bitmap2 + pfn / 8, &[1 << (pfn % 8)]);
    }
    for (i, pfn) in [7, max - 1].into_iter().enumerate() {
        let data = layout.data + 4096 * i as u64;
        put(layout.descriptor(i as u64), &data.to_le_bytes());
        put(layout.descriptor(i as u64) + 8, &4096u32.to_le_bytes());
        put(data, &page_of(pfn, 4096));
    }
    let input = Input::from_bytes(Arc::new(FileBytes::open(file.path()).unwrap())).unwrap();
    assert_eq!(pages(input.memory().stored()), [7, max - 1]);
    assert_eq!(input.memory().max_pfn(), Pfn(max));
    assert_eq!(page(&mut *input.memory().view(), max - 1).unwrap(), page_of(max - 1, 4096));
}

/// Places in a 64-bit file's headers.
const VERSION: usize = 8;
const BLOCK_SIZE: usize = 428;
const SUB_HDR_SIZE: usize = 432;
const BITMAP_BLOCKS: usize = 436;
const NR_CPUS: usize = 460;

fn with(at: usize, value: &[u8]) -> Vec<u8> {
    let mut file = Kdump::le64().build();
    file[at..at + value.len()].copy_from_slice(value);
    file
}

#[test]
fn c29_header_values_no_file_has_are_named() {
    let cases: &[(usize, &str, &[u32])] = &[
        (VERSION, "header_version", &[256, u32::MAX]),
        (BLOCK_SIZE, "block_size", &[0, 1, 3, 4095, 2048, 524_288, i32::MAX as u32, u32::MAX]),
        (SUB_HDR_SIZE, "sub_hdr_size", &[0, u32::MAX, 1 << 31]),
        (BITMAP_BLOCKS, "max_mapnr_64", &[0, 1, 2]),
    ];
    for (at, name, values) in cases {
        for value in *values {
            match fails(with(*at, &value.to_le_bytes())) {
                FormatError::BadField { field, offset, .. } => {
                    let place = if *name == "max_mapnr_64" { 4096 + 96 } else { *at as u64 };
                    assert_eq!((field, offset), (*name, place), "{value}");
                }
                other => panic!("{name} {value}: {other}"),
            }
        }
    }
    for (at, what) in [(SUB_HDR_SIZE, "sub_hdr_size"), (BITMAP_BLOCKS, "bitmap_blocks")] {
        for value in [1000u32, i32::MAX as u32] {
            let error = fails(with(at, &value.to_le_bytes()));
            assert!(matches!(error, FormatError::CutShort { what: w, .. } if w.contains(what)), "{error}");
        }
    }
    let error = fails(with(BITMAP_BLOCKS, &u32::MAX.to_le_bytes()));
    assert!(matches!(error, FormatError::CutShort { .. }), "{error}");
    for max in [1u64 << 20, 1 << 63, u64::MAX] {
        let error = fails(with(4096 + 96, &max.to_le_bytes()));
        assert!(matches!(error, FormatError::BadField { field: "max_mapnr_64", .. }), "{error}");
    }
}

#[test]
fn c29_regions_outside_the_file_cost_only_themselves() {
    let fields: &[(usize, &str, u64)] = &[
        (4096 + 32, "offset_vmcoreinfo", u64::MAX),
        (4096 + 40, "size_vmcoreinfo", 1 << 40),
        (4096 + 48, "offset_note", 1 << 50),
        (4096 + 56, "size_note", u64::MAX),
    ];
    for (at, name, value) in fields {
        let input = open(with(*at, &value.to_le_bytes()));
        match input.problems() {
            [FormatError::BadField { field, offset, .. }] => assert_eq!((*field, *offset), (*name, *at as u64)),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(page(&mut *input.memory().view(), 9).unwrap(), page_of(9, 4096));
        // The text is found in the notes, or alone, as long as one of the two is there.
        assert_eq!(input.vmcoreinfo(), Some(&Kdump::le64().text[..]), "{name}");
    }
    let input = open(with(NR_CPUS, &(-1i32).to_le_bytes()));
    assert!(matches!(input.problems(), [FormatError::BadField { field: "nr_cpus", offset: 460, .. }]));
    assert_eq!(input.cpus(), 2, "the notes are counted instead");
}

#[test]
fn c29_and_c37_bad_descriptors_are_named_with_page_and_value() {
    let good = Kdump::le64();
    let data_at = good.data_at();
    let cases: &[((u64, u64, u64), &str)] = &[
        ((data_at, 0, 1), "size 0"),
        ((data_at, 4097, 1), "size 4097"),
        ((data_at, 0xffff_ffff, 1), "size 4294967295"),
        ((data_at, 100, 0), "size 100"),
        ((data_at, 100, 0x40), "0x40 is no known codec"),
        ((data_at, 100, 0x80), "0x80 is no known codec"),
        ((data_at, 100, 3), "0x3 is no known codec"),
        ((100, 100, 1), "offset 100"),
        ((data_at - 1, 100, 1), "lies before the page data"),
        ((0, 0, 0), "never written"),
        ((data_at, 100, 2), "lzo"),
        ((data_at, 100, 4), "snappy"),
        ((data_at, 100, 0x20), "zstd"),
    ];
    for (desc, says) in cases {
        let mut file = Kdump::le64();
        file.descriptors.insert(9, *desc);
        let input = open(file.build());
        let mut view = input.memory().view();
        let what = corrupt(&mut *view, 9);
        assert!(what.contains(says), "{desc:?}: {what}");
        if desc.0 != data_at || !matches!(desc.2, 2 | 4 | 0x20) {
            assert!(what.contains(&file.descriptor_at(9).to_string()), "{what} names the place");
        }
        assert_eq!(page(&mut *view, 33_000).unwrap(), page_of(33_000, 4096), "the others are read");
    }
    let mut file = Kdump::le64();
    file.descriptors.insert(9, (u64::MAX - 5, 100, 1));
    file.descriptors.insert(2, (1 << 40, 100, 1));
    let input = open(file.build());
    let mut view = input.memory().view();
    for (pfn, at) in [(9, u64::MAX - 5), (2, 1 << 40)] {
        assert!(matches!(page(&mut *view, pfn), Err(ReadError::Truncated { offset, .. }) if offset == at));
    }
}

#[test]
fn a_file_cut_anywhere_behind_its_bitmaps_keeps_the_pages_before_the_cut() {
    let mut file = Kdump::le64();
    file.status |= u64::from(STATUS_INCOMPLETE);
    let whole = file.build();
    let order: Vec<u64> = file.pages.keys().copied().collect();
    let mut before = order.len();
    for len in (file.descriptors_at() as usize..=whole.len()).rev().step_by(13) {
        let input = open(whole[..len].to_vec());
        assert!(input.incomplete());
        let mut view = input.memory().view();
        let good: Vec<bool> = order
            .iter()
            .map(|pfn| match page(&mut *view, *pfn) {
                Ok(p) => p == page_of(*pfn, 4096),
                Err(ReadError::Truncated { .. }) => false,
                Err(other) => panic!("{other}"),
            })
            .collect();
        let readable = good.iter().take_while(|g| **g).count();
        assert!(good[readable..].iter().all(|g| !g), "pages are lost from the end");
        assert!(readable <= before);
        before = readable;
    }
    assert_eq!(before, 0);
    for len in [0, 100, 451, 464, 4096, 5000, 8192, file.descriptors_at() as usize - 1] {
        fails(whole[..len].to_vec());
    }
}

#[test]
fn unreadable_data_or_descriptors_lose_their_own_page_only() {
    let file = Kdump::le64();
    let built = file.build();
    let descriptor = file.descriptor_at(9);
    let data = u64::from_le_bytes(built[descriptor as usize..][..8].try_into().unwrap());
    for at in [descriptor, data] {
        let failing = Failing { inner: Arc::new(built.clone()), bad: at..at + 1 };
        let input = Input::from_bytes(Arc::new(failing)).unwrap();
        let mut view = input.memory().view();
        for pfn in file.pages.keys() {
            match page(&mut *view, *pfn) {
                Ok(got) => assert_eq!(got, page_of(*pfn, 4096)),
                Err(error) => assert!(matches!(error, ReadError::Io { pfn: Pfn(9), .. }), "{error}"),
            }
            assert_eq!(page(&mut *view, *pfn).is_err(), *pfn == 9);
        }
    }
}

#[test]
fn a_page_size_the_header_contradicts_is_an_error() {
    let mut input = open(Kdump::le64().build());
    input.set_page_size(PageSize::K4).unwrap();
    let error = input.set_page_size(PageSize::new(65536).unwrap()).unwrap_err();
    assert!(matches!(error, FormatError::BadField { field: "block_size", offset: 428, .. }), "{error}");
}

#[test]
fn the_layout_for_writers_is_where_the_reader_looks() {
    for abi in [Abi::Lp64, Abi::Ilp32Packed, Abi::Ilp32Padded] {
        let file = Kdump::new(abi, Endian::Little, 6);
        let input = open(file.build());
        let kdump = input.as_kdump().unwrap();
        let layout = Layout::new(PageSize::K4, abi, file.notes().len() as u64, 70_000, 6).unwrap();
        let (header, sub) = (kdump.header(), kdump.sub_header());
        assert_eq!((header.sub_hdr_size, header.bitmap_blocks), (layout.sub_hdr_size, layout.bitmap_blocks));
        assert_eq!((sub.offset_note, sub.size_note), (layout.notes, layout.notes_len));
        assert_eq!(kdump.descriptors(), layout.descriptors);
        assert_eq!(layout.sub_header_len, SubHeader::size(6, abi) as u64);
        assert_eq!(layout.data, file.data_at());
    }
}
