//! What a user asks for.

use coresift_format::codec::Compression;
use coresift_kernel::{ClassSet, DumpLevel};
use std::path::PathBuf;

/// How to make a dump.
#[derive(Clone, Debug)]
pub struct DumpOptions {
    /// What to leave out; the next of the list is tried when the dump of the one before does not fit the target. Never empty.
    pub exclude: Vec<Exclusion>,
    /// Codec and level for the pages.
    pub compression: Compression,
    /// Worker threads; `None`: one for each usable cpu. Fewer run when the memory budget or the machine says so.
    pub threads: Option<usize>,
    /// Memory to stay within, in bytes; `None`: taken from MemAvailable.
    pub max_memory: Option<u64>,
    /// Overwrite an existing target.
    pub force: bool,
    /// Do everything but write.
    pub dry_run: bool,
    /// Map the input where it allows that; otherwise read it.
    pub map_input: bool,
}

/// The page classes one attempt leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exclusion {
    /// The classes, those that must never be read included.
    pub classes: ClassSet,
    /// The dump level that describes them in the file's header.
    pub level: DumpLevel,
}

impl Exclusion {
    /// `level`, plus the classes `also`, less the classes `keep`.
    #[must_use]
    pub fn new(level: DumpLevel, also: ClassSet, keep: ClassSet) -> Self {
        let classes = level.excluded().union(also).without(keep).union(ClassSet::UNREADABLE);
        let plain = also.is_empty() && keep.is_empty();
        Self { classes, level: if plain { level } else { DumpLevel::describing(classes) } }
    }
}

/// Where the dump goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file (new, mode 0600; an existing one, a block or character device only with `force`).
    Path(PathBuf),
}
