//! A kdump-compressed file, readable at every instant: metadata first, marked incomplete until the end, and never a page
//! descriptor that points at bytes not yet written.

use crate::batches::Run;
use crate::target::{Output, WriteFailed};
use coresift_format::kdump::{Header, HeaderLayout, Layout, PageDesc, SIGNATURE, STATUS_INCOMPLETE, SubHeader};
use coresift_format::{PageSet, Pfn};

/// Everything in front of the page data.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// ABI and byte order.
    pub layout: HeaderLayout,
    /// The main header, without `STATUS_INCOMPLETE`.
    pub header: Header,
    /// The sub header.
    pub sub_header: SubHeader,
    /// The ELF notes.
    pub notes: Vec<u8>,
    /// Where everything goes.
    pub regions: Layout,
}

/// How one page of a batch is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As the shared zero page.
    Zero,
    /// As the next `size` bytes of the batch's data, in the form `flags` names.
    Data {
        /// Bytes.
        size: u32,
        /// Codec bit, 0 for a raw page.
        flags: u32,
    },
    /// Not at all: it could not be read.
    Lost,
}

/// Descriptors waiting for their data to be written.
const MAX_PENDING: usize = 64 << 10;
/// Descriptor runs further apart than this are written by themselves rather than read back and rewritten together.
const MAX_GAP: u64 = 4 << 10;

/// Writes one file.
pub struct Writer<'a> {
    output: &'a mut Output,
    meta: Metadata,
    /// Where the next data go.
    end: u64,
    /// Runs of encoded descriptors whose data are written, by file offset; ascending within a pass.
    pending: Vec<(u64, Vec<u8>)>,
    pending_bytes: usize,
}

impl<'a> Writer<'a> {
    /// Writes the metadata for the pages `keep` of `ram`, and the zero page. From the first write on the target is an
    /// incomplete dump without pages.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn begin(output: &'a mut Output, meta: Metadata, ram: &PageSet, keep: &PageSet) -> Result<Self, WriteFailed> {
        let page = u64::from(meta.header.block_size);
        let data = meta.regions.data;
        output.reserve(meta.regions.descriptors, data + page)?;
        let writer = Self { output, meta, end: data + page, pending: Vec::new(), pending_bytes: 0 };
        let mut head = vec![0; writer.meta.regions.notes as usize];
        put(&mut head, 0, &writer.main_header(true));
        let sub = writer.meta.sub_header.encode(writer.meta.header.header_version, writer.meta.layout);
        put(&mut head, writer.meta.regions.sub_header as usize, &sub);
        head.extend_from_slice(&writer.meta.notes);
        writer.output.write_at(&head, 0)?;
        let regions = writer.meta.regions;
        bitmap(writer.output, ram, regions.bitmap1, regions.bitmap_len)?;
        bitmap(writer.output, keep, regions.bitmap2, regions.bitmap_len)?;
        Ok(writer)
    }

    /// Writes the data of one batch, then (now or later) its descriptors. On failure the pages whose data did get written keep
    /// their descriptors.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn batch(&mut self, runs: &[Run], pages: &[Stored], data: &[u8]) -> Result<(), WriteFailed> {
        let start = self.end;
        let result = if data.is_empty() { Ok(()) } else { self.output.write_at(data, start) };
        let reached = start + result.as_ref().map_or_else(|e| e.done as u64, |()| data.len() as u64);
        self.end = reached;
        let mut at = start;
        let mut pages = pages.iter();
        for run in runs {
            let mut raw = Vec::with_capacity(run.pages as usize * PageDesc::SIZE);
            for page in pages.by_ref().take(run.pages as usize) {
                let desc = match *page {
                    Stored::Zero => {
                        PageDesc { offset: self.meta.regions.data, size: self.meta.header.block_size, flags: 0 }
                    }
                    Stored::Lost => PageDesc::default(),
                    Stored::Data { size, flags } => {
                        let offset = at;
                        at += u64::from(size);
                        if at <= reached { PageDesc { offset, size, flags } } else { PageDesc::default() }
                    }
                };
                raw.extend_from_slice(&desc.encode(self.meta.layout.endian));
            }
            self.queue(self.meta.regions.descriptor(run.rank), raw);
        }
        if result.is_err() || self.pending_bytes >= MAX_PENDING {
            let flushed = self.flush();
            return result.and(flushed);
        }
        Ok(())
    }

    /// Writes what is left, waits until it is on the medium, and takes the mark of an incomplete file away if the file is
    /// `complete`. Where a page is lost the mark has to stay: only in a marked file readers expect a descriptor without data.
    ///
    /// # Errors
    /// The target is full or cannot be written; the mark stays then.
    pub fn finish(mut self, complete: bool) -> Result<(), WriteFailed> {
        self.flush()?;
        self.output.sync()?;
        if !complete {
            return Ok(());
        }
        let header = self.main_header(false);
        self.output.write_at(&header, 0)
    }

    fn main_header(&self, incomplete: bool) -> Vec<u8> {
        let mut header = self.meta.header.clone();
        if incomplete {
            header.status |= STATUS_INCOMPLETE;
        }
        let mut raw = header.encode(self.meta.layout);
        put(&mut raw, 0, SIGNATURE);
        raw
    }

    fn queue(&mut self, at: u64, raw: Vec<u8>) {
        self.pending_bytes += raw.len();
        match self.pending.last_mut() {
            Some((start, bytes)) if *start + bytes.len() as u64 == at => bytes.extend_from_slice(&raw),
            _ => self.pending.push((at, raw)),
        }
    }

    /// Writes the waiting descriptors. Runs a short gap apart are joined by reading the gap back, for a pass that skips the
    /// pages written earlier leaves many.
    fn flush(&mut self) -> Result<(), WriteFailed> {
        self.pending.sort_unstable_by_key(|run| run.0);
        self.pending_bytes = 0;
        let mut joined: Option<(u64, Vec<u8>)> = None;
        for (at, raw) in std::mem::take(&mut self.pending) {
            if let Some((start, bytes)) = &mut joined {
                let end = *start + bytes.len() as u64;
                let gap = at.saturating_sub(end);
                if gap <= MAX_GAP {
                    let old = bytes.len();
                    bytes.resize(old + gap as usize, 0);
                    let read = bytes.get_mut(old..).map_or(Ok(()), |buf| self.output.read_back(buf, end));
                    if read.is_ok() {
                        bytes.extend_from_slice(&raw);
                        continue;
                    }
                    bytes.truncate(old);
                }
            }
            if let Some((start, bytes)) = joined.replace((at, raw)) {
                self.output.write_at(&bytes, start)?;
            }
        }
        joined.map_or(Ok(()), |(start, bytes)| self.output.write_at(&bytes, start))
    }
}

