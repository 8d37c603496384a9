//! Files and kernels that lie: an error that names the field, or a dump of what can be had; never a panic, never a hang.

use crate::common::{core, dump, options, try_dump};
use crate::reader::Dump;
use coresift_engine::EngineError;
use coresift_format::codec::{Codec, Compressor};
use coresift_format::{FormatError, PageSize};
use coresift_synth::{Image, KernelLayout, Machine, PAGE};
use proptest::prelude::*;
use std::sync::Arc;

fn b0() -> Image {
    Machine::b0(KernelLayout::get("6.12")).build()
}

#[test]
fn c29_header_values_that_no_file_has_are_errors_that_name_the_field() {
    let file = b0().kdump().bytes();
    let values: [(&str, usize, &[i32]); 4] = [
        ("block_size", 428, &[0, 1, 3, 512, i32::MAX, -1]),
        ("sub_hdr_size", 432, &[0, -1, i32::MIN]),
        ("bitmap_blocks", 436, &[-1, i32::MAX]),
        ("header_version", 8, &[-1, i32::MAX]),
    ];
    for (field, at, values) in values {
        for value in values {
            let mut bytes = file.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let ended = try_dump(Arc::new(bytes), &options(31));
            let Err(EngineError::Input(error)) = &ended.result else { panic!("{field}={value}: {:?}", ended.result) };
            assert!(matches!(error, FormatError::BadField { .. } | FormatError::CutShort { .. }), "{error}");
            assert!(error.to_string().contains(field), "{field}={value}: {error}");
            assert!(!ended.path.exists());
        }
    }
    // Bitmaps that end before the last page frame.
    let mut bytes = file;
    bytes[436..440].copy_from_slice(&0i32.to_le_bytes());
    assert!(try_dump(Arc::new(bytes), &options(0)).message().contains("max_mapnr"));
}

#[test]
fn c29_fields_the_pages_do_not_depend_on_are_told_and_the_pages_are_dumped() {
    let image = b0();
    let whole = dump(image.kdump().bytes(), &options(31)).1;
    let expected = Dump::read(whole).kept;
    // offset_vmcoreinfo, size_vmcoreinfo, offset_note, size_note; nr_cpus.
    for (at, value) in [(32, 1u64 << 40), (40, 1 << 40), (48, u64::MAX), (56, 1 << 40)] {
        let mut bytes = image.kdump().bytes();
        bytes[PAGE as usize + at..][..8].copy_from_slice(&value.to_le_bytes());
        let (report, file) = dump(bytes, &options(31));
        assert_eq!(Dump::read(file).kept, expected, "sub header {at}: VMCOREINFO is in memory, too");
        let told = report.notes.iter().any(|note| note.contains("_vmcoreinfo") || note.contains("_note"));
        assert!(told, "sub header {at}: {:?}", report.notes);
    }
    let mut bytes = image.kdump().bytes();
    bytes[460..464].copy_from_slice(&(-1i32).to_le_bytes());
    let (report, file) = dump(bytes, &options(31));
    assert_eq!(Dump::read(file).kept, expected);
    assert!(report.notes.iter().any(|note| note.contains("nr_cpus")), "{:?}", report.notes);
}

#[test]
fn c29_page_descriptors_that_point_nowhere_lose_their_page_alone() {
    let image = b0();
    let file = image.kdump().bytes();
    let read = Dump::read(file.clone());
    // The descriptor of a page of the cache.
    let rank = read.kept.binary_search(&0x1130).unwrap();
    let first = PAGE as usize * (1 + u32::from_le_bytes(file[432..436].try_into().unwrap()) as usize)
        + PAGE as usize * u32::from_le_bytes(file[436..440].try_into().unwrap()) as usize;
    let at = first + 24 * rank;
    let edits: [(&str, usize, u64, usize); 7] = [
        ("size", 8, 0, 4),
        ("size", 8, PAGE + 1, 4),
        ("size", 8, 0xffff_ffff, 4),
        ("offset", 0, 5, 8),
        ("offset", 0, first as u64, 8),
        ("beyond the end", 0, u64::MAX - 100, 8),
        ("0x40", 12, 0x40, 4),
    ];
    for (says, field, value, len) in edits {
        let mut bytes = file.clone();
        bytes[at + field..at + field + len].copy_from_slice(&value.to_le_bytes()[..len]);
        let (report, out) = dump(bytes, &options(0));
        assert_eq!(report.unreadable_pages, 1, "{says} {value:#x}");
        let run = &report.unreadable[0];
        assert_eq!((run.pfn, run.pages), (0x1130, 1));
        assert!(run.reason.contains(says), "{says} {value:#x}: {}", run.reason);
        let mut right = 0;
        Dump::read(out).pages(|pfn, bytes| match bytes {
            Some(bytes) => right += u64::from(bytes == image.page(pfn)),
            None => assert_eq!(pfn, 0x1130),
        });
        assert_eq!(right, report.kept_pages, "{says} {value:#x}");
    }
}

