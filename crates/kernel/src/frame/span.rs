//! Members of a struct, read at once: from a file each read costs a call, however short.

use crate::error::{KernelError, Result};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};

/// The longest part of a struct that is read; that of an inode is 300 bytes.
const MOST: usize = 1024;
/// Bytes of the longest member that is read.
const MEMBER: u64 = 8;

/// The part of a struct in which the wanted members are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    start: u64,
    len: usize,
}

/// What stands there.
pub(super) struct Bytes {
    span: Span,
    bytes: [u8; MOST],
}

impl Span {
    /// The members at these offsets, and so many bytes behind them.
    ///
    /// # Errors
    /// They are further apart than any kernel has them.
    pub(super) fn of(members: &[u64], behind: u64) -> Result<Self> {
        let start = members.iter().copied().min().unwrap_or(0);
        let end = members.iter().copied().max().unwrap_or(0).saturating_add(MEMBER).saturating_add(behind);
        let len = usize::try_from(end - start).ok().filter(|len| *len <= MOST);
        let len = len.ok_or(KernelError::Implausible {
            what: "the distance of the members of a struct",
            addr: VirtAddr(start),
            value: end - start,
            hint: "",
        })?;
        Ok(Self { start, len })
    }

    /// Of the struct at `at`.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read(self, reader: &mut KernelReader<'_>, at: VirtAddr) -> Result<Bytes> {
        let mut bytes = [0; MOST];
        reader.read_virt(at.plus(self.start), bytes.get_mut(..self.len).unwrap_or_default())?;
        Ok(Bytes { span: self, bytes })
    }
}

impl Bytes {
    /// `len` bytes at this offset of the struct, where they were read.
    pub(super) fn at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.span.start)?).ok()?;
        self.bytes.get(..self.span.len)?.get(from..from.checked_add(len)?)
    }

    /// The 64-bit member at this offset, one of those the span was made of.
    pub(super) fn word(&self, offset: u64) -> u64 {
        self.at(offset, 8).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
    }

    /// The 32-bit member at this offset.
    pub(super) fn half(&self, offset: u64) -> u32 {
        self.at(offset, 4).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
    }
}
