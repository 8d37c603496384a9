//! The rules of a kernel, from its VMCOREINFO, and the evidence they stand on.

use super::{Buddy, Compound, HugeTlb, MAX_ORDERS, PageRules, Plain, USUAL_SIZE};
use crate::class::PageClass;
use crate::error::Result;
use crate::version::KernelVersion;
use crate::virt::VirtAddr;
use crate::vmcoreinfo::VmcoreInfo;

/// Page flag numbers that VMCOREINFO lacks on kernels of this age, from include/linux/page-flags.h of their time.
struct OldFlags {
    /// PG_slab, exported since 3.9.
    slab: u32,
    /// PG_head (with `CONFIG_PAGEFLAGS_EXTENDED`), exported as PG_head_mask since 3.17.
    head: u32,
}
const OLD_FLAGS: OldFlags = OldFlags { slab: 7, head: 14 };
/// Linux that first exported PG_slab, and what took its place since.
const SLAB_EXPORTED: KernelVersion = KernelVersion(3, 9, 0);
/// Linux from which on tails have to be told by `page.compound_head`, an offset exported since 4.6: 4.5 put `compound_mapcount`, -1
/// where nothing is mapped, over the `mapping` of the second page, so that it looks anonymous (commit 53f9263baba6). Before, tails
/// had no `mapping` of their own.
const TAILS_WITH_MAPCOUNT: KernelVersion = KernelVersion(4, 5, 0);
/// Orders of the buddy allocator where VMCOREINFO does not give them: those of x86-64, where they cannot be configured.
const ORDERS: u64 = 11;

impl PageRules {
    /// Compiles the rules from VMCOREINFO. `version` decides only what kernels of that age do not export.
    ///
    /// # Errors
    /// A value is malformed, or a key without which no `struct page` can be read is missing.
    pub fn compile(info: &VmcoreInfo, version: Option<KernelVersion>) -> Result<Self> {
        const PURPOSE: &str = "reading struct page";
        let member =
            |name: &str| -> Result<Option<usize>> { Ok(info.offset(name)?.and_then(|o| usize::try_from(o).ok())) };
        let need = |value: Option<usize>, key: &str| VmcoreInfo::require(value, key, PURPOSE);
        let flag = |name: &str| -> Result<u64> { Ok(info.bit(name)?.map_or(0, |n| 1 << n)) };
        let older_than = |v: KernelVersion| version.is_some_and(|is| is < v);

        let size = need(info.size("page")?.and_then(|s| usize::try_from(s).ok()), "SIZE(page)")?;
        let flags = need(member("page.flags")?, "OFFSET(page.flags)")?;
        let mapping = need(member("page.mapping")?, "OFFSET(page.mapping)")?;
        let fits = |o: &usize| o.checked_add(8).is_some_and(|end| end <= size);
        let fits4 = |o: &usize| o.checked_add(4).is_some_and(|end| end <= size);
        need(Some(flags).filter(fits), "an OFFSET(page.flags) inside SIZE(page)")?;
        need(Some(mapping).filter(fits), "an OFFSET(page.mapping) inside SIZE(page)")?;
        let mapcount = member("page._mapcount")?.filter(fits4);
        let private = member("page.private")?.filter(fits);
        let compound_head = match member("page.compound_head")? {
            Some(o) => Some(o),
            // The same word since 7.1.
            None => member("page.compound_info")?,
        }
        .filter(fits);
        let orders = info.length("zone.free_area")?.filter(|n| (1..=MAX_ORDERS).contains(n));
        let page_type =
            |name: &str| -> Result<Option<i32>> { Ok(info.page_type(name)?.filter(|_| mapcount.is_some())) };

        let slab_type = page_type("PAGE_SLAB_MAPCOUNT_VALUE")?;
        let slab_flag = match (info.bit("PG_slab")?, slab_type) {
            (Some(n), _) => 1 << n,
            (None, Some(_)) => 0,
            // Slab must never be taken for anything else, so this is assumed wherever nothing is exported.
            (None, None) => 1 << OLD_FLAGS.slab,
        };
        let buddy = match (page_type("PAGE_BUDDY_MAPCOUNT_VALUE")?, info.bit("PG_buddy")?) {
            (Some(value), _) if private.is_some() => Buddy::Type(value),
            (None, Some(n)) if private.is_some() => Buddy::Flag(1 << n),
            _ => Buddy::Unknown,
        };
        let unaccepted =
            page_type("PAGE_UNACCEPTED_MAPCOUNT_VALUE")?.zip(orders.and_then(|n| u8::try_from(n - 1).ok()));
        let head = match info.number("PG_head_mask")? {
            Some(mask) => mask.cast_unsigned(),
            None if older_than(KernelVersion(3, 17, 0)) => 1 << OLD_FLAGS.head,
            None => 0,
        };
        let swapcache = flag("PG_swapcache")?;
        let swapbacked = match info.bit("PG_swapbacked")? {
            Some(n) => 1 << n,
            // From 4.10 PG_swapcache shares its bit with PG_owner_priv_1, below PG_private, and means swap cache only
            // together with PG_swapbacked, which is exported since 4.17 and six bits above PG_private before.
            None => match (info.bit("PG_swapcache")?, info.bit("PG_private")?) {
                (Some(swapcache), Some(private)) if swapcache < private => 1u64.checked_shl(private + 6).unwrap_or(0),
                _ => 0,
            },
        };
        // Slab pages and tails of compound pages use the word for something else, so they must be told before; a VMCOREINFO that
        // was cut short lacks what tells them.
        let slab_is_told = info.bit("PG_slab")?.is_some() || slab_type.is_some() || older_than(SLAB_EXPORTED);
        let tails_are_told = compound_head.is_some() || older_than(TAILS_WITH_MAPCOUNT);
        let hugetlb_type = page_type("PAGE_HUGETLB_MAPCOUNT_VALUE")?;
        let compound = Self::compound(info, size, version, hugetlb_type)?;

        let mut rules = Self {
            size,
            flags,
            mapping,
            mapcount,
            private,
            compound_head,
            // Without PG_private there is no telling one kind of cache from the other.
            lru: info.bit("PG_private")?.map_or(Ok(0), |_| flag("PG_lru"))?,
            private_flag: flag("PG_private")?,
            swapcache: info.bit("PG_private")?.map_or(0, |_| swapcache),
            swapbacked,
            anonymous: slab_is_told && tails_are_told,
            slab_flag,
            slab_type,
            head,
            poison: flag("PG_hwpoison")?,
            offline: page_type("PAGE_OFFLINE_MAPCOUNT_VALUE")?,
            unaccepted,
            buddy,
            compound,
            orders: orders.unwrap_or(ORDERS),
            plain: None,
            evidence: Vec::new(),
        };
        rules.plain = rules.plain();
        rules.evidence = PageClass::ALL.iter().map(|c| (*c, rules.explain(*c))).collect();
        Ok(rules)
    }

