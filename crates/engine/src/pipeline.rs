//! Reading, testing and compressing the kept pages on all threads, and writing them in order.
//!
//! Each thread claims the next batch, reads and compresses it into a buffer of its own, and puts it into the ring. Whoever
//! completes the batch that is next in order writes it, and all that follow it and are ready: there is no writer thread to
//! wait for or to be woken, and with one thread nothing is ever handed over.

use crate::auto::{Ahead, Controller, Window};
use crate::batches::{BATCH_BYTES, Batches};
use crate::budget::WORKER_STACK;
use crate::dedup::{Known, LAG, Recent};
use crate::file_writer::FileWriter;
use crate::lock::Lock;
use crate::observer::{Observer, Stage};
use crate::options::Choice;
use crate::stop::{Stop, StopReason};
use crate::target::WriteFailed;
use crate::worker::{Batch, Stored, Worker};
use coresift_format::codec::{Codec, CodecError, Compression};
use coresift_format::{Pfn, PhysicalMemory};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, OnceLock};
use std::time::{Duration, Instant};

/// Batch buffers a thread accounts for: one being filled, one waiting to be written.
const BUFFERS_A_THREAD: usize = 2;
/// What a compressor needs at most for pages of 4 to 64 KiB: up to this level of the codec, this many bytes. (Level 1 of zlib is our
/// own; libdeflate has a small matcher up to level 9 and a large one above; zstd's tables follow the page's size and the level.)
const CODEC_BYTES: [(Codec, i32, usize); 8] = [
    (Codec::None, i32::MAX, 0),
    (Codec::Lzo, i32::MAX, 16 << 10),
    (Codec::Snappy, i32::MAX, 64 << 10),
    (Codec::Zlib, 1, 96 << 10),
    (Codec::Zlib, 9, 256 << 10),
    (Codec::Zlib, i32::MAX, 1536 << 10),
    (Codec::Zstd, 2, 320 << 10),
    (Codec::Zstd, i32::MAX, 1536 << 10),
];

/// Memory one worker needs, in bytes: what it reads into, its share of the buffers, and its codec's tables.
#[must_use]
pub fn bytes_per_worker(compression: Compression) -> usize {
    let codec = CODEC_BYTES.iter().find(|row| row.0 == compression.codec && compression.level <= row.1);
    BATCH_BYTES + BUFFERS_A_THREAD * BATCH_BYTES + codec.map_or(0, |row| row.2) + WORKER_STACK
}

/// What the copy did.
#[derive(Debug, Default)]
pub struct Copied {
    /// Pages whose descriptors were handed to the writer, lost ones not counted.
    pub pages: u64,
    /// Of these, pages filled with zeros.
    pub zero: u64,
    /// Of these, pages that share the data of another page of the same content.
    pub shared: u64,
    /// Bytes read.
    pub bytes_in: u64,
    /// Pages that could not be read, with the reason.
    pub lost: Vec<(Pfn, String)>,
    /// Their number; `lost` keeps only the first.
    pub lost_count: u64,
    /// Where the codec was chosen while running: how many batches each got.
    pub chosen: Vec<(Compression, u64)>,
    /// What ended it early, if a write did,
    pub failed: Option<WriteFailed>,
    /// or if it was told to end.
    pub stopped: Option<StopReason>,
}

/// Lost pages that are remembered one by one.
const MAX_LOST: usize = 4096;

/// What is done in order, by one thread at a time.
struct Ordered<'a> {
    writer: FileWriter<'a>,
    recent: Recent,
    copied: Copied,
    /// Where there is something to choose.
    controller: Option<Controller>,
    /// What the last write took.
    last_write: Duration,
}

struct Ring<'a> {
    /// `None` while a thread writes.
    ordered: Option<Ordered<'a>>,
    /// Batches that are done, by their distance from `head`.
    slots: VecDeque<Option<Batch>>,
    head: u64,
    spare: Vec<Batch>,
    /// Threads that wait for a buffer.
    waiting: usize,
    /// All batches are claimed.
    closed: bool,
    failed: bool,
}

struct Pipeline<'a, 'w> {
    memory: &'a dyn PhysicalMemory,
    ladder: &'a [Compression],
    /// Which of them the next batches get.
    rung: AtomicUsize,
    known: &'a Known,
    /// Whether every page takes its own place in the file, as it is.
    plain: bool,
    batches: Lock<Batches<'a>>,
    ring: Lock<Ring<'w>>,
    changed: Condvar,
    /// Each so many free buffers one waiting thread is woken: woken for each, it would sleep again after one batch.
    wake_at: usize,
    total: u64,
    stop: &'a Stop,
    stopped: OnceLock<StopReason>,
    observer: &'a dyn Observer,
}

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub struct Copying<'a> {
    /// How pages are compressed.
    pub choice: Choice,
    /// Threads.
    pub threads: usize,
    /// What ends the copy before it is done.
    pub stop: &'a Stop,
}

