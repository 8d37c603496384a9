//! The flattened format: a dump as a stream of "write these bytes at that offset" blocks, for pipes.
//!
//! The blocks are indexed once; the file inside is then read through the index, without being unpacked.

mod blocks;
mod placement;
mod rearranged;

use crate::bytes::{Bytes, read_exact, read_some};
use crate::error::FETCH_AGAIN;
use crate::extents::{Extent, find, resolve};
use crate::window::Window;
use crate::{FormatError, Result};
use blocks::{BLOCK_HEADER, HEADER, check_header};
pub use blocks::{FLAT_END, FLAT_HEADER_LEN, FLAT_SIGNATURE, FlatBlock, check_flat_head, flat_block, flat_header};
pub use placement::{Frame, MOST_NAMED, Misplaced, Misplacement};
use placement::{Overlap, header_of, overlaps};
pub use rearranged::{MARK_WITHIN, Rearranged, Written, mark_incomplete};
use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Block headers are read in pieces of this size where blocks are smaller: they may be as small as a byte.
const READ: u64 = 32 << 10;
/// Writers write many blocks of one size: the header this many blocks ahead is asked for early where the last block's size puts
/// it, so that a disk has several to fetch at a time.
const AHEAD: u64 = 16;
/// Blocks that a stream may have whatever their size,
const FREE_BLOCKS: usize = 1 << 20;
/// and bytes that they have on average where there are more. makedumpfile's and QEMU's have 16 KiB and more.
const BLOCK_BYTES: u64 = 2 << 10;
/// What the system reads at least.
const PAGE: u64 = 4096;

/// The file inside a flattened stream.
pub struct FlattenedBytes {
    stream: Arc<dyn Bytes>,
    extents: Vec<Extent>,
    /// The same without a border between neighbours.
    written: Vec<Range<u64>>,
    len: u64,
    truncated: Option<Cut>,
    another: Option<u64>,
    misplaced: Vec<Misplaced>,
    /// Bytes of the file that come of blocks of which one is at a wrong place; ascending.
    disputed: Vec<Range<u64>>,
    /// A misplaced block may be one of the bitmaps, so that no page is sure.
    in_doubt: bool,
}

/// Where and how a flattened stream ends before its end marker; what came before is usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Offset in the stream where it breaks off.
    pub at: u64,
    /// How it breaks off.
    pub kind: CutKind,
    /// Bytes of the file inside that the last block should have brought and did not; everything after the last block
    /// is lost as well, and cannot be known.
    pub lost: Option<Range<u64>>,
}

/// How a flattened stream breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutKind {
    /// It ends between two blocks: at least the end marker is missing.
    NoEndMarker,
    /// It ends inside a block header.
    InBlockHeader,
    /// It ends inside a block's data.
    InData,
    /// It does not end there, but the block cannot belong where it says ([`Misplaced`]).
    Misplaced(Misplacement),
    /// A block header no writer writes: a negative offset or a size below 1 (the two values), or a block beyond 2^63.
    BadBlock {
        /// The offset as it is in the block header.
        offset: i64,
        /// The size as it is in the block header.
        size: i64,
    },
}

impl fmt::Display for CutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEndMarker => f.write_str("missing: the stream ends there"),
            Self::InBlockHeader => f.write_str("cut inside its header"),
            Self::InData => f.write_str("cut inside its data"),
            Self::Misplaced(_) => f.write_str("for a place where it cannot belong"),
            Self::BadBlock { offset, size } => write!(f, "of {size} bytes for offset {offset}"),
        }
    }
}

impl FlattenedBytes {
    /// Whether `head`, the first bytes of a file, are those of a flattened stream.
    #[must_use]
    pub fn is_flattened(head: &[u8]) -> bool {
        head.starts_with(FLAT_SIGNATURE)
    }

