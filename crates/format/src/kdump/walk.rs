//! What the page descriptors of a file say, without reading any page data.

use super::bitmap::BitmapFaults;
use super::desc::PageDesc;
use super::file::KdumpFile;
use crate::bytes::read_some;
use crate::codec::Codec;
use crate::elf_memory::io_error;
use crate::endian::Endian;
use crate::{FormatError, Pfn, PhysicalMemory, ReadError, Result};
use std::io;
use std::ops::Range;

/// Descriptors read at a time (384 KiB).
const AT_A_TIME: u64 = 16 << 10;
/// Bytes read at a time around a place of the disk that cannot be read: what a disk gives up at once.
const PIECE: u64 = 4096;

/// Why the page of a descriptor cannot be read, as far as the descriptor tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Its offset is 0: the file ended before the page was written.
    Unwritten,
    /// The descriptor, or the data it points at, lies beyond the end of the file or in what a flattened stream lost.
    BeyondEnd,
    /// No writer writes such a descriptor.
    BadDescriptor,
    /// The operating system cannot read the descriptor.
    Unreadable,
    /// Which descriptor is the page's is not known, for the 2nd bitmap is damaged.
    Unassigned,
}

/// A page that the 2nd bitmap promises, and its descriptor.
#[derive(Clone, Debug)]
pub struct Described {
    /// The page frame.
    pub pfn: Pfn,
    /// Its place among the descriptors, counted from 0.
    pub rank: u64,
    /// File offset of the descriptor in bytes.
    pub at: u64,
    /// The descriptor; zeros where the file ends before it.
    pub desc: PageDesc,
    /// The codec of its data, or why there are none.
    pub state: std::result::Result<Codec, (Loss, ReadError)>,
}

/// Pages of a file, counted by what their descriptors say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorCounts {
    /// Pages by codec, in the order of [`Codec::ALL`]; pages stored as they are come first.
    pub codecs: [u64; Codec::ALL.len()],
    /// Pages whose descriptor was never written: the file ended early.
    pub unwritten: u64,
    /// Pages whose descriptor or data lie beyond the end of the file.
    pub beyond_end: u64,
    /// Pages whose descriptor cannot be true.
    pub damaged: u64,
    /// Pages whose descriptor the operating system cannot read.
    pub unreadable: u64,
}

impl DescriptorCounts {
    /// Pages of `codec`.
    #[must_use]
    pub fn of(&self, codec: Codec) -> u64 {
        Codec::ALL.iter().zip(self.codecs).find(|(c, _)| **c == codec).map_or(0, |(_, pages)| pages)
    }

    /// Adds the pages of another file.
    pub fn add(&mut self, other: &Self) {
        self.codecs.iter_mut().zip(other.codecs).for_each(|(sum, pages)| *sum += pages);
        self.unwritten += other.unwritten;
        self.beyond_end += other.beyond_end;
        self.damaged += other.damaged;
        self.unreadable += other.unreadable;
    }

    /// Pages the bitmap promises and that cannot be read.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.unwritten.saturating_add(self.beyond_end).saturating_add(self.damaged).saturating_add(self.unreadable)
    }
}

/// A piece of the table of descriptors.
#[derive(Default)]
struct Table {
    /// Its ranks.
    first: u64,
    end: u64,
    raw: Vec<u8>,
    /// What of `raw` cannot be read, and why.
    holes: Vec<(Range<usize>, io::Error)>,
}

impl Table {
    /// Descriptor number `rank`; `None` where the file ends before it.
    fn get(&self, rank: u64, endian: Endian) -> io::Result<Option<PageDesc>> {
        let at = usize::try_from(rank.saturating_sub(self.first)).unwrap_or(usize::MAX).saturating_mul(PageDesc::SIZE);
        let end = at.saturating_add(PageDesc::SIZE);
        if let Some((_, error)) = self.holes.iter().find(|(hole, _)| hole.start < end && at < hole.end) {
            return Err(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error));
        }
        Ok(self.raw.get(at..).and_then(|raw| PageDesc::decode(raw, endian)))
    }
}

/// What the operating system said.
fn io_of(error: FormatError) -> io::Error {
    match error {
        FormatError::Io { error, .. } => error,
        other => io::Error::other(other),
    }
}

