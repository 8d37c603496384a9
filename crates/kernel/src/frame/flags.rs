//! Names of page flags.

use crate::symbols::{Symbols, Wanted};
use crate::vmcoreinfo::VmcoreInfo;

/// Page flags by their own names (`enum pageflags`, Linux 2.6.25 to 7.2); the others there are aliases for a use.
pub const FLAGS_WANTED: Wanted = Wanted {
    enumerators: &[
        "PG_locked",
        "PG_writeback",
        "PG_referenced",
        "PG_uptodate",
        "PG_dirty",
        "PG_lru",
        "PG_head",
        "PG_waiters",
        "PG_active",
        "PG_workingset",
        "PG_error",
        "PG_slab",
        "PG_owner_priv_1",
        "PG_owner_2",
        "PG_arch_1",
        "PG_reserved",
        "PG_private",
        "PG_private_2",
        "PG_mappedtodisk",
        "PG_reclaim",
        "PG_swapbacked",
        "PG_unevictable",
        "PG_dropbehind",
        "PG_mlocked",
        "PG_uncached",
        "PG_hwpoison",
        "PG_young",
        "PG_idle",
        "PG_arch_2",
        "PG_arch_3",
        COUNT,
    ],
    ..Wanted::NONE
};

/// One more than the highest flag.
const COUNT: &str = "__NR_PAGEFLAGS";
/// Numbers of page flags that VMCOREINFO exports.
const EXPORTED: &[&str] = &["PG_lru", "PG_private", "PG_swapbacked", "PG_slab", "PG_hwpoison"];
/// Bits that hold flags in every configuration, where the kernel does not tell: section, node and zone are above
/// (include/linux/page-flags-layout.h).
const FLAGS: u32 = 21;

/// The page flags of one kernel.
#[derive(Clone, Debug)]
pub struct FlagNames {
    /// By their numbers.
    names: [Option<&'static str>; u64::BITS as usize],
    /// Bits that are flags.
    mask: u64,
}

impl FlagNames {
    /// By `symbols`, those that [`FLAGS_WANTED`] found, else those that VMCOREINFO tells.
    #[must_use]
    pub fn new(symbols: Option<&Symbols>, info: &VmcoreInfo) -> Self {
        let by_types = |name| symbols.and_then(|s| u32::try_from(s.enumerator(name, "naming page flags").ok()?).ok());
        let exported = EXPORTED.iter().filter_map(|name| Some((info.bit(name).ok()??, *name)));
        let typed = FLAGS_WANTED.enumerators.iter().filter(|name| **name != COUNT);
        let typed = typed.filter_map(|name| Some((by_types(name)?, *name)));
        let (mut names, mut last) = ([None; u64::BITS as usize], FLAGS - 1);
        for (number, name) in typed.chain(exported) {
            if let Some(slot) = names.get_mut(number as usize) {
                slot.get_or_insert(name);
                last = last.max(number);
            }
        }
        let count = by_types(COUNT).filter(|n| (1..u64::BITS).contains(n)).unwrap_or(last + 1);
        Self { names, mask: u64::MAX >> (u64::BITS - count) }
    }

    /// The bits of `page.flags` that are flags.
    #[must_use]
    pub const fn mask(&self) -> u64 {
        self.mask
    }

    /// The flags set in `flags`, lowest first: number and, where it is known, name.
    pub fn set(&self, flags: u64) -> impl Iterator<Item = (u32, Option<&'static str>)> + '_ {
        let flags = flags & self.mask;
        (0..).zip(&self.names).filter(move |(bit, _)| flags >> bit & 1 == 1).map(|(bit, name)| (bit, *name))
    }

    /// The names of the flags set, lowest first, joined by `|`, without `PG_`; a flag without a known name is `bit_` and its number.
    #[must_use]
    pub fn text(&self, flags: u64) -> String {
        let name = |(bit, name): (u32, Option<&'static str>)| match name {
            Some(name) => name.trim_start_matches("PG_").to_owned(),
            None => format!("bit_{bit}"),
        };
        self.set(flags).map(name).collect::<Vec<_>>().join("|")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_types_the_flags_that_vmcoreinfo_tells_have_names() {
        let info = VmcoreInfo::parse(b"NUMBER(PG_lru)=4\nNUMBER(PG_hwpoison)=23\n");
        let names = FlagNames::new(None, &info);
        assert_eq!(names.text(1 << 4 | 1 << 23 | 1 << 2 | 1 << 40), "bit_2|lru|hwpoison");
        assert_eq!(names.mask(), (1 << 24) - 1);
    }
}
