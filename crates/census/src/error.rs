//! What can go wrong while page frames are counted.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate.
pub type Result<T> = std::result::Result<T, CensusError>;

/// Why there is no census.
#[derive(Debug, thiserror::Error)]
pub enum CensusError {
    /// A file of the kernel cannot be opened for want of a capability.
    #[error("{}: {error}; reading it takes CAP_SYS_ADMIN and CAP_DAC_OVERRIDE, as root has them", path.display())]
    Permission {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// A file of the kernel cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// A file of the kernel hides addresses.
    #[error("{}: all addresses are zero: the kernel hides them from a process without CAP_SYS_ADMIN", path.display())]
    Hidden {
        /// The file.
        path: PathBuf,
    },
    /// A file of the kernel does not say what it should.
    #[error("{}: line {line}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A file is no table of page frames.
    #[error("{}: {what}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// Where it is wrong, and what is.
        what: String,
    },
    /// A thread died before its windows were read.
    #[error("a reading thread ended before its work was done")]
    Stopped,
    /// The table cannot be written.
    #[error("cannot write the table: {0}")]
    Output(#[from] io::Error),
    /// The dump's kernel cannot be understood.
    #[error(transparent)]
    Kernel(#[from] coresift_kernel::KernelError),
}

impl CensusError {
    /// That `path` cannot be opened or read.
    pub(crate) fn reading(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { path, error },
            _ => Self::Io { path, error },
        }
    }
}
