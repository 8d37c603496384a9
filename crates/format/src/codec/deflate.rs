//! Deflate (RFC 1951) in a zlib stream (RFC 1950), made for pages: small tables, one block, one pass.
//!
//! ```text
//! page ─ search ─> sequences: literals, then a match ─ counts ─> Huffman codes ─┬─> dynamic block ─┐
//!                                                              fixed codes ─────┴─> fixed block ───┴─> the shorter
//! ```
//!
//! A general encoder spends a good part of its time on a page with tables made for 32 KiB of history: libdeflate's level 1 clears
//! 128 KiB. With tables for a page this is 1.55 times as fast as libdeflate and 3.2 times as fast as zlib at their level 1 (4 KiB pages of
//! a 6.12 kernel: 517, 333 and 160 MB/s; 24.33, 24.36 and 24.76 % of size). The levels above are libdeflate's.

mod block_header;
mod writer;

use super::huffman::{Builder, Codes};
use super::matching::{BLOCK, TAIL, common, hash, word};
use block_header::BlockHeader;
use std::hint::select_unpredictable;
use writer::Writer;

/// Bytes a step of the writer may touch, used or not.
pub(super) const SLACK: usize = 8;

/// Two candidates for each of 2048 hashes of four bytes, 8 KiB: with one it is 5 % faster and 1.2 % larger, with twice the table
/// 0.1 % smaller.
const BUCKETS: usize = 1 << 11;
const HASH_BITS: u32 = BUCKETS.ilog2();

/// Symbols of literals, the end and lengths; of distances; of code lengths.
const LITLEN: usize = 286;
const DISTANCES: usize = 30;
const LENGTHS: usize = 19;
/// The symbol that ends a block.
const END: usize = 256;
/// Four literals of at most this many bits fit into the writer's word.
const LONGEST_LITLEN: usize = 14;
const LONGEST_DISTANCE: usize = 15;
const LONGEST_LENGTH: usize = 7;
/// The longest match.
const LONGEST_MATCH: usize = 258;

/// Extra bits of the length symbols.
const LENGTH_EXTRA: [u8; 29] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
/// The order in which the lengths of the codes for code lengths are written.
const LENGTH_ORDER: [usize; LENGTHS] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// The symbol of a length, its extra bits and their number.
#[derive(Clone, Copy)]
struct LengthCode {
    symbol: u16,
    extra: u8,
    bits: u8,
}

/// By length less 3.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler, for which an index out of range is an error")]
const LENGTH_CODES: [LengthCode; 256] = {
    let mut table = [LengthCode { symbol: 285, extra: 0, bits: 0 }; 256];
    let (mut symbol, mut length) = (0, 0);
    while symbol < 28 {
        let bits = LENGTH_EXTRA[symbol];
        let mut extra = 0;
        // The last length of symbol 284 has one of its own.
        while extra < 1 << bits && length < 255 {
            table[length] = LengthCode { symbol: 257 + symbol as u16, extra, bits };
            (extra, length) = (extra + 1, length + 1);
        }
        symbol += 1;
    }
    table
};

/// The codes of a fixed block: lengths 8, 9, 7 and 8 in this order of symbols; distances have five bits.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler, for which an index out of range is an error")]
const FIXED: (Codes<LITLEN>, Codes<DISTANCES>) = {
    let (mut litlen, mut distances) = ([0; LITLEN], [0; DISTANCES]);
    let mut i = 0;
    while i < LITLEN {
        let (code, length) = match i {
            0..144 => (0x30 + i, 8),
            144..256 => (0x190 + i - 144, 9),
            256..280 => (i - 256, 7),
            _ => (0xc0 + i - 280, 8),
        };
        litlen[i] = (code as u16).reverse_bits() as u32 >> (16 - length) | length << 16;
        i += 1;
    }
    i = 0;
    while i < DISTANCES {
        distances[i] = (i as u16).reverse_bits() as u32 >> 11 | 5 << 16;
        i += 1;
    }
    (litlen, distances)
};

/// The symbol of a distance, given less 1, and the number of its extra bits, which are the lowest of that.
#[inline]
fn distance_code(less_1: usize) -> (usize, u32) {
    let Some(bits) = less_1.checked_ilog2().and_then(|log| log.checked_sub(1)) else { return (less_1, 0) };
    (2 * bits as usize + (less_1 >> bits), bits)
}

