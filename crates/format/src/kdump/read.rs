//! Reading pages of a kdump-compressed file: descriptor, data, decompression.

use super::desc::PageDesc;
use super::file::KdumpFile;
use crate::codec::{Codec, Decompressor};
use crate::elf_memory::io_error;
use crate::{MemoryView, Pfn, PhysAddr, PhysicalMemory, ReadError};
use std::io;

type Read<T> = Result<T, ReadError>;

/// Decompressed pages a view keeps: walking page tables comes back to a handful of them.
const PAGES: usize = 16;
/// Descriptors read at a time (6 KiB).
const DESCRIPTORS: u64 = 256;
/// Bytes of page data read ahead when pages are read in the order they are stored in.
const READ_AHEAD: usize = 128 << 10;

pub(super) struct KdumpView<'a> {
    file: &'a KdumpFile,
    decompressor: Decompressor,
    descriptors: Descriptors,
    data: Data,
    pages: Vec<(Pfn, Vec<u8>)>,
    /// The place in `pages` to be used next.
    oldest: usize,
    scratch: Vec<u8>,
    /// Page and rank of the last page found: the next one is often the next rank.
    last: Option<(Pfn, u64)>,
    /// File offset of a stored page known to be all zero, which many descriptors share.
    zeros: Option<u64>,
}

/// A run of descriptors in memory.
#[derive(Default)]
struct Descriptors {
    first: u64,
    raw: Vec<u8>,
}

/// A piece of page data in memory.
#[derive(Default)]
struct Data {
    start: u64,
    buf: Vec<u8>,
    /// File offset behind the data used last.
    next: u64,
}

impl<'a> KdumpView<'a> {
    pub(super) fn new(file: &'a KdumpFile) -> Self {
        Self {
            file,
            decompressor: Decompressor::new(),
            descriptors: Descriptors::default(),
            data: Data::default(),
            pages: Vec::new(),
            oldest: 0,
            scratch: Vec::new(),
            last: None,
            zeros: None,
        }
    }

    /// The place of a stored page among the descriptors.
    fn rank(&mut self, pfn: Pfn) -> Read<u64> {
        let file = self.file;
        if !file.stored.contains(pfn) {
            return Err(if file.ram.contains(pfn) {
                ReadError::Excluded { pfn, level: file.sub.dump_level }
            } else {
                ReadError::NotPresent { addr: pfn.addr(file.page) }
            });
        }
        let rank = match self.last {
            Some((last, rank)) if last.plus(1) == pfn => rank + 1,
            _ => file.stored.rank(pfn),
        };
        self.last = Some((pfn, rank));
        Ok(rank)
    }

    /// Fills `page`, which has the size of one, with the bytes of a page.
    fn load(&mut self, pfn: Pfn, page: &mut [u8]) -> Read<()> {
        let rank = self.rank(pfn)?;
        let at = self.file.descriptor_at(rank);
        let desc = self.descriptors.get(self.file, pfn, rank)?;
        let codec = self.file.check(pfn, at, desc).map_err(|(_, error)| error)?;
        if codec == Codec::None && self.zeros == Some(desc.offset) {
            page.fill(0);
            return Ok(());
        }
        let stored = self.data.get(self.file, pfn, desc)?;
        self.decompressor
            .decompress(codec, stored, page)
            .map_err(|e| corrupt(pfn, format!("{} bytes at file offset {}: {e}", desc.size, desc.offset)))?;
        if codec == Codec::None && page.iter().all(|b| *b == 0) {
            self.zeros = Some(desc.offset);
        }
        Ok(())
    }

    /// The place in `pages` of a decompressed page.
    fn cached(&mut self, pfn: Pfn) -> Read<usize> {
        if let Some(i) = self.pages.iter().position(|(p, _)| *p == pfn) {
            return Ok(i);
        }
        let slot = self.oldest;
        // Taken out while it is filled, so that a page that fails is not kept.
        let mut page = match self.pages.get_mut(slot) {
            Some((owner, page)) => {
                *owner = Pfn(u64::MAX);
                std::mem::take(page)
            }
            None => Vec::new(),
        };
        page.resize(self.file.page.bytes(), 0);
        let loaded = self.load(pfn, &mut page);
        let entry = (if loaded.is_ok() { pfn } else { Pfn(u64::MAX) }, page);
        match self.pages.get_mut(slot) {
            Some(place) => *place = entry,
            None => self.pages.push(entry),
        }
        loaded?;
        self.oldest = (slot + 1) % PAGES;
        Ok(slot)
    }

