use super::*;
use crate::version::KernelVersion;
use crate::vmcoreinfo::VmcoreInfo;
use proptest::prelude::*;

/// Keys of a 6.1 kernel.
const V6_1: &str = "SIZE(page)=64\nOFFSET(page.flags)=0\nOFFSET(page.mapping)=24\nOFFSET(page._mapcount)=48\n\
    OFFSET(page.private)=40\nOFFSET(page.compound_head)=8\nOFFSET(page.compound_dtor)=16\nOFFSET(page.compound_order)=17\n\
    LENGTH(zone.free_area)=11\nNUMBER(PG_lru)=4\nNUMBER(PG_private)=13\nNUMBER(PG_swapcache)=10\nNUMBER(PG_swapbacked)=19\n\
    NUMBER(PG_slab)=9\nNUMBER(PG_hwpoison)=23\nNUMBER(PG_head_mask)=65536\nNUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129\n\
    NUMBER(HUGETLB_PAGE_DTOR)=2\nNUMBER(PAGE_OFFLINE_MAPCOUNT_VALUE)=-257\n";
/// Keys of a 6.16 kernel.
const V6_16: &str = "SIZE(page)=64\nOFFSET(page.flags)=0\nOFFSET(page.mapping)=24\nOFFSET(page._mapcount)=48\n\
    OFFSET(page.private)=40\nOFFSET(page.compound_head)=8\nLENGTH(zone.free_area)=11\nNUMBER(PG_lru)=5\nNUMBER(PG_private)=14\n\
    NUMBER(PG_swapcache)=10\nNUMBER(PG_swapbacked)=17\nNUMBER(PG_hwpoison)=21\nNUMBER(PG_head_mask)=64\n\
    NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)=-184549376\nNUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-268435456\n\
    NUMBER(PAGE_HUGETLB_MAPCOUNT_VALUE)=-201326592\nNUMBER(PAGE_OFFLINE_MAPCOUNT_VALUE)=-251658240\n\
    NUMBER(PAGE_UNACCEPTED_MAPCOUNT_VALUE)=-150994944\n";

fn rules(text: &str, version: KernelVersion) -> PageRules {
    PageRules::compile(&VmcoreInfo::parse(text.as_bytes()), Some(version)).unwrap()
}

fn v6_1() -> PageRules {
    rules(V6_1, KernelVersion(6, 1, 0))
}

fn v6_16() -> PageRules {
    rules(V6_16, KernelVersion(6, 16, 0))
}

/// `struct page` with these flag bits, mapping, and `_mapcount`.
fn page(bits: &[u32], mapping: u64, mapcount: i32) -> [u8; 64] {
    let mut page = [0; 64];
    let flags: u64 = bits.iter().map(|bit| 1u64 << bit).sum();
    page[..8].copy_from_slice(&flags.to_le_bytes());
    page[24..32].copy_from_slice(&mapping.to_le_bytes());
    page[48..52].copy_from_slice(&mapcount.to_le_bytes());
    page
}

fn class(rules: &PageRules, page: &[u8]) -> PageClass {
    rules.classify(Pfn(0x1000), page, || None).class
}

const OBJECT: u64 = 0xffff_8880_0123_4560;

