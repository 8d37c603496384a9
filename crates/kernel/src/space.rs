//! The way into a kernel's memory, from VMCOREINFO alone: where its image is, and where its page tables are.

use crate::error::{KernelError, Result};
use crate::paging::{Paging, X86_64_4, X86_64_5};
use crate::virt::{KernelReader, VirtAddr};
use crate::vmcoreinfo::VmcoreInfo;
use coresift_format::{Bits, Endian, Input, Machine, PageSize, PhysAddr, PhysicalMemory, Segment};
use std::ops::Range;

/// Where the kernel image is mapped: `__START_KERNEL_map` of x86-64.
pub const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// `KERNEL_IMAGE_SIZE` where VMCOREINFO does not give it (before Linux 4.10): 512 MiB, its value without KASLR.
const IMAGE_SIZE: u64 = 512 << 20;
/// The image and the modules share the last 2 GiB of the address space.
const MOST_IMAGE_SIZE: u64 = 1 << 31;
/// Lowest address of the kernel's half of the address space, with 4 and with 5 levels of page tables
/// (Documentation/arch/x86/x86_64/mm.rst).
const KERNEL_HALF_4: VirtAddr = VirtAddr(0xffff_8000_0000_0000);
const KERNEL_HALF_5: VirtAddr = VirtAddr(0xff00_0000_0000_0000);

/// How kernel addresses are translated.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    /// The page tables.
    pub paging: Paging,
    /// What is added to an address of the kernel image, relative to its link address, to get the physical address.
    pub phys_base: u64,
    /// Lowest address that can be a kernel address.
    pub base: VirtAddr,
    /// Bytes from [`START_KERNEL_MAP`] on that map the kernel image, and so are translated by adding.
    pub image_size: u64,
    /// Things a user should know about how this was found.
    pub notes: Vec<String>,
}

impl AddressSpace {
    /// The way into the kernel of `input` that `check` finds something behind: the best known value of phys_base first.
    ///
    /// # Errors
    /// A key is missing or malformed, or what `check` said of the best value.
    pub fn find<T>(input: &Input, info: &VmcoreInfo, mut check: impl FnMut(&Self) -> Result<T>) -> Result<(Self, T)> {
        check_machine(input)?;
        let page_size = info.plain_decimal("PAGESIZE")?;
        if page_size.is_some_and(|n| PageSize::new(n) != Some(PageSize::K4)) {
            return Err(KernelError::BadValue {
                key: "PAGESIZE".to_owned(),
                value: info.text("PAGESIZE").unwrap_or_default().to_owned(),
                expected: "the page size of x86-64, 4096",
            });
        }
        let five = info.number("pgtable_l5_enabled")?.is_some_and(|n| n != 0);
        let root =
            ["init_top_pgt", "init_level4_pgt", "swapper_pg_dir"].iter().find_map(|s| info.symbol(s).transpose());
        let root = VmcoreInfo::require(root.transpose()?, "SYMBOL(init_top_pgt)", "address translation")?;
        let encryption = info.number("sme_mask")?.unwrap_or(0).cast_unsigned();
        let image_size = info.number("KERNEL_IMAGE_SIZE")?.and_then(|n| u64::try_from(n).ok()).unwrap_or(IMAGE_SIZE);
        let mut notes = Vec::new();
        let mut failure = None;
        for (source, phys_base) in phys_bases(input, info)? {
            let mut space = Self {
                paging: Paging {
                    levels: if five { X86_64_5 } else { X86_64_4 },
                    root: PhysAddr(root.0.wrapping_sub(START_KERNEL_MAP).wrapping_add(phys_base)),
                    encryption,
                },
                phys_base,
                base: if five { KERNEL_HALF_5 } else { KERNEL_HALF_4 },
                image_size: image_size.min(MOST_IMAGE_SIZE),
                notes: Vec::new(),
            };
            match check(&space) {
                Ok(found) => {
                    if source != PhysBase::Number {
                        notes.push(format!("phys_base {phys_base:#x} taken from {}", source.name()));
                    }
                    space.notes = notes;
                    return Ok((space, found));
                }
                Err(e) => {
                    notes.push(format!("phys_base {phys_base:#x} from {} leads nowhere: {e}", source.name()));
                    failure.get_or_insert(e);
                }
            }
        }
        Err(failure.unwrap_or_else(|| KernelError::MissingKey {
            key: "NUMBER(phys_base)".to_owned(),
            purpose: "address translation (no PT_LOAD of the kernel image gives it either)",
        }))
    }

