//! Pages of the same content, stored once: descriptors may share an offset.
//!
//! ```text
//! worker, any order    tag ──> in this batch before? ──> in Known? ──yes, and every byte equal──> the first one's place
//!                                                           ^
//! writer, in order     tags of stored pages ──> Recent ──seen often──> the bytes, as the file now holds them
//! ```
//!
//! In real kernels a few contents make up nearly all repetitions (slab poison, empty tables, one object a page): of 63,311 in a
//! 6.12 core of 8 GiB one content has 18,694 and 512 of the 1704 have 96 %. So a small table of whole pages finds them, nothing is
//! read twice, and what is compared is what a reader of the file will get.
//!
//! What a batch finds depends on its number alone: of `Known` it sees what batches at least [`LAG`] before it left, and those are
//! all written by then, for no more than [`LAG`] batches are under way.

use crate::worker::{Batch, Stored};
use coresift_format::PageSize;
use coresift_format::codec::{Codec, Decompressor};
use std::sync::OnceLock;

/// How many batches after the batch that wrote it a page can be shared; also the most batches that can be under way, so that 64
/// threads have two each. With 2 instead 8.7 % of the pages of the core above would be shared, with 64 8.4, with 128 8.1.
pub const LAG: u64 = 128;
/// Bytes of pages in the table: 256 of 4 KiB. Half as many find 7.8 % of that core's pages, twice as many 8.8.
const KNOWN_BYTES: usize = 1 << 20;
/// Slots for each page of the table, so that few contents lose theirs to another.
const SLOTS_A_PAGE: usize = 8;
/// Tags that are remembered: 4096 find as many pages as 262,144.
const RECENT: usize = 4096;
/// How often a content has to be seen to get into the table when that is empty, and how much more often when it is nearly full:
/// contents that come twice must not keep out those that come a thousand times.
const SIGHTINGS: (usize, usize) = (2, 16);

/// Where a page is stored that others may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// File offset.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// Codec bit, 0 for a raw page.
    pub flags: u32,
}

/// A page of the table.
struct Entry {
    tag: u64,
    /// The batch that stored it.
    batch: u64,
    place: Place,
    bytes: Box<[u8]>,
}

/// Contents that were stored and are worth sharing. Filled in order by whoever writes, read by all; nothing is ever replaced.
pub struct Known {
    slots: Box<[OnceLock<Entry>]>,
    most: usize,
}

impl Known {
    /// An empty table for pages of this size.
    pub fn new(page: PageSize) -> Self {
        let most = (KNOWN_BYTES / page.bytes()).max(1);
        Self { slots: std::iter::repeat_with(OnceLock::new).take(most * SLOTS_A_PAGE).collect(), most }
    }

    fn slot(&self, tag: u64) -> Option<&OnceLock<Entry>> {
        self.slots.get((tag >> 32) as usize % self.slots.len())
    }

    /// Where the content of `page`, whose tag is `tag`, is stored already, as batch number `batch` sees it.
    pub fn find(&self, tag: u64, page: &[u8], batch: u64) -> Option<Place> {
        let entry = self.slot(tag)?.get()?;
        (entry.tag == tag && entry.batch + LAG <= batch && *entry.bytes == *page).then_some(entry.place)
    }
}

/// Decides, batch by batch in order, what gets into the table.
pub struct Recent {
    /// A tag's upper bits, and how often it was seen in its last eight: the last that came, by its lowest bits.
    tags: Box<[u64]>,
    used: usize,
    decompressor: Decompressor,
    page: PageSize,
}

/// The bits of an entry of [`Recent`] that count.
const COUNT: u64 = 0xff;

impl Recent {
    /// Nothing seen yet.
    pub fn new(page: PageSize) -> Self {
        Self { tags: vec![0; RECENT].into(), used: 0, decompressor: Decompressor::new(), page }
    }

    /// Learns from batch number `number`, whose data are at file offset `start`.
    pub fn learn(&mut self, batch: &Batch, number: u64, start: u64, known: &Known) {
        for (page, tag) in batch.pages.iter().zip(&batch.tags) {
            let Stored::Data { at, size, flags } = *page else { continue };
            let (Some(recent), Some(slot)) = (self.tags.get_mut(*tag as usize % RECENT), known.slot(*tag)) else {
                continue;
            };
            let count =
                if *recent & !COUNT == tag & !COUNT { (*recent & COUNT).saturating_add(1).min(COUNT) } else { 1 };
            *recent = tag & !COUNT | count;
            let enough = SIGHTINGS.0 + SIGHTINGS.1 * self.used / known.most;
            if count < enough as u64 || self.used == known.most || slot.get().is_some() {
                continue;
            }
            let stored = batch.stored().get(at as usize..at as usize + size as usize).unwrap_or_default();
            let mut bytes = vec![0; self.page.bytes()].into_boxed_slice();
            // The file's own bytes, read back as a reader will: what is compared with later is what is shared.
            let codec = Codec::from_flags(flags).unwrap_or(Codec::None);
            if self.decompressor.decompress(codec, stored, &mut bytes).is_ok() {
                let place = Place { offset: start + u64::from(at), size, flags };
                self.used += usize::from(slot.set(Entry { tag: *tag, batch: number, place, bytes }).is_ok());
            }
        }
    }
}

/// The pages of one batch by their tags.
pub struct InBatch {
    /// A page's place in the batch plus 1; 0: none.
    last: [u16; 256],
}

