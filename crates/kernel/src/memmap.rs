//! Where the `struct page` of each page frame is.

use crate::error::{KernelError, Result};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use coresift_format::{PageSet, Pfn, PhysicalMemory};
use std::fmt;

/// How a kernel lays out its memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryModel {
    /// One array for all page frames.
    Flat,
    /// One array a section; the sections in one array (`CONFIG_SPARSEMEM_STATIC`).
    Sparse,
    /// One array a section; the sections in pages found through a root array (`CONFIG_SPARSEMEM_EXTREME`).
    SparseExtreme,
}

impl fmt::Display for MemoryModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flat => "FLATMEM",
            Self::Sparse => "SPARSEMEM",
            Self::SparseExtreme => "SPARSEMEM_EXTREME",
        })
    }
}

/// A range of page frames whose `struct page`s follow each other in virtual memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRange {
    /// First page frame.
    pub start: Pfn,
    /// One more than the last.
    pub end: Pfn,
    /// Address of the `struct page` of `start`.
    pub map: VirtAddr,
}

/// The kernel's memory map: ranges in ascending order. Page frames outside have no `struct page`.
#[derive(Clone, Debug)]
pub struct MemMap {
    /// The model it was found by.
    pub model: MemoryModel,
    /// Bytes of a `struct page`.
    pub struct_size: u64,
    /// log2 of the page frames in a memory section, where there are sections.
    pub section_shift: Option<u32>,
    ranges: Vec<MapRange>,
    /// The same, by the address of their `struct page`s.
    by_address: Vec<MapRange>,
}

/// `SECTION_MARKED_PRESENT`. A section without it was never there, or is hot-removed.
const SECTION_PRESENT: u64 = 1;
/// Flags in the low bits of `section_mem_map`. Linux 6.15 can use six; the kernel guarantees at least six to be no address.
const SECTION_FLAGS: u64 = (1 << 6) - 1;
/// x86-64 section size and physical address bits where VMCOREINFO does not give them (before Linux 5.14 and 5.9): they never
/// changed between 2.6.31 and then, but for the 52 bits of 5-level kernels.
const X86_64_SECTION_BITS: u32 = 27;
/// Page frame numbers of 52-bit physical addresses, the most x86-64 has: a bound on what a torn ELF header can claim.
const MAX_PFN_BITS: u32 = 40;
/// Struct pages that may share one page of memory map, in pages: those of a 1 GiB hugetlb page or device mapping need 4096 pages,
/// of which the kernel keeps at least one (`CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP`, since 5.14).
const SHARED: u64 = 4096;

impl MemMap {
    /// Finds the memory map of the RAM of `memory`. It is no longer than what the dump stores can be a memory map of, whatever RAM
    /// the dump claims.
    ///
    /// # Errors
    /// Keys are missing, or what they point at is no memory map.
    pub fn find(
        info: &VmcoreInfo,
        kernel: &mut KernelReader<'_>,
        memory: &dyn PhysicalMemory,
        kernel_base: VirtAddr,
    ) -> Result<Self> {
        let (ram, page) = (memory.ram(), memory.page_size());
        const PURPOSE: &str = "finding the memory map";
        let struct_size = VmcoreInfo::require(info.size("page")?, "SIZE(page)", PURPOSE)?;
        if !(32..=1024).contains(&struct_size) {
            return Err(KernelError::MemoryModel {
                why: format!("SIZE(page)={struct_size} is no size of a struct page"),
            });
        }
        let stored = memory.data_pages().saturating_mul(page.bytes() as u64);
        let most = (stored / struct_size).saturating_mul(SHARED);
        let sparse =
            (info.symbol("mem_section")?, info.size("mem_section")?, info.offset("mem_section.section_mem_map")?);
        if let (Some(symbol), Some(size), Some(offset)) = sparse {
            let bits = match info.number("SECTION_SIZE_BITS")? {
                Some(n) => u32::try_from(n).ok().filter(|n| (page.shift() + 1..=40).contains(n)).ok_or_else(|| {
                    KernelError::MemoryModel { why: format!("NUMBER(SECTION_SIZE_BITS)={n} is no section size") }
                })?,
                None => X86_64_SECTION_BITS,
            };
            if size < 8 || size > page.bytes() as u64 || offset > size - 8 {
                return Err(KernelError::MemoryModel {
                    why: format!(
                        "SIZE(mem_section)={size} and OFFSET(mem_section.section_mem_map)={offset} do not go together"
                    ),
                });
            }
            let sections = Sections {
                size,
                offset,
                shift: bits - page.shift(),
                per_root: page.bytes() as u64 / size,
                struct_size,
                kernel_base,
                most,
            };
            return sections.find(info.length("mem_section")?, symbol, kernel, ram);
        }
        if let Some(symbol) = info.symbol("mem_map")? {
            let map = VirtAddr(kernel.read_u64(symbol)?);
            if map < kernel_base {
                return Err(KernelError::Implausible { what: "mem_map", addr: symbol, value: map.0, hint: "" });
            }
            let end = ram.end().0.min(most).min(1 << MAX_PFN_BITS);
            let end = mapped(kernel, map, end * struct_size) / struct_size;
            let all = MapRange { start: Pfn(0), end: Pfn(end), map };
            return Ok(Self::new(MemoryModel::Flat, struct_size, None, (end > 0).then_some(all).into_iter().collect()));
        }
        Err(KernelError::MemoryModel {
            why: "neither SYMBOL(mem_section) with SIZE(mem_section) and OFFSET(mem_section.section_mem_map), nor \
                  SYMBOL(mem_map) is there (DISCONTIGMEM, last used on x86-64 by Linux 2.6.25, is not supported)"
                .to_owned(),
        })
    }

