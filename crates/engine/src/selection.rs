//! The pages that stay, chunk by chunk: out of memory, or, where the budget had no room for a chunk, out of the output's own bitmap
//! and a second look at the memory map.

use crate::bitmap::Bitmap;
use crate::decide::Decider;
use crate::scan::Scan;
use crate::target::WriteFailed;
use coresift_format::{CHUNK_PAGES, CHUNK_SHIFT, ChunkBits, PageSet, Pfn};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::{Mutex, PoisonError};

/// The pages of one chunk that stay.
#[derive(Debug, Default)]
pub struct Kinds {
    /// All of them.
    pub keep: ChunkBits,
    /// Of these, slab pages.
    pub slab: ChunkBits,
    /// Of these, pages that are neither slab nor the kernel's own.
    pub other: ChunkBits,
}

/// A chunk whose pages are found again when their turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later {
    /// Its number.
    pub chunk: u64,
    /// Pages of it that stay.
    pub pages: u64,
    /// Pages that stay in the chunks of this kind before it.
    pub before: u64,
}

/// The pages that stay.
#[derive(Debug, Default)]
pub struct Selection<'a> {
    keep: Cow<'a, PageSet>,
    slab: PageSet,
    other: PageSet,
    later: Vec<Later>,
    again: Option<(Scan<'a>, Bitmap)>,
    /// Pages of chunks that could not be found again, by chunk.
    lost: Mutex<BTreeMap<u64, u64>>,
}

impl<'a> Selection<'a> {
    /// All pages of `keep`; `slab` and `other` of them are of these kinds.
    #[must_use]
    pub fn new(keep: Cow<'a, PageSet>, slab: PageSet, other: PageSet) -> Self {
        Self { keep, slab, other, ..Self::default() }
    }

    /// The same, and the pages of the chunks `later`, which `scan` finds again and `bitmap` holds.
    #[must_use]
    pub fn with_later(self, later: Vec<Later>, scan: Scan<'a>, bitmap: Bitmap) -> Self {
        Self { later, again: Some((scan, bitmap)), ..self }
    }

    /// Takes `pages`, none of them slab or a user's, out of those that memory has room for.
    pub fn remove(&mut self, pages: &PageSet) {
        self.keep = Cow::Owned(self.keep.without(pages));
    }

