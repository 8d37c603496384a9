//! Following pointers: what every step is made of.

use super::recorder::Recorder;
use super::{Outcome, Reading};
use crate::error::{KernelError, Result};
use crate::kernel::Kernel;
use crate::virt::{KernelReader, VirtAddr, VirtualMemory, read_failed};
use coresift_format::{PageSize, PhysicalMemory, ReadError};
use std::collections::HashSet;

/// What a step returns: the error that ended it.
pub(super) type Work = Result<()>;

/// Most bytes of one thing: nothing a debugger reads at once is larger, but a kernel log someone made huge.
const MAX_BYTES: u64 = 64 << 20;
/// Entries of lists and nodes of trees that are visited in all: sixteen for each task of the most tasks that are walked.
const MAX_VISITS: usize = 1 << 20;
const PAGE: u64 = 4096;

/// Goes from pointer to pointer.
pub(super) struct Walker<'a> {
    pub(super) kernel: &'a Kernel,
    recorder: &'a Recorder<'a>,
    reader: KernelReader<'a>,
    reading: Reading,
    /// What was not there in this step.
    first: Option<KernelError>,
    count: u64,
    /// What it found, in the steps that count.
    pub(super) found: Option<u64>,
    /// What each cpu's per-cpu variables are apart from their symbols, by cpu; found by the step for cpus.
    pub(super) per_cpu: Vec<u64>,
    /// List entries and nodes that may still be visited.
    visits: usize,
    /// Tasks that were seen.
    pub(super) tasks: HashSet<VirtAddr>,
    /// Stacks that may still be looked through.
    pub(super) stacks: usize,
    /// What tasks share and was looked at.
    pub(super) objects: HashSet<VirtAddr>,
    /// Addresses of code found on stacks since they were last looked up, in units of what one entry of the lookup table covers.
    pub(super) code: HashSet<u64>,
    /// Those looked up.
    pub(super) looked_up: HashSet<u64>,
}

impl<'a> Walker<'a> {
    pub(super) fn new(kernel: &'a Kernel, recorder: &'a Recorder<'a>, reading: Reading) -> Self {
        Self {
            kernel,
            recorder,
            reader: kernel.reader(recorder),
            reading,
            first: None,
            count: 0,
            found: None,
            per_cpu: Vec::new(),
            visits: MAX_VISITS,
            tasks: HashSet::new(),
            stacks: super::unwind::MAX_STACKS,
            objects: HashSet::new(),
            code: HashSet::new(),
            looked_up: HashSet::new(),
        }
    }

    pub(super) fn step(&mut self, take: fn(&mut Self) -> Work) -> (Outcome, Option<u64>) {
        let ended = take(self);
        let count = std::mem::take(&mut self.count);
        let outcome = match (self.first.take(), ended) {
            (Some(first), ended) => {
                Outcome::Broken { first: Box::new(first), count: count + u64::from(ended.is_err()) }
            }
            (None, Ok(())) => Outcome::Whole,
            (None, Err(e @ (KernelError::Read { .. } | KernelError::NotMapped { .. }))) => {
                Outcome::Broken { first: Box::new(e), count: 1 }
            }
            (None, Err(e)) => Outcome::Unknown(Box::new(e)),
        };
        (outcome, self.found.take())
    }

    /// One more thing was found in this step.
    pub(super) fn count(&mut self) {
        self.found = Some(self.found.unwrap_or(0) + 1);
    }

    /// Goes on after something was not there.
    pub(super) fn missed(&mut self, error: KernelError) {
        self.first.get_or_insert(error);
        self.count += 1;
    }

    /// `len` bytes at `addr` are needed, called `what`.
    pub(super) fn need(&mut self, what: &'static str, addr: VirtAddr, len: u64) {
        let mut at = 0;
        let len = len.min(MAX_BYTES);
        while at < len {
            let here = addr.plus(at);
            let n = (PAGE - here.0 % PAGE).min(len - at);
            if let Err(error) = self.look(what, here, n) {
                self.missed(error);
            }
            at += n;
        }
    }

    /// Looks at `len` bytes that lie in one page.
    fn look(&mut self, what: &'static str, addr: VirtAddr, len: u64) -> Work {
        if self.reading == Reading::Contents {
            let mut bytes = [0; PAGE as usize];
            return self.read(what, addr, bytes.get_mut(..len as usize).unwrap_or_default());
        }
        let (phys, _) = self.reader.translate(addr)?;
        self.recorder.note(phys, len);
        let pfn = phys.pfn(self.recorder.page_size());
        if self.recorder.stored().contains(pfn) {
            return Ok(());
        }
        Err(read_failed(what, addr, ReadError::NotPresent { addr: phys }))
    }

