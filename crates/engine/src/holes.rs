//! Pages that an ELF core of another program describes and has no data for (`p_filesz` below `p_memsz`): makedumpfile has pages of zeros
//! and pages that it left out in the same way. What tells them apart is what a page is: no dump level leaves out the kernel's own and
//! slab pages, so that those are zeros. All others are in no output: nobody knows what was in them.
//!
//! ```text
//! page without data ─ struct page ─┬─ kernel, slab, none at all ──────────> zeros
//!                                  └─ of a class that can be left out,
//!                                     or without data itself ─────────────> not known: ElfCore::set_unknown
//! ```

use crate::plan::free_by_lists;
use coresift_format::{CHUNK_SHIFT, ChunkBits, Input, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use coresift_kernel::{ClassSet, ClassSink, Kernel, PageClass, Scanner};

/// Classes that some level leaves out, or every level.
const LEFT_OUT: ClassSet = ClassSet::SELECTABLE.union(ClassSet::UNREADABLE);

/// Bytes of memory map that are in a file or not together: a page of x86-64.
const MAP_PAGE: u64 = 4096;

/// Tells `input` which of its pages without data are not known to be zeros, and returns what these may be. Where the kernel is not
/// understood that is all of them. Nothing is unknown of a core that tells what was left out of it.
pub fn judge(input: &mut Input, kernel: Option<&Kernel>) -> ClassSet {
    let memory = input.memory();
    let tells = input.as_elf().is_none_or(|core| core.origin().is_some());
    if tells || memory.known_zero().is_empty() {
        return ClassSet::NONE;
    }
    let (unknown, classes) = match kernel {
        Some(kernel) => Judge::new(kernel, memory).all(),
        None => (memory.known_zero().clone(), ClassSet::SELECTABLE),
    };
    input.set_unknown(unknown);
    classes
}

struct Judge<'a> {
    kernel: &'a Kernel,
    memory: &'a dyn PhysicalMemory,
    /// Free pages of a kernel that does not mark them.
    free: Option<PageSet>,
    unknown: Unknown,
}

/// The pages of one chunk.
#[derive(Default)]
struct Unknown {
    base: u64,
    /// Those without data.
    holes: ChunkBits,
    /// Those that can have been left out.
    bits: ChunkBits,
    /// The classes of holes of all chunks that can have been left out.
    classes: ClassSet,
}

impl ClassSink for Unknown {
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
        let (start, end) = (start.0 - self.base, end.0 - self.base);
        if LEFT_OUT.has(class) && self.holes.count_in(start, end) > 0 {
            self.bits.set(start, end);
            self.classes = self.classes.union(ClassSet::of(&[class]));
        }
    }
}

impl<'a> Judge<'a> {
    fn new(kernel: &'a Kernel, memory: &'a dyn PhysicalMemory) -> Self {
        // That the lists cannot be walked is told where free pages are left out.
        let free = free_by_lists(kernel, memory, ClassSet::SELECTABLE, &mut Vec::new());
        Self { kernel, memory, free, unknown: Unknown::default() }
    }

    fn all(mut self) -> (PageSet, ClassSet) {
        let mut scanner = Scanner::new(self.kernel, self.memory, LEFT_OUT);
        let mut pages = PageSetBuilder::default();
        for chunk in self.memory.known_zero().chunks() {
            // Page frames that have no struct page are no memory that a program could choose from.
            let (from, to) = (Pfn(chunk << CHUNK_SHIFT), Pfn((chunk + 1) << CHUNK_SHIFT));
            if self.kernel.memmap.covering(from, to).next().is_none() {
                continue;
            }
            self.unknown.base = from.0;
            self.unknown.bits.clear();
            self.memory.known_zero().copy_chunk(chunk, &mut self.unknown.holes);
            scanner.scan_chunk(chunk, self.memory.ram(), &mut self.unknown);
            self.add_free(chunk);
            self.unknown.bits.intersect(&self.unknown.holes);
            self.add_undescribed();
            pages.push(chunk, &self.unknown.bits);
        }
        (pages.finish(), self.unknown.classes)
    }

    fn add_free(&mut self, chunk: u64) {
        let Some(free) = &self.free else { return };
        let mut bits = ChunkBits::default();
        free.copy_chunk(chunk, &mut bits);
        bits.intersect(&self.unknown.holes);
        if bits.count() > 0 {
            self.unknown.bits.unite(&bits);
            self.unknown.classes = self.unknown.classes.union(ClassSet::of(&[PageClass::Free]));
        }
    }

    /// Adds the holes whose `struct page` lies in a hole itself, or cannot be read: no page of memory has one of zeros, so that it was left
    /// out (`makedumpfile -e`), and with it what tells what the page was.
    fn add_undescribed(&mut self) {
        let size = self.kernel.rules.size() as u64;
        let mut reader = self.kernel.reader(self.memory);
        let page = self.memory.page_size();
        let known = |pfn| self.memory.stored().contains(pfn) && !self.memory.known_zero().contains(pfn);
        let mut rest = self.unknown.holes.clone();
        rest.subtract(&self.unknown.bits);
        for (start, end) in rest.runs() {
            for range in self.kernel.memmap.covering(Pfn(self.unknown.base + start), Pfn(self.unknown.base + end)) {
                let mut at = range.start;
                while at < range.end {
                    let map = range.map.plus((at.0 - range.start.0) * size);
                    let next = at.plus((MAP_PAGE - map.0 % MAP_PAGE).div_ceil(size).max(1)).min(range.end);
                    if !reader.translate(map).is_ok_and(|(phys, _)| known(phys.pfn(page))) {
                        self.unknown.bits.set(at.0 - self.unknown.base, next.0 - self.unknown.base);
                        self.unknown.classes = self.unknown.classes.union(ClassSet::SELECTABLE);
                    }
                    at = next;
                }
            }
        }
    }
}
