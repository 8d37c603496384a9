//! The pages of one chunk, as bits.

/// log2 of the pages in a chunk. 32768 pages of 4 KiB are 128 MiB, one memory section of x86-64, whose struct pages fill 2 MiB.
pub const CHUNK_SHIFT: u32 = 15;
/// Pages in a chunk.
pub const CHUNK_PAGES: u64 = 1 << CHUNK_SHIFT;
pub(crate) const WORDS: usize = (CHUNK_PAGES / 64) as usize;

/// One bit a page of a chunk, LSB first: bit `i` of word `w` is page `64 * w + i` of the chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkBits(pub Box<[u64; WORDS]>);

impl Default for ChunkBits {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

impl ChunkBits {
    /// Clears every bit.
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Sets every bit.
    pub fn fill(&mut self) {
        self.0.fill(u64::MAX);
    }

    /// Sets the bits `start..end` of the chunk (clipped to it).
    pub fn set(&mut self, start: u64, end: u64) {
        self.edit(start, end, |word, mask| *word |= mask);
    }

    /// Clears the bits `start..end` of the chunk (clipped to it).
    pub fn unset(&mut self, start: u64, end: u64) {
        self.edit(start, end, |word, mask| *word &= !mask);
    }

    /// Keeps only the bits that `other` has too.
    pub fn intersect(&mut self, other: &Self) {
        self.combine(other, |a, b| a & b);
    }

    /// Clears the bits that `other` has.
    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, |a, b| a & !b);
    }

    /// Sets the bits that `other` has.
    pub fn unite(&mut self, other: &Self) {
        self.combine(other, |a, b| a | b);
    }

    /// Whether bit `index` is set; false outside the chunk.
    #[must_use]
    pub fn get(&self, index: u64) -> bool {
        self.0.get((index / 64) as usize).is_some_and(|w| w >> (index % 64) & 1 == 1)
    }

    /// Number of set bits.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// Number of set bits in `start..end` of the chunk.
    #[must_use]
    pub fn count_in(&self, start: u64, end: u64) -> u64 {
        count_in(&self.0, start, end)
    }

    /// The first run of set bits from `from` on, as `start..end` within the chunk.
    #[must_use]
    pub fn next_run(&self, from: u64) -> Option<(u64, u64)> {
        BitRuns { words: &self.0[..], at: from }.next()
    }

    /// The runs of set bits, as `start..end` within the chunk.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        BitRuns { words: &self.0[..], at: 0 }
    }

    fn combine(&mut self, other: &Self, apply: impl Fn(u64, u64) -> u64) {
        for (a, b) in self.0.iter_mut().zip(other.0.iter()) {
            *a = apply(*a, *b);
        }
    }

    fn edit(&mut self, start: u64, end: u64, apply: impl Fn(&mut u64, u64)) {
        let end = end.min(CHUNK_PAGES);
        let mut at = start;
        while at < end {
            let bit = at % 64;
            let n = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - n)) << bit;
            if let Some(word) = self.0.get_mut((at / 64) as usize) {
                apply(word, mask);
            }
            at += n;
        }
    }
}

/// Number of set bits in `start..end` of a chunk's words.
pub(crate) fn count_in(words: &[u64; WORDS], start: u64, end: u64) -> u64 {
    let mut sum = 0;
    let mut at = start;
    let end = end.min(CHUNK_PAGES);
    while at < end {
        let n = (64 - at % 64).min(end - at);
        let word = words.get((at / 64) as usize).copied().unwrap_or(0) >> (at % 64);
        sum += u64::from((word & (u64::MAX >> (64 - n))).count_ones());
        at += n;
    }
    sum
}

/// The runs of set bits from a position on.
pub(crate) struct BitRuns<'a> {
    pub(crate) words: &'a [u64],
    pub(crate) at: u64,
}

impl BitRuns<'_> {
    /// The first position from `at` on whose bit equals `set`, or the end of the chunk.
    fn next_position(&self, at: u64, set: bool) -> u64 {
        let mut at = at;
        while at < CHUNK_PAGES {
            let word = self.words.get((at / 64) as usize).copied().unwrap_or(0);
            let rest = (if set { word } else { !word }) >> (at % 64);
            if rest != 0 {
                return at + u64::from(rest.trailing_zeros());
            }
            at = (at / 64 + 1) * 64;
        }
        CHUNK_PAGES
    }
}

impl Iterator for BitRuns<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let start = self.next_position(self.at, true);
        if start >= CHUNK_PAGES {
            return None;
        }
        self.at = self.next_position(start, false);
        Some((start, self.at))
    }
}
