//! Words of a `struct page` that tell no class.

use crate::kernel::Kernel;
use crate::symbols::{Symbols, Wanted};

const PURPOSE: &str = "reading struct page";

/// What is asked for here by name.
pub(super) const WANTED: Wanted = Wanted {
    members: &[
        ("page", "index"),
        ("page", "__folio_index"),
        ("page", "_refcount"),
        ("page", "slab_cache"),
        ("slab", "slab_cache"),
        ("page", "memcg_data"),
        ("page", "mem_cgroup"),
        ("folio", "_entire_mapcount"),
        ("page", "compound_mapcount"),
    ],
    enumerators: &["PG_double_map"],
    ..Wanted::NONE
};

/// `page.index`, in a union by another name since Linux 6.16.
const INDEX: &[(&str, &str)] = &[("page", "index"), ("page", "__folio_index")];
/// The slab cache; slabs have a type of their own since Linux 5.17.
const SLAB_CACHE: &[(&str, &str)] = &[("slab", "slab_cache"), ("page", "slab_cache")];
/// The cgroup that is charged: since Linux 5.11 with flags in its lowest bits.
const MEMCG: &[(&str, &str)] = &[("page", "memcg_data"), ("page", "mem_cgroup")];

/// What `page.mapping` is by its two lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MappingKind {
    /// `PAGE_MAPPING_ANON`.
    Anon,
    /// `PAGE_MAPPING_KSM`.
    Ksm,
    /// `PAGE_MAPPING_MOVABLE`, until Linux 6.16.
    Movable,
    /// The `struct address_space` at this address.
    File(u64),
}

impl MappingKind {
    /// Of the word `mapping`; `None` for no mapping.
    #[must_use]
    pub const fn of(mapping: u64) -> Option<Self> {
        match mapping & 3 {
            1 => Some(Self::Anon),
            2 => Some(Self::Movable),
            3 => Some(Self::Ksm),
            _ if mapping == 0 => None,
            _ => Some(Self::File(mapping)),
        }
    }
}

/// Where words of a `struct page` are, in bytes; `None` for what the kernel does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameWords {
    refcount: Option<usize>,
    index: Option<usize>,
    slab_cache: Option<usize>,
    memcg: Option<usize>,
    /// `_mapcount` of a compound page as a whole; behind the head's `struct page`, in that of the second page.
    entire_mapcount: Option<usize>,
    /// Flag in the second page's flags: of a huge page that is also mapped in parts, each part counts once too often (4.5 to 6.1).
    double_map: u64,
    /// Bytes of a `struct page`.
    size: usize,
    flags: usize,
}

impl FrameWords {
    /// Those of `kernel`, by the `symbols` that [`WANTED`] found, else by VMCOREINFO.
    pub(super) fn new(symbols: Option<&Symbols>, kernel: &Kernel) -> Self {
        let size = kernel.rules.size();
        let usize_of = |n: u64| usize::try_from(n).ok();
        let first = |names: &[(&'static str, &'static str)]| symbols?.first_offset(names).and_then(usize_of);
        let exported = |name: &str| kernel.info.offset(name).ok().flatten().and_then(usize_of);
        let within = |bytes: usize| move |at: &usize| at.checked_add(bytes).is_some_and(|end| end <= size);
        // Between the two there is but one word, and that is the index (all kernels since 2.6.16).
        let between = || {
            let index = exported("page.mapping")?.checked_add(8)?;
            (exported("page.private")? == index.checked_add(8)?).then_some(index)
        };
        let in_second = |at: &usize| *at >= size && *at + 4 <= 2 * size;
        let entire = first(&[("folio", "_entire_mapcount")]).filter(in_second);
        let old_entire = || first(&[("page", "compound_mapcount")]).map(|at| at + size).filter(in_second);
        let double_map = symbols.and_then(|s| s.enumerator("PG_double_map", PURPOSE).ok()).filter(|n| *n < 64);
        Self {
            refcount: exported("page._refcount").or_else(|| first(&[("page", "_refcount")])).filter(within(4)),
            index: first(INDEX).or_else(between).filter(within(8)),
            slab_cache: first(SLAB_CACHE).filter(within(8)),
            memcg: first(MEMCG).filter(within(8)),
            entire_mapcount: entire.or_else(old_entire),
            double_map: double_map.map_or(0, |bit| 1 << bit),
            size,
            flags: exported("page.flags").unwrap_or(0),
        }
    }

    /// References to the page whose `struct page` is `page`.
    #[inline]
    #[must_use]
    pub fn refcount(&self, page: &[u8]) -> Option<i32> {
        half(page, self.refcount?)
    }

    /// Its place in its file or mapping, in pages.
    #[inline]
    #[must_use]
    pub fn index(&self, page: &[u8]) -> Option<u64> {
        word(page, self.index?)
    }

    /// The address of the slab cache that the slab's first page `page` is of.
    #[inline]
    #[must_use]
    pub fn slab_cache(&self, page: &[u8]) -> Option<u64> {
        word(page, self.slab_cache?)
    }

    /// The word of the cgroup that is charged, for [`super::Cgroups`].
    #[inline]
    #[must_use]
    pub fn memcg(&self, page: &[u8]) -> Option<u64> {
        word(page, self.memcg?)
    }

    /// What is added to the mapping count of each page of the compound page whose head and second `struct page` are `pair`: how often it is
    /// mapped as a whole. `None` where the kernel does not tell.
    #[must_use]
    pub fn entire_mapcount(&self, pair: &[u8]) -> Option<i32> {
        let entire = half(pair, self.entire_mapcount?)?.wrapping_add(1);
        let doubly = word(pair, self.size + self.flags)? & self.double_map != 0;
        Some(entire.wrapping_sub(i32::from(doubly)))
    }

    /// What cannot be told, by the names of columns of people's tables.
    pub fn unknown(&self) -> impl Iterator<Item = &'static str> {
        let words = [
            ("reference counts", self.refcount.is_none()),
            ("index", self.index.is_none()),
            ("mapping counts of compound pages", self.entire_mapcount.is_none()),
        ];
        words.into_iter().filter_map(|(name, unknown)| unknown.then_some(name))
    }
}

#[inline]
fn word(page: &[u8], at: usize) -> Option<u64> {
    page.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

#[inline]
fn half(page: &[u8], at: usize) -> Option<i32> {
    page.get(at..)?.first_chunk().map(|b| i32::from_le_bytes(*b))
}