    /// A reader of the kernel's virtual memory in `memory`.
    #[must_use]
    pub fn reader<'a>(&'a self, memory: &'a dyn PhysicalMemory) -> KernelReader<'a> {
        KernelReader::new(memory, &self.paging)
    }

    /// The physical address of an address of the kernel image, and how many bytes follow in the image. No page table is read.
    #[must_use]
    pub fn image_address(&self, addr: VirtAddr) -> Option<(PhysAddr, u64)> {
        let offset = addr.0.checked_sub(START_KERNEL_MAP)?;
        let left = self.image_size.checked_sub(offset).filter(|left| *left > 0)?;
        Some((PhysAddr(offset.wrapping_add(self.phys_base)), left))
    }
}

/// Whether the dump is of an x86-64, or can be: a kdump file whose utsname was not known when it was written (makedumpfile -d 1
/// without VMCOREINFO) does not say. Whether the memory is that of one is checked by the utsname in it.
pub(crate) fn check_machine(input: &Input) -> Result<()> {
    let nameless = input.kdump_header().is_some_and(|(header, _)| header.machine().is_empty());
    let alike = input.bits() == Bits::B64 && input.byte_order() == Endian::Little;
    if input.machine() == Machine::X86_64 || nameless && alike {
        return Ok(());
    }
    Err(KernelError::Architecture { machine: input.machine().to_string() })
}

/// The (first) program header of the kernel image.
pub(crate) fn image_segment(input: &Input) -> Option<&Segment> {
    input.segments().iter().find(|s| s.vaddr >= START_KERNEL_MAP && s.paddr != u64::MAX)
}

/// Where the program headers have the kernel image: one has all of it in /proc/vmcore, several have what was kept in a core that was filtered.
pub(crate) fn image_range(input: &Input) -> Option<Range<VirtAddr>> {
    let first = image_segment(input)?;
    let at = |s: &Segment| s.vaddr.wrapping_sub(s.paddr);
    let parts = input.segments().iter().filter(|s| s.vaddr >= START_KERNEL_MAP && at(s) == at(first));
    let (start, end) =
        parts.fold((u64::MAX, 0), |(start, end), s| (s.vaddr.min(start), s.vaddr.saturating_add(s.mem_size).max(end)));
    Some(VirtAddr(start)..VirtAddr(end))
}

/// Values that phys_base may have, the best source first. VMCOREINFO's own number may be zero or negative; absent is something else.
fn phys_bases(input: &Input, info: &VmcoreInfo) -> Result<Vec<(PhysBase, u64)>> {
    let mut found = Vec::new();
    if let Some(n) = info.number("phys_base")? {
        found.push((PhysBase::Number, n.cast_unsigned()));
    }
    if let Some(s) = image_segment(input) {
        found.push((PhysBase::Segment, s.paddr.wrapping_sub(s.vaddr - START_KERNEL_MAP)));
    }
    if let Some((_, sub)) = input.kdump_header() {
        found.push((PhysBase::SubHeader, sub.phys_base));
    }
    found.push((PhysBase::Zero, 0));
    Ok(found)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PhysBase {
    Number,
    Segment,
    SubHeader,
    Zero,
}

impl PhysBase {
    const fn name(self) -> &'static str {
        match self {
            Self::Number => "VMCOREINFO",
            Self::Segment => "the program header of the kernel image",
            Self::SubHeader => "the dump's sub header",
            Self::Zero => "nothing better than the kernel's link address",
        }
    }
}