    /// Number of pages.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.keep.len() + self.later.last().map_or(0, |l| l.before + l.pages)
    }

    /// The pages that memory has room for: all but those of [`Self::later`].
    #[must_use]
    pub fn in_memory(&self) -> &PageSet {
        &self.keep
    }

    /// Number of chunks that memory had no room for.
    #[must_use]
    pub fn later(&self) -> usize {
        self.later.len()
    }

    /// Memory this occupies, in bytes; a borrowed set counts for its owner.
    #[must_use]
    pub fn memory(&self) -> usize {
        let keep = if let Cow::Owned(keep) = &self.keep { keep.memory() } else { 0 };
        let again = self.again.as_ref().map_or(0, |(scan, _)| scan.memory());
        keep + self.slab.memory() + self.other.memory() + self.later.capacity() * size_of::<Later>() + again
    }

    /// Numbers of the chunks that hold a page, ascending.
    pub fn chunks(&self) -> impl Iterator<Item = u64> + Send + '_ {
        self.with_later_chunks(self.keep.chunks())
    }

    /// Numbers of the chunks that can hold a slab page, ascending.
    pub fn slab_chunks(&self) -> impl Iterator<Item = u64> + Send + '_ {
        self.with_later_chunks(self.slab.chunks())
    }

    /// Numbers of the chunks that can hold a page that is neither slab nor the kernel's, ascending.
    pub fn other_chunks(&self) -> impl Iterator<Item = u64> + Send + '_ {
        self.with_later_chunks(self.other.chunks())
    }

    fn with_later_chunks<'s>(
        &'s self,
        chunks: impl Iterator<Item = u64> + Send + 's,
    ) -> impl Iterator<Item = u64> + Send + 's {
        Merged { one: chunks.peekable(), other: self.later.iter().map(|l| l.chunk).peekable() }
    }

    /// Index of the descriptor of the first page of chunk number `chunk`.
    #[must_use]
    pub fn before(&self, chunk: u64) -> u64 {
        let next = self.later.partition_point(|l| l.chunk < chunk);
        let later = next.checked_sub(1).and_then(|last| self.later.get(last)).map_or(0, |l| l.before + l.pages);
        self.keep.rank(Pfn(chunk << CHUNK_SHIFT)) + later
    }

    /// Writes the pages of chunk number `chunk` over `kinds`; `all` of them, or only which are kept.
    pub fn load(&self, chunk: u64, kinds: &mut Kinds, all: bool) {
        let found = self.later.binary_search_by_key(&chunk, |l| l.chunk).ok().and_then(|i| self.later.get(i));
        if let (Some(later), Some((scan, bitmap))) = (found, &self.again) {
            if !load_again(*later, scan, bitmap, kinds, all) {
                kinds.keep.clear();
                self.lost.lock().unwrap_or_else(PoisonError::into_inner).insert(chunk, later.pages);
            }
            return;
        }
        self.keep.copy_chunk(chunk, &mut kinds.keep);
        if all {
            self.slab.copy_chunk(chunk, &mut kinds.slab);
            self.other.copy_chunk(chunk, &mut kinds.other);
        }
    }

    /// Index of the descriptor of the page frame `pfn`, or of the first behind it that stays.
    #[must_use]
    pub fn rank(&self, pfn: Pfn) -> u64 {
        let (chunk, within) = (pfn.0 >> CHUNK_SHIFT, pfn.0 & (CHUNK_PAGES - 1));
        if within == 0 {
            return self.before(chunk);
        }
        let mut kinds = Kinds::default();
        self.load(chunk, &mut kinds, false);
        self.before(chunk) + kinds.keep.count_in(0, within)
    }

    /// Writes the bits of the chunks that memory has no room for to `bitmap`, of another file than the one they are in.
    ///
    /// # Errors
    /// The bitmap cannot be written.
    pub fn copy_later(&self, bitmap: &Bitmap) -> Result<(), WriteFailed> {
        let mut kinds = Kinds::default();
        for later in &self.later {
            self.load(later.chunk, &mut kinds, false);
            bitmap.write(later.chunk, &kinds.keep)?;
        }
        Ok(())
    }

    /// Pages of chunks that could not be found again. They are in the bitmap, but have no descriptor.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

/// As [`Selection::load`], of a chunk that memory had no room for; false where it cannot be found again. What is written in the bitmap
/// is what stays, whatever another look at the memory map says: that only gives the order.
fn load_again(later: Later, scan: &Scan<'_>, bitmap: &Bitmap, kinds: &mut Kinds, all: bool) -> bool {
    let mut written = ChunkBits::default();
    let Ok(readable) = bitmap.read(later.chunk, &mut written) else { return false };
    if all || !readable {
        let mut decider = Decider::default();
        scan.decide(later.chunk, &mut scan.scanner(), &mut decider);
        std::mem::swap(kinds, &mut decider.kinds);
    }
    if readable {
        kinds.keep = written;
    }
    kinds.keep.count() == later.pages
}

/// The numbers of two ascending sequences, each once.
struct Merged<A: Iterator<Item = u64>, B: Iterator<Item = u64>> {
    one: Peekable<A>,
    other: Peekable<B>,
}

