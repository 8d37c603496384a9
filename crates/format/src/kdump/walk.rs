//! What the page descriptors of a file say, counted without reading any page data.

use super::desc::PageDesc;
use super::file::KdumpFile;
use super::read::KdumpView;
use crate::bytes::read_some;
use crate::codec::Codec;
use crate::{Pfn, PhysicalMemory, ReadError, Result};

/// Descriptors read at a time (384 KiB).
const AT_A_TIME: u64 = 16 << 10;

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
        let view = KdumpView::new(self);
        let mut counts = DescriptorCounts::default();
        let total = self.stored().len();
        let mut rank = 0;
        while rank < total {
            let wanted = AT_A_TIME.min(total - rank);
            let at = self.descriptor_at(rank);
            let raw = read_some(&*self.bytes, "page descriptors", at, wanted * PageDesc::SIZE as u64)?;
            let descriptors: Vec<PageDesc> =
                raw.chunks_exact(PageDesc::SIZE).filter_map(|d| PageDesc::decode(d, self.layout().endian)).collect();
            for desc in &descriptors {
                // The page frame number is only for the text of an error, which is not used here.
                match view.check(Pfn(0), at, *desc) {
                    Ok(codec) => {
                        let row = Codec::ALL.iter().position(|c| *c == codec);
                        row.and_then(|i| counts.codecs.get_mut(i)).into_iter().for_each(|pages| *pages += 1);
                    }
                    Err(ReadError::Truncated { .. }) => counts.beyond_end += 1,
                    Err(_) if desc.offset == 0 => counts.unwritten += 1,
                    Err(_) => counts.damaged += 1,
                }
            }
            if (descriptors.len() as u64) < wanted {
                counts.beyond_end += total - rank - descriptors.len() as u64;
                break;
            }
            rank += wanted;
        }
        Ok(counts)
    }
}
