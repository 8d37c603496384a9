//! The VMCOREINFO text where the kernel itself keeps it: what the note in a dump is a copy of.

use crate::error::{KernelError, Result};
use crate::kernel::Kernel;
use crate::virt::{VirtAddr, VirtualMemory};
use coresift_format::PhysicalMemory;

/// One page; `VMCOREINFO_BYTES` of all kernels.
const MAX_TEXT: usize = 4096;

impl Kernel {
    /// The text at `vmcoreinfo_data` in `memory`. The note of a crash is made of it (`crash_save_vmcoreinfo`, Linux 2.6.24 on).
    ///
    /// # Errors
    /// The kernel's symbols are not known (before Linux 6.0 without a vmlinux), or the text is not in the dump.
    pub fn own_vmcoreinfo(&self, memory: &dyn PhysicalMemory) -> Result<Vec<u8>> {
        const PURPOSE: &str = "comparing VMCOREINFO with the kernel's own";
        let symbols = self.symbols.as_ref().map_err(Clone::clone)?;
        let mut reader = self.reader(memory);
        let at = symbols.get("vmcoreinfo_data", PURPOSE)?;
        let text = VirtAddr(reader.read_u64(at)?);
        let mut raw = vec![0; MAX_TEXT];
        reader.read_virt(text, &mut raw)?;
        raw.truncate(raw.iter().position(|byte| *byte == 0).unwrap_or(MAX_TEXT));
        if !raw.starts_with(b"OSRELEASE=") {
            let value = raw.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let hint = "; it should read `OSRELEASE=`";
            return Err(KernelError::Implausible { what: "vmcoreinfo_data", addr: text, value, hint });
        }
        Ok(raw)
    }
}