#[test]
fn c37_pages_of_every_codec_are_read_and_an_unknown_one_is_named() {
    let image = b0();
    let mut kdump = image.kdump();
    kdump.codec = 0;
    for (pfn, codec) in [(0x1130, Codec::Zlib), (0x1131, Codec::Lzo), (0x1132, Codec::Snappy), (0x1133, Codec::Zstd)] {
        let mut compressor = Compressor::new(codec.into(), PageSize::K4).unwrap();
        let mut out = vec![0; compressor.max_output()];
        let n = compressor.compress(&image.page(pfn), &mut out).unwrap();
        kdump = kdump.given(pfn, codec.flag(), &out[..n]);
    }
    let (report, file) = dump(kdump.bytes(), &options(0));
    assert!(report.complete);
    crate::common::check_pages(&image, &Dump::read(file), "a codec a page");

    // Damaged, too long when it is unpacked, and of no codec there is.
    let damaged = |flag: u32, stored: Vec<u8>| {
        let (report, _) = dump(image.kdump().given(0x1134, flag, stored).bytes(), &options(0));
        assert_eq!((report.unreadable_pages, report.complete), (1, false), "flag {flag:#x}");
        assert_eq!(report.unreadable[0].pfn, 0x1134);
        report.unreadable[0].reason.clone()
    };
    for codec in [Codec::Zlib, Codec::Lzo, Codec::Snappy, Codec::Zstd] {
        let reason = damaged(codec.flag(), vec![0xa5; 100]);
        assert!(reason.contains(codec.name()), "{codec}: {reason}");
        let mut compressor = Compressor::new(codec.into(), PageSize::new(8192).unwrap()).unwrap();
        let mut out = vec![0; compressor.max_output()];
        let n = compressor.compress(&[7; 8192], &mut out).unwrap();
        let reason = damaged(codec.flag(), out[..n].to_vec());
        assert!(reason.contains(codec.name()), "{codec}, two pages: {reason}");
    }
    let reason = damaged(0x40, vec![1; 50]);
    assert!(reason.contains("0x40") && reason.contains("codec"), "{reason}");
}

#[test]
fn c19_page_frames_beyond_what_old_fields_hold_are_dumped() {
    // At 16 TiB page frame numbers need 33 bits.
    let image = Machine::new(KernelLayout::get("6.12"))
        .ram(0x1000..0x1100)
        .ram(0x7fff_ffff..0x8000_0001)
        .pages("@0x7fffffff 1 anon")
        .build();
    let (report, file) = dump(core(&image), &options(31));
    let input = coresift_format::Input::from_bytes(Arc::new(file)).unwrap();
    let stored = input.memory().stored();
    assert!(stored.contains(coresift_format::Pfn(0x8000_0000)) && !stored.contains(coresift_format::Pfn(0x7fff_ffff)));
    assert_eq!(report.total_pages, 0x8000_0001);
}

/// Pages of the kernel's own: its image, page tables, sections, zones, memory map.
fn kernel_pages(image: &Image) -> Vec<u64> {
    image.truth.pfns(&["kernel"]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_kernel_with_damaged_memory_is_dumped_or_refused(
        words in proptest::collection::vec((any::<prop::sample::Index>(), 0u64..512, any_word()), 1..24),
        layout in prop::sample::select(vec!["2.6.32", "4.18", "6.1", "6.12", "7.1"]),
        level in prop::sample::select(vec![1u8, 16, 31]),
    ) {
        let mut image = Machine::b0(KernelLayout::get(layout)).image_pages(40).symbols().build();
        let pages = kernel_pages(&image);
        for (page, word, value) in words {
            image.write(page.get(&pages) * PAGE + word * 8, &value.to_le_bytes());
        }
        let ended = try_dump(Arc::new(core(&image)), &options(level));
        match &ended.result {
            Ok(report) => {
                prop_assert!(report.complete);
                let dump = Dump::read(ended.bytes());
                prop_assert_eq!(dump.kept.len() as u64, report.kept_pages);
                dump.pages(|pfn, bytes| assert!(bytes == Some(&image.page(pfn)[..])));
            }
            Err(EngineError::Kernel { error: e, .. }) => prop_assert!(e.to_string().len() > 10),
            Err(e) => prop_assert!(false, "{}", e),
        }
    }

    #[test]
    fn a_damaged_text_is_understood_or_refused(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        level in prop::sample::select(vec![1u8, 31]),
    ) {
        let mut image = b0();
        let mut text = image.vmcoreinfo.clone().into_bytes();
        for (at, byte) in edits {
            let at = at.index(text.len());
            // Digits into digits as often as not, so that values change and not only their kind.
            text[at] = if text[at].is_ascii_digit() && byte & 1 == 0 { b'0' + byte % 10 } else { byte };
        }
        image.vmcoreinfo = String::from_utf8_lossy(&text).into_owned();
        let ended = try_dump(Arc::new(core(&image)), &options(level));
        match &ended.result {
            Ok(_) => Dump::read(ended.bytes()).pages(|pfn, bytes| assert!(bytes == Some(&image.page(pfn)[..]))),
            Err(EngineError::Kernel { .. }) => prop_assert!(level > 1),
            Err(e) => prop_assert!(false, "{}", e),
        }
    }
}

/// A word that is likely to mean something: small numbers, pointers near real ones, single bits, anything.
fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..4096,
        (0u64..1 << 24).prop_map(|n| 0xffff_8880_0000_0000 | n),
        (0u64..1 << 24).prop_map(|n| 0xffff_ea00_0000_0000 | n),
        (0u64..1 << 22).prop_map(|n| 0xffff_ffff_8100_0000 | n),
        (0u64..1 << 14).prop_map(|n| n << 12 | 0x63),
        (0u64..1 << 14).prop_map(|n| n << 12 | 0xe3),
        (0u32..64).prop_map(|n| 1 << n),
        any::<u64>(),
    ]
}
