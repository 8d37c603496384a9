//! Numbers that must not be mixed up: page frame numbers, physical addresses, byte offsets.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// `self + n`, or the largest value where that would overflow.
            #[must_use]
            pub const fn plus(self, n: u64) -> Self {
                Self(self.0.saturating_add(n))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
    };
}

number!(
    /// A page frame number: physical address divided by the page size.
    Pfn,
    "pfn {:#x}"
);
number!(
    /// A physical address, in bytes.
    PhysAddr,
    "{:#x}"
);
number!(
    /// An offset in a file, in bytes.
    ByteOffset,
    "{}"
);

impl PhysAddr {
    /// The page frame this address lies in.
    #[must_use]
    pub const fn pfn(self, page: PageSize) -> Pfn {
        Pfn(self.0 >> page.shift())
    }
}

impl Pfn {
    /// The first byte of this page frame.
    #[must_use]
    pub const fn addr(self, page: PageSize) -> PhysAddr {
        PhysAddr(self.0 << page.shift())
    }
}

/// The page size of the crashed kernel: a power of two from 4 KiB to 256 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageSize(u8);

impl PageSize {
    /// 4 KiB, the page of x86-64.
    pub const K4: Self = Self(12);

    /// A page size in bytes, if it is one a kernel can have.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= 4 << 10 && bytes <= 256 << 10 {
            Some(Self(bytes.trailing_zeros() as u8))
        } else {
            None
        }
    }

    /// log2 of the size.
    #[must_use]
    pub const fn shift(self) -> u32 {
        self.0 as u32
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.0
    }

    /// `addr` modulo the page size.
    #[must_use]
    pub const fn offset_of(self, addr: u64) -> usize {
        (addr & ((1 << self.0) - 1)) as usize
    }

    /// The number of pages that `bytes` bytes need.
    #[must_use]
    pub const fn pages_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_page_sizes_are_accepted() {
        for ok in [4096, 16384, 65536, 262_144] {
            assert_eq!(PageSize::new(ok).map(|p| p.bytes() as u64), Some(ok));
        }
        for bad in [0, 1, 3, 512, 2048, 4097, 524_288, 1 << 31, u64::MAX] {
            assert_eq!(PageSize::new(bad), None, "{bad}");
        }
    }
}
