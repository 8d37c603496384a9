//! At which virtual addresses the kernel has all of physical memory, and its own image.

use crate::kernel::Kernel;
use crate::nodes;
use crate::protected;
use crate::space::START_KERNEL_MAP;
use coresift_format::PhysicalMemory;

/// A piece of physical memory as the kernel maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its virtual address.
    pub vaddr: u64,
    /// Its physical address.
    pub paddr: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What the direct map adds to a physical address (PAGE_OFFSET, moved by KASLR), told by where a node's `pglist_data` lies; `None` where
/// no node is found or its memory is not mapped.
#[must_use]
pub fn offset(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Option<u64> {
    let mut reader = kernel.reader(memory);
    let node = *nodes::addresses(kernel, &mut reader).ok()?.first()?;
    Some(node.0.wrapping_sub(reader.translate(node).ok()?.0.0))
}

/// The kernel image, where its symbols tell it, and then each run of RAM in the direct map: the segments that a capture kernel makes.
/// `None` where the direct map is not found.
#[must_use]
pub fn segments(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Option<Vec<Mapped>> {
    let offset = offset(kernel, memory)?;
    let page = memory.page_size();
    let image = protected::image_by_symbols(kernel).map(|image| Mapped {
        vaddr: image.start,
        paddr: image.start.wrapping_sub(START_KERNEL_MAP).wrapping_add(kernel.phys_base),
        bytes: image.end - image.start,
    });
    let ram = memory.ram().all_runs().map(|(start, end)| {
        let paddr = start.0 << page.shift();
        Mapped { vaddr: paddr.wrapping_add(offset), paddr, bytes: (end.0 - start.0) << page.shift() }
    });
    Some(image.into_iter().chain(ram).collect())
}