    fn new(model: MemoryModel, struct_size: u64, section_shift: Option<u32>, ranges: Vec<MapRange>) -> Self {
        let mut by_address = ranges.clone();
        by_address.sort_unstable_by_key(|r| r.map);
        Self { model, struct_size, section_shift, ranges, by_address }
    }

    /// Memory this occupies, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        (self.ranges.capacity() + self.by_address.capacity()) * size_of::<MapRange>()
    }

    /// The ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[MapRange] {
        &self.ranges
    }

    /// The parts of `start..end` that have `struct page`s.
    pub fn covering(&self, start: Pfn, end: Pfn) -> impl Iterator<Item = MapRange> + '_ {
        let first = self.ranges.partition_point(|r| r.end <= start);
        self.ranges.get(first..).unwrap_or_default().iter().take_while(move |r| r.start < end).map(move |r| {
            let from = r.start.max(start);
            MapRange { start: from, end: r.end.min(end), map: r.map.plus((from.0 - r.start.0) * self.struct_size) }
        })
    }

    /// Address of the `struct page` of `pfn`.
    #[must_use]
    pub fn page(&self, pfn: Pfn) -> Option<VirtAddr> {
        self.covering(pfn, pfn.plus(1)).next().map(|r| r.map)
    }

    /// The page frame whose `struct page` begins at `addr`.
    #[must_use]
    pub fn pfn_of(&self, addr: VirtAddr) -> Option<Pfn> {
        let r = self.by_address.get(self.by_address.partition_point(|r| r.map <= addr).checked_sub(1)?)?;
        let distance = addr.0 - r.map.0;
        let index = distance / self.struct_size;
        (distance.is_multiple_of(self.struct_size) && index < r.end.0 - r.start.0).then(|| r.start.plus(index))
    }
}

/// An error in a few words, where several stand in one line.
fn brief(error: &KernelError) -> String {
    match error {
        KernelError::NotMapped { .. } => "not mapped".to_owned(),
        KernelError::Read { .. } => "not in the dump".to_owned(),
        KernelError::Implausible { what, value, .. } => format!("{what} is {value:#x}"),
        other => other.to_string(),
    }
}

/// How many of the `len` bytes from `addr` on are mapped without a gap.
fn mapped(kernel: &mut KernelReader<'_>, addr: VirtAddr, len: u64) -> u64 {
    let mut have = 0;
    while have < len {
        match kernel.translate(addr.plus(have)) {
            Ok((_, more)) => have += more,
            Err(_) => break,
        }
    }
    have.min(len)
}

struct Sections {
    size: u64,
    offset: u64,
    /// log2 of the page frames in a section.
    shift: u32,
    per_root: u64,
    struct_size: u64,
    kernel_base: VirtAddr,
    /// The most page frames all sections can have.
    most: u64,
}

