//! The pages of the memory map that describe no page frame worth keeping (`-e` of makedumpfile).

use crate::kernel::Kernel;
use crate::protected::pages_behind;
use coresift_format::{PageSet, Pfn, PhysicalMemory};

/// Ranges of page frames that are collected before they are merged: 1 MiB of them.
const MERGE_AT: usize = 1 << 16;

/// The page frames of the memory map whose `struct page`s all describe RAM that is not in `kept`. A page that serves several parts of
/// the map, as with optimised hugetlb pages, counts as needed when one of them is.
#[must_use]
pub fn find(kernel: &Kernel, memory: &dyn PhysicalMemory, kept: &PageSet) -> PageSet {
    let left_out = memory.ram().without(kept);
    map_of(kernel, memory, &left_out, true).without(&map_of(kernel, memory, kept, false))
}

/// The page frames that hold the `struct page`s of `pages`; `whole`: only those that hold no other.
fn map_of(kernel: &Kernel, memory: &dyn PhysicalMemory, pages: &PageSet, whole: bool) -> PageSet {
    let page = memory.page_size();
    let size = kernel.memmap.struct_size;
    let mut reader = kernel.reader(memory);
    let mut found = PageSet::default();
    let mut some = Vec::new();
    for range in kernel.memmap.ranges() {
        for (start, end) in pages.runs(range.start, range.end) {
            let at = |pfn: Pfn| range.map.plus((pfn.0 - range.start.0).saturating_mul(size)).0;
            let bytes = page.bytes() as u64;
            let (from, to) = if whole {
                (at(start).div_ceil(bytes).saturating_mul(bytes), at(end) / bytes * bytes)
            } else {
                (at(start) / bytes * bytes, at(end).div_ceil(bytes).saturating_mul(bytes))
            };
            if from < to {
                some.extend(pages_behind(&mut reader, crate::virt::VirtAddr(from), to - from, page));
            }
            if some.len() >= MERGE_AT {
                found = PageSet::from_ranges(found.all_runs().chain(some.drain(..)));
            }
        }
    }
    PageSet::from_ranges(found.all_runs().chain(some))
}
