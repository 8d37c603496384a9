//! Writing what a stream brings, with the mark of an incomplete file until it is known to be whole.
//!
//! ```text
//! blocks ─ held back until headers are there ─> marked head, rest where it belongs ─> what arrived, and what cannot belong there
//! ```

use super::parser::Part;
use crate::target::{Output, WriteFailed};
use coresift_format::{Container, Frame, MARK_WITHIN, MOST_NAMED, Misplaced, Misplacement, Written, mark_incomplete};

/// Memory that blocks take which are held back until the headers have arrived, at the most: writers write headers first.
const HELD: usize = 16 << 20;
/// What a block takes beside its bytes, the allocator's part included.
const HELD_BLOCK: usize = size_of::<(Part, Vec<u8>)>() + 32;
/// Bytes of an ELF header at the most.
const ELF_HEADER: u64 = 64;
/// A block may lie this far behind all that arrived where no header says how long the file can be. Some file systems take no offset
/// twice as far (ext4: 16 TiB).
const AHEAD: u64 = 8 << 40;

/// Bytes of the stream, and where they go.
pub struct Piece {
    /// What was read.
    pub bytes: Vec<u8>,
    /// The blocks in it.
    pub parts: Vec<Part>,
}

/// The file that is being made.
pub struct Sink {
    /// The file.
    pub output: Output,
    /// The first bytes as they came.
    pub head: Vec<u8>,
    /// What they say it is.
    pub container: Option<Container>,
    /// What they say about the rest, of a kdump-compressed file.
    pub frame: Option<Frame>,
    /// What arrived.
    pub written: Written,
    /// Bytes that were taken from the stream.
    pub bytes: u64,
    /// Length of the file.
    pub end: u64,
    /// Blocks that wait until a dump is sure to come of it; `None` once that is so.
    held: Option<Vec<(Part, Vec<u8>)>>,
    /// Memory that these take.
    holding: usize,
    /// Blocks that lie beyond all that the headers can describe; they are not written.
    pub misplaced: Vec<Misplaced>,
    /// Why writing ended.
    pub failed: Option<WriteFailed>,
}

impl Sink {
    /// A file of which nothing is there yet. What `output` held stays until a dump is sure to come.
    pub fn new(output: Output) -> Self {
        Self {
            output,
            head: vec![0; MARK_WITHIN],
            container: None,
            frame: None,
            written: Written::default(),
            bytes: 0,
            end: 0,
            held: Some(Vec::new()),
            holding: 0,
            misplaced: Vec::new(),
            failed: None,
        }
    }

    /// Writes a piece; false where that failed, now or before.
    pub fn take(&mut self, piece: &Piece) -> bool {
        for part in &piece.parts {
            if self.failed.is_some() {
                break;
            }
            let bytes = piece.bytes.get(part.place.clone()).unwrap_or_default();
            if let Err(failed) = self.block(part, bytes) {
                self.failed = Some(failed);
            }
        }
        self.failed.is_none()
    }

    /// Whether writing has begun: what the target held is gone.
    #[must_use]
    pub const fn begun(&self) -> bool {
        self.held.is_none()
    }

    fn block(&mut self, part: &Part, bytes: &[u8]) -> Result<(), WriteFailed> {
        let end = part.offset + bytes.len() as u64;
        let longest = self.frame.map_or_else(|| self.bytes.saturating_add(AHEAD), |frame| frame.longest);
        if end > longest {
            self.misplace(part, end, longest);
            return Ok(());
        }
        self.bytes += bytes.len() as u64;
        if self.held.is_none() {
            return self.put(part, bytes);
        }
        self.keep_head(part.offset, bytes);
        self.written.add(part.offset..end, part.block);
        self.written.settle();
        self.learn();
        if let Some(held) = &mut self.held {
            held.push((part.clone(), bytes.to_vec()));
            self.holding += bytes.len() + HELD_BLOCK;
        }
        if self.has_headers() || self.holding > HELD { self.begin() } else { Ok(()) }
    }

