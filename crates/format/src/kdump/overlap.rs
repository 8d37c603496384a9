//! Pages whose data overlap in the file without being the same.

use super::file::KdumpFile;
use crate::{Pfn, PhysicalMemory, Result};

/// Places of data remembered at a time (16 MiB). A file with more is gone through in ranges of file offsets, one after the other.
const PLACES: usize = 1 << 20;
/// Ranges of equal length a file is counted in before it is gone through.
const BUCKETS: u64 = 1 << 14;
/// A place is a file offset, and a size above a rank: 19 bits for the largest page there is, 256 KiB.
const SIZE_BITS: u32 = 19;
const SIZE_SHIFT: u32 = 64 - SIZE_BITS;
const RANK_MASK: u64 = (1 << SIZE_SHIFT) - 1;
/// Overlaps remembered one by one.
const NAMED: usize = 16;

/// The data of two pages that overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The page whose data begin first, and where they do, in bytes from the start of the file.
    pub first: (Pfn, u64),
    /// The other.
    pub second: (Pfn, u64),
}

/// What was found of the data's places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlaps {
    /// Places of data in the file.
    pub places: u64,
    /// Pages that share the place of another: the zero page, or equal pages.
    pub shared: u64,
    /// Places that overlap the one before.
    pub overlapping: u64,
    /// The first of them.
    pub first: Vec<Overlap>,
    /// Bytes from the first page's data to the end of the last page's that belong to no page.
    pub unused: u64,
    /// Ranges of the file in which more places begin than can be told apart in bounded memory. No writer makes such a file.
    pub crowded: u64,
}

impl KdumpFile {
    /// Looks for pages whose data overlap. Reads all descriptors once, and once more for each million of pages; memory: 16 MiB.
    ///
    /// # Errors
    /// The operating system's.
    pub fn overlaps(&self) -> Result<Overlaps> {
        let width = (self.bytes.len() / BUCKETS).max(1).next_multiple_of(self.page_size().bytes() as u64);
        let mut counts = vec![0u64; (self.bytes.len() / width + 1) as usize];
        let mut described = 0u64;
        let mut last = None;
        self.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
            if page.state.is_ok() {
                described += 1;
                // Neighbours that are zero share a place: they would make a bucket look full.
                if last != Some(page.desc.offset)
                    && let Some(count) = counts.get_mut((page.desc.offset / width) as usize)
                {
                    *count += 1;
                }
                last = Some(page.desc.offset);
            }
        })?;
        let mut found = Overlaps::default();
        let mut carry = None;
        let mut from = 0;
        while from < counts.len() {
            let mut sum = 0;
            let fits = |count: &&u64| {
                sum += **count;
                sum < PLACES as u64
            };
            let buckets = counts.get(from..).unwrap_or_default().iter().take_while(fits).count().max(1);
            let (start, end) = (from as u64 * width, (from + buckets) as u64 * width);
            self.overlaps_between(start, end, &mut carry, &mut found)?;
            from += buckets;
        }
        found.shared = described.saturating_sub(found.places);
        Ok(found)
    }

    /// The same for data that begin at `start..end`; `carry` is the place before that reaches furthest: rank, offset and end.
    fn overlaps_between(
        &self,
        start: u64,
        end: u64,
        carry: &mut Option<(u64, u64, u64)>,
        found: &mut Overlaps,
    ) -> Result<()> {
        let mut places: Vec<(u64, u64)> = Vec::new();
        let mut full = false;
        let compact = |places: &mut Vec<(u64, u64)>| {
            // The size stands above the rank, so that equal places are neighbours and the lowest rank comes first.
            places.sort_unstable();
            places.dedup_by_key(|place| (place.0, place.1 >> SIZE_SHIFT));
        };
        self.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
            if page.state.is_err() || !(start..end).contains(&page.desc.offset) || full {
                return;
            }
            let rank = page.rank & RANK_MASK;
            let place = (page.desc.offset, u64::from(page.desc.size) << SIZE_SHIFT | rank);
            if places.last().is_some_and(|last| last.0 == place.0 && last.1 >> SIZE_SHIFT == place.1 >> SIZE_SHIFT) {
                return;
            }
            places.push(place);
            if places.len() >= PLACES {
                compact(&mut places);
                full = places.len() >= PLACES - PLACES / 8;
            }
        })?;
        compact(&mut places);
        found.crowded += u64::from(full);
        found.places += places.len() as u64;
        for (offset, packed) in places {
            let (rank, size) = (packed & RANK_MASK, packed >> SIZE_SHIFT);
            let reach = offset.saturating_add(size);
            match *carry {
                Some((before, at, until)) if until > offset => {
                    found.overlapping += 1;
                    if found.first.len() < NAMED {
                        let pfn = |rank| self.stored.page_of_rank(rank).unwrap_or_default();
                        found.first.push(Overlap { first: (pfn(before), at), second: (pfn(rank), offset) });
                    }
                }
                Some((_, _, until)) => found.unused += offset - until,
                None => {}
            }
            if carry.is_none_or(|(_, _, until)| reach > until) {
                *carry = Some((rank, offset, reach));
            }
        }
        Ok(())
    }
}
