//! Files out of streams, whole and cut short (C15).

use crate::common::place;
use coresift_engine::{EngineError, Stop, StreamFrom, UnflattenOptions, Unflattened, unflatten};
use coresift_format::{Frame, Input, Pfn};
use coresift_synth::flat::{BlockOrder, Flatten, Flattened};
use coresift_synth::{Image, KernelLayout, Machine};
use proptest::prelude::*;
use std::path::Path;
use std::sync::{Arc, OnceLock};

const STATUS: usize = 424;

fn machine() -> Image {
    let text = "@0x1080 40 zero\n@0x10b0 40 slab\n@0x10e0 16 kernel content=noise";
    Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1100).pages(text).build()
}

fn kdump() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| machine().kdump().bytes())
}

/// A stream as makedumpfile writes it: metadata, then data before descriptors.
fn ordered() -> Flattened {
    Flatten { block: 4096, ..Flatten::default() }.wrap(kdump())
}

fn made(stream: &[u8]) -> (Result<Unflattened, EngineError>, Option<Vec<u8>>) {
    let place = place();
    let (from, to) = (place.path().join("stream"), place.path().join("file"));
    std::fs::write(&from, stream).unwrap();
    let made = unflatten(&StreamFrom::Path(from), &to, UnflattenOptions::default());
    (made, std::fs::read(&to).ok())
}

/// What `len` bytes of a stream bring, and which bytes of the file these are.
fn arrived(flat: &Flattened, len: usize) -> (Vec<u8>, Vec<bool>, u64) {
    let (mut file, mut have, mut whole) = (Vec::new(), Vec::new(), 0);
    for block in &flat.blocks {
        let data = flat.bytes.get(block.at + 16..len.min(block.at + 16 + block.len)).unwrap_or_default();
        let (at, end) = (block.target as usize, block.target as usize + data.len());
        if data.is_empty() {
            continue;
        }
        file.resize(file.len().max(end), 0);
        have.resize(file.len(), false);
        file[at..end].copy_from_slice(data);
        have[at..end].fill(true);
        whole += u64::from(data.len() == block.len);
    }
    (file, have, whole)
}

#[test]
fn a_whole_stream_gives_the_file_whatever_the_order_of_its_blocks() {
    let orders = [BlockOrder::Ascending, BlockOrder::Descending, BlockOrder::Mixed(7)];
    for (order, overlap, skip_zero) in
        orders.into_iter().flat_map(|o| [(o, false, false), (o, true, false), (o, false, true)])
    {
        for block in [37, 4096, 3 << 20] {
            let flat = Flatten { block, order, overlap, skip_zero, end_marker: true }.wrap(kdump());
            let (made, file) = made(&flat.bytes);
            let made = made.unwrap();
            assert!(made.complete && made.cut.is_none() && made.follows.is_none(), "{made:?}");
            assert_eq!((made.blocks, made.stream_bytes), (flat.blocks.len() as u64, flat.bytes.len() as u64));
            assert!(file.unwrap() == kdump(), "{order:?} {overlap} {skip_zero} {block}");
        }
    }
}

fn check_cut(flat: &Flattened, cut: usize) {
    let (made, file) = made(&flat.bytes[..cut]);
    if cut < 4096 {
        assert!(made.is_err() && file.is_none(), "no file before the stream is known to be one");
        return;
    }
    let (mut expected, mut have, whole) = arrived(flat, cut);
    // Both headers, without which nothing can be opened.
    let needed = Frame::headers(kdump()).unwrap();
    if needed.iter().cloned().flatten().any(|at| have.get(at as usize) != Some(&true)) {
        assert!(matches!(made, Err(EngineError::NoDump { .. })), "cut at {cut}: {made:?}");
        assert!(file.is_none(), "cut at {cut}");
        return;
    }
    let (made, file) = (made.unwrap(), file.unwrap());
    assert_eq!((made.complete, made.blocks), (cut == flat.bytes.len(), whole), "cut at {cut}");
    if made.complete {
        assert!(file == kdump());
        return;
    }
    assert!(made.cut.is_some());
    // The file inside, by what its writer meant it to be.
    let original = Input::from_bytes(Arc::new(kdump().to_vec())).unwrap();
    let truth = original.as_kdump().unwrap();
    let (table, data) = (truth.descriptors() as usize, truth.first_data() as usize);
    assert_eq!(made.container, Some("kdump"));
    if have.len() < table || have[..table].iter().any(|have| !have) {
        return;
    }
    expected.resize(expected.len().max(data), 0);
    have.resize(expected.len(), false);
    let mut lost = 0;
    for (rank, desc) in kdump()[table..data].chunks(24).enumerate() {
        let at = table + 24 * rank;
        let offset = u64::from_le_bytes(desc[..8].try_into().unwrap()) as usize;
        let size = u32::from_le_bytes(desc[8..12].try_into().unwrap()) as usize;
        let whole = have[at..at + 24].iter().all(|h| *h)
            && have.get(offset..offset + size).is_some_and(|h| h.iter().all(|h| *h));
        if !whole {
            expected[at..at + 24].fill(0);
            lost += 1;
        }
    }
    expected[STATUS] |= 8;
    assert_eq!((made.lost_pages, made.pages), (lost, ((data - table) / 24) as u64), "cut at {cut}");
    assert!(file == expected, "cut at {cut}");
    let salvaged = Input::from_bytes(Arc::new(file)).unwrap();
    assert!(salvaged.incomplete());
    let (mut was, mut is) = (original.memory().view(), salvaged.memory().view());
    let mut read = 0;
    for pfn in salvaged.memory().stored().all_runs().flat_map(|(start, end)| start.0..end.0).map(Pfn) {
        let addr = pfn.addr(salvaged.memory().page_size());
        if let Ok(page) = is.slice(addr, 4096) {
            assert!(page == was.slice(addr, 4096).unwrap());
            read += 1;
        }
    }
    assert_eq!(read + lost, made.pages);
}

