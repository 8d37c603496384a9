//! What the page descriptors of a file say, without reading any page data.

use super::bitmap::BitmapFaults;
use super::desc::PageDesc;
use super::file::KdumpFile;
use crate::bytes::read_some;
use crate::codec::Codec;
use crate::{Pfn, PhysicalMemory, ReadError, Result};

/// Descriptors read at a time (384 KiB).
const AT_A_TIME: u64 = 16 << 10;

/// Why the page of a descriptor cannot be read, as far as the descriptor tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Its offset is 0: the file ended before the page was written.
    Unwritten,
    /// The descriptor, or the data it points at, lies beyond the end of the file or in what a flattened stream lost.
    BeyondEnd,
    /// No writer writes such a descriptor.
    BadDescriptor,
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
    }

    /// Pages the bitmap promises and that cannot be read.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.unwritten.saturating_add(self.beyond_end).saturating_add(self.damaged)
    }
}

impl KdumpFile {
    /// Counts the pages of the file by what their descriptors say.
    ///
    /// # Errors
    /// The operating system's. A file that ends inside the descriptors is no error: see [`DescriptorCounts::beyond_end`].
    pub fn count_descriptors(&self) -> Result<DescriptorCounts> {
        let mut counts = DescriptorCounts::default();
        self.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| match page.state {
            Ok(codec) => {
                let row = Codec::ALL.iter().position(|c| *c == codec);
                row.and_then(|i| counts.codecs.get_mut(i)).into_iter().for_each(|pages| *pages += 1);
            }
            Err((Loss::Unwritten, _)) => counts.unwritten += 1,
            Err((Loss::BeyondEnd, _)) => counts.beyond_end += 1,
            Err((Loss::BadDescriptor, _)) => counts.damaged += 1,
        })?;
        Ok(counts)
    }

    /// Shows `each` the descriptor of every stored page of `from..to`, ascending. Reads 384 KiB at a time.
    ///
    /// # Errors
    /// The operating system's. Descriptors beyond the end of the file are shown as [`Loss::BeyondEnd`].
    pub fn each_descriptor(&self, from: Pfn, to: Pfn, mut each: impl FnMut(Described)) -> Result<()> {
        let mut rank = self.stored().rank(from);
        let end = self.stored().rank(to);
        let (mut raw, mut first, mut until) = (Vec::new(), rank, rank);
        for (start, stop) in self.stored().runs(from, to) {
            for pfn in start.0..stop.0 {
                if rank >= until {
                    (first, until) = (rank, rank + AT_A_TIME.min(end.saturating_sub(rank)).max(1));
                    let (at, len) = (self.descriptor_at(first), (until - first) * PageDesc::SIZE as u64);
                    raw = read_some(&*self.bytes, "page descriptors", at, len)?;
                }
                let at = (rank - first) as usize * PageDesc::SIZE;
                let desc = raw.get(at..).and_then(|raw| PageDesc::decode(raw, self.layout().endian));
                each(self.described(Pfn(pfn), rank, desc));
                rank += 1;
            }
        }
        Ok(())
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
    ///
    /// # Errors
    /// The operating system's.
    pub fn describe(&self, pfn: Pfn) -> Result<Option<Described>> {
        if !self.stored().contains(pfn) {
            return Ok(None);
        }
        let rank = self.stored().rank(pfn);
        let raw = read_some(&*self.bytes, "page descriptor", self.descriptor_at(rank), PageDesc::SIZE as u64)?;
        Ok(Some(self.described(pfn, rank, PageDesc::decode(&raw, self.layout().endian))))
    }

    fn described(&self, pfn: Pfn, rank: u64, desc: Option<PageDesc>) -> Described {
        let at = self.descriptor_at(rank);
        let state = match desc {
            Some(desc) => self.check(pfn, at, desc),
            None => Err((Loss::BeyondEnd, ReadError::Truncated { pfn, offset: at, len: self.bytes.len() })),
        };
        Described { pfn, rank, at, desc: desc.unwrap_or_default(), state }
    }

    /// Whether the descriptor at file offset `at` can be true, and the codec it names.
    pub(super) fn check(&self, pfn: Pfn, at: u64, desc: PageDesc) -> std::result::Result<Codec, (Loss, ReadError)> {
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
