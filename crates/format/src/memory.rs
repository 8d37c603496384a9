//! Physical memory as every later stage sees it, whatever file it came from.

use crate::{PageSet, PageSize, Pfn, PhysAddr};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;

/// The memory of a crashed machine: which page frames exist, which of them the file holds, and their bytes.
///
/// Shared by all threads; each thread reads through a [`MemoryView`] of its own.
pub trait PhysicalMemory: Send + Sync {
    /// The page size the file was made with.
    fn page_size(&self) -> PageSize;

    /// Page frames that exist as RAM (the 1st bitmap of a kdump file).
    fn ram(&self) -> &PageSet;

    /// Page frames whose bytes are in the file (the 2nd bitmap). A subset of [`Self::ram`].
    fn stored(&self) -> &PageSet;

    /// Stored pages that are zeros without being read: memory that an ELF core describes and has no data for. A subset of
    /// [`Self::stored`].
    fn known_zero(&self) -> &PageSet {
        PageSet::none()
    }

    /// Stored pages that have bytes in the file.
    fn data(&self) -> Cow<'_, PageSet> {
        match self.known_zero() {
            none if none.is_empty() => Cow::Borrowed(self.stored()),
            zero => Cow::Owned(self.stored().without(zero)),
        }
    }

    /// Number of [`Self::data`]: what a dump can tell is bounded by it.
    fn data_pages(&self) -> u64 {
        self.stored().len() - self.known_zero().len()
    }

    /// One more than the highest page frame number the file speaks of.
    fn max_pfn(&self) -> Pfn;

    /// A reader for one thread, with its own window or cache.
    fn view(&self) -> Box<dyn MemoryView + '_>;
}

/// One thread's way into the memory.
pub trait MemoryView {
    /// Fills `buf` from `addr` on; it may cross pages and segments. Bytes of a stored page that no segment covers read as zero.
    ///
    /// # Errors
    /// The first page that could not be read, and why; the content of `buf` is then unspecified.
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError>;

    /// `len` bytes at `addr`, without copying where the file allows it.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn slice(&mut self, addr: PhysAddr, len: usize) -> Result<&[u8], ReadError>;
}

/// Why a piece of physical memory could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// No segment and no bitmap bit covers the address.
    #[error("physical address {addr} is in no memory the dump describes")]
    NotPresent {
        /// The address asked for.
        addr: PhysAddr,
    },
    /// The page exists, but was left out when the file was written.
    #[error("{pfn} was left out of the dump (dump level {level})")]
    Excluded {
        /// The page asked for.
        pfn: Pfn,
        /// The dump level of the file, 0 where it has none.
        level: i32,
    },
    /// The file should hold the page, but ends before it.
    #[error("{pfn} should be at file offset {offset}, beyond the end of the file at {len}")]
    Truncated {
        /// The page asked for.
        pfn: Pfn,
        /// Where its data should begin.
        offset: u64,
        /// The length of the file in bytes.
        len: u64,
    },
    /// The operating system could not read it (EIO, EFAULT, a hardware fault behind a mapping).
    #[error("{pfn} cannot be read: {error}")]
    Io {
        /// The page asked for.
        pfn: Pfn,
        /// What the operating system said.
        error: Arc<io::Error>,
    },
    /// The stored form of the page is damaged.
    #[error("{pfn} is damaged in the file: {what}")]
    Corrupt {
        /// The page asked for.
        pfn: Pfn,
        /// Field, offset and value.
        what: String,
    },
}
