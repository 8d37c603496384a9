//! What each kernel version does differently, one row a version: `struct page`, flag numbers, page types, compound pages.
//!
//! Offsets and flag numbers of 5.10, 6.1, 6.12 and 7.1 are those of Debian's amd64 kernels (DWARF and VMCOREINFO of real cores, with
//! `CONFIG_MEMORY_FAILURE` added where the cloud flavour lacks it); the others follow `include/linux/mm_types.h` and
//! `include/linux/page-flags.h` of the release with a distribution's configuration (SLUB, MEMCG, THP, HUGETLB, MEMORY_FAILURE).
//! Sizes of `pglist_data` are our own: a machine with one node has no use for 170 KiB of zone lists.

/// A kernel version, ordered: `Version(2, 6, 32)`, `Version(6, 12, 0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16, pub u16);

/// Byte offsets in `struct page`.
#[derive(Clone, Copy, Debug)]
pub struct PageLayout {
    /// `sizeof(struct page)`.
    pub size: u64,
    /// `_mapcount`, which is also `page_type`.
    pub mapcount: u64,
    /// `_refcount`, called `_count` before 4.7.
    pub refcount: u64,
    /// `mapping`.
    pub mapping: u64,
    /// `private`.
    pub private: u64,
    /// `lru`, a list head; on free pages the link of the free list.
    pub lru: u64,
    /// `compound_head` (`first_page` before 4.4, `compound_info` from 7.1).
    pub compound_head: u64,
}

/// Bit numbers in `page.flags`.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// `PG_referenced`.
    pub referenced: u8,
    /// `PG_uptodate`.
    pub uptodate: u8,
    /// `PG_dirty`.
    pub dirty: u8,
    /// `PG_lru`.
    pub lru: u8,
    /// `PG_active`.
    pub active: u8,
    /// `PG_waiters`, since 4.10.
    pub waiters: Option<u8>,
    /// `PG_slab`, until 6.9.
    pub slab: Option<u8>,
    /// `PG_owner_priv_1`.
    pub owner_priv: u8,
    /// `PG_reserved`.
    pub reserved: u8,
    /// `PG_private`.
    pub private: u8,
    /// `PG_head`.
    pub head: u8,
    /// `PG_tail`, until 4.3.
    pub tail: Option<u8>,
    /// `PG_swapcache`: a bit of its own until 4.9, then `PG_owner_priv_1`.
    pub swapcache: u8,
    /// `PG_swapbacked`.
    pub swapbacked: u8,
    /// `PG_buddy`, a flag until 2.6.37.
    pub buddy: Option<u8>,
    /// `PG_hwpoison`.
    pub hwpoison: u8,
}

/// The whole 32-bit word at `_mapcount` that marks a page type; `None` where the kernel has no such type.
#[derive(Clone, Copy, Debug, Default)]
pub struct Types {
    /// First page of a free block.
    pub buddy: Option<u32>,
    /// Page a driver took offline.
    pub offline: Option<u32>,
    /// Head of a hugetlb page.
    pub hugetlb: Option<u32>,
    /// Head of a slab.
    pub slab: Option<u32>,
    /// First page of a block of memory the guest has not accepted.
    pub unaccepted: Option<u32>,
}

/// Where the order and the kind of a compound page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compound {
    /// Until 4.3: `page[1].lru.next` is the destructor's address, `page[1].lru.prev` the order.
    LruList,
    /// 4.4 to 6.5: integers of `width` bytes in `page[1]`. In 6.3 the names moved to `struct folio`, not the bytes' meaning.
    Fields {
        /// Offset of the destructor's index in `page[1]`.
        dtor: u64,
        /// Offset of the order in `page[1]`.
        order: u64,
        /// Bytes of each.
        width: u8,
    },
    /// From 6.6: the order is the low byte of `page[1].flags`; until 6.8 a bit there says hugetlb.
    Flags1 {
        /// `PG_hugetlb`, a bit of `page[1].flags`.
        hugetlb: Option<u8>,
    },
}

/// How a tail names its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailLink {
    /// Until 4.3: the plain address of the head, and `PG_tail`.
    FirstPage,
    /// From 4.4: the address of the head plus 1.
    HeadPlusOne,
    /// From 7.1, `struct page` being a power of two long: a mask that rounds the tail's address down to the head's, plus 1.
    MaskPlusOne,
}