    /// Indexes a stream in one pass over its block headers. Memory: 24 bytes a block, 16 a hole, up to three times that while it goes
    /// on. A stream has `FREE_BLOCKS` blocks at the most, or one for each `BLOCK_BYTES` of its length: the index takes 24 MiB, or
    /// 1.2 % of the stream.
    ///
    /// # Errors
    /// No signature or another type, a stream without a single block or with more blocks than that, or what the operating system says.
    pub fn open(stream: Arc<dyn Bytes>) -> Result<Self> {
        let head = read_exact(&*stream, "flattened stream header", 0, HEADER.min(stream.len().max(24)))?;
        check_header(stream.name(), &head)?;
        stream.expect_jumps(true);
        let scanned = scan(&*stream);
        stream.expect_jumps(false);
        let Scan { mut blocks, cut: truncated, end } = scanned?;
        if let (true, Some(cut)) = (blocks.is_empty(), &truncated) {
            return Err(FormatError::BadField {
                file: stream.name().to_owned(),
                field: "first block",
                offset: cut.at,
                value: cut.kind.to_string(),
                rule: "a block is an offset, a size, and that many bytes".to_owned(),
                next: FETCH_AGAIN,
            });
        }
        blocks.sort_unstable_by_key(|b| b.start);
        let overlaps = overlaps(&blocks);
        let apart = blocks.windows(2).all(|pair| matches!(pair, [a, b] if a.end <= b.start));
        let mut extents = if apart {
            blocks
        } else {
            // A later block wins, and `resolve` takes the first.
            blocks.sort_unstable_by_key(|b| Reverse(b.source));
            resolve(blocks)
        };
        extents.shrink_to_fit();
        let another =
            end > 0 && read_some(&*stream, "what follows the end marker", end, 16)?.starts_with(FLAT_SIGNATURE);
        let another = another.then_some(end);
        let (written, misplaced, disputed) = (Vec::new(), Vec::new(), Vec::new());
        let mut file =
            Self { stream, extents, written, len: 0, truncated, another, misplaced, disputed, in_doubt: false };
        file.join();
        file.judge(overlaps);
        Ok(file)
    }

    /// Finds what was written of the extents.
    fn join(&mut self) {
        self.written.clear();
        for e in &self.extents {
            match self.written.last_mut() {
                Some(run) if run.end == e.start => run.end = e.end,
                _ => self.written.push(e.start..e.end),
            }
        }
        self.written.shrink_to_fit();
        self.len = self.extents.last().map_or(0, |last| last.end);
    }

    /// Finds blocks that cannot belong where they say; what lies beyond the file's end by its own headers is left out.
    fn judge(&mut self, overlaps: Vec<Overlap>) {
        let head = read_some(self, "main header", 0, MARK_WITHIN as u64).unwrap_or_default();
        let Some(frame) = Frame::read(self, &head) else { return };
        let inside = self.extents.partition_point(|e| e.end <= frame.longest);
        let beyond = self.extents.drain(inside..).map(|e| {
            let why = Misplacement::Beyond { longest: frame.longest };
            Misplaced { block: header_of(&e), claims: e.start..e.end, why }
        });
        self.misplaced.extend(beyond.take(MOST_NAMED));
        if !self.misplaced.is_empty() {
            self.join();
        }
        let overlaps = frame.wrong(overlaps);
        let room = MOST_NAMED.saturating_sub(self.misplaced.len());
        self.misplaced.extend(overlaps.iter().take(room).map(Overlap::misplaced));
        let mut disputed: Vec<Range<u64>> = overlaps.iter().map(|overlap| overlap.claims.clone()).collect();
        let firsts = self.written.iter().filter_map(|run| {
            let first = find(&self.extents, run.start)?;
            Some((run.clone(), first.start..first.end, header_of(first)))
        });
        if let Some(found) = frame.behind_gap(firsts).filter(|_| self.truncated.is_none()) {
            disputed.push(found.claims.clone());
            self.misplaced.push(found);
        }
        disputed.sort_unstable_by_key(|claims| claims.start);
        for claims in disputed {
            match self.disputed.last_mut() {
                Some(last) if last.end >= claims.start => last.end = last.end.max(claims.end),
                _ => self.disputed.push(claims),
            }
        }
        let has = |range: &Range<u64>| {
            self.next_written(range.start).is_some_and(|run| run.start <= range.start && run.end >= range.end)
        };
        let beyond = self.misplaced.iter().any(|found| matches!(found.why, Misplacement::Beyond { .. }));
        self.in_doubt = !self.misplaced.is_empty() && frame.in_doubt(&overlaps, beyond, self.len, has);
    }

    /// Blocks that cannot belong where they say, the first [`MOST_NAMED`] of them: what they should have brought is lost.
    #[must_use]
    pub fn misplaced(&self) -> &[Misplaced] {
        &self.misplaced
    }

