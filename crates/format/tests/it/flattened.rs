//! Flattened streams.

use crate::make::{Elf, Kdump, Load, flatten, page_of};
use coresift_format::{
    Bytes, Container, Cut, CutKind, FileBytes, FlattenedBytes, FormatError, Input, Pfn, PhysAddr, ReadError,
};
use proptest::prelude::*;
use std::io::Write;
use std::sync::Arc;

fn open(stream: Vec<u8>) -> FlattenedBytes {
    FlattenedBytes::open(Arc::new(stream)).unwrap()
}

fn all(file: &FlattenedBytes) -> Vec<u8> {
    let mut buf = vec![0xee; file.len() as usize + 10];
    let n = file.read_at(0, &mut buf).unwrap();
    assert_eq!(n as u64, file.len(), "short at the end of the file");
    buf.truncate(n);
    buf
}

proptest! {
    #[test]
    fn reading_through_the_index_is_reading_the_unpacked_file(
        writes in proptest::collection::vec((0usize..5000, proptest::collection::vec(any::<u8>(), 1..600)), 1..30),
        asked in proptest::collection::vec((0usize..6000, 0usize..2000), 1..20),
    ) {
        let mut plain = Vec::new();
        for (at, data) in &writes {
            plain.resize(plain.len().max(at + data.len()), 0);
            plain[*at..at + data.len()].copy_from_slice(data);
        }
        let file = open(flatten(writes.iter().map(|(at, data)| (*at as u64, &data[..]))));
        prop_assert_eq!(file.truncated(), None);
        prop_assert_eq!(&all(&file), &plain);
        for (at, len) in asked {
            let mut buf = vec![0xee; len];
            let n = file.read_at(at as u64, &mut buf).unwrap();
            let expected = plain.get(at..).unwrap_or_default();
            prop_assert_eq!(&buf[..n], &expected[..len.min(expected.len())]);
        }
        let mut at = 0;
        while at < file.len() {
            let next = file.next_data(at);
            prop_assert!(next >= at && plain[at as usize..next as usize].iter().all(|b| *b == 0));
            at = next + 1;
        }
    }

    #[test]
    fn c15_a_stream_cut_anywhere_gives_what_came_before(cut in 0usize..5000) {
        let blocks: [(u64, &[u8]); 3] = [(0, &[1; 100]), (200, &[2; 50]), (50, &[3; 80])];
        let whole = flatten(blocks);
        let cut = cut.min(whole.len());
        let stream = whole[..cut].to_vec();
        let opened = FlattenedBytes::open(Arc::new(stream));
        if cut < 4096 + 16 + 1 {
            prop_assert!(opened.is_err());
        } else {
            let file = opened.unwrap();
            let mut plain = vec![];
            let mut left = cut - 4096;
            for (at, data) in blocks {
                let n = left.saturating_sub(16).min(data.len());
                let end = at as usize + n;
                if n > 0 {
                    plain.resize(plain.len().max(end), 0);
                    plain[at as usize..end].copy_from_slice(&data[..n]);
                }
                left = left.saturating_sub(16 + data.len());
            }
            prop_assert_eq!(all(&file), plain);
            prop_assert_eq!(file.truncated().is_some(), cut < whole.len());
        }
    }
}

#[test]
fn c15_a_cut_says_what_was_lost() {
    let whole = flatten([(0, &[1u8; 100][..]), (200, &[2; 50])]);
    let second = 4096 + 16 + 100;
    let cut_at = |len: usize| open(whole[..len].to_vec()).truncated().cloned().unwrap();
    let cut = |at: usize, kind, lost| Cut { at: at as u64, kind, lost };
    assert_eq!(cut_at(second), cut(second, CutKind::NoEndMarker, None));
    assert_eq!(cut_at(second + 7), cut(second, CutKind::InBlockHeader, None));
    assert_eq!(cut_at(second + 16 + 30), cut(second + 46, CutKind::InData, Some(230..250)));
    assert_eq!(cut_at(second + 66), cut(second + 66, CutKind::NoEndMarker, None), "all data, but no end marker");
    assert_eq!(cut_at(whole.len() - 1), cut(second + 66, CutKind::InBlockHeader, None));
    let error = cut_at(second + 46).error("f", 1).to_string();
    assert!(error.contains("data block") && error.contains("4258"), "{error}");
}

