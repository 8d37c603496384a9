//! The two bitmaps of a file, read into page sets in bounded memory.

use crate::bytes::Bytes;
use crate::{CHUNK_PAGES, CHUNK_SHIFT, ChunkBits, FormatError, PageSet, PageSetBuilder, Pfn, Result};
use std::ops::Range;

/// Bytes of a bitmap read at a time.
const READ: usize = 1 << 20;
/// Bytes of a bitmap that make a chunk of a page set.
const CHUNK_BYTES: u64 = CHUNK_PAGES / 8;
/// Bitmaps that do not begin at page frame 0 begin at a multiple of this.
pub(crate) const PFN_ALIGN: u64 = 64;

/// Where the bitmaps are, and which pages their bits stand for.
#[derive(Clone, Debug)]
pub(crate) struct Bitmaps {
    /// File offset of the 1st bitmap.
    pub first: u64,
    /// File offset of the 2nd bitmap; the same as the 1st where there is only one.
    pub second: u64,
    /// Number of pages they cover.
    pub pages: u64,
    /// Page frame of bit 0, a multiple of [`PFN_ALIGN`].
    pub base: u64,
    /// Page frames this file holds of those in the 2nd bitmap: all, or those of a part of a split set.
    pub part: Range<u64>,
}

impl Bitmaps {
    /// Reads the pages that exist, and those the file holds. A page of the 2nd bitmap exists, whatever the 1st says.
    pub fn read(&self, bytes: &dyn Bytes) -> Result<(PageSet, PageSet)> {
        let mut first = Reader::new(bytes, "1st bitmap", self.first, self.pages.div_ceil(8));
        let mut second = Reader::new(bytes, "2nd bitmap", self.second, self.pages.div_ceil(8));
        let (mut ram, mut stored) = (PageSetBuilder::default(), PageSetBuilder::default());
        let (mut bits, mut kept) = (ChunkBits::default(), ChunkBits::default());
        let end = self.base.saturating_add(self.pages);
        let mut chunk = self.base >> CHUNK_SHIFT;
        while chunk << CHUNK_SHIFT < end {
            let start = chunk << CHUNK_SHIFT;
            self.fill(&mut bits, start, &mut first)?;
            self.fill(&mut kept, start, &mut second)?;
            for (bit, kept) in bits.0.iter_mut().zip(kept.0.iter()) {
                *bit |= kept;
            }
            kept.unset(0, self.part.start.saturating_sub(start));
            kept.unset(self.part.end.saturating_sub(start), CHUNK_PAGES);
            ram.push(chunk, &bits);
            stored.push(chunk, &kept);
            chunk += 1;
            if bits.0.iter().all(|w| *w == 0) {
                let at = ((chunk << CHUNK_SHIFT) - self.base) / 8;
                let data = first.next_data(at).min(second.next_data(at));
                chunk = chunk.max((data.saturating_mul(8).saturating_add(self.base)) >> CHUNK_SHIFT);
            }
        }
        Ok((ram.finish(), stored.finish()))
    }

    /// The pages of the 1st bitmap, whatever the 2nd says.
    pub fn first_alone(&self, bytes: &dyn Bytes) -> Result<PageSet> {
        Ok(Self { second: self.first, ..self.clone() }.read(bytes)?.0)
    }

    /// The bits of the chunk that begins at page `start`.
    fn fill(&self, bits: &mut ChunkBits, start: u64, bitmap: &mut Reader<'_>) -> Result<()> {
        bits.clear();
        let skip = self.base.saturating_sub(start);
        let from = start.saturating_sub(self.base) / 8;
        let raw = bitmap.get(from, CHUNK_BYTES - skip / 8)?;
        for (word, raw) in bits.0.iter_mut().skip((skip / 64) as usize).zip(raw.chunks(8)) {
            let mut whole = [0; 8];
            for (to, byte) in whole.iter_mut().zip(raw) {
                *to = *byte;
            }
            *word = u64::from_le_bytes(whole);
        }
        bits.unset((self.base + self.pages).saturating_sub(start), CHUNK_PAGES);
        Ok(())
    }
}

