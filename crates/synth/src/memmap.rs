//! Where the struct pages are: the memory model, its virtual map, and `mem_section`.

use crate::PAGE;
use crate::layout::KernelLayout;
use crate::paging::{Leaf, PageTables};
use crate::ram::Ram;
use std::collections::BTreeMap;
use std::ops::Range;

/// log2 of the bytes of a memory section on x86-64.
pub const SECTION_SIZE_BITS: u32 = 27;
/// Page frames of a section.
pub const SECTION_PAGES: u64 = 1 << (SECTION_SIZE_BITS - 12);

/// The kernel's memory model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// What x86-64 has: one virtual array of all struct pages, sections listed in roots allocated on need.
    SparseVmemmap,
    /// Sections listed in roots, the struct pages of each section somewhere of their own.
    SparseExtreme,
    /// One array of all sections in the kernel image. Only the entries up to the end of RAM are there.
    Sparse,
    /// One array of struct pages from page frame 0 on. No NUMA, hence `contig_page_data`.
    Flat,
}

/// The struct pages: a virtual address for each, and the physical page behind it.
#[derive(Debug)]
pub(crate) struct Memmap {
    stride: u64,
    /// Pieces of the map: first page frame to the virtual address of its struct page.
    bases: Vec<(Range<u64>, u64)>,
    /// Virtual page number to page frame.
    backing: BTreeMap<u64, u64>,
}

impl Memmap {
    /// Takes memory for the struct pages of all RAM and maps it. Struct pages of holes share one page, where the kernel has them too.
    pub fn build(
        ram: &mut Ram,
        tables: &PageTables,
        layout: &KernelLayout,
        model: Model,
        virt: u64,
        leaf: Leaf,
    ) -> Self {
        let stride = layout.page.size;
        let mut map = Self { stride, bases: Vec::new(), backing: BTreeMap::new() };
        let pieces: Vec<(Range<u64>, u64)> = match model {
            Model::Flat => vec![(0..ram.end(), virt)],
            Model::SparseVmemmap => {
                sections(ram).map(|s| (section_pages(s), virt + section_pages(s).start * stride)).collect()
            }
            // Apart, so that nothing works that takes one section's map to follow the other's.
            _ => sections(ram)
                .enumerate()
                .map(|(i, s)| (section_pages(s), virt + i as u64 * 3 * SECTION_PAGES * stride))
                .collect(),
        };
        let hole = ram.alloc(1, 1);
        ram.write(hole * PAGE, &hole_page(layout));
        for (pfns, base) in pieces {
            let end = base + (pfns.end - pfns.start) * stride;
            let mut at = base / PAGE * PAGE;
            while at < end {
                if leaf == Leaf::M2 && at.is_multiple_of(Leaf::M2.bytes()) && end - at >= Leaf::M2.bytes() {
                    let block = ram.alloc(512, 512);
                    tables.map(ram, at, block * PAGE, Leaf::M2);
                    for i in 0..512 {
                        map.backing.insert(at / PAGE + i, block + i);
                    }
                    at += Leaf::M2.bytes();
                    continue;
                }
                let first = pfns.start + at.saturating_sub(base) / stride;
                let last = pfns.start + (at + PAGE - base).div_ceil(stride);
                if let std::collections::btree_map::Entry::Vacant(e) = map.backing.entry(at / PAGE) {
                    let used = ram.ranges.iter().any(|r| r.start < last.min(pfns.end) && r.end > first);
                    let pfn = if used { ram.alloc(1, 1) } else { hole };
                    tables.map(ram, at, pfn * PAGE, Leaf::K4);
                    e.insert(pfn);
                }
                at += PAGE;
            }
            map.bases.push((pfns, base));
        }
        map
    }

    /// The virtual address of a page frame's struct page.
    pub fn virt(&self, pfn: u64) -> u64 {
        let i = self.bases.partition_point(|(r, _)| r.end <= pfn);
        let (range, base) = &self.bases[i];
        assert!(range.contains(&pfn), "page frame {pfn:#x} has no struct page");
        base + (pfn - range.start) * self.stride
    }

    /// Writes at a virtual address inside the map.
    pub fn write(&self, ram: &mut Ram, virt: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (virt, bytes);
        while !rest.is_empty() {
            let n = rest.len().min((PAGE - at % PAGE) as usize);
            ram.write(self.backing[&(at / PAGE)] * PAGE + at % PAGE, &rest[..n]);
            rest = &rest[n..];
            at += n as u64;
        }
    }

    /// The page frames the struct pages are in.
    pub fn frames(&self) -> impl Iterator<Item = u64> + '_ {
        self.backing.values().copied()
    }

    /// `section_mem_map` of a section without its flags: the address a struct page of page frame 0 would have.
    pub fn section_base(&self, section: u64) -> u64 {
        let first = section * SECTION_PAGES;
        self.virt(first).wrapping_sub(first * self.stride)
    }
}

/// Numbers of the sections that hold RAM.
pub(crate) fn sections(ram: &Ram) -> impl Iterator<Item = u64> + use<> {
    let mut numbers: Vec<u64> =
        ram.ranges.iter().flat_map(|r| r.start / SECTION_PAGES..r.end.div_ceil(SECTION_PAGES)).collect();
    numbers.dedup();
    numbers.into_iter()
}

pub(crate) fn section_pages(section: u64) -> Range<u64> {
    section * SECTION_PAGES..(section + 1) * SECTION_PAGES
}

/// Struct pages of holes: reserved, where whole ones fit a page; else nothing but a mark so that the page is not all zero.
fn hole_page(layout: &KernelLayout) -> Vec<u8> {
    if PAGE.is_multiple_of(layout.page.size) {
        return crate::pages::StructPage::plain(layout, 0).reserved().bytes.repeat((PAGE / layout.page.size) as usize);
    }
    let mut page = vec![0; PAGE as usize];
    page[PAGE as usize - 1] = 1;
    page
}
