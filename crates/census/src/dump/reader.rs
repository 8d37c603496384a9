//! One thread's reader.

use super::Dump;
use super::blocks::Block;
use super::pieces::Pieces;
use super::pointed::{Behind, Pointed, mapcount};
use crate::error::Result;
use crate::frames::{Frames, NULL_INT, NULL_LONG};
use crate::names::NameId;
use crate::source::{FrameReader, Missing};
use coresift_format::{CHUNK_SHIFT, Pfn};
use coresift_kernel::{ClassSet, ClassSink, PageClass, Scanner};
use std::collections::HashMap;
use std::ops::Range;

/// The flags of a `struct page` that nobody has initialised (see the page rules): the page frame is none yet.
const UNINITIALISED: i64 = -1;
/// Different sets of flags that are remembered; a machine has a few hundred.
const MOST_FLAGS: usize = 1 << 12;

/// Reads struct pages into rows.
pub struct DumpReader<'d> {
    dump: &'d Dump,
    scanner: Scanner<'d>,
    pieces: Pieces<'d>,
    pointed: Pointed<'d>,
    /// Names of flags, by the bits that are flags.
    flags: HashMap<i64, NameId>,
}

impl<'d> DumpReader<'d> {
    pub fn new(dump: &'d Dump) -> Self {
        Self {
            dump,
            scanner: Scanner::new(&dump.kernel, dump.input.memory(), ClassSet::NONE),
            pieces: Pieces::new(dump),
            pointed: Pointed::new(dump),
            flags: HashMap::new(),
        }
    }
}

impl FrameReader for DumpReader<'_> {
    fn read(&mut self, runs: &[(u64, u64)], frames: &mut Frames) -> Result<Missing> {
        let dump = self.dump;
        frames.time = dump.provenance.time;
        frames.source = Some(dump.source);
        frames.page_size = dump.input.memory().page_size().bytes() as i64;
        let mut missing = Missing::default();
        let mut row = 0;
        for &(start, end) in runs {
            self.classes(start, end, row, frames);
            dump.zones.fill(Pfn(start), Pfn(end), row, frames);
            if let Some(shift) = dump.kernel.memmap.section_shift {
                for (pfn, section) in (start..end).zip(frames.section.iter_mut().skip(row)) {
                    *section = i32::try_from(pfn >> shift).unwrap_or(NULL_INT);
                }
            }
            self.run(start, end, row, frames, &mut missing);
            row += (end - start) as usize;
        }
        Ok(missing)
    }
}

/// Takes the classes of the rows of a run.
struct Classes<'f> {
    start: u64,
    rows: &'f mut [PageClass],
}

impl ClassSink for Classes<'_> {
    #[inline]
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
        let last = self.start + self.rows.len() as u64;
        let (from, to) = (start.0.clamp(self.start, last), end.0.clamp(self.start, last));
        let rows = (from - self.start) as usize..(to - self.start) as usize;
        self.rows.get_mut(rows).unwrap_or_default().fill(class);
    }
}

impl DumpReader<'_> {
    /// Classes of the frames of a run, as a dump decides them.
    fn classes(&mut self, start: u64, end: u64, row: usize, frames: &mut Frames) {
        let memory = self.dump.input.memory();
        let rows = frames.class.get_mut(row..row + (end - start) as usize).unwrap_or_default();
        let mut classes = Classes { start, rows };
        for chunk in start >> CHUNK_SHIFT..=(end - 1) >> CHUNK_SHIFT {
            // What it could not read is counted where the rest of the row is read.
            let _counts = self.scanner.scan_chunk(chunk, memory.ram(), &mut classes);
        }
        if let Some(free) = &self.dump.free {
            for (from, to) in free.runs(Pfn(start), Pfn(end)) {
                classes.pages(from, to, PageClass::Free);
            }
        }
    }

    /// The rest of the rows of a run, which begin at `row`.
    fn run(&mut self, start: u64, end: u64, row: usize, frames: &mut Frames, missing: &mut Missing) {
        let dump = self.dump;
        let size = dump.kernel.rules.size();
        let mut block = Block::around(dump, &mut self.pointed, &mut self.pieces, start);
        let mut known = 0;
        for range in dump.kernel.memmap.covering(Pfn(start), Pfn(end)) {
            known += range.end.0 - range.start.0;
            let mut at = range.start.0;
            while at < range.end.0 {
                let (bytes, n) = self.pieces.read(range, at);
                let rows = row + (at - start) as usize..row + (at + n - start) as usize;
                if bytes.is_empty() {
                    missing.failed += n;
                } else {
                    let piece = Piece { dump, first: at, bytes, size, rows };
                    piece.words(&mut self.flags, frames, missing);
                    piece.owners(&mut self.pointed, &mut block, frames, missing);
                }
                at += n;
            }
        }
        missing.no_page += end - start - known;
    }
}

