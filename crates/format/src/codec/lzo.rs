//! LZO1X, written from the description of its byte stream.
//!
//! A stream is a sequence of instructions. Each copies from the output already made (a match), or takes bytes from the stream
//! (literals); a match may carry up to three literals with it, their number in the low two bits of its byte before last. `D`, `S`,
//! `L` and `H` are bits of distance, of that number, of length and of high distance; `…` is a length continued: a field of zero is
//! followed by zero bytes worth 255 each and one byte that ends them.
//!
//! | first byte | then | meaning | state after |
//! |---|---|---|---|
//! | `1LLDDDSS` | `DDDDDDDD` | match of 5 + L, distance 1 + D (11 bits, low three in the first byte) | S |
//! | `01LDDDSS` | `DDDDDDDD` | match of 3 + L, the same distance | S |
//! | `001LLLLL` | …, `DDDDDDSS DDDDDDDD` | match of 2 + L (0: 33 + …), distance 1 + D | S |
//! | `0001HLLL` | …, `DDDDDDSS DDDDDDDD` | match of 2 + L (0: 9 + …), distance 16384 + D + 16384 H; a sum of 16384 ends the stream | S |
//! | `0000LLLL` in state 0 | … | 3 + L literals (0: 18 + …) | 4 |
//! | `0000DDSS` in state 1 to 3 | `DDDDDDDD` | match of 2, distance 1 + D (10 bits, low two in the first byte) | S |
//! | `0000DDSS` in state 4 | `DDDDDDDD` | match of 3, distance 2049 + D | S |
//!
//! The state is the number of literals the last instruction copied: 0 to 3 after a match, 4 after a literal run. At the very start a
//! byte above 17 is a run of that many less 17 literals.

use std::fmt;

/// Distances the two-byte match can reach.
const NEAR: usize = 1 << 11;
/// Distances the three-byte match with the long length field can reach.
const MIDDLE: usize = 1 << 14;
/// The greatest distance of all. The base of the far match is itself the end mark, so 16384 belongs to the middle one.
const FAR: usize = MIDDLE + 2 * (1 << 14) - 1;
/// A far match of distance 16384 and length 3 ends the stream.
const END: [u8; 3] = [0x11, 0, 0];

const HASH_BITS: u32 = 13;
/// Positions are 16 bits: a longer page is compressed as blocks of this size.
const BLOCK: usize = 1 << 16;
/// No match starts in this many bytes at the end of a page.
const TAIL: usize = 12;

/// A greedy compressor: at each position the last place with the same hash of four bytes is the only candidate.
///
/// The table survives from page to page without being cleared: positions of a page are stored above those of all pages before it, so
/// that what an older page left is recognised by being below; it is cleared when 16 bits are used up. What the table held before
/// never changes the output.
pub(super) struct Encoder {
    table: [u16; 1 << HASH_BITS],
    /// What position 0 of the next block is stored as. At least 1, for 0 is an empty slot.
    base: usize,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { table: [0; 1 << HASH_BITS], base: 1 }
    }
}

impl Encoder {
    /// Writes the stream of `page` to the front of `out`. `None`: it does not fit.
    pub(super) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut writer = Writer { out, at: 0 };
        let mut literals: &[u8] = &[];
        let mut blocks = page.chunks(BLOCK).peekable();
        while let Some(block) = blocks.next() {
            literals = self.block(block, &mut writer)?;
            if blocks.peek().is_some() {
                writer.literals(literals, literals.len())?;
                literals = &[];
            }
        }
        writer.literals(literals, literals.len())?;
        writer.put(&END)?;
        Some(writer.at)
    }

    /// Writes all of `block` up to its last match, and returns what follows that.
    fn block<'a>(&mut self, block: &'a [u8], writer: &mut Writer<'_>) -> Option<&'a [u8]> {
        if self.base + block.len() > BLOCK {
            self.table.fill(0);
            self.base = 1;
        }
        let base = self.base;
        self.base += block.len();
        let last = block.len().saturating_sub(TAIL);
        let mut done = 0;
        let mut at = 1;
        self.enter(block, 0, base);
        loop {
            // Positions tried since the last match widen the steps, so that data without matches cost little.
            let from = loop {
                if at >= last {
                    return block.get(done..);
                }
                let word = word(block, at)?;
                let slot = self.table.get_mut(hash(word))?;
                let from = usize::from(*slot).wrapping_sub(base);
                *slot = (base + at) as u16;
                if from < at && self::word(block, from) == Some(word) && at - from <= FAR {
                    break from;
                }
                at += 1 + ((at - done) >> 5);
            };
            let length = 4 + common(block.get(from + 4..)?, block.get(at + 4..)?);
            writer.literals(block.get(done..)?, at - done)?;
            writer.match_(at - from, length)?;
            at += length;
            done = at;
        }
    }

    fn enter(&mut self, block: &[u8], at: usize, base: usize) {
        if let Some(slot) = word(block, at).and_then(|word| self.table.get_mut(hash(word))) {
            *slot = (base + at) as u16;
        }
    }
}

