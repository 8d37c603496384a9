//! What a user asks for.

use crate::auto::{LADDER, START};
use crate::stop::Stop;
use coresift_format::codec::{Codec, Compression, CompressionError};
use coresift_kernel::debuginfo::DebugFile;
use coresift_kernel::{ClassSet, DumpLevel};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// How to make a dump.
#[derive(Clone, Debug)]
pub struct DumpOptions {
    /// What to leave out; the next of the list is tried when the dump of the one before does not fit the target. Never empty.
    pub exclude: Vec<Exclusion>,
    /// What kind of file to write.
    pub format: Format,
    /// Codec and level for the pages of a kdump-compressed file; those of an ELF core are as they are.
    pub compression: Choice,
    /// Worker threads; `None`: one for each usable cpu. Fewer run when the memory budget or the machine says so.
    pub threads: Option<usize>,
    /// Memory to stay within, in bytes; `None`: taken from MemAvailable.
    pub max_memory: Option<u64>,
    /// Leave out pages of the memory map that describe only pages that are left out.
    pub exclude_unused_map: bool,
    /// Overwrite an existing target.
    pub force: bool,
    /// Do everything but write.
    pub dry_run: bool,
    /// Bytes the file may have at the most.
    pub limit: Option<u64>,
    /// What ends the run before it is done.
    pub stop: Stop,
    /// Debug information of the kernel, for what the dump does not tell itself.
    pub debug: Option<DebugFile>,
    /// Map the input where it allows that; otherwise read it.
    pub map_input: bool,
    /// Save the kernel log in this file, before anything else is done.
    pub log: Option<PathBuf>,
}

/// The kind of file a dump is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// kdump-compressed: `makedumpfile`'s own, which crash, drgn and libkdumpfile read.
    #[default]
    Kdump,
    /// An ELF core, which gdb reads too.
    Elf,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kdump => "kdump",
            Self::Elf => "elf",
        })
    }
}

/// A name that is no format's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the formats are kdump and elf")]
pub struct UnknownFormat;

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        [Self::Kdump, Self::Elf].into_iter().find(|format| format.to_string() == text).ok_or(UnknownFormat)
    }
}

/// How pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All alike.
    Fixed(Compression),
    /// By the codec that gets the dump out soonest, as measured while running. Two runs may write different files.
    Auto,
}

impl Choice {
    /// What there is to choose from.
    pub(crate) fn ladder(&self) -> &[Compression] {
        match self {
            Self::Fixed(one) => std::slice::from_ref(one),
            Self::Auto => &LADDER,
        }
    }

    /// Which of them the first batches get.
    pub(crate) fn start(self) -> usize {
        if self == Self::Auto { START } else { 0 }
    }

    /// The codec that the header names. Readers go by each page's own flags; one that looks at the header to see whether it can
    /// read the file is told the codec that is newest, and so the least likely to be built in.
    pub(crate) fn header(self) -> Codec {
        self.ladder().last().map_or(Codec::None, |strongest| strongest.codec)
    }

    /// The one that needs the most memory.
    pub(crate) fn largest(self) -> Compression {
        self.ladder().last().copied().unwrap_or(Codec::None.into())
    }
}

impl From<Compression> for Choice {
    fn from(one: Compression) -> Self {
        Self::Fixed(one)
    }
}

impl From<Codec> for Choice {
    fn from(codec: Codec) -> Self {
        Self::Fixed(codec.into())
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(one) => one.fmt(f),
            Self::Auto => f.pad("auto"),
        }
    }
}

/// Why a text names no [`Choice`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// A level was given to `auto`.
    #[error("auto takes no level: it chooses codec and level by itself")]
    AutoLevel,
    /// It is no codec either.
    #[error(transparent)]
    Compression(#[from] CompressionError),
}

impl FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            Some(("auto", _)) => Err(ChoiceError::AutoLevel),
            _ => Ok(Self::Fixed(text.parse()?)),
        }
    }
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
    /// Whatever can be written to from beginning to end, as a flattened stream.
    Stream(StreamTo),
    /// The parts of a split set, each a file as above, written at once.
    Parts {
        /// The files, in the order of page frame numbers.
        paths: Vec<PathBuf>,
        /// What the boundaries between parts are multiples of, in bytes of memory; `None`: of 4096 pages, which crash needs to
        /// open the parts together.
        block: Option<u64>,
    },
}

/// Where a flattened stream goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamTo {
    /// The standard output.
    Stdout,
    /// A file as in [`Target::Path`], a FIFO or a device.
    Path(PathBuf),
}

/// Where a flattened stream comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamFrom {
    /// The standard input.
    Stdin,
    /// A file, a FIFO or a device.
    Path(PathBuf),
}

impl Target {
    /// The name of file number `index` to show in messages.
    #[must_use]
    pub fn file(&self, index: usize) -> &Path {
        self.files().get(index).map_or(Path::new("the standard output"), |path| path)
    }

    /// The name to show in messages, of parts that of the first.
    #[must_use]
    pub fn name(&self) -> &Path {
        self.file(0)
    }

    /// The files to be written; none for the standard output.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Self::Path(path) | Self::Stream(StreamTo::Path(path)) => std::slice::from_ref(path),
            Self::Parts { paths, .. } => paths,
            Self::Stream(StreamTo::Stdout) => &[],
        }
    }
}