impl KdumpFile {
    /// Counts the pages of the file by what their descriptors say.
    #[must_use]
    pub fn count_descriptors(&self) -> DescriptorCounts {
        let mut counts = DescriptorCounts::default();
        self.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| match page.state {
            Ok(codec) => {
                let row = Codec::ALL.iter().position(|c| *c == codec);
                row.and_then(|i| counts.codecs.get_mut(i)).into_iter().for_each(|pages| *pages += 1);
            }
            Err((Loss::Unwritten, _)) => counts.unwritten += 1,
            Err((Loss::BeyondEnd, _)) => counts.beyond_end += 1,
            Err((Loss::BadDescriptor | Loss::Unassigned, _)) => counts.damaged += 1,
            Err((Loss::Unreadable, _)) => counts.unreadable += 1,
        });
        counts
    }

    /// Shows `each` the descriptor of every stored page of `from..to`, ascending. Reads 384 KiB at a time. Descriptors beyond the end of the
    /// file, or where the operating system cannot read, are shown as lost.
    pub fn each_descriptor(&self, from: Pfn, to: Pfn, mut each: impl FnMut(Described)) {
        let mut rank = self.stored().rank(from);
        let end = self.stored().rank(to);
        let mut table = Table::default();
        for (start, stop) in self.stored().runs(from, to) {
            for pfn in start.0..stop.0 {
                if rank >= table.end {
                    table = self.read_table(rank..rank + AT_A_TIME.min(end.saturating_sub(rank)).max(1));
                }
                each(self.described(Pfn(pfn), rank, table.get(rank, self.layout().endian)));
                rank += 1;
            }
        }
    }

    /// The descriptors number `ranks`; around a place that cannot be read, all that can be.
    fn read_table(&self, ranks: Range<u64>) -> Table {
        let (at, len) = (self.descriptor_at(ranks.start), (ranks.end - ranks.start) * PageDesc::SIZE as u64);
        let mut table = Table { first: ranks.start, end: ranks.end, raw: Vec::new(), holes: Vec::new() };
        match read_some(&*self.bytes, "page descriptors", at, len) {
            Ok(raw) => table.raw = raw,
            Err(_) => {
                for from in (at..at + len).step_by(PIECE as usize) {
                    let want = PIECE.min(at + len - from);
                    match read_some(&*self.bytes, "page descriptors", from, want) {
                        Ok(piece) if piece.is_empty() => break,
                        Ok(piece) => table.raw.extend(piece),
                        Err(error) => {
                            let start = table.raw.len();
                            table.raw.resize(start + want as usize, 0);
                            table.holes.push((start..table.raw.len(), io_of(error)));
                        }
                    }
                }
            }
        }
        table
    }

    /// Counts bits of the bitmaps that no writer sets.
    ///
    /// # Errors
    /// The operating system's.
    pub fn bitmap_faults(&self) -> Result<BitmapFaults> {
        self.maps.faults(&*self.bytes, self.descriptors())
    }

    /// Shows `each` both bitmaps in pieces, with the file offset of each piece, as they should be: without the bits that
    /// [`Self::bitmap_faults`] counts. What is left out is zeros.
    ///
    /// # Errors
    /// The operating system's.
    pub fn each_bitmap_piece(&self, each: impl FnMut(u64, &[u8])) -> Result<()> {
        self.maps.mended(&*self.bytes, self.descriptors(), each)
    }

    /// The descriptor of one page; `None` where the 2nd bitmap has no such page.
    #[must_use]
    pub fn describe(&self, pfn: Pfn) -> Option<Described> {
        if !self.stored().contains(pfn) {
            return None;
        }
        let rank = self.stored().rank(pfn);
        let table = self.read_table(rank..rank + 1);
        Some(self.described(pfn, rank, table.get(rank, self.layout().endian)))
    }

    fn described(&self, pfn: Pfn, rank: u64, read: io::Result<Option<PageDesc>>) -> Described {
        let at = self.descriptor_at(rank);
        let (desc, state) = match read {
            Ok(Some(desc)) => (desc, self.check(pfn, at, desc)),
            Ok(None) => {
                let error = ReadError::Truncated { pfn, offset: at, len: self.bytes.len() };
                (PageDesc::default(), Err((Loss::BeyondEnd, error)))
            }
            Err(error) => (PageDesc::default(), Err((Loss::Unreadable, io_error(pfn, error)))),
        };
        Described { pfn, rank, at, desc, state }
    }

    /// Whether the descriptor at file offset `at` can be true and is that of `pfn`, and the codec it names.
    pub(super) fn check(&self, pfn: Pfn, at: u64, desc: PageDesc) -> std::result::Result<Codec, (Loss, ReadError)> {
        if self.doubt.contains(pfn) {
            let what = "the 2nd bitmap is damaged near it, so which descriptor is the page's is not known".to_owned();
            return Err((Loss::Unassigned, ReadError::Corrupt { pfn, what }));
        }
        self.can_be_true(pfn, at, desc)
    }

    /// Whether the descriptor at file offset `at` can be true, of whichever page, and the codec it names.
    pub(super) fn can_be_true(
        &self,
        pfn: Pfn,
        at: u64,
        desc: PageDesc,
    ) -> std::result::Result<Codec, (Loss, ReadError)> {
        let block = self.page_size().bytes() as u64;
        let PageDesc { offset, size, flags } = desc;
        let first_data = self.descriptor_at(self.stored().len());
        let damaged = |loss, what| Err((loss, ReadError::Corrupt { pfn, what }));
        let bad = |what| damaged(Loss::BadDescriptor, what);
        if offset == 0 || desc.is_pending() {
            let what = format!("its page descriptor at file offset {at} was never written, the file is incomplete");
            return damaged(Loss::Unwritten, what);
        }
        if self.bytes.lacks(at..at.saturating_add(PageDesc::SIZE as u64)) {
            let what = format!(
                "its page descriptor at file offset {at} is not wholly in the stream, which was cut short or is damaged"
            );
            return damaged(Loss::BeyondEnd, what);
        }
        if offset < first_data {
            return bad(format!(
                "offset {offset} in the page descriptor at file offset {at} lies before the page data at {first_data}"
            ));
        }
        if size == 0 || u64::from(size) > block {
            return bad(format!("size {size} in the page descriptor at file offset {at}, of a page of {block} bytes"));
        }
        let codec = match Codec::from_flags(flags) {
            Ok(Codec::None) if u64::from(size) != block => {
                return bad(format!(
                    "size {size} in the page descriptor at file offset {at}, of an uncompressed page of {block} bytes"
                ));
            }
            Ok(codec) => codec,
            Err(bits) => {
                return bad(format!(
                    "flags {flags:#x} in the page descriptor at file offset {at}: {bits:#x} is no known codec"
                ));
            }
        };
        let len = self.bytes.len();
        match offset.checked_add(size.into()) {
            Some(end) if end <= len && self.bytes.lacks(offset..end) => damaged(
                Loss::BeyondEnd,
                format!("its data at file offset {offset} are not in the stream, which was cut short or is damaged"),
            ),
            Some(end) if end <= len => Ok(codec),
            _ => Err((Loss::BeyondEnd, ReadError::Truncated { pfn, offset, len })),
        }
    }
}
