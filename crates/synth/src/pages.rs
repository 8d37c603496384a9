//! `struct page` for each kind of population, in the bytes of a layout row.

use crate::layout::{Compound, KernelLayout, TailLink};
use crate::population::{Kind, Population};

/// `TAIL_MAPPING`: what `mapping` of a tail holds, an even poison value.
const TAIL_MAPPING: u64 = 0xdead_0000_0000_0400;
/// `LIST_POISON1`, left in `lru` of a page that was taken off a list.
const LIST_POISON: u64 = 0xdead_0000_0000_0100;
/// Index of hugetlb pages in the kernel's table of compound destructors.
const HUGETLB_DTOR: u64 = 2;

/// Addresses the struct pages refer to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Referents {
    /// Some kernel object, aligned: an address space, an anon_vma.
    pub object: u64,
    /// `free_huge_page`.
    pub free_huge_page: u64,
    /// `free_compound_page`.
    pub free_compound_page: u64,
}

/// The bytes of one `struct page`.
pub(crate) struct StructPage<'a> {
    layout: &'a KernelLayout,
    pub bytes: Vec<u8>,
}

impl<'a> StructPage<'a> {
    /// A page some driver or the kernel itself holds: one reference, not mapped, no flags.
    pub fn plain(layout: &'a KernelLayout, high_flags: u64) -> Self {
        let mut page = Self { layout, bytes: vec![0; layout.page.size as usize] };
        page.word(0, high_flags);
        page.half(layout.page.mapcount, u32::MAX);
        page.half(layout.page.refcount, 1);
        page
    }

    pub fn reserved(mut self) -> Self {
        self.flag(self.layout.flags.reserved);
        self
    }

