//! The table of page descriptors, written behind the data it points at.
//!
//! A capture kernel that runs out of memory or is reset loses what is not on the medium yet, in any order. So descriptors wait
//! until their data are there: a thread of its own syncs the target, writes the descriptors whose data that covered, and
//! begins again. The copy goes on meanwhile; on a target without a medium (tmpfs, /dev/null) a sync costs nothing.
//!
//! A descriptor may lie over the border of two pages, where SIGKILL ends a write, or of two sectors, which reach the medium in any order.
//! Where the border is between its offset and its size, half of it would be a wrong page: crash takes an offset without size for a page,
//! libkdumpfile a size without offset. Of such descriptors, one in 64, size, offset and size are written one after the other
//! and each when the one before is on the medium: the first size is [`PageDesc::PENDING`], which no reader takes for a page's.

use crate::budget::WORKER_STACK;
use crate::lock::{Held, Lock};
use crate::target::{Output, WriteFailed};
use coresift_format::kdump::PageDesc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of waiting descriptors that are worth a sync: those of 2730 pages.
const WORTH_A_SYNC: usize = 64 << 10;
/// Fewer wait no longer than this.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Bytes of waiting descriptors above which the copy waits for the medium: those of 43,690 pages.
const MAX_WAITING: usize = 1 << 20;
/// Runs further apart than this are written by themselves rather than read back and rewritten together.
const MAX_GAP: u64 = 4 << 10;
/// Bytes that reach a medium as one. A page is a multiple of it.
const SECTOR: u64 = 512;
/// Bytes of a descriptor's offset; behind it come size and flags, as many.
const OFFSET: usize = 8;
/// Bytes that are rewritten together at the most, gaps included.
const MAX_JOINED: usize = 256 << 10;

/// The descriptors of one file.
pub struct Descriptors {
    shared: Arc<Shared>,
    /// `None` for a stream, and where no thread could be had: then the copy waits for each sync.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    output: Arc<Output>,
    state: Lock<State>,
    changed: Condvar,
    /// A sync failed: which data are on the medium is not known any more.
    unsynced: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Descriptors whose data are written.
    waiting: Encoded,
    /// Empty, with the room of those written last.
    spare: Encoded,
    /// Bytes of descriptors that are not in the file: those that wait, and those being written.
    bytes: usize,
    closing: bool,
    failed: Option<WriteFailed>,
}

/// Encoded descriptors, one run behind the other.
#[derive(Debug, Default)]
pub struct Encoded {
    runs: Vec<EncodedRun>,
    raw: Vec<u8>,
}

/// Descriptors of neighbouring pages.
#[derive(Clone, Copy, Debug)]
struct EncodedRun {
    /// File offset.
    at: u64,
    /// Where they are in [`Encoded::raw`].
    start: usize,
    end: usize,
}

impl Encoded {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.raw.clear();
    }

    /// Adds the descriptor `raw`, which belongs at file offset `at`.
    pub fn push(&mut self, at: u64, raw: &[u8]) {
        let start = self.raw.len();
        self.raw.extend_from_slice(raw);
        let end = self.raw.len();
        match self.runs.last_mut() {
            Some(run) if run.at + (run.end - run.start) as u64 == at => run.end = end,
            _ => self.runs.push(EncodedRun { at, start, end }),
        }
    }

    /// The descriptors that have a border between offset and size, and where each belongs. One of a lost page is all zeros and stays so.
    fn over_borders(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let runs = self.runs.iter().map(|run| (run.at, self.bytes(*run)));
        let all = runs.flat_map(|(at, raw)| (at..).step_by(PageDesc::SIZE).zip(raw.chunks_exact(PageDesc::SIZE)));
        all.filter(|(at, raw)| (at + OFFSET as u64).is_multiple_of(SECTOR) && raw.iter().any(|byte| *byte != 0))
    }

    fn bytes(&self, run: EncodedRun) -> &[u8] {
        self.raw.get(run.start..run.end).unwrap_or_default()
    }
}

