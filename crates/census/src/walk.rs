//! All frames of a source, window by window, on several threads; what each window gives is taken in order.

use crate::error::{CensusError, Result};
use crate::frames::Frames;
use crate::source::{FrameReader, Missing, Source};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Windows that may be under way or wait for one before them, for each thread.
const AHEAD: usize = 2;

/// Page frames of a window: ranges, each from one to before another.
type Runs = Vec<(u64, u64)>;

/// Reads all frames of `source` with `threads` threads, `window` rows at a time. `shape` makes of a window what is wanted of it, on the
/// thread that read it, and may change the order of its rows; `take` is given the results in the order of the windows.
///
/// # Errors
/// As those of the source, `shape` and `take`; the first in the order of the windows. The rest is not read.
pub fn walk<P: Send>(
    source: &dyn Source,
    threads: usize,
    window: u64,
    shape: impl Fn(&mut Frames) -> Result<P> + Sync,
    mut take: impl FnMut(P) -> Result<()>,
) -> Result<Missing> {
    let windows = windows(source, window.max(1));
    let threads = threads.clamp(1, windows.len().max(1));
    let queue = Queue::new(threads * AHEAD);
    let mut missing = Missing::default();
    std::thread::scope(|scope| {
        // Whatever ends this, the threads must not wait for it.
        let _over = Over { queue: &queue, on_panic: false };
        for _ in 0..threads {
            scope.spawn(|| {
                let _alarm = Over { queue: &queue, on_panic: true };
                let mut frames = Frames::default();
                frames.come_from(source);
                let mut reader: Option<Box<dyn FrameReader + '_>> = None;
                while let Some(number) = queue.claim(windows.len()) {
                    let runs = windows.get(number).map_or(&[][..], Vec::as_slice);
                    queue.put(number, window_of(source, &mut reader, runs, &mut frames, &shape));
                }
            });
        }
        for number in 0..windows.len() {
            let (part, lost) = queue.wait_for(number)?;
            missing.add(lost);
            take(part)?;
        }
        Ok(missing)
    })
}

fn window_of<'s, P>(
    source: &'s dyn Source,
    reader: &mut Option<Box<dyn FrameReader + 's>>,
    runs: &[(u64, u64)],
    frames: &mut Frames,
    shape: &impl Fn(&mut Frames) -> Result<P>,
) -> Result<(P, Missing)> {
    let reader = match reader {
        Some(reader) => reader,
        None => reader.insert(source.reader()?),
    };
    frames.start(runs);
    let missing = reader.read(runs, frames)?;
    Ok((shape(frames)?, missing))
}

/// The source's ranges in windows. They end at multiples of `window` page frames, so that a window is the same whatever lies before.
fn windows(source: &dyn Source, window: u64) -> Vec<Runs> {
    let mut all: Vec<Runs> = Vec::new();
    let mut number = None;
    for &(start, end) in source.ranges() {
        let mut at = start.0;
        while at < end.0 {
            let to = ((at / window + 1).saturating_mul(window)).min(end.0);
            if number != Some(at / window) {
                number = Some(at / window);
                all.push(Runs::new());
            }
            if let Some(runs) = all.last_mut() {
                runs.push((at, to));
            }
            at = to;
        }
    }
    all
}

/// Results that wait for those before them.
struct Queue<P> {
    state: Mutex<State<P>>,
    changed: Condvar,
    ahead: usize,
}

struct State<P> {
    /// The next window that nobody has claimed.
    unclaimed: usize,
    /// The next window to be taken.
    wanted: usize,
    waiting: BTreeMap<usize, Result<(P, Missing)>>,
    over: bool,
}

impl<P> Queue<P> {
    const fn new(ahead: usize) -> Self {
        let state = State { unclaimed: 0, wanted: 0, waiting: BTreeMap::new(), over: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), ahead }
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<P>>) -> MutexGuard<'a, State<P>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the next window, once those before it leave room.
    fn claim(&self, windows: usize) -> Option<usize> {
        let mut state = self.lock();
        while !state.over && state.unclaimed >= state.wanted + self.ahead && state.unclaimed < windows {
            state = self.wait(state);
        }
        if state.over || state.unclaimed >= windows {
            return None;
        }
        state.unclaimed += 1;
        Some(state.unclaimed - 1)
    }

    fn put(&self, number: usize, part: Result<(P, Missing)>) {
        self.lock().waiting.insert(number, part);
        self.changed.notify_all();
    }

    fn wait_for(&self, number: usize) -> Result<(P, Missing)> {
        let mut state = self.lock();
        state.wanted = number;
        self.changed.notify_all();
        loop {
            if let Some(part) = state.waiting.remove(&number) {
                return part;
            }
            if state.over {
                return Err(CensusError::Stopped);
            }
            state = self.wait(state);
        }
    }
}

/// Ends the walk when it goes.
struct Over<'q, P> {
    queue: &'q Queue<P>,
    /// Only when its thread panicked: a thread that has nothing left to claim is no reason for others to stop.
    on_panic: bool,
}

impl<P> Drop for Over<'_, P> {
    fn drop(&mut self) {
        if !self.on_panic || std::thread::panicking() {
            self.queue.lock().over = true;
            self.queue.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
