//! What each codec does with the pages of a dump: `cargo run --release -p coresift-format --example codecs -- DUMP [STEP [CODEC...]]`.
//!
//! DUMP is one that is filtered already, best uncompressed (`coresift dump --compress none`). Every STEP-th (8th) batch of 64 kept
//! pages is held in memory; pages of zeros are left out, for no codec sees them. The codecs run in turn over all of it, round by
//! round; what counts is the best round of each, in CPU time of the thread. Every page is read back once.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a tool for whoever tunes the codecs")]

use coresift_format::codec::{Codec, Compression, Compressor, Decompressor};
use coresift_format::{Input, PageSize};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;

const ROUNDS: usize = 7;
const BATCH: u64 = 64;

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(file) = args.next() else {
        return println!("usage: codecs DUMP [STEP [CODEC[:LEVEL]...]]");
    };
    let step = args.next().map_or(8, |text| text.parse().expect("STEP is a number of batches"));
    let mut codecs: Vec<Compression> = args.map(|text| text.parse().expect("a codec")).collect();
    if codecs.is_empty() {
        codecs = Codec::ALL.into_iter().filter(|codec| *codec != Codec::None).map(Compression::from).collect();
    }
    let (pages, size) = sample(&file, step);
    let bytes = pages.len() as f64;
    println!("{} pages of {} bytes", pages.len() / size.bytes(), size.bytes());

    let mut trials: Vec<Trial> = codecs.into_iter().map(|codec| Trial::new(codec, size)).collect();
    for trial in &mut trials {
        trial.read_back(&pages, size);
    }
    for _ in 0..ROUNDS {
        for trial in &mut trials {
            trial.round(&pages, size);
        }
    }
    println!("codec        MB/s   size %   raw %");
    for Trial { compression, seconds, stored, raw, .. } in &trials {
        let (speed, size_share) = (bytes / seconds / 1e6, *stored as f64 / bytes * 100.0);
        let raw_share = (*raw * size.bytes()) as f64 / bytes * 100.0;
        println!("{:<10} {speed:>6.0} {size_share:>8.3} {raw_share:>7.2}", compression.to_string());
    }
}

/// Every `step`-th batch of the pages of `file` that are not zero.
fn sample(file: &str, step: u64) -> (Vec<u8>, PageSize) {
    let input = Input::open(Path::new(file)).expect("a dump");
    let memory = input.memory();
    let size = memory.page_size();
    let mut view = memory.view();
    let (mut pages, mut page) = (Vec::new(), vec![0; size.bytes()]);
    let all = memory.stored().all_runs().flat_map(|(start, end)| start.0..end.0);
    for (_, pfn) in (0..).zip(all).filter(|(number, _)| (number / BATCH).is_multiple_of(step)) {
        let read = view.read(coresift_format::Pfn(pfn).addr(size), &mut page);
        if read.is_ok() && page.iter().any(|byte| *byte != 0) {
            pages.extend_from_slice(&page);
        }
    }
    (pages, size)
}

struct Trial {
    compression: Compression,
    compressor: Compressor,
    out: Vec<u8>,
    seconds: f64,
    stored: usize,
    raw: usize,
}

impl Trial {
    fn new(compression: Compression, size: PageSize) -> Self {
        let compressor = Compressor::new(compression, size).expect("memory for the codec");
        let out = vec![0; compressor.max_output()];
        Self { compression, compressor, out, seconds: f64::MAX, stored: 0, raw: 0 }
    }

    fn round(&mut self, pages: &[u8], size: PageSize) {
        (self.stored, self.raw) = (0, 0);
        let start = thread_seconds();
        for page in pages.chunks_exact(size.bytes()) {
            match self.compressor.compress(page, &mut self.out) {
                Some(n) => self.stored += n,
                None => {
                    self.stored += page.len();
                    self.raw += 1;
                }
            }
        }
        self.seconds = self.seconds.min(thread_seconds() - start);
    }

    fn read_back(&mut self, pages: &[u8], size: PageSize) {
        let (mut decompressor, mut back) = (Decompressor::new(), vec![0; size.bytes()]);
        for page in pages.chunks_exact(size.bytes()) {
            let Some(stored) = self.compressor.compress(page, &mut self.out).and_then(|n| self.out.get(..n)) else {
                continue;
            };
            decompressor.decompress(self.compression.codec, stored, &mut back).expect("a page");
            assert!(back == page, "{} does not give back a page", self.compression);
        }
    }
}

fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
