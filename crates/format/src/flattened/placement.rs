//! Whether the blocks of a stream belong where they say, by the headers of the dump they make.
//!
//! A stream carries no checksum: one flipped bit in an offset puts a block elsewhere. That shows in three ways, of which no writer
//! makes any (makedumpfile and QEMU write page data one behind the other, once): the block lies beyond all that the headers can
//! describe, it lies where another one does, or it lies behind a gap.

use super::blocks::BLOCK_HEADER;
use super::rearranged::mark_incomplete;
use crate::bytes::{Bytes, read_some};
use crate::elf::ElfHeaders;
use crate::error::FormatError;
use crate::extents::Extent;
use crate::kdump::{Header, PageDesc, SIGNATURE, STATUS_INCOMPLETE, SubHeader};
use crate::units::PageSize;
use std::fmt;
use std::ops::Range;

/// Bytes behind the page data that a writer may append: erase info, section headers.
const APPENDED: u64 = 64 << 20;
/// Blocks at the beginning of a kdump-compressed file that writers write again at the end: main header and sub header.
const REWRITTEN: u64 = 2;
/// Places with several blocks that are remembered one by one.
const MOST_DISPUTED: usize = 1 << 16;
/// Misplaced blocks that are named.
pub const MOST_NAMED: usize = 16;

/// A block that cannot belong where its header puts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// Offset of the block's header in the stream.
    pub block: u64,
    /// The bytes of the file that it claims, as far as that is known.
    pub claims: Range<u64>,
    /// How that shows.
    pub why: Misplacement,
}

/// Why a block cannot belong where it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplacement {
    /// The dump's headers describe a file of this many bytes at the most.
    Beyond {
        /// The bytes.
        longest: u64,
    },
    /// Another block is there.
    Overlap,
    /// No block brings the bytes before it.
    Gap {
        /// The first of them.
        from: u64,
    },
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, claims, why } = self;
        write!(f, "the block at offset {block} of the stream claims offset {} of the file, ", claims.start)?;
        match why {
            Misplacement::Beyond { longest } => write!(f, "which has less than {longest} bytes by its headers"),
            Misplacement::Overlap => f.write_str("where another block is"),
            Misplacement::Gap { from } => write!(f, "and no block brings what is before it from offset {from} on"),
        }
    }
}

impl Misplaced {
    /// The same as an error of the stream `file`.
    #[must_use]
    pub fn error(&self, file: &str) -> FormatError {
        FormatError::BadField {
            file: file.to_owned(),
            field: "block header of the flattened stream (offset)",
            offset: self.block,
            value: self.claims.start.to_string(),
            rule: self.to_string(),
            next: "pages that it may have brought or lies on are lost: fetch the file again",
        }
    }
}

/// What the headers of a dump say about where bytes of its file can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// No byte is at or behind this offset.
    pub longest: u64,
    /// From this offset on each byte is written once,
    pub once: u64,
    /// and from this one on all are written; [`u64::MAX`] where that cannot be told.
    pub gapless: u64,
    /// Where the bitmaps end, by which all descriptors are found, or the program headers of an ELF core.
    pub table: u64,
    /// Where what a writer may write again when it knows more ends: the main header's block, and the sub header without what follows it in
    /// its block; of an ELF core, the header and the program header behind it, and nothing.
    pub again: [u64; 2],
    /// Bytes of a block of the file; 0 of an ELF core, whose headers have no hole.
    pub block: u64,
}

impl Frame {
    /// By the main header of a kdump-compressed file, which `head` begins with; `None` for all else.
    #[must_use]
    pub fn of_header(head: &[u8]) -> Option<Self> {
        if !head.starts_with(SIGNATURE) {
            return None;
        }
        let header = Header::decode(head, Header::layout_of(head))?;
        let block = PageSize::new(header.block_size.into())?.bytes() as u64;
        // Each factor has 32 bits at the most, and a block 19.
        let table = (1 + u64::from(header.sub_hdr_size) + u64::from(header.bitmap_blocks)) * block;
        let pages = u64::from(header.bitmap_blocks).saturating_mul(block * 8);
        let table_end = table.saturating_add(pages.saturating_mul(PageDesc::SIZE as u64)).saturating_add(block);
        let longest = table_end.saturating_add(pages.saturating_mul(block)).saturating_add(APPENDED);
        let marked = header.status & STATUS_INCOMPLETE != 0;
        // Where the writer ended early, descriptors are missing.
        let gapless = if marked { table_end } else { table };
        let sub = SubHeader::size(header.header_version, Header::layout_of(head).abi) as u64;
        let again = [block, block + sub];
        Some(Self { longest, once: REWRITTEN * block, gapless, table, again, block })
    }

    /// The bytes of main header and sub header that have to be there, of a kdump-compressed file that begins with `head`: all but those
    /// that a writer may leave for the end, the status and where the erase info is.
    #[must_use]
    pub fn headers(head: &[u8]) -> Option<[Range<u64>; 4]> {
        let layout = Header::layout_of(head);
        let header = Header::decode(head, layout)?;
        let status = Header::offset_of("status", layout.abi);
        let main = Header::size(layout.abi) as u64;
        let sub = u64::from(header.block_size);
        let erased = SubHeader::offset_of("offset_eraseinfo", layout.abi);
        let size = SubHeader::size(header.header_version, layout.abi) as u64;
        let behind = (erased + 16).min(size);
        Some([0..status, status + 4..main, sub..sub + erased.min(size), sub + behind..sub + size])
    }