    /// Offset of another stream that follows behind the end marker of this one, as `cat` of two makes it. (Anything else that
    /// follows is the old content of a dump device.)
    #[must_use]
    pub const fn another(&self) -> Option<u64> {
        self.another
    }

    /// Memory the index occupies, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.extents.capacity() * size_of::<Extent>() + self.written.capacity() * size_of::<Range<u64>>()
    }

    /// How the stream breaks off before its end marker; `None` for a whole stream.
    #[must_use]
    pub const fn truncated(&self) -> Option<&Cut> {
        self.truncated.as_ref()
    }
}

/// What a pass over the block headers finds.
struct Scan {
    /// All blocks in stream order.
    blocks: Vec<Extent>,
    /// How the stream ends, where that is not its end marker.
    cut: Option<Cut>,
    /// Offset behind the end marker; 0 without one.
    end: u64,
}

fn scan(stream: &dyn Bytes) -> Result<Scan> {
    let mut blocks: Vec<Extent> = Vec::new();
    let mut headers = Headers { stream, buf: Vec::new(), start: 0, last: HEADER };
    let mut at = HEADER;
    loop {
        let most = FREE_BLOCKS.max((stream.len() / BLOCK_BYTES) as usize);
        if blocks.len() > most {
            return Err(FormatError::BadField {
                file: stream.name().to_owned(),
                field: "blocks of the flattened stream",
                offset: at,
                value: format!("more than {most}"),
                rule: format!("no writer makes blocks of less than {BLOCK_BYTES} bytes, and all are indexed in memory"),
                next: "make a file of it with `coresift unflatten`, which needs no index",
            });
        }
        let cut = |kind, lost| Some(Cut { at, kind, lost });
        let left = stream.len().saturating_sub(at);
        if left < BLOCK_HEADER {
            let kind = if left == 0 { CutKind::NoEndMarker } else { CutKind::InBlockHeader };
            return Ok(Scan { blocks, cut: cut(kind, None), end: 0 });
        }
        let (offset, end) = match headers.at(at)? {
            FlatBlock::End => return Ok(Scan { blocks, cut: None, end: at + BLOCK_HEADER }),
            FlatBlock::Bytes { offset, len } => (offset, offset + len),
            FlatBlock::Bad { offset, size } => {
                return Ok(Scan { blocks, cut: cut(CutKind::BadBlock { offset, size }, None), end: 0 });
            }
        };
        let source = at + BLOCK_HEADER;
        let have = (end - offset).min(left - BLOCK_HEADER);
        if have > 0 {
            blocks.push(Extent { start: offset, end: offset + have, source });
        }
        if offset + have < end {
            let lost = Some(offset + have..end);
            let cut = Some(Cut { at: stream.len(), kind: CutKind::InData, lost });
            return Ok(Scan { blocks, cut, end: 0 });
        }
        at = source + have;
    }
}

/// Block headers, read so that neither large blocks nor small ones cost more than they must.
struct Headers<'a> {
    stream: &'a dyn Bytes,
    buf: Vec<u8>,
    /// Stream offset of `buf`.
    start: u64,
    /// Stream offset of the header read last.
    last: u64,
}

impl Headers<'_> {
    /// The block header at `at`, which is not the first by more than the stream has.
    fn at(&mut self, at: u64) -> Result<FlatBlock> {
        if at < self.start || at + BLOCK_HEADER > self.start + self.buf.len() as u64 {
            // Behind a large block only the header's page is of use; between small ones there is no stepping over anything.
            let len = if at - self.last >= READ {
                let page = at.next_multiple_of(PAGE) - at;
                if page < BLOCK_HEADER { BLOCK_HEADER } else { page }
            } else {
                READ
            };
            let len = len.min(self.stream.len().saturating_sub(at));
            self.buf = read_exact(self.stream, "flattened block header", at, len)?;
            self.start = at;
            self.stream.read_soon(at.saturating_add((at - self.last).saturating_mul(AHEAD)));
        }
        self.last = at;
        let raw = self.buf.get((at - self.start) as usize..).and_then(<[u8]>::first_chunk);
        // What was read is at least a header long.
        Ok(raw.map_or(FlatBlock::Bad { offset: 0, size: 0 }, FlatBlock::decode))
    }
}

