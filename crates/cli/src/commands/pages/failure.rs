//! How a command on page frames fails.

use crate::cause;
use crate::exit::Exit;
use crate::failure::Failing;
use coresift_census::CensusError;
use coresift_format::FormatError;
use coresift_kernel::KernelError;
use std::path::PathBuf;

/// Why a command on page frames ends.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The source, or what is made of it.
    #[error(transparent)]
    Census(#[from] CensusError),
    /// The file to be made.
    #[error(transparent)]
    New(#[from] super::new_file::NewFileError),
    /// A dump that cannot be opened.
    #[error(transparent)]
    Dump(#[from] FormatError),
    /// Debug information that cannot be used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A signal came.
    #[error("ended by signal {0}; nothing is left of what was being written")]
    Signal(usize),
}

/// Says what `error` is; the exit code that belongs to it.
pub fn tell(error: PagesError, inputs: &[PathBuf], json: bool) -> Exit {
    let failing = Failing::new(inputs, json);
    let exit = match &error {
        PagesError::Census(CensusError::Table { .. }) => Exit::Damaged,
        _ => Exit::Failed,
    };
    let advice = match &error {
        PagesError::Census(CensusError::Permission { .. } | CensusError::Hidden { .. }) => {
            Some("run it as root, or give it a dump or a snapshot")
        }
        _ => None,
    };
    match error {
        PagesError::Dump(error) => failing.format(error),
        PagesError::Kernel(error) | PagesError::Census(CensusError::Kernel(error)) => failing.kernel(&error, None),
        error => failing.tell(cause::chain(&error).collect(), advice, exit),
    }
}
