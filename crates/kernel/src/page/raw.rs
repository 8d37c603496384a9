//! The words of a `struct page` as they are, for people.

use super::{PageRules, half, word};

/// What stands in a `struct page`. `None` is what the dump does not tell the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPage {
    /// Page flags, with section, node and zone in the upper bits.
    pub flags: u64,
    /// `mapping`; what a tail or a slab page has there is something else.
    pub mapping: u64,
    /// `_mapcount`, one less than the number of mappings; below -1 the type of a page that nobody maps.
    pub mapcount: Option<i32>,
    /// `private`: the order of a free block's first page.
    pub private: Option<u64>,
    /// `compound_head` (since Linux 7.1 `compound_info`): its lowest bit tells a tail.
    pub compound: Option<u64>,
}

impl PageRules {
    /// The words of `page`, the bytes of a `struct page`.
    #[must_use]
    #[inline]
    pub fn raw(&self, page: &[u8]) -> RawPage {
        RawPage {
            flags: word(page, self.flags),
            mapping: word(page, self.mapping),
            mapcount: self.mapcount.map(|at| half(page, at)),
            private: self.private.map(|at| word(page, at)),
            compound: self.compound_head.map(|at| word(page, at)),
        }
    }
}