/// Bits that no writer sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapFaults {
    /// Pages of the 2nd bitmap that the 1st does not have: the file holds what does not exist.
    pub outside_ram: u64,
    /// Bits of either bitmap behind the last page.
    pub behind_end: u64,
}

impl Bitmaps {
    /// Readers of all blocks of both bitmaps, which end at file offset `end`, and the length of one in bytes.
    fn readers<'a>(&self, bytes: &'a dyn Bytes, end: u64) -> (Reader<'a>, Reader<'a>, u64) {
        let whole = end.saturating_sub(self.first);
        let len = if self.second == self.first { whole } else { self.second - self.first };
        let second = Reader::new(bytes, "2nd bitmap", self.second, end.saturating_sub(self.second));
        (Reader::new(bytes, "1st bitmap", self.first, len), second, len)
    }

    /// Shows `each` the bitmaps with the file offset of each piece, as they should be: what is in the 2nd is in the 1st, and no bit is
    /// set behind the last page. Holes are left out. The bitmaps end at file offset `end`.
    pub fn mended(&self, bytes: &dyn Bytes, end: u64, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
        let (mut first, mut second, len) = self.readers(bytes, end);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < len {
            at = first.next_data(at).min(second.next_data(at));
            let n = CHUNK_BYTES.min(len.saturating_sub(at));
            one.clear();
            one.extend_from_slice(first.get(at, n)?);
            other.clear();
            other.extend_from_slice(second.get(at, n)?);
            for (i, (one, other)) in (at..).zip(one.iter_mut().zip(&mut other)) {
                let mask = self.mask(i);
                *other &= mask;
                *one = *one & mask | *other;
            }
            each(self.first.saturating_add(at), &one);
            if self.second != self.first {
                each(self.second.saturating_add(at), &other);
            }
            at += n.max(1);
        }
        Ok(())
    }

    /// Bits of byte `index` of a bitmap that stand for a page.
    const fn mask(&self, index: u64) -> u8 {
        match self.pages.saturating_sub(index.saturating_mul(8)) {
            0 => 0,
            n @ 1..8 => (1 << n) - 1,
            _ => u8::MAX,
        }
    }

    /// Counts bits that no writer sets. The bitmaps end at file offset `end`.
    pub fn faults(&self, bytes: &dyn Bytes, end: u64) -> Result<BitmapFaults> {
        let two = self.second != self.first;
        let len = if two { self.second - self.first } else { end.saturating_sub(self.first) };
        let mut first = Reader::new(bytes, "1st bitmap", self.first, len);
        let mut second =
            Reader::new(bytes, "2nd bitmap", self.second, if two { end.saturating_sub(self.second) } else { len });
        let mut faults = BitmapFaults::default();
        let mut at = 0;
        while at < len {
            at = first.next_data(at).min(second.next_data(at));
            let n = CHUNK_BYTES.min(len.saturating_sub(at));
            let (one, other) = (first.get(at, n)?, second.get(at, n)?);
            for (i, one) in (at..).zip(one) {
                let other = other.get((i - at) as usize).copied().unwrap_or_default();
                let mask = self.mask(i);
                faults.outside_ram += u64::from((other & !one & mask).count_ones());
                let behind = if two {
                    (one & !mask).count_ones() + (other & !mask).count_ones()
                } else {
                    (one & !mask).count_ones()
                };
                faults.behind_end += u64::from(behind);
            }
            at += n.max(1);
        }
        Ok(faults)
    }
}

/// Part of a bitmap in memory.
struct Reader<'a> {
    bytes: &'a dyn Bytes,
    what: &'static str,
    /// File offset of the bitmap.
    at: u64,
    /// Bytes of the bitmap.
    len: u64,
    /// Bytes of the bitmap from `start` on.
    buf: Vec<u8>,
    start: u64,
}

impl<'a> Reader<'a> {
    const fn new(bytes: &'a dyn Bytes, what: &'static str, at: u64, len: u64) -> Self {
        Self { bytes, what, at, len, buf: Vec::new(), start: 0 }
    }

