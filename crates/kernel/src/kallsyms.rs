//! Symbols out of the crashed kernel's own memory: the tables behind /proc/kallsyms (scripts/kallsyms.c, kernel/kallsyms.c).
//!
//! ```text
//! names          for each symbol, in the order of addresses: length, that many tokens
//! token_index    for each token: where in token_table its text begins
//! token_table    texts, each ended by a NUL; a name's first character is the type letter of nm
//! offsets        for each symbol 32 bits, of which one of three codings makes the address
//! ```
//!
//! VMCOREINFO says where they are since Linux 6.0. Nothing is kept but the tokens (about 1 KiB): names are read in blocks each time.

use crate::error::{KernelError, Result};
use crate::virt::{VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use std::collections::HashMap;

#[cfg(test)]
mod tests;

/// A distribution's kernel has 200,000 symbols, one with everything built in less than a million.
const MAX_SYMBOLS: u32 = 1 << 22;
/// `KSYM_NAME_LEN` is 512 since Linux 6.1; a name has at most as many tokens as characters.
const MAX_NAME: usize = 1024;
/// Names of 200,000 symbols take 2 to 3 MiB.
const MAX_NAMES_BYTES: u64 = 64 << 20;
const BLOCK: usize = 64 << 10;
const PIECE: u64 = 4096;
/// Names between two entries of `kallsyms_markers`, the table behind the names.
const MARKER_EVERY: u32 = 256;
const PURPOSE: &str = "finding the kernel's own symbols";

/// How 32 bits of `kallsyms_offsets` make an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Linux 4.6 to 6.14 with `KALLSYMS_ABSOLUTE_PERCPU`: from 0 on the address itself, below 0 `relative_base` - 1 - offset.
    AbsolutePercpu,
    /// Linux 4.6 to 6.19: `relative_base` + offset.
    Relative,
    /// Since Linux 7.0: the address of the entry + offset.
    PlaceRelative,
}

impl Coding {
    const ALL: [Self; 3] = [Self::AbsolutePercpu, Self::Relative, Self::PlaceRelative];

    /// The address meant by `offset`, which stands at `place`. `None`: this coding needs a base, and there is none.
    fn address(self, offset: u32, place: VirtAddr, base: Option<u64>) -> Option<VirtAddr> {
        let signed = i64::from(offset.cast_signed()).cast_unsigned();
        Some(VirtAddr(match self {
            Self::AbsolutePercpu if offset.cast_signed() >= 0 => base.map(|_| signed)?,
            Self::AbsolutePercpu => base?.wrapping_sub(1).wrapping_sub(signed),
            Self::Relative => base?.wrapping_add(u64::from(offset)),
            Self::PlaceRelative => place.0.wrapping_add(signed),
        }))
    }
}

/// How the length of a name is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    /// Since Linux 6.1: a first byte with bit 7 set is followed by the bits from 7 on.
    OneOrTwoBytes,
    /// Linux 6.0.
    OneByte,
}

/// A symbol found by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its address, with KASLR's offset where the kernel has it applied.
    pub address: VirtAddr,
    /// Its type as nm prints it: a capital letter for a global symbol. Before Linux 6.15 `A` for every per-cpu variable.
    pub kind: u8,
    /// How many symbols have this name. Of several, a global one is taken before a local one, a lower address before a higher.
    pub copies: u32,
}

/// The symbol tables of the crashed kernel.
#[derive(Clone, Debug)]
pub struct Kallsyms {
    names: VirtAddr,
    offsets: VirtAddr,
    base: Option<u64>,
    count: u32,
    tokens: Tokens,
    coding: Coding,
    lengths: Lengths,
}

