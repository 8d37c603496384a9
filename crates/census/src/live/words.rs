//! A file of one 64-bit word a page frame.

use crate::error::{CensusError, Result};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a word.
const WORD: u64 = 8;

/// /proc/kpageflags, /proc/kpagecount or /proc/kpagecgroup.
pub struct Words {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl Words {
    /// Opens it.
    ///
    /// # Errors
    /// It is not there, or the process may not.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| CensusError::reading(path, error))?;
        Ok(Self { path: path.to_owned(), file, buffer: Vec::new() })
    }

    /// Makes `words` those of the page frames `start..end`, and returns how many there are: the file may end before.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&mut self, start: u64, end: u64, words: &mut Vec<u64>) -> Result<u64> {
        words.clear();
        let want = usize::try_from((end - start) * WORD).unwrap_or(usize::MAX);
        self.buffer.resize(self.buffer.len().max(want), 0);
        let Some(buffer) = self.buffer.get_mut(..want) else { return Ok(0) };
        let mut got = 0;
        while let Some(rest) = buffer.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, start * WORD + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(CensusError::reading(&self.path, error)),
            }
        }
        let bytes = buffer.get(..got).unwrap_or_default();
        words.extend(bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)));
        Ok(words.len() as u64)
    }
}