#[test]
fn a_stream_cut_right_behind_its_first_block_header_has_no_block() {
    let whole = flatten([(0, &[1u8; 100][..])]);
    assert!(FlattenedBytes::open(Arc::new(whole[..4096 + 16].to_vec())).is_err());
    assert_eq!(open(whole[..4096 + 17].to_vec()).len(), 1);
}

#[test]
fn what_follows_the_end_marker_is_old_disk_content() {
    let once = flatten([(0, &[1u8; 100][..])]);
    for after in [vec![0xff; 5], vec![7; 9000], once.clone()] {
        let file = open([once.clone(), after].concat());
        assert_eq!((all(&file), file.truncated()), (vec![1; 100], None));
    }
}

#[test]
fn blocks_no_writer_writes_end_the_stream() {
    for (offset, size) in [(-2i64, 10i64), (-1, 10), (10, -1), (10, 0), (i64::MIN, i64::MIN), (i64::MAX, 2)] {
        let mut stream = flatten([(0, &[1u8; 100][..])]);
        stream.truncate(stream.len() - 16);
        let at = stream.len() as u64;
        stream.extend(offset.to_be_bytes());
        stream.extend(size.to_be_bytes());
        stream.extend([9; 100]);
        let file = open(stream.clone());
        assert_eq!(all(&file), [1; 100], "{offset} {size}");
        assert_eq!(file.truncated(), Some(&Cut { at, kind: CutKind::BadBlock { offset, size }, lost: None }));
        // As the first block there is nothing left to use.
        let alone = [&stream[..4096], &stream[at as usize..]].concat();
        assert!(matches!(FlattenedBytes::open(Arc::new(alone)), Err(FormatError::BadField { offset: 4096, .. })));
    }
}

#[test]
fn a_block_may_claim_a_place_far_away_without_taking_memory() {
    let file = open(flatten([(0, &[1u8; 10][..]), (1 << 60, &[2; 10])]));
    assert_eq!(file.len(), (1 << 60) + 10);
    assert_eq!(file.next_data(10), 1 << 60);
    let mut buf = [9; 20];
    assert_eq!(file.read_at((1 << 60) - 10, &mut buf).unwrap(), 20);
    assert_eq!(buf, [[0; 10], [2; 10]].concat()[..]);
}

#[test]
fn another_type_is_refused_and_another_version_is_not() {
    let mut stream = flatten([(0, &[1u8; 10][..])]);
    stream[31] = 9;
    assert_eq!(all(&open(stream.clone())), [1; 10]);
    stream[23] = 2;
    assert!(matches!(
        FlattenedBytes::open(Arc::new(stream)),
        Err(FormatError::BadField { field: "type", offset: 16, .. })
    ));
}

/// As makedumpfile writes them: pieces of 700 bytes, the head of the file once more at the end.
fn flat(file: &[u8]) -> Vec<u8> {
    let pieces = file.chunks(700).enumerate().map(|(i, c)| (700 * i as u64, c));
    flatten(pieces.chain([(0, &file[..64])]))
}

#[test]
fn dumps_inside_flattened_streams_are_opened_as_they_are() {
    let elf = Elf::le64().load(Load::new(0x10_0000, &page_of(1, 0x4000))).build();
    let kdump = Kdump::le64().build();
    for (file, container) in [(elf, Container::Elf), (kdump, Container::Kdump)] {
        let plain = Input::from_bytes(Arc::new(file.clone())).unwrap();
        let stream = flat(&file);
        let len = stream.len() as u64;
        let input = Input::from_bytes(Arc::new(stream)).unwrap();
        assert_eq!((input.container(), input.flattened(), input.file_len()), (container, true, len));
        assert!(input.truncated().is_none() && input.problems().is_empty());
        assert_eq!((input.notes(), input.cpus()), (plain.notes(), 2));
        assert!(input.memory().stored().all_runs().eq(plain.memory().stored().all_runs()));
        let (mut view, mut expected) = (input.memory().view(), plain.memory().view());
        for (start, end) in plain.memory().stored().all_runs() {
            let len = (end.0 - start.0) as usize * 4096;
            let addr = PhysAddr(start.0 * 4096);
            assert_eq!(view.slice(addr, len).unwrap(), expected.slice(addr, len).unwrap());
        }
    }
}

