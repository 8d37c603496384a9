//! A kdump-compressed file, readable at every instant: metadata first, marked incomplete until the end, and never a page
//! descriptor that points at bytes not yet written.

use crate::dedup::Place;
use crate::descriptors::{Descriptors, Encoded};
use crate::target::{Output, WriteFailed};
use crate::worker::{Batch, Stored};
use coresift_format::kdump::{Header, HeaderLayout, Layout, PageDesc, SIGNATURE, STATUS_INCOMPLETE, SubHeader};
use coresift_format::{PageSet, Pfn};
use std::sync::Arc;

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
    /// What an earlier run erased, as its file tells it; written behind the pages.
    pub erase_info: Vec<u8>,
    /// Where everything goes.
    pub regions: Layout,
}

/// Whether a target that failed is a dump that can be read, marked incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable(pub bool);

/// Writes one file.
pub struct Writer {
    output: Arc<Output>,
    meta: Metadata,
    /// Where the next data go.
    end: u64,
    descriptors: Descriptors,
    /// The descriptors of one batch.
    encoded: Encoded,
}

impl Writer {
    /// Writes the metadata for the pages `keep` of `ram`, and the zero page. From the first write on the target is an
    /// incomplete dump without pages (on a block device from the last write on: what was there before has to go first).
    ///
    /// # Errors
    /// The target is full or cannot be written, and whether what is there can be read.
    pub fn begin(
        output: Arc<Output>,
        meta: Metadata,
        ram: &PageSet,
        keep: &PageSet,
    ) -> Result<Self, (WriteFailed, Readable)> {
        let page = u64::from(meta.header.block_size);
        let regions = meta.regions;
        let data = regions.data + page;
        output.empty(data).map_err(|e| (e, Readable(false)))?;
        let descriptors = Descriptors::new(Arc::clone(&output));
        let writer = Self { output, meta, end: data, descriptors, encoded: Encoded::default() };
        let mut head = vec![0; regions.notes as usize];
        put(&mut head, 0, &writer.main_header(true));
        put(&mut head, regions.sub_header as usize, &writer.sub_header());
        head.extend_from_slice(&writer.meta.notes);
        writer.output.write_at(&head, 0).map_err(|e| (e, Readable(false)))?;
        let end = Pfn(writer.meta.sub_header.max_mapnr_64);
        let rest = bitmap(&writer.output, ram, end, regions.bitmap1)
            .and_then(|()| bitmap(&writer.output, keep, end, regions.bitmap2))
            .and_then(|()| writer.output.reserve(regions.descriptors, data));
        rest.map_err(|e| (e, Readable(true)))?;
        Ok(writer)
    }

    /// Writes the data of one batch, and returns where; its descriptors follow when the data are on the medium. On failure the
    /// pages whose data did get written keep their descriptors.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn batch(&mut self, batch: &Batch) -> Result<u64, WriteFailed> {
        let (start, data) = (self.end, batch.stored());
        let result = if data.is_empty() { Ok(()) } else { self.output.write_at(data, start) };
        let reached = start + result.as_ref().map_or_else(|e| e.done as u64, |()| data.len() as u64);
        self.end = reached;
        self.encoded.clear();
        let mut pages = batch.pages.iter();
        for run in &batch.runs {
            for (rank, page) in (run.rank..).zip(pages.by_ref().take(run.pages as usize)) {
                let desc = self.descriptor(*page, start);
                let written = desc.offset + u64::from(desc.size) <= reached;
                let raw = if written { desc } else { PageDesc::default() }.encode(self.meta.layout.endian);
                self.encoded.push(self.meta.regions.descriptor(rank), &raw);
            }
        }
        self.descriptors.queue(&self.encoded);
        result.and(self.descriptors.check()).map(|()| start)
    }

    /// The descriptor of a page of a batch whose data begin at `start`.
    fn descriptor(&self, page: Stored, start: u64) -> PageDesc {
        match page {
            Stored::Zero => PageDesc { offset: self.meta.regions.data, size: self.meta.header.block_size, flags: 0 },
            Stored::Lost => PageDesc::default(),
            Stored::Data { at, size, flags } => PageDesc { offset: start + u64::from(at), size, flags },
            Stored::Known(Place { offset, size, flags }) => PageDesc { offset, size, flags },
        }
    }

    /// Writes what is left, waits until it is on the medium, and takes the mark of an incomplete file away if the file is
    /// `complete`. Where a page is lost the mark has to stay: only in a marked file readers expect a descriptor without data.
    ///
    /// # Errors
    /// The target is full or cannot be written; the mark stays then.
    pub fn finish(mut self, complete: bool) -> Result<(), WriteFailed> {
        self.descriptors.finish()?;
        if !self.meta.erase_info.is_empty() {
            self.output.write_at(&self.meta.erase_info, self.end)?;
            self.meta.sub_header.offset_eraseinfo = self.end;
            self.meta.sub_header.size_eraseinfo = self.meta.erase_info.len() as u64;
            self.output.write_at(&self.sub_header(), self.meta.regions.sub_header)?;
        }
        self.output.sync()?;
        if complete {
            self.output.write_at(&self.main_header(false), 0)?;
            self.output.sync()?;
        }
        Ok(())
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

    fn sub_header(&self) -> Vec<u8> {
        self.meta.sub_header.encode(self.meta.header.header_version, self.meta.layout)
    }
}

/// Writes the bits of the pages of `set` below `end` at `offset`, where zeros are: only blocks that hold a bit.
fn bitmap(output: &Output, set: &PageSet, end: Pfn, offset: u64) -> Result<(), WriteFailed> {
    /// Pages whose bits are written together: 64 KiB.
    const BLOCK: u64 = 64 << 13;
    let mut block = vec![0u8; (BLOCK / 8) as usize];
    let mut at = 0;
    while let Some((first, _)) = set.runs(Pfn(at), end).next() {
        at = first.0 / BLOCK * BLOCK;
        let stop = Pfn(at + BLOCK).min(end);
        block.fill(0);
        for (start, stop) in set.runs(Pfn(at), stop) {
            set_bits(&mut block, start.0 - at, stop.0 - at);
        }
        let bytes = (stop.0 - at).div_ceil(8) as usize;
        output.write_at(block.get(..bytes).unwrap_or_default(), offset + at / 8)?;
        at = stop.0;
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