/// Offsets in `struct zone`.
#[derive(Clone, Copy, Debug)]
pub struct ZoneLayout {
    /// `sizeof(struct zone)`.
    pub size: u64,
    /// `free_area`.
    pub free_area: u64,
    /// `vm_stat`.
    pub vm_stat: u64,
    /// `spanned_pages`.
    pub spanned: u64,
    /// `MIGRATE_TYPES`.
    pub migrate_types: u64,
}

/// One row: a kernel version.
#[derive(Clone, Copy, Debug)]
pub struct KernelLayout {
    /// Short name, as asked for in [`KernelLayout::get`].
    pub name: &'static str,
    /// Release string in utsname and `OSRELEASE`.
    pub release: &'static str,
    /// The version that decides which keys VMCOREINFO has.
    pub version: Version,
    /// `struct page`.
    pub page: PageLayout,
    /// Flag numbers.
    pub flags: Flags,
    /// Page types.
    pub types: Types,
    /// Compound pages.
    pub compound: Compound,
    /// `struct zone`.
    pub zone: ZoneLayout,
    /// `sizeof(struct mem_section)`.
    pub mem_section: u64,
}

/// 2.6.32: 56 bytes, fields in the order of their history.
const PAGE_2_6: PageLayout =
    PageLayout { size: 56, refcount: 8, mapcount: 12, private: 16, mapping: 24, lru: 40, compound_head: 16 };
/// 3.x with aligned pages for SLUB's double-word compare and exchange; `first_page` shares `private`.
const PAGE_3: PageLayout =
    PageLayout { size: 64, mapping: 8, mapcount: 24, refcount: 28, lru: 32, private: 48, compound_head: 48 };
/// 4.4: `compound_head` shares `lru`.
const PAGE_4_4: PageLayout = PageLayout { compound_head: 32, ..PAGE_3 };
/// 4.18 on: five words of unions, then `_mapcount` and `_refcount`.
const PAGE_4_18: PageLayout =
    PageLayout { size: 64, lru: 8, compound_head: 8, mapping: 24, private: 40, mapcount: 48, refcount: 52 };

/// Until 4.9. `PG_head`, `PG_tail` from the extended flags of 64-bit kernels.
const FLAGS_2_6_32: Flags = Flags {
    referenced: 2,
    uptodate: 3,
    dirty: 4,
    lru: 5,
    active: 6,
    waiters: None,
    slab: Some(7),
    owner_priv: 8,
    reserved: 10,
    private: 11,
    head: 14,
    tail: Some(15),
    swapcache: 16,
    swapbacked: 20,
    buddy: Some(19),
    hwpoison: 24,
};
const FLAGS_3_10: Flags = Flags { swapbacked: 19, buddy: None, hwpoison: 23, ..FLAGS_2_6_32 };
/// 4.4 dropped `PG_tail`, everything behind it moved down.
const FLAGS_4_4: Flags = Flags { tail: None, swapcache: 15, swapbacked: 18, hwpoison: 22, ..FLAGS_3_10 };
/// 4.10 put `PG_waiters` at 7 and let `PG_swapcache` share `PG_owner_priv_1`.
const FLAGS_4_18: Flags = Flags {
    waiters: Some(7),
    slab: Some(8),
    owner_priv: 9,
    reserved: 11,
    private: 12,
    head: 15,
    swapcache: 9,
    swapbacked: 18,
    hwpoison: 22,
    ..FLAGS_4_4
};
/// 4.20 added `PG_workingset` and moved `PG_error` behind `PG_waiters`.
const FLAGS_5_4: Flags = Flags {
    referenced: 1,
    uptodate: 2,
    dirty: 3,
    lru: 4,
    active: 5,
    waiters: Some(7),
    slab: Some(9),
    owner_priv: 10,
    reserved: 12,
    private: 13,
    head: 16,
    tail: None,
    swapcache: 10,
    swapbacked: 19,
    buddy: None,
    hwpoison: 23,
};
/// 6.6 moved `PG_writeback`, `PG_head` and `PG_waiters` into the low byte, where the order of a large folio is in `page[1]`.
const FLAGS_6_6: Flags = Flags {
    referenced: 2,
    uptodate: 3,
    dirty: 4,
    lru: 5,
    active: 8,
    waiters: Some(7),
    slab: Some(11),
    owner_priv: 12,
    reserved: 14,
    private: 15,
    head: 6,
    tail: None,
    swapcache: 12,
    swapbacked: 19,
    buddy: None,
    hwpoison: 23,
};
/// 6.10: `PG_slab` is a page type.
const FLAGS_6_10: Flags = Flags {
    slab: None,
    owner_priv: 11,
    reserved: 13,
    private: 14,
    swapcache: 11,
    swapbacked: 18,
    hwpoison: 22,
    ..FLAGS_6_6
};
/// 6.12: `PG_error` and `PG_mappedtodisk` gone, `PG_owner_2` new.
const FLAGS_6_12: Flags = Flags { owner_priv: 10, swapcache: 10, swapbacked: 17, hwpoison: 20, ..FLAGS_6_10 };
/// 6.14: `PG_dropbehind`.
const FLAGS_6_16: Flags = Flags { hwpoison: 21, ..FLAGS_6_12 };

