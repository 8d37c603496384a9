//! The flags of /proc/kpageflags, and the class they tell.

use crate::frames::Mapping;
use coresift_kernel::PageClass;
use std::fmt::Write;

/// A flag of /proc/kpageflags: its bit, and the kernel's name in lower case.
struct Bit(u32, &'static str);

/// Flags up to 31 are promised to programs (`include/uapi/linux/kernel-page-flags.h`), those above are shown for kernel developers
/// (`include/linux/kernel-page-flags.h`). Bit 1 is unused since Linux 6.11.
const BITS: [Bit; 38] = [
    Bit(0, "locked"),
    Bit(1, "error"),
    Bit(2, "referenced"),
    Bit(3, "uptodate"),
    Bit(4, "dirty"),
    Bit(5, "lru"),
    Bit(6, "active"),
    Bit(7, "slab"),
    Bit(8, "writeback"),
    Bit(9, "reclaim"),
    Bit(10, "buddy"),
    Bit(11, "mmap"),
    Bit(12, "anon"),
    Bit(13, "swapcache"),
    Bit(14, "swapbacked"),
    Bit(15, "compound_head"),
    Bit(16, "compound_tail"),
    Bit(17, "huge"),
    Bit(18, "unevictable"),
    Bit(19, "hwpoison"),
    Bit(20, "nopage"),
    Bit(21, "ksm"),
    Bit(22, "thp"),
    Bit(23, "offline"),
    Bit(24, "zero_page"),
    Bit(25, "idle"),
    Bit(26, "pgtable"),
    Bit(32, "reserved"),
    Bit(33, "mlocked"),
    Bit(34, "mappedtodisk"),
    Bit(35, "private"),
    Bit(36, "private_2"),
    Bit(37, "owner_private"),
    Bit(38, "arch"),
    Bit(39, "uncached"),
    Bit(40, "softdirty"),
    Bit(41, "arch_2"),
    Bit(42, "arch_3"),
];

/// A word of /proc/kpageflags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kpf(pub u64);

impl Kpf {
    pub(crate) const SLAB: Self = Self(1 << 7);
    const LRU: Self = Self(1 << 5);
    pub(crate) const BUDDY: Self = Self(1 << 10);
    pub(crate) const MMAP: Self = Self(1 << 11);
    const ANON: Self = Self(1 << 12);
    const SWAPCACHE: Self = Self(1 << 13);
    const SWAPBACKED: Self = Self(1 << 14);
    pub(crate) const HEAD: Self = Self(1 << 15);
    pub(crate) const TAIL: Self = Self(1 << 16);
    const HUGE: Self = Self(1 << 17);
    const HWPOISON: Self = Self(1 << 19);
    pub(crate) const NOPAGE: Self = Self(1 << 20);
    const KSM: Self = Self(1 << 21);
    pub(crate) const OFFLINE: Self = Self(1 << 23);
    const PGTABLE: Self = Self(1 << 26);
    const PRIVATE: Self = Self(1 << 35);

    /// Whether any of `flags` is set.
    #[must_use]
    pub const fn any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Both sets of flags.
    #[must_use]
    pub const fn or(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// The names of the flags set, lowest bit first, joined by `|`; a bit without a name is `bit_` and its number.
    #[must_use]
    pub fn names(self) -> String {
        let mut text = String::new();
        let mut rest = self.0;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            if !text.is_empty() {
                text.push('|');
            }
            match BITS.iter().find(|b| b.0 == bit) {
                Some(known) => text.push_str(known.1),
                None => {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "bit_{bit}");
                }
            }
        }
        text
    }

    /// The class, by the rules that dumping follows as far as these flags tell them. A tail's is its head's.
    #[must_use]
    pub const fn class(self) -> PageClass {
        if self.any(Self::NOPAGE) {
            PageClass::Kernel
        } else if self.any(Self::HWPOISON) {
            PageClass::HwPoison
        } else if self.any(Self::OFFLINE) {
            PageClass::Offline
        } else if self.any(Self::HUGE) {
            PageClass::HugeTlb
        } else if self.any(Self::SLAB) {
            PageClass::Slab
        } else if self.any(Self::BUDDY) {
            PageClass::Free
        } else if self.any(Self::PGTABLE) {
            PageClass::Kernel
        } else if self.any(Self::ANON) {
            PageClass::User
        } else if self.any(Self::LRU) || self.any(Self::SWAPCACHE) && self.any(Self::SWAPBACKED) {
            if self.any(Self::PRIVATE) { PageClass::PrivateCache } else { PageClass::Cache }
        } else {
            PageClass::Kernel
        }
    }

    /// What its mapping is, as far as these flags tell: a driver's movable page looks like the kernel's own.
    #[must_use]
    pub const fn mapping(self) -> Option<Mapping> {
        if self.any(Self::KSM) {
            Some(Mapping::Ksm)
        } else if self.any(Self::ANON) {
            Some(Mapping::Anon)
        } else if matches!(self.class(), PageClass::Cache | PageClass::PrivateCache) {
            Some(Mapping::File)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_from_the_lowest_bit_and_unnamed_bits_have_their_number() {
        assert_eq!(Kpf(0).names(), "");
        assert_eq!(Kpf(1 << 5 | 1 << 12 | 1 << 63).names(), "lru|anon|bit_63");
    }

    #[test]
    fn poison_and_offline_go_before_what_the_page_was() {
        assert_eq!(Kpf(1 << 19 | 1 << 12 | 1 << 5).class(), PageClass::HwPoison);
        assert_eq!(Kpf(1 << 23).class(), PageClass::Offline);
        assert_eq!(Kpf(1 << 5 | 1 << 35).class(), PageClass::PrivateCache);
        assert_eq!(Kpf(1 << 5).class(), PageClass::Cache);
        assert_eq!(Kpf(1 << 10).class(), PageClass::Free);
    }
}
