//! Writing what a stream brings, with the mark of an incomplete file until it is known to be whole.

use super::{End, LostRange, Unflattened};
use crate::target::{Output, WriteFailed};
use coresift_format::{Container, MARK_WITHIN, Written, mark_incomplete};
use std::ops::Range;

/// Bytes of the stream, and where they go.
pub struct Piece {
    /// What was read.
    pub bytes: Vec<u8>,
    /// File offset, and place in `bytes`, of each write.
    pub writes: Vec<(u64, Range<usize>)>,
}

/// The file that is being made.
pub struct Sink {
    output: Output,
    /// The first bytes as they came.
    head: Vec<u8>,
    container: Option<Container>,
    written: Written,
    bytes: u64,
    end: u64,
    failed: Option<WriteFailed>,
}

impl Sink {
    /// A file of which nothing is there yet.
    pub fn new(output: Output) -> Self {
        let head = vec![0; MARK_WITHIN];
        Self { output, head, container: None, written: Written::default(), bytes: 0, end: 0, failed: None }
    }

    /// Writes a piece; false where that failed, now or before.
    pub fn take(&mut self, piece: &Piece) -> bool {
        for (offset, range) in &piece.writes {
            if self.failed.is_some() {
                break;
            }
            let bytes = piece.bytes.get(range.clone()).unwrap_or_default();
            if let Err(failed) = self.write(*offset, bytes) {
                self.failed = Some(failed);
            }
        }
        self.failed.is_none()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteFailed> {
        let end = offset + bytes.len() as u64;
        self.written.add(offset..end);
        self.bytes += bytes.len() as u64;
        self.end = self.end.max(end);
        let inside = (MARK_WITHIN as u64).saturating_sub(offset).min(bytes.len() as u64) as usize;
        let (first, rest) = bytes.split_at(inside);
        if !first.is_empty() {
            let at = offset as usize;
            if let Some(place) = self.head.get_mut(at..at + inside) {
                place.copy_from_slice(first);
            }
            self.put_marked_head()?;
        }
        if rest.is_empty() { Ok(()) } else { self.output.write_at(rest, offset + inside as u64) }
    }

    /// Writes the first bytes marked; as long as they are no dump's, none, so that nobody takes the file for one.
    fn put_marked_head(&mut self) -> Result<(), WriteFailed> {
        let mut marked = self.head.clone();
        self.container = mark_incomplete(&mut marked);
        if self.container.is_some() { self.put_head(&marked) } else { Ok(()) }
    }

    fn put_head(&self, head: &[u8]) -> Result<(), WriteFailed> {
        let len = self.end.min(head.len() as u64) as usize;
        self.output.write_at(head.get(..len).unwrap_or_default(), 0)
    }

    /// Ends the file, and says in `made` what was made. Returns what arrived of a stream that was cut short.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, end: End, made: &mut Unflattened) -> Result<Option<Written>, WriteFailed> {
        made.container = self.container.map(|c| if c == Container::Elf { "elf" } else { "kdump" });
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        made.complete = end.cut.is_none();
        (made.stream_bytes, made.blocks, made.cut, made.follows) = (end.at, end.blocks, end.cut, end.follows);
        (made.bytes, made.file_bytes) = (self.bytes, self.end);
        self.output.sync()?;
        if made.complete {
            self.put_head(&self.head)?;
            self.output.sync()?;
            return Ok(None);
        }
        if let Some(lost) = end.lost {
            made.lost.push(LostRange { start: lost.start, end: lost.end, what: "the rest of the block that was cut" });
        }
        self.written.settle();
        Ok(Some(self.written))
    }
}
