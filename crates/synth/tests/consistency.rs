//! A built machine holds together: read back from its ELF file alone, by a reader written here, it says what the truth table says.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used, reason = "test helpers")]

use coresift_synth::huge::{Mix, huge};
use coresift_synth::{KernelLayout, LAYOUTS, Leaf, Machine, Model, PAGE, START_KERNEL_MAP};
use std::collections::BTreeMap;
use std::ops::Range;

/// A plain reader of ELF cores: segments, VMCOREINFO, translation. Knows nothing of the builder.
struct Core {
    file: Vec<u8>,
    /// (p_paddr, p_offset, p_filesz)
    loads: Vec<(u64, u64, u64)>,
    keys: BTreeMap<String, String>,
    root: u64,
    image_base: Option<u64>,
}

fn u64_at(b: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(b[at as usize..at as usize + 8].try_into().unwrap())
}
fn u32_at(b: &[u8], at: u64) -> u32 {
    u32::from_le_bytes(b[at as usize..at as usize + 4].try_into().unwrap())
}
fn u16_at(b: &[u8], at: u64) -> u16 {
    u16::from_le_bytes(b[at as usize..at as usize + 2].try_into().unwrap())
}

impl Core {
    fn open(file: Vec<u8>) -> Self {
        assert_eq!(&file[..4], b"\x7fELF");
        let phoff = u64_at(&file, 32);
        let phnum = match u16_at(&file, 56) {
            0xffff => u64::from(u32_at(&file, u64_at(&file, 40) + 44)),
            n => n.into(),
        };
        let mut core = Self { loads: Vec::new(), keys: BTreeMap::new(), root: 0, image_base: None, file };
        for i in 0..phnum {
            let at = phoff + 56 * i;
            let field = |n: u64| u64_at(&core.file, at + 8 + 8 * n);
            let (offset, vaddr, paddr, filesz) = (field(0), field(1), field(2), field(3));
            if u32_at(&core.file, at) == 4 {
                let mut n = offset;
                while n < offset + filesz {
                    let (name, desc) = (u64::from(u32_at(&core.file, n)), u64::from(u32_at(&core.file, n + 4)));
                    let name_at = n + 12;
                    let desc_at = name_at + name.next_multiple_of(4);
                    if &core.file[name_at as usize..(name_at + name) as usize] == b"VMCOREINFO\0" {
                        let text =
                            String::from_utf8(core.file[desc_at as usize..(desc_at + desc) as usize].to_vec()).unwrap();
                        core.keys =
                            text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
                    }
                    n = desc_at + desc.next_multiple_of(4);
                }
            } else {
                core.loads.push((paddr, offset, filesz));
                if vaddr >= START_KERNEL_MAP && core.image_base.is_none() {
                    core.image_base = Some(paddr.wrapping_sub(vaddr - START_KERNEL_MAP));
                }
            }
        }
        let phys_base = core.number("NUMBER(phys_base)").map(|n| n as u64).or(core.image_base).unwrap();
        let top = core.symbol("init_top_pgt").or(core.symbol("init_level4_pgt")).unwrap();
        core.root = (top - START_KERNEL_MAP).wrapping_add(phys_base);
        core
    }

    fn number(&self, key: &str) -> Option<i64> {
        self.keys.get(key).map(|v| v.parse().unwrap_or_else(|_| panic!("{key}={v}")))
    }

    fn offset(&self, key: &str) -> Option<u64> {
        self.number(&format!("OFFSET({key})")).map(|n| n as u64)
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        self.keys.get(&format!("SYMBOL({name})")).map(|v| u64::from_str_radix(v, 16).unwrap())
    }

    fn phys(&self, paddr: u64, len: u64) -> Option<&[u8]> {
        // Thousands of segments come in order and apart; few may overlap.
        let from = if self.loads.len() < 100 { 0 } else { self.loads.partition_point(|l| l.0 + l.2 <= paddr) };
        let &(start, offset, _) =
            self.loads[from..].iter().take(100).find(|(p, _, f)| *p <= paddr && paddr + len <= p + f)?;
        let at = (offset + paddr - start) as usize;
        Some(&self.file[at..at + len as usize])
    }