/// Literals, and the match after them. The last of a block has none, and a length of 0.
#[derive(Clone, Copy)]
struct Sequence {
    literals: u16,
    length: u16,
    distance_less_1: u16,
}

/// An encoder. One a thread.
pub(super) struct Encoder {
    /// The last two positions by hash, the later first. Cleared for each block: see the table of LZO.
    table: [[u16; 2]; BUCKETS],
    sequences: Vec<Sequence>,
    litlen_counts: [u32; LITLEN],
    distance_counts: [u32; DISTANCES],
    litlen: Codes<LITLEN>,
    distances: Codes<DISTANCES>,
    builder: Builder,
}

impl Encoder {
    /// An encoder for pages of `page` bytes.
    pub(super) fn new(page: usize) -> Self {
        Self {
            table: [[0; 2]; BUCKETS],
            // Every match has four bytes or more.
            sequences: Vec::with_capacity(page.min(BLOCK) / 4 + 2),
            litlen_counts: [0; LITLEN],
            distance_counts: [0; DISTANCES],
            litlen: [0; LITLEN],
            distances: [0; DISTANCES],
            builder: Builder::default(),
        }
    }

    /// Writes the stream of `page` to the front of `out`, which should be [`SLACK`] longer than the longest result of use. `None`:
    /// it does not fit, or hardly would.
    pub(super) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut writer = Writer { out, at: 0, bits: 0, count: 0 };
        // Deflate with a window of 32 KiB, by the fastest algorithm.
        writer.add(0x0178, 16);
        writer.flush()?;
        let blocks = page.len().div_ceil(BLOCK);
        for (i, block) in page.chunks(BLOCK).enumerate() {
            let literals = self.search(block)?;
            if blocks == 1 && literals > page.len() / 16 * 15 && self.noise(literals as u64) {
                return None;
            }
            self.block(block, i + 1 == blocks, &mut writer)?;
        }
        writer.add(0, writer.count.wrapping_neg() % 8);
        writer.flush()?;
        let mut sum = libdeflater::Adler32::new();
        sum.update(page);
        writer.add(u64::from(sum.sum().swap_bytes()), 32);
        writer.flush()?;
        Some(writer.at)
    }

    /// Finds the sequences of a block and counts their symbols. Returns the number of literals.
    fn search(&mut self, block: &[u8]) -> Option<usize> {
        self.table.fill([0; 2]);
        self.sequences.clear();
        self.litlen_counts.fill(0);
        self.distance_counts.fill(0);
        *self.litlen_counts.get_mut(END)? = 1;
        let last = block.len().saturating_sub(TAIL);
        let (mut done, mut literals, mut at) = (0, 0, 1);
        while at < last {
            let word = word(block, at)?;
            let bucket = self.table.get_mut(hash::<4, HASH_BITS>(word))?;
            let [near, far] = bucket.map(usize::from);
            *bucket = [at as u16, bucket[0]];
            let (a, b) = (self::word(block, near)? ^ word, self::word(block, far)? ^ word);
            if a as u32 != 0 && b as u32 != 0 {
                // Wider steps where nothing matches.
                at += 1 + ((at - done) >> 6);
                continue;
            }
            // The farther one where it has a byte more among the first eight.
            let mut from = select_unpredictable(b.trailing_zeros() / 8 > a.trailing_zeros() / 8, far, near);
            let mut length = common(block.get(from..)?, block.get(at..)?);
            while at > done && from > 0 && block.get(at - 1) == block.get(from - 1) {
                (at, from, length) = (at - 1, from - 1, length + 1);
            }
            self.take(block.get(done..at)?, at - from, length)?;
            literals += at - done;
            let start = at;
            at += length;
            done = at;
            // Two positions of the match, the second and the last but one, make the output 1 % smaller, all of them no more.
            if at < last {
                for at in [start + 1, at - 2] {
                    let bucket = self.table.get_mut(hash::<4, HASH_BITS>(self::word(block, at)?))?;
                    *bucket = [at as u16, bucket[0]];
                }
            }
        }
        let rest = block.get(done..)?;
        self.count(rest)?;
        self.sequences.push(Sequence { literals: rest.len() as u16, length: 0, distance_less_1: 0 });
        Some(literals + rest.len())
    }

    /// Whether no code makes the literals much smaller: of 256 values all equally likely, a page of 4096 has an effective number
    /// (the inverse of the chance that two are equal) of 241, give or take 1.3; 232 leaves less than 2 % to gain, before the cost of
    /// the code itself. Pages that do not compress take a third of the time, all pages 2.4 % less; the size is 0.001 % more.
    fn noise(&self, literals: u64) -> bool {
        let squares = self.litlen_counts.iter().take(END).map(|n| u64::from(*n) * u64::from(*n)).sum::<u64>();
        squares * 232 <= literals * literals
    }

    #[inline]
    fn count(&mut self, literals: &[u8]) -> Option<()> {
        for byte in literals {
            *self.litlen_counts.get_mut(usize::from(*byte))? += 1;
        }
        Some(())
    }

    /// Takes up literals and the match after them, in pieces where it is too long for one.
    #[inline]
    fn take(&mut self, literals: &[u8], distance: usize, mut length: usize) -> Option<()> {
        self.count(literals)?;
        let mut literals = literals.len() as u16;
        let distance_less_1 = (distance - 1) as u16;
        let (symbol, _) = distance_code(distance - 1);
        while length > 0 {
            // A piece has three bytes or more.
            let piece = if length > LONGEST_MATCH { (length - 3).min(LONGEST_MATCH) } else { length };
            *self.litlen_counts.get_mut(usize::from(LENGTH_CODES.get(piece - 3)?.symbol))? += 1;
            *self.distance_counts.get_mut(symbol)? += 1;
            self.sequences.push(Sequence { literals, length: piece as u16, distance_less_1 });
            literals = 0;
            length -= piece;
        }
        Some(())
    }

    /// Writes the sequences as the block that is shorter, if that fits.
    fn block(&mut self, block: &[u8], last: bool, writer: &mut Writer<'_>) -> Option<()> {
        let litlen = self.builder.build(&self.litlen_counts, LONGEST_LITLEN, &mut self.litlen)?;
        let distances = self.builder.build(&self.distance_counts, LONGEST_DISTANCE, &mut self.distances).unwrap_or(0);
        let header = BlockHeader::new(&self.litlen, &self.distances, &mut self.builder)?;
        let count = |from: usize, to: usize| self.litlen_counts.get(from..to).map(|n| n.iter().sum::<u32>());
        let matches: u32 = self.distance_counts.iter().sum();
        let fixed = 8 * count(0, 144)? + 9 * count(144, 256)? + 7 * count(256, 280)? + 8 * count(280, LITLEN)?;
        let (fixed, dynamic) = (fixed + 5 * matches, litlen + distances + header.bits);
        let lengths = self.litlen_counts.iter().skip(END + 1).zip(LENGTH_EXTRA).map(|(n, bits)| n * u32::from(bits));
        let far = self.distance_counts.iter().skip(2).zip(0u32..).map(|(n, i)| n * (i / 2));
        let bits = fixed.min(dynamic) + lengths.sum::<u32>() + far.sum::<u32>();
        // Besides these the type of the block, up to a byte begun before, and the sum.
        if writer.at + (bits as usize + 3 + 7).div_ceil(8) + 4 + SLACK > writer.out.len() {
            return None;
        }
        if fixed <= dynamic {
            writer.add(u64::from(last) | 1 << 1, 3);
            self.data(block, &FIXED.0, &FIXED.1, writer)
        } else {
            writer.add(u64::from(last) | 2 << 1, 3);
            header.write(writer)?;
            self.data(block, &self.litlen, &self.distances, writer)
        }
    }

    fn data(
        &self,
        block: &[u8],
        litlen: &Codes<LITLEN>,
        distances: &Codes<DISTANCES>,
        writer: &mut Writer<'_>,
    ) -> Option<()> {
        writer.flush()?;
        let mut rest = block;
        for sequence in &self.sequences {
            let (literals, tail) = rest.split_at_checked(usize::from(sequence.literals))?;
            let (fours, few) = literals.as_chunks::<4>();
            for four in fours {
                for byte in four {
                    writer.code(*litlen.get(usize::from(*byte))?);
                }
                writer.flush()?;
            }
            for byte in few {
                writer.code(*litlen.get(usize::from(*byte))?);
            }
            writer.flush()?;
            let Some(length) = sequence.length.checked_sub(3) else { break };
            let length = LENGTH_CODES.get(usize::from(length))?;
            writer.code(*litlen.get(usize::from(length.symbol))?);
            writer.add(u64::from(length.extra), u32::from(length.bits));
            let distance = usize::from(sequence.distance_less_1);
            let (symbol, bits) = distance_code(distance);
            writer.code(*distances.get(symbol)?);
            writer.add(distance as u64 & ((1 << bits) - 1), bits);
            writer.flush()?;
            rest = tail.get(usize::from(sequence.length)..)?;
        }
        writer.code(*litlen.get(END)?);
        writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stream of `page`, read back by libdeflate.
    fn stream(page: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![0xa5; page.len() + SLACK];
        let n = Encoder::new(page.len()).compress(page, &mut out)?;
        out.truncate(n);
        let mut back = vec![0x5a; page.len()];
        let made = libdeflater::Decompressor::new().zlib_decompress(&out, &mut back).unwrap();
        assert!(made == page.len() && back == page, "{page:02x?}");
        Some(out)
    }

    /// The type of the first block: 1 fixed, 2 dynamic.
    fn kind(stream: &[u8]) -> u8 {
        stream[2] >> 1 & 3
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut seed = 1u32;
        let next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    #[test]
    fn runs_of_any_length_are_read_back() {
        for run in 1..1100 {
            for before in [0, 1, 40] {
                let mut page = noise(before);
                page.extend(vec![0; run]);
                page.extend(b"the last words of a page are literals");
                page.resize(2048, 0xff);
                stream(&page).unwrap();
            }
        }
    }

    #[test]
    fn matches_of_any_distance_are_read_back() {
        let piece = noise(40);
        for distance in (1..40).chain((40..32_700).step_by(97)) {
            let mut page = vec![0xee; 32_768];
            page[..40].copy_from_slice(&piece);
            page[distance..distance + 40].copy_from_slice(&piece);
            stream(&page).unwrap();
        }
    }

    #[test]
    fn the_shorter_kind_of_block_is_written() {
        let mut page = vec![0; 512];
        page[100..108].copy_from_slice(b"swapper!");
        assert_eq!(kind(&stream(&page).unwrap()), 1);
        let text = noise(4096).iter().map(|b| b % 10).collect::<Vec<_>>();
        assert_eq!(kind(&stream(&text).unwrap()), 2);
    }

    #[test]
    fn blocks_without_matches_have_no_distances() {
        let page: Vec<u8> = noise(4096).iter().map(|b| b & 0x3f).collect();
        let n = stream(&page).unwrap().len();
        assert!((3072..3300).contains(&n), "{n}");
        for len in 1..40 {
            // Too short to shrink, not too short to be looked at.
            assert_eq!(stream(&noise(len)), None, "{len}");
        }
    }

    #[test]
    fn noise_is_given_up_unless_the_rest_of_the_page_is_not_noise() {
        assert_eq!(stream(&noise(4096)), None);
        let mut page = noise(65_536);
        assert_eq!(stream(&page), None);
        page[32_768..].fill(7);
        assert!(stream(&page).unwrap().len() < 33_500);
        let mut page = noise(4096);
        page[..1024].fill(7);
        assert!(stream(&page).unwrap().len() < 3300);
    }

    #[test]
    fn the_tables_are_those_of_the_rfc() {
        let code = |length: usize| (LENGTH_CODES[length - 3].symbol, LENGTH_CODES[length - 3].extra);
        for (length, symbol, extra) in
            [(3, 257, 0), (10, 264, 0), (11, 265, 0), (12, 265, 1), (114, 279, 15), (257, 284, 30), (258, 285, 0)]
        {
            assert_eq!(code(length), (symbol, extra), "{length}");
        }
        for (distance, symbol, bits) in
            [(1, 0, 0), (4, 3, 0), (5, 4, 1), (7, 5, 1), (9, 6, 2), (4097, 24, 11), (32_768, 29, 13)]
        {
            assert_eq!(distance_code(distance - 1), (symbol, bits), "{distance}");
        }
    }
}
