//! Program headers that promise only what arrived, for an ELF core that was made of a damaged stream: it has nothing else that could tell
//! a lost page from one of zeros.

use crate::bytes::read_exact;
use crate::elf::{ElfHeaders, Segment};
use crate::elf_class::{P_TYPE, PT_LOAD, class};
use crate::flattened::Rearranged;
use crate::{PageSize, Result};
use std::ops::Range;

/// Program headers to be written in place of those of a file.
#[derive(Debug)]
pub struct Claims {
    /// Where in the file.
    pub at: u64,
    /// All of them: as many bytes as there were.
    pub table: Vec<u8>,
    /// Bytes of the file that arrived, for which no header is left: there are no more than there were, and the longest pieces get them.
    pub dropped: Vec<Range<u64>>,
}

impl Claims {
    /// The headers of `file` without the pages, of `page` bytes, that have a byte which did not arrive; `None` where all arrived.
    ///
    /// # Errors
    /// As [`ElfHeaders::read`].
    pub fn of(file: &Rearranged, page: PageSize) -> Result<Option<Self>> {
        let headers = ElfHeaders::read(file)?;
        let (at, len) = (headers.table.start, headers.table.end - headers.table.start);
        let mut table = read_exact(file, "program headers", at, len)?;
        let whole: Vec<Segment> = headers.segments.clone();
        let mut pieces: Vec<Segment> = whole.iter().flat_map(|segment| arrived(file, segment, page)).collect();
        if pieces == whole {
            return Ok(None);
        }
        let mut dropped = Vec::new();
        if pieces.len() > whole.len() {
            let mut sizes: Vec<(u64, usize)> =
                pieces.iter().enumerate().map(|(i, piece)| (piece.mem_size, i)).collect();
            sizes.sort_unstable();
            sizes.truncate(pieces.len() - whole.len());
            let mut without: Vec<usize> = sizes.into_iter().map(|(_, i)| i).collect();
            without.sort_unstable();
            for i in without.into_iter().rev() {
                let piece = pieces.remove(i);
                dropped.extend((piece.file_size > 0).then(|| piece.file_offset..piece.file_offset + piece.file_size));
            }
            dropped.reverse();
        }
        let class = class(headers.bits);
        let mut pieces = pieces.into_iter();
        for raw in table.chunks_exact_mut(headers.entry as usize) {
            if headers.endian.get(raw, P_TYPE) != Some(PT_LOAD) {
                continue;
            }
            let piece = pieces.next().unwrap_or_default();
            let fields = [
                (class.p_offset, piece.file_offset),
                (class.p_vaddr, piece.vaddr),
                (class.p_paddr, piece.paddr),
                (class.p_filesz, piece.file_size),
                (class.p_memsz, piece.mem_size),
                (class.p_flags, piece.flags.into()),
                (class.p_align, piece.align),
            ];
            fields.into_iter().for_each(|(field, value)| headers.endian.put(raw, field, value));
        }
        Ok(Some(Self { at, table, dropped }))
    }
}

/// What of `segment` arrived, as segments of whole pages, but for its own ends; and the zeros behind its data.
fn arrived(file: &Rearranged, segment: &Segment, page: PageSize) -> Vec<Segment> {
    let data = segment.file_offset..segment.file_offset.saturating_add(segment.file_size);
    let page = page.bytes() as u64;
    let mut gaps: Vec<Range<u64>> = Vec::new();
    for gap in file.written.gaps(data.clone()) {
        // The pages that have a byte of it.
        let address = |offset: u64| segment.paddr.saturating_add(offset - data.start);
        let (first, end) = (address(gap.start) / page * page, address(gap.end).div_ceil(page).saturating_mul(page));
        let place = |address: u64| data.start.saturating_add(address.saturating_sub(segment.paddr));
        let gap = place(first)..place(end);
        match gaps.last_mut() {
            Some(last) if last.end >= gap.start => last.end = last.end.max(gap.end),
            _ => gaps.push(gap),
        }
    }
    if gaps.is_empty() {
        return vec![*segment];
    }
    let end = data.start.saturating_add(segment.mem_size.max(segment.file_size));
    let mut pieces = Vec::with_capacity(gaps.len() + 1);
    let mut at = data.start;
    for gap in gaps.into_iter().chain(std::iter::once(end..end)) {
        if at < gap.start {
            let skipped = at - data.start;
            pieces.push(Segment {
                file_offset: at,
                vaddr: segment.vaddr.wrapping_add(skipped),
                paddr: segment.paddr.wrapping_add(skipped),
                file_size: gap.start.min(data.end).saturating_sub(at),
                mem_size: gap.start - at,
                ..*segment
            });
        }
        at = at.max(gap.end);
    }
    pieces
}
