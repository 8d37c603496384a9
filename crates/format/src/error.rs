//! What can be wrong with a dump file as a whole. (One unreadable page is a [`crate::ReadError`].)

use crate::kdump::SetError;
use std::io;

/// The result of opening or describing a dump file.
pub type Result<T> = std::result::Result<T, FormatError>;

/// Why a dump file, or one part of it, cannot be used.
///
/// Every variant names the file, the field or region, and its offset in the file; offsets of a flattened file are those
/// of the file inside it.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The operating system could not open or read the file.
    #[error("{file}: cannot read {what} at offset {offset}; {}", advice(error.kind()))]
    Io {
        /// Name of the file.
        file: String,
        /// The region that was to be read.
        what: &'static str,
        /// File offset in bytes.
        offset: u64,
        /// What the operating system said.
        #[source]
        error: io::Error,
    },
    /// The file ends before a region that must be there.
    #[error(
        "{file}: the file is cut short: {what} needs bytes {offset} to {end}, but the file has {len}; fetch it again or use another copy"
    )]
    CutShort {
        /// Name of the file.
        file: String,
        /// The region or field that lies beyond the end.
        what: &'static str,
        /// Where the region begins, in bytes.
        offset: u64,
        /// Where it should end, in bytes.
        end: u64,
        /// Length of the file in bytes.
        len: u64,
    },
    /// A field has a value no valid file has.
    #[error("{file}: {field} at offset {offset} is {value}, but {rule}; {next}")]
    BadField {
        /// Name of the file.
        file: String,
        /// Name of the field, as its format calls it.
        field: &'static str,
        /// File offset of the field in bytes.
        offset: u64,
        /// The value found.
        value: String,
        /// What a valid value is.
        rule: String,
        /// What to do next.
        next: &'static str,
    },
    /// The file is something else.
    #[error("{file}: this is {found} (seen at offset {offset}); {next}")]
    OtherFormat {
        /// Name of the file.
        file: String,
        /// The format recognised.
        found: &'static str,
        /// Where its mark was seen, in bytes.
        offset: u64,
        /// What to do next.
        next: &'static str,
    },
    /// Files given as the parts of one split set are not, or not all.
    #[error(transparent)]
    Set(SetError),
    /// Nothing known begins like this.
    #[error(
        "{file}: not a crash dump this program knows: it begins with {head} at offset 0; expected an ELF core, a kdump-compressed or a flattened file"
    )]
    Unknown {
        /// Name of the file.
        file: String,
        /// The first bytes, in hexadecimal.
        head: String,
    },
}

/// What to do about a damaged header.
pub(crate) const FETCH_AGAIN: &str = "the file is damaged: fetch it again or use another copy";

/// What to do about a file that the operating system does not read.
const fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => "check the name",
        io::ErrorKind::IsADirectory => "it is a directory: name a file in it",
        io::ErrorKind::NotSeekable => {
            "it is a pipe, which only `unflatten` and `makedumpfile -R` read: save what comes out of it in a file, and name that"
        }
        io::ErrorKind::PermissionDenied => "run as a user who may read it (for /proc/vmcore and /proc/kcore: root)",
        _ => "check the disk it is on",
    }
}

impl FormatError {
    /// A stable short name of the kind of error, for reports that programs read.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::CutShort { .. } => "cut-short",
            Self::BadField { .. } => "bad-field",
            Self::OtherFormat { .. } => "other-format",
            Self::Set(_) => "split-set",
            Self::Unknown { .. } => "unknown-format",
        }
    }
}