    fn translate(&self, virt: u64) -> Option<u64> {
        let sme = self.number("NUMBER(sme_mask)").unwrap_or(0) as u64;
        let levels = if self.number("NUMBER(pgtable_l5_enabled)") == Some(1) { 5 } else { 4 };
        let mut table = self.root;
        for level in (0..levels).rev() {
            let shift = 12 + 9 * level;
            let entry = u64_at(self.phys(table + (virt >> shift & 511) * 8, 8)?, 0);
            if entry & 1 == 0 {
                return None;
            }
            assert!(sme == 0 || entry & sme != 0, "the encryption bit is in every entry");
            table = entry & 0x000f_ffff_ffff_f000 & !sme;
            if level == 0 || (level < 3 && entry & 0x80 != 0) {
                let mask = (1u64 << shift) - 1;
                return Some((table & !mask) | (virt & mask));
            }
        }
        None
    }

    fn read(&self, virt: u64, len: u64) -> Option<Vec<u8>> {
        let (mut at, mut out) = (virt, Vec::new());
        while at < virt + len {
            let n = (PAGE - at % PAGE).min(virt + len - at);
            out.extend(self.phys(self.translate(at)?, n)?);
            at += n;
        }
        Some(out)
    }

    fn word(&self, virt: u64) -> u64 {
        u64_at(&self.read(virt, 8).unwrap_or_else(|| panic!("{virt:#x} is not mapped")), 0)
    }

    /// The address of a page frame's struct page.
    fn struct_page(&self, pfn: u64) -> Option<u64> {
        let size = self.number("SIZE(page)")? as u64;
        if let Some(map) = self.symbol("mem_map") {
            return Some(self.word(map) + pfn * size);
        }
        let (section, entry) = (pfn >> 15, self.number("SIZE(mem_section)")? as u64);
        let table = self.symbol("mem_section")?;
        let at = if self.number("LENGTH(mem_section)")? as u64 == 1 << 19 {
            table + section * entry
        } else {
            let per_root = PAGE / entry;
            let root = self.word(table + section / per_root * 8);
            if root == 0 {
                return None;
            }
            root + section % per_root * entry
        };
        let coded = self.word(at);
        if coded & 1 == 0 {
            return None;
        }
        Some((coded & !63).wrapping_add(pfn * size))
    }
}