    fn word(&mut self, at: u64, value: u64) {
        self.bytes[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn half(&mut self, at: u64, value: u32) {
        self.bytes[at as usize..at as usize + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn flag(&mut self, bit: u8) {
        self.bytes[bit as usize / 8] |= 1 << (bit % 8);
    }

    fn page_type(&mut self, value: Option<u32>) {
        if let Some(value) = value {
            self.half(self.layout.page.mapcount, value);
        }
    }

    fn refcount(&mut self, n: u32) {
        self.half(self.layout.page.refcount, n);
    }

    /// On the LRU, up to date, mapped by `mapcount` page tables.
    fn on_lru(&mut self, mapping: u64, mapcount: u32) {
        let f = self.layout.flags;
        for bit in [f.lru, f.uptodate, f.referenced] {
            self.flag(bit);
        }
        self.word(self.layout.page.mapping, mapping);
        self.half(self.layout.page.mapcount, mapcount.wrapping_sub(1));
        self.refcount(mapcount + 1);
    }
}

/// The struct page number `index` of a block of `p` whose first struct page is at `head` (a virtual address).
pub(crate) fn describe<'a>(
    layout: &'a KernelLayout,
    p: &Population,
    index: u64,
    head: u64,
    high_flags: u64,
    refs: Referents,
) -> StructPage<'a> {
    let per_page = crate::PAGE / layout.page.size;
    // From 7.1 the pages shared by the optimisation hold tails only; before, they repeat the head's page.
    let index = match p.hvo && index >= per_page {
        true if layout.tail_link() == TailLink::MaskPlusOne => 2,
        true => index % per_page,
        false => index,
    };
    if index > 0 && p.kind != Kind::Buddy && p.kind != Kind::Unaccepted && p.block() > 1 {
        return tail(layout, p, index, head, high_flags, refs);
    }
    let (f, l) = (layout.flags, layout.page);
    let mut page = StructPage::plain(layout, high_flags);
    if p.block() > 1 && p.kind != Kind::Buddy && p.kind != Kind::Unaccepted || p.kind == Kind::FakeHead {
        page.flag(f.head);
    }
    if let (true, Some(bit)) = (p.waiters, f.waiters) {
        page.flag(bit);
    }
    let object = refs.object;
    match p.kind {
        Kind::Kernel | Kind::Zero => {}
        Kind::Cache => page.on_lru(object, (head / 64 % 3) as u32),
        Kind::PrivateCache => {
            page.on_lru(object, 0);
            page.flag(f.private);
            page.flag(f.dirty);
            page.word(l.private, object + 0x40);
        }
        Kind::ShmemSwapcache => {
            page.flag(f.swapcache);
            page.flag(f.swapbacked);
            page.flag(f.uptodate);
            page.refcount(2);
        }
        Kind::Anon | Kind::Ksm => {
            page.on_lru(object | if p.kind == Kind::Ksm { 3 } else { 1 }, 1);
            page.flag(f.swapbacked);
            page.flag(f.active);
        }
        Kind::Swapcache => {
            page.on_lru(object | 1, 1);
            page.flag(f.swapbacked);
            page.flag(f.swapcache);
            page.word(l.private, 0x1234);
        }
        Kind::Slab => {
            if let Some(bit) = f.slab {
                page.flag(bit);
            }
            page.page_type(layout.types.slab);
            page.word(l.mapping, object | u64::from(p.mapping_odd));
        }
        Kind::Hugetlb => {
            if p.pool {
                page.refcount(0);
            } else {
                page.word(l.mapping, object | u64::from(p.mapping_odd));
                page.flag(f.uptodate);
            }
            page.page_type(layout.types.hugetlb);
        }
        Kind::FakeHead => page.page_type(layout.types.hugetlb),
        Kind::Buddy if index > 0 => page.refcount(0),
        Kind::Buddy => {
            page.refcount(0);
            page.word(l.private, u64::from(p.order));
            page.page_type(layout.types.buddy);
            if let Some(bit) = f.buddy {
                page.flag(bit);
            }
        }
        Kind::Unaccepted => {
            page.refcount(0);
            if index == 0 {
                page.page_type(layout.types.unaccepted);
            }
        }
        Kind::Offline => page.page_type(layout.types.offline),
        Kind::Hwpoison => page.flag(f.hwpoison),
        Kind::OwnerPriv => page.flag(f.owner_priv),
        Kind::Tail => {
            // Names itself as part of a block that is not there, with leftovers in `mapping`.
            page.word(l.compound_head, link(layout, 9, head - 2 * l.size));
            page.word(l.mapping, if p.mapping_odd && layout.since(4, 6, 0) { object | 1 } else { TAIL_MAPPING });
            page.refcount(0);
        }
        Kind::ImageCache => {
            page = page.reserved();
            page.on_lru(object, 0);
        }
    }
    page
}

/// The word by which a tail of a compound page of that order names its head.
fn link(layout: &KernelLayout, order: u32, head: u64) -> u64 {
    match layout.tail_link() {
        TailLink::FirstPage => head,
        TailLink::HeadPlusOne => head + 1,
        TailLink::MaskPlusOne => !((layout.page.size << order) - 1) | 1,
    }
}

fn tail<'a>(
    layout: &'a KernelLayout,
    p: &Population,
    index: u64,
    head: u64,
    high_flags: u64,
    refs: Referents,
) -> StructPage<'a> {
    let l = layout.page;
    let mut page = StructPage::plain(layout, high_flags);
    page.refcount(0);
    if index > 1 || !layout.since(6, 3, 0) {
        page.word(l.mapping, TAIL_MAPPING);
    } else {
        // `folio._nr_pages_mapped` and its neighbours: here an odd number, so that the word looks anonymous.
        page.word(l.mapping, 0x0000_0001_0080_0001);
    }
    if let Some(bit) = layout.flags.tail {
        page.flag(bit);
    }
    page.word(l.lru, LIST_POISON);
    page.word(l.compound_head, link(layout, p.order, head));
    if index > 1 {
        return page;
    }
    let hugetlb = p.kind == Kind::Hugetlb;
    match layout.compound {
        Compound::LruList => {
            page.word(l.lru, if hugetlb { refs.free_huge_page } else { refs.free_compound_page });
            page.word(l.lru + 8, u64::from(p.order));
        }
        Compound::Fields { dtor, order, width } => {
            let kind = if hugetlb { HUGETLB_DTOR } else { 1 };
            for (at, value) in [(dtor, kind), (order, u64::from(p.order))] {
                page.bytes[at as usize..at as usize + width as usize]
                    .copy_from_slice(&value.to_le_bytes()[..width as usize]);
            }
        }
        Compound::Flags1 { hugetlb: bit } => {
            page.bytes[0] = p.order as u8;
            if let Some(bit) = bit.filter(|_| hugetlb) {
                page.flag(bit);
            }
        }
    }
    page
}