impl Sections {
    /// Tries the readings that kernels have had for `mem_section`, and takes the one under which all present sections decode to
    /// kernel addresses. `length` is LENGTH(mem_section): the number of roots (EXTREME) or of sections.
    fn find(
        &self,
        length: Option<u64>,
        symbol: VirtAddr,
        kernel: &mut KernelReader<'_>,
        ram: &PageSet,
    ) -> Result<MemMap> {
        // Up to 4.14 an EXTREME root array is static; from 4.15 it is allocated, and VMCOREINFO gives the pointer's value (a
        // vmlinux would give the pointer's address).
        let indirect = kernel.read_u64(symbol).ok().map(VirtAddr).filter(|a| *a >= self.kernel_base);
        let extreme = |array| (MemoryModel::SparseExtreme, array);
        let readings =
            [Some(extreme(symbol)), indirect.map(extreme), Some((MemoryModel::Sparse, symbol))].into_iter().flatten();
        let mut why = String::new();
        for (model, array) in readings {
            match self.read(model, array, length, kernel, ram) {
                Ok(ranges) if !ranges.is_empty() => {
                    return Ok(MemMap::new(model, self.struct_size, Some(self.shift), ranges));
                }
                Ok(_) => why.push_str(&format!("; as {model} at {array} it holds no present section")),
                Err(e) => why.push_str(&format!("; as {model} at {array}: {}", brief(&e))),
            }
        }
        Err(KernelError::MemoryModel { why: format!("mem_section could not be validated{why}") })
    }

    fn read(
        &self,
        model: MemoryModel,
        array: VirtAddr,
        length: Option<u64>,
        kernel: &mut KernelReader<'_>,
        ram: &PageSet,
    ) -> Result<Vec<MapRange>> {
        let mut ranges: Vec<MapRange> = Vec::new();
        let mut root = (u64::MAX, None);
        let mut from = Pfn(0);
        let mut room = self.most;
        while let Some((first, _)) = ram.runs(from, Pfn(u64::MAX)).next() {
            let section = first.0 >> self.shift;
            if section >> (MAX_PFN_BITS - self.shift) != 0 {
                break;
            }
            from = Pfn((section + 1) << self.shift);
            let descriptor = match model {
                MemoryModel::SparseExtreme => {
                    let index = section / self.per_root;
                    if length.is_some_and(|n| index >= n) {
                        break;
                    }
                    if root.0 != index {
                        let at = kernel.read_u64(array.plus(index * 8))?;
                        if at != 0 && at < self.kernel_base.0 {
                            return Err(KernelError::Implausible {
                                what: "a root of mem_section",
                                addr: array.plus(index * 8),
                                value: at,
                                hint: "",
                            });
                        }
                        root = (index, (at != 0).then_some(VirtAddr(at)));
                    }
                    let Some(page) = root.1 else {
                        from = Pfn(((index + 1) * self.per_root) << self.shift);
                        continue;
                    };
                    page.plus(section % self.per_root * self.size)
                }
                MemoryModel::Sparse | MemoryModel::Flat => {
                    if length.is_some_and(|n| section >= n) {
                        break;
                    }
                    array.plus(section * self.size)
                }
            };
            let at = descriptor.plus(self.offset);
            let coded = kernel.read_u64(at)?;
            if coded & SECTION_PRESENT == 0 {
                continue;
            }
            let start = Pfn(section << self.shift);
            let map = VirtAddr(coded & !SECTION_FLAGS).plus(start.0.wrapping_mul(self.struct_size));
            if map < self.kernel_base {
                return Err(KernelError::Implausible { what: "section_mem_map", addr: at, value: coded, hint: "" });
            }
            match room.checked_sub(from.0 - start.0) {
                Some(left) => room = left,
                None => break,
            }
            match ranges.last_mut() {
                // With VMEMMAP the arrays of neighbouring sections touch.
                Some(last)
                    if last.end == start && last.map.plus((start.0 - last.start.0) * self.struct_size) == map =>
                {
                    last.end = from;
                }
                _ => ranges.push(MapRange { start, end: from, map }),
            }
        }
        Ok(ranges)
    }
}
