//! The builder: what machine it is, then [`Machine::build`] lays the kernel into its memory.

use crate::image::{Image, Truth};
use crate::kernel_image::KernelImage;
use crate::layout::KernelLayout;
use crate::memmap::{Memmap, Model, SECTION_PAGES, section_pages, sections};
use crate::node::{self, FreeBlock, NodeLayout};
use crate::pages::{Referents, StructPage, describe};
use crate::paging::{Leaf, PageTables, START_KERNEL_MAP};
use crate::population::{Kind, Population};
use crate::printk::{Message, log_record, plain, ring};
use crate::ram::{Filler, Ram};
use crate::{PAGE, elf, vmcoreinfo};
use std::ops::Range;

/// Distance of the kernel's text from the start of its map (`LOAD_PHYSICAL_ADDR`).
const TEXT_OFFSET: u64 = 0x100_0000;
/// Section flags: present, has a map.
const PRESENT_WITH_MAP: u64 = 3;
const IS_ONLINE: u64 = 1 << 2;
const IS_EARLY: u64 = 1 << 3;

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
    log: Vec<Message>,
    section_flags: u64,
    removed_sections: Vec<u64>,
    planted: Vec<(u64, Vec<u8>)>,
    edit: Option<fn(String) -> String>,
    crash_time: u64,
}

