//! The table of page descriptors, written behind the data it points at.
//!
//! A capture kernel that runs out of memory or is reset loses what is not on the medium yet, in any order. So descriptors wait
//! until their data are there: a thread of its own syncs the target, writes the descriptors whose data that covered, and
//! begins again. The copy goes on meanwhile; on a target without a medium (tmpfs, /dev/null) a sync costs nothing.

use crate::budget::WORKER_STACK;
use crate::target::{Output, WriteFailed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
/// Bytes that are rewritten together at the most, gaps included.
const MAX_JOINED: usize = 256 << 10;

/// The descriptors of one file.
pub struct Descriptors {
    shared: Arc<Shared>,
    /// `None` where no thread could be had: then the copy waits for each sync.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    output: Arc<Output>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Runs of encoded descriptors whose data are written, by file offset.
    waiting: Vec<(u64, Vec<u8>)>,
    bytes: usize,
    closing: bool,
    failed: Option<WriteFailed>,
}

impl Descriptors {
    /// An empty table for the file `output`.
    #[must_use]
    pub fn new(output: Arc<Output>) -> Self {
        let shared = Arc::new(Shared { output, state: Mutex::default(), changed: Condvar::new() });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("descriptors".to_owned()).stack_size(WORKER_STACK);
        Self { shared, thread: thread.spawn(move || worker.work()).ok() }
    }

    /// Takes the descriptors `raw`, which belong at file offset `at` and whose data are written.
    pub fn queue(&self, at: u64, raw: Vec<u8>) {
        let mut state = self.shared.lock();
        state.bytes += raw.len();
        match state.waiting.last_mut() {
            Some((start, bytes)) if *start + bytes.len() as u64 == at => bytes.extend_from_slice(&raw),
            _ => state.waiting.push((at, raw)),
        }
        if state.bytes >= WORTH_A_SYNC {
            if self.thread.is_none() {
                self.shared.settle(state);
                return;
            }
            self.shared.changed.notify_all();
        }
        while state.bytes >= MAX_WAITING && state.failed.is_none() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What went wrong since the last question.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn check(&self) -> Result<(), WriteFailed> {
        self.shared.lock().failed.take().map_or(Ok(()), Err)
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
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so; what it left is settled here.
            drop(thread.join());
        }
        self.shared.settle(self.shared.lock());
    }
}

impl Drop for Descriptors {
    /// A copy that failed leaves through here: the pages that were written keep their descriptors.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.close();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() && !state.closing {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.bytes < WORTH_A_SYNC && !state.closing {
                state = self.changed.wait_timeout(state, MAX_WAIT).unwrap_or_else(PoisonError::into_inner).0;
            }
            let last = state.closing;
            self.settle(state);
            if last {
                return;
            }
        }
    }

    /// Syncs the target, then writes the descriptors that waited when this began.
    fn settle(&self, mut state: MutexGuard<'_, State>) {
        let mut runs = std::mem::take(&mut state.waiting);
        drop(state);
        let result = if runs.is_empty() { Ok(()) } else { self.output.sync().and_then(|()| self.write(&mut runs)) };
        let mut state = self.lock();
        state.bytes = state.waiting.iter().map(|run| run.1.len()).sum();
        if let Err(failed) = result {
            state.failed.get_or_insert(failed);
        }
        self.changed.notify_all();
    }

    /// Writes runs of descriptors. Those a short gap apart are joined by reading the gap back: a pass that skips the pages written
    /// earlier leaves many.
    fn write(&self, runs: &mut Vec<(u64, Vec<u8>)>) -> Result<(), WriteFailed> {
        runs.sort_unstable_by_key(|run| run.0);
        let mut joined: Option<(u64, Vec<u8>)> = None;
        for (at, raw) in runs.drain(..) {
            if let Some((start, bytes)) = &mut joined {
                let end = *start + bytes.len() as u64;
                let gap = at.saturating_sub(end);
                if gap <= MAX_GAP && bytes.len() < MAX_JOINED {
                    let old = bytes.len();
                    bytes.resize(old + gap as usize, 0);
                    let read = bytes.get_mut(old..).map_or(Ok(true), |buf| self.output.read_back(buf, end));
                    if read.is_ok() {
                        bytes.extend_from_slice(&raw);
                        self.output.discount(gap);
                        continue;
                    }
                    bytes.truncate(old);
                }
            }
            if let Some((start, bytes)) = joined.replace((at, raw)) {
                self.output.write_at(&bytes, start)?;
            }
        }
        joined.map_or(Ok(()), |(start, bytes)| self.output.write_at(&bytes, start))
    }
}