/// Writes the bits of `set` at `offset`, whose `len` bytes read as zeros so far: only blocks that hold a bit.
fn bitmap(output: &mut Output, set: &PageSet, offset: u64, len: u64) -> Result<(), WriteFailed> {
    const BLOCK: u64 = 64 << 10;
    let mut block = vec![0u8; BLOCK as usize];
    let mut at = 0;
    while let Some((first, _)) = set.runs(Pfn(at * 8), Pfn(len * 8)).next() {
        at = first.0 / 8 / BLOCK * BLOCK;
        let end = (at + BLOCK).min(len);
        block.fill(0);
        for (start, stop) in set.runs(Pfn(at * 8), Pfn(end * 8)) {
            set_bits(&mut block, start.0 - at * 8, stop.0 - at * 8);
        }
        output.write_at(block.get(..(end - at) as usize).unwrap_or_default(), offset + at)?;
        at = end;
    }
    Ok(())
}

/// Sets the bits `start..end`, LSB first.
fn set_bits(bytes: &mut [u8], start: u64, end: u64) {
    let mut at = start;
    while at < end {
        let n = (8 - at % 8).min(end - at);
        if n == 8 {
            let whole = (end - at) / 8;
            if let Some(run) = bytes.get_mut((at / 8) as usize..(at / 8 + whole) as usize) {
                run.fill(0xff);
            }
            at += whole * 8;
            continue;
        }
        if let Some(byte) = bytes.get_mut((at / 8) as usize) {
            *byte |= (((1u16 << n) - 1) << (at % 8)) as u8;
        }
        at += n;
    }
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    if let Some(room) = bytes.get_mut(at..at + part.len()) {
        room.copy_from_slice(part);
    }
}