/// A stream whose block number `block` claims another offset.
fn moved(flat: &Flattened, block: usize, offset: u64) -> Vec<u8> {
    let mut stream = flat.bytes.clone();
    stream[flat.blocks[block].at..][..8].copy_from_slice(&offset.to_be_bytes());
    stream
}

/// What a reader gets of a dump with a block at the wrong place: some pages of `truth`, and no others.
fn check_pages(input: &Input, truth: &Input, what: &str) -> u64 {
    let (mut is, mut was) = (input.memory().view(), truth.memory().view());
    let mut read = 0;
    for pfn in truth.memory().stored().all_runs().flat_map(|(start, end)| start.0..end.0).map(Pfn) {
        let addr = pfn.addr(truth.memory().page_size());
        if let Ok(page) = is.slice(addr, 4096) {
            assert!(page == was.slice(addr, 4096).unwrap(), "{what}: {pfn}");
            read += 1;
        }
    }
    read
}

#[test]
fn a_block_that_says_the_wrong_place_is_named_and_costs_only_what_it_may_have_brought() {
    let flat = ordered();
    let truth = Input::from_bytes(Arc::new(kdump().to_vec())).unwrap();
    let last = flat.blocks.len() - 1;
    let all = truth.memory().stored().len();
    for block in [last / 2, last - 1, last] {
        let claims = flat.blocks[block].target;
        for (offset, why) in [
            (claims ^ 1 << 42, "less than"),
            (claims ^ 1 << 62, "less than"),
            (claims ^ 1 << 24, "no block brings"),
            (claims - 8192, "another block"),
        ] {
            let stream = moved(&flat, block, offset);
            let what = format!("block {block} moved from {claims} to {offset}");
            let direct = Input::from_bytes(Arc::new(stream.clone())).unwrap();
            assert!(direct.truncated().is_some(), "{what}");
            let told: Vec<String> = direct.problems().iter().map(ToString::to_string).collect();
            assert!(told.iter().any(|told| told.contains(why)), "{what}: {told:?}");
            let read = check_pages(&direct, &truth, &what);
            let (made, file) = made(&stream);
            let (made, file) = (made.unwrap(), file.unwrap());
            assert!(!made.complete && made.misplaced.iter().any(|told| told.contains(why)), "{what}: {made:?}");
            assert!(made.misplaced.iter().any(|told| told.contains(&offset.to_string())), "{what}: {made:?}");
            assert!(file.len() < 1 << 30, "{what}: {}", file.len());
            let saved = Input::from_bytes(Arc::new(file)).unwrap();
            assert!(saved.incomplete());
            assert_eq!(check_pages(&saved, &truth, &what), read, "{what}");
            assert!(read < all && read + 8 > all - made.lost_pages, "{what}: {read} of {all}");
        }
    }
}

#[test]
fn a_block_of_pages_on_the_sub_header_is_no_sub_header_that_is_written_again() {
    let flat = ordered();
    for block in [3, 9, 17, 33] {
        let stream = moved(&flat, block, 4096);
        let made = made(&stream).0;
        assert!(made.as_ref().is_err_and(|error| error.to_string().contains("another block")), "{block}: {made:?}");
    }
}

