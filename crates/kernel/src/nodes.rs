//! NUMA nodes and zones: the kernel's own count of free pages, and its free lists.

use crate::error::{KernelError, Result};
use crate::frame;
use crate::kernel::Kernel;
use crate::page::MAX_ORDERS;
use crate::symbols::{Symbols, Wanted};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use coresift_format::{CHUNK_PAGES, CHUNK_SHIFT, ChunkBits, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use std::collections::BTreeMap;

/// More zones than any kernel has in a node; a bound on what a torn dump can make us loop over.
const MAX_ZONES: u32 = 16;
/// Nodes of a node mask of 1024 bits, the largest x86-64 configures.
const MAX_NODES: u64 = 1024;

/// Kinds of free lists of an order; there are about six.
const MAX_TYPES: u64 = 64;

/// The free pages of one chunk. A list that is spread over many chunks must not take a bitmap for each.
enum ChunkFree {
    Runs(Vec<(u16, u16)>),
    Bits(ChunkBits),
}

/// As many runs take the memory of a bitmap.
const MAX_RUNS: usize = CHUNK_PAGES as usize / 8 / 4;

impl Default for ChunkFree {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl ChunkFree {
    /// Adds the pages `start..end` of the chunk. Blocks are aligned to their size, so that none is in two chunks.
    fn add(&mut self, start: u64, end: u64) {
        match self {
            Self::Runs(runs) if runs.len() < MAX_RUNS => runs.push((start as u16, (end - 1) as u16)),
            Self::Runs(_) => {
                let mut bits = std::mem::take(self).into_bits();
                bits.set(start, end);
                *self = Self::Bits(bits);
            }
            Self::Bits(bits) => bits.set(start, end),
        }
    }

    fn into_bits(self) -> ChunkBits {
        match self {
            Self::Bits(bits) => bits,
            Self::Runs(runs) => {
                let mut bits = ChunkBits::default();
                for (first, last) in runs {
                    bits.set(u64::from(first), u64::from(last) + 1);
                }
                bits
            }
        }
    }
}

/// What [`spans`] asks for by name.
pub const SPANS_WANTED: Wanted = Wanted {
    members: &[("zone", "zone_start_pfn"), ("zone", "spanned_pages"), ("zone", "name"), ("pglist_data", "node_id")],
    ..Wanted::NONE
};
/// The longest name of a zone: `Movable` and `DMA32` are real ones.
const MOST_ZONE_NAME: usize = 16;

/// The page frames that a zone spans; those of other zones and holes can be among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSpan {
    /// First page frame.
    pub start: Pfn,
    /// One more than the last.
    pub end: Pfn,
    /// The NUMA node.
    pub node: u32,
    /// The zone's name.
    pub name: String,
}

/// The spans of all populated zones, by `symbols`, those that [`SPANS_WANTED`] found.
///
/// # Errors
/// The kernel does not tell what leads to them, or they cannot be read.
pub fn spans(kernel: &Kernel, memory: &dyn PhysicalMemory, symbols: &Symbols) -> Result<Vec<ZoneSpan>> {
    const PURPOSE: &str = "telling the zones of pages";
    let at = |structure, member| symbols.offset(structure, member, PURPOSE);
    let (start, spanned, name) = (at("zone", "zone_start_pfn")?, at("zone", "spanned_pages")?, at("zone", "name")?);
    let node_id = at("pglist_data", "node_id")?;
    let mut reader = kernel.reader(memory);
    let mut spans = Vec::new();
    for (node, zone) in zones(kernel, &mut reader)? {
        let start = reader.read_u64(zone.plus(start))?;
        let end = start.saturating_add(reader.read_u64(zone.plus(spanned))?);
        let text = VirtAddr(reader.read_u64(zone.plus(name))?);
        let name = frame::text(&mut reader, text, MOST_ZONE_NAME)?;
        spans.push(ZoneSpan { start: Pfn(start), end: Pfn(end), node: reader.read_u32(node.plus(node_id))?, name });
    }
    Ok(spans)
}

/// The addresses of all nodes (`struct pglist_data`).
///
/// # Errors
/// VMCOREINFO lacks what leads to the nodes, or it cannot be read.
pub fn addresses(kernel: &Kernel, reader: &mut KernelReader<'_>) -> Result<Vec<VirtAddr>> {
    let info = &kernel.info;
    let mut nodes = Vec::new();
    if let Some(table) = info.symbol("node_data")? {
        let mask = info.symbol("node_online_map")?;
        let nodes_max = info.size("nodemask_t")?.map_or(1, |n| n.saturating_mul(8)).min(MAX_NODES);
        for node in 0..nodes_max {
            let online = match mask {
                Some(mask) => reader.read_u64(mask.plus(node / 64 * 8))? >> (node % 64) & 1 == 1,
                None => node == 0,
            };
            if online {
                nodes.push(VirtAddr(reader.read_u64(table.plus(node * 8))?));
            }
        }
    } else {
        nodes.push(VmcoreInfo::require(
            info.symbol("contig_page_data")?,
            "SYMBOL(node_data) or SYMBOL(contig_page_data)",
            "finding the nodes",
        )?);
    }
    Ok(nodes)
}

/// The addresses of all populated zones, each behind that of its node.
///
/// # Errors
/// VMCOREINFO lacks what leads to the nodes, or they cannot be read.
fn zones(kernel: &Kernel, reader: &mut KernelReader<'_>) -> Result<Vec<(VirtAddr, VirtAddr)>> {
    const PURPOSE: &str = "finding the zones";
    let info = &kernel.info;
    let need = |value: Option<u64>, key: &str| VmcoreInfo::require(value, key, PURPOSE);
    let node_zones = need(info.offset("pglist_data.node_zones")?, "OFFSET(pglist_data.node_zones)")?;
    let nr_zones = need(info.offset("pglist_data.nr_zones")?, "OFFSET(pglist_data.nr_zones)")?;
    let zone_size = need(info.size("zone")?, "SIZE(zone)")?;
    let spanned = need(info.offset("zone.spanned_pages")?, "OFFSET(zone.spanned_pages)")?;

    let nodes = addresses(kernel, reader)?;
    let mut zones = Vec::new();
    for node in nodes {
        for i in 0..reader.read_u32(node.plus(nr_zones))?.min(MAX_ZONES) {
            let zone = node.plus(node_zones + u64::from(i) * zone_size);
            if reader.read_u64(zone.plus(spanned))? != 0 {
                zones.push((node, zone));
            }
        }
    }
    Ok(zones)
}

/// The number of free pages as the zones count them (`NR_FREE_PAGES`). Pages in per-cpu lists and in the counters' per-cpu
/// differences are not included.
///
/// # Errors
/// VMCOREINFO lacks what leads to the counters, or they cannot be read.
pub fn free_pages(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Result<u64> {
    const PURPOSE: &str = "the kernel's count of free pages";
    let info = &kernel.info;
    let stat = VmcoreInfo::require(info.offset("zone.vm_stat")?, "OFFSET(zone.vm_stat)", PURPOSE)?;
    let index = VmcoreInfo::require(info.number("NR_FREE_PAGES")?, "NUMBER(NR_FREE_PAGES)", PURPOSE)?;
    let index = u64::try_from(index).ok().filter(|i| *i < 256).ok_or_else(|| KernelError::BadValue {
        key: "NUMBER(NR_FREE_PAGES)".to_owned(),
        value: index.to_string(),
        expected: "an index of zone.vm_stat",
    })?;
    let mut reader = kernel.reader(memory);
    let mut sum = 0u64;
    for (_, zone) in zones(kernel, &mut reader)? {
        let value = reader.read_u64(zone.plus(stat + index * 8))?.cast_signed();
        sum = sum.saturating_add(u64::try_from(value).unwrap_or(0));
    }
    Ok(sum)
}

/// The free pages by the free lists of all zones, for kernels whose free pages carry no mark of their own (before 2.6.18 by
/// flag, 3.9 by exported type).
///
/// # Errors
/// VMCOREINFO lacks what the walk needs, or a list is broken; which lists were not walked is not known then, so that nothing
/// counts as free.
pub fn walk_free_lists(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Result<PageSet> {
    const PURPOSE: &str = "walking the free lists";
    let info = &kernel.info;
    let need = |value: Option<u64>, key: &str| VmcoreInfo::require(value, key, PURPOSE);
    let area_at = need(info.offset("zone.free_area")?, "OFFSET(zone.free_area)")?;
    let area_size = need(info.size("free_area")?, "SIZE(free_area)")?;
    let orders = need(info.length("zone.free_area")?, "LENGTH(zone.free_area)")?;
    let list_at = need(info.offset("free_area.free_list")?, "OFFSET(free_area.free_list)")?;
    let types = info.length("free_area.free_list")?.unwrap_or(1);
    let head_size = need(info.size("list_head")?, "SIZE(list_head)")?;
    let next_at = need(info.offset("list_head.next")?, "OFFSET(list_head.next)")?;
    let prev_at = need(info.offset("list_head.prev")?, "OFFSET(list_head.prev)")?;
    let lru = need(info.offset("page.lru")?, "OFFSET(page.lru)")?;
    if orders > MAX_ORDERS || types > MAX_TYPES {
        return Err(KernelError::BadValue {
            key: "LENGTH(zone.free_area), LENGTH(free_area.free_list)".to_owned(),
            value: format!("{orders}, {types}"),
            expected: "16 and 64 at most",
        });
    }
    let page = memory.page_size().bytes() as u64;
    let mut reader = kernel.reader(memory);
    let mut chunks: BTreeMap<u64, ChunkFree> = BTreeMap::new();
    // No list can hold more pages than there are, nor more blocks than the dump has struct pages, so a circle ends.
    let mut budget = memory.ram().len();
    let mut blocks = memory.data_pages().saturating_mul(page) / kernel.memmap.struct_size;
    for (_, zone) in zones(kernel, &mut reader)? {
        for order in 0..orders {
            for kind in 0..types {
                let head = zone.plus(area_at + order * area_size + list_at + kind * head_size);
                let mut previous = head;
                let mut entry = VirtAddr(reader.read_u64(head.plus(next_at))?);
                while entry != head {
                    let broken = |what, value| KernelError::Implausible {
                        what,
                        addr: entry,
                        value,
                        hint: "; the free list is broken",
                    };
                    let back = reader.read_u64(entry.plus(prev_at))?;
                    let pfn = kernel.memmap.pfn_of(VirtAddr(entry.0.wrapping_sub(lru)));
                    let Some(pfn) = pfn.filter(|p| back == previous.0 && u64::from(p.0.trailing_zeros()) >= order)
                    else {
                        return Err(broken("an entry of a free list", back));
                    };
                    let too_long = || broken("the length of a free list", order);
                    blocks = blocks.checked_sub(1).ok_or_else(too_long)?;
                    if memory.ram().contains(pfn) {
                        budget = budget.checked_sub(1 << order).ok_or_else(too_long)?;
                        let inside = pfn.0 % CHUNK_PAGES;
                        chunks.entry(pfn.0 >> CHUNK_SHIFT).or_default().add(inside, inside + (1 << order));
                    }
                    previous = entry;
                    entry = VirtAddr(reader.read_u64(entry.plus(next_at))?);
                }
            }
        }
    }
    let mut set = PageSetBuilder::default();
    for (chunk, free) in chunks {
        set.push(chunk, &free.into_bits());
    }
    Ok(set.finish())
}
