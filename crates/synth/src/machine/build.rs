//! Laying the kernel into the machine's memory.

use super::{Machine, Tail};
use crate::image::{Image, TailPages, TailTruth, Truth};
use crate::kernel_image::KernelImage;
use crate::layout::KernelLayout;
use crate::memmap::{Memmap, Model, SECTION_PAGES, section_pages, sections};
use crate::node::{self, FreeBlock, NodeLayout};
use crate::pages::{Referents, StructPage, describe};
use crate::paging::{Leaf, PageTables, START_KERNEL_MAP};
use crate::population::{Kind, Population};
use crate::printk::{log_record, plain, ring};
use crate::ram::{Filler, Ram};
use crate::{PAGE, elf, vmcoreinfo};
use std::ops::Range;

/// Distance of the kernel's text from the start of its map (`LOAD_PHYSICAL_ADDR`).
const TEXT_OFFSET: u64 = 0x100_0000;
/// Section flags: present, has a map.
const PRESENT_WITH_MAP: u64 = 3;
const IS_ONLINE: u64 = 1 << 2;
const IS_EARLY: u64 = 1 << 3;

impl Machine {
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
        let all_ram = self.all_ram();
        for r in &all_ram {
            let (start, len) = (r.start * PAGE, (r.end - r.start) * PAGE);
            tables.map_range(&mut ram, page_offset + start, start, len, self.linear_leaf);
        }
        let map_at = if self.model == Model::SparseVmemmap { vmemmap } else { vmalloc };
        let memmap = Memmap::build(&mut ram, &tables, l, self.model, map_at, self.vmemmap_leaf);
        if self.model == Model::SparseVmemmap {
            image.alias("vmemmap", vmemmap);
        }
        let templates = self.tail.as_ref().map_or_else(Vec::new, |t| t.map(&mut ram, &tables, vmemmap));

