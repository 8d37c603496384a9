//! One page frame, looked at closely: what its `struct page` says, and what class that makes it.

use crate::class::{ClassSet, PageClass};
use crate::error::Result;
use crate::frame::FlagNames;
use crate::kernel::Kernel;
use crate::nodes;
use crate::page::{HUGETLB_ORDER, RawPage};
use crate::scan::{ClassSink, Scanner};
use crate::symbols::Symbols;
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use coresift_format::{CHUNK_SHIFT, PageSet, Pfn, PhysicalMemory};

/// What an [`Inspector`] asks for by name.
pub use crate::frame::FLAGS_WANTED as WANTED;

/// Page types that VMCOREINFO exports.
const TYPES: &[(&str, &str)] = &[
    ("PAGE_BUDDY_MAPCOUNT_VALUE", "buddy"),
    ("PAGE_OFFLINE_MAPCOUNT_VALUE", "offline"),
    ("PAGE_SLAB_MAPCOUNT_VALUE", "slab"),
    ("PAGE_HUGETLB_MAPCOUNT_VALUE", "hugetlb"),
    ("PAGE_UNACCEPTED_MAPCOUNT_VALUE", "unaccepted"),
];

/// A block of page frames that one `struct page` speaks for: free, a compound page, or unaccepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOf {
    /// Its first page frame.
    pub head: Pfn,
    /// log2 of its page frames.
    pub order: u8,
}

/// What was found of one page frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Its class, as a dump decides it.
    pub class: PageClass,
    /// What tells that class in this kernel; `None` for a page frame without `struct page`, which counts as the kernel's.
    pub evidence: Option<String>,
    /// The address of its `struct page`.
    pub struct_page: Option<VirtAddr>,
    /// Its words, or why they cannot be read.
    pub raw: std::result::Result<RawPage, String>,
    /// `_refcount`, where VMCOREINFO tells its place.
    pub refcount: Option<i32>,
    /// Names of the flags that are set, those without a known name as `bit 12`.
    pub flags: Vec<String>,
    /// What the page type in `_mapcount` is called.
    pub page_type: Option<&'static str>,
    /// The block it is in.
    pub block: Option<BlockOf>,
    /// The head it points at as a tail.
    pub tail_of: Option<Pfn>,
}

/// Looks at page frames of one dump.
pub struct Inspector<'a> {
    kernel: &'a Kernel,
    memory: &'a dyn PhysicalMemory,
    scanner: Scanner<'a>,
    reader: KernelReader<'a>,
    names: FlagNames,
    /// Free pages, where only the free lists tell them.
    free: Option<PageSet>,
}

impl<'a> Inspector<'a> {
    /// An inspector of `memory`. `symbols` are those that [`WANTED`] found, if any were.
    #[must_use]
    pub fn new(kernel: &'a Kernel, memory: &'a dyn PhysicalMemory, symbols: Option<&Symbols>) -> Self {
        let names = FlagNames::new(symbols, &kernel.info);
        let scanner = Scanner::new(kernel, memory, ClassSet::NONE);
        // A kernel whose lists cannot be walked either has its free pages taken for its own, in a dump too.
        let free = if kernel.rules.knows_buddy() { None } else { nodes::walk_free_lists(kernel, memory).ok() };
        Self { kernel, memory, scanner, reader: kernel.reader(memory), names, free }
    }

    /// Looks at `pfn`.
    pub fn inspect(&mut self, pfn: Pfn) -> Inspection {
        let listed = self.free.as_ref().is_some_and(|free| free.contains(pfn));
        let class = if listed { PageClass::Free } else { self.class(pfn) };
        let struct_page = self.kernel.memmap.page(pfn);
        let page = match struct_page {
            Some(at) => self.struct_page(at).map_err(|error| error.to_string()),
            None => Err("the memory map has no struct page for it".to_owned()),
        };
        let rules = &self.kernel.rules;
        let evidence = || rules.evidence().iter().find(|e| e.0 == class).and_then(|e| e.1.clone());
        let raw = page.as_ref().map(|page| rules.raw(page)).map_err(Clone::clone);
        let refcount = page.as_ref().ok().and_then(|page| self.refcount(page));
        let known = raw.as_ref().ok();
        Inspection {
            class,
            evidence: if listed {
                Some("the free lists of all zones".to_owned())
            } else {
                known.and_then(|_| evidence())
            },
            struct_page,
            refcount,
            flags: known.map_or_else(Vec::new, |raw| self.flags(raw.flags)),
            page_type: known.and_then(|raw| self.page_type(raw.mapcount?)),
            block: self.block(pfn, class),
            tail_of: known.zip(struct_page).and_then(|(raw, at)| self.head_of(raw, at)),
            raw,
        }
    }

    /// The class as the scan of a dump tells it.
    fn class(&mut self, pfn: Pfn) -> PageClass {
        struct Catch(Pfn, Option<PageClass>);
        impl ClassSink for Catch {
            fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
                if (start..end).contains(&self.0) {
                    self.1 = Some(class);
                }
            }
        }
        let mut caught = Catch(pfn, None);
        let _counts = self.scanner.scan_chunk(pfn.0 >> CHUNK_SHIFT, self.memory.ram(), &mut caught);
        caught.1.unwrap_or(PageClass::Kernel)
    }

    fn struct_page(&mut self, at: VirtAddr) -> Result<Vec<u8>> {
        let mut page = vec![0; self.kernel.rules.size()];
        self.reader.read_virt(at, &mut page)?;
        Ok(page)
    }

    fn refcount(&self, page: &[u8]) -> Option<i32> {
        let at = usize::try_from(self.kernel.info.offset("page._refcount").ok()??).ok()?;
        page.get(at..)?.first_chunk().map(|b| i32::from_le_bytes(*b))
    }

    fn flags(&self, flags: u64) -> Vec<String> {
        self.names.set(flags).map(|(bit, name)| name.map_or_else(|| format!("bit {bit}"), str::to_owned)).collect()
    }

    fn page_type(&self, mapcount: i32) -> Option<&'static str> {
        let is = |key: &str| self.kernel.info.page_type(key).ok().flatten() == Some(mapcount);
        (mapcount < -1).then(|| TYPES.iter().find(|(key, _)| is(key)).map(|(_, name)| *name)).flatten()
    }

    /// The largest block that covers `pfn` and is of its class. Blocks are aligned to their size, so that there is one place for the
    /// head of each order.
    fn block(&mut self, pfn: Pfn, class: PageClass) -> Option<BlockOf> {
        let size = self.kernel.rules.size() as u64;
        for order in (1..=HUGETLB_ORDER as u8).rev() {
            let head = Pfn(pfn.0 >> order << order);
            let Some(at) = self.kernel.memmap.page(head) else { continue };
            let (Ok(page), next) = (self.struct_page(at), self.struct_page(at.plus(size)).ok()) else { continue };
            let verdict = self.kernel.rules.classify(head, &page, || next.as_deref());
            if verdict.order == order && (verdict.class == class || class == PageClass::HwPoison) {
                return Some(BlockOf { head, order });
            }
        }
        None
    }

    /// The head a tail points at: the word is its address and one, or (Linux 7.1, where a `struct page` has a power of two of bytes) a mask
    /// that makes it of the tail's address.
    fn head_of(&self, raw: &RawPage, at: VirtAddr) -> Option<Pfn> {
        let word = raw.compound.filter(|word| word & 1 != 0)?;
        let head = |addr: u64| self.kernel.memmap.pfn_of(VirtAddr(addr)).filter(|_| addr < at.0);
        head(word - 1).or_else(|| head(at.0 & (word - 1)))
    }
}