    fn page_bytes(&self, slot: usize, from: usize, len: usize) -> &[u8] {
        self.pages.get(slot).and_then(|(_, p)| p.get(from..from + len)).unwrap_or_default()
    }
}

impl MemoryView for KdumpView<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Read<()> {
        let page = self.file.page;
        let mut done = 0;
        while done < buf.len() {
            let at = addr.0.checked_add(done as u64).ok_or(ReadError::NotPresent { addr })?;
            let (pfn, from) = (PhysAddr(at).pfn(page), page.offset_of(at));
            let n = (page.bytes() - from).min(buf.len() - done);
            let Some(piece) = buf.get_mut(done..done + n) else { break };
            if n == page.bytes() {
                self.load(pfn, piece)?;
            } else {
                let slot = self.cached(pfn)?;
                piece.copy_from_slice(self.page_bytes(slot, from, n));
            }
            done += n;
        }
        Ok(())
    }

    fn slice(&mut self, addr: PhysAddr, len: usize) -> Read<&[u8]> {
        let page = self.file.page_size();
        let from = page.offset_of(addr.0);
        if len <= page.bytes() - from {
            let slot = self.cached(addr.pfn(page))?;
            return Ok(self.page_bytes(slot, from, len));
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(len, 0);
        let read = self.read(addr, &mut scratch);
        self.scratch = scratch;
        read.map(|()| self.scratch.as_slice())
    }
}

impl Descriptors {
    fn fill(&mut self, file: &KdumpFile, rank: u64, count: u64) -> io::Result<()> {
        self.raw.resize(count as usize * PageDesc::SIZE, 0);
        self.first = rank;
        let read = file.bytes.read_at(file.descriptor_at(rank), &mut self.raw);
        self.raw.truncate(*read.as_ref().unwrap_or(&0));
        read.map(drop)
    }

    fn get(&mut self, file: &KdumpFile, pfn: Pfn, rank: u64) -> Read<PageDesc> {
        let have = (self.raw.len() / PageDesc::SIZE) as u64;
        if rank < self.first || rank - self.first >= have {
            let left = file.stored.len().saturating_sub(rank);
            let read = self.fill(file, rank, left.clamp(1, DESCRIPTORS)).or_else(|_| self.fill(file, rank, 1));
            read.map_err(|error| io_error(pfn, error))?;
        }
        let from = (rank - self.first) as usize * PageDesc::SIZE;
        self.raw
            .get(from..)
            .and_then(|raw| PageDesc::decode(raw, file.layout.endian))
            .ok_or_else(|| ReadError::Truncated { pfn, offset: file.descriptor_at(rank), len: file.bytes.len() })
    }
}

impl Data {
    fn fill(&mut self, file: &KdumpFile, offset: u64, len: usize) -> io::Result<()> {
        self.buf.resize(len, 0);
        self.start = offset;
        let read = file.bytes.read_at(offset, &mut self.buf);
        self.buf.truncate(*read.as_ref().unwrap_or(&0));
        read.map(drop)
    }

    /// The stored bytes of a page.
    fn get(&mut self, file: &KdumpFile, pfn: Pfn, desc: PageDesc) -> Read<&[u8]> {
        let size = desc.size as usize;
        let inside = |data: &Self| {
            let from = usize::try_from(desc.offset.checked_sub(data.start)?).ok()?;
            (from.checked_add(size)? <= data.buf.len()).then_some(from)
        };
        let from = match inside(self) {
            Some(from) => from,
            None => {
                let ahead = if desc.offset == self.next { READ_AHEAD.max(size) } else { size };
                // What lies ahead may be unreadable though this page is not.
                let read = self.fill(file, desc.offset, ahead).or_else(|_| self.fill(file, desc.offset, size));
                read.map_err(|error| io_error(pfn, error))?;
                0
            }
        };
        self.next = desc.offset + u64::from(desc.size);
        self.buf.get(from..from + size).ok_or_else(|| ReadError::Truncated {
            pfn,
            offset: desc.offset,
            len: file.bytes.len(),
        })
    }
}

fn corrupt(pfn: Pfn, what: String) -> ReadError {
    ReadError::Corrupt { pfn, what }
}
