//! The VMCOREINFO text, key by key in the order and over the span of versions that the kernel exports it.
//!
//! From `crash_save_vmcoreinfo_init` (`kernel/kexec.c`, `crash_core.c`, `vmcore_info.c`), `log_buf_vmcoreinfo_setup` and x86's
//! `arch_crash_save_vmcoreinfo`.

use crate::layout::{Compound, KernelLayout, Version};
use crate::memmap::Model;
use crate::node::NodeLayout;
use crate::printk::{log_record, ring};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What the values are taken from.
pub(crate) struct Facts<'a> {
    pub layout: &'a KernelLayout,
    pub model: Model,
    pub symbols: &'a BTreeMap<String, u64>,
    pub node: NodeLayout,
    /// Whether the records of the kernel log tell the caller.
    pub log_callers: bool,
    pub levels: u32,
    pub kaslr: u64,
    pub phys_base: i64,
    pub sme_mask: u64,
    pub build_id: &'a str,
    pub crash_time: u64,
    pub vmalloc_start: u64,
}

/// When a key is there besides its span of versions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    Sparse,
    Vmemmap,
    Numa,
    Uma,
    Flat,
}

type Value = fn(&Facts<'_>) -> Option<String>;

const fn v(major: u16, minor: u16, patch: u16) -> Version {
    Version(major, minor, patch)
}
const OLD: Version = v(0, 0, 0);
const NOW: Version = v(u16::MAX, 0, 0);

fn dec(n: u64) -> Option<String> {
    Some(n.to_string())
}
fn bit(n: u8) -> Option<String> {
    Some(n.to_string())
}
fn signed(n: Option<u32>) -> Option<String> {
    n.map(|n| (n as i32).to_string())
}
/// The value of `SYMBOL(name)`, which the caller fills in from the name.
const SYM: Value = |_| None;

/// Since, until (exclusive), when, key, value. A `SYMBOL` key with [`SYM`] takes the symbol of that name and is left out without one.
#[rustfmt::skip]
const KEYS: &[(Version, Version, When, &str, Value)] = &[
    (OLD, NOW, When::Always, "OSRELEASE", |f| Some(f.layout.release.into())),
    (v(5, 10, 0), NOW, When::Always, "BUILD-ID", |f| Some(f.build_id.into())),
    (OLD, NOW, When::Always, "PAGESIZE", |_| dec(4096)),
    (OLD, NOW, When::Always, "SYMBOL(init_uts_ns)", SYM),
    (v(5, 11, 0), NOW, When::Always, "OFFSET(uts_namespace.name)", |f| dec(uts_name(f.layout))),
    (OLD, NOW, When::Always, "SYMBOL(node_online_map)", SYM),
    (OLD, NOW, When::Always, "SYMBOL(swapper_pg_dir)", SYM),
    (OLD, NOW, When::Always, "SYMBOL(_stext)", SYM),
    (OLD, v(3, 10, 0), When::Always, "SYMBOL(vmlist)", SYM),
    (v(3, 10, 0), v(6, 9, 0), When::Always, "SYMBOL(vmap_area_list)", SYM),
    (v(6, 9, 0), NOW, When::Always, "NUMBER(VMALLOC_START)", |f| Some(format!("{:#x}", f.vmalloc_start))),
    (OLD, NOW, When::Uma, "SYMBOL(mem_map)", SYM),
    (OLD, NOW, When::Uma, "SYMBOL(contig_page_data)", SYM),
    (v(6, 9, 0), NOW, When::Vmemmap, "SYMBOL(vmemmap)", SYM),
    (OLD, NOW, When::Sparse, "SYMBOL(mem_section)", SYM),
    (OLD, NOW, When::Sparse, "LENGTH(mem_section)", |f| dec(section_roots(f.layout, f.model))),
    (OLD, NOW, When::Sparse, "SIZE(mem_section)", |f| dec(f.layout.mem_section)),
    (OLD, NOW, When::Sparse, "OFFSET(mem_section.section_mem_map)", |_| dec(0)),
    (v(5, 14, 0), NOW, When::Sparse, "NUMBER(SECTION_SIZE_BITS)", |_| dec(crate::memmap::SECTION_SIZE_BITS.into())),
    (v(5, 9, 0), NOW, When::Sparse, "NUMBER(MAX_PHYSMEM_BITS)", |_| dec(MAX_PHYSMEM_BITS.into())),
    (OLD, NOW, When::Always, "SIZE(page)", |f| dec(f.layout.page.size)),
    (OLD, NOW, When::Always, "SIZE(pglist_data)", |f| dec(f.node.size)),
    (OLD, NOW, When::Always, "SIZE(zone)", |f| dec(f.layout.zone.size)),
    (OLD, NOW, When::Always, "SIZE(free_area)", |f| dec(f.node.free_area)),
    (OLD, NOW, When::Always, "SIZE(list_head)", |_| dec(16)),
    (OLD, NOW, When::Always, "SIZE(nodemask_t)", |_| dec(8)),
    (OLD, NOW, When::Always, "OFFSET(page.flags)", |_| dec(0)),
    (OLD, v(4, 7, 0), When::Always, "OFFSET(page._count)", |f| dec(f.layout.page.refcount)),
    (v(4, 7, 0), NOW, When::Always, "OFFSET(page._refcount)", |f| dec(f.layout.page.refcount)),
    (OLD, NOW, When::Always, "OFFSET(page.mapping)", |f| dec(f.layout.page.mapping)),
    (OLD, NOW, When::Always, "OFFSET(page.lru)", |f| dec(f.layout.page.lru)),
    (v(3, 9, 0), NOW, When::Always, "OFFSET(page._mapcount)", |f| dec(f.layout.page.mapcount)),
    (v(3, 9, 0), NOW, When::Always, "OFFSET(page.private)", |f| dec(f.layout.page.private)),
    (v(6, 3, 0), v(6, 6, 0), When::Always, "OFFSET(folio._folio_dtor)", |f| fields(f.layout).map(|(d, _)| (f.layout.page.size + d).to_string())),
    (v(6, 3, 0), v(6, 6, 0), When::Always, "OFFSET(folio._folio_order)", |f| fields(f.layout).map(|(_, o)| (f.layout.page.size + o).to_string())),
    (v(4, 6, 0), v(6, 3, 0), When::Always, "OFFSET(page.compound_dtor)", |f| fields(f.layout).map(|(d, _)| d.to_string())),
    (v(4, 6, 0), v(6, 3, 0), When::Always, "OFFSET(page.compound_order)", |f| fields(f.layout).map(|(_, o)| o.to_string())),
    (v(4, 6, 0), v(7, 1, 0), When::Always, "OFFSET(page.compound_head)", |f| dec(f.layout.page.compound_head)),
    (v(7, 1, 0), NOW, When::Always, "OFFSET(page.compound_info)", |f| dec(f.layout.page.compound_head)),
    (OLD, NOW, When::Always, "OFFSET(pglist_data.node_zones)", |_| dec(0)),
    (OLD, NOW, When::Always, "OFFSET(pglist_data.nr_zones)", |f| dec(f.node.nr_zones)),
    (OLD, NOW, When::Flat, "OFFSET(pglist_data.node_mem_map)", |f| dec(f.node.node_mem_map)),
    (OLD, NOW, When::Always, "OFFSET(pglist_data.node_start_pfn)", |f| dec(f.node.start_pfn)),
    (OLD, NOW, When::Always, "OFFSET(pglist_data.node_spanned_pages)", |f| dec(f.node.spanned)),
    (OLD, NOW, When::Always, "OFFSET(pglist_data.node_id)", |f| dec(f.node.node_id)),
    (OLD, NOW, When::Always, "OFFSET(zone.free_area)", |f| dec(f.layout.zone.free_area)),
    (OLD, NOW, When::Always, "OFFSET(zone.vm_stat)", |f| dec(f.layout.zone.vm_stat)),
    (OLD, NOW, When::Always, "OFFSET(zone.spanned_pages)", |f| dec(f.layout.zone.spanned)),
    (OLD, NOW, When::Always, "OFFSET(free_area.free_list)", |_| dec(0)),
    (OLD, NOW, When::Always, "OFFSET(list_head.next)", |_| dec(0)),
    (OLD, NOW, When::Always, "OFFSET(list_head.prev)", |_| dec(8)),
    (OLD, v(3, 10, 0), When::Always, "OFFSET(vm_struct.addr)", |_| dec(8)),
    (v(3, 10, 0), v(6, 9, 0), When::Always, "OFFSET(vmap_area.va_start)", |_| dec(0)),
    (v(3, 10, 0), v(6, 9, 0), When::Always, "OFFSET(vmap_area.list)", |_| dec(40)),
    (OLD, NOW, When::Always, "LENGTH(zone.free_area)", |_| dec(crate::ORDERS.into())),
    (OLD, v(5, 10, 0), When::Always, "SYMBOL(log_buf)", SYM),
    (OLD, v(3, 5, 0), When::Always, "SYMBOL(log_end)", SYM),
    (OLD, v(5, 10, 0), When::Always, "SYMBOL(log_buf_len)", SYM),
    (OLD, v(3, 5, 0), When::Always, "SYMBOL(logged_chars)", SYM),
    (v(3, 5, 0), v(5, 10, 0), When::Always, "SYMBOL(log_first_idx)", SYM),
    (v(4, 8, 0), v(5, 10, 0), When::Always, "SYMBOL(clear_idx)", SYM),
    (v(3, 5, 0), v(5, 10, 0), When::Always, "SYMBOL(log_next_idx)", SYM),
    (v(5, 10, 0), NOW, When::Always, "SYMBOL(prb)", SYM),
    (v(5, 10, 0), NOW, When::Always, "SYMBOL(printk_rb_static)", SYM),
    (v(5, 10, 0), NOW, When::Always, "SYMBOL(clear_seq)", SYM),
    (OLD, NOW, When::Always, "LENGTH(free_area.free_list)", |f| dec(f.layout.zone.migrate_types)),
    (OLD, NOW, When::Always, "NUMBER(NR_FREE_PAGES)", |_| dec(0)),
    (OLD, NOW, When::Always, "NUMBER(PG_lru)", |f| bit(f.layout.flags.lru)),
    (OLD, NOW, When::Always, "NUMBER(PG_private)", |f| bit(f.layout.flags.private)),
    (OLD, NOW, When::Always, "NUMBER(PG_swapcache)", |f| bit(f.layout.flags.swapcache)),
    (v(4, 17, 0), NOW, When::Always, "NUMBER(PG_swapbacked)", |f| bit(f.layout.flags.swapbacked)),
    (v(3, 9, 0), v(6, 10, 0), When::Always, "NUMBER(PG_slab)", |f| f.layout.flags.slab.and_then(bit)),
    (v(6, 10, 0), NOW, When::Always, "NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)", |f| signed(f.layout.types.slab)),
    (v(3, 8, 0), NOW, When::Always, "NUMBER(PG_hwpoison)", |f| bit(f.layout.flags.hwpoison)),
    (v(3, 17, 0), NOW, When::Always, "NUMBER(PG_head_mask)", |f| dec(1 << f.layout.flags.head)),
    (v(3, 9, 0), NOW, When::Always, "NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)", |f| signed(f.layout.types.buddy)),
    (v(4, 6, 0), v(6, 6, 0), When::Always, "NUMBER(HUGETLB_PAGE_DTOR)", |_| dec(2)),
    (v(3, 17, 0), v(4, 6, 0), When::Always, "SYMBOL(free_huge_page)", SYM),
    (v(6, 6, 0), v(6, 9, 0), When::Always, "NUMBER(PG_hugetlb)", |f| match f.layout.compound {
        Compound::Flags1 { hugetlb } => hugetlb.and_then(bit),
        _ => None,
    }),
    (v(6, 9, 0), NOW, When::Always, "NUMBER(PAGE_HUGETLB_MAPCOUNT_VALUE)", |f| signed(f.layout.types.hugetlb)),
    (v(5, 0, 0), NOW, When::Always, "NUMBER(PAGE_OFFLINE_MAPCOUNT_VALUE)", |f| signed(f.layout.types.offline)),
    (v(6, 16, 0), NOW, When::Always, "NUMBER(PAGE_UNACCEPTED_MAPCOUNT_VALUE)", |f| signed(f.layout.types.unaccepted)),
    (v(6, 0, 0), NOW, When::Always, "SYMBOL(kallsyms_names)", SYM),
    (v(6, 0, 0), NOW, When::Always, "SYMBOL(kallsyms_num_syms)", SYM),
    (v(6, 0, 0), NOW, When::Always, "SYMBOL(kallsyms_token_table)", SYM),
    (v(6, 0, 0), NOW, When::Always, "SYMBOL(kallsyms_token_index)", SYM),
    (v(6, 0, 0), NOW, When::Always, "SYMBOL(kallsyms_offsets)", SYM),
    (v(6, 0, 0), v(7, 0, 0), When::Always, "SYMBOL(kallsyms_relative_base)", SYM),
    (OLD, v(4, 10, 0), When::Always, "SYMBOL(phys_base)", SYM),
    (v(4, 10, 0), NOW, When::Always, "NUMBER(phys_base)", |f| Some(f.phys_base.to_string())),
    (OLD, v(4, 13, 0), When::Always, "SYMBOL(init_level4_pgt)", SYM),
    (v(4, 13, 0), NOW, When::Always, "SYMBOL(init_top_pgt)", SYM),
    (v(4, 17, 0), NOW, When::Always, "NUMBER(pgtable_l5_enabled)", |f| dec((f.levels == 5).into())),
    (OLD, NOW, When::Numa, "SYMBOL(node_data)", SYM),
    (OLD, NOW, When::Numa, "LENGTH(node_data)", |_| dec(crate::node::MAX_NODES)),
    (v(3, 14, 0), NOW, When::Always, "KERNELOFFSET", |f| Some(format!("{:x}", f.kaslr))),
    (v(4, 10, 0), NOW, When::Always, "NUMBER(KERNEL_IMAGE_SIZE)", |_| dec(1 << 30)),
    (v(5, 2, 0), NOW, When::Always, "NUMBER(sme_mask)", |f| dec(f.sme_mask)),
    (OLD, NOW, When::Always, "CRASHTIME", |f| dec(f.crash_time)),
];

/// Physical address bits a kernel with four-level page tables allows for.
pub const MAX_PHYSMEM_BITS: u32 = 46;

/// `LENGTH(mem_section)`: the number of roots.
pub(crate) fn section_roots(layout: &KernelLayout, model: Model) -> u64 {
    let sections = 1u64 << (MAX_PHYSMEM_BITS - crate::memmap::SECTION_SIZE_BITS);
    if model == Model::Sparse { sections } else { sections.div_ceil(crate::PAGE / layout.mem_section) }
}

/// Offset of `name` in `struct uts_namespace`: behind the reference count until 5.10, first since.
pub(crate) fn uts_name(layout: &KernelLayout) -> u64 {
    if layout.since(5, 11, 0) { 0 } else { 4 }
}

fn fields(layout: &KernelLayout) -> Option<(u64, u64)> {
    match layout.compound {
        Compound::Fields { dtor, order, .. } => Some((dtor, order)),
        _ => None,
    }
}

/// The whole text.
pub(crate) fn text(facts: &Facts<'_>) -> String {
    let mut out = String::new();
    for &(since, until, when, key, value) in KEYS {
        let here = match when {
            When::Always => true,
            When::Sparse => facts.model != Model::Flat,
            When::Vmemmap => facts.model == Model::SparseVmemmap,
            When::Numa => facts.model != Model::Flat,
            When::Uma | When::Flat => facts.model == Model::Flat,
        };
        let version = facts.layout.version;
        if !here || version < since || version >= until {
            continue;
        }
        let symbol = key.strip_prefix("SYMBOL(").and_then(|k| k.strip_suffix(')'));
        let symbol = symbol.and_then(|name| facts.symbols.get(name)).map(|at| format!("{at:x}"));
        if let Some(value) = symbol.or_else(|| value(facts)) {
            let _ = writeln!(out, "{key}={value}");
        }
        // The log's structures come behind its last symbol.
        match key {
            "SYMBOL(clear_seq)" => ring::keys(facts.layout, &mut out),
            "SYMBOL(log_next_idx)" => log_record::keys(facts.layout, facts.log_callers, &mut out),
            _ => {}
        }
    }
    out
}