#[test]
fn flags_mapping_and_type_tell_the_class_in_this_order() {
    let old = v6_1();
    let cases: [(&str, [u8; 64], PageClass); 17] = [
        ("nothing", page(&[], 0, -1), PageClass::Kernel),
        ("on the LRU", page(&[4], OBJECT, 0), PageClass::Cache),
        ("on the LRU without a mapping", page(&[4], 0, -1), PageClass::Cache),
        ("with private data", page(&[4, 13], OBJECT, 0), PageClass::PrivateCache),
        ("private data off the LRU", page(&[13], OBJECT, 0), PageClass::Kernel),
        ("anonymous", page(&[4, 19], OBJECT | 1, 0), PageClass::User),
        ("anonymous off the LRU", page(&[], OBJECT | 1, 0), PageClass::User),
        ("KSM", page(&[4], OBJECT | 3, 0), PageClass::User),
        ("movable kernel page", page(&[], OBJECT | 2, -1), PageClass::Kernel),
        ("anonymous in the swap cache", page(&[4, 10, 19], OBJECT | 1, -1), PageClass::User),
        ("shmem in the swap cache", page(&[10, 19], 0, -1), PageClass::Cache),
        ("PG_owner_priv_1, which is no swap cache", page(&[10], 0, -1), PageClass::Kernel),
        ("slab", page(&[9], 0, -1), PageClass::Slab),
        ("C03: slab with an odd word at mapping", page(&[9], OBJECT | 1, -1), PageClass::Slab),
        ("poisoned, whatever else", page(&[23, 4], OBJECT | 1, 0), PageClass::HwPoison),
        ("offline", page(&[], 0, -257), PageClass::Offline),
        ("another type, such as a page table", page(&[], OBJECT | 1, -1025), PageClass::Kernel),
    ];
    for (what, bytes, expected) in cases {
        assert_eq!(class(&old, &bytes), expected, "6.1: {what}");
    }
    let new = v6_16();
    let typed = |top: u32| page(&[], OBJECT | 1, ((top << 24) | 0x12) as i32);
    assert_eq!(class(&new, &page(&[], OBJECT | 1, (0xf5u32 << 24) as i32)), PageClass::Slab, "C02");
    assert_eq!(class(&new, &page(&[], 0, (0xf1u32 << 24) as i32)), PageClass::Offline);
    assert_eq!(class(&new, &typed(0xf2)), PageClass::Kernel, "a page table with a count below its type");
}

#[test]
fn a_tail_is_never_taken_for_what_its_words_look_like() {
    for rules in [v6_1(), v6_16()] {
        let mut tail = page(&[4], OBJECT | 1, 0);
        tail[8..16].copy_from_slice(&0xffff_ea00_0000_4001u64.to_le_bytes());
        assert_eq!(class(&rules, &tail), PageClass::Kernel);
        let poison = rules.poison;
        tail[..8].copy_from_slice(&poison.to_le_bytes());
        assert_eq!(class(&rules, &tail), PageClass::HwPoison, "but poison is poison");
    }
}

#[test]
fn a_struct_page_that_was_never_initialised_says_nothing() {
    let filled = [0xff; 64];
    for rules in [v6_1(), v6_16(), rules(&V6_1.replace("OFFSET(page.compound_head)=8\n", ""), KernelVersion(6, 1, 0))] {
        assert_eq!(rules.classify(Pfn(0), &filled, || Some(&filled)), Verdict::page(PageClass::Kernel));
        assert!(!rules.is_poisoned(&filled));
    }
}

/// A head on 6.1 whose second page says `order` and `dtor`.
fn head(rules: &PageRules, pfn: u64, bits: &[u32], mapping: u64, order: u8, dtor: u8) -> Verdict {
    let head = page(&[&[16], bits].concat(), mapping, 0);
    let mut next = [0u8; 64];
    (next[8], next[16], next[17]) = (1, dtor, order);
    rules.classify(Pfn(pfn), &head, || Some(&next[..]))
}

#[test]
fn a_compound_head_speaks_for_its_block_and_its_destructor_tells_hugetlb() {
    let r = v6_1();
    assert_eq!(head(&r, 0x200, &[4], OBJECT | 1, 9, 3), Verdict::block(PageClass::User, 9));
    assert_eq!(head(&r, 0x200, &[4], OBJECT, 9, 3), Verdict::block(PageClass::Cache, 9));
    assert_eq!(head(&r, 0x200, &[], 0, 9, 2), Verdict::block(PageClass::HugeTlb, 9));
    assert_eq!(head(&r, 0x200, &[], OBJECT | 1, 9, 2), Verdict::block(PageClass::HugeTlb, 9), "anonymous hugetlb");
    assert_eq!(head(&r, 0x200, &[9], OBJECT, 3, 1), Verdict::block(PageClass::Slab, 3));
    assert_eq!(
        head(&r, 0x200, &[23], 0, 9, 2),
        Verdict::block(PageClass::HwPoison, 9),
        "poisoned hugetlb is poisoned whole"
    );
    let thp = head(&r, 0x200, &[23, 4], OBJECT | 1, 9, 3);
    assert_eq!(thp, Verdict::block(PageClass::User, 9), "of a poisoned THP only the bad pages are");
    assert!(r.is_poisoned(&page(&[23], 0, 0)) && !r.is_poisoned(&page(&[22, 24], 0, 0)));
}

