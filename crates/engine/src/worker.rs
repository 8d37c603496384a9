//! One thread's share of the copy: a batch of pages is read, tested and compressed.

use crate::batches::Run;
use crate::dedup::{InBatch, Known, Place, tag};
use coresift_format::codec::{Codec, CodecError, Compression, Compressor};
use coresift_format::{MemoryView, PageSet, PageSize, Pfn, PhysicalMemory};
use std::time::{Duration, Instant};

/// How one page of a batch is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As the shared zero page.
    Zero,
    /// As `size` bytes of the batch's data, in the form `flags` names. Pages of the same content share them.
    Data {
        /// Where in the batch's data.
        at: u32,
        /// Bytes.
        size: u32,
        /// Codec bit, 0 for a raw page.
        flags: u32,
    },
    /// As a page of the same content that an earlier batch has.
    Known(Place),
    /// Not at all: it could not be read.
    Lost,
}

/// One batch on its way.
#[derive(Debug, Default)]
pub struct Batch {
    /// Its pages.
    pub runs: Vec<Run>,
    /// Whether a debugger needs them to open the dump at all.
    pub essential: bool,
    /// How each is stored.
    pub pages: Vec<Stored>,
    /// The tag of each page that is [`Stored::Data`].
    pub tags: Vec<u64>,
    /// Room for all pages of a batch, of which the first `used` bytes are filled. Never shrunk: clearing it for each page cost 2 %
    /// of a run with snappy.
    pub data: Vec<u8>,
    /// Bytes of `data` that are filled.
    pub used: usize,
    /// Pages that share another's data, of this batch or an earlier one; the zero page does not count.
    pub shared: u64,
    /// Pages that could not be read, with the reason.
    pub lost: Vec<(Pfn, String)>,
    /// Bytes read.
    pub bytes_in: u64,
    /// What filling it took.
    pub work: Duration,
    /// Which of the choices it was stored with.
    pub rung: usize,
}

impl Batch {
    /// What is to be written.
    pub fn stored(&self) -> &[u8] {
        self.data.get(..self.used).unwrap_or_default()
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.tags.clear();
        self.lost.clear();
        (self.used, self.shared, self.bytes_in) = (0, 0, 0);
    }

    fn push(&mut self, stored: Stored, tag: u64) {
        self.pages.push(stored);
        self.tags.push(tag);
    }
}

