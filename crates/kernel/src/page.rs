//! What a `struct page` says about its page frame.

use crate::class::PageClass;
use coresift_format::{CHUNK_SHIFT, Pfn};

mod compile;
mod raw;
#[cfg(test)]
mod tests;

pub use raw::RawPage;

/// How a free block of the buddy allocator is told from its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buddy {
    /// `_mapcount` holds this value (since 2.6.38; exported since 3.9).
    Type(i32),
    /// A page flag (2.6.18 to 2.6.37).
    Flag(u64),
    /// Not from the page: the free lists have to be walked.
    Unknown,
}

/// Where a compound head's order stands, and how a hugetlb head is told. All but `Pre44` look into the second `struct page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compound {
    /// The order is the low byte of the second page's flags (since 6.6).
    FolioFlags { hugetlb: HugeTlb },
    /// Bytes or 16-bit words for order and destructor at these offsets from the head (4.4 to 6.5).
    Fields { order: usize, dtor: usize, wide: bool, hugetlb_dtor: Option<u16> },
    /// Order and destructor pointer in the second page's `lru` (before 4.4).
    Lru { order: usize, dtor: usize, free_huge_page: Option<u64> },
    /// Nothing tells: every page is taken by itself.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HugeTlb {
    /// The head's `_mapcount` holds this value (since 6.9).
    Type(i32),
    /// A bit of the second page's flags (6.6 to 6.8).
    Flag(u64),
    Unknown,
}

/// The rules that tell the class of a page frame, compiled once for a kernel.
#[derive(Clone, Debug)]
pub struct PageRules {
    size: usize,
    flags: usize,
    mapping: usize,
    mapcount: Option<usize>,
    private: Option<usize>,
    compound_head: Option<usize>,
    lru: u64,
    private_flag: u64,
    swapcache: u64,
    swapbacked: u64,
    /// Whether bit 0 of `mapping` is known to mean anonymous memory.
    anonymous: bool,
    slab_flag: u64,
    slab_type: Option<i32>,
    head: u64,
    poison: u64,
    offline: Option<i32>,
    unaccepted: Option<(i32, u8)>,
    buddy: Buddy,
    compound: Compound,
    orders: u64,
    plain: Option<Plain>,
    evidence: Vec<(PageClass, Option<String>)>,
}

/// What tells the class of a page that speaks for itself alone, in a `struct page` of the usual size.
#[derive(Clone, Copy, Debug)]
struct Plain {
    flags: usize,
    mapping: usize,
    mapcount: usize,
    compound_head: usize,
    /// Flags of pages that take more than a glance: slab, heads, poison.
    special: u64,
    lru: u64,
    /// Both have to be set; 0 where there is no such evidence.
    swapcache: u64,
    private: u64,
    /// All of these, and those that `special` has.
    told: u64,
    tail_mask: u64,
}

/// The words of a `struct page` that tell its class.
#[derive(Clone, Copy)]
struct Words {
    flags: u64,
    mapcount: u32,
    anonymous: bool,
    tail: bool,
}

/// Bytes of a `struct page` on nearly all 64-bit kernels.
const USUAL_SIZE: usize = 64;

impl Plain {
    #[inline]
    fn words(&self, page: &[u8; USUAL_SIZE]) -> Words {
        // The remainder changes nothing, but shows that no offset is outside.
        let (words, halves) = (page.as_chunks::<8>().0, page.as_chunks::<4>().0);
        let word = |at: usize| words.get(at / 8 % (USUAL_SIZE / 8)).map_or(0, |w| u64::from_le_bytes(*w));
        let half = |at: usize| halves.get(at / 4 % (USUAL_SIZE / 4)).map_or(0, |h| u32::from_le_bytes(*h));
        Words {
            flags: word(self.flags),
            mapcount: half(self.mapcount),
            anonymous: word(self.mapping) & 1 != 0,
            tail: word(self.compound_head) & self.tail_mask != 0,
        }
    }

    /// A number for what an ordinary page is: equal numbers are of one class. `None` for one that takes more than a glance.
    #[inline]
    fn glance(&self, page: &[u8; USUAL_SIZE]) -> Option<u8> {
        let Words { flags, mapcount, anonymous, tail } = self.words(page);
        // Page types are below -1, which is that no process maps the page.
        let special = flags & self.special != 0 || mapcount.cast_signed() < -1 || tail;
        let cache = flags & self.lru != 0 || self.swapcache != 0 && flags & self.swapcache == self.swapcache;
        let private = flags & self.private != 0;
        let kind = if anonymous { 1 } else { u8::from(cache) * (2 + u8::from(private)) };
        (!special).then_some(kind)
    }

    /// All that can tell two pages apart.
    #[inline]
    fn key(&self, page: &[u8; USUAL_SIZE]) -> (u64, u64) {
        let Words { flags, mapcount, anonymous, tail } = self.words(page);
        (flags & self.told, u64::from(mapcount) | u64::from(anonymous) << 32 | u64::from(tail) << 33)
    }
}