    /// Fills `bytes` from `addr`, called `what`.
    pub(super) fn read(&mut self, what: &'static str, addr: VirtAddr, bytes: &mut [u8]) -> Work {
        self.reader.read_virt(addr, bytes).map_err(|error| match error {
            KernelError::Read { addr, source, .. } => read_failed(what, addr, source),
            other => other,
        })
    }

    /// The 64-bit number at `addr`, which is `what`.
    pub(super) fn number(&mut self, what: &'static str, addr: VirtAddr) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(what, addr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The 32-bit number at `addr`, which is `what`.
    pub(super) fn number32(&mut self, what: &'static str, addr: VirtAddr) -> Result<u32> {
        let mut bytes = [0; 4];
        self.read(what, addr, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// The pointer at `addr`, which is `what`.
    pub(super) fn pointer(&mut self, what: &'static str, addr: VirtAddr) -> Result<VirtAddr> {
        self.number(what, addr).map(VirtAddr)
    }

    /// Whether `addr` can be a kernel address at all.
    pub(super) fn is_kernel(&self, addr: VirtAddr) -> bool {
        addr >= self.kernel.base
    }

    /// For those who find their way by themselves; what they read is noted as well.
    pub(super) fn reader(&mut self) -> &mut KernelReader<'a> {
        &mut self.reader
    }

    pub(super) fn page_size(&self) -> PageSize {
        self.recorder.page_size()
    }

    /// The address of the symbol `name`: VMCOREINFO's, else kallsyms'.
    pub(super) fn symbol(&self, name: &'static str) -> Result<VirtAddr> {
        match self.kernel.info.symbol(name)? {
            Some(at) => Ok(at),
            None => self.kernel.symbols.as_ref().map_err(Clone::clone)?.get(name, PURPOSE),
        }
    }

    /// Where the function that `addr` lies in begins, as far as it is known. What is read to find it is not noted: a debugger asks vmlinux.
    pub(super) fn function_start(&self, addr: VirtAddr) -> Option<VirtAddr> {
        let symbols = self.kernel.symbols.as_ref().ok()?;
        symbols.function_start(&mut self.kernel.reader(self.recorder.memory()), addr)
    }

    /// The offset of a member: VMCOREINFO's, else BTF's.
    pub(super) fn offset(&self, structure: &'static str, member: &'static str) -> Result<u64> {
        match self.kernel.info.offset(&format!("{structure}.{member}"))? {
            Some(at) => Ok(at),
            None => self.kernel.symbols.as_ref().map_err(Clone::clone)?.offset(structure, member, PURPOSE),
        }
    }

    /// The size of a structure: VMCOREINFO's, else BTF's.
    pub(super) fn size(&self, structure: &'static str) -> Result<u64> {
        match self.kernel.info.size(structure)? {
            Some(size) => Ok(size),
            None => self.kernel.symbols.as_ref().map_err(Clone::clone)?.size(structure, PURPOSE),
        }
    }

    /// Calls `each` with the entries of the list at `head` (`struct list_head`), at most `most` of them.
    pub(super) fn list(
        &mut self,
        what: &'static str,
        head: VirtAddr,
        most: usize,
        mut each: impl FnMut(&mut Self, VirtAddr),
    ) -> Work {
        let mut entry = self.pointer(what, head)?;
        for _ in 0..most {
            if entry == head || entry.0 == 0 || !self.visit() {
                break;
            }
            each(self, entry);
            entry = self.pointer(what, entry)?;
        }
        Ok(())
    }

    /// Counts a visit to an entry of a list or a tree; false when there were too many, as where a torn one leads back into itself.
    pub(super) fn visit(&mut self) -> bool {
        self.visits = self.visits.saturating_sub(1);
        self.visits > 0
    }

    /// The text at `addr`. A debugger reads on for as long as one may be, but a text that ends in its page needs no other.
    pub(super) fn text(&mut self, what: &'static str, addr: VirtAddr) {
        /// What crash reads at a time.
        const READ: u64 = 1500;
        if !self.is_kernel(addr) {
            return;
        }
        self.need(what, addr, 1);
        self.may_need(addr.plus(READ));
    }

    /// The page at `addr`, if there is one, may be needed as well.
    pub(super) fn may_need(&mut self, addr: VirtAddr) {
        if let Ok((phys, _)) = self.reader.translate(addr)
            && self.recorder.ram().contains(phys.pfn(self.recorder.page_size()))
        {
            self.recorder.note(phys, 1);
        }
    }
}

/// What symbols and types are looked up for.
const PURPOSE: &str = "walking what a debugger reads";