#[test]
fn an_order_that_does_not_fit_the_page_frame_is_no_order() {
    let r = v6_1();
    for (pfn, order, expected) in
        [(0x200, 9, 9), (0x200, 10, 0), (0x201, 1, 0), (0x201, 0, 0), (0, 10, 10), (0, 11, 0), (0, 63, 0), (0, 255, 0)]
    {
        assert_eq!(head(&r, pfn, &[4], OBJECT | 1, order, 3).order, expected, "{pfn:#x} order {order}");
    }
    for (order, expected) in [(11, 11), (18, 18), (19, 0), (63, 0)] {
        assert_eq!(head(&r, 0, &[], 0, order, 2), Verdict::block(PageClass::HugeTlb, expected), "hugetlb of {order}");
    }
    // The second page is not there.
    let alone = r.classify(Pfn(0x200), &page(&[16, 4], OBJECT | 1, 0), || None);
    assert_eq!(alone, Verdict::page(PageClass::User));
}

#[test]
fn a_head_without_a_tail_behind_it_speaks_for_itself_alone() {
    let r = v6_1();
    let mut next = [0u8; 64];
    (next[16], next[17]) = (3, 9);
    let thp = page(&[16, 4], OBJECT | 1, 0);
    assert_eq!(r.classify(Pfn(0x200), &thp, || Some(&next[..])), Verdict::page(PageClass::User));
    next[8] = 1;
    assert_eq!(r.classify(Pfn(0x200), &thp, || Some(&next[..])), Verdict::block(PageClass::User, 9));
}

#[test]
fn where_the_number_of_orders_is_not_told_it_is_that_of_x86_64() {
    for line in ["", "LENGTH(zone.free_area)=60\n"] {
        let r = rules(&V6_1.replace("LENGTH(zone.free_area)=11\n", line), KernelVersion(6, 1, 0));
        let mut free = page(&[], 0, -129);
        for (order, expected) in [(10, Verdict::block(PageClass::Free, 10)), (11, Verdict::page(PageClass::Kernel))] {
            free[40] = order;
            let verdict = r.classify(Pfn(0), &free, || None);
            assert_eq!(Verdict { odd: None, ..verdict }, expected, "{order}");
        }
        assert_eq!(head(&r, 0, &[4], OBJECT | 1, 11, 3).order, 0);
    }
}

#[test]
fn anonymous_memory_is_not_told_where_the_second_page_of_a_compound_looks_like_it() {
    let old = "SIZE(page)=64\nOFFSET(page.flags)=0\nOFFSET(page.mapping)=8\nNUMBER(PG_lru)=5\nNUMBER(PG_private)=11\n\
               NUMBER(PG_swapcache)=15\nNUMBER(PG_slab)=7\n";
    // Linux 4.5: compound_mapcount of -1 in the lower half of TAIL_MAPPING.
    let mut second = [0u8; 64];
    second[8..16].copy_from_slice(&0xdead_0000_ffff_ffffu64.to_le_bytes());
    for (version, key, expected) in [
        (KernelVersion(4, 4, 302), "", true),
        (KernelVersion(4, 5, 0), "", false),
        (KernelVersion(4, 5, 7), "OFFSET(page.compound_head)=32\n", true),
        (KernelVersion(4, 6, 0), "", false),
    ] {
        let r = rules(&format!("{old}{key}"), version);
        let told = r.evidence().iter().any(|e| e.0 == PageClass::User && e.1.is_some());
        assert_eq!(told, expected, "{version:?} {key}");
        second[32] = u8::from(!key.is_empty());
        assert!(version < KernelVersion(4, 5, 0) || class(&r, &second) == PageClass::Kernel, "{version:?} {key}");
    }
}

