//! VMCOREINFO made of a vmlinux: what `makedumpfile -g` writes.

use super::{DwarfTypes, Vmlinux};
use crate::error::{KernelError, Result};
use crate::types::{Ask, Tag, TypeSource};
use std::collections::HashMap;
use std::fmt::Write;

/// A line, by what it tells.
enum Line {
    /// `SYMBOL(key)`: the link address of the symbol of that name.
    Symbol(&'static str),
    /// `SIZE(key)`: of the struct.
    Size(&'static str),
    /// `SIZE(key)`: of a typedef or an enum.
    SizeOf(Tag, &'static str),
    /// `OFFSET(struct.key)`: of the first member there is of those behind; the key is that of the first.
    Offset(&'static str, &'static [&'static str]),
    /// `OFFSET(struct.member)` under that member's own name.
    OffsetAs(&'static str, &'static str),
    /// `LENGTH(key)`: of the array that a variable is. Its value says that it is one, not how long.
    IsArray(&'static str),
    /// `LENGTH(struct.member)` of the array that a member is.
    Length(&'static str, &'static str),
    /// `NUMBER(key)`: an enumerator.
    Number(&'static str),
    /// `NUMBER(key)`: 2 to the power of the first enumerator there is.
    Mask(&'static str, &'static [&'static str]),
    /// `NUMBER(key)`: a page type since Linux 6.12, whose enumerator is the high byte of `_mapcount`.
    PageType(&'static str, &'static str),
    /// `SRCFILE(key)`: where a typedef is declared.
    SourceFile(&'static str),
}

use Line::{IsArray, Length, Mask, Number, Offset, OffsetAs, PageType, Size, SizeOf, SourceFile, Symbol};

/// When a group of lines is written.
enum When {
    Always,
    /// The kernel has this symbol.
    Symbol(&'static str),
    /// It has not the symbol, but the struct.
    StructWithout(&'static str, &'static str),
}

/// What readers take for "an array, of a length that is not told" (makedumpfile's FOUND_ARRAY_TYPE, LONG_MAX - 1).
const FOUND_ARRAY: u64 = (u64::MAX >> 1) - 1;
/// The symbol of the lockless ring of Linux 5.10.
const RING: &str = "prb";

/// All lines in the order in which makedumpfile 1.7.9 writes them. Left out: `SYMBOL(pkmap_count_next)` (highmem, i386), which is no
/// symbol but the next one's address. Those that makedumpfile does not write come last.
const LINES: &[(When, &[Line])] = &[
    (
        When::Always,
        &[
            Symbol("mem_map"),
            Symbol("vmem_map"),
            Symbol("mem_section"),
            Symbol("pkmap_count"),
            Symbol("system_utsname"),
            Symbol("init_uts_ns"),
            Symbol("_stext"),
            Symbol("swapper_pg_dir"),
            Symbol("init_level4_pgt"),
            Symbol("level4_kernel_pgt"),
            Symbol("init_top_pgt"),
            Symbol("vmlist"),
            Symbol("vmap_area_list"),
            Symbol("node_online_map"),
            Symbol("node_states"),
            Symbol("node_data"),
            Symbol("pgdat_list"),
            Symbol("contig_page_data"),
            Symbol(RING),
            Symbol("clear_seq"),
            Symbol("log_buf"),
            Symbol("log_buf_len"),
            Symbol("log_end"),
            Symbol("log_first_idx"),
            Symbol("clear_idx"),
            Symbol("log_next_idx"),
            Symbol("max_pfn"),
            Symbol("high_memory"),
            Symbol("node_remap_start_vaddr"),
            Symbol("node_remap_end_vaddr"),
            Symbol("node_remap_start_pfn"),
            Symbol("vmemmap_list"),
            Symbol("mmu_psize_defs"),
            Symbol("mmu_vmemmap_psize"),
            Symbol("cpu_pgd"),
            Symbol("demote_segment_4k"),
            Symbol("cur_cpu_spec"),
            Symbol("free_huge_page"),
            Size("page"),
            Size("mem_section"),
            Size("pglist_data"),
            Size("zone"),
            Size("free_area"),
            Size("list_head"),
            Size("node_memblk_s"),
            SizeOf(Tag::Typedef, "nodemask_t"),
        ],
    ),
    (When::Symbol(RING), &[Size("printk_ringbuffer"), Size("prb_desc"), Size("printk_info"), Size("latched_seq")]),
    (When::StructWithout("printk_log", RING), &[Size("printk_log")]),
    (When::StructWithout("log", RING), &[Size("log")]),
    (
        When::Always,
        &[
            Size("vmemmap_backing"),
            Size("mmu_psize_def"),
            Offset("page", &["flags"]),
            OffsetAs("page", "_count"),
            OffsetAs("page", "_refcount"),
            Offset("page", &["mapping"]),
            Offset("page", &["lru"]),
            Offset("page", &["_mapcount"]),
            Offset("page", &["private"]),
            Offset("page", &["compound_dtor"]),
            Offset("page", &["compound_order"]),
            // Renamed by Linux 7.1; makedumpfile writes it under the old name.
            Offset("page", &["compound_head", "compound_info"]),
            Offset("folio", &["_folio_dtor"]),
            Offset("folio", &["_folio_order"]),
            Offset("mem_section", &["section_mem_map"]),
            Offset("pglist_data", &["node_zones"]),
            Offset("pglist_data", &["nr_zones"]),
            Offset("pglist_data", &["node_mem_map"]),
            Offset("pglist_data", &["node_start_pfn"]),
            Offset("pglist_data", &["node_spanned_pages"]),
            Offset("pglist_data", &["pgdat_next"]),
            Offset("zone", &["free_pages"]),
            Offset("zone", &["free_area"]),
            Offset("zone", &["vm_stat"]),
            Offset("zone", &["spanned_pages"]),
            Offset("free_area", &["free_list"]),
            Offset("list_head", &["next"]),
            Offset("list_head", &["prev"]),
            Offset("node_memblk_s", &["start_paddr"]),
            Offset("node_memblk_s", &["size"]),
            Offset("node_memblk_s", &["nid"]),
            Offset("vm_struct", &["addr"]),
            Offset("vmap_area", &["va_start"]),
            Offset("vmap_area", &["list"]),
        ],
    ),
    (
        When::Symbol(RING),
        &[
            Offset("printk_ringbuffer", &["desc_ring"]),
            Offset("printk_ringbuffer", &["text_data_ring"]),
            Offset("prb_desc_ring", &["count_bits"]),
            Offset("prb_desc_ring", &["descs"]),
            Offset("prb_desc_ring", &["infos"]),
            Offset("prb_desc_ring", &["head_id"]),
            Offset("prb_desc_ring", &["tail_id"]),
            Offset("prb_desc", &["state_var"]),
            Offset("prb_desc", &["text_blk_lpos"]),
            Offset("prb_data_blk_lpos", &["begin"]),
            Offset("prb_data_blk_lpos", &["next"]),
            Offset("prb_data_ring", &["size_bits"]),
            Offset("prb_data_ring", &["data"]),
            Offset("printk_info", &["ts_nsec"]),
            Offset("printk_info", &["text_len"]),
            Offset("printk_info", &["caller_id"]),
            Offset("atomic_long_t", &["counter"]),
            Offset("latched_seq", &["val"]),
        ],
    ),
    (
        When::StructWithout("printk_log", RING),
        &[
            Offset("printk_log", &["ts_nsec"]),
            Offset("printk_log", &["len"]),
            Offset("printk_log", &["text_len"]),
            Offset("printk_log", &["caller_id"]),
        ],
    ),
    (
        When::StructWithout("log", RING),
        &[Offset("log", &["ts_nsec"]), Offset("log", &["len"]), Offset("log", &["text_len"])],
    ),
    (
        When::Always,
        &[
            Offset("vmemmap_backing", &["phys"]),
            Offset("vmemmap_backing", &["virt_addr"]),
            Offset("vmemmap_backing", &["list"]),
            Offset("mmu_psize_def", &["shift"]),
            Offset("cpu_spec", &["mmu_features"]),
            Offset("uts_namespace", &["name"]),
            IsArray("node_data"),
            IsArray("pgdat_list"),
            IsArray("mem_section"),
            IsArray("node_memblk"),
            IsArray("node_remap_start_pfn"),
            Length("zone", "free_area"),
            Length("free_area", "free_list"),
            Number("NR_FREE_PAGES"),
            Number("N_ONLINE"),
            Number("PG_lru"),
            Number("PG_private"),
            Mask("PG_head_mask", &["PG_head", "PG_compound"]),
            Number("PG_swapcache"),
            Number("PG_swapbacked"),
            Number("PG_buddy"),
            Number("PG_slab"),
            Number("PG_hwpoison"),
            Number("PG_hugetlb"),
            Number("HUGETLB_PAGE_DTOR"),
            // makedumpfile reads these, and would have them of the dump's own VMCOREINFO only.
            PageType("PAGE_BUDDY_MAPCOUNT_VALUE", "PGTY_buddy"),
            PageType("PAGE_OFFLINE_MAPCOUNT_VALUE", "PGTY_offline"),
            PageType("PAGE_SLAB_MAPCOUNT_VALUE", "PGTY_slab"),
            PageType("PAGE_HUGETLB_MAPCOUNT_VALUE", "PGTY_hugetlb"),
            PageType("PAGE_UNACCEPTED_MAPCOUNT_VALUE", "PGTY_unaccepted"),
            SourceFile("pud_t"),
        ],
    ),
];

/// The text of VMCOREINFO for `vmlinux`, with link addresses: as `makedumpfile -g` writes it.
///
/// # Errors
/// The file has no symbols, no DWARF or no release, or its memory model cannot be told.
pub fn vmcoreinfo(vmlinux: &Vmlinux) -> Result<String> {
    let release = vmlinux.release().ok_or_else(|| KernelError::DebugInfo {
        file: vmlinux.name().to_owned(),
        what: "the release of the kernel is not in it (linux_banner)".to_owned(),
        next: "give the vmlinux itself, not only its debug information",
    })?;
    let mut types = vmlinux.types()?;
    let text = Writer::new(vmlinux, &mut types)?.write()?;
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    if !has("SIZE(page)=") || !(has("SYMBOL(mem_section)=") || has("SYMBOL(mem_map)=") || has("SYMBOL(node_data)=")) {
        return Err(KernelError::DebugInfo {
            file: vmlinux.name().to_owned(),
            what: "the memory model cannot be told: struct page, mem_section or mem_map are missing".to_owned(),
            next: super::NEXT,
        });
    }
    // x86-64 has one page size, whatever machine this runs on.
    Ok(format!("OSRELEASE={release}\nPAGESIZE=4096\n{text}"))
}

struct Writer<'t, 'd> {
    types: &'t mut DwarfTypes<'d>,
    symbols: HashMap<&'static str, u64>,
    text: String,
}

impl<'t, 'd> Writer<'t, 'd> {
    /// Looks up all names in one pass.
    fn new(vmlinux: &Vmlinux, types: &'t mut DwarfTypes<'d>) -> Result<Self> {
        let lines = || LINES.iter().flat_map(|(_, lines)| lines.iter());
        let names: Vec<&'static str> =
            lines().filter_map(|line| if let Symbol(name) = line { Some(*name) } else { None }).collect();
        let symbols: HashMap<_, _> = vmlinux.symbols(&names)?.into_iter().map(|(name, s)| (name, s.address)).collect();
        let mut asked = Vec::new();
        for line in lines() {
            match line {
                Size(name) | Offset(name, _) | OffsetAs(name, _) | Length(name, _) => {
                    asked.push(Ask::Type(Tag::Struct, name))
                }
                SizeOf(tag, name) => asked.push(Ask::Type(*tag, name)),
                IsArray(name) if symbols.contains_key(name) => asked.push(Ask::Variable(name)),
                Number(name) | PageType(_, name) => asked.push(Ask::Enumerator(name)),
                Mask(_, names) => asked.extend(names.iter().map(|name| Ask::Enumerator(name))),
                SourceFile(name) => asked.push(Ask::Type(Tag::Typedef, name)),
                Symbol(_) | IsArray(_) => {}
            }
        }
        // atomic_long_t is a typedef.
        asked.push(Ask::Type(Tag::Typedef, "atomic_long_t"));
        types.prepare(&asked)?;
        Ok(Self { types, symbols, text: String::new() })
    }

    fn write(mut self) -> Result<String> {
        for (when, lines) in LINES {
            let holds = match when {
                When::Always => true,
                When::Symbol(name) => self.symbols.contains_key(name),
                When::StructWithout(name, symbol) => {
                    !self.symbols.contains_key(symbol) && self.types.find(Tag::Struct, name)?.is_some()
                }
            };
            if holds {
                lines.iter().try_for_each(|line| self.line(line))?;
            }
        }
        Ok(self.text)
    }

    fn put(&mut self, kind: &str, key: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            let _infallible = writeln!(self.text, "{kind}({key})={value}");
        }
    }

    fn line(&mut self, line: &Line) -> Result<()> {
        let types: &mut dyn TypeSource = self.types;
        match line {
            Symbol(name) => {
                let address = self.symbols.get(name).map(|at| format!("{at:x}"));
                self.put("SYMBOL", name, address);
            }
            Size(name) => {
                let size = types.size_of(name)?;
                self.put("SIZE", name, size);
            }
            SizeOf(tag, name) => {
                let size = match types.find(*tag, name)? {
                    Some(of) => types.size(of)?,
                    None => None,
                };
                self.put("SIZE", name, size);
            }
            Offset(name, members) => {
                let mut found = None;
                for member in *members {
                    found = found.or(types.offset_of(name, member)?);
                }
                let first = members.first().copied().unwrap_or_default();
                self.put("OFFSET", &format!("{name}.{first}"), found);
            }
            OffsetAs(name, member) => {
                let found = types.offset_of(name, member)?;
                self.put("OFFSET", &format!("{name}.{member}"), found);
            }
            IsArray(name) => {
                let array = match types.variable(name)? {
                    Some(of) => types.array_lengths(of)?,
                    None => None,
                };
                self.put("LENGTH", name, array.map(|_| FOUND_ARRAY));
            }
            Length(name, member) => {
                let found = match types.find(Tag::Struct, name)? {
                    Some(of) => types.member(of, member)?,
                    None => None,
                };
                let lengths = match found {
                    Some(member) => types.array_lengths(member.of)?,
                    None => None,
                };
                let length = lengths.and_then(|lengths| lengths.first().copied().flatten());
                self.put("LENGTH", &format!("{name}.{member}"), length);
            }
            Number(name) => {
                let value = types.enumerator(name)?;
                self.put("NUMBER", name, value);
            }
            Mask(key, names) => {
                let mut bit = None;
                for name in *names {
                    bit = bit.or(types.enumerator(name)?);
                }
                let mask = bit.and_then(|bit| 1u64.checked_shl(u32::try_from(bit).ok()?));
                self.put("NUMBER", key, mask);
            }
            PageType(key, name) => {
                let high = types.enumerator(name)?.and_then(|value| u8::try_from(value).ok());
                self.put("NUMBER", key, high.map(|high| (u32::from(high) << 24).cast_signed()));
            }
            SourceFile(name) => {
                let file = self.types.declared_in(name)?;
                self.put("SRCFILE", name, file);
            }
        }
        Ok(())
    }
}
