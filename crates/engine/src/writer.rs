//! A kdump-compressed file, readable at every instant: metadata first, marked incomplete until the end, and never a page
//! descriptor that points at bytes not yet written.

use crate::bitmap::Bitmap;
use crate::dedup::Place;
use crate::descriptors::{Descriptors, Encoded};
use crate::selection::Selection;
use crate::target::{Output, WriteFailed};
use crate::worker::{Batch, Stored};
use coresift_format::kdump::{
    Header, HeaderLayout, Layout, PageDesc, PartIdentity, SIGNATURE, STATUS_INCOMPLETE, SubHeader,
};
use coresift_format::{Bits, PageSet, Pfn};
use std::ops::Range;
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
    /// Which part of which split set the file is.
    pub identity: Option<PartIdentity>,
    /// Where everything goes, as long as there are no pages.
    pub regions: Layout,
}

/// Whether a target that failed is a dump that can be read, marked incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable(pub bool);

/// Writes one file.
pub struct Writer {
    output: Arc<Output>,
    meta: Metadata,
    /// Index, among all kept pages, of the page with the first descriptor: not 0 in a part of a split set.
    first: u64,
    /// Where the next data go.
    end: u64,
    descriptors: Descriptors,
    /// The descriptors of one batch.
    encoded: Encoded,
}

impl Writer {
    /// Writes what stands in front of the page descriptors: headers, notes, and the bitmap of `ram`. From the first write on the target
    /// is an incomplete dump without pages.
    ///
    /// # Errors
    /// The target is full or cannot be written, and whether what is there can be read.
    pub fn begin(output: Arc<Output>, meta: Metadata, ram: &PageSet) -> Result<Self, (WriteFailed, Readable)> {
        let regions = meta.regions;
        output
            .admits(regions.descriptors)
            .and_then(|()| output.empty(regions.descriptors))
            .map_err(|e| (e, Readable(false)))?;
        let descriptors = Descriptors::new(Arc::clone(&output));
        let writer =
            Self { output, meta, first: 0, end: regions.descriptors, descriptors, encoded: Encoded::default() };
        // What a block device held may be anything, descriptors too: it is no dump until those are zeros.
        if !writer.output.has_old_content() {
            writer.write_head().and_then(|len| writer.output.reserve(len, regions.descriptors)).map_err(|e| {
                // Quotas are not known before.
                writer.output.forget();
                (e, Readable(false))
            })?;
        }
        writer.bitmap(regions.bitmap1).write_set(ram).map_err(|e| (e, writer.readable()))?;
        Ok(writer)
    }

    /// The 2nd bitmap: of the pages that have a descriptor.
    #[must_use]
    pub fn kept(&self) -> Bitmap {
        self.bitmap(self.meta.regions.bitmap2)
    }

    /// Whether the target can be read as it is before [`Self::select`].
    #[must_use]
    pub fn readable(&self) -> Readable {
        Readable(!self.output.has_old_content())
    }

    /// Writes the bitmap of the pages of `selection`, but for those that stand in it already, and makes room for their descriptors
    /// and for the zero page.
    ///
    /// # Errors
    /// The target is full or cannot be written, and whether what is there can be read.
    pub fn select(&mut self, selection: &Selection<'_>) -> Result<(), (WriteFailed, Readable)> {
        let regions = self.meta.regions.with_pages(selection.len());
        let data = regions.data + u64::from(self.meta.header.block_size);
        let written = self
            .output
            .reserve(regions.descriptors, data)
            .and_then(|()| if self.output.is_stream() { self.zero_page(regions.data) } else { Ok(()) })
            .and_then(|()| self.kept().write_set(selection.in_memory()))
            .and_then(|()| if self.output.has_old_content() { self.write_head().map(drop) } else { Ok(()) });
        (self.meta.regions, self.end) = (regions, data);
        written.map_err(|e| (e, self.readable()))
    }

    /// As [`Self::select`], where the file becomes the part of a split set that holds the page frames `pages`, which are those of the
    /// indices `ranks` of `selection`. As makedumpfile's parts, it has the bitmap of all pages of the set, room for the descriptors
    /// of all, and its own in front. The bits of chunks that memory has no room for are in the bitmap if `planned` there.
    ///
    /// # Errors
    /// As [`Self::select`].
    pub fn select_part(
        &mut self,
        selection: &Selection<'_>,
        pages: &Range<Pfn>,
        ranks: &Range<u64>,
        planned: bool,
    ) -> Result<(), (WriteFailed, Readable)> {
        let regions = self.meta.regions.with_pages(selection.len());
        let block = u64::from(self.meta.header.block_size);
        let (start, end) = (pages.start.0, pages.end.0);
        let (start_pfn, end_pfn) = (self.long(start), self.long(end));
        let sub = self.meta.sub_header.clone();
        self.meta.sub_header = SubHeader { split: 1, start_pfn, end_pfn, start_pfn_64: start, end_pfn_64: end, ..sub };
        self.meta.regions = regions;
        (self.first, self.end) = (ranks.start, regions.data + block);
        self.write_selection(selection, ranks.end - ranks.start, planned).map_err(|e| (e, self.readable()))
    }

    fn write_selection(&self, selection: &Selection<'_>, own: u64, planned: bool) -> Result<(), WriteFailed> {
        let Layout { descriptors, data, .. } = self.meta.regions;
        // The descriptors of the other parts stay a hole, but where old content would show.
        let own = if self.output.has_old_content() { data } else { self.meta.regions.descriptor(own) };
        self.output.reserve(descriptors, own)?;
        self.output.reserve(data, self.end)?;
        let kept = self.kept();
        kept.write_set(selection.in_memory())?;
        if !planned {
            selection.copy_later(&kept)?;
        }
        if self.output.has_old_content() {
            return self.write_head().map(drop);
        }
        self.output.write_at(&self.sub_header(), self.meta.regions.sub_header)
    }

