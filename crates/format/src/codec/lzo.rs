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

use super::matching::{BLOCK, TAIL, common, hash, word};
use std::fmt;
use std::hint::select_unpredictable;

/// Distances the two-byte match can reach.
const NEAR: usize = 1 << 11;
/// Distances the three-byte match with the long length field can reach.
const MIDDLE: usize = 1 << 14;
/// The greatest distance of all. The base of the far match is itself the end mark, so 16384 belongs to the middle one.
const FAR: usize = MIDDLE + 2 * (1 << 14) - 1;
/// A far match of distance 16384 and length 3 ends the stream.
const END: [u8; 3] = [0x11, 0, 0];

/// 8 KiB of table: of 11 to 13 bits the fastest by a hair.
const HASH_BITS: u32 = 12;
const _: () = assert!(BLOCK <= FAR);
/// Bytes a step of the writer may touch, used or not: a match of four, the length of a literal run, 16 literals.
pub(super) const SLACK: usize = 24;

/// A greedy compressor: the only candidate at a position is the last one whose five bytes had the same hash, though four that are
/// equal make a match: fewer, longer matches are faster to write.
///
/// As fast as liblzo2 on pages of a 6.12 kernel: 1.00 of its speed, 0.996 of its size (with a hash of four bytes 0.95 and 0.98). On
/// those of a 7.2 kernel 1.08 and 1.02 (0.93 and 0.99). What limits it is one mispredicted branch a sequence and the latency of
/// word, table, candidate and length: without bounds checks it is 2 % faster, and looking at two or four positions at once is
/// slower.
pub(super) struct Encoder {
    /// Positions by hash. Cleared for each block, which costs less than telling the positions of older pages apart: every entry is
    /// a position of this block, and 0, where nothing was entered, is a candidate like any other.
    table: [u16; 1 << HASH_BITS],
}

impl Default for Encoder {
    fn default() -> Self {
        Self { table: [0; 1 << HASH_BITS] }
    }
}

impl Encoder {
    /// Writes the stream of `page` to the front of `out`, which should be [`SLACK`] longer than the longest result of use. `None`:
    /// it does not fit.
    pub(super) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut writer = Writer { out, at: 0, page, done: 0, found: Match::NONE };
        for (i, block) in page.chunks(BLOCK).enumerate() {
            self.search(block, i * BLOCK, &mut writer)?;
        }
        writer.end()
    }

    /// Hands every match of `block`, which begins at `start` of the page, to the writer.
    fn search(&mut self, block: &[u8], start: usize, writer: &mut Writer<'_>) -> Option<()> {
        self.table.fill(0);
        let Some(last) = block.len().checked_sub(TAIL) else { return Some(()) };
        let (mut done, mut at) = (0, 1);
        loop {
            let mut from = loop {
                if at >= last {
                    return Some(());
                }
                let word = word(block, at)?;
                let slot = self.table.get_mut(hash::<5, HASH_BITS>(word))?;
                let from = usize::from(*slot);
                *slot = at as u16;
                if self::word(block, from)? as u32 == word as u32 {
                    break from;
                }
                // The longer nothing matches, the wider the steps: data that do not compress cost little. Steps twice as steep
                // are 4 % faster and lose 3 % of size.
                at += 1 + ((at - done) >> 5);
            };
            let mut length = 4 + common(block.get(from + 4..)?, block.get(at + 4..)?);
            // A wide step may have jumped over the start of the match. Looking back gains 0.8 % of size and costs no time.
            while at > done && from > 0 && block.get(at - 1) == block.get(from - 1) {
                (at, from, length) = (at - 1, from - 1, length + 1);
            }
            writer.step(start + at, Match { distance: at - from, length })?;
            at += length;
            done = at;
        }
    }
}

#[derive(Clone, Copy)]
struct Match {
    /// At least 1; 0 where there is no match to write.
    distance: usize,
    /// At least 4.
    length: usize,
}

impl Match {
    const NONE: Self = Self { distance: 0, length: 0 };
}

/// Writes instructions; every method is `None` when the output is full.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    page: &'a [u8],
    /// Bytes of the page that are written or part of `found`.
    done: usize,
    /// The last match, not yet written: its bytes hold the number of the literals after it.
    found: Match,
}

