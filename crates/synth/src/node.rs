//! The one memory node: its zones, their free lists and counters.

use crate::layout::KernelLayout;
use crate::memmap::Memmap;
use crate::ram::Ram;
use std::ops::Range;

/// `LENGTH(node_data)`.
pub const MAX_NODES: u64 = 4;
/// Zones a node has room for: DMA, DMA32, Normal, Movable, Device.
const ZONES: u64 = 5;

/// Offsets in `struct pglist_data`, which begins with its zones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeLayout {
    pub size: u64,
    pub nr_zones: u64,
    pub node_mem_map: u64,
    pub start_pfn: u64,
    pub spanned: u64,
    pub node_id: u64,
    pub free_area: u64,
}

impl NodeLayout {
    pub fn of(layout: &KernelLayout) -> Self {
        // Behind the zones come the zone lists; a few words stand for them.
        let nr_zones = ZONES * layout.zone.size + 160;
        Self {
            size: (nr_zones + 512).next_multiple_of(64),
            nr_zones,
            node_mem_map: nr_zones + 8,
            start_pfn: nr_zones + 16,
            spanned: nr_zones + 32,
            node_id: nr_zones + 40,
            free_area: layout.zone.migrate_types * 16 + 8,
        }
    }
}

/// A zone's number for a page frame: DMA below 16 MiB, DMA32 below 4 GiB, Normal above.
pub(crate) fn zone_of(pfn: u64) -> u64 {
    match pfn {
        0..0x1000 => 0,
        0x1000..0x10_0000 => 1,
        _ => 2,
    }
}

/// A block on a free list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeBlock {
    pub pfn: u64,
    pub order: u32,
}

/// What the node is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    /// Physical address of its `pglist_data`.
    pub paddr: u64,
    /// Virtual address of the same.
    pub virt: u64,
    /// `node_mem_map`.
    pub mem_map: u64,
    /// All RAM.
    pub ram: &'a [Range<u64>],
    /// Free blocks to string on the lists.
    pub blocks: &'a [FreeBlock],
    /// Free pages of the zones DMA, DMA32 and Normal that are counted but on no list.
    pub more_free: [u64; 3],
}

/// Writes the `pglist_data`, and strings the free blocks on its lists.
pub(crate) fn write(ram: &mut Ram, memmap: &Memmap, layout: &KernelLayout, n: &Node<'_>) {
    let node = NodeLayout::of(layout);
    let z = layout.zone;
    let Node { paddr, virt, blocks, .. } = *n;
    let span = n.ram[0].start..n.ram[n.ram.len() - 1].end;
    ram.write_u64(paddr + node.nr_zones, zone_of(span.end - 1) + 1);
    ram.write_u64(paddr + node.node_mem_map, n.mem_map);
    ram.write_u64(paddr + node.start_pfn, span.start);
    ram.write_u64(paddr + node.start_pfn + 8, n.ram.iter().map(|r| r.end - r.start).sum());
    ram.write_u64(paddr + node.spanned, span.end - span.start);
    ram.write_u64(paddr + node.node_id, 0);
    // The counters at the end, so that the last page is not all zero.
    ram.write_u64(paddr + node.size - 8, 1);
    for zone in 0..ZONES {
        let at = zone * z.size;
        let frames = zone_frames(zone, &span);
        // Watermarks and the like, so that no zone is all zero.
        ram.write_u64(paddr + at, 0x20 + zone);
        ram.write_u64(paddr + at + z.spanned, frames.end - frames.start);
        let mut free = n.more_free.get(zone as usize).copied().unwrap_or(0);
        for order in 0..crate::ORDERS {
            let area = at + z.free_area + u64::from(order) * node.free_area;
            let mut count = 0;
            for migrate_type in 0..z.migrate_types {
                let head = area + migrate_type * 16;
                let on_list: Vec<u64> = blocks
                    .iter()
                    .filter(|b| b.order == order && zone_of(b.pfn) == zone && (b.pfn >> order) % 3 == migrate_type)
                    .map(|b| memmap.virt(b.pfn) + layout.page.lru)
                    .collect();
                count += on_list.len() as u64;
                let ring: Vec<u64> = std::iter::once(virt + head).chain(on_list).collect();
                for (i, &entry) in ring.iter().enumerate() {
                    let next = ring[(i + 1) % ring.len()];
                    let prev = ring[(i + ring.len() - 1) % ring.len()];
                    let link = [next.to_le_bytes(), prev.to_le_bytes()].concat();
                    if i == 0 { ram.write(paddr + head, &link) } else { memmap.write(ram, entry, &link) }
                }
            }
            ram.write_u64(paddr + area + z.migrate_types * 16, count);
            free += count << order;
        }
        ram.write_u64(paddr + at + z.vm_stat, free);
    }
}

fn zone_frames(zone: u64, span: &Range<u64>) -> Range<u64> {
    let (from, to) = match zone {
        0 => (0, 0x1000),
        1 => (0x1000, 0x10_0000),
        2 => (0x10_0000, u64::MAX),
        _ => return 0..0,
    };
    let (start, end) = (span.start.max(from), span.end.min(to));
    start..end.max(start)
}
