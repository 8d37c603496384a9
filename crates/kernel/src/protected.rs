//! Memory that must be in every dump, whatever its `struct page` says.

use crate::error::{KernelError, Result};
use crate::kernel::Kernel;
use crate::space::START_KERNEL_MAP;
use crate::symbols::Wanted;
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use coresift_format::{PageSet, PageSize, Pfn, PhysAddr, PhysicalMemory};
use std::ops::Range;

/// What is asked for here by name.
pub(crate) const WANTED: Wanted = Wanted {
    symbols: &[
        // The kernel image and the parts of it that are given back once the kernel has booted.
        "_text",
        "_end",
        "_etext",
        "__start_rodata",
        "__end_rodata",
        "_sdata",
        "__init_begin",
        "__init_end",
        "__smp_locks",
        "__smp_locks_end",
        "__start_bss_decrypted_unused",
        "__end_bss_decrypted",
        "__brk_base",
        // The first chunk of per-cpu memory (mm/percpu.c).
        "pcpu_base_addr",
        "pcpu_unit_offsets",
        "pcpu_nr_units",
        "pcpu_first_chunk",
    ],
    members: &[("pcpu_chunk", "base_addr"), ("pcpu_chunk", "nr_pages")],
    ..Wanted::NONE
};

/// A kind of protected memory.
#[derive(Clone, Debug)]
pub struct Protected {
    /// `kernel image`, `page tables`, `per-cpu areas`, `mem_map`.
    pub what: &'static str,
    /// The page frames.
    pub pages: PageSet,
    /// Whether a page of it may still be left out as free. So it is with the image where its parts are not known: what is mapped
    /// of it includes the memory of init code and data, which the kernel gives to the page allocator once it has booted.
    pub free_inside: bool,
}

/// What the kernel image is called in [`Protected::what`].
pub const IMAGE: &str = "kernel image";

/// What the memory map is called there: all of it, that of page frames that are left out too, so that each chunk of page frames can be
/// decided without the others. It is the kernel's own and stays anyway, unless its `struct page`s are wrong.
pub const MEM_MAP: &str = "mem_map";

/// A page table of 4 KiB maps at least 2 MiB, so this many serve 2 TiB of memory mapped by single pages; larger mappings need
/// fewer tables. A dump with more is walked up to here.
const MAX_TABLES: usize = 1 << 20;
/// Size of the image area where VMCOREINFO does not tell (before 4.10): without, and with, `CONFIG_RANDOMIZE_BASE`.
const IMAGE_AREA: u64 = 512 << 20;
const IMAGE_AREA_KASLR: u64 = 1 << 30;
/// The most per-cpu units (cpus) and the largest unit that a torn dump can make us believe in.
const MAX_UNITS: u32 = 1 << 16;
const MAX_UNIT_BYTES: u64 = 64 << 20;

/// Bytes of memory map translated at a time: those of one section.
const MAP_PIECE: u64 = 2 << 20;

/// Ranges of page frames that are collected before they are merged: 1 MiB of them.
const MERGE_AT: usize = 1 << 16;

/// The memory to protect in `memory`, and what a user should know about what could not be found.
#[must_use]
pub fn find(kernel: &Kernel, memory: &dyn PhysicalMemory) -> (Vec<Protected>, Vec<String>) {
    let mut notes = Vec::new();
    let page = memory.page_size();
    let parts = image_parts(kernel);
    let exact = parts.is_ok();
    let parts = parts.unwrap_or_else(|_| vec![image_extent(kernel)]);
    let mut image = Vec::new();
    let mut tables = Vec::new();
    let complete = kernel.paging.walk_kernel(
        memory.view().as_mut(),
        MAX_TABLES,
        &mut |table| tables.push((table.pfn(page), table.pfn(page).plus(1))),
        &mut |virt, leaf| {
            for part in &parts {
                let start = part.start.max(virt.0);
                let end = part.end.min(virt.0.saturating_add(leaf.bytes));
                if start < end {
                    let first = leaf.frame.plus(start - virt.0);
                    image.push((first.pfn(page), Pfn(page.pages_for(first.0.saturating_add(end - start)))));
                }
            }
        },
    );
    if !complete {
        notes.push("the kernel's page tables could not be walked completely; what was reached is protected".to_owned());
    }
    if image.is_empty() {
        notes.push("no mapping of the kernel image was found; it is not protected against being left out".to_owned());
    }
    let mut found = vec![
        Protected { what: IMAGE, pages: PageSet::from_ranges(image), free_inside: !exact },
        Protected { what: "page tables", pages: PageSet::from_ranges(tables), free_inside: false },
    ];
    match per_cpu_areas(kernel, memory) {
        Ok(pages) => found.push(Protected { what: "per-cpu areas", pages, free_inside: false }),
        // Why the symbols cannot be read is for their reader to say, once.
        Err(_) if kernel.symbols.is_err() => {}
        Err(e) => notes.push(format!("per-cpu areas are not protected against being left out: {e}")),
    }
    found.push(Protected { what: MEM_MAP, pages: memmap(kernel, memory), free_inside: false });
    (found, notes)
}