    fn misplace(&mut self, part: &Part, end: u64, longest: u64) {
        let full = self.misplaced.len() >= MOST_NAMED;
        match self.misplaced.last_mut() {
            Some(last) if last.block == part.block => last.claims.end = end,
            _ if !full => self.misplaced.push(Misplaced {
                block: part.block,
                claims: part.offset..end,
                why: Misplacement::Beyond { longest },
            }),
            _ => {}
        }
    }

    /// Whether what is needed to open the file at all is there.
    fn has_headers(&self) -> bool {
        match self.container {
            Some(Container::Kdump) => {
                let all = Frame::headers(&self.head).is_some_and(|all| all.iter().all(|part| self.written.has(part)));
                self.frame.is_some() && all
            }
            Some(Container::Elf) => self.written.has(&(0..ELF_HEADER)),
            None => false,
        }
    }

    /// Writes what was held back.
    ///
    /// # Errors
    /// The target is full or cannot be written. Where it has no room for what makes a dump of it, what it held stays.
    pub fn begin(&mut self) -> Result<(), WriteFailed> {
        let reach =
            self.held.iter().flatten().map(|(part, bytes)| part.offset.saturating_add(bytes.len() as u64)).max();
        self.output.admits(reach.unwrap_or(0).max(self.frame.map_or(0, |frame| frame.table)))?;
        let held = self.held.take().unwrap_or_default();
        self.written = Written::default();
        self.output.empty(0)?;
        held.iter().try_for_each(|(part, bytes)| self.put(part, bytes))
    }

    fn put(&mut self, part: &Part, bytes: &[u8]) -> Result<(), WriteFailed> {
        let inside = self.keep_head(part.offset, bytes);
        let (first, rest) = bytes.split_at(inside);
        if !first.is_empty() {
            let end = part.offset + first.len() as u64;
            self.written.add(part.offset..end, part.block);
            self.end = self.end.max(end);
            self.written.settle();
            self.learn();
            self.put_marked_head()?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let from = part.offset + inside as u64;
        let written = self.output.write_at(rest, from);
        let done = written.as_ref().map_or_else(|failed| failed.done, |()| rest.len());
        self.written.add(from..from + done as u64, part.block);
        self.end = self.end.max(from + done as u64);
        written
    }

    /// Remembers what of `bytes`, which belong at `offset`, is of the first bytes; returns how many these are.
    fn keep_head(&mut self, offset: u64, bytes: &[u8]) -> usize {
        let inside = (MARK_WITHIN as u64).saturating_sub(offset).min(bytes.len() as u64) as usize;
        let place = usize::try_from(offset).ok().and_then(|at| self.head.get_mut(at..)?.get_mut(..inside));
        if let (Some(place), Some(first)) = (place, bytes.get(..inside)) {
            place.copy_from_slice(first);
        }
        inside
    }

    /// What the first bytes say, if all have arrived that say it.
    fn learn(&mut self) {
        self.container = mark_incomplete(&mut self.head.clone());
        let whole = Frame::headers(&self.head).is_some_and(|[a, b, ..]| self.written.has(&a) && self.written.has(&b));
        self.frame = if whole { Frame::of_header(&self.head) } else { None };
    }

    /// Writes the first bytes marked; as long as they are no dump's, none, so that nobody takes the file for one.
    fn put_marked_head(&mut self) -> Result<(), WriteFailed> {
        let mut marked = self.head.clone();
        if mark_incomplete(&mut marked).is_some() { self.put_head(&marked) } else { Ok(()) }
    }

    /// Writes the first bytes.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn put_head(&self, head: &[u8]) -> Result<(), WriteFailed> {
        let len = self.end.min(head.len() as u64) as usize;
        self.output.write_at(head.get(..len).unwrap_or_default(), 0)
    }
}
