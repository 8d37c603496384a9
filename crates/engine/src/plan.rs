//! Which pages to keep, and in what order they are written.

use crate::batches::{Pass, essentials};
use crate::bitmap::Bitmap;
use crate::observer::Observer;
use crate::report::{ClassRow, GuardRow};
use crate::scan::{Limits, Memory, Scan, Tally};
use crate::selection::Selection;
use crate::stop::{Stop, StopReason};
use crate::target::WriteFailed;
use crate::watched::Watched;
use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use coresift_kernel::debugger::{self, Need, Reading};
use coresift_kernel::protected::{self, Protected};
use coresift_kernel::{ClassSet, Kernel, Oddity, PageClass, anchors, is_poisoned, nodes, unused_map};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// What is to be written.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The pages that get a descriptor.
    pub selection: Selection<'a>,
    /// The order they are written in.
    pub passes: Vec<Pass>,
    /// A row a class; `excluded_pages` counts what this plan drops of the pages the input has.
    pub classes: Vec<ClassRow>,
    /// What the guard protected.
    pub guard: Vec<GuardRow>,
    /// Bytes of memory map read.
    pub bytes_in: u64,
    /// Why it has no more than what a debugger needs to open the dump at all.
    pub stopped: Option<StopReason>,
    /// Pages left out because they hold nothing but `struct page`s of pages that are left out.
    pub unused_map: u64,
    /// Things a user should know.
    pub notes: Vec<String>,
}

/// What has to be known before the memory map is scanned.
#[derive(Debug)]
pub struct Prepared<'a> {
    scan: Scan<'a>,
    passes: Vec<Pass>,
    notes: Vec<String>,
}

impl<'a> Prepared<'a> {
    /// Finds what has to stay whatever it is, where free pages are if only lists tell, and what a debugger reads first, as far as
    /// `stop` leaves time for that; the scan is to be given up then, too.
    pub fn new(kernel: &'a Kernel, memory: &'a dyn PhysicalMemory, excluded: ClassSet, stop: &Stop) -> Self {
        let watched = Watched { memory, stop };
        let (protected, mut notes) = protected::find(kernel, &watched);
        let free = free_by_lists(kernel, &watched, excluded, &mut notes);
        let scan = Scan { kernel, memory: Memory(memory), excluded, protected, free };
        let passes = passes(&scan, &watched);
        Self { scan, passes, notes }
    }
}

impl<'a> Plan<'a> {
    /// The plan without any knowledge of the kernel: all pages the input has.
    pub fn keep_all(memory: &'a dyn PhysicalMemory) -> Self {
        let selection = Selection::new(Cow::Borrowed(memory.stored()), PageSet::default(), PageSet::default());
        Self {
            selection,
            passes: vec![Pass::Rest],
            classes: Vec::new(),
            guard: Vec::new(),
            bytes_in: 0,
            stopped: None,
            unused_map: 0,
            notes: Vec::new(),
        }
    }

    /// Scans the memory map within `limits` and leaves out what the scan of `prepared` says.
    ///
    /// # Errors
    /// `bitmap`, the output's 2nd, cannot be written.
    pub fn filter(
        prepared: Prepared<'a>,
        limits: Limits<'_>,
        bitmap: Bitmap,
        observer: &dyn Observer,
    ) -> Result<Self, WriteFailed> {
        let Prepared { scan, passes, notes } = prepared;
        let scanned = scan.run(limits, &bitmap, observer)?;
        if let Some(reason) = scanned.stopped {
            for later in &scanned.later {
                bitmap.write(later.chunk, &ChunkBits::default())?;
            }
            return Ok(Self::essentials(&scan, passes, scanned.tally.bytes, reason, notes));
        }
        let mut plan = Self {
            selection: Selection::default(),
            passes,
            classes: class_rows(&scanned.tally, &scan),
            guard: guard_rows(&scanned.tally, &scan),
            bytes_in: scanned.tally.bytes,
            stopped: None,
            unused_map: 0,
            notes,
        };
        plan.notes.extend(oddities(&scanned.tally));
        plan.selection = Selection::new(Cow::Owned(scanned.keep), scanned.slab, scanned.other);
        if !scanned.later.is_empty() {
            plan.selection = plan.selection.with_later(scanned.later, scan, bitmap);
        }
        Ok(plan)
    }

