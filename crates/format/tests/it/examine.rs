//! What is told of kdump-compressed files that are cut, damaged or odd.

use crate::make::{Kdump, flatten};
use coresift_format::kdump::{BitmapFaults, KdumpFile, Loss};
use coresift_format::{Bytes, FormatError, Input, PageSet, Pfn, PhysAddr, PhysicalMemory};
use std::sync::Arc;

fn losses(file: &KdumpFile) -> Vec<(u64, Option<Loss>)> {
    let mut found = Vec::new();
    file.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
        found.push((page.pfn.0, page.state.err().map(|(loss, _)| loss)));
    });
    found
}

fn faults(raw: &[u8]) -> BitmapFaults {
    KdumpFile::open(Arc::new(raw.to_vec())).unwrap().bitmap_faults().unwrap()
}

#[test]
fn a_file_cut_anywhere_behind_the_sub_header_is_salvaged_and_claims_only_what_it_has() {
    let made = Kdump::le64();
    let whole = made.build();
    for end in (0..=whole.len()).step_by(512) {
        let cut: Arc<dyn Bytes> = Arc::new(whole[..end].to_vec());
        let opened = KdumpFile::salvage(cut);
        if end < 4096 + 104 {
            assert!(matches!(opened, Err(FormatError::CutShort { .. })), "cut at {end}");
            continue;
        }
        let file = opened.unwrap();
        assert_eq!(
            file.problems().is_empty(),
            end as u64 >= made.descriptors_at(),
            "cut at {end}: {:?}",
            file.problems()
        );
        let mut view = file.view();
        let mut page = vec![0; 4096];
        for (pfn, loss) in losses(&file) {
            let read = view.read(PhysAddr(pfn * 4096), &mut page);
            assert_eq!(read.is_ok(), loss.is_none(), "cut at {end}: page {pfn}: {loss:?} {read:?}");
            assert!(loss.is_some() || page == made.pages[&pfn], "cut at {end}: page {pfn}");
        }
        if end as u64 >= made.data_at() {
            assert_eq!(file.stored().len(), made.pages.len() as u64);
        }
    }
}

#[test]
fn losses_are_told_apart() {
    let mut made = Kdump::le64();
    made.descriptors.insert(0, (0, 0, 0));
    made.descriptors.insert(1, (1 << 40, 100, 1));
    made.descriptors.insert(2, (made.data_at() - 1, 100, 1));
    made.descriptors.insert(9, (made.data_at(), 100, 0x40));
    let file = KdumpFile::open(Arc::new(made.build())).unwrap();
    let expected = [
        Some(Loss::Unwritten),
        Some(Loss::BeyondEnd),
        Some(Loss::BadDescriptor),
        Some(Loss::BadDescriptor),
        None,
        None,
    ];
    assert_eq!(losses(&file).into_iter().map(|l| l.1).collect::<Vec<_>>(), expected);
    let one = file.describe(Pfn(33_000)).unwrap();
    assert_eq!((one.rank, one.at), (4, made.descriptor_at(33_000)));
    assert!(file.describe(Pfn(5)).is_none());
}

#[test]
fn a_stream_that_lost_page_data_does_not_pass_its_zeros_off_as_pages() {
    let made = Kdump::le64();
    let whole = made.build();
    let (head, data) = whole.split_at(made.data_at() as usize);
    let (lost, kept) = data.split_at(data.len() / 2);
    let stream = flatten([(0, head), (made.data_at() + lost.len() as u64, kept)]);
    let count = |stream: Vec<u8>| {
        let input = Input::from_bytes(Arc::new(stream)).unwrap();
        input.as_kdump().unwrap().count_descriptors().beyond_end
    };
    let cut = count(stream[..stream.len() - 16].to_vec());
    // No writer leaves a gap among page data: a block that belongs there is elsewhere, and it may be the one that stands behind the gap.
    let all = made.pages.len() as u64;
    assert!(cut > 0);
    assert_eq!(count(stream), all);
}