/// Struct pages of neighbouring page frames, and one behind them.
struct Piece<'p> {
    dump: &'p Dump,
    /// The first page frame.
    first: u64,
    bytes: &'p [u8],
    size: usize,
    /// Their rows.
    rows: Range<usize>,
}

impl<'p> Piece<'p> {
    /// The struct pages.
    fn pages(&self) -> impl Iterator<Item = &'p [u8]> + use<'p> {
        self.bytes.chunks_exact(self.size).take(self.rows.len())
    }

    /// What each `struct page` says of its own frame: flags and references.
    fn words(&self, known: &mut HashMap<i64, NameId>, frames: &mut Frames, missing: &mut Missing) {
        let Frames { raw_flags, flags, refcount, .. } = frames;
        let (Some(raw_flags), Some(flags), Some(refcount)) = (
            raw_flags.get_mut(self.rows.clone()),
            flags.get_mut(self.rows.clone()),
            refcount.get_mut(self.rows.clone()),
        ) else {
            return;
        };
        let layout = &self.dump.layout;
        let mask = layout.flags.mask().cast_signed();
        let mut last: Option<(i64, NameId)> = None;
        for (((page, raw), name), count) in self.pages().zip(raw_flags).zip(flags).zip(refcount) {
            *raw = self.dump.kernel.rules.raw(page).flags.cast_signed();
            if *raw == UNINITIALISED {
                missing.no_page += 1;
                continue;
            }
            let set = *raw & mask;
            *name = match last {
                Some((known, id)) if known == set => id,
                _ => {
                    if known.len() >= MOST_FLAGS {
                        known.clear();
                    }
                    let id = || self.dump.names.id(&layout.flags.text(set.cast_unsigned()));
                    *known.entry(set).or_insert_with(id)
                }
            };
            last = Some((set, *name));
            *count = layout.words.refcount(page).unwrap_or(NULL_INT);
        }
    }

    /// What blocks and single pages are of.
    fn owners(&self, pointed: &mut Pointed<'_>, block: &mut Option<Block>, frames: &mut Frames, missing: &mut Missing) {
        let mut at = 0;
        while at < self.rows.len() {
            let pfn = self.first + at as u64;
            let pair = self.bytes.get(at * self.size..).unwrap_or_default();
            if block.is_none_or(|b| b.end <= pfn) {
                *block = Block::of(self.dump, pointed, pfn, pair);
            }
            at = match block {
                Some(block) => {
                    let to = self.rows.len().min((block.end - self.first) as usize);
                    self.inside(block, at..to, frames, missing);
                    to
                }
                None => {
                    self.single(pointed, at, frames, missing);
                    at + 1
                }
            };
        }
    }

