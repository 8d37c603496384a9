//! Exit codes of the native commands. makedumpfile's command line has its own: 0, 1 and 2.

use std::process::ExitCode;

/// How a native command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, completely.
    Ok = 0,
    /// Nothing usable came of it.
    Failed = 1,
    /// The dump's kernel is not the one of the debug information given; makedumpfile's code for it.
    OtherKernel = 2,
    /// The dump is there and can be read, but does not hold all it should.
    Incomplete = 3,
    /// The dump is damaged: bytes of it are wrong, it contradicts itself, or so little is left of it that nothing can be read.
    Damaged = 4,
    /// The command line cannot be used (EX_USAGE of sysexits.h).
    Usage = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The table as every `--help` shows it.
pub const HELP: &str = "\
Exit codes:
   0  done
   1  failed
   2  the dump is of another kernel than the vmlinux given
   3  the dump is incomplete: it can be read, but does not hold all it should
   4  the dump is damaged: it contradicts itself, or not even its headers are left
  64  the command line cannot be used";