impl Machine {
    /// A machine with no memory yet: four-level tables, SPARSEMEM_VMEMMAP, `phys_base` 0, no KASLR, one CPU.
    #[must_use]
    pub fn new(layout: KernelLayout) -> Self {
        let log = [
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
            log: log.into(),
            section_flags: 0,
            removed_sections: Vec::new(),
            planted: Vec::new(),
            edit: None,
            crash_time: 1_700_000_000,
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
    pub fn log(mut self, messages: Vec<Message>) -> Self {
        self.log = messages;
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

    /// Lays out the kernel and everything the populations say.
    ///
    /// # Panics
    /// If the pieces do not fit: no RAM where the kernel image goes, overlapping populations, too little room.
    #[must_use]
    pub fn build(self) -> Image {
        let l = &self.layout;
        let five = self.levels == 5;
        let page_offset = self.page_offset.unwrap_or(match (five, l.since(4, 20, 0)) {
            (true, false) => 0xff10_0000_0000_0000,
            (true, true) => 0xff11_0000_0000_0000,
            (false, false) => 0xffff_8800_0000_0000,
            (false, true) => 0xffff_8880_0000_0000,
        });
        let vmalloc = if five { 0xffa0_0000_0000_0000 } else { 0xffff_c900_0000_0000 };
        let vmemmap = self.vmemmap.unwrap_or(if five { 0xffd4_0000_0000_0000 } else { 0xffff_ea00_0000_0000 });

        let phys = (TEXT_OFFSET + self.kaslr).wrapping_add_signed(self.phys_base);
        let virt = START_KERNEL_MAP + TEXT_OFFSET + self.kaslr;
        let image_pfns = phys / PAGE..phys / PAGE + self.image_pages;
        let mut ram = self.ram_for(&image_pfns);
        let mut image = KernelImage::new(&mut ram, virt, phys, self.image_pages);

        // The page tables, and everything they map.
        let root = image.object(&mut ram, "init_top_pgt", PAGE, PAGE);
        image.alias("init_level4_pgt", root);
        image.alias("swapper_pg_dir", root);
        let tables = PageTables { root: image.phys(root) / PAGE, levels: self.levels, sme_mask: self.sme_mask };
        let leaf = Leaf::M2.bytes();
        let first = virt / leaf * leaf;
        let end = (virt + self.image_pages * PAGE).next_multiple_of(leaf);
        tables.map_range(&mut ram, first, first - virt + phys, end - first, Leaf::M2);
        for r in ram.ranges.clone() {
            let (start, len) = (r.start * PAGE, (r.end - r.start) * PAGE);
            tables.map_range(&mut ram, page_offset + start, start, len, self.linear_leaf);
        }
        let map_at = if self.model == Model::SparseVmemmap { vmemmap } else { vmalloc };
        let memmap = Memmap::build(&mut ram, &tables, l, self.model, map_at, self.vmemmap_leaf);
        if self.model == Model::SparseVmemmap {
            image.alias("vmemmap", vmemmap);
        }

        // What VMCOREINFO points at.
        image.kernel_data(&mut ram, l, self.cpus, page_offset);
        self.log_buffer(&mut ram, &mut image);
        let blocks = self.free_blocks();
        self.node(&mut ram, &mut image, &memmap, page_offset, map_at, &blocks);
        if self.model != Model::Flat {
            self.mem_sections(&mut ram, &mut image, &memmap, page_offset);
        }
        image.finish(&mut ram, l);
        let facts = vmcoreinfo::Facts {
            layout: l,
            model: self.model,
            symbols: &image.symbols,
            node: NodeLayout::of(l),
            levels: self.levels,
            kaslr: self.kaslr,
            phys_base: self.phys_base,
            sme_mask: self.sme_mask,
            build_id: crate::kernel_image::BUILD_ID,
            crash_time: self.crash_time,
            vmalloc_start: vmalloc,
        };
        let mut text = vmcoreinfo::text(&facts);
        if let Some(edit) = self.edit {
            text = edit(text);
        }
        let note = elf::Note::vmcoreinfo(&text).bytes(elf::Order::Little);
        let at = ram.alloc((note.len() as u64).div_ceil(PAGE), 1);
        ram.write(at * PAGE, &note);
        for (pfn, bytes) in &self.planted {
            assert!(ram.contains(*pfn), "no RAM at {pfn:#x} to plant in");
            ram.write(pfn * PAGE, bytes);
        }

        self.struct_pages(&mut ram, &memmap, &image, &blocks);
        let fillers: Vec<(Range<u64>, Filler)> = self.populations.iter().map(|p| (p.pfns.clone(), p.filler)).collect();
        let truth = self.truth(&ram);
        let memmap_frames = memmap.frames().collect();
        Image {
            layout: self.layout,
            vmcoreinfo: text,
            symbols: image.symbols.clone(),
            truth,
            page_offset,
            phys_base: self.phys_base,
            image: image_pfns,
            image_virt: virt,
            memmap_frames,
            cpus: self.cpus,
            ram: ram.ranges.clone(),
            pages: ram.pages,
            fillers,
        }
    }

    fn ram_for(&self, image: &Range<u64>) -> Ram {
        let mut taken: Vec<(u64, u64)> = self.populations.iter().map(|p| (p.pfns.start, p.pfns.end)).collect();
        taken.sort_unstable();
        for w in taken.windows(2) {
            assert!(w[0].1 <= w[1].0, "populations overlap at {:#x}", w[1].0);
        }
        for p in &self.populations {
            let inside = image.start <= p.pfns.start && p.pfns.end <= image.end;
            assert!(
                inside == (p.kind == Kind::ImageCache),
                "the kernel image is at {image:x?}, {:x?} is not where it should be",
                p.pfns
            );
            assert!(self.ram.iter().any(|r| r.start <= p.pfns.start && p.pfns.end <= r.end), "no RAM at {:x?}", p.pfns);
        }
        let reserved = std::iter::once(image.clone()).chain(self.populations.iter().map(|p| p.pfns.clone()));
        let planted = self.planted.iter().map(|(pfn, bytes)| *pfn..pfn + (bytes.len() as u64).div_ceil(PAGE));
        let ram = Ram::new(self.ram.clone(), reserved.chain(planted).collect(), image.end);
        assert!(ram.contains(image.start) && ram.contains(image.end - 1), "no RAM for the kernel image at {image:x?}");
        ram
    }

    fn free_blocks(&self) -> Vec<FreeBlock> {
        let buddies = self.populations.iter().filter(|p| p.kind == Kind::Buddy && !p.order_is_garbage());
        buddies
            .flat_map(|p| p.pfns.clone().step_by(p.block() as usize).map(|pfn| FreeBlock { pfn, order: p.order }))
            .collect()
    }

    fn log_buffer(&self, ram: &mut Ram, image: &mut KernelImage) {
        if self.layout.since(5, 10, 0) {
            let size = ring::bytes(&self.layout, &self.log, 0).len() as u64;
            let at = image.object(ram, "printk_rb_static", size, 64);
            image.write(ram, at, &ring::bytes(&self.layout, &self.log, at));
            let prb = image.object(ram, "prb", 8, 8);
            image.write(ram, prb, &at.to_le_bytes());
            image.object(ram, "clear_seq", 24, 8);
            return;
        }
        const LEN: u64 = 8192;
        let records = self.layout.since(3, 5, 0);
        let bytes = if records { log_record::records(&self.log) } else { plain(&self.log) };
        assert!(bytes.len() as u64 <= LEN, "the messages are longer than the log buffer");
        let buffer = image.object(ram, "__log_buf", LEN, 64);
        image.write(ram, buffer, &bytes);
        // An old kernel's log has wrapped or it has not; this one has not, so the rest is stale bytes of no record.
        image.write(ram, buffer + LEN - 64, &[b'.'; 64]);
        let n = bytes.len() as u64;
        for (name, value, size) in [
            ("log_buf", buffer, 8),
            ("log_buf_len", LEN, 4),
            ("log_first_idx", 0, 4),
            ("log_next_idx", n, 4),
            ("clear_idx", 0, 4),
            ("log_end", n, 4),
            ("logged_chars", n, 4),
        ] {
            let at = image.object(ram, name, 8, 8);
            image.write(ram, at, &value.to_le_bytes()[..size]);
        }
    }

    fn node(
        &self,
        ram: &mut Ram,
        image: &mut KernelImage,
        memmap: &Memmap,
        page_offset: u64,
        map_at: u64,
        blocks: &[FreeBlock],
    ) {
        let size = NodeLayout::of(&self.layout).size;
        let (paddr, virt, mem_map) = if self.model == Model::Flat {
            let at = image.object(ram, "contig_page_data", size, 64);
            let pointer = image.object(ram, "mem_map", 8, 8);
            image.write(ram, pointer, &map_at.to_le_bytes());
            (image.phys(at), at, memmap.virt(ram.ranges[0].start))
        } else {
            let paddr = ram.alloc(size.div_ceil(PAGE), 1) * PAGE;
            let table = image.object(ram, "node_data", node::MAX_NODES * 8, 8);
            image.write(ram, table, &(page_offset + paddr).to_le_bytes());
            (paddr, page_offset + paddr, 0)
        };
        node::write(ram, memmap, &self.layout, paddr, virt, blocks, mem_map);
    }

    /// `mem_section`: the array, or the roots and the pages of entries they point at.
    fn mem_sections(&self, ram: &mut Ram, image: &mut KernelImage, memmap: &Memmap, page_offset: u64) {
        let size = self.layout.mem_section;
        let mut present = PRESENT_WITH_MAP | self.section_flags;
        if self.layout.since(4, 13, 0) {
            present |= IS_ONLINE;
        }
        if self.layout.since(5, 3, 0) {
            present |= IS_EARLY;
        }
        let mut entries: Vec<(u64, u64)> = sections(ram).map(|s| (s, memmap.section_base(s) | present)).collect();
        for &section in &self.removed_sections {
            let pfns = section_pages(section);
            assert!(!self.ram.iter().any(|r| r.start < pfns.end && r.end > pfns.start), "section {section} has RAM");
            let (first, _) = entries[0];
            entries.push((section, (memmap.section_base(first) & !0x3f) | IS_EARLY));
        }
        let last = entries.iter().map(|e| e.0).max().unwrap_or(0);
        if self.model == Model::Sparse {
            let array = image.object(ram, "mem_section", (last + 1) * size, 64);
            for (section, value) in entries {
                image.write(ram, array + section * size, &value.to_le_bytes());
            }
            return;
        }
        let len = vmcoreinfo::section_roots(&self.layout, self.model) * 8;
        // A static array until 4.14, then allocated; VMCOREINFO has the array's own address either way.
        let roots = if self.layout.since(4, 15, 0) {
            let at = ram.alloc(len / PAGE, 1) * PAGE;
            image.alias("mem_section", page_offset + at);
            at
        } else {
            let at = image.object(ram, "mem_section", len, PAGE);
            image.phys(at)
        };
        let per_root = PAGE / size;
        for (section, value) in entries {
            let root = roots + section / per_root * 8;
            if ram.read_u64(root) == 0 {
                let page = ram.alloc(1, 1) * PAGE;
                ram.write_u64(root, page_offset + page);
            }
            let page = ram.read_u64(root) - page_offset;
            ram.write_u64(page + section % per_root * size, value);
        }
    }

    fn struct_pages(&self, ram: &mut Ram, memmap: &Memmap, image: &KernelImage, blocks: &[FreeBlock]) {
        let l = &self.layout;
        let refs = Referents {
            object: image.symbols["init_task"],
            free_huge_page: image.symbols["free_huge_page"],
            free_compound_page: image.symbols["free_compound_page"],
        };
        let named: Vec<Range<u64>> = self.populations.iter().map(|p| p.pfns.clone()).collect();
        let taken: Vec<u64> = ram.pages.keys().copied().collect();
        for pfn in ram.ranges.clone().into_iter().flatten() {
            if !named.iter().any(|r| r.contains(&pfn)) {
                let page = StructPage::plain(l, self.high_flags(pfn));
                let page = if taken.binary_search(&pfn).is_ok() { page.reserved() } else { page };
                memmap.write(ram, memmap.virt(pfn), &page.bytes);
            }
        }
        for p in &self.populations {
            for pfn in p.pfns.clone() {
                let head = pfn - (pfn - p.pfns.start) % p.block();
                let page = describe(l, p, pfn - head, memmap.virt(head), self.high_flags(pfn), refs);
                // The free list's link was written with the node.
                let link = blocks.iter().any(|b| b.pfn == pfn).then_some(l.page.lru as usize..l.page.lru as usize + 16);
                let at = memmap.virt(pfn);
                let cut = link.unwrap_or(0..0);
                memmap.write(ram, at, &page.bytes[..cut.start]);
                memmap.write(ram, at + cut.end as u64, &page.bytes[cut.end..]);
            }
        }
    }

    /// The section, node and zone numbers in the top bits of `page.flags`.
    fn high_flags(&self, pfn: u64) -> u64 {
        match self.model {
            Model::SparseVmemmap | Model::Flat => node::zone_of(pfn) << 60,
            Model::Sparse | Model::SparseExtreme => (pfn / SECTION_PAGES) << 45 | node::zone_of(pfn) << 41,
        }
    }

    fn truth(&self, ram: &Ram) -> Truth {
        let mut truth = Truth::default();
        let mut populations: Vec<&Population> = self.populations.iter().collect();
        populations.sort_by_key(|p| p.pfns.start);
        let mut at = 0;
        let kernel = |truth: &mut Truth, pfns: Range<u64>| {
            for pfn in pfns {
                let zero = ram.pages.get(&pfn).is_some_and(|p| p.iter().all(|b| *b == 0));
                truth.push(pfn, pfn + 1, if zero { "zero" } else { "kernel" });
            }
        };
        for range in &ram.ranges {
            truth.push(at, range.start, "hole");
            at = range.start;
            for p in populations.iter().filter(|p| p.kind != Kind::ImageCache && range.contains(&p.pfns.start)) {
                kernel(&mut truth, at..p.pfns.start);
                let (head, rest) = p.class(&self.layout);
                for block in p.pfns.clone().step_by(p.block() as usize) {
                    truth.push(block, block + 1, head);
                    truth.push(block + 1, block + p.block(), rest);
                }
                at = p.pfns.end;
            }
            kernel(&mut truth, at..range.end);
            at = range.end;
        }
        for (pfn, bytes) in &self.planted {
            assert!(!bytes.iter().all(|b| *b == 0), "planting zeros at {pfn:#x} changes nothing");
        }
        truth
    }
}