/// Copies all pages of `batches` (`total` in number) from `memory` to `writer`. Returns what was done, and the writer, which is to be
/// finished unless a write failed.
///
/// # Errors
/// The codec cannot be set up.
pub fn copy<'w>(
    memory: &dyn PhysicalMemory,
    batches: Batches<'_>,
    total: u64,
    writer: FileWriter<'w>,
    how: Copying<'_>,
    observer: &dyn Observer,
) -> Result<(Copied, Option<FileWriter<'w>>), CodecError> {
    let Copying { choice, threads, stop } = how;
    let known = Known::new(memory.page_size());
    // One that can be set up says that the codec works; the threads make their own.
    let (ladder, start) = (choice.ladder(), choice.start());
    let plain = writer.is_plain();
    let first = Worker::new(memory, ladder, start, &known, plain)?;
    // What a batch shares with earlier ones depends on there being no more.
    let buffers = (threads.max(1) * BUFFERS_A_THREAD).min(LAG as usize);
    let spare = std::iter::repeat_with(Batch::default).take(buffers).collect();
    let ordered = Ordered {
        writer,
        recent: Recent::new(memory.page_size()),
        copied: Copied::default(),
        controller: (choice == Choice::Auto).then(|| Controller::new(threads.min(buffers))),
        last_write: Duration::ZERO,
    };
    let slots = VecDeque::with_capacity(buffers);
    let ring = Ring { ordered: Some(ordered), slots, head: 0, spare, waiting: 0, closed: false, failed: false };
    let pipeline = Pipeline {
        memory,
        ladder,
        rung: AtomicUsize::new(start),
        known: &known,
        plain,
        batches: Lock::new("batches", batches),
        ring: Lock::new("ring", ring),
        changed: Condvar::new(),
        wake_at: (buffers / 8).max(2),
        total,
        stop,
        stopped: OnceLock::new(),
        observer,
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(buffers) {
            let thread = std::thread::Builder::new().name("copy pages".to_owned()).stack_size(WORKER_STACK);
            // A thread that does not start, or finds no memory for its codec, leaves its share to the others.
            let _ = thread.spawn_scoped(scope, || {
                if let Ok(worker) = Worker::new(pipeline.memory, pipeline.ladder, start, pipeline.known, pipeline.plain)
                {
                    pipeline.work(worker);
                }
            });
        }
        pipeline.work(first);
    });
    let stopped = pipeline.stopped.into_inner();
    let ring = pipeline.ring.into_inner();
    let Some(mut ordered) = ring.ordered else { return Ok((Copied::default(), None)) };
    if let Some(controller) = ordered.controller {
        ordered.copied.chosen = ladder.iter().copied().zip(controller.batches).collect();
    }
    ordered.copied.stopped = stopped;
    Ok((ordered.copied, Some(ordered.writer)))
}

impl Pipeline<'_, '_> {
    fn work(&self, mut worker: Worker<'_>) {
        let _told = TellPanic(self);
        while let Some(mut batch) = self.buffer() {
            let Some(number) = self.claim(&mut batch) else { return self.close() };
            worker.fill(&mut batch, number, self.rung.load(Ordering::Relaxed));
            self.hand_in(number, batch);
        }
    }

    /// The number of the next batch, whose runs get into `batch`; `None` when there are no more, or the copy is told to end.
    fn claim(&self, batch: &mut Batch) -> Option<u64> {
        let mut batches = self.batches.hold();
        let number = batches.next(&mut batch.runs)?;
        batch.essential = batches.essential();
        drop(batches);
        self.goes_on(batch).then_some(number)
    }

    /// Whether nobody says that the copy ends before `batch`.
    fn goes_on(&self, batch: &Batch) -> bool {
        self.stop.copying(batch.essential).map(|reason| self.stopped.set(reason)).is_none()
    }

    /// Tells those that wait for a buffer that there is nothing left to fill it with.
    fn close(&self) {
        self.ring.hold().closed = true;
        self.changed.notify_all();
    }

    /// An empty buffer, as soon as one is free; `None` when all batches are claimed or the copy has failed. Claims follow buffers, so the batch that is next
    /// in order always has one, and the wait ends.
    fn buffer(&self) -> Option<Batch> {
        let mut ring = self.ring.hold();
        loop {
            if ring.failed || ring.closed {
                return None;
            }
            if let Some(batch) = ring.spare.pop() {
                return Some(batch);
            }
            ring.waiting += 1;
            ring = self.ring.wait(&self.changed, ring);
            ring.waiting -= 1;
        }
    }

