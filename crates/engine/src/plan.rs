//! Which pages to keep, and in what order they are written.

use crate::observer::Observer;
use crate::report::{ClassRow, GuardRow};
use crate::scan::{Scan, Scanned};
use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use coresift_kernel::protected::{self, Protected};
use coresift_kernel::{ClassSet, Kernel, Oddity, PageClass, anchors, is_poisoned, nodes};
use std::collections::BTreeSet;

/// What is to be written.
#[derive(Debug, Default)]
pub struct Plan {
    /// The pages that get a descriptor.
    pub keep: PageSet,
    /// Pages to write first, in this order, each set in pfn order, as far as they are in `keep`; the rest of `keep` follows.
    pub first: Vec<PageSet>,
    /// Pages that must not be read, whatever else is true of them.
    unreadable: PageSet,
    /// A row a class; `excluded_pages` counts what this plan drops of the pages the input has.
    pub classes: Vec<ClassRow>,
    /// What the guard protected.
    pub guard: Vec<GuardRow>,
    /// Bytes of memory map read.
    pub bytes_in: u64,
    /// Things a user should know.
    pub notes: Vec<String>,
}

impl Plan {
    /// The plan without any knowledge of the kernel: all pages the input has.
    pub fn keep_all(memory: &dyn PhysicalMemory) -> Self {
        Self { keep: memory.stored().clone(), ..Self::default() }
    }

    /// Scans the memory map with `threads` threads and leaves out the pages of the classes in `excluded`.
    pub fn filter(
        kernel: &Kernel,
        memory: &dyn PhysicalMemory,
        excluded: ClassSet,
        threads: usize,
        observer: &dyn Observer,
    ) -> Self {
        let (protected, mut notes) = protected::find(kernel, memory);
        let free = free_by_lists(kernel, memory, excluded, &mut notes);
        let scan = Scan { kernel, memory, excluded, protected: &protected, free: free.as_ref(), observer };
        let scanned = scan.run(threads);
        let mut plan = Self::of(scanned, kernel, excluded, &protected, free.is_some(), notes);
        let memmap = plan.guard_memmap(kernel, memory);
        plan.order(protected, [anchors::find(kernel, memory), anchors::vmalloc(kernel, memory)], memmap);
        plan
    }

    /// The plan of what was `scanned`, with the rows of the report.
    fn of(
        scanned: Scanned,
        kernel: &Kernel,
        excluded: ClassSet,
        protected: &[Protected],
        by_lists: bool,
        mut notes: Vec<String>,
    ) -> Self {
        if scanned.unread > 0 {
            notes.push(format!("the struct page of {} page frames could not be read; they are kept", scanned.unread));
        }
        if let Some((pfn, Oddity::BuddyOrder(order))) = scanned.first_odd {
            notes.push(format!(
                "{} pages are marked as free blocks of an order that cannot be (the first is {pfn}, order {order}); they are kept",
                scanned.odd
            ));
        }
        let evidence = kernel.rules.evidence();
        let classes = PageClass::ALL
            .iter()
            .map(|class| ClassRow {
                name: class.name(),
                pages: scanned.counts.of(*class),
                excluded: excluded.has(*class),
                excluded_pages: scanned.dropped.of(*class),
                evidence: match evidence.iter().find(|e| e.0 == *class).and_then(|e| e.1.clone()) {
                    None if *class == PageClass::Free && by_lists => Some("the free lists of all zones".to_owned()),
                    told => told,
                },
            })
            .collect();
        let guard = protected
            .iter()
            .zip(scanned.saved)
            .map(|(kind, saved)| GuardRow { what: kind.what, pages: kind.pages.len(), saved })
            .collect();
        Self {
            keep: scanned.keep,
            first: vec![scanned.slab, scanned.kernel],
            unreadable: scanned.unreadable,
            classes,
            guard,
            bytes_in: scanned.pages * kernel.rules.size() as u64,
            notes,
        }
    }