/// What one `struct page` says: a class, and how many page frames from this one on it speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The class.
    pub class: PageClass,
    /// log2 of the page frames of the block this page heads; 0 for a page that speaks for itself alone.
    pub order: u8,
    /// Something that cannot be, so that the page was taken for the kernel's own.
    pub odd: Option<Oddity>,
}

/// A `struct page` that contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// A free block of an order the kernel does not have, or at a page frame that no such block can begin at.
    BuddyOrder(u64),
}

impl Verdict {
    const fn page(class: PageClass) -> Self {
        Self { class, order: 0, odd: None }
    }

    const fn block(class: PageClass, order: u8) -> Self {
        Self { class, order, odd: None }
    }
}

/// The most a kernel can have: a free block is no larger than a memory section, which is a chunk of page frames here.
pub(crate) const MAX_ORDERS: u64 = CHUNK_SHIFT as u64 + 1;
/// The flags of a struct page that nobody has initialised yet, where `CONFIG_DEBUG_VM` has filled it (`page_init_poison`, since
/// 4.17): it says nothing, not even that the page is poisoned.
const UNINITIALISED: u64 = u64::MAX;
/// Order of the largest hugetlb page of x86-64: 1 GiB of 4 KiB pages.
pub(crate) const HUGETLB_ORDER: u64 = 18;

impl PageRules {
    /// How many of the `struct page`s `pages` behind the first say the same as it does, one after the other: 0 where the first does not
    /// speak for its page frame alone, or where that takes more than a glance.
    #[inline]
    #[must_use]
    pub fn alike(&self, pages: &[u8]) -> usize {
        let Some(plain) = &self.plain else { return 0 };
        let Some((first, rest)) = pages.as_chunks::<USUAL_SIZE>().0.split_first() else { return 0 };
        if let Some(kind) = plain.glance(first) {
            return rest.iter().take_while(|page| plain.glance(page) == Some(kind)).count();
        }
        let key = plain.key(first);
        let mapcount = self.mapcount.map(|at| half(first, at));
        let block = match self.buddy {
            Buddy::Type(value) => Some(value) == mapcount,
            Buddy::Flag(bit) => key.0 & bit != 0,
            Buddy::Unknown => false,
        };
        let block =
            block || key.0 & self.head != 0 || self.unaccepted.is_some_and(|(value, _)| Some(value) == mapcount);
        // All flags are those of a struct page that was never initialised.
        if block || key.0 == plain.told {
            return 0;
        }
        rest.iter().take_while(|page| plain.key(page) == key).count()
    }

    /// How many of the `struct page`s `pages` there are before the first that is poisoned.
    #[inline]
    #[must_use]
    pub fn healthy(&self, pages: &[u8]) -> usize {
        pages.chunks_exact(self.size).take_while(|page| !self.is_poisoned(page)).count()
    }

    /// Bytes of a `struct page`.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Whether free blocks can be told from their pages, without walking the free lists.
    #[must_use]
    pub fn knows_buddy(&self) -> bool {
        self.buddy != Buddy::Unknown
    }

    /// What tells each class; `None` where evidence is missing, so that its pages count as the kernel's own.
    #[must_use]
    pub fn evidence(&self) -> &[(PageClass, Option<String>)] {
        &self.evidence
    }

    /// Whether `page` (the bytes of a `struct page`) carries the hardware poison flag.
    #[inline]
    #[must_use]
    pub fn is_poisoned(&self, page: &[u8]) -> bool {
        let flags = word(page, self.flags);
        flags & self.poison != 0 && flags != UNINITIALISED
    }