#[inline]
fn word(block: &[u8], at: usize) -> Option<u32> {
    block.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

#[inline]
fn hash(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// Number of bytes from the start on that are equal.
#[inline]
fn common(a: &[u8], b: &[u8]) -> usize {
    let (mut n, (aw, _), (bw, _)) = (0, a.as_chunks(), b.as_chunks());
    for (x, y) in aw.iter().zip(bw) {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return n + (differ.trailing_zeros() / 8) as usize;
        }
        n += 8;
    }
    let rest = a.get(n..).unwrap_or_default().iter().zip(b.get(n..).unwrap_or_default());
    n + rest.take_while(|(x, y)| x == y).count()
}

/// Writes instructions; every method is `None` when the output is full.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.out.get_mut(self.at..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.at += bytes.len();
        Some(())
    }

    /// The rest of a length whose field was left 0: `length` counts from 1 above the field's greatest value.
    #[inline]
    fn length(&mut self, mut length: usize) -> Option<()> {
        while length > 255 {
            self.put(&[0])?;
            length -= 255;
        }
        self.put(&[length as u8])
    }

    /// The first `count` bytes of `from` as literals. What follows them in `from` may be copied along, and is written over later.
    #[inline]
    fn literals(&mut self, from: &[u8], count: usize) -> Option<()> {
        match (self.at, count) {
            (_, 0) => return Some(()),
            (0, 1..=238) => self.put(&[17 + count as u8])?,
            // A run of up to three is part of the match before it.
            (at, 1..=3) => *self.out.get_mut(at.checked_sub(2)?)? |= count as u8,
            (_, 4..=18) => self.put(&[count as u8 - 3])?,
            _ => {
                self.put(&[0])?;
                self.length(count - 18)?;
            }
        }
        let room = self.out.get_mut(self.at..)?;
        match (room.first_chunk_mut::<16>(), from.first_chunk::<16>()) {
            (Some(room), Some(from)) if count <= 16 => *room = *from,
            _ => room.get_mut(..count)?.copy_from_slice(from.get(..count)?),
        }
        self.at += count;
        Some(())
    }

    /// A match of at least 3 bytes.
    #[inline]
    fn match_(&mut self, distance: usize, length: usize) -> Option<()> {
        if distance <= NEAR && length <= 8 {
            let d = distance - 1;
            return self.put(&[((length - 1) << 5 | (d & 7) << 2) as u8, (d >> 3) as u8]);
        }
        let (first, d, longest) = if distance <= MIDDLE {
            (0x20, distance - 1, 33)
        } else {
            let d = distance - MIDDLE;
            (0x10 | (d >> 14 << 3), d & 0x3fff, 9)
        };
        if length <= longest {
            return self.put(&[(first | (length - 2)) as u8, (d << 2) as u8, (d >> 6) as u8]);
        }
        self.put(&[first as u8])?;
        self.length(length - longest)?;
        self.put(&[(d << 2) as u8, (d >> 6) as u8])
    }
}

/// What is wrong with a stream, and at which byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeError {
    /// It ends inside an instruction, or without the end mark.
    Ends(usize),
    /// A match reaches back before the first byte of the page.
    Distance(usize),
    /// It holds more than a page.
    TooMuch(usize),
    /// Bytes follow the end mark.
    Trailing(usize),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ends(at) => write!(f, "the stream ends at byte {at} without the end mark"),
            Self::Distance(at) => write!(f, "the match before byte {at} reaches back before the page"),
            Self::TooMuch(at) => write!(f, "the instruction before byte {at} goes beyond the end of the page"),
            Self::Trailing(at) => write!(f, "bytes follow the end mark at byte {at}"),
        }
    }
}