    fn compound(
        info: &VmcoreInfo,
        size: usize,
        version: Option<KernelVersion>,
        hugetlb_type: Option<i32>,
    ) -> Result<Compound> {
        let member =
            |name: &str| -> Result<Option<usize>> { Ok(info.offset(name)?.and_then(|o| usize::try_from(o).ok())) };
        // Offsets of the second struct page, as distances from the head, must stay inside it.
        let second = |o: usize, bytes: usize| o.checked_add(size).filter(|o| o + bytes <= 2 * size);
        let hugetlb_dtor = info.number("HUGETLB_PAGE_DTOR")?.and_then(|n| u16::try_from(n).ok());
        if let Some(value) = hugetlb_type {
            return Ok(Compound::FolioFlags { hugetlb: HugeTlb::Type(value) });
        }
        if let Some(n) = info.bit("PG_hugetlb")? {
            return Ok(Compound::FolioFlags { hugetlb: HugeTlb::Flag(1 << n) });
        }
        // 6.3 to 6.5 count the offsets from the head.
        if let (Some(order), Some(dtor)) = (member("folio._folio_order")?, member("folio._folio_dtor")?)
            && (size..2 * size).contains(&order)
            && (size..2 * size).contains(&dtor)
        {
            return Ok(Compound::Fields { order, dtor, wide: false, hugetlb_dtor });
        }
        if let (Some(order), Some(dtor)) = (member("page.compound_order")?, member("page.compound_dtor")?) {
            // 16-bit words until 4.15; nothing but the version tells.
            let wide = version.is_some_and(|v| v < KernelVersion(4, 16, 0));
            if let (Some(order), Some(dtor)) = (second(order, 2), second(dtor, 2)) {
                return Ok(Compound::Fields { order, dtor, wide, hugetlb_dtor });
            }
        }
        if version.is_some_and(|v| v < KernelVersion(4, 4, 0))
            && let Some(lru) = member("page.lru")?
            && let Some(dtor) = member("list_head.next")?.and_then(|o| second(lru.checked_add(o)?, 8))
            && let Some(order) = member("list_head.prev")?.and_then(|o| second(lru.checked_add(o)?, 8))
        {
            let free_huge_page = info.symbol("free_huge_page")?.map(|a| a.0);
            return Ok(Compound::Lru { order, dtor, free_huge_page });
        }
        // From 6.6 on the order is in the flags of the second page whether or not hugetlb is configured.
        if version.is_some_and(|v| v >= KernelVersion(6, 6, 0)) {
            return Ok(Compound::FolioFlags { hugetlb: HugeTlb::Unknown });
        }
        Ok(Compound::Unknown)
    }

