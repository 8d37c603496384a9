//! Chunks of decided pages put together in their order.

use crate::bitmap::Bitmap;
use crate::scan::Scanned;
use crate::selection::{Kinds, Later};
use crate::target::WriteFailed;
use coresift_format::{CHUNK_SHIFT, ChunkBits, PageSet, PageSetBuilder, Pfn, PhysicalMemory};
use std::collections::BTreeMap;

/// One chunk, decided.
pub struct Decided {
    chunk: u64,
    keep: PageSet,
    slab: PageSet,
    other: PageSet,
}

impl Decided {
    /// Chunk number `chunk`, of which `kinds` stay.
    #[must_use]
    pub fn new(chunk: u64, kinds: &Kinds) -> Self {
        let [keep, slab, other] = [&kinds.keep, &kinds.slab, &kinds.other].map(|bits| PageSet::of_chunk(chunk, bits));
        Self { chunk, keep, slab, other }
    }
}

/// Chunks that may wait for one before them; a thread that is further ahead stops.
const MOST_WAITING: usize = 256;

/// Puts chunks together in their order. Pages of the input that no chunk speaks of have no `struct page`; they stay if they have data
/// (a damaged `p_memsz` describes terabytes of zeros).
pub struct Merge<'a> {
    memory: &'a dyn PhysicalMemory,
    room: usize,
    bitmap: &'a Bitmap,
    /// Index of the chunk that is next in order; those behind it wait.
    pub next: u64,
    waiting: BTreeMap<u64, Decided>,
    /// Threads that stopped until those before them have caught up.
    pub stopped: usize,
    /// A chunk that is waited for will never come: its thread panicked.
    pub given_up: bool,
    /// Number of the chunk behind the last one taken.
    end: u64,
    keep: PageSetBuilder,
    slab: PageSetBuilder,
    other: PageSetBuilder,
    /// What is known so far beside the sets.
    pub scanned: Scanned,
    failed: Option<WriteFailed>,
}

impl<'a> Merge<'a> {
    /// Nothing yet, of the pages of `memory`. Page sets take `room` bytes, and what does not fit goes into `bitmap`.
    #[must_use]
    pub fn new(memory: &'a dyn PhysicalMemory, room: usize, bitmap: &'a Bitmap) -> Self {
        Self {
            memory,
            room,
            bitmap,
            next: 0,
            waiting: BTreeMap::new(),
            stopped: 0,
            given_up: false,
            end: 0,
            keep: PageSetBuilder::default(),
            slab: PageSetBuilder::default(),
            other: PageSetBuilder::default(),
            scanned: Scanned::default(),
            failed: None,
        }
    }

    /// Takes the chunk of index `index`; returns whether the scan has failed.
    pub fn take(&mut self, index: u64, decided: Decided) -> bool {
        self.waiting.insert(index, decided);
        while let Some(decided) = self.waiting.remove(&self.next) {
            self.next += 1;
            if let Err(failed) = self.append(&decided) {
                self.failed.get_or_insert(failed);
            }
        }
        self.failed.is_some()
    }

    /// Whether so many chunks wait for one before them that nobody should hand in more but whoever has that one.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.waiting.len() > MOST_WAITING
    }

    fn append(&mut self, decided: &Decided) -> Result<(), WriteFailed> {
        self.copy_to(decided.chunk);
        self.end = decided.chunk + 1;
        let [keep, slab, other] = [&decided.keep, &decided.slab, &decided.other];
        let has = self.keep.memory() + self.slab.memory() + self.other.memory();
        let more = keep.memory() + slab.memory() + other.memory();
        if has + more > self.room && !keep.is_empty() {
            let mut bits = ChunkBits::default();
            keep.copy_chunk(decided.chunk, &mut bits);
            self.bitmap.write(decided.chunk, &bits)?;
            let before = self.scanned.later.last().map_or(0, |l| l.before + l.pages);
            self.scanned.later.push(Later { chunk: decided.chunk, pages: keep.len(), before });
            return Ok(());
        }
        self.keep.append(keep);
        self.slab.append(slab);
        self.other.append(other);
        Ok(())
    }

    fn copy_to(&mut self, chunk: u64) {
        let rest = self.memory.stored().runs(Pfn(self.end << CHUNK_SHIFT), Pfn(chunk << CHUNK_SHIFT));
        self.keep.append(&PageSet::from_ranges(rest).without(self.memory.known_zero()));
    }

    /// The sets.
    ///
    /// # Errors
    /// The bitmap could not be written.
    pub fn finish(mut self) -> Result<Scanned, WriteFailed> {
        self.copy_to(1 << (64 - CHUNK_SHIFT - 1));
        match self.failed {
            Some(failed) => Err(failed),
            None => Ok(Scanned {
                keep: self.keep.finish(),
                slab: self.slab.finish(),
                other: self.other.finish(),
                ..self.scanned
            }),
        }
    }
}