/// Decodes `src` to the front of `dst` and returns the number of bytes made. Those behind them are unspecified.
pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<usize, DecodeError> {
    let mut r = Reader { src, at: 0, dst, made: 0 };
    let mut state = 0;
    if let Some(&first) = src.first()
        && first > 17
    {
        r.at = 1;
        let count = usize::from(first) - 17;
        r.literals(count)?;
        state = count.min(4);
    }
    loop {
        let first = usize::from(r.byte()?);
        let (length, distance, literals) = match first {
            64.. => {
                let high = usize::from(r.byte()?);
                ((first >> 5) + 1, 1 + (first >> 2 & 7) + (high << 3), first & 3)
            }
            32.. => {
                let length = r.length(first & 31, 31)?;
                let tail = r.tail()?;
                (2 + length, 1 + (tail >> 2), tail & 3)
            }
            16.. => {
                let length = r.length(first & 7, 7)?;
                let tail = r.tail()?;
                let distance = MIDDLE + (first >> 3 & 1) * MIDDLE + (tail >> 2);
                if distance == MIDDLE {
                    return if r.at == src.len() { Ok(r.made) } else { Err(DecodeError::Trailing(r.at)) };
                }
                (2 + length, distance, tail & 3)
            }
            _ if state == 0 => {
                let count = 3 + r.length(first, 15)?;
                r.literals(count)?;
                state = 4;
                continue;
            }
            _ => {
                let d = (first >> 2) + (usize::from(r.byte()?) << 2);
                if state == 4 { (3, 1 + NEAR + d, first & 3) } else { (2, 1 + d, first & 3) }
            }
        };
        r.copy(distance, length)?;
        r.literals(literals)?;
        state = literals;
    }
}

struct Reader<'a> {
    src: &'a [u8],
    at: usize,
    dst: &'a mut [u8],
    made: usize,
}

impl Reader<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.src.get(self.at).ok_or(DecodeError::Ends(self.at))?;
        self.at += 1;
        Ok(byte)
    }

    /// The two bytes that end the longer matches.
    #[inline]
    fn tail(&mut self) -> Result<usize, DecodeError> {
        let tail = self.src.get(self.at..).and_then(<[u8]>::first_chunk).ok_or(DecodeError::Ends(self.at))?;
        self.at += 2;
        Ok(usize::from(u16::from_le_bytes(*tail)))
    }

    /// A length whose field is `field`, continued after `max` when that is 0. Cannot overflow: 255 a byte of a slice.
    #[inline]
    fn length(&mut self, field: usize, max: usize) -> Result<usize, DecodeError> {
        if field != 0 {
            return Ok(field);
        }
        let mut length = max;
        loop {
            match self.byte()? {
                0 => length = length.saturating_add(255),
                last => return Ok(length.saturating_add(usize::from(last))),
            }
        }
    }

    #[inline]
    fn literals(&mut self, count: usize) -> Result<(), DecodeError> {
        let from = self.src.get(self.at..).unwrap_or_default();
        let to = self.dst.get_mut(self.made..).unwrap_or_default();
        match (to.first_chunk_mut::<16>(), from.first_chunk::<16>()) {
            (Some(to), Some(from)) if count <= 16 => *to = *from,
            _ => {
                let from = from.get(..count).ok_or(DecodeError::Ends(self.src.len()))?;
                to.get_mut(..count).ok_or(DecodeError::TooMuch(self.at))?.copy_from_slice(from);
            }
        }
        self.at += count;
        self.made += count;
        Ok(())
    }

    /// Copies `length` bytes from `distance` (at least 1) back. The two may overlap: the bytes in between then repeat.
    #[inline]
    fn copy(&mut self, distance: usize, length: usize) -> Result<(), DecodeError> {
        let start = self.made.checked_sub(distance).ok_or(DecodeError::Distance(self.at))?;
        let end = self.made + length;
        if end > self.dst.len() {
            return Err(DecodeError::TooMuch(self.at));
        }
        let (mut from, mut to) = (start, self.made);
        self.made = end;
        let room = self.dst.len();
        while to < end {
            // What lies between is the period, so twice as much can be copied each time.
            let n = (to - from).min(end - to);
            if n >= 8 && to + 8 <= room {
                self.dst.copy_within(from..from + 8, to);
                from += 8;
                to += 8;
            } else {
                self.dst.copy_within(from..from + n, to);
                to += n;
            }
        }
        Ok(())
    }
}