/// The page frames of the kernel's variables: what of its image is neither code nor read-only, init sections among it. Nothing where
/// its symbols are not known.
#[must_use]
pub fn image_data(kernel: &Kernel, memory: &dyn PhysicalMemory) -> PageSet {
    let symbol = |name| kernel.symbols.as_ref().ok()?.get(name, "finding the kernel's variables").ok();
    let Some((start, end)) = symbol("_sdata").zip(symbol("_end")) else { return PageSet::default() };
    // The image is mapped as a whole.
    let page = memory.page_size();
    let pfn = |at: VirtAddr| PhysAddr(at.0.wrapping_sub(START_KERNEL_MAP).wrapping_add(kernel.phys_base)).pfn(page);
    let (first, last) = (pfn(start), pfn(end));
    let believable = start < end && end.0 - start.0 <= IMAGE_AREA_KASLR && first < last && last < memory.max_pfn();
    PageSet::from_ranges(believable.then(|| (first, last.plus(1))))
}

/// The parts of the kernel image that stay in use, by its symbols: all but what the kernel gives back to the page allocator when
/// it has booted. `free_initmem` gives back the init sections, `mark_rodata_ro` the gaps around read-only data,
/// `alternatives_smp_module_del` and its like the lock prefixes, `mem_encrypt_free_decrypted_mem` the decrypted data that is not
/// needed without memory encryption; of the brk area only page tables remain in use.
fn image_parts(kernel: &Kernel) -> Result<Vec<Range<u64>>> {
    let symbols = kernel.symbols.as_ref().map_err(Clone::clone)?;
    let at = |name| symbols.get(name, "telling the parts of the kernel image").map(|a| a.0);
    let end = at("_end")?;
    let mut given_back = vec![
        (at("_etext")?, at("__start_rodata")?),
        (at("__end_rodata")?, at("_sdata")?),
        (at("__init_begin")?, at("__init_end")?),
        (at("__brk_base")?, end),
    ];
    for optional in [("__smp_locks", "__smp_locks_end"), ("__start_bss_decrypted_unused", "__end_bss_decrypted")] {
        if let (Ok(start), Ok(stop)) = (at(optional.0), at(optional.1)) {
            given_back.push((start, stop));
        }
    }
    given_back.sort_unstable();
    let mut parts = Vec::new();
    let mut from = at("_text")?;
    for (start, stop) in given_back {
        let page = PageSize::K4.bytes() as u64;
        // Pages that hold a byte of something else stay.
        let (start, stop) = (start.checked_next_multiple_of(page).unwrap_or(u64::MAX), stop / page * page);
        if start < stop && start >= from {
            parts.push(from..start);
            from = stop;
        }
    }
    parts.push(from..end.max(from));
    Ok(parts)
}

/// The whole kernel image: by its symbols, else by the program header a capture kernel makes for it, else whatever is mapped in
/// the image area. Its last mapping is of 2 MiB, so that the area can hold memory behind the image that has nothing to do with it.
fn image_extent(kernel: &Kernel) -> Range<u64> {
    let area = image_area(kernel);
    let stext = kernel.info.symbol("_stext").ok().flatten();
    let by_header = kernel.image.clone().filter(|image| stext.is_none_or(|at| image.contains(&at)));
    let by_header = by_header.and_then(|image| within(&area, image.start.0..image.end.0));
    image_by_symbols(kernel).or(by_header).unwrap_or(area)
}

/// The kernel image by its symbols `_text` and `_end`; `None` where they are not known.
pub(crate) fn image_by_symbols(kernel: &Kernel) -> Option<Range<u64>> {
    let symbols = kernel.symbols.as_ref().ok()?;
    let symbol = |name| symbols.get(name, "finding the kernel image").ok();
    within(&image_area(kernel), symbol("_text")?.0..symbol("_end")?.0)
}

/// What of `range` lies in `area`; `None` for nothing.
fn within(area: &Range<u64>, range: Range<u64>) -> Option<Range<u64>> {
    let part = range.start.max(area.start)..range.end.min(area.end);
    (!part.is_empty()).then_some(part)
}

