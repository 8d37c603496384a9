//! Just enough zlib to write pages without a codec library: fixed codes, greedy matches.

/// Length codes 257 on: first length, extra bits.
const LENGTHS: [(usize, u32); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];
/// Distance codes: first distance, extra bits. A page needs none beyond 4096.
const DISTANCES: [(usize, u32); 24] = [
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 1),
    (7, 1),
    (9, 2),
    (13, 2),
    (17, 3),
    (25, 3),
    (33, 4),
    (49, 4),
    (65, 5),
    (97, 5),
    (129, 6),
    (193, 6),
    (257, 7),
    (385, 7),
    (513, 8),
    (769, 8),
    (1025, 9),
    (1537, 9),
    (2049, 10),
    (3073, 10),
];

#[derive(Default)]
struct Bits {
    out: Vec<u8>,
    hold: u64,
    count: u32,
}

impl Bits {
    /// Low bit first.
    fn low(&mut self, value: u64, bits: u32) {
        self.hold |= value << self.count;
        self.count += bits;
        while self.count >= 8 {
            self.out.push(self.hold as u8);
            self.hold >>= 8;
            self.count -= 8;
        }
    }

    /// Huffman codes go high bit first.
    fn code(&mut self, code: u64, bits: u32) {
        self.low(code.reverse_bits() >> (64 - bits), bits);
    }

    fn symbol(&mut self, symbol: u64) {
        match symbol {
            0..=143 => self.code(0x30 + symbol, 8),
            144..=255 => self.code(0x190 + symbol - 144, 9),
            256..=279 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }
}

/// A complete zlib stream of `data` (up to 4096 bytes, for the sake of the distances).
#[must_use]
pub fn zlib(data: &[u8]) -> Vec<u8> {
    assert!(data.len() <= 4096, "pages only");
    let mut bits = Bits { out: vec![0x78, 0x01], ..Bits::default() };
    bits.low(0b011, 3);
    let mut last_seen = vec![usize::MAX; 1 << 12];
    let mut at = 0;
    while at < data.len() {
        let (mut length, mut distance) = (0, 0);
        if at + 4 <= data.len() {
            let word = u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
            let slot = (word.wrapping_mul(0x9e37_79b1) >> 20) as usize;
            let before = std::mem::replace(&mut last_seen[slot], at);
            if before < at {
                length = data[at..].iter().zip(&data[before..]).take(258).take_while(|(a, b)| a == b).count();
                distance = at - before;
            }
        }
        if length < 4 {
            bits.symbol(data[at].into());
            at += 1;
            continue;
        }
        let code = LENGTHS.partition_point(|l| l.0 <= length) - 1;
        bits.symbol(257 + code as u64);
        bits.low((length - LENGTHS[code].0) as u64, LENGTHS[code].1);
        let code = DISTANCES.partition_point(|d| d.0 <= distance) - 1;
        bits.code(code as u64, 5);
        bits.low((distance - DISTANCES[code].0) as u64, DISTANCES[code].1);
        at += length;
    }
    bits.symbol(256);
    let pad = (8 - bits.count) % 8;
    bits.low(0, pad);
    bits.out.extend(adler(data).to_be_bytes());
    bits.out
}

/// The same as one block stored as it is: 11 bytes longer than the data.
#[must_use]
pub fn zlib_stored(data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(data.len()).expect("one stored block holds 65535 bytes");
    let mut out = vec![0x78, 0x01, 0x01];
    out.extend(len.to_le_bytes());
    out.extend((!len).to_le_bytes());
    out.extend(data);
    out.extend(adler(data).to_be_bytes());
    out
}

fn adler(data: &[u8]) -> u32 {
    let (a, b) = data.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}