/// The rules of the reference tool, in its order, from the keys alone; free pages without a mark come from the free lists.
fn classify(core: &Core, pfns: Range<u64>) -> BTreeMap<u64, &'static str> {
    let n = |key: &str| core.number(&format!("NUMBER({key})"));
    let mark = |key: &str| n(key).map(|v| v as i32);
    let size = core.number("SIZE(page)").unwrap() as u64;
    let bit = |flags: u64, b: Option<i64>| b.is_some_and(|b| flags >> b & 1 == 1);
    let mut free = BTreeMap::new();
    if mark("PAGE_BUDDY_MAPCOUNT_VALUE").is_none() {
        free = free_lists(core, pfns.end);
    }
    let mut out = BTreeMap::new();
    let mut pfn = pfns.start;
    while pfn < pfns.end {
        let Some(bytes) = core.phys(pfn * PAGE, PAGE) else {
            pfn += 1;
            continue;
        };
        let page = core.struct_page(pfn).expect("RAM has struct pages");
        let s = core.read(page, size).unwrap();
        let flags = u64_at(&s, 0);
        let mapping = u64_at(&s, core.offset("page.mapping").unwrap());
        let mapcount = core.offset("page._mapcount").map(|o| u32_at(&s, o) as i32);
        let is = |m: Option<i32>| m.is_some() && m == mapcount;
        let (mut order, mut hugetlb) = (0, false);
        let head_mask = n("PG_head_mask").unwrap_or(1 << 14) as u64;
        if flags & head_mask != 0 && core.phys((pfn + 1) * PAGE, 1).is_some() {
            let next = core.read(page + size, size).unwrap();
            if let Some(value) = mark("PAGE_HUGETLB_MAPCOUNT_VALUE") {
                (order, hugetlb) = (u64::from(next[0]), is(Some(value)));
            } else if n("PG_hugetlb").is_some() {
                (order, hugetlb) = (u64::from(next[0]), bit(u64_at(&next, 0), n("PG_hugetlb")));
            } else if let Some(at) = core.offset("folio._folio_order") {
                let dtor = core.offset("folio._folio_dtor").unwrap() - size;
                (order, hugetlb) = (next[(at - size) as usize].into(), next[dtor as usize] == 2);
            } else if let Some(at) = core.offset("page.compound_order") {
                let dtor = core.offset("page.compound_dtor").unwrap();
                (order, hugetlb) =
                    (next[at as usize].into(), i64::from(next[dtor as usize]) == n("HUGETLB_PAGE_DTOR").unwrap());
            } else if !core.keys["OSRELEASE"].starts_with("4.4") {
                order = u64_at(&next, core.offset("page.lru").unwrap() + 8);
            }
            if order >= 64 || !pfn.is_multiple_of(1 << order) {
                order = 0;
            }
        }
        let slab = is(mark("PAGE_SLAB_MAPCOUNT_VALUE"))
            || (mark("PAGE_SLAB_MAPCOUNT_VALUE").is_none() && bit(flags, n("PG_slab").or(Some(7))));
        let lru = bit(flags, n("PG_lru"));
        let swapcache =
            bit(flags, n("PG_swapcache")) && (n("PG_swapbacked").is_none() || bit(flags, n("PG_swapbacked")));
        let anon = mapping & 1 == 1 && !slab;
        let private = bit(flags, n("PG_private"));
        let link = core.offset("page.compound_head").or(core.offset("page.compound_info"));
        let kept = if bytes.iter().all(|b| *b == 0) { "zero" } else { "kernel" };
        let image = core.image_base.is_some()
            && core.loads[0].0 <= pfn * PAGE
            && pfn * PAGE < core.loads[0].0 + core.loads[0].2;
        let (class, pages) = if image || link.is_some_and(|o| u64_at(&s, o) & 1 == 1) {
            (kept, 1)
        } else if let Some(order) = free.get(&pfn) {
            ("free", 1 << order)
        } else if is(mark("PAGE_BUDDY_MAPCOUNT_VALUE")) && !slab {
            match u64_at(&s, core.offset("page.private").unwrap()) {
                order @ 0..11 => ("free", 1 << order),
                _ => (kept, 1),
            }
        } else if is(mark("PAGE_UNACCEPTED_MAPCOUNT_VALUE")) {
            ("unaccepted", 1024)
        } else if (lru || swapcache) && !anon {
            (if private { "private-cache" } else { "cache" }, 1 << order)
        } else if hugetlb {
            ("hugetlb", 1 << order)
        } else if anon {
            ("user", 1 << order)
        } else if bit(flags, n("PG_hwpoison")) {
            ("hwpoison", 1 << order)
        } else if is(mark("PAGE_OFFLINE_MAPCOUNT_VALUE")) && !slab {
            ("offline", 1 << order)
        } else if slab {
            ("slab", 1 << order)
        } else {
            (kept, 1)
        };
        for p in pfn..pfn + pages {
            out.insert(p, class);
        }
        pfn += pages;
    }
    out
}

fn node_address(core: &Core) -> u64 {
    core.symbol("contig_page_data").unwrap_or_else(|| core.word(core.symbol("node_data").unwrap()))
}

/// Free blocks by walking the lists of every zone: page frame to order.
fn free_lists(core: &Core, end: u64) -> BTreeMap<u64, u64> {
    let pfn_of: BTreeMap<u64, u64> =
        (0..end).filter(|p| core.phys(p * PAGE, 1).is_some()).map(|p| (core.struct_page(p).unwrap(), p)).collect();
    let node = node_address(core);
    let mut found = BTreeMap::new();
    for zone in 0..u64::from(u32_at(&core.read(node + core.offset("pglist_data.nr_zones").unwrap(), 4).unwrap(), 0)) {
        let at = node + zone * core.number("SIZE(zone)").unwrap() as u64;
        let mut count = 0;
        for order in 0..core.number("LENGTH(zone.free_area)").unwrap() as u64 {
            for mt in 0..core.number("LENGTH(free_area.free_list)").unwrap() as u64 {
                let head = at
                    + core.offset("zone.free_area").unwrap()
                    + order * core.number("SIZE(free_area)").unwrap() as u64
                    + mt * 16;
                let (mut prev, mut entry) = (head, core.word(head));
                while entry != head {
                    assert_eq!(core.word(entry + 8), prev, "the list is whole");
                    found.insert(pfn_of[&(entry - core.offset("page.lru").unwrap())], order);
                    count += 1 << order;
                    (prev, entry) = (entry, core.word(entry));
                }
                assert_eq!(core.word(head + 8), prev);
            }
        }
        assert_eq!(core.word(at + core.offset("zone.vm_stat").unwrap()), count, "NR_FREE_PAGES of zone {zone}");
    }
    found
}

