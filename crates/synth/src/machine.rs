//! The builder: what machine it is, then [`Machine::build`] lays the kernel into its memory.

mod build;

use crate::PAGE;
use crate::elf;
use crate::layout::KernelLayout;
use crate::memmap::Model;
use crate::paging::Leaf;
use crate::population::Population;
use crate::printk::{Log, Message};
use crate::ram::Filler;
use crate::vmcoreinfo;
use std::ops::Range;

/// A machine to be built. Every method takes and gives the machine, so that one expression describes it.
#[derive(Clone, Debug)]
pub struct Machine {
    layout: KernelLayout,
    ram: Vec<Range<u64>>,
    populations: Vec<Population>,
    model: Model,
    levels: u32,
    linear_leaf: Leaf,
    vmemmap_leaf: Leaf,
    kaslr: u64,
    phys_base: i64,
    page_offset: Option<u64>,
    vmemmap: Option<u64>,
    sme_mask: u64,
    image_pages: u64,
    cpus: u32,
    log: Log,
    section_flags: u64,
    removed_sections: Vec<u64>,
    planted: Vec<(u64, Vec<u8>)>,
    edit: Option<fn(String) -> String>,
    symbols: bool,
    crash_time: u64,
    tail: Option<Tail>,
    unnamed: Filler,
}

/// Sections behind the machine's own RAM whose struct pages and contents repeat a few templates (see [`crate::huge`]).
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    /// Section number and template number, ascending.
    pub sections: Vec<(u64, usize)>,
    /// Populations of each template, in page frames from the start of its section; they name every page.
    pub templates: Vec<Vec<Population>>,
    /// What its pages hold.
    pub contents: Contents,
}

/// What the pages of a tail hold.
#[derive(Clone, Debug)]
pub(crate) enum Contents {
    /// By their place in their section, whichever section it is.
    OfSection(fn(u64) -> Filler),
    /// By their place in the turn of so many sections that they are in: only the `kept` places hold anything.
    OfTurn {
        /// Sections of a turn.
        sections: u64,
        /// Runs of page numbers from the start of a turn, ascending.
        kept: Vec<Range<u64>>,
    },
}

impl Contents {
    /// Sections after which contents repeat.
    pub fn period(&self) -> u64 {
        match self {
            Self::OfSection(_) => 1,
            Self::OfTurn { sections, .. } => *sections,
        }
    }

    /// What the page number `at` of a period holds.
    pub fn filler(&self, at: u64) -> Filler {
        match self {
            Self::OfSection(filler) => filler(at),
            Self::OfTurn { kept, .. } => match kept.get(kept.partition_point(|r| r.end <= at)) {
                Some(run) if run.contains(&at) => crate::real::filler(at),
                _ => Filler::Zero,
            },
        }
    }
}

impl Machine {
    /// A machine with no memory yet: four-level tables, SPARSEMEM_VMEMMAP, `phys_base` 0, no KASLR, one CPU.
    #[must_use]
    pub fn new(layout: KernelLayout) -> Self {
        let log: [Message; 4] = [
            (0, format!("Linux version {} (synth@example)", layout.release)),
            (1_204_000, "Memory: a synthetic machine".into()),
            (81_000_017_000, "sysrq: Trigger a crash".into()),
            (81_000_090_000, "Kernel panic - not syncing: sysrq triggered crash".into()),
        ];
        Self {
            layout,
            ram: Vec::new(),
            populations: Vec::new(),
            model: Model::SparseVmemmap,
            levels: 4,
            linear_leaf: Leaf::G1,
            vmemmap_leaf: Leaf::K4,
            kaslr: 0,
            phys_base: 0,
            page_offset: None,
            vmemmap: None,
            sme_mask: 0,
            image_pages: 24,
            cpus: 1,
            log: log.to_vec().into(),
            section_flags: 0,
            removed_sections: Vec::new(),
            planted: Vec::new(),
            edit: None,
            symbols: false,
            crash_time: 1_700_000_000,
            tail: None,
            unnamed: Filler::Words,
        }
    }

    /// The base machine of most tests: 256 pages in two ranges with a hole between, holding 20 zero, 40 free, 30 cache, 10 private
    /// cache, 30 user, 16 slab, 16 hugetlb, 4 poisoned and 4 offline pages; the other 86 are the kernel's.
    #[must_use]
    pub fn b0(layout: KernelLayout) -> Self {
        Self::b0_with(layout, Model::SparseVmemmap)
    }

    /// [`Self::b0`] under another memory model.
    #[must_use]
    pub fn b0_with(layout: KernelLayout, model: Model) -> Self {
        // Roots of sections that are not there are zero pages of the kernel's own.
        let zero = match model {
            Model::SparseVmemmap | Model::SparseExtreme => {
                20 - (vmcoreinfo::section_roots(&layout, model) * 8 / PAGE - 1)
            }
            Model::Sparse | Model::Flat => 20,
        };
        Self::new(layout).model(model).ram(0x1000..0x1080).ram(0x1100..0x1180).pages(&format!(
            "@0x1040 {zero} zero
             @0x1060 16 hugetlb order=4
             @0x1070  4 hwpoison
             @0x1074  4 offline
             @0x1100 32 buddy order=5
             @0x1120  4 buddy order=2
             @0x1124  2 buddy order=1
             @0x1126  2 buddy
             @0x1128 30 cache
             @0x1146 10 private-cache
             @0x1150 30 anon
             @0x1170  8 slab order=2
             @0x1178  8 slab"
        ))
    }

