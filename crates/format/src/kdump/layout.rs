//! Where each region of a kdump-compressed file begins.

use super::desc::PageDesc;
use super::header::{Abi, MAX_VERSION, SubHeader};
use crate::PageSize;

/// The places of all regions of a file; every number is a file offset or a length in bytes unless it says blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where the sub header is: block 1.
    pub sub_header: u64,
    /// Bytes of the sub header.
    pub sub_header_len: u64,
    /// Where the ELF notes are, directly behind the sub header.
    pub notes: u64,
    /// Bytes of the ELF notes.
    pub notes_len: u64,
    /// Blocks of sub header and notes: `sub_hdr_size` of the main header.
    pub sub_hdr_size: u32,
    /// Where the 1st bitmap is.
    pub bitmap1: u64,
    /// Where the 2nd bitmap is.
    pub bitmap2: u64,
    /// Bytes of each bitmap, a multiple of the block.
    pub bitmap_len: u64,
    /// Blocks of both bitmaps: `bitmap_blocks` of the main header.
    pub bitmap_blocks: u32,
    /// Where the page descriptors are.
    pub descriptors: u64,
    /// Where the page data are, directly behind the last descriptor.
    pub data: u64,
}

impl Layout {
    /// The layout of a version 6 file with blocks of `page`, `notes_len` bytes of notes, page frames
    /// `0..max_mapnr`, and `pages` descriptors; `None` where that does not fit the format's 32-bit block counts.
    #[must_use]
    pub fn new(page: PageSize, abi: Abi, notes_len: u64, max_mapnr: u64, pages: u64) -> Option<Self> {
        let block = page.bytes() as u64;
        let sub_header_len = SubHeader::size(MAX_VERSION, abi) as u64;
        let sub_hdr_size = page.pages_for(sub_header_len.checked_add(notes_len)?);
        let bitmap_one = page.pages_for(max_mapnr.div_ceil(8));
        let bitmap1 = sub_hdr_size.checked_add(1)?.checked_mul(block)?;
        let bitmap_len = bitmap_one.checked_mul(block)?;
        let bitmap2 = bitmap1.checked_add(bitmap_len)?;
        let descriptors = bitmap2.checked_add(bitmap_len)?;
        let data = descriptors.checked_add(pages.checked_mul(PageDesc::SIZE as u64)?)?;
        Some(Self {
            sub_header: block,
            sub_header_len,
            notes: block + sub_header_len,
            notes_len,
            // Readers keep it in an int.
            sub_hdr_size: i32::try_from(sub_hdr_size).ok()? as u32,
            bitmap1,
            bitmap2,
            bitmap_len,
            bitmap_blocks: u32::try_from(bitmap_one.checked_mul(2)?).ok()?,
            descriptors,
            data,
        })
    }

    /// The same with `pages` descriptors: all but [`Self::data`] is where it was.
    #[must_use]
    pub const fn with_pages(self, pages: u64) -> Self {
        Self { data: self.descriptor(pages), ..self }
    }

    /// File offset of the descriptor of the kept page number `rank`, counted from 0.
    #[must_use]
    pub const fn descriptor(&self, rank: u64) -> u64 {
        self.descriptors.saturating_add(rank.saturating_mul(PageDesc::SIZE as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_follow_each_other_on_block_boundaries() {
        let l = Layout::new(PageSize::K4, Abi::Lp64, 2000, 131_072, 1000).unwrap();
        assert_eq!((l.sub_header, l.notes, l.sub_hdr_size), (4096, 4096 + 104, 1));
        assert_eq!((l.bitmap1, l.bitmap_len, l.bitmap2, l.bitmap_blocks), (8192, 16384, 24576, 8));
        assert_eq!((l.descriptors, l.data), (40960, 40960 + 24000));
        assert_eq!(l.descriptor(10), 40960 + 240);
        assert_eq!(Layout::new(PageSize::K4, Abi::Lp64, 2000, 131_072, 7).unwrap().with_pages(1000), l);
    }

    #[test]
    fn notes_of_a_large_machine_push_the_bitmaps_back() {
        for (notes, blocks) in [(0, 1), (4096 - 104, 1), (4096 - 103, 2), (4 << 20, 1025)] {
            let l = Layout::new(PageSize::K4, Abi::Lp64, notes, 1, 0).unwrap();
            assert_eq!((l.sub_hdr_size, l.bitmap1), (blocks, (u64::from(blocks) + 1) * 4096), "{notes}");
        }
    }

    #[test]
    fn bitmaps_of_no_page_and_of_one_page_more_than_a_block() {
        let blocks = |max| Layout::new(PageSize::K4, Abi::Lp64, 0, max, 0).map(|l| l.bitmap_blocks);
        for (max, expected) in [(0, 0), (1, 2), (32768, 2), (32769, 4)] {
            assert_eq!(blocks(max), Some(expected), "{max}");
        }
        assert_eq!(blocks(u64::MAX), None, "2^49 blocks do not fit");
        assert_eq!(Layout::new(PageSize::K4, Abi::Lp64, u64::MAX, 1, 0), None);
        assert_eq!(Layout::new(PageSize::K4, Abi::Lp64, 0, 1, u64::MAX), None);
    }
}
