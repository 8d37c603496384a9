//! A file in memory that costs only what is not zero.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

const BLOCK: u64 = 4096;

/// A file with holes.
#[derive(Clone, Debug, Default)]
pub struct SparseFile {
    blocks: BTreeMap<u64, Box<[u8; BLOCK as usize]>>,
    len: u64,
}

impl SparseFile {
    /// Length in bytes, holes included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that take space.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Makes the file at least so long.
    pub fn extend_to(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Writes bytes at an offset, over what was there.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        self.extend_to(at + bytes.len() as u64);
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let offset = (at % BLOCK) as usize;
            let n = rest.len().min(BLOCK as usize - offset);
            let zero = rest[..n].iter().all(|b| *b == 0);
            if !zero || self.blocks.contains_key(&(at / BLOCK)) {
                let block = self.blocks.entry(at / BLOCK).or_insert_with(|| Box::new([0; BLOCK as usize]));
                block[offset..offset + n].copy_from_slice(&rest[..n]);
            }
            rest = &rest[n..];
            at += n as u64;
        }
    }

    /// Sets bits of a byte.
    pub(crate) fn set_bits(&mut self, at: u64, bits: u8) {
        let byte = self.blocks.get(&(at / BLOCK)).map_or(0, |b| b[(at % BLOCK) as usize]);
        self.put(at, &[byte | bits]);
    }

    /// The whole file in memory.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.len as usize];
        for (i, block) in &self.blocks {
            let at = (i * BLOCK) as usize;
            let n = (out.len() - at).min(BLOCK as usize);
            out[at..at + n].copy_from_slice(&block[..n]);
        }
        out
    }

    /// Writes it to disk, with holes.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.set_len(self.len)?;
        let mut at = u64::MAX;
        let mut pending: Vec<u8> = Vec::new();
        for (i, block) in &self.blocks {
            if *i != at || pending.len() >= 1 << 20 {
                file.write_all(&pending)?;
                pending.clear();
                file.seek(SeekFrom::Start(i * BLOCK))?;
            }
            at = i + 1;
            pending.extend_from_slice(&block[..(self.len - i * BLOCK).min(BLOCK) as usize]);
        }
        file.write_all(&pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_file_is_the_file_in_memory() {
        let mut file = SparseFile::default();
        file.put(10, b"begin");
        file.put(4090, &[7; 5000]);
        file.put(100_000, &[0; 5000]);
        file.put(300_001, b"end");
        file.set_bits(300_001, 0x80);
        assert_eq!(file.len(), 300_004);
        assert_eq!(file.stored(), 4 * BLOCK);
        let path = std::env::temp_dir().join(format!("coresift-synth-{}", std::process::id()));
        file.save(&path).unwrap();
        let read = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read, file.bytes());
        assert_eq!((&read[10..15], read[300_001]), (&b"begin"[..], b'e' | 0x80));
    }
}
