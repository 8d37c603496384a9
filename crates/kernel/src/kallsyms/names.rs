//! The names of kallsyms: sequences of tokens behind their length, found by passing over them.

use super::MAX_SYMBOLS;
use crate::error::{KernelError, Result};
use crate::virt::{ReadAhead, VirtAddr, VirtualMemory};
use std::collections::HashMap;

/// `KSYM_NAME_LEN` is 512 since Linux 6.1; a name has at most as many tokens as characters.
const MAX_NAME: usize = 1024;
/// Names of 200,000 symbols take 2 to 3 MiB.
const MAX_NAMES_BYTES: u64 = 64 << 20;
/// Names between two entries of `kallsyms_markers`, the table behind the names.
const MARKER_EVERY: u32 = 256;

/// How the length of a name is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lengths {
    /// Since Linux 6.1: a first byte with bit 7 set is followed by the bits from 7 on.
    OneOrTwoBytes,
    /// Linux 6.0.
    OneByte,
}

impl Lengths {
    pub(super) const ALL: [Self; 2] = [Self::OneOrTwoBytes, Self::OneByte];
}

/// A name that was found: the number of its symbol, its type letter, how many symbols have it.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) kind: u8,
    pub(super) copies: u32,
}

/// Finds `wanted` among `count` names in one pass. Of several symbols with a name, a global one counts before a local one.
pub(super) fn find<'n>(
    names: &mut Names<'_>,
    count: u32,
    tokens: &Tokens,
    wanted: &[&'n str],
) -> Result<(HashMap<&'n str, Found>, NamesEnd)> {
    let by_name: HashMap<&[u8], &'n str> = wanted.iter().map(|name| (name.as_bytes(), *name)).collect();
    let ends = Ends::new(tokens, wanted);
    let mut lengths = vec![false; MAX_NAME + 1];
    for name in wanted {
        lengths.get_mut(name.len() + 1).into_iter().for_each(|slot| *slot = true);
    }
    let mut found: HashMap<&'n str, Found> = HashMap::new();
    let mut text = Vec::new();
    let mut end = NamesEnd { at: names.at, second: None, last: (0, 0) };
    for index in 0..count.min(MAX_SYMBOLS) {
        if index % MARKER_EVERY == 0 {
            let offset = names.at.0.wrapping_sub(names.start.0);
            end.last = (index / MARKER_EVERY, offset);
            if index == MARKER_EVERY {
                end.second = Some(offset);
            }
        }
        let this = names.next()?;
        if !ends.can_be_of(this, tokens) || !lengths.get(tokens.length(this)).is_some_and(|wanted| *wanted) {
            continue;
        }
        tokens.expand(this, &mut text);
        if let Some((&kind, name)) = text.split_first()
            && let Some(&name) = by_name.get(name)
        {
            let this = Found { index, kind, copies: 1 };
            found
                .entry(name)
                .and_modify(|have| {
                    let copies = have.copies + 1;
                    if kind.is_ascii_uppercase() && !have.kind.is_ascii_uppercase() {
                        *have = this;
                    }
                    have.copies = copies;
                })
                .or_insert(this);
        }
    }
    end.at = names.at;
    Ok((found, end))
}

/// Which of the names asked for a token can begin and end: a bit for each name, shared from the 65th on. 97 % of all names are passed
/// over by two or three of their tokens; adding up the lengths of all of them took several times as long.
struct Ends {
    /// As the first token, with the type letter.
    first: [u64; 256],
    /// As the second, behind a type letter that is a token of its own.
    second: [u64; 256],
    last: [u64; 256],
}

impl Ends {
    fn new(tokens: &Tokens, wanted: &[&str]) -> Self {
        let mut ends = Self { first: [0; 256], second: [0; 256], last: [0; 256] };
        let slots = ends.first.iter_mut().zip(&mut ends.second).zip(&mut ends.last);
        for (token, ((first, second), last)) in (0..=u8::MAX).zip(slots) {
            let text = tokens.text_of(token);
            // None for an empty token, before which and after which anything can be.
            let behind_letter = text.get(1..);
            for (bit, name) in (0..64).cycle().zip(wanted) {
                let name = name.as_bytes();
                *first |= u64::from(behind_letter.is_none_or(|text| name.starts_with(text))) << bit;
                *second |= u64::from(name.starts_with(text)) << bit;
                *last |= u64::from(name.ends_with(text) || behind_letter == Some(name)) << bit;
            }
        }
        ends
    }

    #[inline]
    fn can_be_of(&self, name: &[u8], tokens: &Tokens) -> bool {
        let of = |masks: &[u64; 256], token: u8| masks.get(usize::from(token)).copied().unwrap_or_default();
        let (Some(&first), Some(&last)) = (name.first(), name.last()) else { return false };
        let can = of(&self.first, first) & of(&self.last, last);
        match name.get(1) {
            Some(&second) if can != 0 && tokens.text_of(first).len() == 1 => can & of(&self.second, second) != 0,
            _ => can != 0,
        }
    }
}