impl InBatch {
    /// No page yet.
    pub const fn new() -> Self {
        Self { last: [0; 256] }
    }

    /// How the last page of `batch` is stored that has this tag and is `equal`, which is asked with its place in the batch, to the
    /// page that is the batch's next.
    pub fn find(&mut self, tag: u64, batch: &Batch, equal: impl Fn(usize, Stored) -> bool) -> Option<Stored> {
        let last = self.last.get_mut((tag >> 56) as usize)?;
        let next = u16::try_from(batch.pages.len() + 1).unwrap_or(0);
        let index = usize::from(std::mem::replace(last, next)).checked_sub(1)?;
        let stored = batch.pages.get(index).copied()?;
        (batch.tags.get(index) == Some(&tag) && equal(index, stored)).then_some(stored)
    }
}

/// Words of a page that are looked at first: one in each eighth, at different places. With twice as many the same pages are shared,
/// and each is a cache line: 8 take 1.5 to 2.3 % of a copy without a codec, 16 take 2.3 to 2.8.
const SAMPLES: usize = 8;
/// A page in which this many samples repeat the one before is looked at whole: sparse and poisoned pages differ in few words, and
/// one page in six would be taken for another.
const ALIKE: usize = 4;
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number that pages of the same content share and others hardly ever do.
pub fn tag(page: &[u8]) -> u64 {
    let words = page.as_chunks::<8>().0;
    let part = (words.len() / SAMPLES).max(1);
    let (mut sum, mut alike, mut last) = (0u64, 0, 0);
    for (i, words) in words.chunks_exact(part).take(SAMPLES).enumerate() {
        let word = words.get(i * 5 % part).map_or(0, |word| u64::from_le_bytes(*word));
        sum = sum.wrapping_add(word.wrapping_mul(MIX.rotate_left(4 * i as u32) | 1));
        alike += usize::from(word == last);
        last = word;
    }
    finish(if alike < ALIKE { sum } else { sum ^ whole(page) })
}

/// Of all words, and where they stand: sums, and sums of the sums, of eight columns.
fn whole(page: &[u8]) -> u64 {
    let (mut sums, mut weighted) = ([0u64; 8], [0u64; 8]);
    for block in page.as_chunks::<64>().0 {
        for ((sum, weighted), word) in sums.iter_mut().zip(&mut weighted).zip(block.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            *weighted = weighted.wrapping_add(*sum);
        }
    }
    sums.iter().chain(&weighted).fold(0, |all, sum| (all.rotate_left(23) ^ sum).wrapping_mul(MIX))
}

/// Spreads every bit over the word.
const fn finish(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(MIX);
    (word ^ word >> 29).wrapping_mul(MIX) ^ word >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn page(fill: u8) -> Vec<u8> {
        vec![fill; 4096]
    }

    /// A batch that stores these pages raw.
    fn batch(pages: &[Vec<u8>]) -> Batch {
        let mut batch = Batch::default();
        for bytes in pages {
            batch.pages.push(Stored::Data { at: batch.used as u32, size: bytes.len() as u32, flags: 0 });
            batch.tags.push(tag(bytes));
            batch.data.extend_from_slice(bytes);
            batch.used += bytes.len();
        }
        batch
    }

    #[test]
    fn pages_that_differ_in_one_word_have_different_tags() {
        let mut tags = HashSet::new();
        for fill in [0, 0x5a, 0xcc, 0xff] {
            for word in 0..512 {
                for value in [1u64, 0xffff_8880_0000_1000] {
                    let mut page = page(fill);
                    page[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
                    assert!(tags.insert(tag(&page)), "{fill:#x}, word {word}, {value:#x}");
                }
            }
        }
    }

    #[test]
    fn a_content_seen_twice_is_shared_after_the_lag_and_only_if_every_byte_is_equal() {
        let known = Known::new(PageSize::new(4096).unwrap());
        let mut recent = Recent::new(PageSize::new(4096).unwrap());
        let (same, tagged) = (page(0x5a), tag(&page(0x5a)));
        recent.learn(&batch(std::slice::from_ref(&same)), 0, 8192, &known);
        assert_eq!(known.find(tagged, &same, 10 * LAG), None, "once");
        recent.learn(&batch(&[page(1), same.clone()]), 7, 100_000, &known);
        assert_eq!(known.find(tagged, &same, 7 + LAG - 1), None);
        let place = Place { offset: 100_000 + 4096, size: 4096, flags: 0 };
        assert_eq!(known.find(tagged, &same, 7 + LAG), Some(place));
        let mut other = same.clone();
        other[77] = 0;
        assert_eq!(known.find(tagged, &other, 7 + LAG), None, "a tag is no proof");
        recent.learn(&batch(std::slice::from_ref(&same)), 8, 500_000, &known);
        assert_eq!(known.find(tagged, &same, 10 * LAG), Some(place), "the first place stays");
    }

    #[test]
    fn the_table_takes_no_more_pages_than_it_has_room_for() {
        let size = PageSize::new(65536).unwrap();
        let known = Known::new(size);
        let mut recent = Recent::new(size);
        let pages: Vec<Vec<u8>> = (1..=255u8).map(|i| vec![i; 65536]).collect();
        for number in 0..40 {
            recent.learn(&batch(&pages), number, 0, &known);
        }
        let taken = known.slots.iter().filter(|slot| slot.get().is_some()).count();
        assert_eq!(taken, KNOWN_BYTES / 65536);
    }
}