    /// The same rules in short, where all members are aligned words of a `struct page` of the usual size.
    fn plain(&self) -> Option<Plain> {
        let aligned = |at: usize, to: usize| at.is_multiple_of(to).then_some(at);
        let buddy = if let Buddy::Flag(bit) = self.buddy { bit } else { 0 };
        let typed = [self.slab_type, self.offline, self.unaccepted.map(|u| u.0)];
        let typed = typed.into_iter().chain([if let Buddy::Type(value) = self.buddy { Some(value) } else { None }]);
        let typed_below = typed.flatten().all(|value| value < -1);
        let special = self.slab_flag | self.head | self.poison | buddy;
        // A struct page that was never initialised has all flags, special ones among them.
        (self.size == USUAL_SIZE && typed_below && special != 0).then_some(())?;
        let swapcache = if self.swapcache == 0 { 0 } else { self.swapcache | self.swapbacked };
        Some(Plain {
            flags: aligned(self.flags, 8)?,
            mapping: aligned(self.mapping, 8)?,
            mapcount: aligned(self.mapcount?, 4)?,
            compound_head: aligned(self.compound_head.unwrap_or(0), 8)?,
            special,
            lru: self.lru,
            swapcache,
            private: self.private_flag,
            told: special | self.lru | swapcache | self.private_flag,
            tail_mask: u64::from(self.compound_head.is_some()),
        })
    }

    /// The evidence for a class, in words that name VMCOREINFO keys.
    fn explain(&self, class: PageClass) -> Option<String> {
        let typed = |key: &str, value: i32| format!("NUMBER({key}) = {value} in _mapcount");
        match class {
            PageClass::Kernel => Some("claimed by no other class".to_owned()),
            PageClass::Zero => Some("every byte of the page".to_owned()),
            PageClass::Slab => Some(match self.slab_type {
                Some(v) => typed("PAGE_SLAB_MAPCOUNT_VALUE", v),
                None => format!("page flag PG_slab ({})", self.slab_flag.trailing_zeros()),
            }),
            PageClass::Cache | PageClass::PrivateCache => (self.lru != 0).then(|| {
                let private = if class == PageClass::Cache { "no PG_private" } else { "PG_private" };
                format!(
                    "page flag PG_lru ({}) or swap cache, mapping not anonymous, {private}",
                    self.lru.trailing_zeros()
                )
            }),
            PageClass::User => self.anonymous.then(|| "bit 0 of mapping, not slab".to_owned()),
            PageClass::HugeTlb => match self.compound {
                Compound::FolioFlags { hugetlb: HugeTlb::Type(v) } => Some(typed("PAGE_HUGETLB_MAPCOUNT_VALUE", v)),
                Compound::FolioFlags { hugetlb: HugeTlb::Flag(bit) } => {
                    Some(format!("PG_hugetlb ({}) in the second page's flags", bit.trailing_zeros()))
                }
                Compound::Fields { hugetlb_dtor: Some(d), .. } => {
                    Some(format!("HUGETLB_PAGE_DTOR ({d}) as destructor"))
                }
                Compound::Lru { free_huge_page: Some(f), .. } => {
                    Some(format!("free_huge_page ({}) as destructor", VirtAddr(f)))
                }
                _ => None,
            },
            PageClass::Free => match self.buddy {
                Buddy::Type(v) => Some(typed("PAGE_BUDDY_MAPCOUNT_VALUE", v)),
                Buddy::Flag(bit) => Some(format!("page flag PG_buddy ({})", bit.trailing_zeros())),
                Buddy::Unknown => None,
            },
            PageClass::Unaccepted => self.unaccepted.map(|(v, _)| typed("PAGE_UNACCEPTED_MAPCOUNT_VALUE", v)),
            PageClass::Offline => self.offline.map(|v| typed("PAGE_OFFLINE_MAPCOUNT_VALUE", v)),
            PageClass::HwPoison => {
                (self.poison != 0).then(|| format!("page flag PG_hwpoison ({})", self.poison.trailing_zeros()))
            }
        }
    }
}
