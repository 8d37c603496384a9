//! Making a set of page frames, chunk by chunk.

use super::{Body, Entry, Kind, MAX_RUNS, PageSet};
use crate::chunk::{CHUNK_PAGES, CHUNK_SHIFT, ChunkBits};

/// Builds a [`PageSet`] from chunks in ascending order.
#[derive(Debug, Default)]
pub struct PageSetBuilder {
    set: PageSet,
}

impl PageSetBuilder {
    /// Adds the pages of chunk number `chunk`, which must be above all chunks added before: others are ignored.
    pub fn push(&mut self, chunk: u64, bits: &ChunkBits) {
        if self.end() > chunk {
            return;
        }
        let at = self.set.runs.len();
        let mut pages = 0;
        for (count, (start, end)) in bits.runs().enumerate() {
            if end - start == CHUNK_PAGES {
                return self.push_full(chunk, 1);
            }
            if count == MAX_RUNS {
                self.set.runs.truncate(at);
                let bitmap = self.set.bits.len();
                self.set.bits.push(*bits.0);
                return self.add(chunk, bitmap, 0, Kind::Bits, bits.count());
            }
            pages += end - start;
            self.set.runs.push((start as u16, (end - 1) as u16));
        }
        if pages > 0 {
            let runs = self.set.runs.len() - at;
            self.add(chunk, at, runs as u16, Kind::Runs, pages);
        }
    }

    /// Adds all pages of the chunks `chunk..chunk + count`, which must be above all chunks added before: others are ignored.
    pub fn push_full(&mut self, chunk: u64, count: u64) {
        if self.end() > chunk || count == 0 {
            return;
        }
        let (count, pages) = (count as usize, count << CHUNK_SHIFT);
        match self.set.entries.last_mut() {
            Some(last) if last.kind == Kind::Full && last.end() == chunk => {
                last.at += count;
                self.set.len += pages;
            }
            _ => self.add(chunk, count, 0, Kind::Full, pages),
        }
    }

    /// Adds a whole set, whose chunks must be above all added before: others are ignored.
    pub fn append(&mut self, set: &PageSet) {
        for (index, e) in set.entries.iter().enumerate() {
            if self.end() > e.chunk {
                continue;
            }
            let pages = set.entries.get(index + 1).map_or(set.len, |next| next.before) - e.before;
            match set.body(e) {
                Body::Full => self.push_full(e.chunk, e.at as u64),
                Body::Runs(runs) => {
                    let at = self.set.runs.len();
                    self.set.runs.extend_from_slice(runs);
                    self.add(e.chunk, at, e.runs, Kind::Runs, pages);
                }
                Body::Bits(words) => {
                    let at = self.set.bits.len();
                    self.set.bits.push(*words);
                    self.add(e.chunk, at, 0, Kind::Bits, pages);
                }
            }
        }
    }

    /// Memory the set occupies so far, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.set.memory()
    }

    /// The finished set.
    #[must_use]
    pub fn finish(mut self) -> PageSet {
        self.set.entries.shrink_to_fit();
        self.set.runs.shrink_to_fit();
        self.set.bits.shrink_to_fit();
        self.set
    }

    /// One more than the highest chunk added.
    fn end(&self) -> u64 {
        self.set.entries.last().map_or(0, Entry::end)
    }

    fn add(&mut self, chunk: u64, at: usize, runs: u16, kind: Kind, pages: u64) {
        self.set.entries.push(Entry { chunk, before: self.set.len, at, runs, kind });
        self.set.len += pages;
    }
}