    /// By the headers of a file, as far as it has any; the first `MARK_WITHIN` bytes are in `head`, for in the file they may be
    /// marked.
    #[must_use]
    pub fn read(bytes: &dyn Bytes, head: &[u8]) -> Option<Self> {
        if !head.starts_with(SIGNATURE) {
            return Self::of_elf(&ElfHeaders::read(bytes).ok()?);
        }
        let frame = Self::of_header(head)?;
        let layout = Header::layout_of(head);
        let header = Header::decode(head, layout)?;
        let raw = read_some(bytes, "sub header", header.block_size.into(), frame.block).ok()?;
        // A part of a split set has the descriptors of the others as a hole.
        let part = SubHeader::decode(&raw, header.header_version, layout).is_some_and(|sub| sub.split != 0);
        let marked = Self::of_header(&marked(head))?;
        Some(if part { marked } else { frame })
    }

    /// By the headers of an ELF core. Writers write its header, and the program header of its notes, again when they know more.
    fn of_elf(headers: &ElfHeaders) -> Option<Self> {
        let data = headers.segments.iter().filter(|segment| segment.file_size > 0);
        let gapless = data.clone().map(|segment| segment.file_offset).min()?;
        let end = data.map(|segment| segment.file_offset.saturating_add(segment.file_size)).max()?;
        let once = headers.table.start.saturating_add(headers.entry);
        Some(Self {
            longest: end.saturating_add(APPENDED),
            once,
            gapless,
            again: [once, 0],
            table: headers.table.end,
            block: 0,
        })
    }

    /// Whether a misplaced block may have belonged to what leads to the pages ([`Self::table`]), or lie on it, so that no page can be told
    /// from another: `end` is the file's, and `has` says whether all of a range arrived. A hole among the page data is where the block
    /// belonged; without one, a hole in the bitmaps is. A block that lies on no other, and not `beyond` all, may have come to lie in one.
    pub(super) fn in_doubt(
        &self,
        overlaps: &[Overlap],
        beyond: bool,
        end: u64,
        has: impl Fn(&Range<u64>) -> bool,
    ) -> bool {
        let front = self.once..self.table;
        let data = self.table..end.max(self.table);
        let holes = || !has(&front) && (self.block == 0 || overlaps.is_empty() && !beyond || has(&data));
        !front.is_empty() && (overlaps.iter().any(|overlap| overlap.both.start < front.end) || holes())
    }

    /// Those of `overlaps` that no writer makes.
    pub(super) fn wrong(&self, mut overlaps: Vec<Overlap>) -> Vec<Overlap> {
        let [main, sub] = self.again;
        let again = |both: &Range<u64>| both.end <= main || both.start >= self.block && both.end <= sub;
        overlaps.retain(|overlap| !again(&overlap.both) && overlap.both.start < self.longest);
        overlaps
    }

    /// The last block that stands behind a gap, of `runs` of bytes that blocks bring, ascending, each with what its first block brings and
    /// that block's offset in the stream.
    pub(super) fn behind_gap(&self, runs: impl Iterator<Item = (Range<u64>, Range<u64>, u64)>) -> Option<Misplaced> {
        let mut end = self.gapless;
        let mut found = None;
        for (run, claims, block) in runs {
            if run.start > end {
                found = Some(Misplaced { block, claims, why: Misplacement::Gap { from: end } });
            }
            end = end.max(run.end);
        }
        found
    }
}

/// A place that more than one block brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    /// The bytes that both bring.
    pub both: Range<u64>,
    /// All that the two bring: which of them is elsewhere than it belongs cannot be told.
    pub claims: Range<u64>,
    /// Offset in the stream of the block that begins there.
    pub block: u64,
}

impl Overlap {
    /// As a message of a block at the wrong place.
    pub fn misplaced(&self) -> Misplaced {
        Misplaced { block: self.block, claims: self.both.clone(), why: Misplacement::Overlap }
    }
}

/// The places where `blocks`, ascending by their start, overlap; at most [`MOST_DISPUTED`], of which the last reaches to the end. Their
/// claims have ascending starts.
pub(super) fn overlaps(blocks: &[Extent]) -> Vec<Overlap> {
    let mut found: Vec<Overlap> = Vec::new();
    // The block that reaches farthest. One that lies on any other lies on it as well.
    let mut far = 0..0;
    for block in blocks {
        if block.start < far.end {
            let (both, claims) = (block.start..block.end.min(far.end), far.start..block.end.max(far.end));
            let full = found.len() >= MOST_DISPUTED;
            match found.last_mut() {
                Some(last) if full => {
                    last.both.end = last.both.end.max(both.end);
                    last.claims.end = last.claims.end.max(claims.end);
                }
                _ => found.push(Overlap { both, claims, block: header_of(block) }),
            }
        }
        if block.end > far.end {
            far = block.start..block.end;
        }
    }
    found
}

/// Offset in the stream of the header of `block`.
pub(super) const fn header_of(block: &Extent) -> u64 {
    block.source.saturating_sub(BLOCK_HEADER)
}

fn marked(head: &[u8]) -> Vec<u8> {
    let mut head = head.to_vec();
    mark_incomplete(&mut head);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_behind_a_gap_is_found() {
        let frame = Frame { longest: 1000, once: 10, gapless: 100, table: 100, again: [10, 0], block: 8 };
        let runs = |runs: &[(u64, u64)]| {
            frame
                .behind_gap(runs.iter().map(|(start, end)| (*start..*end, *start..*end, start * 10)))
                .map(|found| found.block)
        };
        assert_eq!(runs(&[(0, 50), (60, 100), (100, 400)]), None, "in front of it gaps are zeros");
        assert_eq!(runs(&[(0, 100), (101, 400)]), Some(1010));
        assert_eq!(runs(&[(0, 150), (200, 400), (400, 500), (700, 701)]), Some(7000));
        assert_eq!(runs(&[(0, 50), (300, 400)]), Some(3000), "not even what is in front of it came");
        assert_eq!(runs(&[(0, 50)]), None);
    }
}