/// One thread's reader and compressor.
pub struct Worker<'a> {
    view: Box<dyn MemoryView + 'a>,
    /// Pages that are zeros without being read, and share the zero page.
    zero: &'a PageSet,
    /// What there is to choose from, and which of them the compressor is.
    ladder: &'a [Compression],
    rung: usize,
    compressor: Compressor,
    /// Rungs whose codec could not be set up, a bit each: asked for again, each batch would try in vain.
    refused: u32,
    flags: u32,
    page: PageSize,
    known: &'a Known,
    /// Every page takes its own place, as it is.
    plain: bool,
    /// The pages of the batch, one after the other; not used without a codec.
    input: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// A worker with its own view of the memory; `plain` where every page is to take its own place, as it is.
    ///
    /// # Errors
    /// The codec cannot be set up.
    pub fn new(
        memory: &'a dyn PhysicalMemory,
        ladder: &'a [Compression],
        rung: usize,
        known: &'a Known,
        plain: bool,
    ) -> Result<Self, CodecError> {
        let page = memory.page_size();
        let compression = ladder.get(rung).copied().unwrap_or(Codec::None.into());
        let compressor = Compressor::new(compression, page)?;
        let flags = compression.codec.flag();
        Ok(Self {
            view: memory.view(),
            zero: if plain { PageSet::none() } else { memory.known_zero() },
            ladder,
            rung,
            compressor,
            refused: 0,
            flags,
            page,
            known,
            plain,
            input: Vec::new(),
        })
    }

    /// Compresses as `rung` of the ladder says from now on; as before where its codec cannot be set up.
    fn change(&mut self, rung: usize) {
        if rung == self.rung || self.refused & 1 << rung != 0 {
            return;
        }
        let Some(compression) = self.ladder.get(rung) else { return };
        match Compressor::new(*compression, self.page) {
            Ok(compressor) => {
                (self.rung, self.compressor, self.flags) = (rung, compressor, compression.codec.flag());
            }
            Err(_) => self.refused |= 1 << rung,
        }
    }

    /// Reads the pages of the runs of `batch`, which is number `number`, and stores them in its data as `rung` says.
    pub fn fill(&mut self, batch: &mut Batch, number: u64, rung: usize) {
        let clock = Instant::now();
        self.change(rung);
        batch.clear();
        batch.rung = self.rung;
        let size = self.page.bytes();
        let pages: usize = batch.runs.iter().map(|run| run.pages as usize).sum();
        let room = pages * size + self.compressor.max_output();
        if batch.data.len() < room {
            batch.data.resize(room, 0);
        }
        if self.flags != 0 && self.input.len() < pages * size {
            self.input.resize(pages * size, 0);
        }
        let mut in_batch = InBatch::new();
        for index in 0..batch.runs.len() {
            let Some(run) = batch.runs.get(index).copied() else { break };
            let end = run.start.plus(run.pages.into());
            let mut at = run.start;
            for (zero, behind) in self.zero.runs(run.start, end).chain([(end, end)]) {
                self.fill_run(batch, run.part(at, zero), number, &mut in_batch);
                batch.pages.extend(run.part(zero, behind).pfns().map(|_| Stored::Zero));
                batch.tags.resize(batch.pages.len(), 0);
                at = behind;
            }
        }
        batch.work = clock.elapsed();
    }

    /// Fills in the pages of `run`, which have to be read.
    fn fill_run(&mut self, batch: &mut Batch, run: Run, number: u64, in_batch: &mut InBatch) {
        if run.pages == 0 {
            return;
        }
        batch.bytes_in += u64::from(run.pages) * self.page.bytes() as u64;
        if self.plain {
            self.fill_plain(batch, run);
        } else if self.flags == 0 {
            self.fill_raw(batch, run, number, in_batch);
        } else {
            self.fill_compressed(batch, run, number, in_batch);
        }
    }

    fn fill_compressed(&mut self, batch: &mut Batch, run: Run, number: u64, in_batch: &mut InBatch) {
        let size = self.page.bytes();
        let start = batch.pages.len() * size;
        let room = self.input.get_mut(start..start + run.pages as usize * size).unwrap_or_default();
        let whole = self.view.read(run.start.addr(self.page), room).is_ok();
        for (pfn, at) in run.pfns().zip((start..).step_by(size)) {
            let Some((earlier, rest)) = self.input.split_at_mut_checked(at) else { return };
            let Some(bytes) = rest.get_mut(..size) else { return };
            if let Some(without) = without_data(&mut *self.view, pfn, self.page, bytes, whole, &mut batch.lost) {
                batch.push(without, 0);
                continue;
            }
            let tag = tag(bytes);
            let same =
                in_batch.find(tag, batch, |index, _| earlier.get(index * size..(index + 1) * size) == Some(bytes));
            if let Some(same) = same.or_else(|| self.known.find(tag, bytes, number).map(Stored::Known)) {
                batch.shared += 1;
                batch.push(same, tag);
                continue;
            }
            let room = batch.data.get_mut(batch.used..).unwrap_or_default();
            let (size, flags) = store(bytes, &mut self.compressor, self.flags, room);
            batch.push(Stored::Data { at: batch.used as u32, size, flags }, tag);
            batch.used += size as usize;
        }
    }

    /// Where no page shares its place with another, one that cannot be read has zeros in its own.
    fn fill_plain(&mut self, batch: &mut Batch, run: Run) {
        let size = self.page.bytes();
        let start = batch.used;
        let Some(room) = batch.data.get_mut(start..start + run.pages as usize * size) else { return };
        let whole = self.view.read(run.start.addr(self.page), room).is_ok();
        for (pfn, bytes) in run.pfns().zip(room.chunks_exact_mut(size)) {
            if !whole && let Err(e) = self.view.read(pfn.addr(self.page), bytes) {
                bytes.fill(0);
                batch.lost.push((pfn, e.to_string()));
                batch.pages.push(Stored::Lost);
            } else {
                batch.pages.push(Stored::Data { at: batch.used as u32, size: size as u32, flags: 0 });
            }
            batch.used += size;
        }
    }

    /// Without a codec the pages are read to where they are written from, and moved only where one before them is left out.
    fn fill_raw(&mut self, batch: &mut Batch, run: Run, number: u64, in_batch: &mut InBatch) {
        let size = self.page.bytes();
        let start = batch.used;
        let whole = match batch.data.get_mut(start..start + run.pages as usize * size) {
            Some(room) => self.view.read(run.start.addr(self.page), room).is_ok(),
            None => false,
        };
        for (pfn, at) in run.pfns().zip((start..).step_by(size)) {
            let Some(bytes) = batch.data.get_mut(at..at + size) else { return };
            if let Some(without) = without_data(&mut *self.view, pfn, self.page, bytes, whole, &mut batch.lost) {
                batch.push(without, 0);
                continue;
            }
            let Some(bytes) = batch.data.get(at..at + size) else { return };
            let tag = tag(bytes);
            let same = in_batch.find(tag, batch, |_, stored| match stored {
                Stored::Data { at, .. } => batch.data.get(at as usize..at as usize + size) == Some(bytes),
                _ => false,
            });
            if let Some(same) = same.or_else(|| self.known.find(tag, bytes, number).map(Stored::Known)) {
                batch.shared += 1;
                batch.push(same, tag);
                continue;
            }
            if at != batch.used {
                batch.data.copy_within(at..at + size, batch.used);
            }
            batch.push(Stored::Data { at: batch.used as u32, size: size as u32, flags: 0 }, tag);
            batch.used += size;
        }
    }
}

