//! Memory that remembers which of its pages were looked at.

use coresift_format::{MemoryView, PageSet, PageSize, Pfn, PhysAddr, PhysicalMemory, ReadError};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Page frames remembered, half of it at the least: those of 1 GiB, which take 4 MiB. What is looked at beyond them is not written first.
const MAX_PAGES: usize = 1 << 18;

/// Memory whose readers are watched.
pub(super) struct Recorder<'m> {
    memory: &'m dyn PhysicalMemory,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Those told by [`Recorder::take`].
    told: HashSet<Pfn>,
    /// Those noted since, some more than once.
    new: Vec<Pfn>,
    /// What came last; most reads are of the page of the read before.
    last: Option<Pfn>,
    /// No more is noted.
    full: bool,
}

impl Seen {
    /// Puts `new` in order, each once, without what was told.
    fn settle(&mut self) {
        self.new.sort_unstable();
        self.new.dedup();
        let Self { told, new, .. } = self;
        new.retain(|pfn| !told.contains(pfn));
    }
}

impl<'m> Recorder<'m> {
    pub(super) fn new(memory: &'m dyn PhysicalMemory) -> Self {
        Self { memory, seen: Mutex::default() }
    }

    /// The memory, unwatched.
    pub(super) const fn memory(&self) -> &'m dyn PhysicalMemory {
        self.memory
    }

    /// Notes the pages of `len` bytes from `addr` on.
    pub(super) fn note(&self, addr: PhysAddr, len: u64) {
        let page = self.memory.page_size();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = (addr.pfn(page), addr.plus(len.saturating_sub(1)).pfn(page));
        for pfn in (first.0..=last.0).map(Pfn) {
            if seen.last == Some(pfn) {
                continue;
            }
            seen.last = Some(pfn);
            if seen.told.len() + seen.new.len() >= MAX_PAGES && !seen.full {
                seen.settle();
                // Sorting for little room again and again would take long.
                seen.full = seen.told.len() + seen.new.len() > MAX_PAGES / 2;
            }
            if !seen.full {
                seen.new.push(pfn);
            }
        }
    }

    /// The page frames noted for the first time since this was called last, ascending.
    pub(super) fn take(&self) -> Vec<Pfn> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.settle();
        let new = std::mem::take(&mut seen.new);
        seen.told.extend(&new);
        new
    }
}

impl PhysicalMemory for Recorder<'_> {
    fn page_size(&self) -> PageSize {
        self.memory.page_size()
    }

    fn ram(&self) -> &PageSet {
        self.memory.ram()
    }

    fn stored(&self) -> &PageSet {
        self.memory.stored()
    }

    fn known_zero(&self) -> &PageSet {
        self.memory.known_zero()
    }

    fn max_pfn(&self) -> Pfn {
        self.memory.max_pfn()
    }

    fn view(&self) -> Box<dyn MemoryView + '_> {
        Box::new(View { recorder: self, view: self.memory.view() })
    }
}

struct View<'r> {
    recorder: &'r Recorder<'r>,
    view: Box<dyn MemoryView + 'r>,
}

impl MemoryView for View<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.recorder.note(addr, buf.len() as u64);
        self.view.read(addr, buf)
    }

    fn slice(&mut self, addr: PhysAddr, len: usize) -> Result<&[u8], ReadError> {
        self.recorder.note(addr, len as u64);
        self.view.slice(addr, len)
    }
}
