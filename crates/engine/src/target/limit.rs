//! Writes that fail, and the sizes at which they do.

use rustix::io::Errno;
use std::fmt;
use std::io;

/// The most bytes a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// By what the user said.
    Asked(u64),
    /// By RLIMIT_FSIZE (`ulimit -f`). The system refuses what is beyond, too; known before, an old file is not given up for nothing.
    Process(u64),
}

impl Limit {
    pub const fn bytes(self) -> u64 {
        let (Self::Asked(bytes) | Self::Process(bytes)) = self;
        bytes
    }

    pub fn error(self) -> io::Error {
        match self {
            Self::Asked(bytes) => io::Error::new(io::ErrorKind::FileTooLarge, LimitReached(bytes)),
            Self::Process(_) => Errno::FBIG.into(),
        }
    }
}

/// A write that failed, and how much of it was done.
#[derive(Debug)]
pub struct WriteFailed {
    /// Bytes written before the failure.
    pub done: usize,
    /// File offset the write began at.
    pub offset: u64,
    /// What the system said.
    pub error: io::Error,
}

/// The error of a write beyond the limit that the user set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the size limit of {0} bytes was reached")]
struct LimitReached(u64);

impl WriteFailed {
    /// A write at `offset` on a file that has room until `end`.
    #[must_use]
    pub fn no_room(offset: u64, end: u64) -> Self {
        Self { done: end.saturating_sub(offset) as usize, offset, error: io::ErrorKind::StorageFull.into() }
    }

    /// Which end was reached, if the target is full: no space, quota, size limit, or the end of a device.
    #[must_use]
    pub fn full(&self) -> Option<Full> {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull, WriteZero};
        let asked = self.error.get_ref().and_then(|e| e.downcast_ref::<LimitReached>()).map(|reached| reached.0);
        match self.error.kind() {
            FileTooLarge => Some(asked.map_or(Full::FileSize, Full::Limit)),
            StorageFull | QuotaExceeded | WriteZero => Some(Full::Space),
            _ => None,
        }
    }
}

/// Which end a full target has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// That of the file system, the quota or the device.
    Space,
    /// The size that was asked for, in bytes.
    Limit(u64),
    /// The largest size a file may have here: that of `ulimit -f`, or what the file system can hold.
    FileSize,
}

impl Full {
    /// The size that was asked for, if that is what was reached.
    #[must_use]
    pub const fn limit(self) -> Option<u64> {
        match self {
            Self::Limit(bytes) => Some(bytes),
            Self::Space | Self::FileSize => None,
        }
    }
}

impl fmt::Display for Full {
    /// What happened, to be followed by the name of the target.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Space => f.write_str("no space left on"),
            Self::Limit(bytes) => write!(f, "the size limit of {bytes} bytes was reached in"),
            Self::FileSize => f.write_str("the largest size of a file (ulimit -f) was reached in"),
        }
    }
}