const NO_TYPES: Types = Types { buddy: None, offline: None, hugetlb: None, slab: None, unaccepted: None };
const TYPES_6_12: Types = Types {
    buddy: Some(0xf0 << 24),
    offline: Some(0xf1 << 24),
    hugetlb: Some(0xf4 << 24),
    slab: Some(0xf5 << 24),
    unaccepted: Some(0xf7 << 24),
};

const ZONE_5_10: ZoneLayout = ZoneLayout { size: 1472, free_area: 192, vm_stat: 1280, spanned: 120, migrate_types: 5 };
const ZONE_6_1: ZoneLayout = ZoneLayout { size: 1536, free_area: 256, vm_stat: 1344, spanned: 144, migrate_types: 5 };
const ZONE_6_12: ZoneLayout = ZoneLayout { spanned: 160, ..ZONE_6_1 };

const V5_10: KernelLayout = KernelLayout {
    name: "5.10",
    release: "5.10.0-32-synth",
    version: Version(5, 10, 0),
    page: PAGE_4_18,
    flags: FLAGS_5_4,
    types: Types { buddy: Some(!0x80), offline: Some(!0x100), ..NO_TYPES },
    compound: Compound::Fields { dtor: 16, order: 17, width: 1 },
    zone: ZONE_5_10,
    mem_section: 16,
};
const V6_1: KernelLayout =
    KernelLayout { name: "6.1", release: "6.1.0-57-synth", version: Version(6, 1, 0), zone: ZONE_6_1, ..V5_10 };
const V6_6: KernelLayout = KernelLayout {
    name: "6.6",
    release: "6.6.0-synth",
    version: Version(6, 6, 0),
    flags: FLAGS_6_6,
    compound: Compound::Flags1 { hugetlb: Some(8) },
    zone: ZONE_6_12,
    ..V6_1
};
const V6_9: KernelLayout = KernelLayout {
    name: "6.9",
    release: "6.9.0-synth",
    version: Version(6, 9, 0),
    types: Types { hugetlb: Some(!0x800), ..V6_6.types },
    compound: Compound::Flags1 { hugetlb: None },
    ..V6_6
};
const V6_10: KernelLayout = KernelLayout {
    name: "6.10",
    release: "6.10.0-synth",
    version: Version(6, 10, 0),
    flags: FLAGS_6_10,
    types: Types { slab: Some(!0x1000), ..V6_9.types },
    ..V6_9
};
const V6_12: KernelLayout = KernelLayout {
    name: "6.12",
    release: "6.12.0-synth",
    version: Version(6, 12, 0),
    flags: FLAGS_6_12,
    types: TYPES_6_12,
    ..V6_10
};
const V4_18: KernelLayout = KernelLayout {
    name: "4.18",
    release: "4.18.0-synth",
    version: Version(4, 18, 0),
    flags: FLAGS_4_18,
    types: Types { buddy: Some(!0x80), ..NO_TYPES },
    ..V5_10
};

