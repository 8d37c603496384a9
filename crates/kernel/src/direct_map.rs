//! At which virtual addresses the kernel has all of physical memory, and its own image.

use crate::kernel::Kernel;
use crate::nodes;
pub use crate::own_place::DIRECT_MAP_ALIGN;
use crate::protected;
pub use crate::space::START_KERNEL_MAP;
use crate::virt::VirtAddr;
use coresift_format::{Pfn, PhysAddr, PhysicalMemory};
use std::ops::Range;

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

/// What the mapping of the kernel image adds to a physical address.
#[must_use]
pub const fn image_offset(kernel: &Kernel) -> u64 {
    START_KERNEL_MAP.wrapping_sub(kernel.phys_base)
}

/// The kernel image, and then each run of RAM in the direct map: the segments that a capture kernel makes. `None` where the direct map is
/// not found.
#[must_use]
pub fn segments(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Option<Vec<Mapped>> {
    let offset = offset(kernel, memory)?;
    Some(image(kernel, memory).into_iter().chain(ram(memory, offset)).collect())
}

/// The kernel image, from `_text` to `_end`. Where these symbols are not known, as all before 6.0, what is mapped as the image: the kernel
/// unmaps what lies outside of it (`cleanup_highmap`), to 2 MiB, and within it what it gives back.
fn image(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Vec<Mapped> {
    let physical = |vaddr: u64| vaddr.wrapping_sub(image_offset(kernel));
    let mapped = |vaddr, bytes| Mapped { vaddr, paddr: physical(vaddr), bytes };
    if let Some(image) = protected::image_by_symbols(kernel) {
        return vec![mapped(image.start, image.end - image.start)];
    }
    let area = protected::image_area(kernel);
    let mut reader = kernel.reader(memory);
    let mut pieces: Vec<Mapped> = Vec::new();
    let mut at = area.start;
    while at < area.end {
        let bytes = match reader.contiguous(VirtAddr(at), area.end - at) {
            Ok((phys, bytes)) if phys.0 == physical(at) => {
                match pieces.last_mut() {
                    Some(last) if last.vaddr + last.bytes == at => last.bytes += bytes,
                    _ => pieces.push(mapped(at, bytes)),
                }
                bytes
            }
            Ok((_, elsewhere)) => elsewhere,
            Err(_) => memory.page_size().bytes() as u64,
        };
        at = at.saturating_add(bytes.max(1));
    }
    // 2 MiB can hold what is not RAM.
    let in_ram = |piece: Mapped| {
        let frame = |paddr| PhysAddr(paddr).pfn(memory.page_size());
        ram_within(
            memory,
            START_KERNEL_MAP.wrapping_sub(kernel.phys_base),
            frame(piece.paddr)..frame(piece.paddr.saturating_add(piece.bytes)),
        )
    };
    pieces.into_iter().flat_map(in_ram).collect()
}

/// Each run of RAM, mapped `offset` above its physical address.
pub fn ram(memory: &dyn PhysicalMemory, offset: u64) -> impl Iterator<Item = Mapped> + '_ {
    ram_within(memory, offset, Pfn(0)..memory.ram().end())
}

fn ram_within(memory: &dyn PhysicalMemory, offset: u64, frames: Range<Pfn>) -> impl Iterator<Item = Mapped> + '_ {
    let page = memory.page_size();
    memory.ram().runs(frames.start, frames.end).map(move |(start, end)| {
        let paddr = start.addr(page).0;
        Mapped { vaddr: paddr.wrapping_add(offset), paddr, bytes: end.addr(page).0.saturating_sub(paddr) }
    })
}