/// Reads the machine back and compares it with what it should be.
fn check(machine: &Machine, with_image: bool) {
    let image = machine.clone().build();
    let elf = if with_image { image.elf().with_image() } else { image.elf() };
    let core = Core::open(elf.bytes());
    let end = image.ram().last().unwrap().end;
    let name = image.layout.name;
    let classes = classify(&core, 0..end);
    for pfn in 0..end {
        // What a reader may know from the flags alone, the truth table counts by what VMCOREINFO exports.
        let (found, truth) = (classes.get(&pfn).copied().unwrap_or("hole"), image.truth.class(pfn));
        assert!(
            found == truth || (truth == "slab" && found == "kernel"),
            "{name}: page frame {pfn:#x} is {truth}, read as {found}"
        );
    }
    let release = core
        .read(core.symbol("init_uts_ns").unwrap() + core.offset("uts_namespace.name").unwrap_or(4) + 130, 16)
        .unwrap();
    assert!(release.starts_with(core.keys["OSRELEASE"].as_bytes()), "{name}");
    free_lists(&core, end);
    // Everything mapped in the linear map is the memory it claims to be.
    for range in image.ram() {
        for pfn in range.clone().step_by(61) {
            assert_eq!(core.translate(image.page_offset + pfn * PAGE), Some(pfn * PAGE));
            assert_eq!(core.phys(pfn * PAGE, PAGE).unwrap(), image.page(pfn));
        }
    }
    assert_eq!(core.translate(image.image_virt), Some(image.image.start * PAGE));
    assert_eq!(image.truth.counts().iter().map(|c| c.1).sum::<u64>(), end);
}

#[test]
fn b0_reads_back_as_its_truth_table_under_every_kernel() {
    for layout in LAYOUTS {
        for with_image in [false, true] {
            check(&Machine::b0(layout), with_image);
        }
    }
}

#[test]
fn b0_has_the_counts_it_promises() {
    for layout in LAYOUTS {
        let truth = Machine::b0(layout).build().truth;
        let kept = |class, there: bool, n| if there { (class, n) } else { (class, 0) };
        let (h, p, o) = (layout.hugetlb_is_known(), layout.since(3, 8, 0), layout.exported_offline().is_some());
        let expected = [
            ("zero", 20),
            ("free", 40),
            ("cache", 30),
            ("private-cache", 10),
            ("user", 30),
            // Two compound slabs of four pages, of which only the heads can be told where the order is not known.
            ("slab", if layout.compound_order_is_known() { 16 } else { 10 }),
            kept("hugetlb", h, 16),
            kept("hwpoison", p, 4),
            kept("offline", o, 4),
        ];
        for (class, n) in expected {
            assert_eq!(truth.count(class), n, "{} {class}", layout.name);
        }
        let rest: u64 = 256 - expected.iter().map(|e| e.1).sum::<u64>();
        assert_eq!(truth.count("kernel"), rest, "{}", layout.name);
    }
}

#[test]
fn every_memory_model_and_paging_mode_reads_back() {
    for name in ["2.6.32", "4.4", "4.18", "6.12", "7.1"] {
        let layout = KernelLayout::get(name);
        for model in [Model::SparseVmemmap, Model::SparseExtreme, Model::Sparse, Model::Flat] {
            check(&Machine::b0_with(layout, model), false);
        }
        check(&Machine::b0(layout).kaslr(0x1a80_0000), true);
        check(
            &Machine::b0(layout).kaslr(0x40_0000).page_offset(0xffff_8cc3_c000_0000).vmemmap(0xffff_f84c_c000_0000),
            false,
        );
        if layout.since(4, 17, 0) {
            check(&Machine::b0(layout).five_levels(), false);
        }
        if layout.since(5, 2, 0) {
            check(&Machine::b0(layout).sme_bit(47), false);
            check(&Machine::b0(layout).sme_bit(51).five_levels(), false);
        }
    }
}

#[test]
fn phys_base_can_be_positive_zero_and_negative() {
    for phys_base in [-0x40_0000, 0, 0x60_0000] {
        let start = (0x100_0000 + phys_base) as u64 / PAGE;
        let machine = Machine::new(KernelLayout::get("6.12")).ram(start..start + 0x80).phys_base(phys_base);
        check(&machine, false);
        assert!(machine.build().vmcoreinfo.contains(&format!("NUMBER(phys_base)={phys_base}\n")));
    }
}

