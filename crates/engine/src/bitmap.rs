//! Bitmaps of the output. The 2nd one also stands for that part of the page set which memory has no room for.

use crate::target::{Output, WriteFailed};
use coresift_format::{CHUNK_PAGES, CHUNK_SHIFT, ChunkBits, PageSet, Pfn};
use std::io;
use std::sync::Arc;

/// Bytes of a chunk's bits.
const CHUNK_BYTES: usize = (CHUNK_PAGES / 8) as usize;
/// Bytes that are written together at the most.
const BLOCK: usize = 16 * CHUNK_BYTES;

/// One bitmap of the output: a bit for each page frame below `end`, LSB first. It reads as zeros where nothing was written.
#[derive(Clone, Debug)]
pub struct Bitmap {
    output: Arc<Output>,
    offset: u64,
    end: Pfn,
}

impl Bitmap {
    /// The bitmap of the page frames below `end` at file offset `offset`.
    #[must_use]
    pub fn new(output: Arc<Output>, offset: u64, end: Pfn) -> Self {
        Self { output, offset, end }
    }

    /// Writes the chunks that hold a page of `set`.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn write_set(&self, set: &PageSet) -> Result<(), WriteFailed> {
        let mut bits = ChunkBits::default();
        let mut block = Vec::with_capacity(BLOCK);
        let mut first = 0;
        for chunk in set.chunks().take_while(|chunk| chunk << CHUNK_SHIFT < self.end.0) {
            let next = first + (block.len() / CHUNK_BYTES) as u64;
            if block.len() == BLOCK || chunk != next {
                self.flush(first, &mut block)?;
                first = chunk;
            }
            set.copy_chunk(chunk, &mut bits);
            block.extend(bits.0.iter().flat_map(|word| word.to_le_bytes()));
        }
        self.flush(first, &mut block)
    }

    /// Writes the bits of one chunk.
    ///
    /// # Errors
    /// The target is full or cannot be written.
    pub fn write(&self, chunk: u64, bits: &ChunkBits) -> Result<(), WriteFailed> {
        self.flush(chunk, &mut bits.0.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// Reads the bits of one chunk back; false where the target cannot be read, as /dev/null.
    ///
    /// # Errors
    /// What the system said.
    pub fn read(&self, chunk: u64, bits: &mut ChunkBits) -> io::Result<bool> {
        let mut bytes = [0; CHUNK_BYTES];
        let len = self.bytes_left(chunk).min(CHUNK_BYTES as u64) as usize;
        let readable = self.output.read_back(bytes.get_mut(..len).unwrap_or_default(), self.place(chunk))?;
        for (word, bytes) in bits.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(readable)
    }

    /// Writes the bits in `block`, which begin with those of chunk number `first`, and empties it.
    fn flush(&self, first: u64, block: &mut Vec<u8>) -> Result<(), WriteFailed> {
        block.truncate(usize::try_from(self.bytes_left(first)).unwrap_or(usize::MAX));
        let written = if block.is_empty() { Ok(()) } else { self.output.write_at(block, self.place(first)) };
        block.clear();
        written
    }

    fn place(&self, chunk: u64) -> u64 {
        self.offset + chunk * CHUNK_BYTES as u64
    }

    /// Bytes of the bitmap from the bits of chunk number `chunk` on.
    fn bytes_left(&self, chunk: u64) -> u64 {
        self.end.0.saturating_sub(chunk << CHUNK_SHIFT).div_ceil(8)
    }
}