        // What VMCOREINFO points at.
        image.kernel_data(&mut ram, l, self.cpus, page_offset);
        self.log_buffer(&mut ram, &mut image);
        let blocks = self.free_blocks();
        self.node(&mut ram, &mut image, &memmap, page_offset, map_at, &blocks);
        if self.model != Model::Flat {
            self.mem_sections(&mut ram, &mut image, &memmap, page_offset);
        }
        if self.symbols {
            crate::symbols::place(&mut ram, &mut image, page_offset, self.cpus, &self.populations);
        }
        image.finish(&mut ram, l);
        let facts = vmcoreinfo::Facts {
            layout: l,
            model: self.model,
            symbols: &image.symbols,
            node: NodeLayout::of(l),
            log_callers: self.log.callers,
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
        if let Some(pointer) = image.symbols.get(crate::symbols::VMCOREINFO_DATA) {
            // The text begins behind the header and the name of the note.
            image.write(&mut ram, *pointer, &(page_offset + at * PAGE + 24).to_le_bytes());
        }
        for (pfn, bytes) in &self.planted {
            assert!(ram.contains(*pfn), "no RAM at {pfn:#x} to plant in");
            ram.write(pfn * PAGE, bytes);
        }

        let refs = Referents {
            object: image.symbols["init_task"],
            free_huge_page: image.symbols["free_huge_page"],
            free_compound_page: image.symbols["free_compound_page"],
        };
        self.struct_pages(&mut ram, &memmap, refs, &blocks);
        if let Some(tail) = &self.tail {
            tail.struct_pages(&mut ram, l, &templates, vmemmap, refs);
        }
        let fillers: Vec<(Range<u64>, Filler)> = self.populations.iter().map(|p| (p.pfns.clone(), p.filler)).collect();
        let truth = self.truth(&ram);
        let memmap_frames = memmap.frames().chain(templates.iter().flat_map(|t| *t..t + 512)).collect();
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
            ram: all_ram,
            pages: ram.pages,
            fillers,
            unnamed: self.unnamed,
            tail: self.tail.map(|t| TailPages { first: t.sections[0].0 * SECTION_PAGES, contents: t.contents }),
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

    /// RAM with the tail's sections, touching ranges joined.
    fn all_ram(&self) -> Vec<Range<u64>> {
        let tail = self.tail.iter().flat_map(|t| t.sections.iter().map(|s| section_pages(s.0)));
        let mut all: Vec<Range<u64>> = Vec::new();
        for range in self.ram.iter().cloned().chain(tail) {
            match all.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => all.push(range),
            }
        }
        all
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
            let clear_seq = image.object(ram, "clear_seq", 24, 8);
            image.write(ram, clear_seq, &ring::clear_seq(&self.layout, &self.log));
            return;
        }
        let records = self.layout.since(3, 5, 0);
        let log = if records { log_record::records(&self.layout, &self.log) } else { plain(&self.log) };
        let buffer = image.object(ram, "__log_buf", log.bytes.len() as u64, 64);
        image.write(ram, buffer, &log.bytes);
        for (name, value, size) in [("log_buf", buffer, 8)].into_iter().chain(log.numbers) {
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
        let all = self.all_ram();
        let more_free = self.tail.as_ref().map_or([0; 3], |t| t.free_pages(&self.layout));
        node::write(ram, memmap, &self.layout, &node::Node { paddr, virt, mem_map, ram: &all, blocks, more_free });
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
        if let Some(tail) = &self.tail {
            let value = entries[0].1;
            entries.extend(tail.sections.iter().map(|(section, _)| (*section, value)));
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

    fn struct_pages(&self, ram: &mut Ram, memmap: &Memmap, refs: Referents, blocks: &[FreeBlock]) {
        let l = &self.layout;
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
        let zero = |pfn: u64| match ram.pages.get(&pfn) {
            Some(page) => page.iter().all(|b| *b == 0),
            None => self.unnamed == Filler::Zero,
        };
        let mut truth = class_runs(&self.layout, &ram.ranges, &self.populations, zero);
        truth.tail =
            self.tail.as_ref().map(|t| TailTruth { sections: t.sections.clone(), templates: t.truths(&self.layout) });
        truth
    }
}

/// The classes of page frames up to the end of `ram`; `zero` tells the content of those no population names.
fn class_runs(
    layout: &KernelLayout,
    ram: &[Range<u64>],
    populations: &[Population],
    zero: impl Fn(u64) -> bool,
) -> Truth {
    let mut truth = Truth::default();
    let mut populations: Vec<&Population> = populations.iter().filter(|p| p.kind != Kind::ImageCache).collect();
    populations.sort_by_key(|p| p.pfns.start);
    let kernel = |truth: &mut Truth, pfns: Range<u64>| {
        for pfn in pfns {
            truth.push(pfn, pfn + 1, if zero(pfn) { "zero" } else { "kernel" });
        }
    };
    let mut at = 0;
    for range in ram {
        truth.push(at, range.start, "hole");
        at = range.start;
        for p in populations.iter().filter(|p| range.contains(&p.pfns.start)) {
            kernel(&mut truth, at..p.pfns.start);
            let (head, rest) = p.class(layout);
            for block in p.pfns.clone().step_by(p.block() as usize) {
                truth.push(block, block + 1, head);
                truth.push(block + 1, (block + p.block()).min(p.pfns.end), rest);
            }
            at = p.pfns.end;
        }
        kernel(&mut truth, at..range.end);
        at = range.end;
    }
    truth
}

impl Tail {
    /// Takes 2 MiB for the struct pages of each template and maps them where the sections have theirs.
    fn map(&self, ram: &mut Ram, tables: &PageTables, vmemmap: u64) -> Vec<u64> {
        let frames: Vec<u64> = self.templates.iter().map(|_| ram.alloc(512, 512)).collect();
        for (section, template) in &self.sections {
            tables.map(ram, vmemmap + section * Leaf::M2.bytes(), frames[*template] * PAGE, Leaf::M2);
        }
        frames
    }

    /// Writes the struct pages of each template, as they are in the first section that uses it.
    fn struct_pages(&self, ram: &mut Ram, layout: &KernelLayout, frames: &[u64], vmemmap: u64, refs: Referents) {
        assert!(layout.page.size == 64, "a section's struct pages must fill 2 MiB");
        for (template, populations) in self.templates.iter().enumerate() {
            let Some((section, _)) = self.sections.iter().find(|s| s.1 == template) else { continue };
            let first = section * SECTION_PAGES;
            let mut bytes = Vec::with_capacity(Leaf::M2.bytes() as usize);
            for p in populations {
                assert!(bytes.len() as u64 == p.pfns.start * 64, "templates name every page, in order");
                for at in p.pfns.clone() {
                    // A gigantic page's later sections have only tails of a head that is elsewhere.
                    let index = p.continues + (at - p.pfns.start) % p.block();
                    let head = (vmemmap + (first + at) * 64).wrapping_sub(index * 64);
                    bytes.extend(describe(layout, p, index, head, node::zone_of(first) << 60, refs).bytes);
                }
            }
            ram.write(frames[template] * PAGE, &bytes);
        }
    }

    fn truths(&self, layout: &KernelLayout) -> Vec<Truth> {
        let whole = 0..SECTION_PAGES;
        // Where contents go by the place in a turn, each template has one place in it; that of free memory has no content to tell.
        let period = self.contents.period();
        let truths = self.templates.iter().enumerate().map(|(number, template)| {
            let truth = class_runs(layout, std::slice::from_ref(&whole), template, |_| false);
            let start = number as u64 % period * SECTION_PAGES;
            truth.with_zeros(|at| self.contents.filler(start + at) == Filler::Zero)
        });
        truths.collect()
    }

    /// Free pages of each zone.
    fn free_pages(&self, layout: &KernelLayout) -> [u64; 3] {
        let free: Vec<u64> = self.truths(layout).iter().map(|t| t.count("free")).collect();
        let mut zones = [0; 3];
        for (section, template) in &self.sections {
            zones[node::zone_of(section * SECTION_PAGES) as usize] += free[*template];
        }
        zones
    }
}
