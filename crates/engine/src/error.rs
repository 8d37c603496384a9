//! What can go wrong in a run.

use crate::{Full, Report, StopReason};
use coresift_format::FormatError;
use coresift_format::codec::CodecError;
use coresift_kernel::KernelError;
use std::io;
use std::path::PathBuf;

/// Why a dump was not made, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The input cannot be read or is no dump.
    #[error(transparent)]
    Input(#[from] FormatError),
    /// The input does not tell enough about its kernel.
    #[error("{file}: {error}")]
    Kernel {
        /// The input.
        file: String,
        /// What is missing or contradicts itself.
        #[source]
        error: KernelError,
    },
    /// The target exists and may not be overwritten.
    #[error("{path} exists; choose another name, or overwrite it with -f", path = path.display())]
    TargetExists {
        /// The target.
        path: PathBuf,
    },
    /// The target is the input, by whatever name: writing would destroy what is still to be read.
    #[error("{path} is the input; write to another file, and replace the input when that is done", path = path.display())]
    TargetIsInput {
        /// The target.
        path: PathBuf,
    },
    /// Two parts of a split set are one file.
    #[error("{path} is named twice, and {other} is the same file; give each part a file of its own", path = path.display(), other = other.display())]
    PartTwice {
        /// The second name.
        path: PathBuf,
        /// The first.
        other: PathBuf,
    },
    /// Not all parts of a split set were given.
    #[error("{missing}; give all parts of the set")]
    PartsMissing {
        /// Which pages, and of which parts where that is known.
        missing: String,
    },
    /// The offsets of parts add up to more than a file can have.
    #[error("the parts are larger together than a file can be; one of them is damaged: use another copy")]
    PartsTooLarge,
    /// The boundaries of parts were to be multiples of no whole number of pages.
    #[error("a split block of {block} bytes is not a multiple of the page size, {page}; give one that is")]
    SplitBlock {
        /// What was asked for, in bytes.
        block: u64,
        /// The page size, in bytes.
        page: u64,
    },
    /// The target cannot be opened.
    #[error("cannot open the target {path}: {error}", path = path.display())]
    TargetOpen {
        /// The target.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The target is full, or the size limit was reached.
    #[error("{full} {path}: {what}", path = path.display(), what = pages(*readable, report, *kept))]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// What was reached.
        full: Full,
        /// Pages that were to be written.
        kept: u64,
        /// Whether what was written is a readable dump, marked incomplete.
        readable: bool,
        /// What was done.
        report: Box<Report>,
    },
    /// The run was told to end before it was done.
    #[error("{why} ended the dump in {path} early: {what}", path = path.display(), what = pages(*readable, report, *kept))]
    Stopped {
        /// The target.
        path: PathBuf,
        /// What ended it.
        why: StopReason,
        /// Pages that were to be written, as far as that was known.
        kept: u64,
        /// Whether what was written is a readable dump, marked incomplete.
        readable: bool,
        /// What was done.
        report: Box<Report>,
    },
    /// Making a file of others was told to end before it was done.
    #[error("{why} ended {path} early: {what}", path = path.display(), what = left(*readable))]
    Interrupted {
        /// The target.
        path: PathBuf,
        /// What ended it.
        why: StopReason,
        /// Whether what was written is a readable dump, marked incomplete.
        readable: bool,
    },
    /// Writing failed for another reason.
    #[error("cannot write to {path} at offset {offset}: {error}; {what}", path = path.display(), what = left(*readable))]
    Write {
        /// The target.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What the system said.
        error: io::Error,
        /// Whether what was written is a readable dump, marked incomplete.
        readable: bool,
    },
    /// A flattened stream broke off; what was written of it cannot be taken back.
    #[error("{what} {path} after {written} bytes: {error}; the stream is cut short, and `coresift unflatten` saves what is whole of it",
        path = path.display(), what = if error.kind() == io::ErrorKind::BrokenPipe { "nobody reads" } else { "cannot write to" })]
    Stream {
        /// Where it went.
        path: PathBuf,
        /// Bytes of the stream that were written.
        written: u64,
        /// What the system said.
        error: io::Error,
    },
    /// Of a flattened stream not even the headers of the dump inside are there.
    #[error("{file}: {why}; nothing was saved. Fetch the stream again")]
    NoDump {
        /// The stream.
        file: String,
        /// How it ends, and what is missing.
        why: String,
    },
    /// Page frames of this machine are numbered in a way that is not written yet.
    #[error("{file} is a dump of {machine}, which cannot be written yet; use makedumpfile for it")]
    Machine {
        /// The input.
        file: String,
        /// The machine.
        machine: String,
    },
    /// The dump cannot be described in a kdump-compressed file.
    #[error(
        "page frame numbers up to {max_mapnr:#x} and {pages} pages are more than a kdump-compressed file can describe; \
             check the program headers of the input for an address that no machine has"
    )]
    TooLarge {
        /// One more than the highest page frame number.
        max_mapnr: u64,
        /// Pages to keep.
        pages: u64,
    },
    /// The memory cannot be described in an ELF core of the input's class.
    #[error(
        "the {segments} program headers and {bytes} bytes of pages are more than an ELF file of the input's class can describe; \
             write a kdump-compressed file instead, or leave out more pages"
    )]
    TooLargeForElf {
        /// PT_LOADs.
        segments: u64,
        /// Bytes of page data.
        bytes: u64,
    },
    /// An ELF core has no place for what parts of a set have to know.
    #[error("an ELF core cannot be split; write one file, or a kdump-compressed one in parts")]
    ElfInParts,
    /// The codec cannot be set up.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The list of what to leave out is empty.
    #[error("no dump level was given")]
    NothingAsked,
    /// The memory budget is too small for one worker and the page sets of the input.
    #[error(
        "the memory budget of {budget} bytes is too small: {needed} bytes are needed; give --max-memory {needed} or more \
             (a kdump-compressed file takes less than an ELF core)"
    )]
    Budget {
        /// The budget in bytes.
        budget: u64,
        /// What is needed at least, in bytes.
        needed: u64,
    },
}

fn left(readable: bool) -> &'static str {
    if readable { "what was written is marked incomplete and can be read" } else { "nothing readable was written" }
}

fn pages(readable: bool, report: &Report, kept: u64) -> String {
    if let Some(space) = report.space.filter(|space| !space.fits) {
        return format!("the dump needs {} bytes, and {} are free", space.needed, space.free);
    }
    let (were, left) = if report.dry_run {
        (
            "would be",
            if readable {
                "the file would be marked incomplete and readable"
            } else {
                "nothing readable would be written"
            },
        )
    } else {
        ("were", left(readable))
    };
    if readable && kept == 0 {
        format!("there {} room for the headers only; {left}", if report.dry_run { "would be" } else { "was" })
    } else if readable {
        format!("{} of {kept} pages {were} written; {left}", report.kept_pages)
    } else {
        left.to_owned()
    }
}
