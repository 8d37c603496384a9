//! What a dynamic block begins with: the lengths of its codes, themselves compressed (RFC 1951, 3.2.7).

use super::writer::Writer;
use super::{DISTANCES, END, LENGTH_ORDER, LENGTHS, LITLEN, LONGEST_LENGTH};
use crate::codec::huffman::{Builder, Codes};
use crate::codec::matching::word;

/// What a dynamic block begins with: the lengths of its codes, themselves compressed.
pub struct BlockHeader {
    /// Symbols of each alphabet whose lengths are told.
    litlen: usize,
    distances: usize,
    lengths: usize,
    codes: Codes<LENGTHS>,
    /// Symbol and extra bits.
    items: [(u8, u8); LITLEN + DISTANCES],
    count: usize,
    /// Its length.
    pub bits: u32,
}

/// Extra bits of the symbols for repeated lengths.
fn repeat_bits(symbol: u8) -> u32 {
    match symbol {
        16 => 2,
        17 => 3,
        18 => 7,
        _ => 0,
    }
}

impl BlockHeader {
    /// That of a block with these codes.
    pub fn new(litlen: &Codes<LITLEN>, distances: &Codes<DISTANCES>, builder: &mut Builder) -> Option<Self> {
        let told = |codes: &[u32], least: usize| {
            codes.iter().rposition(|code| *code > 0).map_or(least, |at| least.max(at + 1))
        };
        let mut header = Self {
            litlen: told(litlen, END + 1),
            distances: told(distances, 1),
            lengths: 0,
            codes: [0; LENGTHS],
            items: [(0, 0); LITLEN + DISTANCES],
            count: 0,
            bits: 0,
        };
        // No length is 255: the bytes behind end the last run.
        let mut lengths = [255; LITLEN + DISTANCES + 8];
        let codes = litlen.iter().take(header.litlen).chain(distances.iter().take(header.distances));
        for (length, code) in lengths.iter_mut().zip(codes) {
            *length = (code >> 16) as u8;
        }
        let mut counts = [0; LENGTHS];
        let (mut at, end) = (0, header.litlen + header.distances);
        while at < end {
            let length = *lengths.get(at)?;
            let mut run = 0;
            loop {
                let differ = word(&lengths, at + run)? ^ (u64::from(length) * 0x0101_0101_0101_0101);
                run += (differ.trailing_zeros() / 8) as usize;
                if differ != 0 {
                    break;
                }
            }
            at += run;
            if length > 0 {
                // What is repeated is the length before.
                header.item(&mut counts, length, 0)?;
                run -= 1;
            }
            while run > 0 {
                let (symbol, first, most) = match (run, length) {
                    (..3, _) => (length, 1, 1),
                    (_, 1..) => (16, 3, 6),
                    (..11, 0) => (17, 3, 10),
                    (_, 0) => (18, 11, 138),
                };
                let n = run.min(most);
                header.item(&mut counts, symbol, (n - first) as u8)?;
                run -= n;
            }
        }
        header.bits += builder.build(&counts, LONGEST_LENGTH, &mut header.codes)?;
        let used = |symbol: &usize| header.codes.get(*symbol).is_some_and(|code| *code > 0);
        header.lengths = LENGTH_ORDER.iter().rposition(used).map_or(4, |at| 4.max(at + 1));
        header.bits += 14 + 3 * header.lengths as u32;
        Some(header)
    }

    #[inline]
    fn item(&mut self, counts: &mut [u32; LENGTHS], symbol: u8, extra: u8) -> Option<()> {
        *self.items.get_mut(self.count)? = (symbol, extra);
        self.count += 1;
        *counts.get_mut(usize::from(symbol))? += 1;
        self.bits += repeat_bits(symbol);
        Some(())
    }

    /// Writes it. `None`: the output is full.
    pub fn write(&self, writer: &mut Writer<'_>) -> Option<()> {
        writer.add((self.litlen - 257) as u64 | (self.distances as u64 - 1) << 5 | (self.lengths as u64 - 4) << 10, 14);
        for symbol in LENGTH_ORDER.iter().take(self.lengths) {
            writer.flush()?;
            writer.add(u64::from(self.codes.get(*symbol)? >> 16), 3);
        }
        for (symbol, extra) in self.items.iter().take(self.count) {
            writer.flush()?;
            writer.code(*self.codes.get(usize::from(*symbol))?);
            writer.add(u64::from(*extra), repeat_bits(*symbol));
        }
        Some(())
    }
}
