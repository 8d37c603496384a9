//! Blocks of page frames that one `struct page` speaks for: compound pages, and free blocks.

use super::Dump;
use super::pieces::Pieces;
use super::pointed::{Behind, Pointed};
use coresift_format::Pfn;
use coresift_kernel::PageClass;

/// Order of the largest block: a hugetlb page of 1 GiB of 4 KiB pages.
const LARGEST: u32 = 18;

/// A block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub head: u64,
    pub end: u64,
    pub order: u8,
    pub class: PageClass,
    /// What is behind the head's pointers.
    pub behind: Behind,
    /// What is added to the mapping count of each of its pages; `None` where the kernel does not tell.
    pub entire: Option<i32>,
}

impl Block {
    /// The block that the page frame `head` begins, by its `struct page` and the one behind it, if it begins one.
    #[inline]
    pub fn of(dump: &Dump, pointed: &mut Pointed<'_>, head: u64, pair: &[u8]) -> Option<Self> {
        let size = dump.kernel.rules.size();
        let page = pair.get(..size).unwrap_or_default();
        let verdict = dump.kernel.rules.classify(Pfn(head), page, || pair.get(size..2 * size));
        if verdict.order == 0 {
            return None;
        }
        Some(Self {
            head,
            end: head + (1 << verdict.order),
            order: verdict.order,
            class: verdict.class,
            behind: pointed.behind(page, verdict.class),
            entire: dump.layout.words.entire_mapcount(pair),
        })
    }

    /// The largest block that began before `pfn` and covers it. Blocks are aligned to their size, so that there is one place for the head of
    /// each order.
    pub fn around(dump: &Dump, pointed: &mut Pointed<'_>, pieces: &mut Pieces<'_>, pfn: u64) -> Option<Self> {
        (1..=LARGEST).rev().find_map(|order| {
            let head = pfn >> order << order;
            if head == pfn {
                return None;
            }
            let map = dump.kernel.memmap.page(Pfn(head)).filter(|_| dump.input.memory().ram().contains(Pfn(head)))?;
            Self::of(dump, pointed, head, pieces.pair(map)?).filter(|block| block.end > pfn)
        })
    }
}
