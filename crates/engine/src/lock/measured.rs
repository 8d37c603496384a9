//! As the plain lock, with a clock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often and how long a lock was held, in all.
#[derive(Clone, Debug)]
pub struct LockTimes {
    /// The lock's name.
    pub name: &'static str,
    /// Times it was taken.
    pub taken: u64,
    /// Nanoseconds it was waited for; those of condition variables do not count.
    pub waited: u64,
    /// Nanoseconds it was held.
    pub held: u64,
    /// The longest time it was held, in nanoseconds.
    pub longest: u64,
}

static DONE: Mutex<Vec<LockTimes>> = Mutex::new(Vec::new());

/// The times of the locks that were given up since the last question.
#[must_use]
pub fn lock_times() -> Vec<LockTimes> {
    std::mem::take(&mut *DONE.lock().unwrap_or_else(PoisonError::into_inner))
}

#[derive(Default)]
struct Times {
    name: &'static str,
    taken: AtomicU64,
    waited: AtomicU64,
    held: AtomicU64,
    longest: AtomicU64,
}

impl Drop for Times {
    fn drop(&mut self) {
        let get = |n: &AtomicU64| n.load(Relaxed);
        let (taken, waited, held) = (get(&self.taken), get(&self.waited), get(&self.held));
        let times = LockTimes { name: self.name, taken, waited, held, longest: get(&self.longest) };
        DONE.lock().unwrap_or_else(PoisonError::into_inner).push(times);
    }
}

/// Runs while a lock is held.
struct Clock<'a> {
    times: &'a Times,
    since: Instant,
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        let held = self.since.elapsed().as_nanos() as u64;
        self.times.held.fetch_add(held, Relaxed);
        self.times.longest.fetch_max(held, Relaxed);
    }
}

/// What a lock guards, while it is held.
pub struct Held<'a, T> {
    /// Stopped before the lock is given up.
    clock: Clock<'a>,
    guard: MutexGuard<'a, T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A mutex.
pub struct Lock<T> {
    mutex: Mutex<T>,
    times: Times,
}

impl<T> Lock<T> {
    pub fn new(name: &'static str, value: T) -> Self {
        let mut times = Times::default();
        times.name = name;
        Self { mutex: Mutex::new(value), times }
    }

    pub fn hold(&self) -> Held<'_, T> {
        let since = Instant::now();
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.times.waited.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        self.held(guard)
    }

    fn held<'a>(&'a self, guard: MutexGuard<'a, T>) -> Held<'a, T> {
        self.times.taken.fetch_add(1, Relaxed);
        Held { clock: Clock { times: &self.times, since: Instant::now() }, guard }
    }

    pub fn wait<'a>(&'a self, changed: &Condvar, held: Held<'a, T>) -> Held<'a, T> {
        drop(held.clock);
        self.held(changed.wait(held.guard).unwrap_or_else(PoisonError::into_inner))
    }

    pub fn wait_for<'a>(&'a self, changed: &Condvar, held: Held<'a, T>, time: Duration) -> Held<'a, T> {
        drop(held.clock);
        self.held(changed.wait_timeout(held.guard, time).unwrap_or_else(PoisonError::into_inner).0)
    }

    pub fn into_inner(self) -> T {
        self.mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