/// Size and flags of a descriptor at `at` that is being written, and where they belong.
const fn half_pending(at: u64, _: &[u8]) -> (u64, &[u8]) {
    (at + OFFSET as u64, &PageDesc::PENDING)
}

/// The offset of the descriptor `raw` at `at`, and where it belongs.
fn half_offset(at: u64, raw: &[u8]) -> (u64, &[u8]) {
    (at, raw.get(..OFFSET).unwrap_or_default())
}

impl Descriptors {
    /// An empty table for the file `output`.
    #[must_use]
    pub fn new(output: Arc<Output>) -> Self {
        let shared = Arc::new(Shared {
            output,
            state: Lock::new("descriptors", State::default()),
            changed: Condvar::new(),
            unsynced: AtomicBool::new(false),
        });
        let worker = Arc::clone(&shared);
        // A stream has no medium to wait for, and its blocks would stand in another order each time.
        let thread = (!shared.output.is_stream())
            .then(|| std::thread::Builder::new().name("descriptors".to_owned()).stack_size(WORKER_STACK));
        Self { thread: thread.and_then(|thread| thread.spawn(move || worker.work()).ok()), shared }
    }

    /// Takes descriptors whose data are written.
    pub fn queue(&self, descriptors: &Encoded) {
        let mut state = self.shared.state.hold();
        let (idle, worth_it) = (state.waiting.runs.is_empty(), state.bytes >= WORTH_A_SYNC);
        state.bytes += descriptors.raw.len();
        for run in &descriptors.runs {
            state.waiting.push(run.at, descriptors.bytes(*run));
        }
        if state.bytes >= WORTH_A_SYNC {
            if self.thread.is_none() {
                self.shared.settle(state);
                return;
            }
            if !worth_it {
                self.shared.changed.notify_all();
            }
        } else if idle {
            // From here on the first of them wait for no more than their time.
            self.shared.changed.notify_all();
        }
        while state.bytes >= MAX_WAITING && state.failed.is_none() {
            state = self.shared.state.wait(&self.shared.changed, state);
        }
    }

    /// What went wrong since the last question.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn check(&self) -> Result<(), WriteFailed> {
        self.shared.state.hold().failed.take().map_or(Ok(()), Err)
    }

    /// Writes all that wait.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn finish(&mut self) -> Result<(), WriteFailed> {
        self.close();
        self.check()
    }

    fn close(&mut self) {
        self.shared.state.hold().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so; what it left is settled here.
            drop(thread.join());
        }
        self.shared.settle(self.shared.state.hold());
    }
}

impl Drop for Descriptors {
    /// A copy that failed leaves through here: the pages that were written keep their descriptors.
    fn drop(&mut self) {
        let closed = self.shared.state.hold().closing;
        if !closed {
            self.close();
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut state = self.state.hold();
            while state.waiting.runs.is_empty() && !state.closing {
                state = self.state.wait(&self.changed, state);
            }
            if state.bytes < WORTH_A_SYNC && !state.closing {
                state = self.state.wait_for(&self.changed, state, MAX_WAIT);
            }
            let last = state.closing;
            self.settle(state);
            if last {
                return;
            }
        }
    }

    /// Syncs the target, then writes the descriptors that waited when this began.
    fn settle(&self, mut state: Held<'_, State>) {
        let next = std::mem::take(&mut state.spare);
        let mut now = std::mem::replace(&mut state.waiting, next);
        drop(state);
        // A system tells of a failed sync once: the next one succeeds, and proves nothing about what was lost.
        let unsafe_now = self.unsynced.load(Ordering::Relaxed);
        let result = if now.runs.is_empty() || unsafe_now { Ok(()) } else { self.publish(&mut now) };
        now.clear();
        let mut state = self.state.hold();
        state.bytes = state.waiting.raw.len();
        state.spare = now;
        if let Err(failed) = result {
            state.failed.get_or_insert(failed);
        }
        self.changed.notify_all();
    }

