//! Memory that must be in every dump, whatever its `struct page` says.

use crate::kernel::{Kernel, START_KERNEL_MAP};
use crate::virt::VirtAddr;
use coresift_format::{PageSet, PageSize, Pfn, PhysicalMemory};

/// A kind of protected memory.
#[derive(Clone, Debug)]
pub struct Protected {
    /// `kernel image`, `page tables`, `per-cpu areas`.
    pub what: &'static str,
    /// The page frames.
    pub pages: PageSet,
    /// Whether a page of it may still be left out as free: the image as mapped includes the memory of init code and data, which
    /// the kernel gives to the page allocator once it has booted.
    pub free_inside: bool,
}

/// A page table of 4 KiB maps at least 2 MiB, so this many serve 2 TiB of memory mapped by single pages; larger mappings need
/// fewer tables. A dump with more is walked up to here.
const MAX_TABLES: usize = 1 << 20;
/// Size of the image area where VMCOREINFO does not tell (before 4.10): without, and with, `CONFIG_RANDOMIZE_BASE`.
const IMAGE_AREA: u64 = 512 << 20;
const IMAGE_AREA_KASLR: u64 = 1 << 30;

/// The memory to protect in `memory`, and what a user should know about what could not be found.
#[must_use]
pub fn find(kernel: &Kernel, memory: &dyn PhysicalMemory) -> (Vec<Protected>, Vec<String>) {
    let mut notes = Vec::new();
    let page = memory.page_size();
    let area = image_area(kernel);
    let mut image = Vec::new();
    let mut tables = Vec::new();
    let complete = kernel.paging.walk_kernel(
        memory.view().as_mut(),
        MAX_TABLES,
        &mut |table| tables.push((table.pfn(page), table.pfn(page).plus(1))),
        &mut |virt, leaf| {
            if area.contains(&virt) {
                image.push((leaf.frame.pfn(page), leaf.frame.plus(leaf.bytes).pfn(page)));
            }
        },
    );
    if !complete {
        notes.push("the kernel's page tables could not be walked completely; what was reached is protected".to_owned());
    }
    if image.is_empty() {
        notes.push("no mapping of the kernel image was found; it is not protected against being left out".to_owned());
    }
    let set = |ranges: Vec<(Pfn, Pfn)>| PageSet::from_ranges(ranges);
    (
        vec![
            Protected { what: "kernel image", pages: set(image), free_inside: true },
            Protected { what: "page tables", pages: set(tables), free_inside: false },
        ],
        notes,
    )
}

fn image_area(kernel: &Kernel) -> std::ops::Range<VirtAddr> {
    let exported = kernel.info.number("KERNEL_IMAGE_SIZE").ok().flatten().and_then(|n| u64::try_from(n).ok());
    let stext = kernel.info.symbol("_stext").ok().flatten().unwrap_or(VirtAddr(START_KERNEL_MAP));
    let fallback =
        if stext.0.wrapping_sub(START_KERNEL_MAP) < IMAGE_AREA { IMAGE_AREA } else { IMAGE_AREA_KASLR };
    VirtAddr(START_KERNEL_MAP)..VirtAddr(START_KERNEL_MAP.saturating_add(exported.unwrap_or(fallback).min(IMAGE_AREA_KASLR)))
}

/// The page frames that hold the `struct page`s of `start..end`.
#[must_use]
pub fn memmap_pages(kernel: &Kernel, memory: &dyn PhysicalMemory, start: Pfn, end: Pfn) -> Vec<(Pfn, Pfn)> {
    let page: PageSize = memory.page_size();
    let mut reader = kernel.reader(memory);
    let mut found = Vec::new();
    for range in kernel.memmap.covering(start, end) {
        let len = (range.end.0 - range.start.0) * kernel.memmap.struct_size;
        let mut at = 0;
        while at < len {
            match reader.contiguous(range.map.plus(at), len - at) {
                Ok((phys, have)) => {
                    found.push((phys.pfn(page), Pfn(page.pages_for(phys.0 + have))));
                    at += have;
                }
                // Not mapped: nothing to protect. On to the next page.
                Err(_) => at += page.bytes() as u64 - page.offset_of(range.map.0 + at) as u64,
            }
        }
    }
    found
}
