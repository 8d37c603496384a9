//! Where a page was in memory, as its own bytes tell.
//!
//! An empty list head (`struct list_head`) points at itself, twice, and objects of the kernel are full of them: in the direct map its
//! value is the page's physical address, moved. Nothing else of the dump is needed, no symbol and no translation.

use coresift_format::{PageSize, Pfn};

/// The direct map of x86-64, with 4 or 5 levels of page tables, lies within these addresses; KASLR moves it within them.
const DIRECT_MAP: std::ops::Range<u64> = 0xff11_0000_0000_0000..0xffff_c900_0000_0000;
/// x86-64 puts the start of the direct map (`page_offset_base`) at a multiple of what an entry of the third level maps.
pub const DIRECT_MAP_ALIGN: u64 = 1 << 30;
/// Bytes of a word.
const WORD: usize = 8;
/// Starts of direct maps that pages spoke for, at the most: guests' and copies are few.
const STARTS: usize = 64;

/// The direct map's address of an x86-64 kernel's page `page`, where all its empty list heads agree; `None` where it has none.
#[must_use]
pub fn own_address(page: &[u8]) -> Option<u64> {
    let words = page.as_chunks::<WORD>().0;
    let mut found = None;
    for (i, pair) in words.windows(2).enumerate() {
        let [next, prev] = pair else { continue };
        if next != prev {
            continue;
        }
        let value = u64::from_le_bytes(*next);
        let start = value.wrapping_sub((i * WORD) as u64);
        if !DIRECT_MAP.contains(&value) || !start.is_multiple_of(page.len() as u64) {
            continue;
        }
        if found.is_some_and(|found| found != start) {
            return None;
        }
        found = Some(start);
    }
    found
}

/// Where the direct map begins, by the pages that tell their address.
#[derive(Debug, Default)]
pub struct DirectMapStart {
    /// Starts, and how many pages speak for each.
    votes: Vec<(u64, u64)>,
    /// Pages that were heard.
    pub heard: u64,
}

impl DirectMapStart {
    /// Hears a page at the address `address` that is taken for `pfn`, or for a page not far from it.
    pub fn hear(&mut self, address: u64, pfn: Pfn, page: PageSize) {
        let start = address.wrapping_sub(pfn.addr(page).0).wrapping_add(DIRECT_MAP_ALIGN / 2) & !(DIRECT_MAP_ALIGN - 1);
        self.heard += 1;
        if let Some((_, votes)) = self.votes.iter_mut().find(|(other, _)| *other == start) {
            *votes += 1;
        } else if self.votes.len() < STARTS {
            self.votes.push((start, 1));
        }
    }

    /// The start that most pages speak for.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        self.votes.iter().max_by_key(|(_, votes)| *votes).map(|(start, _)| *start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(heads: &[(usize, u64)]) -> Vec<u8> {
        let mut page = vec![0; 4096];
        for (at, value) in heads {
            page[*at..at + 8].copy_from_slice(&value.to_le_bytes());
            page[at + 8..at + 16].copy_from_slice(&value.to_le_bytes());
        }
        page
    }

    #[test]
    fn empty_list_heads_tell_where_the_page_is() {
        let at = 0xffff_8880_1234_5000;
        assert_eq!(own_address(&page(&[(0x40, at + 0x40), (0xff0, at + 0xff0)])), Some(at));
        assert_eq!(own_address(&page(&[(0x40, at + 0x48)])), None, "an address of something else");
        assert_eq!(
            own_address(&page(&[(0x40, at + 0x40), (0x80, at + 0x1080)])),
            None,
            "two that contradict each other"
        );
        assert_eq!(own_address(&page(&[(0x40, 0xffff_ffff_8234_5040)])), None, "the kernel's image is elsewhere");
        assert_eq!(own_address(&page(&[(0x40, 0xffff_c900_0000_1040)])), None, "and so is vmalloc");
        assert_eq!(own_address(&[]), None);
    }

    #[test]
    fn the_start_is_what_most_pages_say_even_if_all_are_taken_for_their_neighbours() {
        let mut start = DirectMapStart::default();
        let base = 0xffff_9d40_c000_0000;
        for pfn in 0..600_000 {
            start.hear(base + (pfn << 12), Pfn(pfn + 1), PageSize::K4);
        }
        start.hear(0xffff_8880_0000_0000, Pfn(70), PageSize::K4);
        assert_eq!((start.start(), start.heard), (Some(base), 600_001));
    }
}