impl Writer<'_> {
    /// Writes the match before, and the literals from its end to `next`, where `found` begins.
    #[inline]
    fn step(&mut self, next: usize, found: Match) -> Option<()> {
        let literals = self.page.get(self.done..)?;
        let count = next - self.done;
        let Match { distance, length } = self.found;
        self.found = found;
        self.done = next + found.length;
        if count > 16 || distance > MIDDLE || length > 33 + 255 || distance == 0 {
            return self.any(distance, length, literals.get(..count)?);
        }
        // Nearly all steps: a fixed number of bytes is written, and those too many are written over by the next step.
        let (Some(literals), Some(room)) =
            (literals.first_chunk::<16>(), self.out.get_mut(self.at..)?.first_chunk_mut::<SLACK>())
        else {
            return self.any(distance, length, literals.get(..count)?);
        };
        let d = distance - 1;
        let with = if count < 4 { count } else { 0 };
        let (code, mut n) = if length <= 33 {
            let near = distance <= NEAR && length <= 8;
            let short = (length - 1) << 5 | (d & 7) << 2 | with | d >> 3 << 8;
            let long = 0x20 | (length - 2) | with << 8 | d << 10;
            (select_unpredictable(near, short, long), 3 - usize::from(near))
        } else {
            (0x20 | (length - 33) << 8 | with << 16 | d << 18, 4)
        };
        *room.first_chunk_mut()? = (code as u32).to_le_bytes();
        *room.get_mut(n)? = (count as u8).wrapping_sub(3);
        n += usize::from(count > 3);
        *room.get_mut(n..)?.first_chunk_mut()? = *literals;
        self.at += n + count;
        Some(())
    }

    /// A match of any distance (0: none) and length, and any number of literals.
    #[inline(never)]
    fn any(&mut self, distance: usize, length: usize, literals: &[u8]) -> Option<()> {
        let count = literals.len();
        if distance > 0 {
            self.found(distance, length, if count < 4 { count } else { 0 })?;
        }
        match count {
            1..=238 if self.at == 0 => self.put(&[17 + count as u8])?,
            0..=3 => {}
            4..=18 => self.put(&[count as u8 - 3])?,
            _ => {
                self.put(&[0])?;
                self.length(count - 18)?;
            }
        }
        self.put(literals)
    }

    /// The bytes of a match with `with` literals after it.
    fn found(&mut self, distance: usize, length: usize, with: usize) -> Option<()> {
        if distance <= NEAR && length <= 8 {
            let d = distance - 1;
            return self.put(&[((length - 1) << 5 | (d & 7) << 2 | with) as u8, (d >> 3) as u8]);
        }
        let (first, d, longest) = if distance <= MIDDLE {
            (0x20, distance - 1, 33)
        } else {
            let d = distance - MIDDLE;
            (0x10 | (d >> 14 << 3), d & 0x3fff, 9)
        };
        if length <= longest {
            self.put(&[(first | (length - 2)) as u8])?;
        } else {
            self.put(&[first as u8])?;
            self.length(length - longest)?;
        }
        self.put(&[(d << 2 | with) as u8, (d >> 6) as u8])
    }

    /// The rest of a length whose field was left 0: `length` counts from 1 above the field's greatest value.
    fn length(&mut self, mut length: usize) -> Option<()> {
        while length > 255 {
            self.put(&[0])?;
            length -= 255;
        }
        self.put(&[length as u8])
    }

    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.out.get_mut(self.at..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.at += bytes.len();
        Some(())
    }

    /// Writes what is left and the end mark, and returns the length of the stream.
    fn end(mut self) -> Option<usize> {
        let Match { distance, length } = self.found;
        self.any(distance, length, self.page.get(self.done..)?)?;
        self.put(&END)?;
        Some(self.at)
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
        while to < end {
            let n = (to - from).min(end - to);
            if n >= 8 {
                self.dst.copy_within(from..from + 8, to);
                from += 8;
                to += 8;
            } else {
                // From a start that stays, the distance grows to a multiple of the period, until it is at least 8.
                self.dst.copy_within(from..from + n, to);
                to += n;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(stream: &[u8], room: usize) -> Result<Vec<u8>, DecodeError> {
        let mut page = vec![0x77; room];
        let n = decompress(stream, &mut page)?;
        page.truncate(n);
        Ok(page)
    }

    /// What liblzo2 2.10 made of [`text`], fast and at its best (lzo1x_1, lzo1x_999).
    const FAST: &str = "07737761707065722f300020a60000e11a3120043c03026b776f726b7b1f3a314827c0000461626373776162e4\
        09200000000000000000000000000000b968040e0000000000000000000000000000000000110000";
    const BEST: &str = "1b737761707065722f300020a60000e11a312004b400026b776f726b7b1f3a3148275300616263550862200000\
        0000000000e6680420000000000000ca6804110000";

    fn hex(text: &str) -> Vec<u8> {
        text.as_bytes()
            .chunks_exact(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn text() -> Vec<u8> {
        let mut once = b"swapper/0".to_vec();
        once.extend([0; 200]);
        once.extend(b"swapper/1");
        once.extend([0; 37]);
        once.extend(b"kworker/0:1H");
        once.extend([0; 9]);
        once.extend(b"abcswab");
        once.into_iter().cycle().take(4096).collect()
    }

    #[test]
    fn streams_of_liblzo2_are_read() {
        for stream in [FAST, BEST] {
            assert!(decoded(&hex(stream), 4096) == Ok(text()));
        }
    }

    #[test]
    fn our_streams_are_no_longer_than_those_of_liblzo2() {
        let mut out = vec![0; 4096];
        let n = Encoder::default().compress(&text(), &mut out).unwrap();
        assert!(n <= FAST.len() / 2, "{n}");
        assert!(decoded(&out[..n], 4096) == Ok(text()));
    }

    // The next two streams were read by liblzo2 with the same result.

    #[test]
    fn matches_of_two_and_three_bytes_are_read_by_the_state_before() {
        let mut stream = vec![18, b'a', 0x20];
        stream.extend([0; 7]);
        stream.extend([230, 0, 0, 1]); // 2048 times the byte before
        stream.extend(b"wxyz\x01\x01q\x04\x00\x11\x00\x00");
        let page = decoded(&stream, 4096).unwrap();
        assert_eq!(page.len(), 2059);
        assert!(page.ends_with(b"aaawxyzaaaqaq"));
    }

    #[test]
    fn far_matches_are_read_with_both_halves_of_their_distance() {
        let mut stream = b"\x14abc\x20".to_vec();
        stream.extend([0; 156]);
        stream.extend([187, 2 << 2, 0]); // 40000 bytes from 3 back
        stream.extend(b"\x18\x05\x1e\x00xy\x12\xfc\xff\x11\x00\x00");
        let page = decoded(&stream, 65536).unwrap();
        assert_eq!(page.len(), 40023);
        assert!(page.ends_with(b"abcabcabcabcabcabcabcabcxybcab"));
    }

    #[test]
    fn each_kind_of_damage_has_its_name() {
        let good = hex(FAST);
        for cut in 0..good.len() {
            assert!(matches!(decoded(&good[..cut], 4096), Err(DecodeError::Ends(at)) if at <= cut), "{cut}");
        }
        assert_eq!(decoded(&[&good[..], &[0]].concat(), 4096), Err(DecodeError::Trailing(good.len())));
        assert!(matches!(decoded(&good, 4095), Err(DecodeError::TooMuch(_))));
        assert_eq!(decoded(b"\x12a\x40\x01", 4096), Err(DecodeError::Distance(4)));
        assert_eq!(decoded(&[0; 4096], 4096), Err(DecodeError::Ends(4096)));
    }

    #[test]
    fn overlapping_matches_repeat_their_period() {
        for distance in 1..40 {
            for length in 3..70 {
                let start: Vec<u8> = (0..distance as u8).collect();
                let mut page = vec![0; distance + length];
                let mut reader = Reader { src: &start, at: 0, dst: &mut page, made: 0 };
                reader.literals(distance).unwrap();
                reader.copy(distance, length).unwrap();
                let want: Vec<u8> = start.iter().copied().cycle().take(distance + length).collect();
                assert_eq!(page, want, "{distance} {length}");
            }
        }
    }
}
