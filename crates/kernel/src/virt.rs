//! Kernel virtual memory: addresses, and reading through the page tables.

use crate::error::{KernelError, Result};
use crate::paging::{LastTables, Leaf, Paging};
use coresift_format::{MemoryView, PhysAddr, PhysicalMemory, ReadError};
use std::fmt;

mod ahead;
pub(crate) use ahead::ReadAhead;
#[cfg(test)]
mod tests;

/// A kernel virtual address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// `self + n`; wraps as addresses do.
    #[must_use]
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Something kernel virtual memory can be read from.
pub trait VirtualMemory {
    /// Fills `buf` from `addr` on; it may cross pages.
    ///
    /// # Errors
    /// An address without translation, or memory that is not in the dump.
    fn read_virt(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<()>;

    /// A little-endian 32-bit number at `addr`.
    ///
    /// # Errors
    /// As [`Self::read_virt`].
    fn read_u32(&mut self, addr: VirtAddr) -> Result<u32> {
        let mut bytes = [0; 4];
        self.read_virt(addr, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// A little-endian 64-bit number at `addr`.
    ///
    /// # Errors
    /// As [`Self::read_virt`].
    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_virt(addr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Leaves a reader remembers.
const TLB_SLOTS: usize = 64;
/// Shifts by which an address has its slots: small leaves by the number of their page, large ones by that of their 2 MiB. Reading
/// on through a large leaf, as through the kernel's read-only data, takes one walk; by pages it took 1,200 for the types.
const TLB_SHIFTS: [u32; 2] = [12, 21];

/// One thread's way into kernel virtual memory.
pub struct KernelReader<'a> {
    view: Box<dyn MemoryView + 'a>,
    paging: &'a Paging,
    /// First address and leaf.
    tlb: [Option<(u64, Leaf)>; TLB_SLOTS],
    tables: LastTables,
}

impl<'a> KernelReader<'a> {
    /// A reader of `memory` through the page tables `paging`.
    #[must_use]
    pub fn new(memory: &'a dyn PhysicalMemory, paging: &'a Paging) -> Self {
        Self { view: memory.view(), paging, tlb: [None; TLB_SLOTS], tables: LastTables::default() }
    }

    /// The physical address of `addr`, and how many bytes from there on are contiguous in the same leaf.
    ///
    /// # Errors
    /// An entry of the walk is not present or cannot be read.
    pub fn translate(&mut self, addr: VirtAddr) -> Result<(PhysAddr, u64)> {
        let slot = |shift: u32| (addr.0 >> shift) as usize % TLB_SLOTS;
        let known = TLB_SHIFTS.iter().find_map(|shift| {
            let (start, leaf) = (*self.tlb.get(slot(*shift))?)?;
            (addr.0 & !(leaf.bytes - 1) == start).then_some(leaf)
        });
        let leaf = match known {
            Some(leaf) => leaf,
            None => {
                let leaf = self.paging.walk(self.view.as_mut(), addr, &mut self.tables)?;
                let shift = TLB_SHIFTS.iter().rfind(|shift| leaf.bytes >> **shift != 0).copied().unwrap_or_default();
                if let Some(slot) = self.tlb.get_mut(slot(shift)) {
                    *slot = Some((addr.0 & !(leaf.bytes - 1), leaf));
                }
                leaf
            }
        };
        let offset = addr.0 & (leaf.bytes - 1);
        Ok((leaf.frame.plus(offset), leaf.bytes - offset))
    }

    /// The bytes `addr..addr + len`, where they are contiguous in physical memory; otherwise as many as are.
    ///
    /// # Errors
    /// As [`VirtualMemory::read_virt`].
    pub fn contiguous(&mut self, addr: VirtAddr, len: u64) -> Result<(PhysAddr, u64)> {
        let (start, mut have) = self.translate(addr)?;
        while have < len {
            match self.translate(addr.plus(have)) {
                Ok((next, more)) if next == start.plus(have) => have += more,
                _ => break,
            }
        }
        Ok((start, have.min(len)))
    }

    /// The physical memory underneath.
    pub fn physical(&mut self) -> &mut (dyn MemoryView + 'a) {
        self.view.as_mut()
    }
}

impl VirtualMemory for KernelReader<'_> {
    fn read_virt(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<()> {
        let mut at = addr;
        let mut rest = buf;
        while !rest.is_empty() {
            let (phys, have) = self.contiguous(at, rest.len() as u64)?;
            let n = rest.len().min(usize::try_from(have).unwrap_or(usize::MAX));
            let (head, tail) = rest.split_at_mut(n);
            self.view.read(phys, head).map_err(|source| read_failed("kernel memory", at, source))?;
            at = at.plus(n as u64);
            rest = tail;
        }
        Ok(())
    }
}

/// [`KernelError::Read`] for `purpose` at `addr`.
pub(crate) const fn read_failed(purpose: &'static str, addr: VirtAddr, source: ReadError) -> KernelError {
    KernelError::Read { purpose, addr, source }
}
