//! Reading, testing and compressing the kept pages on all threads, and writing them in order.
//!
//! Each thread claims the next batch, reads and compresses it into a buffer of its own, and puts it into the ring. Whoever
//! completes the batch that is next in order writes it, and all that follow it and are ready: there is no writer thread to
//! wait for or to be woken, and with one thread nothing is ever handed over.

use crate::batches::{BATCH_BYTES, Batches, Run};
use crate::budget::WORKER_STACK;
use crate::observer::{Observer, Stage};
use crate::target::WriteFailed;
use crate::writer::{Stored, Writer};
use coresift_format::codec::{Codec, CodecError, Compression, Compressor};
use coresift_format::{MemoryView, PageSize, Pfn, PhysicalMemory};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Batch buffers a thread accounts for: one being filled, one waiting to be written.
const BUFFERS_A_THREAD: usize = 2;
/// What a compressor needs at most for pages of 4 to 64 KiB: up to this level of the codec, this many bytes. (libdeflate has a
/// small matcher up to level 9 and a large one above; zstd's tables follow the page's size and the level.)
const CODEC_BYTES: [(Codec, i32, usize); 7] = [
    (Codec::None, i32::MAX, 0),
    (Codec::Lzo, i32::MAX, 16 << 10),
    (Codec::Snappy, i32::MAX, 64 << 10),
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
    /// Bytes read.
    pub bytes_in: u64,
    /// Pages that could not be read, with the reason.
    pub lost: Vec<(Pfn, String)>,
    /// Their number; `lost` keeps only the first.
    pub lost_count: u64,
    /// Why it ended early.
    pub failed: Option<WriteFailed>,
}

/// Lost pages that are remembered one by one.
const MAX_LOST: usize = 4096;

/// One batch on its way.
#[derive(Debug, Default)]
struct Batch {
    runs: Vec<Run>,
    pages: Vec<Stored>,
    /// Room for all pages of a batch, of which the first `used` bytes are filled. Never shrunk: clearing it for each page cost 2 %
    /// of a run with snappy.
    data: Vec<u8>,
    used: usize,
    lost: Vec<(Pfn, String)>,
    bytes_in: u64,
}

impl Batch {
    fn stored(&self) -> &[u8] {
        self.data.get(..self.used).unwrap_or_default()
    }
}

struct Ring {
    writer: Option<Writer>,
    /// Batches that are done, by their distance from `head`.
    slots: VecDeque<Option<Batch>>,
    head: u64,
    spare: Vec<Batch>,
    copied: Copied,
}

struct Pipeline<'a> {
    memory: &'a dyn PhysicalMemory,
    compression: Compression,
    page: PageSize,
    batches: Mutex<Batches<'a>>,
    ring: Mutex<Ring>,
    changed: Condvar,
    total: u64,
    observer: &'a dyn Observer,
}

/// Copies all pages of `batches` (`total` in number) from `memory` to `writer` with `threads` threads. Returns what was done,
/// and the writer, which is to be finished unless the copy failed.
///
/// # Errors
/// The codec cannot be set up.
pub fn copy(
    memory: &dyn PhysicalMemory,
    batches: Batches<'_>,
    total: u64,
    writer: Writer,
    compression: Compression,
    threads: usize,
    observer: &dyn Observer,
) -> Result<(Copied, Option<Writer>), CodecError> {
    let page = memory.page_size();
    // One that can be set up says that the codec works; the threads make their own.
    let first = Worker::new(memory, compression, page)?;
    let spare = std::iter::repeat_with(Batch::default).take(threads.max(1) * BUFFERS_A_THREAD).collect();
    let ring = Ring { writer: Some(writer), slots: VecDeque::new(), head: 0, spare, copied: Copied::default() };
    let pipeline = Pipeline {
        memory,
        compression,
        page,
        batches: Mutex::new(batches),
        ring: Mutex::new(ring),
        changed: Condvar::new(),
        total,
        observer,
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let thread = std::thread::Builder::new().name("copy pages".to_owned()).stack_size(WORKER_STACK);
            // A thread that does not start, or finds no memory for its codec, leaves its share to the others.
            let _ = thread.spawn_scoped(scope, || {
                if let Ok(worker) = Worker::new(pipeline.memory, pipeline.compression, pipeline.page) {
                    pipeline.work(worker);
                }
            });
        }
        pipeline.work(first);
    });
    let ring = pipeline.ring.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((ring.copied, ring.writer))
}

