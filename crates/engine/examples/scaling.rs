//! How the copy scales past this machine: reading sleeps instead of computing, and each written batch sleeps instead of waiting
//! for a medium, so that two cores stand for many.
//!
//! ```text
//! cargo run --release -p coresift-engine --features measure --example scaling [WORK_US [SINK_US]]
//! ```
//!
//! `WORK_US` is what reading and compressing one batch of 256 KiB takes, `SINK_US` what writing it takes, in microseconds. For each
//! number of workers the table has the batches a second, beside what the model says: the workers' rate or the sink's, whichever is
//! less (docs/performance.md); and what the locks cost a batch.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout, reason = "an example")]

use coresift_engine::{
    DumpOptions, Event, Exclusion, Format, LockTimes, Observer, Stage, Stop, Target, dump_input, lock_times,
};
use coresift_format::codec::Codec;
use coresift_format::{Bytes, Input, Window};
use coresift_kernel::{ClassSet, DumpLevel};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a batch, which are read at once.
const BATCH: u64 = 256 << 10;
/// Where the memory begins in the file.
const START: u64 = 4096;

/// An ELF core of so many bytes of memory, in which one page of 64 differs; a batch of it takes its time.
struct SlowCore {
    header: Vec<u8>,
    memory: u64,
    work: Duration,
}

impl SlowCore {
    fn new(batches: u64, work: Duration) -> Self {
        let memory = batches * BATCH;
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(16, 0);
        for (value, size) in
            [(4u64, 2), (62, 2), (1, 4), (0, 8), (64, 8), (0, 8), (0, 4), (64, 2), (56, 2), (1, 2), (0, 6)]
        {
            header.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        for (value, size) in [(1u64, 4), (7, 4), (START, 8), (0, 8), (1 << 20, 8), (memory, 8), (memory, 8), (0, 8)] {
            header.extend_from_slice(&value.to_le_bytes()[..size]);
        }
        Self { header, memory, work }
    }
}

impl Bytes for SlowCore {
    fn name(&self) -> &str {
        "slow core"
    }

    fn len(&self) -> u64 {
        START + self.memory
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        buf.fill(0);
        if let Some(header) = self.header.get(offset as usize..) {
            let n = header.len().min(buf.len());
            buf[..n].copy_from_slice(&header[..n]);
        }
        if buf.len() as u64 == BATCH {
            buf[..8].copy_from_slice(&offset.to_le_bytes());
            std::thread::sleep(self.work);
        }
        Ok(buf.len())
    }

    fn window(&self, _: u64, _: usize) -> Option<Window> {
        None
    }
}

/// A sink that takes its time for each batch: the copy reports a batch when it is written, and whoever writes waits for that.
struct SlowSink {
    time: Duration,
    slept: AtomicU64,
}

impl Observer for SlowSink {
    fn progress(&self, stage: Stage, _: u64, _: u64) {
        if stage == Stage::CopyPages && !self.time.is_zero() {
            let clock = Instant::now();
            std::thread::sleep(self.time);
            self.slept.fetch_add(clock.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    fn event(&self, _: Event) {}
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().unwrap());
    let work = Duration::from_micros(arguments.next().unwrap_or(8000));
    let sink = Duration::from_micros(arguments.next().unwrap_or(0));
    println!("a batch of 256 KiB: {work:?} of work, {sink:?} of writing\n");
    println!(
        "workers  batches/s  model  reached  writer busy   locks taken a batch, ns held each (longest), ns waited a batch"
    );
    for workers in [1, 2, 4, 8, 16, 32, 64, 128] {
        let batches = 100 * workers as u64;
        let input = Input::from_bytes(Arc::new(SlowCore::new(batches, work))).unwrap();
        let none = ClassSet::default();
        let options = DumpOptions {
            exclude: vec![Exclusion::new(DumpLevel::new(0).unwrap(), none, none)],
            format: Format::Kdump,
            compression: Codec::None.into(),
            threads: Some(workers),
            max_memory: Some(1 << 30),
            force: true,
            dry_run: true,
            limit: None,
            stop: Stop::default(),
            exclude_unused_map: false,
            debug: None,
            map_input: false,
            log: None,
        };
        let observer = SlowSink { time: sink, slept: AtomicU64::new(0) };
        let _ = lock_times();
        let report = dump_input(input, &Target::Path(PathBuf::from("/dev/null")), &options, &observer).unwrap();
        let seconds = report.stages.last().unwrap().seconds;
        let rate = batches as f64 / seconds;
        // A sleep is longer than asked for; what the sink took is what it was.
        let wrote = observer.slept.into_inner() as f64 / 1e9;
        let write = wrote / batches as f64;
        // Whoever writes does not work meanwhile, and one writes at a time.
        let model = (workers as f64 / (work.as_secs_f64() + write)).min(1.0 / write);
        let busy = wrote / seconds;
        let locks: Vec<String> = lock_times().iter().map(|lock| one_lock(lock, batches)).collect();
        println!(
            "{workers:7} {rate:10.0} {model:6.0} {:7.1}% {:11.1}%   {}",
            rate / model * 100.0,
            busy * 100.0,
            locks.join("; ")
        );
    }
}

fn one_lock(lock: &LockTimes, batches: u64) -> String {
    let taken = lock.taken.max(1);
    format!(
        "{} {:.1}, {} ({} us), {}",
        lock.name,
        lock.taken as f64 / batches as f64,
        lock.held / taken,
        lock.longest / 1000,
        lock.waited / batches
    )
}