    /// A page that is of no block.
    #[inline]
    fn single(&self, pointed: &mut Pointed<'_>, at: usize, frames: &mut Frames, missing: &mut Missing) {
        let row = self.rows.start + at;
        let page = self.bytes.get(at * self.size..(at + 1) * self.size).unwrap_or_default();
        let raw = self.dump.kernel.rules.raw(page);
        let class = frames.class.get(row).copied().unwrap_or(PageClass::Kernel);
        if raw.flags.cast_signed() == UNINITIALISED {
            return;
        }
        set(&mut frames.mapcount, row, mapcount(raw.mapcount, class));
        // A tail whose head did not speak for it, and a free page of a kernel that does not mark them, may be of any block.
        let tail = raw.compound.is_some_and(|word| word & 1 != 0);
        if tail || class == PageClass::Free {
            return;
        }
        set(&mut frames.order, row, 0);
        set(&mut frames.head, row, (self.first + at as u64).cast_signed());
        let behind = pointed.behind(page, class);
        if behind.mapping.is_some() {
            set(&mut frames.index, row, behind.index);
        }
        store(&behind, row..row + 1, frames, missing);
    }

    /// Pages of a block.
    fn inside(&self, block: &Block, pages: Range<usize>, frames: &mut Frames, missing: &mut Missing) {
        let rows = self.rows.start + pages.start..self.rows.start + pages.end;
        fill(&mut frames.order, &rows, block.order.into());
        fill(&mut frames.head, &rows, block.head.cast_signed());
        if block.class == PageClass::Free {
            return;
        }
        store(&block.behind, rows.clone(), frames, missing);
        let place = self.first + pages.start as u64 - block.head;
        self.indices(block, place, &rows, frames);
        if block.class == PageClass::Slab {
            return;
        }
        let structs = self.pages().skip(pages.start);
        let hugetlb = matches!(block.class, PageClass::HugeTlb);
        for (page, count) in structs.zip(frames.mapcount.get_mut(rows).unwrap_or_default()) {
            // A hugetlb page is mapped as a whole only; its struct pages may be one and the same.
            let own = if hugetlb { Some(-1) } else { self.dump.kernel.rules.raw(page).mapcount };
            let own = mapcount(own, block.class);
            *count = match block.entire {
                Some(entire) if own != NULL_INT => own.wrapping_add(entire),
                _ => NULL_INT,
            };
        }
    }

    /// The places of a block's pages in its file. Those of hugetlb count huge pages before Linux 6.7: the head's is told as it is, and no other.
    fn indices(&self, block: &Block, place: u64, rows: &Range<usize>, frames: &mut Frames) {
        let first = block.behind.index;
        if first == NULL_LONG {
            return;
        }
        let hugetlb = block.class == PageClass::HugeTlb;
        for (place, index) in (place..).zip(frames.index.get_mut(rows.clone()).unwrap_or_default()) {
            if place == 0 || !hugetlb {
                *index = first.wrapping_add(place.cast_signed());
            }
        }
    }
}

/// What is behind the pointers of a page, into all of `rows`.
#[inline]
fn store(behind: &Behind, rows: Range<usize>, frames: &mut Frames, missing: &mut Missing) {
    missing.lost += if behind.lost { rows.len() as u64 } else { 0 };
    if behind.mapping.is_some() {
        fill(&mut frames.mapping, &rows, behind.mapping);
    }
    if behind.file.inode != NULL_LONG {
        fill(&mut frames.inode, &rows, behind.file.inode);
        fill(&mut frames.device, &rows, behind.file.device);
        fill(&mut frames.path, &rows, behind.file.path);
    }
    if !behind.slab.is_null() {
        fill(&mut frames.slab, &rows, behind.slab);
    }
    if behind.cgroup != NULL_LONG {
        fill(&mut frames.cgroup, &rows, behind.cgroup);
        fill(&mut frames.cgroup_path, &rows, behind.cgroup_path);
    }
}

#[inline]
fn fill<T: Copy>(column: &mut [T], rows: &Range<usize>, value: T) {
    column.get_mut(rows.clone()).unwrap_or_default().fill(value);
}

#[inline]
fn set<T>(column: &mut [T], row: usize, value: T) {
    if let Some(slot) = column.get_mut(row) {
        *slot = value;
    }
}
