//! What page frames are read from.

use crate::error::Result;
use crate::frames::Frames;
use crate::names::Names;
use coresift_format::Pfn;
use serde::Serialize;

/// A machine or a dump whose page frames can be read.
pub trait Source: Sync {
    /// System RAM: ascending ranges of page frames, each from one to before another.
    fn ranges(&self) -> &[(Pfn, Pfn)];

    /// Bytes of a page.
    fn page_size(&self) -> u64;

    /// The names that its rows speak of.
    fn names(&self) -> &Names;

    /// Where the rows come from, and what they cannot tell.
    fn provenance(&self) -> &Provenance;

    /// A reader for one thread.
    ///
    /// # Errors
    /// The source cannot be opened once more.
    fn reader(&self) -> Result<Box<dyn FrameReader + '_>>;
}

/// One thread's reader.
pub trait FrameReader {
    /// Fills `frames`, which [`Frames::start`] made the rows of `runs`, with what the source says of them. Returns what went missing on
    /// the way: frames that vanished, short reads.
    ///
    /// # Errors
    /// Nothing more can be read.
    fn read(&mut self, runs: &[(u64, u64)], frames: &mut Frames) -> Result<Missing>;
}

/// Frames that could not be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Frames that have no `struct page` (hotplug in progress, holes in a section).
    pub no_page: u64,
    /// Frames that the source stopped short of.
    pub short: u64,
    /// Frames that could not be read.
    pub failed: u64,
    /// Frames whose file, slab cache or cgroup is null because what the page points at cannot be read, or cannot be that.
    pub lost: u64,
}

impl Missing {
    /// Adds another window's.
    pub const fn add(&mut self, other: Self) {
        self.no_page += other.no_page;
        self.short += other.short;
        self.failed += other.failed;
        self.lost += other.lost;
    }
}

/// Where rows come from.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Provenance {
    /// `live`, or the name of the dump.
    pub source: String,
    /// The host's name.
    pub host: String,
    /// The kernel's release.
    pub kernel: String,
    /// Microseconds since 1970.
    pub time: i64,
    /// What it cannot tell and why, a sentence each.
    pub unknown: Vec<String>,
}