    /// Writes descriptors whose data are written, when those are on the medium.
    fn publish(&self, all: &mut Encoded) -> Result<(), WriteFailed> {
        self.sync()?;
        // A stream is read from its beginning, and its bytes are written once.
        if !self.output.is_stream() {
            for first in [half_pending, half_offset] {
                let mut none = true;
                for (at, descriptor) in all.over_borders() {
                    let (at, half) = first(at, descriptor);
                    self.output.write_at(half, at)?;
                    self.output.discount(half.len() as u64);
                    none = false;
                }
                if none {
                    break;
                }
                self.sync()?;
            }
        }
        // In the order of need, for the copy may be killed in the middle of it; in the order of the table only what is one write's worth.
        let mut runs = std::mem::take(&mut all.runs);
        let mut bytes = 0;
        let result = runs
            .chunk_by_mut(|run, _| {
                bytes += run.end - run.start;
                let more = bytes < WORTH_A_SYNC;
                bytes *= usize::from(more);
                more
            })
            .try_for_each(|group| {
                group.sort_unstable_by_key(|run| run.at);
                self.write(group, all)
            });
        all.runs = runs;
        result
    }

    fn sync(&self) -> Result<(), WriteFailed> {
        self.output.sync().inspect_err(|_| self.unsynced.store(true, Ordering::Relaxed))
    }

    /// Writes the `runs` of `all`, which are in the order of the table. Those a short gap apart are joined by reading the gap back: a pass
    /// that skips the pages written earlier leaves many.
    fn write(&self, runs: &[EncodedRun], all: &Encoded) -> Result<(), WriteFailed> {
        let mut joined: Vec<u8> = Vec::new();
        let mut start = 0;
        for run in runs {
            let end = start + joined.len() as u64;
            let gap = run.at.saturating_sub(end);
            if joined.is_empty() || gap > MAX_GAP || joined.len() >= MAX_JOINED || !self.read_gap(&mut joined, end, gap)
            {
                self.output.write_at(&joined, start)?;
                joined.clear();
                start = run.at;
            }
            joined.extend_from_slice(all.bytes(*run));
        }
        self.output.write_at(&joined, start)
    }

    /// Appends the `gap` bytes of the file at `end`, if they can be read.
    fn read_gap(&self, joined: &mut Vec<u8>, end: u64, gap: u64) -> bool {
        let old = joined.len();
        joined.resize(old + gap as usize, 0);
        let read = joined.get_mut(old..).is_some_and(|gap| matches!(self.output.read_back(gap, end), Ok(true)));
        if read {
            self.output.discount(gap);
        } else {
            joined.truncate(old);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_format::Endian;
    use proptest::prelude::*;

    /// Whether crash (diskdump.c) takes the descriptor for one of a page in the file, and whether libkdumpfile (diskdump.c) does.
    fn taken(raw: &[u8]) -> [bool; 2] {
        let PageDesc { offset, size, flags } = PageDesc::decode(raw, Endian::Little).unwrap();
        [offset != 0 && size <= 4096, flags != 0 || size == 4096]
    }

    proptest! {
        #[test]
        fn no_half_of_a_descriptor_over_a_border_is_taken_for_a_page(
            offset in 4096u64.., size in 1u32..=4096, flags in 0u32..64,
        ) {
            let whole = PageDesc { offset, size: if flags == 0 { 4096 } else { size }, flags }.encode(Endian::Little);
            let mut all = Encoded::default();
            let first = (0..200u64).map(|i| 4096 + i * 24);
            first.for_each(|at| all.push(at, &whole));
            prop_assert_eq!(all.over_borders().map(|d| d.0).collect::<Vec<_>>(), [4600, 6136, 7672]);
            let mut now = [0; PageDesc::SIZE];
            for half in [half_pending, half_offset] {
                prop_assert_eq!(taken(&now), [false; 2]);
                let (at, bytes) = half(0, &whole);
                now[at as usize..][..bytes.len()].copy_from_slice(bytes);
                prop_assert_eq!(taken(&now), [false; 2]);
            }
            // The last write changes one half.
            prop_assert_eq!(&now[..OFFSET], &whole[..OFFSET]);
            prop_assert_eq!(taken(&whole), [true; 2]);
        }
    }
}