/// Where a pass over the names ended, and where `kallsyms_markers`, if the pass read the lengths right, says that names begin.
pub(super) struct NamesEnd {
    pub(super) at: VirtAddr,
    /// Offset of name 256.
    pub(super) second: Option<u64>,
    /// The last multiple of 256, and the offset of that name.
    pub(super) last: (u32, u64),
}

impl NamesEnd {
    /// Whether the markers are behind the names and say the same. They are aligned to 8 bytes, in some kernels to 4.
    pub(super) fn confirmed(&self, mem: &mut dyn VirtualMemory) -> bool {
        [8, 4].into_iter().any(|align| {
            let Some(markers) = self.at.0.checked_next_multiple_of(align).map(VirtAddr) else { return false };
            let mut says = |index: u32, offset: u64| {
                mem.read_u32(markers.plus(u64::from(index) * 4)).is_ok_and(|have| u64::from(have) == offset)
            };
            says(0, 0) && self.second.is_none_or(|offset| says(1, offset)) && says(self.last.0, self.last.1)
        })
    }
}

/// The pieces that names are made of.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    text: Vec<u8>,
    /// Where in `text` each begins, and its length.
    pieces: [(u16, u16); 256],
}

impl Tokens {
    pub(super) fn read(mem: &mut dyn VirtualMemory, table: VirtAddr, index: VirtAddr) -> Result<Self> {
        let mut starts = [0; 512];
        mem.read_virt(index, &mut starts)?;
        let starts = starts.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
        let end = starts.clone().max().map_or(0, usize::from);
        let mut text = vec![0; end + 1];
        mem.read_virt(table, &mut text)?;
        // The last token ends where its NUL is.
        while text.last() != Some(&0) {
            let at = table.plus(text.len() as u64);
            if text.len() > end + MAX_NAME {
                let hint = ", for the last token has no end";
                return Err(KernelError::Implausible { what: "kallsyms_token_table", addr: at, value: 0, hint });
            }
            let mut next = [0];
            mem.read_virt(at, &mut next)?;
            text.extend(next);
        }
        let mut pieces = [(0, 0); 256];
        for (piece, start) in pieces.iter_mut().zip(starts) {
            let token = text.get(usize::from(start)..).unwrap_or_default();
            let length = token.iter().take(MAX_NAME).position(|b| *b == 0).unwrap_or(MAX_NAME);
            *piece = (start, length as u16);
        }
        Ok(Self { text, pieces })
    }

    fn text_of(&self, token: u8) -> &[u8] {
        let (start, length) = self.pieces.get(usize::from(token)).copied().unwrap_or_default();
        let piece = self.text.get(usize::from(start)..).and_then(|t| t.get(..usize::from(length)));
        piece.unwrap_or_default()
    }

    /// Characters of a name, the type letter included.
    fn length(&self, tokens: &[u8]) -> usize {
        tokens.iter().map(|token| self.pieces.get(usize::from(*token)).map_or(0, |piece| usize::from(piece.1))).sum()
    }

    /// Writes the name, type letter first, to `text`.
    pub(super) fn expand(&self, tokens: &[u8], text: &mut Vec<u8>) {
        text.clear();
        for token in tokens {
            text.extend_from_slice(self.text_of(*token));
            text.truncate(MAX_NAME);
        }
    }
}

/// A pass over the names.
pub(super) struct Names<'m> {
    ahead: ReadAhead<'m>,
    start: VirtAddr,
    /// Where the next name begins.
    at: VirtAddr,
    lengths: Lengths,
}

impl<'m> Names<'m> {
    pub(super) fn new(mem: &'m mut dyn VirtualMemory, start: VirtAddr, lengths: Lengths) -> Self {
        let ahead = ReadAhead::new(mem, start.plus(MAX_NAMES_BYTES));
        Self { ahead, start, at: start, lengths }
    }

    /// The tokens of the next name.
    #[allow(
        clippy::inline_always,
        reason = "with a call for each of 118,000 names a pass takes 16.1 million instructions, in place 13.9"
    )]
    #[inline(always)]
    pub(super) fn next(&mut self) -> Result<&[u8]> {
        if self.at.0.wrapping_sub(self.start.0) > MAX_NAMES_BYTES {
            return Err(KernelError::Kallsyms { why: format!("the names go on beyond {MAX_NAMES_BYTES} bytes") });
        }
        // The shortest name has a length and one token.
        let (first, second) = match self.ahead.get(self.at, 2)? {
            [first, second, ..] => (usize::from(*first), usize::from(*second)),
            _ => (0, 0),
        };
        let two_bytes = self.lengths == Lengths::OneOrTwoBytes && first & 0x80 != 0;
        let (begin, length) = if two_bytes { (2, first & 0x7f | second << 7) } else { (1, first) };
        if !(1..=MAX_NAME).contains(&length) {
            let addr = self.at.plus(begin as u64);
            let hint = ", for it is the length of a name";
            return Err(KernelError::Implausible { what: "kallsyms_names", addr, value: length as u64, hint });
        }
        let end = begin + length;
        let bytes = self.ahead.get(self.at, end)?;
        self.at = self.at.plus(end as u64);
        Ok(bytes.get(begin..end).unwrap_or_default())
    }
}
