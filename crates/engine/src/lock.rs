//! The locks of the copy. Nothing panics while it holds one; if it did, what it guards would still be true, so poison is ignored.
//!
//! With the feature `measure` each counts how often and how long it is held, for `examples/scaling.rs`.

#[cfg(feature = "measure")]
mod measured;
#[cfg(feature = "measure")]
pub use measured::{Held, Lock, LockTimes, lock_times};

#[cfg(not(feature = "measure"))]
pub use plain::{Held, Lock};

#[cfg(not(feature = "measure"))]
mod plain {
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    /// What a lock guards, while it is held.
    pub type Held<'a, T> = MutexGuard<'a, T>;

    /// A mutex.
    pub struct Lock<T>(Mutex<T>);

    impl<T> Lock<T> {
        /// Guards `value`; the name is for measurements.
        pub const fn new(_name: &'static str, value: T) -> Self {
            Self(Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn hold(&self) -> Held<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Gives the lock up until `changed` is told, and takes it again.
        pub fn wait<'a>(&'a self, changed: &Condvar, held: Held<'a, T>) -> Held<'a, T> {
            changed.wait(held).unwrap_or_else(PoisonError::into_inner)
        }

        /// As [`Self::wait`], no longer than `time`.
        pub fn wait_for<'a>(&'a self, changed: &Condvar, held: Held<'a, T>, time: Duration) -> Held<'a, T> {
            changed.wait_timeout(held, time).unwrap_or_else(PoisonError::into_inner).0
        }

        /// What it guarded.
        pub fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