#[test]
fn bits_no_writer_sets_are_counted() {
    let made = Kdump::le64();
    let mut raw = made.build();
    assert_eq!(faults(&raw), BitmapFaults::default());
    let second = made.descriptors_at() as usize - 12288;
    raw[second + 100 / 8] |= 1 << (100 % 8);
    raw[second + 70_001 / 8] |= 1 << (70_001 % 8);
    raw[second - 1] |= 0x80;
    assert_eq!(faults(&raw), BitmapFaults { outside_ram: 1, behind_end: 2 });
    let mut one = Kdump::new(coresift_format::kdump::Abi::Lp64, coresift_format::Endian::Little, 0);
    one.one_bitmap = true;
    assert_eq!(faults(&one.build()), BitmapFaults::default());
}

#[test]
fn data_that_overlap_are_named_and_data_that_are_shared_are_not() {
    let mut made = Kdump::le64();
    let whole = KdumpFile::open(Arc::new(made.build())).unwrap();
    let found = whole.places(&PageSet::default());
    assert_eq!((found.places, found.shared, found.overlapping, found.unused), (6, 0, 0, 0));
    assert!(found.compared && !found.doubtful());
    let of = |pfn| whole.describe(Pfn(pfn)).unwrap().desc;
    let (two, nine) = (of(2), of(9));
    made.descriptors.insert(69_999, (two.offset, two.size.into(), two.flags.into()));
    made.descriptors.insert(33_000, (nine.offset - 1, nine.size.into(), nine.flags.into()));
    let found = KdumpFile::open(Arc::new(made.build())).unwrap().places(&PageSet::default());
    assert_eq!((found.places, found.shared), (5, 1));
    // The page before the moved one, then the moved one and the one it was moved onto.
    assert_eq!(found.overlapping, 2);
    let named: Vec<_> = found.first.iter().map(|o| (o.first.0.0, o.second.0.0)).collect();
    assert_eq!(named, [(2, 33_000), (33_000, 9)]);
}

#[test]
fn a_page_count_that_does_not_fit_the_bitmaps_is_cut_to_them() {
    let made = Kdump::le64();
    let mut raw = made.build();
    raw[4096 + 96..4096 + 104].copy_from_slice(&(1u64 << 50).to_le_bytes());
    assert!(KdumpFile::open(Arc::new(raw.clone())).is_err());
    let file = KdumpFile::salvage(Arc::new(raw)).unwrap();
    assert_eq!(file.max_pfn(), Pfn(70_000), "the main header still knows");
    assert_eq!((file.stored().len(), file.problems().len()), (6, 1));
}

/// A file on a disk that cannot read some of it.
struct Torn {
    bytes: Vec<u8>,
    hole: std::ops::Range<u64>,
}

impl Bytes for Torn {
    fn name(&self) -> &str {
        "torn"
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        if offset < self.hole.end && self.hole.start < offset + buf.len() as u64 {
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.bytes.read_at(offset, buf)
    }

    fn window(&self, _offset: u64, _len: usize) -> Option<coresift_format::Window> {
        None
    }
}

#[test]
fn descriptors_that_the_disk_cannot_read_are_lost_and_the_others_are_not() {
    let raw = Kdump::le64().build();
    let whole = KdumpFile::open(Arc::new(raw.clone())).unwrap();
    let at = whole.descriptors();
    let torn = Torn { bytes: raw, hole: at + 30..at + 31 };
    let file = KdumpFile::open(Arc::new(torn)).unwrap();
    let lost: Vec<_> = losses(&file).into_iter().map(|(_, loss)| loss).collect();
    // What the disk gives up at once is larger than this table.
    assert!(lost.iter().all(|loss| *loss == Some(Loss::Unreadable)), "{lost:?}");
    assert_eq!(file.count_descriptors().unreadable, lost.len() as u64);
    let alone = file.describe(Pfn(losses(&whole)[0].0)).unwrap();
    assert!(alone.state.is_ok(), "one that can be read by itself: {:?}", alone.state);
}
