//! The kernel's own counters of slab and hugetlb pages, by its symbols and types (kallsyms and BTF, Linux 6.0 on).

use crate::error::Result;
use crate::kernel::Kernel;
use crate::symbols::{Symbols, Wanted};
use crate::virt::VirtualMemory;
use coresift_format::PhysicalMemory;

/// What is asked for here by name.
pub(crate) const WANTED: Wanted = Wanted {
    symbols: &["vm_node_stat", "hstates", "hugetlb_max_hstate"],
    members: &[("hstate", "order"), ("hstate", "nr_huge_pages")],
    sizes: &["hstate"],
    enumerators: &["NR_SLAB_RECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE_B"],
};

// Bounds on what a torn dump can make us loop over or shift by.
/// Huge page sizes a kernel can have (`HUGE_MAX_HSTATE` is 2 on x86-64).
const MAX_HSTATES: u32 = 16;
/// Order of the largest huge page, in any architecture's smallest pages.
const MAX_ORDER: u32 = 32;
/// Items of `vm_node_stat`; there are about 60.
const MAX_ITEMS: u64 = 1024;

/// What the kernel counted, in pages.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Slab memory, `kmalloc` of more than a slab holds included (`NR_SLAB_RECLAIMABLE_B` + `NR_SLAB_UNRECLAIMABLE_B`).
    pub slab: Result<u64>,
    /// hugetlb pages of all sizes, used and free (`nr_huge_pages`).
    pub hugetlb: Result<u64>,
}

impl Counters {
    /// Reads the counters in `memory`.
    #[must_use]
    pub fn read(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Self {
        let mut reader = kernel.reader(memory);
        let symbols = kernel.symbols.as_ref().map_err(Clone::clone);
        Self {
            slab: symbols.clone().and_then(|s| slab(s, &mut reader)),
            hugetlb: symbols.and_then(|s| hugetlb(s, &mut reader)),
        }
    }
}

fn slab(symbols: &Symbols, memory: &mut dyn VirtualMemory) -> Result<u64> {
    const PURPOSE: &str = "the kernel's count of slab pages";
    let table = symbols.get("vm_node_stat", PURPOSE)?;
    let mut sum = 0u64;
    for name in ["NR_SLAB_RECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE_B"] {
        let index = symbols.enumerator(name, PURPOSE)?.min(MAX_ITEMS);
        let pages = memory.read_u64(table.plus(index * 8))?.cast_signed();
        sum = sum.saturating_add(u64::try_from(pages).unwrap_or(0));
    }
    Ok(sum)
}

fn hugetlb(symbols: &Symbols, memory: &mut dyn VirtualMemory) -> Result<u64> {
    const PURPOSE: &str = "the kernel's count of hugetlb pages";
    let size = symbols.size("hstate", PURPOSE)?;
    let order_at = symbols.offset("hstate", "order", PURPOSE)?;
    let pages_at = symbols.offset("hstate", "nr_huge_pages", PURPOSE)?;
    let states = symbols.get("hstates", PURPOSE)?;
    let count = memory.read_u32(symbols.get("hugetlb_max_hstate", PURPOSE)?)?.min(MAX_HSTATES);
    let mut sum = 0u64;
    for i in 0..u64::from(count) {
        let state = states.plus(i.wrapping_mul(size));
        let order = memory.read_u32(state.plus(order_at))?.min(MAX_ORDER);
        sum = sum.saturating_add(memory.read_u64(state.plus(pages_at))?.saturating_mul(1 << order));
    }
    Ok(sum)
}
