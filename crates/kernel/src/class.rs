//! What a page frame belongs to, and which of it the dump level leaves out.

use std::fmt;
use std::str::FromStr;

/// What a page frame holds, as told by its `struct page` (or, for [`PageClass::Zero`], by its content).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageClass {
    /// The kernel's own: anything no other class claims. Always kept.
    Kernel,
    /// Slab memory. Always kept.
    Slab,
    /// Filled with zeros. Found while copying; every class but the excluded ones can have such pages.
    Zero,
    /// File cache without private data (buffer heads and the like).
    Cache,
    /// File cache with private data.
    PrivateCache,
    /// Anonymous memory of processes, transparent huge pages and KSM included.
    User,
    /// Pages of hugetlbfs, used or in its free pool.
    HugeTlb,
    /// Free in the buddy allocator.
    Free,
    /// Given to a confidential guest, but not accepted yet: no content.
    Unaccepted,
    /// Logically offline (ballooned, hot-unplugged): must not be read.
    Offline,
    /// Hardware poisoned: must not be read.
    HwPoison,
}

impl PageClass {
    /// All classes, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Kernel,
        Self::Slab,
        Self::Zero,
        Self::Cache,
        Self::PrivateCache,
        Self::User,
        Self::HugeTlb,
        Self::Free,
        Self::Unaccepted,
        Self::Offline,
        Self::HwPoison,
    ];

    /// The name used on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Slab => "slab",
            Self::Zero => "zero",
            Self::Cache => "cache",
            Self::PrivateCache => "private-cache",
            Self::User => "user",
            Self::HugeTlb => "hugetlb",
            Self::Free => "free",
            Self::Unaccepted => "unaccepted",
            Self::Offline => "offline",
            Self::HwPoison => "hwpoison",
        }
    }
}

impl fmt::Display for PageClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of page classes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ClassSet(u16);

impl ClassSet {
    /// No class.
    pub const NONE: Self = Self(0);
    /// Classes whose pages must never be read, so that no level keeps them.
    pub const UNREADABLE: Self = Self::of(&[PageClass::Offline, PageClass::HwPoison]);
    /// Classes a user may leave out or keep.
    pub const SELECTABLE: Self = Self::of(&[
        PageClass::Zero,
        PageClass::Cache,
        PageClass::PrivateCache,
        PageClass::User,
        PageClass::HugeTlb,
        PageClass::Free,
        PageClass::Unaccepted,
    ]);

    /// The set of the given classes.
    #[must_use]
    pub const fn of(classes: &[PageClass]) -> Self {
        let mut bits = 0;
        let mut rest = classes;
        while let [first, tail @ ..] = rest {
            bits |= 1 << *first as u16;
            rest = tail;
        }
        Self(bits)
    }

    /// Whether `class` is in the set.
    #[must_use]
    pub const fn has(self, class: PageClass) -> bool {
        self.0 >> class as u16 & 1 == 1
    }

    /// Classes in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Classes in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Classes of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether no class is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The classes of the set, in the order of [`PageClass::ALL`].
    pub fn iter(self) -> impl Iterator<Item = PageClass> {
        PageClass::ALL.into_iter().filter(move |c| self.has(*c))
    }
}

impl fmt::Debug for ClassSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl fmt::Display for ClassSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, class) in self.iter().enumerate() {
            write!(f, "{}{class}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for ClassSet {
    type Err = UnknownClass;

    /// Reads a list such as `zero,cache,free`.
    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).try_fold(Self::NONE, |set, name| {
            let class =
                Self::SELECTABLE.iter().find(|c| c.name() == name).ok_or_else(|| UnknownClass(name.to_owned()))?;
            Ok(set.union(Self::of(&[class])))
        })
    }
}

/// A page class that does not exist or is not a user's to choose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no page class that can be chosen; the classes are {all}", all = ClassSet::SELECTABLE)]
pub struct UnknownClass(pub String);

/// makedumpfile's dump level: five bits, each a group of page classes to leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DumpLevel(u8);

impl DumpLevel {
    /// What each bit leaves out. Bit 4 includes the pages of bit 2, as in makedumpfile.
    pub const BITS: [(u8, ClassSet); 5] = [
        (1, ClassSet::of(&[PageClass::Zero])),
        (2, ClassSet::of(&[PageClass::Cache])),
        (4, ClassSet::of(&[PageClass::Cache, PageClass::PrivateCache])),
        (8, ClassSet::of(&[PageClass::User, PageClass::HugeTlb])),
        (16, ClassSet::of(&[PageClass::Free, PageClass::Unaccepted])),
    ];

    /// The level `number`, if it is one of 0 to 31.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number <= 31 { Some(Self(number)) } else { None }
    }

    /// The number everyone knows.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The classes this level leaves out, those that must never be read included.
    #[must_use]
    pub fn excluded(self) -> ClassSet {
        Self::BITS
            .iter()
            .filter(|(bit, _)| self.0 & bit != 0)
            .fold(ClassSet::UNREADABLE, |set, (_, classes)| set.union(*classes))
    }

    /// The level to record for a dump without the classes of `excluded`: a bit is set where anything it stands for may be
    /// missing, so that a reader never takes a missing page for one that was not there.
    #[must_use]
    pub fn describing(excluded: ClassSet) -> Self {
        let missing = |bit: u8| -> ClassSet {
            match bit {
                4 => ClassSet::of(&[PageClass::PrivateCache]),
                _ => Self::BITS.iter().find(|(b, _)| *b == bit).map_or(ClassSet::NONE, |(_, c)| *c),
            }
        };
        Self(Self::BITS.iter().filter(|(b, _)| !missing(*b).intersection(excluded).is_empty()).map(|(b, _)| b).sum())
    }
}

impl fmt::Display for DumpLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_describes_itself_and_bit_4_implies_bit_2() {
        for n in 0..=31u8 {
            let level = DumpLevel::new(n).unwrap();
            let described = DumpLevel::describing(level.excluded()).number();
            assert_eq!(described, if n & 4 != 0 { n | 2 } else { n }, "level {n}");
        }
        assert_eq!(DumpLevel::new(32), None);
    }

    #[test]
    fn class_lists_are_read_and_printed() {
        let set: ClassSet = "free, hugetlb".parse().unwrap();
        assert_eq!(set.to_string(), "hugetlb,free");
        assert_eq!("slab".parse::<ClassSet>(), Err(UnknownClass("slab".into())));
        assert_eq!("".parse::<ClassSet>(), Ok(ClassSet::NONE));
    }
}