impl<A: Iterator<Item = u64>, B: Iterator<Item = u64>> Iterator for Merged<A, B> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let next = match (self.one.peek(), self.other.peek()) {
            (Some(a), Some(b)) => *a.min(b),
            (Some(a), None) => *a,
            (None, Some(b)) => *b,
            (None, None) => return None,
        };
        self.one.next_if_eq(&next);
        self.other.next_if_eq(&next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batches::Batches;
    use crate::observer::Silent;
    use crate::plan::{Plan, Prepared};
    use crate::scan::Limits;
    use crate::stop::Stop;
    use crate::target::Output;
    use coresift_format::Input;
    use coresift_kernel::{ClassSet, Kernel};
    use coresift_synth::{Image, KernelLayout, Machine};
    use std::sync::Arc;

    /// Two chunks of short runs, of which the first is all RAM, and one with a few runs.
    fn machine() -> Image {
        let short = |from: u64| (from..from + 1024).step_by(8).map(|at| format!("@{at} 3 slab\n@{} 2 cache\n", at + 5));
        let pages: String = short(0x8000).chain(short(0x10400)).chain(["@0x18000 32 slab".to_owned()]).collect();
        Machine::new(KernelLayout::get("6.12"))
            .ram(0x1000..0x3000)
            .ram(0x8000..0x15000)
            .ram(0x18000..0x19000)
            .pages(&pages)
            .build()
    }

    fn open(image: &Image) -> (Input, Kernel) {
        let input = Input::from_bytes(Arc::new(image.elf().with_image().bytes())).unwrap();
        let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes()).unwrap();
        (input, kernel)
    }

    #[test]
    fn pages_that_memory_had_no_room_for_come_at_the_same_place() {
        let (input, kernel) = open(&machine());
        let place = tempfile::tempdir().unwrap();
        for excluded in [ClassSet::NONE, ClassSet::SELECTABLE] {
            let plan = |name: &str, room| {
                let path = place.path().join(name);
                let output = Arc::new(Output::open(&path, true, name == "nothing").unwrap());
                output.empty(1 << 20).unwrap();
                let bitmap = Bitmap::new(output, 4096, input.memory().max_pfn());
                let stop = Stop::default();
                let limits = Limits { threads: 3, room, stop: &stop };
                Plan::filter(Prepared::new(&kernel, input.memory(), excluded, &stop), limits, bitmap, &Silent).unwrap()
            };
            let batches = |plan: &Plan<'_>| {
                let mut batches = Batches::new(&plan.selection, &plan.passes, 64);
                let (mut all, mut runs) = (Vec::new(), Vec::new());
                while batches.next(&mut runs).is_some() {
                    all.push(runs.clone());
                }
                all
            };
            let all = plan("all", usize::MAX);
            assert_eq!(all.selection.later(), 0);
            for name in ["file", "nothing"] {
                let none = plan(name, 0);
                assert!(none.selection.later() == 4, "{}", none.selection.later());
                assert_eq!(none.selection.len(), all.selection.len());
                assert!(none.selection.chunks().eq(all.selection.chunks()));
                assert_eq!(batches(&none), batches(&all), "{name}");
                assert_eq!(none.selection.lost(), 0);
            }
        }
    }

    #[test]
    fn the_memory_map_stays_whole_where_the_page_set_does_not_fit() {
        let machine = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x3000).ram(0x8000..0x9000);
        let (input, kernel) = open(&machine.pages("@0x8000 2000 cache\n").build());
        let place = tempfile::tempdir().unwrap();
        for (room, kept_whole) in [(usize::MAX, false), (0, true)] {
            let output = Arc::new(Output::open(&place.path().join("file"), true, true).unwrap());
            let bitmap = Bitmap::new(output, 4096, input.memory().max_pfn());
            let prepared = Prepared::new(&kernel, input.memory(), ClassSet::SELECTABLE, &Stop::default());
            let mut plan =
                Plan::filter(prepared, Limits { threads: 1, room, stop: &Stop::default() }, bitmap, &Silent).unwrap();
            let before = plan.selection.len();
            plan.leave_out_unused_map(&kernel, input.memory());
            assert_eq!(plan.selection.len() + plan.unused_map, before);
            assert_eq!(plan.unused_map == 0, kept_whole);
            assert_eq!(plan.notes.iter().any(|n| n.starts_with("unused pages of the memory map are kept")), kept_whole);
        }
    }

    #[test]
    fn a_bitmap_that_changed_costs_its_chunk_and_no_other() {
        let (input, kernel) = open(&machine());
        let place = tempfile::tempdir().unwrap();
        let output = Arc::new(Output::open(&place.path().join("file"), true, false).unwrap());
        output.empty(1 << 20).unwrap();
        let bitmap = Bitmap::new(Arc::clone(&output), 0, input.memory().max_pfn());
        let prepared = Prepared::new(&kernel, input.memory(), ClassSet::SELECTABLE, &Stop::default());
        let plan =
            Plan::filter(prepared, Limits { threads: 1, room: 0, stop: &Stop::default() }, bitmap, &Silent).unwrap();
        output.write_at(&[0xff; 4096], 4096).unwrap();
        let mut batches = Batches::new(&plan.selection, &plan.passes, 64);
        let (mut runs, mut seen) = (Vec::new(), 0);
        while batches.next(&mut runs).is_some() {
            seen += runs.iter().map(|run| u64::from(run.pages)).sum::<u64>();
        }
        assert!(seen > 0 && plan.selection.lost() > 0);
        assert_eq!(seen + plan.selection.lost(), plan.selection.len());
    }
}