impl Kallsyms {
    /// Finds the tables by VMCOREINFO and learns how this kernel writes them, from the names whose addresses VMCOREINFO gives
    /// as well. Reads all names once, or twice where the first reading makes no sense.
    ///
    /// # Errors
    /// A key is missing (before Linux 6.0 all are), the tables are not in the dump, or no known coding gives the known addresses.
    pub fn open(info: &VmcoreInfo, mem: &mut dyn VirtualMemory) -> Result<Self> {
        let table = |name: &str| VmcoreInfo::require(info.symbol(name)?, &format!("SYMBOL({name})"), PURPOSE);
        let at = table("kallsyms_num_syms")?;
        let count = mem.read_u32(at)?;
        if !(1..=MAX_SYMBOLS).contains(&count) {
            let hint = ", for a kernel has thousands of symbols";
            return Err(KernelError::Implausible { what: "kallsyms_num_syms", addr: at, value: count.into(), hint });
        }
        let base = info.symbol("kallsyms_relative_base")?.map(|at| mem.read_u64(at)).transpose()?;
        let tokens = Tokens::read(mem, table("kallsyms_token_table")?, table("kallsyms_token_index")?)?;
        let known = table("_stext")?;
        let mut witnesses = vec![("_stext", known)];
        for name in ["init_uts_ns", "kallsyms_names"] {
            witnesses.extend(info.symbol(name)?.map(|at| (name, at)));
        }
        let mut tables = Self {
            names: table("kallsyms_names")?,
            offsets: table("kallsyms_offsets")?,
            base,
            count,
            tokens,
            coding: Coding::Relative,
            lengths: Lengths::OneOrTwoBytes,
        };
        let mut second_best = None;
        let mut failure = None;
        for lengths in [Lengths::OneOrTwoBytes, Lengths::OneByte] {
            tables.lengths = lengths;
            match tables.judge(mem, &witnesses) {
                Ok((coding, true)) => return Ok(Self { coding, ..tables }),
                Ok((coding, false)) => second_best = second_best.or(Some((lengths, coding))),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        match (second_best, failure) {
            (Some((lengths, coding)), _) => Ok(Self { lengths, coding, ..tables }),
            (None, Some(e)) => Err(e),
            (None, None) => Err(KernelError::Kallsyms { why: "no way to write lengths was tried".to_owned() }),
        }
    }

    /// Number of symbols.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether there are none; never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How this kernel writes addresses.
    #[must_use]
    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// Finds `wanted` in one pass over all names. What is not found is not in the result.
    ///
    /// # Errors
    /// The tables cannot be read to the end, or are damaged.
    pub fn lookup<'n>(&self, mem: &mut dyn VirtualMemory, wanted: &[&'n str]) -> Result<HashMap<&'n str, Symbol>> {
        let (found, _) = self.indexes(mem, wanted)?;
        found
            .into_iter()
            .map(|(name, Found { index, kind, copies })| {
                Ok((name, Symbol { address: self.address(mem, self.coding, index)?, kind, copies }))
            })
            .collect()
    }

    /// The symbol at or before `addr`, and how many bytes before. `None` before the first symbol and from the last one on.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub fn symbol_at(&self, mem: &mut dyn VirtualMemory, addr: VirtAddr) -> Result<Option<(String, u64)>> {
        // The number of symbols up to `addr`, then the first of those that share the address of the last.
        let upto = self.partition(mem, |at| at <= addr)?;
        let Some(last) = upto.checked_sub(1).filter(|_| upto < self.count) else { return Ok(None) };
        let start = self.address(mem, self.coding, last)?;
        let first = self.partition(mem, |at| at < start)?;
        let mut names = Names::new(mem, self.names, self.lengths);
        for _ in 0..first {
            names.next()?;
        }
        let mut text = Vec::new();
        self.tokens.expand(names.next()?, &mut text);
        let name = String::from_utf8_lossy(text.get(1..).unwrap_or_default()).into_owned();
        Ok(Some((name, addr.0.wrapping_sub(start.0))))
    }

    /// Number of symbols, which are in the order of addresses, for which `before` holds.
    fn partition(&self, mem: &mut dyn VirtualMemory, before: impl Fn(VirtAddr) -> bool) -> Result<u32> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if before(self.address(mem, self.coding, middle)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn address(&self, mem: &mut dyn VirtualMemory, coding: Coding, index: u32) -> Result<VirtAddr> {
        let place = self.offsets.plus(u64::from(index) * 4);
        let offset = mem.read_u32(place)?;
        coding.address(offset, place, self.base).ok_or_else(|| KernelError::MissingKey {
            key: "SYMBOL(kallsyms_relative_base)".to_owned(),
            purpose: PURPOSE,
        })
    }

    /// The coding that gives all `witnesses` their addresses, and whether the table behind the names confirms their lengths.
    fn judge(&self, mem: &mut dyn VirtualMemory, witnesses: &[(&'static str, VirtAddr)]) -> Result<(Coding, bool)> {
        let wanted: Vec<&str> = witnesses.iter().map(|w| w.0).collect();
        let (found, end) = self.indexes(mem, &wanted)?;
        // _stext is always a symbol; data symbols only with KALLSYMS_ALL.
        let mut claims = Vec::new();
        for (name, address) in witnesses {
            match found.get(name) {
                Some(Found { copies: 1, index, .. }) => claims.push((*index, *address)),
                None if *name == "_stext" => {
                    return Err(KernelError::Kallsyms { why: "the names read do not contain _stext".to_owned() });
                }
                _ => {}
            }
        }
        for coding in Coding::ALL {
            let mut fits = !claims.is_empty() && (coding == Coding::PlaceRelative || self.base.is_some());
            for (index, address) in &claims {
                fits = fits && self.address(mem, coding, *index)? == *address;
            }
            if fits {
                return Ok((coding, end.confirmed(mem)));
            }
        }
        Err(KernelError::Kallsyms {
            why: format!(
                "no known coding of the offsets gives _stext its address; symbol number {} of {} has that name",
                found.get("_stext").map_or(0, |f| f.index),
                self.count
            ),
        })
    }

    /// One pass over all names.
    fn indexes<'n>(
        &self,
        mem: &mut dyn VirtualMemory,
        wanted: &[&'n str],
    ) -> Result<(HashMap<&'n str, Found>, NamesEnd)> {
        let by_name: HashMap<&[u8], &'n str> = wanted.iter().map(|name| (name.as_bytes(), *name)).collect();
        // Nearly all names are passed over by their length alone.
        let mut lengths = vec![false; MAX_NAME + 1];
        for name in wanted {
            if let Some(slot) = lengths.get_mut(name.len() + 1) {
                *slot = true;
            }
        }
        let mut found: HashMap<&'n str, Found> = HashMap::new();
        let mut names = Names::new(mem, self.names, self.lengths);
        let mut text = Vec::new();
        let mut end = NamesEnd { at: self.names, second: None, last: (0, 0) };
        for index in 0..self.count {
            if index % MARKER_EVERY == 0 {
                let offset = names.position().0.wrapping_sub(self.names.0);
                end.last = (index / MARKER_EVERY, offset);
                if index == MARKER_EVERY {
                    end.second = Some(offset);
                }
            }
            let tokens = names.next()?;
            if !lengths.get(self.tokens.length(tokens)).is_some_and(|wanted| *wanted) {
                continue;
            }
            self.tokens.expand(tokens, &mut text);
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
        end.at = names.position();
        Ok((found, end))
    }
}

#[derive(Clone, Copy)]
struct Found {
    index: u32,
    kind: u8,
    copies: u32,
}

/// Where a pass over the names ended, and where `kallsyms_markers`, if the pass read the lengths right, says that names begin.
struct NamesEnd {
    at: VirtAddr,
    /// Offset of name 256.
    second: Option<u64>,
    /// The last multiple of 256, and the offset of that name.
    last: (u32, u64),
}

impl NamesEnd {
    /// Whether the markers are behind the names and say the same. They are aligned to 8 bytes, in some kernels to 4.
    fn confirmed(&self, mem: &mut dyn VirtualMemory) -> bool {
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
struct Tokens {
    text: Vec<u8>,
    /// Where in `text` each begins, and its length.
    pieces: [(u16, u16); 256],
}

impl Tokens {
    fn read(mem: &mut dyn VirtualMemory, table: VirtAddr, index: VirtAddr) -> Result<Self> {
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

    fn piece(&self, token: u8) -> (u16, u16) {
        self.pieces.get(usize::from(token)).copied().unwrap_or_default()
    }

    /// Characters of a name, the type letter included.
    fn length(&self, tokens: &[u8]) -> usize {
        tokens.iter().map(|token| usize::from(self.piece(*token).1)).sum()
    }

    /// Writes the name, type letter first, to `text`.
    fn expand(&self, tokens: &[u8], text: &mut Vec<u8>) {
        text.clear();
        for token in tokens {
            let (start, length) = self.piece(*token);
            let piece = self.text.get(usize::from(start)..).and_then(|t| t.get(..usize::from(length)));
            text.extend_from_slice(piece.unwrap_or_default());
            text.truncate(MAX_NAME);
        }
    }
}

/// A pass over the names, a block at a time.
struct Names<'m> {
    mem: &'m mut dyn VirtualMemory,
    start: VirtAddr,
    lengths: Lengths,
    block: Vec<u8>,
    /// Bytes of the block that are used up.
    used: usize,
    /// Address behind the block.
    next: VirtAddr,
}

impl<'m> Names<'m> {
    fn new(mem: &'m mut dyn VirtualMemory, start: VirtAddr, lengths: Lengths) -> Self {
        Self { mem, start, lengths, block: Vec::with_capacity(BLOCK), used: 0, next: start }
    }

    /// Where the next name begins.
    fn position(&self) -> VirtAddr {
        VirtAddr(self.next.0.wrapping_sub((self.block.len() - self.used) as u64))
    }

    /// The tokens of the next name.
    fn next(&mut self) -> Result<&[u8]> {
        let mut length = usize::from(self.byte()?);
        if self.lengths == Lengths::OneOrTwoBytes && length & 0x80 != 0 {
            let high = usize::from(self.byte()?);
            length = length & 0x7f | high << 7;
        }
        if !(1..=MAX_NAME).contains(&length) {
            let addr = self.position();
            let hint = ", for it is the length of a name";
            return Err(KernelError::Implausible { what: "kallsyms_names", addr, value: length as u64, hint });
        }
        self.have(length)?;
        let tokens = self.block.get(self.used..self.used + length);
        self.used += length;
        Ok(tokens.unwrap_or_default())
    }

    #[inline]
    fn byte(&mut self) -> Result<u8> {
        self.have(1)?;
        let byte = self.block.get(self.used).copied().unwrap_or_default();
        self.used += 1;
        Ok(byte)
    }

    /// Makes the block hold `n` unused bytes, of which it has room for many times as many.
    #[inline]
    fn have(&mut self, n: usize) -> Result<()> {
        if self.block.len() - self.used >= n { Ok(()) } else { self.fill(n) }
    }

    /// Reads to the end of the block, but what cannot be read beyond the `n` bytes needed is not missed: the table may be the
    /// last thing in its page.
    fn fill(&mut self, n: usize) -> Result<()> {
        self.block.drain(..self.used);
        self.used = 0;
        if self.next.0.wrapping_sub(self.start.0) > MAX_NAMES_BYTES {
            return Err(KernelError::Kallsyms { why: format!("the names go on beyond {MAX_NAMES_BYTES} bytes") });
        }
        while self.block.len() < BLOCK {
            let have = self.block.len();
            let piece = (PIECE - self.next.0 % PIECE) as usize;
            self.block.resize(have + piece, 0);
            let (_, room) = self.block.split_at_mut(have);
            match self.mem.read_virt(self.next, room) {
                Ok(()) => self.next = self.next.plus(piece as u64),
                Err(e) => {
                    self.block.truncate(have);
                    return if have < n { Err(e) } else { Ok(()) };
                }
            }
        }
        Ok(())
    }
}