#[test]
fn large_pages_and_odd_pages_read_back_under_every_kernel() {
    let text = "
        @0x2000  512 anon-thp
        @0x2200  512 file-thp
        @0x2400  512 hugetlb
        @0x2600  512 hugetlb pool
        @0x2800 1024 hugetlb hvo
        @0x2c00   64 anon-thp order=4
        @0x2c40    4 ksm
        @0x2c44    4 swapcache
        @0x2c48    4 shmem-swapcache
        @0x2c4c    4 owner-priv
        @0x2c50    4 tail garbage
        @0x2c54    4 buddy order=52
        @0x2c58    8 slab order=3 mapping-odd
        @0x2c60    4 slab mapping-odd
        @0x2c64    4 anon content=zero
        @0x2c68    4 cache content=same
        @0x2c6c    4 kernel content=noise
        @0x3000 2048 unaccepted
        @0x3800 1024 buddy order=10
        @0x100a    3 image-cache";
    for layout in LAYOUTS {
        let machine = Machine::new(layout).ram(0x1000..0x3c80).pages(text).removed_section(9).linear_leaf(Leaf::M2);
        check(&machine, true);
    }
}

#[test]
fn sections_can_carry_every_flag_that_exists() {
    for flags in [1 << 4, 1 << 5, 0x3c] {
        for model in [Model::SparseVmemmap, Model::SparseExtreme, Model::Sparse] {
            check(&Machine::b0_with(KernelLayout::get("6.16"), model).section_flags(flags), false);
        }
    }
}

#[test]
fn whole_sections_can_have_two_mebibyte_maps() {
    let machine = Machine::new(KernelLayout::get("6.12"))
        .ram(0x1000..0x10000)
        .vmemmap_leaf(Leaf::M2)
        .linear_leaf(Leaf::M2)
        .pages("@0x8000 512 hugetlb\n@0x8200 100 cache");
    check(&machine, false);
}

#[test]
fn memory_at_eight_and_sixteen_tebibytes_reads_back() {
    let machine = Machine::new(KernelLayout::get("6.12"))
        .ram(0x1000..0x1100)
        .ram(0x7fff_ffff..0x8000_0001)
        .ram(0xffff_ffff..0x1_0000_0001)
        .pages("@0x7fffffff 1 anon\n@0xffffffff 1 cache\n@0x100000000 1 kernel");
    let image = machine.build();
    let core = Core::open(image.elf().bytes());
    for pfn in [0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1_0000_0000] {
        let page = core.read(core.struct_page(pfn).unwrap(), 64).unwrap();
        assert_eq!(u64_at(&page, 24) & 1 == 1, image.truth.class(pfn) == "user", "{pfn:#x}");
        assert_eq!(core.phys(pfn * PAGE, PAGE).unwrap(), image.page(pfn));
    }
}

#[test]
fn sections_of_a_huge_machine_read_back_and_its_file_is_small() {
    for (mix, tib, name) in
        [(Mix::server(), 4, "4.18"), (Mix::huge_pages(), 16, "6.12"), (Mix::fragmented().no_kernel_pages(), 16, "7.1")]
    {
        let image = huge(KernelLayout::get(name), tib << 40, &mix);
        let file = image.elf().file();
        assert!(file.stored() < 80 << 20, "{} MiB", file.stored() >> 20);
        let core = Core::open(file.bytes());
        let sections = tib << 13;
        for section in [0, 1, 25, 33, sections / 2, sections + 7] {
            let pfns = section << 15..(section + 1) << 15;
            // Not into the middle of a gigantic page, whose head this reader would have missed.
            let classes = classify(&core, pfns.clone());
            for pfn in pfns {
                let (found, truth) = (classes.get(&pfn).copied().unwrap_or("hole"), image.truth.class(pfn));
                let kept = ["kernel", "zero"].contains(&found);
                assert!(
                    found == truth || (kept && ["slab", "hugetlb"].contains(&truth)),
                    "{name}: page frame {pfn:#x} is {truth}, read as {found}"
                );
            }
        }
        let total: u64 = image.truth.counts().iter().map(|c| c.1).sum();
        assert_eq!(total - image.truth.count("hole"), (tib << 28) - 0x100);
        let zones: u64 = (0..3)
            .map(|z| {
                core.word(
                    node_address(&core)
                        + z * core.number("SIZE(zone)").unwrap() as u64
                        + core.offset("zone.vm_stat").unwrap(),
                )
            })
            .sum();
        assert_eq!(zones, image.truth.count("free"));
        assert!(image.truth.runs().zip(image.truth.runs().skip(1)).all(|(a, b)| a.0.end == b.0.start));
    }
}
