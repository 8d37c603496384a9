//! Which pages of one chunk stay.

use crate::scan::{Scan, Tally};
use crate::selection::Kinds;
use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, Pfn};
use coresift_kernel::{ClassSet, ClassSink, PageClass, is_poisoned};

/// Decides one chunk after the other, and counts.
#[derive(Debug, Default)]
pub struct Decider {
    /// The pages of the last chunk that stay.
    pub kinds: Kinds,
    /// Numbers of pages of all chunks.
    pub tally: Tally,
    base: u64,
    excluded: ClassSet,
    /// Whether the input has all page frames of the chunk.
    full: bool,
    /// Those it has; filled in only where that is not all.
    stored: ChunkBits,
    /// Whether the input has all RAM pages of the chunk.
    whole: bool,
    /// Whether something protected is in the chunk; only then what follows is filled in.
    guarded: bool,
    free: ChunkBits,
    /// Pages that must not be read: not even the guard brings them back.
    unreadable: ChunkBits,
    left_out: Vec<(u64, u64, PageClass)>,
    scratch: ChunkBits,
}

impl ClassSink for Decider {
    #[inline]
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
        let (start, end) = (start.0 - self.base, end.0 - self.base);
        self.tally.counts.add(class, end - start);
        if !self.excluded.has(class) {
            self.kinds.keep.set(start, end);
            match class {
                PageClass::Slab => self.kinds.slab.set(start, end),
                PageClass::Kernel => {}
                _ => self.kinds.other.set(start, end),
            }
            return;
        }
        let pages = if self.whole { end - start } else { self.stored.count_in(start, end) };
        self.tally.dropped.add(class, pages);
        if self.guarded {
            self.left_out.push((start, end, class));
            if class == PageClass::Free {
                self.free.set(start, end);
            }
            if ClassSet::UNREADABLE.has(class) {
                self.unreadable.set(start, end);
            }
        }
    }
}

impl Decider {
    /// Clears what the chunk before left.
    pub fn begin(&mut self, chunk: u64, scan: &Scan<'_>) {
        self.base = chunk << CHUNK_SHIFT;
        self.excluded = scan.excluded;
        let (from, to) = (Pfn(self.base), Pfn(self.base + (1 << CHUNK_SHIFT)));
        let (ram, stored) = (scan.memory.0.ram(), scan.memory.0.stored());
        self.full = ram.has_chunk(chunk) && stored.has_chunk(chunk);
        self.whole = self.full;
        if !self.full {
            ram.copy_chunk(chunk, &mut self.scratch);
            stored.copy_chunk(chunk, &mut self.stored);
            self.whole = self.scratch == self.stored;
        }
        for bits in [&mut self.kinds.keep, &mut self.kinds.slab, &mut self.kinds.other] {
            bits.clear();
        }
        self.guarded = scan.protected.iter().any(|kind| kind.pages.runs(from, to).next().is_some());
        if self.guarded {
            self.free.clear();
            self.unreadable.clear();
            self.left_out.clear();
        }
    }

    /// Settles what the classes alone do not say.
    pub fn finish(&mut self, chunk: u64, scan: &Scan<'_>) {
        if let Some(free) = &scan.free {
            self.leave_out_free(chunk, free);
        }
        if !self.whole {
            for bits in [&mut self.kinds.keep, &mut self.kinds.slab, &mut self.kinds.other] {
                bits.intersect(&self.stored);
            }
        }
        self.tally.saved.resize(scan.protected.len(), 0);
        if self.guarded {
            self.bring_back(chunk, scan);
        }
    }

    /// Takes the pages of `free` for free, whatever the scan said: those of kernels that do not mark them look like the kernel's.
    fn leave_out_free(&mut self, chunk: u64, free: &PageSet) {
        let Kinds { keep, slab, other } = &mut self.kinds;
        free.copy_chunk(chunk, &mut self.scratch);
        self.scratch.intersect(keep);
        self.scratch.subtract(slab);
        self.scratch.subtract(other);
        let moved = self.scratch.count();
        keep.subtract(&self.scratch);
        if self.guarded {
            self.free.unite(&self.scratch);
        }
        self.tally.counts.take(PageClass::Kernel, moved);
        self.tally.counts.add(PageClass::Free, moved);
        if !self.whole {
            self.scratch.intersect(&self.stored);
        }
        self.tally.dropped.add(PageClass::Free, self.scratch.count());
    }

    /// Keeps what is protected. Whether a page of it is poisoned is asked page by page: it may lie inside a block that was taken
    /// whole.
    fn bring_back(&mut self, chunk: u64, scan: &Scan<'_>) {
        let mut reader = None;
        let mut poisoned = |pfn| {
            let reader = reader.get_or_insert_with(|| scan.kernel.reader(scan.memory.0));
            is_poisoned(scan.kernel, reader, pfn)
        };
        for (kind, sum) in scan.protected.iter().zip(&mut self.tally.saved) {
            kind.pages.copy_chunk(chunk, &mut self.scratch);
            if !self.full {
                self.scratch.intersect(&self.stored);
            }
            self.scratch.subtract(&self.unreadable);
            if kind.free_inside {
                self.scratch.subtract(&self.free);
            }
            self.scratch.subtract(&self.kinds.keep);
            let mut at = 0;
            while let Some((start, end)) = self.scratch.next_run(at) {
                for index in (start..end).filter(|index| poisoned(Pfn(self.base + index))) {
                    self.scratch.unset(index, index + 1);
                    self.unreadable.set(index, index + 1);
                }
                at = end;
            }
            *sum += self.scratch.count();
            self.kinds.keep.unite(&self.scratch);
            for (start, end, class) in &self.left_out {
                self.tally.dropped.take(*class, self.scratch.count_in(*start, *end));
            }
        }
    }
}