/// How the page `pfn`, whose `bytes` are read unless its run was not `whole`, is stored if it needs no data: as zeros, or not at
/// all, for it cannot be read.
fn without_data(
    view: &mut dyn MemoryView,
    pfn: Pfn,
    page: PageSize,
    bytes: &mut [u8],
    whole: bool,
    lost: &mut Vec<(Pfn, String)>,
) -> Option<Stored> {
    if !whole && let Err(e) = view.read(pfn.addr(page), bytes) {
        lost.push((pfn, e.to_string()));
        return Some(Stored::Lost);
    }
    is_zero(bytes).then_some(Stored::Zero)
}

/// Puts the page `bytes`, which is not zero, to the front of `room` in its shortest form, and returns its bytes and flags. There is room
/// for it as it is, and for what the codec needs.
fn store(bytes: &[u8], compressor: &mut Compressor, flags: u32, room: &mut [u8]) -> (u32, u32) {
    if let Some(n) = compressor.compress(bytes, room) {
        return (n as u32, flags);
    }
    if let Some(raw) = room.get_mut(..bytes.len()) {
        raw.copy_from_slice(bytes);
    }
    (bytes.len() as u32, 0)
}

/// Whether all bytes are zero. Nine of ten pages that are not show it in their first word; the rest is tested in blocks that
/// become vector instructions.
pub fn is_zero(page: &[u8]) -> bool {
    if page.first_chunk::<8>().is_some_and(|w| *w != [0; 8]) {
        return false;
    }
    let (blocks, rest) = page.as_chunks::<256>();
    blocks.iter().all(|block| block.as_chunks::<8>().0.iter().fold(0, |or, w| or | u64::from_ne_bytes(*w)) == 0)
        && rest.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_anywhere_makes_a_page_not_zero() {
        let mut page = vec![0u8; 4096];
        assert!(is_zero(&page));
        for i in 0..4096 {
            page[i] = 1;
            assert!(!is_zero(&page), "byte {i}");
            page[i] = 0;
        }
        assert!(is_zero(&[]) && !is_zero(&[0, 0, 1]));
    }
}
