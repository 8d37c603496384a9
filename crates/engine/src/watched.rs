//! Memory that cannot be read any more once the run is to end: for what is found in memory by walks of unknown length, each of which
//! gives up where it cannot read.

use crate::stop::Stop;
use coresift_format::{MemoryView, PageSet, PageSize, Pfn, PhysAddr, PhysicalMemory, ReadError};
use std::io::{Error, ErrorKind};
use std::sync::Arc;

/// Memory, and what ends reading it.
pub struct Watched<'a> {
    /// The memory.
    pub memory: &'a dyn PhysicalMemory,
    /// See [`Stop::understanding`].
    pub stop: &'a Stop,
}

impl PhysicalMemory for Watched<'_> {
    fn page_size(&self) -> PageSize {
        self.memory.page_size()
    }

    fn ram(&self) -> &PageSet {
        self.memory.ram()
    }

    fn stored(&self) -> &PageSet {
        self.memory.stored()
    }

    fn max_pfn(&self) -> Pfn {
        self.memory.max_pfn()
    }

    fn view(&self) -> Box<dyn MemoryView + '_> {
        Box::new(View { view: self.memory.view(), page: self.page_size(), stop: self.stop })
    }
}

struct View<'a> {
    view: Box<dyn MemoryView + 'a>,
    page: PageSize,
    stop: &'a Stop,
}

impl View<'_> {
    fn goes_on(&self, addr: PhysAddr) -> Result<(), ReadError> {
        let Some(reason) = self.stop.understanding() else { return Ok(()) };
        let error = Error::new(ErrorKind::Interrupted, format!("{reason} ended the run"));
        Err(ReadError::Io { pfn: addr.pfn(self.page), error: Arc::new(error) })
    }
}

impl MemoryView for View<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.goes_on(addr)?;
        self.view.read(addr, buf)
    }

    fn slice(&mut self, addr: PhysAddr, len: usize) -> Result<&[u8], ReadError> {
        self.goes_on(addr)?;
        self.view.slice(addr, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Prepared;
    use coresift_format::Input;
    use coresift_kernel::{ClassSet, Kernel};
    use coresift_synth::{KernelLayout, Machine};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// Memory that counts how often it is read.
    struct Counting<'a>(&'a dyn PhysicalMemory, AtomicU64);
    struct CountingView<'a>(Box<dyn MemoryView + 'a>, &'a AtomicU64);

    impl PhysicalMemory for Counting<'_> {
        fn page_size(&self) -> PageSize {
            self.0.page_size()
        }

        fn ram(&self) -> &PageSet {
            self.0.ram()
        }

        fn stored(&self) -> &PageSet {
            self.0.stored()
        }

        fn max_pfn(&self) -> Pfn {
            self.0.max_pfn()
        }

        fn view(&self) -> Box<dyn MemoryView + '_> {
            Box::new(CountingView(self.0.view(), &self.1))
        }
    }

    impl MemoryView for CountingView<'_> {
        fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.read(addr, buf)
        }

        fn slice(&mut self, addr: PhysAddr, len: usize) -> Result<&[u8], ReadError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.slice(addr, len)
        }
    }

    #[test]
    fn what_a_debugger_needs_is_looked_for_until_the_time_for_it_is_over() {
        // 2.6.32 does not mark free pages: their lists are walked too.
        for release in ["6.12", "2.6.32"] {
            let image = Machine::new(KernelLayout::get(release)).ram(0x1000..0x1080).ram(0x3000..0x3100).build();
            let input = Input::from_bytes(Arc::new(image.elf().with_image().bytes())).unwrap();
            let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
            let reads = |stop: Stop| {
                let memory = Counting(input.memory(), AtomicU64::new(0));
                let _found = Prepared::new(&kernel, &memory, ClassSet::SELECTABLE, &stop);
                memory.1.into_inner()
            };
            assert!(reads(Stop::default()) > 10, "{release}");
            assert_eq!(reads(Stop::default().after(Duration::ZERO)), 0, "{release}");
        }
    }

    #[test]
    fn memory_says_why_it_is_not_read_any_more() {
        let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x1080).build();
        let input = Input::from_bytes(Arc::new(image.elf().with_image().bytes())).unwrap();
        let (never, late) = (Stop::default(), Stop::default().after(Duration::ZERO));
        let at = PhysAddr(0x1000 * coresift_synth::PAGE);
        let watched = |stop| Watched { memory: input.memory(), stop };
        assert!(watched(&never).view().slice(at, 8).is_ok());
        let error = watched(&late).view().slice(at, 8).unwrap_err();
        assert!(error.to_string().contains("the deadline ended the run"), "{error}");
    }
}
