//! Kernel virtual memory: addresses, and reading through the page tables.

use crate::error::{KernelError, Result};
use crate::paging::{Leaf, Paging};
use coresift_format::{MemoryView, PhysAddr, PhysicalMemory, ReadError};
use std::fmt;

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

/// Translations a reader remembers, by the low bits of the page number.
const TLB_SLOTS: usize = 64;

/// One thread's way into kernel virtual memory.
pub struct KernelReader<'a> {
    view: Box<dyn MemoryView + 'a>,
    paging: &'a Paging,
    tlb: [Option<(u64, Leaf)>; TLB_SLOTS],
}

impl<'a> KernelReader<'a> {
    /// A reader of `memory` through the page tables `paging`.
    #[must_use]
    pub fn new(memory: &'a dyn PhysicalMemory, paging: &'a Paging) -> Self {
        Self { view: memory.view(), paging, tlb: [None; TLB_SLOTS] }
    }

    /// The physical address of `addr`, and how many bytes from there on are contiguous in the same leaf.
    ///
    /// # Errors
    /// An entry of the walk is not present or cannot be read.
    pub fn translate(&mut self, addr: VirtAddr) -> Result<(PhysAddr, u64)> {
        let page = addr.0 >> 12;
        let leaf = match self.tlb.get(page as usize % TLB_SLOTS) {
            Some(Some((tag, leaf))) if *tag == page => *leaf,
            _ => {
                let leaf = self.paging.walk(self.view.as_mut(), addr)?;
                if let Some(slot) = self.tlb.get_mut(page as usize % TLB_SLOTS) {
                    *slot = Some((page, leaf));
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
            let (phys, have) = self.translate(at)?;
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