#[test]
fn a_file_that_is_to_be_replaced_stays_until_there_is_something_better() {
    let place = place();
    let (from, to) = (place.path().join("stream"), place.path().join("file"));
    let run = |bytes: &[u8]| {
        std::fs::write(&from, bytes).unwrap();
        std::fs::write(&to, b"the only other copy").unwrap();
        let options = UnflattenOptions { force: true, ..UnflattenOptions::default() };
        unflatten(&StreamFrom::Path(from.clone()), &to, options)
    };
    let stream = ordered().bytes;
    for cut in [4096, 4096 + 16 + 2000, 4096 + 16 + 4096] {
        assert!(matches!(run(&stream[..cut]), Err(EngineError::NoDump { .. })), "{cut}");
        assert_eq!(std::fs::read(&to).unwrap(), b"the only other copy");
    }
    assert!(!run(&stream[..stream.len() - 5000]).unwrap().complete);
    assert!(std::fs::read(&to).unwrap().starts_with(b"KDUMP   "));
}

#[test]
fn a_run_that_is_told_to_end_saves_what_arrived() {
    let place = place();
    let (from, to) = (place.path().join("stream"), place.path().join("file"));
    std::fs::write(&from, ordered().bytes).unwrap();
    let stop = Stop::default().on_signal(Arc::new(15.into()));
    let options = UnflattenOptions { stop, ..UnflattenOptions::default() };
    let error = unflatten(&StreamFrom::Path(from), &to, options).unwrap_err();
    assert!(matches!(error, EngineError::Interrupted { readable: false, .. }), "{error}");
    assert!(!to.exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_flipped_bit_of_an_offset_gives_a_page_of_a_core_other_bytes(block in 0.0..1.0f64, bit in 0u32..63) {
        let core = crate::common::core(&machine());
        let flat = Flatten { block: 4096, ..Flatten::default() }.wrap(&core);
        let truth = Input::from_bytes(Arc::new(core.clone())).unwrap();
        // The headers are what all is judged by.
        let block = 1 + ((flat.blocks.len() - 1) as f64 * block) as usize;
        let stream = moved(&flat, block, flat.blocks[block].target ^ 1 << bit);
        let what = format!("block {block} of {}, bit {bit}", flat.blocks.len());
        if let Ok(direct) = Input::from_bytes(Arc::new(stream.clone())) {
            check_pages(&direct, &truth, &what);
            prop_assert!(!direct.problems().is_empty() || direct.truncated().is_some(), "{}", what);
        }
        let (made, file) = made(&stream);
        prop_assert!(made.as_ref().is_ok_and(|made| !made.complete) || made.is_err(), "{}", what);
        if let Some(Ok(saved)) = file.map(|file| Input::from_bytes(Arc::new(file))) {
            check_pages(&saved, &truth, &what);
        }
    }

    #[test]
    fn no_flipped_bit_of_an_offset_gives_a_page_other_bytes(block in 0.0..1.0f64, bit in 0u32..63, compressed: bool) {
        // Of pages that are not compressed nothing but the block tells that they are another's.
        let image = machine();
        let mut plain = image.kdump();
        plain.codec = if compressed { plain.codec } else { 0 };
        let file = plain.bytes();
        let flat = Flatten { block: 4096, ..Flatten::default() }.wrap(&file);
        let truth = Input::from_bytes(Arc::new(file)).unwrap();
        // The headers are what all is judged by.
        let block = 3 + ((flat.blocks.len() - 3) as f64 * block) as usize;
        let offset = flat.blocks[block].target ^ 1 << bit;
        let stream = moved(&flat, block, offset);
        let what = format!("block {block} of {}, bit {bit}", flat.blocks.len());
        if let Ok(direct) = Input::from_bytes(Arc::new(stream.clone())) {
            check_pages(&direct, &truth, &what);
            prop_assert!(direct.truncated().is_some() || !direct.problems().is_empty(), "{}", what);
        }
        let (made, file) = made(&stream);
        prop_assert!(made.as_ref().is_ok_and(|made| !made.complete) || made.is_err(), "{}", what);
        if let Some(Ok(saved)) = file.map(|file| Input::from_bytes(Arc::new(file))) {
            check_pages(&saved, &truth, &what);
        }
    }

    #[test]
    fn c15_a_stream_cut_anywhere_gives_all_that_arrived_whole(cut in 0.0..1.0f64, mixed: Option<u64>, block in 100usize..9000) {
        let order = mixed.map_or(BlockOrder::Ascending, BlockOrder::Mixed);
        let flat = Flatten { block, order, ..Flatten::default() }.wrap(kdump());
        check_cut(&flat, (flat.bytes.len() as f64 * cut) as usize);
    }
}

#[test]
fn c15_cuts_at_every_kind_of_place() {
    let flat = ordered();
    for block in flat.blocks.iter().step_by(11).chain(flat.blocks.last()) {
        for cut in [block.at, block.at + 1, block.at + 15, block.at + 16, block.at + 17, block.at + 16 + block.len] {
            check_cut(&flat, cut);
        }
    }
    for cut in [0, 15, 16, 4095, 4096, flat.bytes.len() - 16, flat.bytes.len() - 1, flat.bytes.len()] {
        check_cut(&flat, cut);
    }
}

#[test]
fn c15_what_follows_the_end_marker_is_left_alone_and_told() {
    let once = ordered().bytes;
    for (after, told) in
        [(once.clone(), "another flattened stream"), (vec![7; 5000], "ignored"), (vec![7; 3], "ignored")]
    {
        let (made, file) = made(&[once.clone(), after].concat());
        let made = made.unwrap();
        assert!(made.complete && made.follows.as_ref().is_some_and(|f| f.contains(told)), "{made:?}");
        assert_eq!(made.stream_bytes, once.len() as u64);
        assert!(file.unwrap() == kdump());
    }
}

#[test]
fn c15_blocks_no_writer_writes_end_the_stream_and_what_came_before_is_kept() {
    for (offset, size) in [(-2i64, 10i64), (-1, 10), (10, -1), (10, 0), (i64::MAX, 2)] {
        let mut stream = ordered().bytes;
        let at = stream.len() - 16;
        stream.truncate(at);
        stream.extend(offset.to_be_bytes());
        stream.extend(size.to_be_bytes());
        stream.extend([9; 100]);
        let made = made(&stream).0.unwrap();
        assert!(!made.complete && made.cut.as_ref().is_some_and(|c| c.contains("no writer writes")), "{made:?}");
        assert_eq!((made.stream_bytes, made.lost_pages), (at as u64, 0));
    }
}

#[test]
fn an_elf_core_that_was_cut_is_marked_and_its_lost_memory_listed() {
    let elf = machine().elf().bytes();
    let flat = Flatten { block: 5000, ..Flatten::default() }.wrap(&elf);
    let (made_whole, file) = made(&flat.bytes);
    assert!(made_whole.unwrap().complete && file.unwrap() == elf);
    let cut = flat.blocks[60].at;
    let (made, file) = made(&flat.bytes[..cut]);
    let (made, file) = (made.unwrap(), file.unwrap());
    assert_eq!((made.container, made.complete), (Some("elf"), false));
    assert_eq!((file[48], &file[..48], &file[49..]), (elf[48] | 1, &elf[..48], &elf[49..60 * 5000]));
    let last = made.lost.last().unwrap();
    assert_eq!((made.lost[0].start, last.end), (60 * 5000, elf.len() as u64));
}

#[test]
fn what_is_no_stream_leaves_no_file_and_what_exists_is_left_alone() {
    let cases: [(&[u8], &str); 5] = [
        (&[], "empty"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gzip -dc"),
        (kdump(), "no flattened stream"),
        (b"makedumpfile\0\0\0\0\0\0\0\0\0\0\0\x02", "cut short"),
        (&[0; 5000], "zeros"),
    ];
    for (stream, why) in cases {
        let (made, file) = made(stream);
        assert!(made.as_ref().is_err_and(|e| e.to_string().contains(why)), "{why}: {made:?}");
        assert!(file.is_none(), "{why}");
    }
    let place = place();
    let (from, to) = (place.path().join("stream"), place.path().join("file"));
    std::fs::write(&from, ordered().bytes).unwrap();
    std::fs::write(&to, b"a copy").unwrap();
    let from = StreamFrom::Path(from);
    let run = |to: &Path, force| unflatten(&from, to, UnflattenOptions { force, ..UnflattenOptions::default() });
    assert!(matches!(run(&to, false), Err(EngineError::TargetExists { .. })));
    assert_eq!(std::fs::read(&to).unwrap(), b"a copy");
    run(&to, true).unwrap();
    assert!(std::fs::read(&to).unwrap() == kdump());
    let StreamFrom::Path(stream) = &from else { return };
    assert!(matches!(run(stream, true), Err(EngineError::TargetIsInput { .. })));
}