#[test]
fn free_blocks_have_the_order_of_their_private_word() {
    for (rules, mark) in [(v6_1(), -129), (v6_16(), (0xf0u32 << 24) as i32)] {
        let free = |pfn: u64, order: u64| {
            let mut bytes = page(&[], 0, mark);
            bytes[40..48].copy_from_slice(&order.to_le_bytes());
            rules.classify(Pfn(pfn), &bytes, || None)
        };
        assert_eq!(free(0x400, 10), Verdict::block(PageClass::Free, 10));
        assert_eq!(free(0x401, 0), Verdict::page(PageClass::Free));
        for (pfn, order) in [(0x400, 11), (0x400, 52), (0x401, 1), (0x404, 3), (0x400, u64::MAX)] {
            let odd = Verdict { odd: Some(Oddity::BuddyOrder(order)), ..Verdict::page(PageClass::Kernel) };
            assert_eq!(free(pfn, order), odd, "C10: {pfn:#x} order {order}");
        }
    }
}

#[test]
fn unaccepted_blocks_are_of_the_largest_order_and_begin_where_it_must() {
    let r = v6_16();
    let bytes = page(&[], 0, (0xf7u32 << 24) as i32);
    assert_eq!(r.classify(Pfn(0x400), &bytes, || None), Verdict::block(PageClass::Unaccepted, 10));
    assert_eq!(r.classify(Pfn(0x401), &bytes, || None), Verdict::page(PageClass::Kernel));
}

#[test]
fn hugetlb_is_told_by_flag_and_by_type() {
    let flag = rules(&V6_1.replace("NUMBER(HUGETLB_PAGE_DTOR)=2", "NUMBER(PG_hugetlb)=8"), KernelVersion(6, 6, 0));
    let mut next = [0u8; 64];
    next[..8].copy_from_slice(&(9u64 | 1 << 8).to_le_bytes());
    next[8] = 1;
    assert_eq!(
        flag.classify(Pfn(0x200), &page(&[16], 0, 0), || Some(&next[..])),
        Verdict::block(PageClass::HugeTlb, 9)
    );
    next[1] = 0;
    assert_eq!(flag.classify(Pfn(0x200), &page(&[16], 0, 0), || Some(&next[..])), Verdict::block(PageClass::Kernel, 9));
    let typed = v6_16();
    let head = page(&[6], 0, (0xf4u32 << 24) as i32);
    assert_eq!(typed.classify(Pfn(0x200), &head, || Some(&next[..])), Verdict::block(PageClass::HugeTlb, 9));
    // The fake heads of HVO repeat head and type, and the page behind has a flag word for an order.
    next[0] = 0x40;
    assert_eq!(typed.classify(Pfn(0x240), &head, || Some(&next[..])), Verdict::page(PageClass::HugeTlb));
}

#[test]
fn swap_cache_is_told_by_swapbacked_exported_computed_or_not_there() {
    let without = V6_1.replace("NUMBER(PG_swapbacked)=19\n", "");
    // 4.10 to 4.16: below PG_private, so PG_swapbacked is six above it.
    let computed = rules(&without, KernelVersion(4, 14, 0));
    assert_eq!(class(&computed, &page(&[10, 19], 0, -1)), PageClass::Cache);
    assert_eq!(class(&computed, &page(&[10], 0, -1)), PageClass::Kernel);
    // Before: a flag of its own.
    let own = rules(&without.replace("PG_swapcache)=10", "PG_swapcache)=15"), KernelVersion(4, 4, 0));
    assert_eq!(class(&own, &page(&[15], 0, -1)), PageClass::Cache);
}

#[test]
fn evidence_that_is_missing_keeps_the_class() {
    let cases = [
        (PageClass::Free, "NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129\n"),
        (PageClass::Free, "OFFSET(page.private)=40\n"),
        (PageClass::Offline, "NUMBER(PAGE_OFFLINE_MAPCOUNT_VALUE)=-257\n"),
        (PageClass::HwPoison, "NUMBER(PG_hwpoison)=23\n"),
        (PageClass::HugeTlb, "NUMBER(HUGETLB_PAGE_DTOR)=2\n"),
        (PageClass::Cache, "NUMBER(PG_lru)=4\n"),
        (PageClass::Cache, "NUMBER(PG_private)=13\n"),
        (PageClass::PrivateCache, "NUMBER(PG_private)=13\n"),
        (PageClass::User, "NUMBER(PG_slab)=9\n"),
        (PageClass::User, "OFFSET(page.compound_head)=8\n"),
        (PageClass::Unaccepted, ""),
    ];
    let with = v6_1();
    for (class, key) in cases {
        let without = rules(&V6_1.replace(key, ""), KernelVersion(6, 1, 0));
        let told = |rules: &PageRules| rules.evidence().iter().find(|e| e.0 == class).unwrap().1.clone();
        assert_eq!(told(&with).is_some(), class != PageClass::Unaccepted, "{class}");
        assert_eq!(told(&without), None, "{class} without {key}");
    }
    for (key, bytes) in [
        ("NUMBER(PG_private)=13\n", page(&[4], OBJECT, 0)),
        ("NUMBER(PG_private)=13\n", page(&[4, 13], OBJECT, 0)),
        ("NUMBER(PG_slab)=9\n", page(&[4], OBJECT | 1, 0)),
        ("OFFSET(page.compound_head)=8\n", page(&[4], OBJECT | 1, 0)),
        ("NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129\n", page(&[], 0, -129)),
    ] {
        let without = rules(&V6_1.replace(key, ""), KernelVersion(6, 1, 0));
        assert_ne!(class(&with, &bytes), PageClass::Kernel, "{key}");
        assert_eq!(class(&without, &bytes), PageClass::Kernel, "{key}");
    }
}

