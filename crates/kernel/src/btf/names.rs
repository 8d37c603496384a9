//! Which strings of BTF are the names asked for: one pass over the strings, after which names are compared as numbers.

use crate::error::Result;
use crate::virt::{ReadAhead, VirtAddr};
use std::collections::HashMap;

/// Places of names that are kept. What writes kernels' BTF (pahole by libbpf) writes each string once, and whole; this is for what
/// does not, as the format allows, and keeps whole strings where short names are the end of many others.
const MAX_PLACES: usize = 1 << 15;
const MAX_ENDS: usize = 1 << 12;
/// Characters, from the end of a name, that a string must share with it to be compared.
const TAIL: usize = 4;
/// Strings read at a time.
const PIECE: usize = 32 << 10;

/// The names asked for, by the places where they stand in the strings.
#[derive(Clone, Debug)]
pub(super) struct Names<'n> {
    by_text: HashMap<&'n str, usize>,
    /// Offset in the strings, and the number of the name that stands there up to a NUL; in the order of offsets.
    places: Vec<(u32, usize)>,
}

impl<'n> Names<'n> {
    /// Finds `wanted` in the strings, which are `len` bytes from `start` on. A name may be the end of a longer string.
    pub(super) fn find(ahead: &mut ReadAhead<'_>, start: VirtAddr, len: usize, wanted: &[&'n str]) -> Result<Self> {
        // Only what has no NUL itself can be followed by its first NUL.
        let possible = wanted.iter().filter(|name| !name.is_empty() && !name.contains('\0'));
        let mut by_text = HashMap::new();
        for name in possible {
            let number = by_text.len();
            by_text.entry(*name).or_insert(number);
        }
        let tails = Tails::new(&by_text);
        let longest = by_text.keys().map(|name| name.len()).max().unwrap_or(0);
        let mut places = Vec::new();
        let mut at = 0;
        while at < len {
            // With the end of the piece before, in which a name may begin.
            let before = at.min(longest);
            let first = at - before;
            let piece = ahead.get(start.plus(first as u64), (before + PIECE).min(len - first))?;
            let piece = piece.get(..len - first).unwrap_or(piece);
            let mut seen = before;
            while let Some(nul) = nul(piece, seen) {
                let string = piece.get(..nul).unwrap_or_default();
                for (number, name) in tails.names(string) {
                    let Some(before) = string.strip_suffix(name) else { continue };
                    let whole = before.last().is_none_or(|b| *b == 0);
                    if places.len() < if whole { MAX_PLACES } else { MAX_ENDS } {
                        places.push(((first + before.len()) as u32, number));
                    }
                }
                seen = nul + 1;
            }
            at = first + piece.len();
        }
        places.sort_unstable();
        Ok(Self { by_text, places })
    }

    /// How many names there are.
    pub(super) fn len(&self) -> usize {
        self.by_text.len()
    }

    /// The number of a name.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.by_text.get(name).copied()
    }

    /// The number of the name at `offset` of the strings.
    pub(super) fn at(&self, offset: u32) -> Option<usize> {
        let (_, number) =
            self.places.get(self.places.partition_point(|place| place.0 < offset)).filter(|p| p.0 == offset)?;
        Some(*number)
    }
}

/// Where the first NUL from `from` on is.
fn nul(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let (words, tail) = rest.as_chunks::<8>();
    // A byte is zero where subtracting 1 borrows into its highest bit and that was not set; the lowest such bit is exact.
    let zeros = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
    };
    let in_words = (0..).zip(words).map(|(i, word)| (i, zeros(word))).find(|(_, zeros)| *zeros != 0);
    let at = match in_words {
        Some((i, zeros)) => i * 8 + zeros.trailing_zeros() as usize / 8,
        None => words.len() * 8 + tail.iter().position(|b| *b == 0)?,
    };
    Some(from + at)
}

/// The names by their last characters: a bit for each name, shared from the 65th on.
struct Tails<'n> {
    masks: [[u64; 256]; TAIL],
    names: Vec<&'n [u8]>,
}

impl<'n> Tails<'n> {
    fn new(by_text: &HashMap<&'n str, usize>) -> Self {
        let mut names: Vec<&[u8]> = vec![&[]; by_text.len()];
        let mut masks = [[0; 256]; TAIL];
        for (name, number) in by_text {
            let bit = 1 << (number % 64);
            names.get_mut(*number).into_iter().for_each(|slot| *slot = name.as_bytes());
            let mut back = name.bytes().rev();
            for mask in &mut masks {
                match back.next() {
                    Some(byte) => mask.get_mut(usize::from(byte)).into_iter().for_each(|m| *m |= bit),
                    None => mask.iter_mut().for_each(|m| *m |= bit),
                }
            }
        }
        Self { masks, names }
    }

    /// The names that `string` may end with.
    #[inline]
    fn names(&self, string: &[u8]) -> impl Iterator<Item = (usize, &'n [u8])> {
        let tail = string.iter().rev();
        let of = |(mask, byte): (&[u64; 256], &u8)| mask.get(usize::from(*byte)).copied().unwrap_or_default();
        let mask = self.masks.iter().zip(tail).map(of).fold(u64::MAX, |all, mask| all & mask);
        let masks = std::iter::successors(Some(mask), |mask| Some(mask & mask.wrapping_sub(1)));
        let bits = masks.take_while(|mask| *mask != 0).map(|mask| mask.trailing_zeros() as usize);
        let numbers = bits.flat_map(|bit| (bit..self.names.len()).step_by(64));
        numbers.filter_map(|number| Some((number, *self.names.get(number)?)))
    }
}
