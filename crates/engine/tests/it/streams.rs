//! A dump as a flattened stream: the same file, written from beginning to end.

use crate::common::{core, dump, exclusion, options, place};
use coresift_engine::{DumpOptions, EngineError, Report, Silent, StreamTo, Target, dump_input};
use coresift_format::Input;
use coresift_format::kdump::STATUS_INCOMPLETE;
use coresift_synth::{Image, KernelLayout, Machine};
use std::io::Read;
use std::sync::Arc;

fn machine() -> Image {
    let text = "@0x3000 200 slab
        @0x3100 100 cache
        @0x3200 300 zero
        @0x3400 200 kernel content=noise
        @0x3500 200 anon";
    Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1100).ram(0x3000..0x4000).pages(text).build()
}

/// The stream, through a FIFO, and its report.
fn stream(source: Vec<u8>, options: &DumpOptions) -> (Report, Vec<u8>) {
    let place = place();
    let path = place.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from(0o600)).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = Vec::new();
            std::fs::File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        });
        let input = Input::from_bytes(Arc::new(source)).unwrap();
        let report = dump_input(input, &Target::Stream(StreamTo::Path(path.clone())), options, &Silent).unwrap();
        (report, reader.join().unwrap())
    })
}

/// The blocks of a stream: where each goes, and its bytes. The stream must be whole.
fn blocks(stream: &[u8]) -> Vec<(usize, &[u8])> {
    assert!(stream.starts_with(b"makedumpfile\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0"));
    let mut blocks = Vec::new();
    let mut rest = &stream[4096..];
    loop {
        let word = |at: usize| i64::from_be_bytes(rest[at..at + 8].try_into().unwrap());
        let (offset, len) = (word(0), word(8));
        rest = &rest[16..];
        if offset == -1 {
            assert_eq!((len, rest.len()), (-1, 0), "the end marker comes last");
            return blocks;
        }
        let (data, after) = rest.split_at(len as usize);
        assert!(!data.is_empty());
        blocks.push((offset as usize, data));
        rest = after;
    }
}

/// The file inside, of a stream that writes no byte twice.
fn rearranged(stream: &[u8]) -> Vec<u8> {
    let blocks = blocks(stream);
    let len = blocks.iter().map(|(at, data)| at + data.len()).max().unwrap();
    let (mut file, mut written) = (vec![0; len], vec![false; len]);
    for (at, data) in blocks {
        file[at..at + data.len()].copy_from_slice(data);
        for byte in &mut written[at..at + data.len()] {
            assert!(!std::mem::replace(byte, true), "written twice in the block for {at}");
        }
    }
    file
}

#[test]
fn a_stream_holds_the_file_and_writes_no_byte_twice() {
    let source = core(&machine());
    for codec in ["none", "zlib", "lzo", "snappy", "zstd"] {
        for level in [0, 1, 31] {
            let options = DumpOptions { compression: codec.parse().unwrap(), ..options(level) };
            let (report, bytes) = stream(source.clone(), &options);
            assert!(report.complete && report.bytes_out == bytes.len() as u64);
            assert!(rearranged(&bytes) == dump(source.clone(), &options).1, "{codec} {level}");
        }
    }
}

#[test]
fn a_stream_has_the_same_bytes_for_every_number_of_threads() {
    let source = core(&machine());
    let with = |threads| stream(source.clone(), &DumpOptions { threads: Some(threads), ..options(31) }).1;
    let one = with(1);
    for threads in [2, 3, 8] {
        assert!(one == with(threads), "{threads} threads");
    }
}

#[test]
fn the_mark_of_an_incomplete_dump_and_what_was_erased_come_last() {
    let image = machine();
    let mut before = image.kdump();
    before.eraseinfo = "erase init_task.comm 16\n".to_owned();
    for incomplete in [false, true] {
        if incomplete {
            before.status |= STATUS_INCOMPLETE;
        }
        let file = before.bytes();
        let bytes = stream(file.clone(), &options(1)).1;
        let inside = rearranged(&bytes);
        assert!(inside == dump(file, &options(1)).1);
        let input = Input::from_bytes(Arc::new(inside)).unwrap();
        assert_eq!(input.incomplete(), incomplete);
        assert_eq!(input.kdump_header().unwrap().1.size_eraseinfo, 24);
    }
}