#[test]
fn old_kernels_need_no_keys_that_did_not_exist() {
    let old = "SIZE(page)=64\nOFFSET(page.flags)=0\nOFFSET(page.mapping)=24\nNUMBER(PG_lru)=5\nNUMBER(PG_private)=11\n\
               NUMBER(PG_swapcache)=16\n";
    let r = rules(old, KernelVersion(2, 6, 32));
    assert_eq!(class(&r, &page(&[5], OBJECT | 1, 0)), PageClass::User);
    assert_eq!(class(&r, &page(&[5], OBJECT, 0)), PageClass::Cache);
    assert_eq!(class(&r, &page(&[7], OBJECT | 1, 0)), PageClass::Slab);
    assert!(!r.knows_buddy());
}

#[test]
fn keys_without_which_no_page_can_be_read_are_named() {
    for key in ["SIZE(page)", "OFFSET(page.flags)", "OFFSET(page.mapping)"] {
        let text: String = V6_1.split_inclusive('\n').filter(|line| !line.starts_with(key)).collect();
        let error = PageRules::compile(&VmcoreInfo::parse(text.as_bytes()), None).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    for (line, odd) in
        [("OFFSET(page.flags)=0", "OFFSET(page.flags)=60"), ("OFFSET(page.mapping)=24", "OFFSET(page.mapping)=57")]
    {
        let text = V6_1.replace(line, odd);
        assert!(PageRules::compile(&VmcoreInfo::parse(text.as_bytes()), None).is_err(), "{odd}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_block_that_cannot_be(
        page in proptest::collection::vec(any::<u8>(), 0..80),
        next in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
        pfn in 0u64..1 << 36,
        new in any::<bool>(),
    ) {
        let rules = if new { v6_16() } else { v6_1() };
        let verdict = rules.classify(Pfn(pfn), &page, || next.as_deref());
        prop_assert!(u32::from(verdict.order) <= pfn.trailing_zeros() && verdict.order <= 18);
        prop_assert!(verdict.odd.is_none() || verdict.class == PageClass::Kernel);
    }

    #[test]
    fn no_numbers_in_vmcoreinfo_panic(
        values in proptest::collection::vec((0usize..V6_16.len(), any::<i64>()), 1..8),
        page in proptest::collection::vec(any::<u8>(), 64),
        next in proptest::collection::vec(any::<u8>(), 64),
        version in (0u32..8, 0u32..20, 0u32..3),
    ) {
        let mut lines: Vec<String> = [V6_1, V6_16].concat().lines().map(str::to_owned).collect();
        for (at, value) in values {
            let i = at % lines.len();
            let key = lines[i].split('=').next().unwrap().to_owned();
            lines[i] = format!("{key}={}", if value % 3 == 0 { value % 100 } else { value });
        }
        lines.rotate_left(version.0 as usize);
        let text = lines.join("\n");
        if let Ok(rules) = PageRules::compile(&VmcoreInfo::parse(text.as_bytes()), Some(KernelVersion(version.0, version.1, version.2))) {
            let verdict = rules.classify(Pfn(1 << 20), &page, || Some(&next));
            prop_assert!(verdict.order <= 20);
        }
    }
}