    /// Adds RAM: page frames that exist. Ranges must ascend and not touch.
    #[must_use]
    pub fn ram(mut self, pfns: Range<u64>) -> Self {
        assert!(
            !pfns.is_empty() && self.ram.last().is_none_or(|r| r.end < pfns.start),
            "RAM must ascend, with holes: {pfns:x?}"
        );
        self.ram.push(pfns);
        self
    }

    /// Adds populations, lines `@PFN COUNT KIND [WORD]...`. Pages not named are the kernel's.
    ///
    /// Kinds: `kernel zero cache private-cache file-thp anon anon-thp ksm swapcache shmem-swapcache slab hugetlb buddy unaccepted
    /// offline hwpoison owner-priv tail hvo-fake-head image-cache`. Words: `order=N`, `content=zero|text|words|noise|same`,
    /// `mapping-odd`, `garbage` (a tail's), `pool` (a free hugetlb page), `hvo`, `waiters`.
    #[must_use]
    pub fn pages(mut self, text: &str) -> Self {
        self.populations.extend(Population::parse(text));
        self
    }

    /// The memory model.
    #[must_use]
    pub fn model(mut self, model: Model) -> Self {
        self.model = model;
        self
    }

    /// Five-level page tables, with the linear map and the map of struct pages where such kernels have them.
    #[must_use]
    pub fn five_levels(mut self) -> Self {
        self.levels = 5;
        self
    }

    /// The largest leaf of the linear map; smaller ones are used where RAM does not fill it.
    #[must_use]
    pub fn linear_leaf(mut self, leaf: Leaf) -> Self {
        self.linear_leaf = leaf;
        self
    }

    /// The leaf of the map of struct pages: 4 KiB, or 2 MiB (a section each; RAM must then have room for whole ones).
    #[must_use]
    pub fn vmemmap_leaf(mut self, leaf: Leaf) -> Self {
        self.vmemmap_leaf = leaf;
        self
    }

    /// Moves the kernel's virtual addresses up by `offset` (a multiple of 2 MiB) without moving it in memory: `phys_base` follows.
    #[must_use]
    pub fn kaslr(mut self, offset: u64) -> Self {
        self.kaslr = offset;
        self.phys_base -= offset as i64;
        self
    }

    /// Sets `phys_base` (a multiple of 2 MiB, may be negative) by moving the kernel in memory: its text is at 16 MiB + KASLR offset
    /// + `phys_base`. Call it after [`Self::kaslr`].
    #[must_use]
    pub fn phys_base(mut self, phys_base: i64) -> Self {
        self.phys_base = phys_base;
        self
    }

    /// Where the linear map begins, instead of the layout's own place (randomised in most machines).
    #[must_use]
    pub fn page_offset(mut self, virt: u64) -> Self {
        self.page_offset = Some(virt);
        self
    }

    /// Where the virtual map of struct pages begins.
    #[must_use]
    pub fn vmemmap(mut self, virt: u64) -> Self {
        self.vmemmap = Some(virt);
        self
    }

    /// Sets this bit in every page-table entry (memory encryption; 47 and 51 are real ones).
    #[must_use]
    pub fn sme_bit(mut self, bit: u32) -> Self {
        self.sme_mask = 1 << bit;
        self
    }

    /// Pages of the kernel image, all counted as the kernel's.
    #[must_use]
    pub fn image_pages(mut self, pages: u64) -> Self {
        self.image_pages = pages;
        self
    }

    /// Number of CPUs, each with an NT_PRSTATUS note.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// The kernel log, instead of four standing lines.
    #[must_use]
    pub fn log(mut self, log: impl Into<Log>) -> Self {
        self.log = log.into();
        self
    }

    /// Sets further flags in `section_mem_map` of every present section, besides those the version sets by itself.
    #[must_use]
    pub fn section_flags(mut self, flags: u64) -> Self {
        self.section_flags = flags;
        self
    }

    /// Leaves an entry of a section that was taken out: a map's address without the present bit. For sections without RAM.
    #[must_use]
    pub fn removed_section(mut self, section: u64) -> Self {
        self.removed_sections.push(section);
        self
    }

    /// Puts bytes at the start of a page frame (and those after it), whatever the populations say of its struct page.
    #[must_use]
    pub fn plant(mut self, pfn: u64, bytes: impl Into<Vec<u8>>) -> Self {
        self.planted.push((pfn, bytes.into()));
        self
    }

    /// Plants a VMCOREINFO note, as another kernel (the capture kernel, the one before a reboot) would have left it.
    #[must_use]
    pub fn plant_vmcoreinfo(self, pfn: u64, text: &str) -> Self {
        self.plant(pfn, elf::Note::vmcoreinfo(text).bytes(elf::Order::Little))
    }

    /// Changes the VMCOREINFO text before it is written anywhere.
    #[must_use]
    pub fn edit_vmcoreinfo(mut self, edit: fn(String) -> String) -> Self {
        self.edit = Some(edit);
        self
    }

    /// Gives a kernel since 6.0 what real ones let a reader find by name: the parts of the image, of which the last four pages were
    /// given back at boot, the first chunk of per-cpu memory, counters of slab and hugetlb pages, and BTF of their types.
    #[must_use]
    pub fn symbols(mut self) -> Self {
        self.symbols = true;
        self
    }

    /// Adds sections made of templates, and leaves unnamed pages zero so that the file stays small.
    pub(crate) fn tail(mut self, tail: Tail) -> Self {
        self.tail = Some(tail);
        self.unnamed = Filler::Zero;
        self
    }
}