#[test]
fn c15_a_dump_in_a_cut_stream_opens_and_its_last_pages_are_lost() {
    let stream = flat(&Kdump::le64().build());
    let input = Input::from_bytes(Arc::new(stream[..stream.len() - 900].to_vec())).unwrap();
    assert!(matches!(input.truncated(), Some(Cut { kind: CutKind::InData, lost: Some(_), .. })));
    assert!(matches!(input.problems(), [FormatError::CutShort { .. }]));
    let mut view = input.memory().view();
    assert_eq!(view.slice(PhysAddr(0), 4096).unwrap(), page_of(0, 4096));
    assert!(matches!(view.slice(PhysAddr(69_999 * 4096), 4096), Err(ReadError::Truncated { pfn: Pfn(69_999), .. })));
}

#[test]
fn a_stream_inside_a_stream_is_named() {
    let inner = flatten([(0, &[1u8; 10][..])]);
    let error = Input::from_bytes(Arc::new(flat(&inner))).err().unwrap();
    assert!(error.to_string().contains("inside a flattened stream"), "{error}");
}

#[test]
fn c15_a_second_stream_behind_the_first_is_told_and_other_content_is_not() {
    let dump = Kdump::le64().build();
    let once = flat(&dump);
    for (after, told) in [(once.clone(), true), (vec![7; 9000], false), (vec![], false)] {
        let input = Input::from_bytes(Arc::new([once.clone(), after].concat())).unwrap();
        let problems: Vec<String> = input.problems().iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), usize::from(told), "{problems:?}");
        assert!(!told || problems[0].contains(&once.len().to_string()), "{problems:?}");
        assert!(input.truncated().is_none() && input.index_memory() > 0);
    }
}

#[test]
fn blocks_of_all_sizes_are_found_in_a_file() {
    let sizes = [1usize, 15, 16, 17, 4080, 4096, 32767, 32768, 32784, 70_000, 3, 500_000, 24, 24, 24, 100_000];
    let mut plain = Vec::new();
    let mut writes = Vec::new();
    for (i, size) in sizes.iter().cycle().take(80).enumerate() {
        writes.push((plain.len() as u64, vec![i as u8 + 1; *size]));
        plain.extend(vec![i as u8 + 1; *size]);
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&flatten(writes.iter().map(|(at, data)| (*at, &data[..])))).unwrap();
    let inside = FlattenedBytes::open(Arc::new(FileBytes::open(file.path()).unwrap())).unwrap();
    assert!(inside.truncated().is_none());
    assert!(all(&inside) == plain);
}

/// A stream of blocks of one byte, of 2 GiB.
struct Tiny;

impl Bytes for Tiny {
    fn name(&self) -> &str {
        "tiny"
    }
    fn len(&self) -> u64 {
        2 << 30
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let head = flatten([]);
        for (at, byte) in (offset..).zip(buf.iter_mut()) {
            let (block, place) = (at.wrapping_sub(4096) / 17, at.wrapping_sub(4096) % 17);
            *byte = match place as usize {
                _ if at < 4096 => head[at as usize],
                place @ 0..8 => block.to_be_bytes()[place],
                8..15 => 0,
                _ => 1,
            };
        }
        Ok(buf.len())
    }
    fn window(&self, _offset: u64, _len: usize) -> Option<coresift_format::Window> {
        None
    }
}

#[test]
fn an_index_that_would_outgrow_its_stream_is_refused() {
    let error = FlattenedBytes::open(Arc::new(Tiny)).err().unwrap().to_string();
    assert!(error.contains("more than 1048576") && error.contains("coresift unflatten"), "{error}");
}