    /// The plan of a scan that was given up: what a debugger needs to open the dump at all, known before the scan. Poisoned pages are
    /// left out; what else a page is was not looked at.
    fn essentials(
        scan: &Scan<'a>,
        passes: Vec<Pass>,
        bytes_in: u64,
        reason: StopReason,
        mut notes: Vec<String>,
    ) -> Self {
        let mut reader = scan.kernel.reader(scan.memory.0);
        let stored = scan.memory.0.stored();
        let mut keep = PageSetBuilder::default();
        let (mut bits, mut more) = (ChunkBits::default(), ChunkBits::default());
        let chunks: BTreeSet<u64> = essentials(&passes).flat_map(PageSet::chunks).collect();
        for chunk in chunks {
            bits.clear();
            for set in essentials(&passes) {
                set.copy_chunk(chunk, &mut more);
                bits.unite(&more);
            }
            stored.copy_chunk(chunk, &mut more);
            bits.intersect(&more);
            let mut at = 0;
            while let Some((start, end)) = bits.next_run(at) {
                let pfn = |index| Pfn((chunk << CHUNK_SHIFT) + index);
                (start..end)
                    .filter(|index| is_poisoned(scan.kernel, &mut reader, pfn(*index)))
                    .for_each(|index| bits.unset(index, index + 1));
                at = end;
            }
            keep.push(chunk, &bits);
        }
        notes.push(format!(
            "{reason} came while the pages were being found: only those that a debugger needs to open the dump are kept"
        ));
        Self {
            selection: Selection::new(Cow::Owned(keep.finish()), PageSet::default(), PageSet::default()),
            passes,
            classes: Vec::new(),
            guard: Vec::new(),
            bytes_in,
            stopped: Some(reason),
            notes,
            unused_map: 0,
        }
    }

    /// Leaves out also the pages of the memory map that describe only pages that are left out. Their order is that of the whole map,
    /// so this needs the whole page set in memory; where that did not fit, all stays.
    pub fn leave_out_unused_map(&mut self, kernel: &Kernel, memory: &dyn PhysicalMemory) {
        if self.selection.later() > 0 {
            self.notes
                .push("unused pages of the memory map are kept: the memory budget has no room to find them".to_owned());
            return;
        }
        let before = self.selection.len();
        self.selection.remove(&unused_map::find(kernel, memory, self.selection.in_memory()));
        self.unused_map = before - self.selection.len();
    }

    /// Memory the page sets occupy, in bytes.
    pub fn memory(&self) -> u64 {
        let pass = |pass: &Pass| if let Pass::Of(set) = pass { set.memory() as u64 } else { 0 };
        self.selection.memory() as u64 + self.passes.iter().map(pass).sum::<u64>()
    }
}

/// The order of writing: what a debugger reads to open the dump at all, with all page tables and per-cpu areas; what it reads of each
/// task; the kernel's variables, task stacks and modules; its read-only data and its code, which are in its vmlinux too; then slab, the memory map, the kernel's other pages, and all others.
fn passes(scan: &Scan<'_>, memory: &dyn PhysicalMemory) -> Vec<Pass> {
    let kernel = scan.kernel;
    let steps = debugger::walk(kernel, memory, Reading::Addresses);
    let walked = |need: Need| {
        let pages = steps.iter().filter(|step| step.need == need).flat_map(|step| &step.pages);
        let mut pages: Vec<Pfn> = pages.copied().collect();
        pages.sort_unstable();
        PageSet::from_ranges(pages.into_iter().map(|pfn| (pfn, pfn.plus(1))))
    };
    let mut small = walked(Need::Open);
    let (mut image, mut memmap) = (PageSet::default(), PageSet::default());
    for kind in &scan.protected {
        let of = match kind.what {
            protected::IMAGE => &mut image,
            protected::MEM_MAP => &mut memmap,
            _ => &mut small,
        };
        *of = united(of, &kind.pages);
    }
    let vmalloc = anchors::vmalloc(kernel, memory);
    let tasks = walked(Need::Tasks);
    let variables = protected::image_data(kernel, memory);
    [small, tasks, variables, vmalloc, image]
        .into_iter()
        .map(Pass::Of)
        .chain([Pass::Slab, Pass::Of(memmap), Pass::Kernel, Pass::Rest])
        .collect()
}

fn class_rows(tally: &Tally, scan: &Scan<'_>) -> Vec<ClassRow> {
    let evidence = scan.kernel.rules.evidence();
    let row = |class: &PageClass| ClassRow {
        name: class.name(),
        pages: tally.counts.of(*class),
        excluded: scan.excluded.has(*class),
        excluded_pages: tally.dropped.of(*class),
        evidence: match evidence.iter().find(|e| e.0 == *class).and_then(|e| e.1.clone()) {
            None if *class == PageClass::Free && scan.free.is_some() => Some("the free lists of all zones".to_owned()),
            told => told,
        },
    };
    PageClass::ALL.iter().map(row).collect()
}

fn guard_rows(tally: &Tally, scan: &Scan<'_>) -> Vec<GuardRow> {
    let saved = tally.saved.iter().copied().chain(std::iter::repeat(0));
    let row = |(kind, saved): (&Protected, u64)| GuardRow { what: kind.what, pages: kind.pages.len(), saved };
    scan.protected.iter().zip(saved).map(row).collect()
}

/// What is wrong with the memory map, in words.
fn oddities(tally: &Tally) -> Vec<String> {
    let mut notes = Vec::new();
    if tally.unread > 0 {
        notes.push(format!("the struct page of {} page frames could not be read; they are kept", tally.unread));
    }
    if let Some((pfn, Oddity::BuddyOrder(order))) = tally.first_odd {
        notes.push(format!(
            "{} pages are marked as free blocks of an order that cannot be (the first is {pfn}, order {order}); they are kept",
            tally.odd
        ));
    }
    notes
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
pub fn free_by_lists(
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