impl Cut {
    pub(crate) fn of_misplaced(block: &Misplaced) -> Self {
        Self { at: block.block, kind: CutKind::Misplaced(block.why), lost: Some(block.claims.clone()) }
    }

    /// The cut as an error that names the stream `file` of `len` bytes.
    #[must_use]
    pub fn error(&self, file: &str, len: u64) -> FormatError {
        let end_of = |what, missing: u64| FormatError::CutShort {
            file: file.to_owned(),
            what,
            offset: self.at,
            end: self.at.saturating_add(missing),
            len,
        };
        match (self.kind, &self.lost) {
            (CutKind::NoEndMarker, _) => end_of("end marker of the flattened stream", BLOCK_HEADER),
            (CutKind::InBlockHeader, _) => end_of("block header of the flattened stream", BLOCK_HEADER),
            (CutKind::InData, lost) => {
                end_of("data block of the flattened stream", lost.as_ref().map_or(0, |l| l.end - l.start))
            }
            (CutKind::Misplaced(why), lost) => {
                Misplaced { block: self.at, claims: lost.clone().unwrap_or_default(), why }.error(file)
            }
            (CutKind::BadBlock { offset, size }, _) => FormatError::BadField {
                file: file.to_owned(),
                field: "block header of the flattened stream (offset, size)",
                offset: self.at,
                value: format!("{offset}, {size}"),
                rule: "an offset is not negative and a size is above 0".to_owned(),
                next: "what came before it is used, the rest is lost: fetch the file again",
            },
        }
    }
}

impl Bytes for FlattenedBytes {
    fn name(&self) -> &str {
        self.stream.name()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..want).filter(|r| !r.is_empty()) {
            let at = offset + done as u64;
            let extent = find(&self.extents, at);
            let until = extent.map_or(self.len, |e| if e.start <= at { e.end } else { e.start });
            let n = usize::try_from(until - at).unwrap_or(usize::MAX).min(rest.len());
            let Some(piece) = rest.get_mut(..n) else { break };
            match extent.filter(|e| e.start <= at) {
                Some(e) if self.stream.read_at(e.source_of(at), piece)? < n => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the file became shorter while it was read",
                    ));
                }
                Some(_) => {}
                // Never written, so zero, as in the file a writer would have made by seeking.
                None => piece.fill(0),
            }
            done += n;
        }
        Ok(done)
    }

    fn window(&self, _offset: u64, _len: usize) -> Option<Window> {
        None
    }

    fn backed(&self) -> u64 {
        self.stream.backed()
    }

    fn next_written(&self, offset: u64) -> Option<Range<u64>> {
        let run = self.written.get(self.written.partition_point(|run| run.end <= offset))?;
        Some(run.start.max(offset)..run.end)
    }

    fn lacks(&self, range: Range<u64>) -> bool {
        let whole = |run: Range<u64>| run.start <= range.start && run.end >= range.end;
        let doubtful = self.truncated.is_some() || !self.misplaced.is_empty();
        let disputed = self.disputed.get(self.disputed.partition_point(|both| both.end <= range.start));
        doubtful
            && (self.in_doubt
                || disputed.is_some_and(|both| both.start < range.end)
                || !self.next_written(range.start).is_some_and(whole))
    }

    fn next_lost(&self, offset: u64) -> Option<Range<u64>> {
        if self.misplaced.is_empty() {
            return None;
        }
        if self.in_doubt {
            return Some(offset..u64::MAX);
        }
        let disputed = self.disputed.get(self.disputed.partition_point(|both| both.end <= offset));
        let disputed = disputed.map(|both| both.start.max(offset)..both.end);
        let at = self.written.partition_point(|run| run.end <= offset);
        let from = self.written.get(at).filter(|run| run.start <= offset).map_or(offset, |run| run.end);
        let next = self.written.get(self.written.partition_point(|run| run.end <= from));
        let gap = from..next.map_or(u64::MAX, |run| run.start);
        disputed.into_iter().chain([gap]).min_by_key(|lost| lost.start)
    }

    fn next_data(&self, offset: u64) -> u64 {
        find(&self.extents, offset).map_or(self.len.max(offset), |e| e.start.max(offset))
    }
}