#[test]
fn metadata_come_first_and_descriptors_behind_their_data() {
    let bytes = stream(core(&machine()), &options(31)).1;
    let file = rearranged(&bytes);
    let input = Input::from_bytes(Arc::new(file.clone())).unwrap();
    let kdump = input.as_kdump().unwrap();
    let (table, pages) = (kdump.descriptors() as usize, input.memory().stored().len() as usize);
    let data = table + 24 * pages;
    let mut have = vec![false; file.len()];
    let mut last_of_head = 0;
    for (number, (at, bytes)) in blocks(&bytes).into_iter().enumerate() {
        have[at..at + bytes.len()].fill(true);
        if at < table && bytes.len() > 16 {
            last_of_head = number;
        }
        if (table..data).contains(&at) {
            for desc in bytes.chunks(24) {
                let offset = u64::from_le_bytes(desc[..8].try_into().unwrap()) as usize;
                let size = u32::from_le_bytes(desc[8..12].try_into().unwrap()) as usize;
                assert!(
                    have[offset..offset + size].iter().all(|have| *have),
                    "a descriptor points at what is not there"
                );
            }
        }
    }
    let first_data = blocks(&bytes).iter().position(|(at, _)| *at > data).unwrap();
    assert!(last_of_head < first_data);
}

#[test]
fn a_dry_run_tells_the_length_of_the_stream() {
    let source = core(&machine());
    let (report, bytes) = stream(source.clone(), &options(31));
    let input = Input::from_bytes(Arc::new(source)).unwrap();
    let dry = DumpOptions { dry_run: true, ..options(31) };
    let told = dump_input(input, &Target::Stream(StreamTo::Stdout), &dry, &Silent).unwrap();
    assert_eq!((told.bytes_out, told.kept_pages), (bytes.len() as u64, report.kept_pages));
}

#[test]
fn a_reader_that_goes_away_ends_the_run_with_what_to_do() {
    let place = place();
    let path = place.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from(0o600)).unwrap();
    let source = core(&machine());
    // Two levels, but nothing is tried again: what the reader got cannot be taken back.
    let twice = DumpOptions { exclude: vec![exclusion(0, "", ""), exclusion(31, "", "")], ..options(0) };
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut some = [0; 10_000];
            std::fs::File::open(&path).unwrap().read_exact(&mut some).unwrap();
        });
        let input = Input::from_bytes(Arc::new(source)).unwrap();
        let plain = DumpOptions { compression: "none".parse().unwrap(), ..twice };
        dump_input(input, &Target::Stream(StreamTo::Path(path.clone())), &plain, &Silent).unwrap_err()
    });
    assert!(matches!(error, EngineError::Stream { written: 10_000.., .. }), "{error}");
    assert!(error.to_string().contains("nobody reads") && error.to_string().contains("unflatten"), "{error}");
}

#[test]
fn a_stream_into_a_file_overwrites_only_when_forced() {
    let place = place();
    let path = place.path().join("file");
    std::fs::write(&path, vec![7; 8 << 20]).unwrap();
    let source = core(&machine());
    let run = |force| {
        let input = Input::from_bytes(Arc::new(source.clone())).unwrap();
        let options = DumpOptions { force, ..options(31) };
        dump_input(input, &Target::Stream(StreamTo::Path(path.clone())), &options, &Silent)
    };
    assert!(matches!(run(false), Err(EngineError::TargetExists { .. })));
    run(true).unwrap();
    assert!(rearranged(&std::fs::read(&path).unwrap()) == dump(source.clone(), &options(31)).1);
}