    /// A number as a `long` of the crashed machine holds it.
    fn long(&self, number: u64) -> u64 {
        if self.meta.layout.abi.bits() == Bits::B64 { number } else { number & u64::from(u32::MAX) }
    }

    fn bitmap(&self, offset: u64) -> Bitmap {
        Bitmap::new(Arc::clone(&self.output), offset, Pfn(self.meta.sub_header.max_mapnr_64))
    }

    /// Writes headers and notes, and returns how long they are.
    fn write_head(&self) -> Result<u64, WriteFailed> {
        let mut head = self.head(true);
        head.extend_from_slice(&self.meta.notes);
        let len = head.len() as u64;
        if !self.output.is_stream() {
            return self.output.write_at(&head, 0).map(|()| len);
        }
        let mut at = 0;
        for held in self.held_back() {
            self.output.write_at(head.get(at..held.start).unwrap_or_default(), at as u64)?;
            at = held.end;
        }
        self.output.write_at(head.get(at..).unwrap_or_default(), at as u64).map(|()| len)
    }

    /// Both headers.
    fn head(&self, incomplete: bool) -> Vec<u8> {
        let mut head = vec![0; self.meta.regions.notes as usize];
        put(&mut head, 0, &self.main_header(incomplete));
        if let Some(identity) = self.meta.identity {
            put(&mut head, PartIdentity::OFFSET as usize, &identity.encode(self.meta.layout.endian));
        }
        put(&mut head, self.meta.regions.sub_header as usize, &self.sub_header());
        head
    }

    /// Pieces of the headers that are known at the end only, and so come last in a stream.
    fn held_back(&self) -> Vec<Range<usize>> {
        let abi = self.meta.layout.abi;
        let status = Header::offset_of("status", abi);
        let sub = |field| self.meta.regions.sub_header + SubHeader::offset_of(field, abi);
        let erased = [(sub("offset_eraseinfo"), 8), (sub("size_eraseinfo"), 8)];
        let erased = erased.into_iter().filter(|_| !self.meta.erase_info.is_empty());
        std::iter::once((status, 4)).chain(erased).map(|(at, len)| at as usize..at as usize + len).collect()
    }

    /// The zero page, written out: in a stream that is cut short, what was not written is lost rather than zero.
    fn zero_page(&self, at: u64) -> Result<(), WriteFailed> {
        self.output.write_at(&vec![0; self.meta.header.block_size as usize], at)
    }

    /// Writes the data of one batch, and returns where; its descriptors follow when the data are on the medium. On failure the
    /// pages whose data did get written keep their descriptors.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn batch(&mut self, batch: &Batch) -> Result<u64, WriteFailed> {
        let (start, data) = (self.end, batch.stored());
        if self.short().is_some() {
            self.end += data.len() as u64;
            return self.output.write_at(data, start).map(|()| start);
        }
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
                self.encoded.push(self.meta.regions.descriptor(rank.saturating_sub(self.first)), &raw);
            }
        }
        self.descriptors.queue(&self.encoded);
        // The data of this batch are written when a descriptor of an earlier one was not.
        let check = self.descriptors.check().map_err(|failed| WriteFailed { done: data.len(), ..failed });
        result.and(check).map(|()| start)
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

    /// Of a dry run that only counts what is needed, for there was no room: where the file would end, in bytes.
    #[must_use]
    pub fn short(&self) -> Option<u64> {
        self.output.short()
    }

    /// Free bytes of the target, where that is known.
    #[must_use]
    pub fn room(&self) -> Option<u64> {
        self.output.room(self.end)
    }

    /// Writes what is left and waits until it is on the medium. The mark of an incomplete file stays.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn close(&mut self) -> Result<(), WriteFailed> {
        self.descriptors.finish()?;
        if !self.meta.erase_info.is_empty() {
            self.output.write_at(&self.meta.erase_info, self.end)?;
            self.meta.sub_header.offset_eraseinfo = self.end;
            self.meta.sub_header.size_eraseinfo = self.meta.erase_info.len() as u64;
            if !self.output.is_stream() {
                self.output.write_at(&self.sub_header(), self.meta.regions.sub_header)?;
            }
        }
        if self.output.is_stream() { Ok(()) } else { self.output.sync() }
    }

    /// Takes the mark of an incomplete file away, after [`Self::close`].
    ///
    /// # Errors
    /// The target cannot be written; the mark stays then.
    pub fn complete(self) -> Result<(), WriteFailed> {
        self.output.write_at(&self.main_header(false), 0)?;
        self.output.sync()
    }

    /// [`Self::close`], and [`Self::complete`] if the file is `complete`. Where a page is lost the mark has to stay: only in a marked
    /// file readers expect a descriptor without data.
    ///
    /// # Errors
    /// The target is full or cannot be written; the mark stays then.
    pub fn finish(mut self, complete: bool) -> Result<(), WriteFailed> {
        self.close()?;
        if self.output.is_stream() {
            let head = self.head(!complete);
            for held in self.held_back() {
                self.output.write_at(head.get(held.clone()).unwrap_or_default(), held.start as u64)?;
            }
            return self.output.end();
        }
        if complete { self.complete() } else { Ok(()) }
    }

    /// Leaves a target that failed: a file is as it should be, a stream whose reader is still there gets its mark and its end.
    pub fn give_up(self) {
        if self.output.is_stream() {
            // The failure that led here is the one to tell.
            let _another = self.finish(false);
        }
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

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    if let Some(room) = bytes.get_mut(at..at + part.len()) {
        room.copy_from_slice(part);
    }
}