    /// The class of the page frame `pfn` whose `struct page` is `page`; `next` gives the one behind it, asked for only where
    /// `page` heads a compound page. Slices shorter than [`Self::size`] read as zeros beyond their end.
    #[inline]
    pub fn classify<'a>(&self, pfn: Pfn, page: &[u8], next: impl FnOnce() -> Option<&'a [u8]>) -> Verdict {
        let flags = word(page, self.flags);
        if flags == UNINITIALISED {
            return Verdict::page(PageClass::Kernel);
        }
        if let Some(at) = self.compound_head
            && word(page, at) & 1 != 0
        {
            // A tail whose head did not speak for it: its head is kept, or belongs to no RAM.
            return Verdict::page(if flags & self.poison != 0 { PageClass::HwPoison } else { PageClass::Kernel });
        }
        let mapcount = self.mapcount.map_or(0, |at| half(page, at));
        let slab = flags & self.slab_flag != 0 || self.slab_type == Some(mapcount);
        if flags & self.poison == 0 && flags & self.head == 0 && !slab {
            return self.single(pfn, page, flags, mapcount);
        }
        let (order, hugetlb) =
            if flags & self.head != 0 { self.compound_of(pfn, mapcount, next()) } else { (0, false) };
        let poisoned = flags & self.poison != 0;
        if hugetlb {
            // A poisoned hugetlb page keeps the flag on its head, whichever of its pages is bad.
            return Verdict::block(if poisoned { PageClass::HwPoison } else { PageClass::HugeTlb }, order);
        }
        let verdict = if slab { Verdict::page(PageClass::Slab) } else { self.single(pfn, page, flags, mapcount) };
        let verdict = if verdict.order == 0 { Verdict { order, ..verdict } } else { verdict };
        // In other blocks the flag is exact: it is for whoever walks the block to ask each page.
        if poisoned && verdict.order == 0 { Verdict::page(PageClass::HwPoison) } else { verdict }
    }

    /// The class by flags, mapping and page type of a page that is neither slab nor poisoned.
    #[inline]
    fn single(&self, pfn: Pfn, page: &[u8], flags: u64, mapcount: i32) -> Verdict {
        match self.buddy {
            Buddy::Type(value) if value == mapcount => return self.free_block(pfn, page),
            Buddy::Flag(bit) if flags & bit != 0 => return self.free_block(pfn, page),
            _ => {}
        }
        if mapcount < -1 {
            if let Some((value, order)) = self.unaccepted
                && value == mapcount
                && pfn.0.trailing_zeros() >= u32::from(order)
            {
                return Verdict::block(PageClass::Unaccepted, order);
            }
            if self.offline == Some(mapcount) {
                return Verdict::page(PageClass::Offline);
            }
            // A page type that is none of these marks a kernel page: user and cache pages count their mappings there.
            return Verdict::page(PageClass::Kernel);
        }
        let anonymous = word(page, self.mapping) & 1 != 0;
        if anonymous {
            return Verdict::page(if self.anonymous { PageClass::User } else { PageClass::Kernel });
        }
        let swapcache = flags & self.swapcache != 0 && flags & self.swapbacked == self.swapbacked;
        if flags & self.lru != 0 || swapcache {
            let private = flags & self.private_flag != 0;
            return Verdict::page(if private { PageClass::PrivateCache } else { PageClass::Cache });
        }
        Verdict::page(PageClass::Kernel)
    }

    fn free_block(&self, pfn: Pfn, page: &[u8]) -> Verdict {
        let order = self.private.map_or(0, |at| word(page, at));
        if order >= self.orders || u64::from(pfn.0.trailing_zeros()) < order {
            return Verdict { odd: Some(Oddity::BuddyOrder(order)), ..Verdict::page(PageClass::Kernel) };
        }
        Verdict::block(PageClass::Free, order as u8)
    }

    /// Order and hugetlb-ness of a compound head. An order that cannot be (as the fake heads of HVO, 5.14 to 7.0, show), or one
    /// without a tail behind the head, is 0: one bad byte must not speak for more than its page.
    fn compound_of(&self, pfn: Pfn, mapcount: i32, next: Option<&[u8]>) -> (u8, bool) {
        let Some(next) = next else { return (0, false) };
        let at = |offset: usize| offset - self.size;
        let (order, hugetlb) = match self.compound {
            Compound::FolioFlags { hugetlb } => {
                let flags = word(next, self.flags);
                let huge = match hugetlb {
                    HugeTlb::Type(value) => value == mapcount,
                    HugeTlb::Flag(bit) => flags & bit != 0,
                    HugeTlb::Unknown => false,
                };
                (flags & 0xff, huge)
            }
            Compound::Fields { order, dtor, wide, hugetlb_dtor } => {
                let field = |o: usize| {
                    let byte = |i: usize| next.get(i).copied().unwrap_or(0);
                    u16::from_le_bytes([byte(at(o)), if wide { byte(at(o) + 1) } else { 0 }])
                };
                (u64::from(field(order)), hugetlb_dtor.is_some_and(|d| field(dtor) == d))
            }
            Compound::Lru { order, dtor, free_huge_page } => {
                (word(next, at(order)), free_huge_page.is_some_and(|f| word(next, at(dtor)) == f))
            }
            Compound::Unknown => (0, false),
        };
        // Only hugetlb pages can be larger than what the buddy allocator hands out.
        let most = if hugetlb { HUGETLB_ORDER } else { self.orders - 1 };
        let has_tail = self.compound_head.is_none_or(|at| word(next, at) & 1 != 0);
        let fits = has_tail && order <= most && order <= u64::from(pfn.0.trailing_zeros());
        (if fits { order as u8 } else { 0 }, hugetlb)
    }
}

/// The little-endian 64-bit word at `offset`; zero beyond the end.
#[inline]
fn word(page: &[u8], offset: usize) -> u64 {
    page.get(offset..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

/// The little-endian signed 32-bit word at `offset`; zero beyond the end.
#[inline]
fn half(page: &[u8], offset: usize) -> i32 {
    page.get(offset..).and_then(|b| b.first_chunk()).map_or(0, |b| i32::from_le_bytes(*b))
}