    /// `len` bytes (at most [`READ`]) from byte `from` of the bitmap on; fewer at its end.
    fn get(&mut self, from: u64, len: u64) -> Result<&[u8]> {
        let len = len.min(self.len.saturating_sub(from));
        if from < self.start || from + len > self.start + self.buf.len() as u64 {
            let want = (READ as u64).min(self.len.saturating_sub(from));
            self.buf = crate::bytes::read_exact(self.bytes, self.what, self.at.saturating_add(from), want)?;
            self.start = from;
        }
        let skip = (from - self.start) as usize;
        Ok(self.buf.get(skip..skip + len as usize).unwrap_or_default())
    }

    /// The first byte of the bitmap, from `from` on, that may be other than zero.
    fn next_data(&self, from: u64) -> u64 {
        self.bytes.next_data(self.at.saturating_add(from)).saturating_sub(self.at).max(from)
    }
}

/// Whether `base` can be the page frame of bit 0.
pub(crate) fn check_base(base: Pfn, error: impl FnOnce() -> FormatError) -> Result<()> {
    if base.0.is_multiple_of(PFN_ALIGN) { Ok(()) } else { Err(error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ranges: &[(u64, u64)]) -> PageSet {
        PageSet::from_ranges(ranges.iter().map(|r| (Pfn(r.0), Pfn(r.1))))
    }

    proptest! {
        #[test]
        fn bits_become_pages(
            pages in 1u64..200_000,
            base in (0u64..2000).prop_map(|b| b * PFN_ALIGN),
            ranges in proptest::collection::vec((0u64..200_000, 0u64..40_000), 0..6),
            lone in proptest::collection::vec(0u64..200_000, 0..20),
            part in proptest::option::of((0u64..200_000, 0u64..200_000)),
        ) {
            let runs: Vec<(u64, u64)> = ranges.iter().map(|r| (r.0, r.0 + r.1)).chain(lone.iter().map(|l| (*l, l + 1))).collect();
            let len = (pages.div_ceil(8) as usize).next_multiple_of(4096);
            // Bits behind the last page are set too: a reader must not see them.
            let mut file = vec![0u8; 100 + 2 * len];
            for pfn in runs.iter().flat_map(|r| r.0..r.1.min(8 * len as u64)) {
                file[100 + len + pfn as usize / 8] |= 1 << (pfn % 8);
            }
            let part = part.map_or(0..u64::MAX, |(s, n)| base + s..base + s + n);
            let maps = Bitmaps { first: 100, second: 100 + len as u64, pages, base, part: part.clone() };
            let (ram, stored) = maps.read(&file).unwrap();
            let clip = |limit: &Range<u64>| {
                let clipped = runs.iter().map(|r| ((r.0 + base).max(limit.start), (r.1.min(pages) + base).min(limit.end)));
                set(&clipped.collect::<Vec<_>>())
            };
            prop_assert!(ram.all_runs().eq(clip(&(0..u64::MAX)).all_runs()), "a page in the 2nd bitmap exists");
            prop_assert!(stored.all_runs().eq(clip(&part).all_runs()));
        }
    }

    /// A file of one byte that says it is endless.
    struct Endless;

    impl Bytes for Endless {
        fn name(&self) -> &str {
            "endless"
        }
        fn len(&self) -> u64 {
            u64::MAX
        }
        fn read_at(&self, _offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
            buf.fill(0);
            Ok(buf.len())
        }
        fn window(&self, _offset: u64, _len: usize) -> Option<crate::Window> {
            None
        }
        fn next_data(&self, _offset: u64) -> u64 {
            u64::MAX
        }
    }

    #[test]
    fn holes_of_any_size_are_stepped_over() {
        let maps = Bitmaps { first: 0, second: 1 << 50, pages: 1 << 52, base: 0, part: 0..u64::MAX };
        let (ram, stored) = maps.read(&Endless).unwrap();
        assert!(ram.is_empty() && stored.is_empty());
    }
}
