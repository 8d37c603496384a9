//! What a debugger reads before anything else of the memory map: where it hangs, not what it says of pages.

use crate::direct_map;
use crate::direct_map::image_offset;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memmap::{MapRange, MemoryModel};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use coresift_format::{PageSet, PageSize, PhysicalMemory};
use std::collections::BTreeSet;

/// Roots of an EXTREME array: those of 52-bit physical addresses in sections of 128 MiB, 256 to a page.
const MAX_ROOTS: u64 = 1 << 17;
/// Page tables looked at, and pieces remembered: 16 MiB. What lies beyond is written later.
const MAX_TABLES: usize = 1 << 16;
const MAX_VMALLOC: usize = 1 << 20;

/// The page frames mapped by vmalloc and for modules: task stacks, module text and data, large tables. Told as what the kernel maps
/// outside the linear map, its image and the memory map; nothing where the linear map is not found.
#[must_use]
pub fn vmalloc(kernel: &Kernel, memory: &dyn PhysicalMemory) -> PageSet {
    let Some(linear) = direct_map::offset(kernel, memory) else { return PageSet::default() };
    let image = image_offset(kernel);
    let in_memmap = |virt: VirtAddr| {
        let len = |r: &MapRange| (r.end.0 - r.start.0).saturating_mul(kernel.memmap.struct_size);
        kernel.memmap.ranges().iter().any(|r| virt >= r.map && virt.0 - r.map.0 < len(r))
    };
    let page = memory.page_size();
    let mut pages = Vec::new();
    kernel.paging.walk_kernel(memory.view().as_mut(), MAX_TABLES, &mut |_| {}, &mut |virt, leaf| {
        let offset = virt.0.wrapping_sub(leaf.frame.0);
        if offset != linear && offset != image && pages.len() < MAX_VMALLOC && !in_memmap(virt) {
            pages.push((leaf.frame.pfn(page), leaf.frame.plus(leaf.bytes).pfn(page)));
        }
    });
    PageSet::from_ranges(pages)
}

/// Where the array that SYMBOL(mem_section) names lies and, with EXTREME, the pages of sections it points at: addresses and bytes.
///
/// # Errors
/// VMCOREINFO has a value that makes no sense, or the array cannot be read.
pub(crate) fn sections(
    kernel: &Kernel,
    reader: &mut KernelReader<'_>,
    page: PageSize,
) -> Result<BTreeSet<(VirtAddr, u64)>> {
    let mut pieces = BTreeSet::new();
    let (Some(array), Some(size), Some(bits)) =
        (kernel.info.symbol("mem_section")?, kernel.info.size("mem_section")?, kernel.memmap.section_shift)
    else {
        return Ok(pieces);
    };
    let per_root = (page.bytes() as u64 / size).max(1);
    let extreme = kernel.memmap.model == MemoryModel::SparseExtreme;
    if extreme {
        // crash reads all of it, whatever memory there is.
        let roots = kernel.info.length("mem_section")?.unwrap_or(0).min(MAX_ROOTS);
        pieces.insert((array, roots * 8));
    }
    for range in kernel.memmap.ranges() {
        let sections = range.start.0 >> bits..=(range.end.0 - 1) >> bits;
        if extreme {
            for root in sections.start() / per_root..=sections.end() / per_root {
                pieces.insert((VirtAddr(reader.read_u64(array.plus(root * 8))?), page.bytes() as u64));
            }
        } else {
            let first = array.plus(sections.start() * size);
            pieces.insert((first, (sections.end() - sections.start() + 1) * size));
        }
    }
    Ok(pieces)
}
