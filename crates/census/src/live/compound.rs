//! Heads and orders of compound pages, from flags that only tell heads and tails.

use super::words::Words;
use crate::error::Result;
use crate::frames::NULL_INT;
use crate::kpf::Kpf;

/// Frames read at a time beyond a run.
const STEP: u64 = 4096;
/// Frames of the largest compound page: 1 GiB of 4 KiB pages.
const LARGEST: u64 = 1 << 18;

/// A compound page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompoundPage {
    /// Its first page frame.
    pub head: u64,
    /// The flags of that.
    pub flags: Kpf,
    /// log2 of its frames; [`NULL_INT`] where their number is no power of two, because it changed while it was read.
    pub order: i32,
    end: u64,
}

/// The compound pages of a run of frames, asked for in order.
pub struct Compounds<'w> {
    words: &'w [u64],
    start: u64,
    end: u64,
    known: Option<CompoundPage>,
}

impl<'w> Compounds<'w> {
    /// Those of the frames `start..end`, whose flags are `words`.
    #[must_use]
    pub const fn new(words: &'w [u64], start: u64, end: u64) -> Self {
        Self { words, start, end, known: None }
    }

    /// The compound page that `pfn`, whose flags are `word`, is of. One that reaches beyond the run is looked up in `file`.
    ///
    /// # Errors
    /// That cannot be read.
    #[inline]
    pub fn at(&mut self, pfn: u64, word: Kpf, file: &mut Words) -> Result<Option<CompoundPage>> {
        if word.any(Kpf::HEAD) {
            self.known = Some(self.headed(pfn, word, file)?);
        } else if !word.any(Kpf::TAIL) {
            self.known = None;
        } else if self.known.is_none_or(|c| c.end <= pfn) {
            // A tail without a head before it: the run began inside its page, or the page was split meanwhile.
            self.known = if pfn == self.start { self.before(file)? } else { None };
        }
        Ok(self.known)
    }

    fn headed(&self, head: u64, flags: Kpf, file: &mut Words) -> Result<CompoundPage> {
        let inside = self.words.get((head + 1 - self.start) as usize..).unwrap_or_default();
        let tails = inside.iter().take_while(|w| Kpf(**w).any(Kpf::TAIL)).count() as u64;
        let mut end = head + 1 + tails;
        let mut more = Vec::new();
        while end >= self.end && end - head < LARGEST {
            let got = file.read(end, end + STEP, &mut more)?;
            let tails = more.iter().take_while(|w| Kpf(**w).any(Kpf::TAIL)).count() as u64;
            end += tails;
            if tails < STEP || got < STEP {
                break;
            }
        }
        let frames = end - head;
        let order = if frames.is_power_of_two() { frames.trailing_zeros().cast_signed() } else { NULL_INT };
        Ok(CompoundPage { head, flags, order, end })
    }

    /// The page whose tail the run begins with.
    fn before(&self, file: &mut Words) -> Result<Option<CompoundPage>> {
        let mut more = Vec::new();
        let mut at = self.start;
        while at > 0 && self.start - at < LARGEST {
            let from = at.saturating_sub(STEP);
            let got = file.read(from, at, &mut more)?;
            if got < at - from {
                return Ok(None);
            }
            if let Some(place) = more.iter().rposition(|w| !Kpf(*w).any(Kpf::TAIL)) {
                let flags = Kpf(more.get(place).copied().unwrap_or(0));
                let head = from + place as u64;
                if !flags.any(Kpf::HEAD) {
                    return Ok(None);
                }
                let inside = self.words.iter().take_while(|w| Kpf(**w).any(Kpf::TAIL)).count() as u64;
                let mut page = CompoundPage { head, flags, order: NULL_INT, end: self.start + inside };
                if page.end >= self.end {
                    // The whole run is of one page: where it ends is asked for from its head.
                    let whole = Compounds::new(&[], head, head + 1).headed(head, flags, file)?;
                    page = whole;
                } else if (page.end - head).is_power_of_two() {
                    page.order = (page.end - head).trailing_zeros().cast_signed();
                }
                return Ok(Some(page));
            }
            at = from;
        }
        Ok(None)
    }
}
