//! What is to be explained, as a user names it.

use coresift_format::{Pfn, PhysAddr};
use coresift_kernel::VirtAddr;
use std::fmt;
use std::str::FromStr;

/// A page frame, by one of its names.
///
/// Text is told apart by what it begins with: `pfn:`, `phys:` and `virt:` say it; `0x` alone is an address, a virtual one from
/// 0xff00000000000000 on (the kernel's half with the deepest page tables there are); a decimal number is a page frame number;
/// anything else is a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A page frame number.
    Pfn(Pfn),
    /// A physical address.
    Physical(PhysAddr),
    /// A kernel virtual address.
    Virtual(VirtAddr),
    /// A kernel symbol.
    Symbol(String),
}

/// Text that names no page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no page: give a page frame number (4711, pfn:0x1267), a physical address (0x1267000, phys:0x1267000), a kernel \
     virtual address (0xffff888001267000, virt:...) or a symbol (init_task)"
)]
pub struct UnknownSubject(String);

/// Lowest address of the kernel's half with 5 levels of page tables; no physical address of x86-64 has more than 52 bits.
const KERNEL_HALF: u64 = 0xff00_0000_0000_0000;

/// Highest page frame number of the smallest pages there are, of 4 KiB: what is higher has no physical address.
const MAX_PFN: u64 = u64::MAX >> 12;

impl FromStr for Subject {
    type Err = UnknownSubject;

    fn from_str(text: &str) -> Result<Self, UnknownSubject> {
        let unknown = || UnknownSubject(text.to_owned());
        let hex = |digits: &str| u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok();
        let number = |text: &str| if text.starts_with("0x") { hex(text) } else { text.parse().ok() };
        let frame = |text: &str| number(text).filter(|n| *n <= MAX_PFN).map(|n| Self::Pfn(Pfn(n)));
        if let Some((kind, rest)) = text.split_once(':') {
            return match kind {
                "pfn" => frame(rest),
                "phys" => hex(rest).map(|n| Self::Physical(PhysAddr(n))),
                "virt" => hex(rest).map(|n| Self::Virtual(VirtAddr(n))),
                _ => None,
            }
            .ok_or_else(unknown);
        }
        if text.starts_with("0x") {
            let address = hex(text).ok_or_else(unknown)?;
            return Ok(if address >= KERNEL_HALF {
                Self::Virtual(VirtAddr(address))
            } else {
                Self::Physical(PhysAddr(address))
            });
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return frame(text).ok_or_else(unknown);
        }
        let symbol = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.$".contains(c));
        if symbol { Ok(Self::Symbol(text.to_owned())) } else { Err(unknown()) }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pfn(pfn) => pfn.fmt(f),
            Self::Physical(addr) => write!(f, "physical address {addr}"),
            Self::Virtual(addr) => write!(f, "virtual address {addr}"),
            Self::Symbol(name) => write!(f, "symbol {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_by_how_it_begins() {
        let pfn = |n| Ok(Subject::Pfn(Pfn(n)));
        let phys = |n| Ok(Subject::Physical(PhysAddr(n)));
        let virt = |n| Ok(Subject::Virtual(VirtAddr(n)));
        for (text, expected) in [
            ("4711", pfn(4711)),
            ("pfn:4711", pfn(4711)),
            ("pfn:0x1267", pfn(0x1267)),
            ("pfn:0xfffffffffffff", pfn(0xf_ffff_ffff_ffff)),
            ("0x1267000", phys(0x126_7000)),
            ("phys:1267000", phys(0x126_7000)),
            ("0xfeffffffffffffff", phys(0xfeff_ffff_ffff_ffff)),
            ("0xff00000000000000", virt(0xff00_0000_0000_0000)),
            ("virt:ffff888000000000", virt(0xffff_8880_0000_0000)),
            ("init_task", Ok(Subject::Symbol("init_task".to_owned()))),
        ] {
            assert_eq!(text.parse::<Subject>(), expected, "{text}");
        }
        for text in [
            "",
            "0x",
            "12k",
            "page:1",
            "a b",
            "pfn:",
            "0x10000000000000000",
            "-1",
            "18446744073709551615",
            "pfn:0x10000000000000",
        ] {
            assert!(text.parse::<Subject>().is_err(), "{text}");
        }
    }
}