/// All rows, oldest first.
pub const LAYOUTS: [KernelLayout; 15] = [
    KernelLayout {
        name: "2.6.32",
        release: "2.6.32-synth",
        version: Version(2, 6, 32),
        page: PAGE_2_6,
        flags: FLAGS_2_6_32,
        types: NO_TYPES,
        compound: Compound::LruList,
        zone: ZoneLayout { size: 1664, free_area: 120, vm_stat: 1344, spanned: 1592, migrate_types: 5 },
        mem_section: 32,
    },
    KernelLayout {
        name: "3.10",
        release: "3.10.0-synth",
        version: Version(3, 10, 0),
        page: PAGE_3,
        flags: FLAGS_3_10,
        types: Types { buddy: Some(-128i32 as u32), ..NO_TYPES },
        compound: Compound::LruList,
        zone: ZoneLayout { size: 1920, free_area: 136, vm_stat: 1504, spanned: 1808, migrate_types: 6 },
        mem_section: 32,
    },
    KernelLayout {
        name: "4.4",
        release: "4.4.0-synth",
        version: Version(4, 4, 0),
        page: PAGE_4_4,
        flags: FLAGS_4_4,
        types: Types { buddy: Some(-128i32 as u32), ..NO_TYPES },
        compound: Compound::Fields { dtor: 40, order: 44, width: 4 },
        zone: ZoneLayout { size: 1664, free_area: 192, vm_stat: 1536, spanned: 120, migrate_types: 6 },
        mem_section: 32,
    },
    V4_18,
    KernelLayout {
        name: "5.4",
        release: "5.4.0-synth",
        version: Version(5, 4, 0),
        flags: FLAGS_5_4,
        types: Types { offline: Some(!0x100), ..V4_18.types },
        ..V4_18
    },
    V5_10,
    V6_1,
    KernelLayout { name: "6.3", release: "6.3.0-synth", version: Version(6, 3, 0), ..V6_1 },
    KernelLayout { name: "6.4", release: "6.4.0-synth", version: Version(6, 4, 0), ..V6_1 },
    V6_6,
    V6_9,
    V6_10,
    V6_12,
    KernelLayout { name: "6.16", release: "6.16.0-synth", version: Version(6, 16, 0), flags: FLAGS_6_16, ..V6_12 },
    KernelLayout {
        name: "7.1",
        release: "7.1.0-synth",
        version: Version(7, 1, 0),
        flags: FLAGS_6_16,
        zone: ZoneLayout { size: 1856, free_area: 256, vm_stat: 1536, spanned: 160, migrate_types: 6 },
        ..V6_12
    },
];

impl KernelLayout {
    /// The row of that name: `"2.6.32"`, `"6.12"` ...
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn get(name: &str) -> Self {
        *LAYOUTS.iter().find(|l| l.name == name).unwrap_or_else(|| panic!("no kernel layout is called {name}"))
    }

    /// Whether this kernel is `major.minor.patch` or newer.
    #[must_use]
    pub fn since(&self, major: u16, minor: u16, patch: u16) -> bool {
        self.version >= Version(major, minor, patch)
    }

    /// How tails name their head.
    #[must_use]
    pub fn tail_link(&self) -> TailLink {
        match self.version {
            v if v < Version(4, 4, 0) => TailLink::FirstPage,
            v if v < Version(7, 1, 0) => TailLink::HeadPlusOne,
            _ => TailLink::MaskPlusOne,
        }
    }

    /// Whether VMCOREINFO says enough to tell a hugetlb page: the destructor's symbol (3.17 to 4.3), its index (from 4.6), a flag or a type.
    #[must_use]
    pub fn hugetlb_is_known(&self) -> bool {
        self.since(4, 6, 0) || (self.since(3, 17, 0) && !self.since(4, 4, 0))
    }

    /// Whether a reader can learn the order of a compound page: everywhere but in 4.4 and 4.5, which moved it and did not say where.
    #[must_use]
    pub fn compound_order_is_known(&self) -> bool {
        !self.since(4, 4, 0) || self.since(4, 6, 0)
    }

    /// The exported mark of offline pages.
    #[must_use]
    pub fn exported_offline(&self) -> Option<u32> {
        self.types.offline.filter(|_| self.since(5, 0, 0))
    }

    /// The exported mark of unaccepted memory, which has been a page type since 6.12 and in VMCOREINFO since 6.16.
    #[must_use]
    pub fn exported_unaccepted(&self) -> Option<u32> {
        self.types.unaccepted.filter(|_| self.since(6, 16, 0))
    }
}