impl Pipeline<'_> {
    fn work(&self, mut worker: Worker<'_>) {
        while let Some(mut batch) = self.buffer() {
            let claimed = self.batches.lock().unwrap_or_else(PoisonError::into_inner).next(&mut batch.runs);
            let Some(number) = claimed else { return };
            worker.fill(&mut batch);
            self.hand_in(number, batch);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // Nothing panics while it holds the ring; if it did, what the ring says is still true.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty buffer, as soon as one is free; `None` when the copy has failed. Claims follow buffers, so the batch that is next
    /// in order always has one, and the wait ends.
    fn buffer(&self) -> Option<Batch> {
        let mut ring = self.lock();
        loop {
            if ring.copied.failed.is_some() {
                return None;
            }
            if let Some(batch) = ring.spare.pop() {
                return Some(batch);
            }
            ring = self.changed.wait(ring).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Puts a finished batch into the ring; writes it and its successors if it is next and nobody is writing.
    fn hand_in(&self, number: u64, batch: Batch) {
        let mut ring = self.lock();
        let index = (number - ring.head) as usize;
        while ring.slots.len() <= index {
            ring.slots.push_back(None);
        }
        if let Some(slot) = ring.slots.get_mut(index) {
            *slot = Some(batch);
        }
        // Whoever has the writer looks at the ring again before it gives it back.
        let Some(mut writer) = ring.writer.take() else { return };
        while ring.copied.failed.is_none()
            && let Some(batch) = ring.slots.front_mut().and_then(Option::take)
        {
            ring.slots.pop_front();
            ring.head += 1;
            drop(ring);
            let result = writer.batch(&batch.runs, &batch.pages, batch.stored());
            ring = self.lock();
            ring.account(&batch, result);
            ring.spare.push(batch);
            self.changed.notify_one();
            let done = ring.copied.pages + ring.copied.lost_count;
            drop(ring);
            // Without the lock: a receiver that blocks holds up the writing, but no thread that has a buffer left.
            self.observer.progress(Stage::CopyPages, done, self.total);
            ring = self.lock();
        }
        if ring.copied.failed.is_some() {
            self.changed.notify_all();
        }
        ring.writer = Some(writer);
    }
}

impl Ring {
    fn account(&mut self, batch: &Batch, result: Result<(), WriteFailed>) {
        let lost = batch.lost.len() as u64;
        let all = batch.pages.len() as u64;
        let copied = &mut self.copied;
        copied.bytes_in += batch.bytes_in;
        copied.lost_count += lost;
        copied.lost.extend(batch.lost.iter().take(MAX_LOST - copied.lost.len().min(MAX_LOST)).cloned());
        match result {
            Ok(()) => {
                copied.pages += all - lost;
                copied.zero += batch.pages.iter().filter(|p| **p == Stored::Zero).count() as u64;
            }
            Err(failed) => {
                // Descriptors were written for the pages whose data fit.
                let mut room = failed.done as u64;
                for page in &batch.pages {
                    match page {
                        Stored::Lost => {}
                        Stored::Zero => {
                            copied.pages += 1;
                            copied.zero += 1;
                        }
                        Stored::Data { size, .. } => match room.checked_sub(u64::from(*size)) {
                            Some(rest) => {
                                room = rest;
                                copied.pages += 1;
                            }
                            None => room = 0,
                        },
                    }
                }
                copied.failed = Some(failed);
            }
        }
    }
}

/// One thread's reader and compressor.
struct Worker<'a> {
    view: Box<dyn MemoryView + 'a>,
    compressor: Compressor,
    flags: u32,
    page: PageSize,
    input: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(memory: &'a dyn PhysicalMemory, compression: Compression, page: PageSize) -> Result<Self, CodecError> {
        let compressor = Compressor::new(compression, page)?;
        Ok(Self { view: memory.view(), compressor, flags: compression.codec.flag(), page, input: Vec::new() })
    }

    /// Reads the pages of the batch's runs and stores them in its data.
    fn fill(&mut self, batch: &mut Batch) {
        batch.pages.clear();
        batch.used = 0;
        batch.lost.clear();
        batch.bytes_in = 0;
        let size = self.page.bytes();
        let pages: usize = batch.runs.iter().map(|run| run.pages as usize).sum();
        let room = pages * size + self.compressor.max_output();
        if batch.data.len() < room {
            batch.data.resize(room, 0);
        }
        for index in 0..batch.runs.len() {
            let Some(run) = batch.runs.get(index).copied() else { break };
            batch.bytes_in += u64::from(run.pages) * size as u64;
            if self.flags == 0 {
                self.fill_raw(batch, run);
            } else {
                self.fill_compressed(batch, run);
            }
        }
    }

    fn fill_compressed(&mut self, batch: &mut Batch, run: Run) {
        let len = run.pages as usize * self.page.bytes();
        if self.input.len() < len {
            self.input.resize(len, 0);
        }
        let input = self.input.get_mut(..len).unwrap_or_default();
        let whole = self.view.read(run.start.addr(self.page), input).is_ok();
        for (pfn, bytes) in (run.start.0..).map(Pfn).zip(input.chunks_exact_mut(self.page.bytes())) {
            let stored =
                if let Some(without) = without_data(&mut *self.view, pfn, self.page, bytes, whole, &mut batch.lost) {
                    without
                } else {
                    store(bytes, &mut self.compressor, self.flags, batch.data.get_mut(batch.used..).unwrap_or_default())
                };
            if let Stored::Data { size, .. } = stored {
                batch.used += size as usize;
            }
            batch.pages.push(stored);
        }
    }

    /// Without a codec the pages are read to where they are written from, and moved only where one before them is left out.
    fn fill_raw(&mut self, batch: &mut Batch, run: Run) {
        let size = self.page.bytes();
        let start = batch.used;
        let whole = match batch.data.get_mut(start..start + run.pages as usize * size) {
            Some(room) => self.view.read(run.start.addr(self.page), room).is_ok(),
            None => false,
        };
        for (pfn, at) in (run.start.0..run.start.0 + u64::from(run.pages)).map(Pfn).zip((start..).step_by(size)) {
            let Some(bytes) = batch.data.get_mut(at..at + size) else { break };
            let stored =
                if let Some(without) = without_data(&mut *self.view, pfn, self.page, bytes, whole, &mut batch.lost) {
                    without
                } else {
                    if at != batch.used {
                        batch.data.copy_within(at..at + size, batch.used);
                    }
                    batch.used += size;
                    Stored::Data { size: size as u32, flags: 0 }
                };
            batch.pages.push(stored);
        }
    }
}

/// How the page `pfn`, whose `bytes` are read unless its run was not `whole`, is stored if it needs no data: as zeros, or not at
/// all, for it cannot be read.
fn without_data(
    view: &mut dyn MemoryView,
    pfn: Pfn,
    page: PageSize,
    bytes: &mut [u8],
    whole: bool,
    lost: &mut Vec<(Pfn, String)>,
) -> Option<Stored> {
    if !whole && let Err(e) = view.read(pfn.addr(page), bytes) {
        lost.push((pfn, e.to_string()));
        return Some(Stored::Lost);
    }
    is_zero(bytes).then_some(Stored::Zero)
}

/// Puts the page `bytes`, which is not zero, to the front of `room` in its shortest form. There is room for it as it is, and for
/// what the codec needs.
fn store(bytes: &[u8], compressor: &mut Compressor, flags: u32, room: &mut [u8]) -> Stored {
    if let Some(n) = compressor.compress(bytes, room) {
        return Stored::Data { size: n as u32, flags };
    }
    if let Some(raw) = room.get_mut(..bytes.len()) {
        raw.copy_from_slice(bytes);
    }
    Stored::Data { size: bytes.len() as u32, flags: 0 }
}

/// Whether all bytes are zero. Nine of ten pages that are not show it in their first word; the rest is tested in blocks that
/// become vector instructions.
fn is_zero(page: &[u8]) -> bool {
    if page.first_chunk::<8>().is_some_and(|w| *w != [0; 8]) {
        return false;
    }
    let (blocks, rest) = page.as_chunks::<256>();
    blocks.iter().all(|block| block.as_chunks::<8>().0.iter().fold(0, |or, w| or | u64::from_ne_bytes(*w)) == 0)
        && rest.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_anywhere_makes_a_page_not_zero() {
        let mut page = vec![0u8; 4096];
        assert!(is_zero(&page));
        for i in 0..4096 {
            page[i] = 1;
            assert!(!is_zero(&page), "byte {i}");
            page[i] = 0;
        }
        assert!(is_zero(&[]) && !is_zero(&[0, 0, 1]));
    }
}
