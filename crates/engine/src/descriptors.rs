//! The table of page descriptors, written behind the data it points at.
//!
//! A capture kernel that runs out of memory or is reset loses what is not on the medium yet, in any order. So descriptors wait
//! until their data are there: a thread of its own syncs the target, writes the descriptors whose data that covered, and
//! begins again. The copy goes on meanwhile; on a target without a medium (tmpfs, /dev/null) a sync costs nothing.
//!
//! Nothing writes 24 bytes at once: a descriptor may lie over a page boundary, where SIGKILL ends a write, or over the border of two
//! sectors, which reach the medium in any order. So size and flags are written first, and the offset when they are on the medium:
//! a descriptor without offset is a page that was not written, to every reader.

use crate::budget::WORKER_STACK;
use crate::lock::{Held, Lock};
use crate::target::{Output, WriteFailed};
use coresift_format::kdump::PageDesc;
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
/// Bytes of a descriptor that hold its offset, without which the others say nothing.
const OFFSET: std::ops::Range<usize> = 0..8;
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

/// What of descriptors is written.
#[derive(Clone, Copy)]
enum Part {
    AllButOffset,
    Whole,
}

impl Part {
    /// Takes away what is not of this part from the descriptors `raw`.
    fn of(self, raw: &mut [u8]) {
        if let Self::AllButOffset = self {
            for descriptor in raw.chunks_exact_mut(PageDesc::SIZE) {
                descriptor.get_mut(OFFSET).unwrap_or_default().fill(0);
            }
        }
    }
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

    fn bytes(&self, run: EncodedRun) -> &[u8] {
        self.raw.get(run.start..run.end).unwrap_or_default()
    }
}

impl Descriptors {
    /// An empty table for the file `output`.
    #[must_use]
    pub fn new(output: Arc<Output>) -> Self {
        let shared =
            Arc::new(Shared { output, state: Lock::new("descriptors", State::default()), changed: Condvar::new() });
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
        let result = if now.runs.is_empty() { Ok(()) } else { self.publish(&mut now) };
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
        all.runs.sort_unstable_by_key(|run| run.at);
        self.output.sync()?;
        // A stream is read from its beginning, and its bytes are written once.
        if !self.output.is_stream() {
            self.output.discount(all.raw.len() as u64);
            self.write(all, Part::AllButOffset)?;
            self.output.sync()?;
        }
        self.write(all, Part::Whole)
    }

    /// Writes runs of descriptors, which are in order. Those a short gap apart are joined by reading the gap back: a pass that skips the pages written
    /// earlier leaves many.
    fn write(&self, all: &Encoded, part: Part) -> Result<(), WriteFailed> {
        let mut joined: Vec<u8> = Vec::new();
        let mut start = 0;
        for run in &all.runs {
            let end = start + joined.len() as u64;
            let gap = run.at.saturating_sub(end);
            if joined.is_empty() || gap > MAX_GAP || joined.len() >= MAX_JOINED || !self.read_gap(&mut joined, end, gap)
            {
                self.output.write_at(&joined, start)?;
                joined.clear();
                start = run.at;
            }
            let before = joined.len();
            joined.extend_from_slice(all.bytes(*run));
            part.of(joined.get_mut(before..).unwrap_or_default());
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

    proptest! {
        /// Each write goes on to some byte, and of each some parts reach the medium: words of 8 bytes are the smallest.
        #[test]
        fn a_descriptor_torn_anywhere_is_whole_or_has_no_offset(
            offset in 4096u64.., size in 1u32..=4096, flags in 0u32..64, words in proptest::array::uniform3(0usize..2), synced: bool,
        ) {
            let whole = PageDesc { offset, size, flags }.encode(Endian::Little);
            let mut first = whole;
            Part::AllButOffset.of(&mut first);
            // The second write begins when the first is there.
            let states = [[[0; PageDesc::SIZE], first], [first, whole]][usize::from(synced)];
            let mut torn = [0; PageDesc::SIZE];
            for (i, word) in torn.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&states[words[i]][i * 8..][..8]);
            }
            let read = PageDesc::decode(&torn, Endian::Little).unwrap();
            prop_assert!(read.offset == 0 || torn == whole, "{read:?}");
        }
    }
}
