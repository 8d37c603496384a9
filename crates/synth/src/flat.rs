//! The flattened wrapper: a file as a stream of "write these bytes there".

/// Bytes of a file that its writer may write again when all else is written.
pub const HEADERS: usize = 1024;

/// How the stream is made.
#[derive(Clone, Copy, Debug)]
pub struct Flatten {
    /// Bytes of a block; the last may be shorter.
    pub block: usize,
    /// Which block comes first.
    pub order: BlockOrder,
    /// Writes blocks of the first [`HEADERS`] bytes twice, as writers do: wrong bytes reaching into the next block first, the right
    /// ones later.
    pub overlap: bool,
    /// Leaves out blocks that are all zero, which a writer never wrote.
    pub skip_zero: bool,
    /// Ends the stream with the end marker.
    pub end_marker: bool,
}

/// Order of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// By target offset.
    Ascending,
    /// The other way round.
    Descending,
    /// Mixed, the same for the same seed.
    Mixed(u64),
}

impl Default for Flatten {
    /// 64 KiB blocks in order, with an end marker.
    fn default() -> Self {
        Self { block: 65536, order: BlockOrder::Ascending, overlap: false, skip_zero: false, end_marker: true }
    }
}

/// A block of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where its 16-byte header begins in the stream.
    pub at: usize,
    /// Where its bytes go.
    pub target: u64,
    /// Number of its bytes.
    pub len: usize,
}

/// A flattened file.
#[derive(Clone, Debug)]
pub struct Flattened {
    /// The stream.
    pub bytes: Vec<u8>,
    /// Its blocks, in stream order.
    pub blocks: Vec<Block>,
}

impl Flatten {
    /// Wraps a file.
    #[must_use]
    pub fn wrap(&self, file: &[u8]) -> Flattened {
        let mut bytes = vec![0; 4096];
        bytes[..12].copy_from_slice(b"makedumpfile");
        bytes[16..24].copy_from_slice(&1i64.to_be_bytes());
        bytes[24..32].copy_from_slice(&1i64.to_be_bytes());
        let mut flat = Flattened { bytes, blocks: Vec::new() };

        let mut pieces: Vec<(usize, &[u8])> =
            file.chunks(self.block).enumerate().map(|(i, b)| (i * self.block, b)).collect();
        pieces.retain(|(_, b)| !self.skip_zero || b.iter().any(|b| *b != 0));
        match self.order {
            BlockOrder::Ascending => {}
            BlockOrder::Descending => pieces.reverse(),
            BlockOrder::Mixed(seed) => {
                let key = |at: usize| (at as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
                pieces.sort_by_key(|(at, _)| key(*at));
            }
        }
        if self.overlap {
            for (at, piece) in pieces.iter().filter(|(at, _)| *at < HEADERS).step_by(3) {
                let len = (piece.len() + self.block / 2).min(file.len().min(HEADERS) - at);
                flat.push(*at as u64, &vec![0xee; len]);
            }
            // The wrong bytes reached into neighbours that may be holes: those are written, too, then.
            for (i, piece) in file.chunks(self.block).enumerate().take(HEADERS.div_ceil(self.block)) {
                if pieces.iter().all(|(at, _)| *at != i * self.block) {
                    flat.push((i * self.block) as u64, piece);
                }
            }
        }
        for (at, piece) in pieces {
            flat.push(at as u64, piece);
        }
        if self.end_marker {
            flat.bytes.extend([0xff; 16]);
        }
        flat
    }
}

impl Flattened {
    fn push(&mut self, target: u64, bytes: &[u8]) {
        self.blocks.push(Block { at: self.bytes.len(), target, len: bytes.len() });
        self.bytes.extend((target as i64).to_be_bytes());
        self.bytes.extend((bytes.len() as i64).to_be_bytes());
        self.bytes.extend(bytes);
    }
}
