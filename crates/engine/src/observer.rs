//! How a run tells what is happening, without printing anything itself.

use crate::Full;
use coresift_kernel::DumpLevel;

/// What a run is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading the memory map: one pass over all `struct page`.
    FindPages,
    /// Reading, compressing and writing the kept pages.
    CopyPages,
    /// Reading and decompressing the pages of a dump, to see whether they are sound.
    CheckPages,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The dump at one level did not fit; the next level is tried.
    Retry {
        /// The level of the next attempt.
        level: DumpLevel,
        /// What was reached.
        full: Full,
    },
    /// The input was filtered before, so that the level recorded is higher than the one asked for.
    LevelRaised {
        /// The level asked for.
        asked: DumpLevel,
        /// The level of the input.
        input: DumpLevel,
        /// The level recorded.
        recorded: DumpLevel,
    },
    /// Something a user should know; also in the report's notes.
    Note(String),
}

/// Receives progress and events. Called from any thread.
pub trait Observer: Sync {
    /// `done` of `total` pages of a stage; called often (each batch), so a receiver limits its own rate.
    fn progress(&self, stage: Stage, done: u64, total: u64);
    /// Something happened.
    fn event(&self, event: Event);
}

/// Receives nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Observer for Silent {
    fn progress(&self, _: Stage, _: u64, _: u64) {}
    fn event(&self, _: Event) {}
}