    /// Puts a finished batch into the ring; writes it and its successors if it is next and nobody is writing.
    fn hand_in(&self, number: u64, batch: Batch) {
        let mut ring = self.ring.hold();
        ring.put(number, batch);
        // Whoever has the writer looks at the ring again before it gives it back.
        let Some(mut ordered) = ring.ordered.take() else { return };
        while let Some((number, batch)) = ring.take_next() {
            drop(ring);
            // What is claimed already could take long to write.
            if !self.goes_on(&batch) {
                ring = self.ring.hold();
                ring.failed = true;
                break;
            }
            ordered.write(&batch, number, self.known);
            let done = ordered.copied.pages + ordered.copied.lost_count;
            if let Some(rung) = ordered.choose(&batch, self.total.saturating_sub(done)) {
                self.rung.store(rung, Ordering::Relaxed);
            }
            // Without the lock: a receiver that blocks holds up the writing, but no thread that has a buffer left.
            self.observer.progress(Stage::CopyPages, done, self.total);
            ring = self.ring.hold();
            ring.failed = ordered.failed();
            ring.spare.push(batch);
            if ring.waiting > 0 && ring.spare.len().is_multiple_of(self.wake_at) {
                drop(ring);
                self.changed.notify_one();
                ring = self.ring.hold();
            }
        }
        ring.ordered = Some(ordered);
        let wake = if ring.failed { ring.waiting } else { ring.waiting.min(ring.spare.len()) };
        drop(ring);
        for _ in 0..wake {
            self.changed.notify_one();
        }
    }
}

/// Lets the other threads go when this one panics: they would wait for its batch.
struct TellPanic<'a, 'p, 'w>(&'a Pipeline<'p, 'w>);

impl Drop for TellPanic<'_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.ring.hold().failed = true;
            self.0.changed.notify_all();
        }
    }
}

impl Ring<'_> {
    fn put(&mut self, number: u64, batch: Batch) {
        let index = (number - self.head) as usize;
        while self.slots.len() <= index {
            self.slots.push_back(None);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(batch);
        }
    }

    /// The batch that is next in order and its number, if it is done and writing goes on.
    fn take_next(&mut self) -> Option<(u64, Batch)> {
        let batch = self.slots.front_mut().filter(|_| !self.failed)?.take()?;
        self.slots.pop_front();
        self.head += 1;
        Some((self.head - 1, batch))
    }
}

impl Ordered<'_> {
    fn write(&mut self, batch: &Batch, number: u64, known: &Known) {
        let counting = self.writer.short().is_some();
        let clock = Instant::now();
        let result = self.writer.batch(batch);
        self.last_write = clock.elapsed();
        if let Ok(start) = result {
            self.recent.learn(batch, number, start, known);
        }
        // A dry run tells what the run would have done until there was no room.
        match (result, self.writer.short()) {
            _ if counting => {}
            (Ok(start) | Err(WriteFailed { offset: start, .. }), Some(end)) => {
                self.copied.add(batch, Err(WriteFailed::no_room(start, end)));
            }
            (result, None) => self.copied.add(batch, result),
        }
    }

    /// Whether nothing more is to be written, not even to count it.
    fn failed(&self) -> bool {
        self.copied.failed.is_some() && self.writer.short().is_none()
    }

    /// What the batches to come are compressed with, where that is chosen, after `batch` was written and with `pages` to come.
    fn choose(&mut self, batch: &Batch, pages: u64) -> Option<usize> {
        let controller = self.controller.as_mut()?;
        let window = Window {
            batches: 1,
            pages: batch.pages.len() as u64,
            bytes: batch.used as u64,
            work: batch.work,
            write: self.last_write,
        };
        Some(controller.batch(batch.rung, window, || Ahead { pages, room: self.writer.room() }))
    }
}

impl Copied {
    /// Adds what the copy of another file of the same dump did. Why that ended early is left to it.
    pub fn merge(&mut self, other: Self) {
        self.pages += other.pages;
        self.zero += other.zero;
        self.shared += other.shared;
        self.bytes_in += other.bytes_in;
        self.lost_count += other.lost_count;
        self.lost.extend(other.lost.into_iter().take(MAX_LOST - self.lost.len().min(MAX_LOST)));
        for (how, batches) in other.chosen {
            match self.chosen.iter_mut().find(|row| row.0 == how) {
                Some(row) => row.1 += batches,
                None => self.chosen.push((how, batches)),
            }
        }
    }

    fn add(&mut self, batch: &Batch, result: Result<u64, WriteFailed>) {
        self.bytes_in += batch.bytes_in;
        self.lost_count += batch.lost.len() as u64;
        self.lost.extend(batch.lost.iter().take(MAX_LOST - self.lost.len().min(MAX_LOST)).cloned());
        self.shared += batch.shared;
        // Descriptors were written for the pages whose data fit.
        let written = result.as_ref().map_or_else(|failed| failed.done as u64, |_| batch.used as u64);
        for page in &batch.pages {
            match *page {
                Stored::Lost => continue,
                Stored::Data { at, size, .. } if u64::from(at) + u64::from(size) > written => continue,
                Stored::Zero => self.zero += 1,
                Stored::Data { .. } | Stored::Known(_) => {}
            }
            self.pages += 1;
        }
        self.failed = result.err();
    }
}
