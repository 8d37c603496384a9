//! Kernel memory by pages, with the fewest translations.

use crate::error::{KernelError, Result};
use crate::space::AddressSpace;
use crate::virt::{KernelReader, VirtAddr, VirtualMemory, read_failed};
use coresift_format::{MemoryView, PhysicalMemory};

const PAGE: usize = 4096;
/// Pages remembered: descriptors, infos and text are read in turn, each in a page or two.
const SLOTS: usize = 16;

/// A page, or why it cannot be read.
type Known = std::result::Result<Box<[u8; PAGE]>, KernelError>;

/// Kernel memory of which the last pages read are at hand, those that could not be read too. Addresses of the kernel image are
/// translated by adding: the page tables may be among the pages that an incomplete dump lacks.
pub(super) struct Pages<'a> {
    space: &'a AddressSpace,
    walk: KernelReader<'a>,
    image: Box<dyn MemoryView + 'a>,
    slots: [Option<(u64, Known)>; SLOTS],
    ram_bytes: u64,
}

impl<'a> Pages<'a> {
    pub(super) fn new(memory: &'a dyn PhysicalMemory, space: &'a AddressSpace) -> Self {
        let ram_bytes = memory.ram().len().saturating_mul(memory.page_size().bytes() as u64);
        Self {
            space,
            walk: space.reader(memory),
            image: memory.view(),
            slots: std::array::from_fn(|_| None),
            ram_bytes,
        }
    }

    /// The lowest address that can be a kernel address.
    pub(super) const fn base(&self) -> VirtAddr {
        self.space.base
    }

    /// Bytes of memory that the dump speaks of.
    pub(super) const fn ram_bytes(&self) -> u64 {
        self.ram_bytes
    }

    /// What is at `addr`, to the end of its page.
    ///
    /// # Errors
    /// The page has no translation, or is not in the dump.
    pub(super) fn rest_of_page(&mut self, addr: VirtAddr) -> Result<&[u8]> {
        let number = addr.0 / PAGE as u64;
        let offset = addr.0 as usize % PAGE;
        let at = number as usize % SLOTS;
        if !matches!(self.slots.get(at), Some(Some((known, _))) if *known == number) {
            let page = self.load(VirtAddr(number * PAGE as u64));
            if let Some(slot) = self.slots.get_mut(at) {
                *slot = Some((number, page));
            }
        }
        match self.slots.get(at) {
            Some(Some((_, Ok(page)))) => Ok(page.get(offset..).unwrap_or_default()),
            Some(Some((_, Err(error)))) => Err(error.clone()),
            _ => Ok(&[]),
        }
    }

    fn load(&mut self, page: VirtAddr) -> Known {
        let mut bytes = Box::new([0; PAGE]);
        match self.space.image_address(page) {
            Some((phys, _)) => {
                self.image.read(phys, &mut bytes[..]).map_err(|source| read_failed(super::PURPOSE, page, source))?;
            }
            None => self.walk.read_virt(page, &mut bytes[..])?,
        }
        Ok(bytes)
    }

    /// Appends the `len` bytes from `addr` on to `out`, but for pages that cannot be read; returns why the first of them cannot.
    pub(super) fn append(&mut self, addr: VirtAddr, len: u64, out: &mut Vec<u8>) -> Option<KernelError> {
        let mut failed = None;
        let mut done = 0;
        while done < len {
            let at = addr.plus(done);
            let here = (PAGE as u64 - at.0 % PAGE as u64).min(len - done);
            match self.rest_of_page(at) {
                Ok(bytes) => out.extend(bytes.iter().take(here as usize)),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
            done += here;
        }
        failed
    }
}

impl VirtualMemory for Pages<'_> {
    fn read_virt(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<()> {
        let mut at = addr;
        let mut rest = buf;
        while !rest.is_empty() {
            let bytes = self.rest_of_page(at)?;
            let n = rest.len().min(bytes.len());
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(bytes.get(..n).unwrap_or_default());
            at = at.plus(n as u64);
            rest = tail;
        }
        Ok(())
    }
}