    /// Puts in front what a debugger needs to open the dump at all: page tables, per-cpu areas, where the memory map hangs, and the
    /// kernel image, task stacks and modules; then slab, which `first` begins with, the memory map, and the kernel's other pages, which it ends with.
    fn order(&mut self, protected: Vec<Protected>, [anchors, vmalloc]: [PageSet; 2], memmap: PageSet) {
        let (image, small): (Vec<_>, Vec<_>) = protected.into_iter().partition(|kind| kind.what == protected::IMAGE);
        let union =
            |sets: Vec<Protected>| sets.into_iter().fold(PageSet::default(), |all, kind| united(&all, &kind.pages));
        self.first.insert(0, vmalloc);
        self.first.insert(0, union(image));
        self.first.insert(0, united(&union(small), &anchors));
        self.first.insert(4, memmap);
    }

    /// Memory the page sets occupy, in bytes.
    pub fn memory(&self) -> u64 {
        self.first.iter().chain([&self.keep, &self.unreadable]).map(|set| set.memory() as u64).sum()
    }

    /// Keeps the pages that hold the `struct page`s of kept pages, and returns them.
    fn guard_memmap(&mut self, kernel: &Kernel, memory: &dyn PhysicalMemory) -> PageSet {
        let mut needed = Vec::new();
        for chunk in self.keep.chunks() {
            let (start, end) = (Pfn(chunk << CHUNK_SHIFT), Pfn((chunk + 1) << CHUNK_SHIFT));
            needed.extend(protected::memmap_pages(kernel, memory, start, end));
        }
        let needed = PageSet::from_ranges(needed);
        let mut lost = PageSetBuilder::default();
        let (mut bits, mut other) = (ChunkBits::default(), ChunkBits::default());
        let mut reader = kernel.reader(memory);
        for chunk in needed.chunks() {
            needed.copy_chunk(chunk, &mut bits);
            memory.stored().copy_chunk(chunk, &mut other);
            bits.intersect(&other);
            for not_lost in [&self.keep, &self.unreadable] {
                not_lost.copy_chunk(chunk, &mut other);
                bits.subtract(&other);
            }
            other.clear();
            for (start, end) in bits.runs() {
                for index in (start..end).filter(|i| is_poisoned(kernel, &mut reader, Pfn((chunk << CHUNK_SHIFT) + i)))
                {
                    other.set(index, index + 1);
                }
            }
            bits.subtract(&other);
            lost.push(chunk, &bits);
        }
        let lost = lost.finish();
        self.guard.push(GuardRow { what: "mem_map", pages: needed.len(), saved: lost.len() });
        if !lost.is_empty() {
            self.keep = united(&self.keep, &lost);
        }
        needed
    }
}

/// The pages of either set.
fn united(one: &PageSet, other: &PageSet) -> PageSet {
    let chunks: BTreeSet<u64> = one.chunks().chain(other.chunks()).collect();
    let (mut bits, mut more) = (ChunkBits::default(), ChunkBits::default());
    let mut set = PageSetBuilder::default();
    for chunk in chunks {
        one.copy_chunk(chunk, &mut bits);
        other.copy_chunk(chunk, &mut more);
        bits.unite(&more);
        set.push(chunk, &bits);
    }
    set.finish()
}

/// Free pages by the free lists, where the pages themselves do not tell and they are to be left out.
fn free_by_lists(
    kernel: &Kernel,
    memory: &dyn PhysicalMemory,
    excluded: ClassSet,
    notes: &mut Vec<String>,
) -> Option<PageSet> {
    if kernel.rules.knows_buddy() || !excluded.has(PageClass::Free) {
        return None;
    }
    match nodes::walk_free_lists(kernel, memory) {
        Ok(set) => Some(set),
        Err(e) => {
            notes.push(format!(
                "free pages are kept: this kernel does not mark them, and their lists cannot be walked: {e}"
            ));
            None
        }
    }
}
