//! Blocks out of the bytes of a stream, which come in pieces of any size.

use super::stream::Unread;
use crate::stop::StopReason;
use coresift_format::{FLAT_HEADER_LEN, FlatBlock};
use std::ops::Range;

/// A block's bytes in a piece of the stream, all or some.
#[derive(Clone, Debug)]
pub struct Part {
    /// Offset in the stream of the block's header.
    pub block: u64,
    /// Where the bytes go.
    pub offset: u64,
    /// Where they are in the piece.
    pub place: Range<usize>,
}

/// How a stream ended.
pub struct End {
    /// Offset in the stream where.
    pub at: u64,
    /// Why, where it was not the end marker.
    pub cut: Option<String>,
    /// The signal by which, if that was it.
    pub stopped: Option<StopReason>,
    /// What the block that was cut should have brought.
    pub lost: Option<Range<u64>>,
    /// Blocks that arrived whole.
    pub blocks: u64,
    /// What follows the end marker.
    pub follows: Option<String>,
}

/// Where in the stream the parser is.
#[derive(Default)]
pub struct Parser {
    /// Offset in the stream.
    at: u64,
    /// The part of a block header that was read.
    header: Vec<u8>,
    /// Offset in the stream of the header of the block it is in.
    block: u64,
    /// Where the rest of the block goes, and how much of it there is.
    offset: u64,
    left: u64,
    blocks: u64,
    /// How it ended: by the end marker, or by a block that cannot be.
    over: Option<Option<String>>,
}

impl Parser {
    /// At the first block of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self { at: FLAT_HEADER_LEN as u64, ..Self::default() }
    }

    /// Goes through the next bytes of the stream, and adds what is to be written. Returns the place in `bytes` where the stream is
    /// over, if it is.
    pub fn parse(&mut self, bytes: &[u8], writes: &mut Vec<Part>) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - at);
                writes.push(Part { block: self.block, offset: self.offset, place: at..at + n });
                self.offset += n as u64;
                self.left -= n as u64;
                self.at += n as u64;
                at += n;
                self.blocks += u64::from(self.left == 0);
                continue;
            }
            let n = (FlatBlock::LEN - self.header.len()).min(bytes.len() - at);
            self.header.extend_from_slice(bytes.get(at..at + n).unwrap_or_default());
            self.at += n as u64;
            at += n;
            let Some(raw) = self.header.first_chunk() else { break };
            match FlatBlock::decode(raw) {
                FlatBlock::Bytes { offset, len } => {
                    (self.block, self.offset, self.left) = (self.at - FlatBlock::LEN as u64, offset, len);
                }
                FlatBlock::End => self.over = Some(None),
                FlatBlock::Bad { offset, size } => {
                    self.at -= FlatBlock::LEN as u64;
                    let text = format!(
                        "the block header at offset {} says {size} bytes for offset {offset}, which no writer writes",
                        self.at
                    );
                    self.over = Some(Some(text));
                }
            }
            self.header.clear();
            if self.over.is_some() {
                return Some(at);
            }
        }
        None
    }

    /// How the stream ended, where reading it was given up for `unread`.
    #[must_use]
    pub fn end(self, unread: Option<Unread>) -> End {
        let Self { at, header, offset, left, blocks, over, .. } = self;
        let lost = (left > 0).then(|| offset..offset + left);
        let place = match (header.len(), left) {
            (0, 0) => "in front of its end marker, which is missing".to_owned(),
            (0, left) => format!("inside a block, of which {left} bytes are missing"),
            _ => "inside a block header".to_owned(),
        };
        let at = at - header.len() as u64;
        let cut = match (over, &unread) {
            (Some(ended), _) => ended,
            (None, None) => Some(format!("the stream ends at offset {} {place}", at + header.len() as u64)),
            (None, Some(Unread::Failed(error))) => {
                Some(format!("the stream cannot be read at offset {at}, {place}: {error}"))
            }
            (None, Some(Unread::Stopped(why))) => Some(format!("{why} ended it at offset {at}, {place}")),
        };
        let stopped = if let Some(Unread::Stopped(why)) = unread { Some(why) } else { None };
        End { at, cut, stopped, lost, blocks, follows: None }
    }
}
