//! Symbols out of the crashed kernel's own memory: the tables behind /proc/kallsyms (scripts/kallsyms.c, kernel/kallsyms.c).
//!
//! ```text
//! names          for each symbol, in the order of addresses: length, that many tokens
//! token_index    for each token: where in token_table its text begins
//! token_table    texts, each ended by a NUL; a name's first character is the type letter of nm
//! offsets        for each symbol 32 bits, of which one of three codings makes the address
//! ```
//!
//! VMCOREINFO says where they are since Linux 6.0. Nothing is kept but the tokens (about 1 KiB): a pass over the names,
//! which reads them in blocks, takes less than a millisecond a MiB.

use crate::error::{KernelError, Result};
use crate::virt::{VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use names::{Found, Lengths, Names, Tokens};
use std::collections::HashMap;

mod names;
#[cfg(test)]
mod tests;

/// A distribution's kernel has 200,000 symbols, one with everything built in less than a million.
const MAX_SYMBOLS: u32 = 1 << 22;
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
    /// as well. Finds `wanted` on the way, as [`Self::lookup`] does: reads all names once, or twice where the first reading makes
    /// no sense.
    ///
    /// # Errors
    /// A key is missing (before Linux 6.0 all are), the tables are not in the dump, or no known coding gives the known addresses.
    pub fn open<'n>(
        info: &VmcoreInfo,
        mem: &mut dyn VirtualMemory,
        wanted: &[&'n str],
    ) -> Result<(Self, HashMap<&'n str, Symbol>)> {
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
        let names: Vec<&'n str> = wanted.iter().copied().chain(witnesses.iter().map(|w| w.0)).collect();
        let mut best = None;
        let mut failure = None;
        for lengths in Lengths::ALL {
            tables.lengths = lengths;
            match tables.judge(mem, &witnesses, &names) {
                Ok((coding, found, confirmed)) => {
                    if confirmed || best.is_none() {
                        best = Some((lengths, coding, found));
                    }
                    if confirmed {
                        break;
                    }
                }
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        let Some((lengths, coding, mut found)) = best else {
            let why = || KernelError::Kallsyms { why: "no way to write lengths was tried".to_owned() };
            return Err(failure.unwrap_or_else(why));
        };
        let tables = Self { lengths, coding, ..tables };
        found.retain(|name, _| wanted.contains(name));
        let symbols = tables.symbols(mem, found)?;
        Ok((tables, symbols))
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
        let (found, _) = names::find(&mut self.pass(mem), self.count, &self.tokens, wanted)?;
        self.symbols(mem, found)
    }

    /// All symbols called `name`, in the order of their addresses: their types and addresses.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub fn all(&self, mem: &mut dyn VirtualMemory, name: &str) -> Result<Vec<Symbol>> {
        let mut found = Vec::new();
        let mut names = self.pass(mem);
        let mut text = Vec::new();
        for index in 0..self.count {
            self.tokens.expand(names.next()?, &mut text);
            if let Some((kind, have)) = text.split_first()
                && have == name.as_bytes()
            {
                found.push((index, *kind));
            }
        }
        let copies = found.len() as u32;
        let symbol = |(index, kind)| Ok(Symbol { address: self.address(mem, self.coding, index)?, kind, copies });
        found.into_iter().map(symbol).collect()
    }

    fn symbols<'n>(
        &self,
        mem: &mut dyn VirtualMemory,
        found: HashMap<&'n str, Found>,
    ) -> Result<HashMap<&'n str, Symbol>> {
        let symbol = |(name, Found { index, kind, copies })| {
            Ok((name, Symbol { address: self.address(mem, self.coding, index)?, kind, copies }))
        };
        found.into_iter().map(symbol).collect()
    }

    fn pass<'m>(&self, mem: &'m mut dyn VirtualMemory) -> Names<'m> {
        Names::new(mem, self.names, self.lengths)
    }

    /// The symbol at or before `addr`, and how many bytes before. `None` before the first symbol and from the last one on.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub fn symbol_at(&self, mem: &mut dyn VirtualMemory, addr: VirtAddr) -> Result<Option<(String, u64)>> {
        Ok(self.nearest(mem, addr)?.map(|(name, _, offset)| (name, offset)))
    }

    /// Where the symbol at or before `addr` begins, without its name and so without a pass over the names.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub(crate) fn start_of(&self, mem: &mut dyn VirtualMemory, addr: VirtAddr) -> Result<Option<VirtAddr>> {
        let upto = self.partition(mem, |at| at <= addr)?;
        upto.checked_sub(1).filter(|_| upto < self.count).map(|last| self.address(mem, self.coding, last)).transpose()
    }

    /// As [`Self::symbol_at`], with the symbol's type in the middle.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub fn nearest(&self, mem: &mut dyn VirtualMemory, addr: VirtAddr) -> Result<Option<(String, u8, u64)>> {
        // The number of symbols up to `addr`, then the first of those that share the address of the last.
        let upto = self.partition(mem, |at| at <= addr)?;
        let Some(last) = upto.checked_sub(1).filter(|_| upto < self.count) else { return Ok(None) };
        let start = self.address(mem, self.coding, last)?;
        let first = self.partition(mem, |at| at < start)?;
        let mut names = self.pass(mem);
        for _ in 0..first {
            names.next()?;
        }
        let mut text = Vec::new();
        self.tokens.expand(names.next()?, &mut text);
        let (kind, name) = text.split_first().unwrap_or((&b'?', &[]));
        Ok(Some((String::from_utf8_lossy(name).into_owned(), *kind, addr.0.wrapping_sub(start.0))))
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

    /// Finds `names`, and the coding that gives all `witnesses` among them their addresses. Whether the table behind the names
    /// confirms their lengths is told as well.
    fn judge<'n>(
        &self,
        mem: &mut dyn VirtualMemory,
        witnesses: &[(&'static str, VirtAddr)],
        names: &[&'n str],
    ) -> Result<(Coding, HashMap<&'n str, Found>, bool)> {
        let (found, end) = names::find(&mut self.pass(mem), self.count, &self.tokens, names)?;
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
                return Ok((coding, found, end.confirmed(mem)));
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
}