/// Where the kernel image is mapped, somewhere.
pub(crate) fn image_area(kernel: &Kernel) -> Range<u64> {
    let exported = kernel.info.number("KERNEL_IMAGE_SIZE").ok().flatten().and_then(|n| u64::try_from(n).ok());
    let stext = kernel.info.symbol("_stext").ok().flatten().unwrap_or(VirtAddr(START_KERNEL_MAP));
    let fallback = if stext.0.wrapping_sub(START_KERNEL_MAP) < IMAGE_AREA { IMAGE_AREA } else { IMAGE_AREA_KASLR };
    START_KERNEL_MAP..START_KERNEL_MAP.saturating_add(exported.unwrap_or(fallback).min(IMAGE_AREA_KASLR))
}

/// The first chunk of per-cpu memory, one unit a cpu: all static per-cpu variables and the first dynamic ones. Later chunks are
/// vmalloc memory like any other. What a unit has beyond the chunk's dynamic part was given back when it was set up.
fn per_cpu_areas(kernel: &Kernel, memory: &dyn PhysicalMemory) -> Result<PageSet> {
    const PURPOSE: &str = "finding the per-cpu areas";
    let symbols = kernel.symbols.as_ref().map_err(Clone::clone)?;
    let page = memory.page_size();
    let mut reader = kernel.reader(memory);
    let base = VirtAddr(reader.read_u64(symbols.get("pcpu_base_addr", PURPOSE)?)?);
    let offsets = VirtAddr(reader.read_u64(symbols.get("pcpu_unit_offsets", PURPOSE)?)?);
    let units = reader.read_u32(symbols.get("pcpu_nr_units", PURPOSE)?)?.min(MAX_UNITS);
    let chunk = VirtAddr(reader.read_u64(symbols.get("pcpu_first_chunk", PURPOSE)?)?);
    let dynamic = reader.read_u64(chunk.plus(symbols.offset("pcpu_chunk", "base_addr", PURPOSE)?))?;
    let pages = reader.read_u32(chunk.plus(symbols.offset("pcpu_chunk", "nr_pages", PURPOSE)?))?;
    let unit = dynamic.wrapping_sub(base.0).saturating_add(u64::from(pages) << page.shift()).min(MAX_UNIT_BYTES);
    let mut found = PageSet::default();
    // All areas together are memory; where they are more, what the kernel says of them is not to be believed.
    let mut room = memory.ram().len().min(memory.data_pages()).saturating_mul(page.bytes() as u64);
    let mut some = Vec::new();
    for cpu in 0..u64::from(units) {
        let area = base.plus(reader.read_u64(offsets.plus(cpu * 8))?);
        room = room.checked_sub(unit).ok_or_else(|| KernelError::Implausible {
            what: "the size of the per-cpu areas",
            addr: chunk,
            value: unit.saturating_mul(u64::from(units)),
            hint: ", more than the memory of the dump",
        })?;
        some.extend(pages_behind(&mut reader, area, unit, page));
        if some.len() >= MERGE_AT {
            found = PageSet::from_ranges(found.all_runs().chain(some.drain(..)));
        }
    }
    Ok(PageSet::from_ranges(found.all_runs().chain(some)))
}

/// The page frames that hold the memory map. With vmemmap optimised hugetlb pages many of its addresses share one.
fn memmap(kernel: &Kernel, memory: &dyn PhysicalMemory) -> PageSet {
    let mut reader = kernel.reader(memory);
    let mut found = PageSet::default();
    let mut some = Vec::new();
    for range in kernel.memmap.ranges() {
        let len = (range.end.0 - range.start.0).saturating_mul(kernel.memmap.struct_size);
        for at in (0..len).step_by(MAP_PIECE as usize) {
            some.extend(pages_behind(&mut reader, range.map.plus(at), MAP_PIECE.min(len - at), memory.page_size()));
            if some.len() >= MERGE_AT {
                found = PageSet::from_ranges(found.all_runs().chain(some.drain(..)));
            }
        }
    }
    PageSet::from_ranges(found.all_runs().chain(some))
}

/// The page frames behind `len` bytes of virtual memory. What is not mapped has none.
pub(crate) fn pages_behind(reader: &mut KernelReader<'_>, addr: VirtAddr, len: u64, page: PageSize) -> Vec<(Pfn, Pfn)> {
    let mut found: Vec<(Pfn, Pfn)> = Vec::new();
    let mut at = 0;
    while at < len {
        match reader.contiguous(addr.plus(at), len - at) {
            Ok((phys, have)) => {
                let (start, end) = (phys.pfn(page), Pfn(page.pages_for(phys.0.saturating_add(have))));
                match found.last_mut() {
                    Some((_, last)) if *last == start => *last = end,
                    _ => found.push((start, end)),
                }
                at += have;
            }
            Err(_) => at += (page.bytes() - page.offset_of(addr.0.wrapping_add(at))) as u64,
        }
    }
    found
}
