//! Which kind of machine a dump is of.

use std::fmt;

/// A machine by its ELF number (`e_machine`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Machine(pub u16);

impl Machine {
    /// Not said by the file.
    pub const UNKNOWN: Self = Self(0);
    /// EM_386.
    pub const I386: Self = Self(3);
    /// EM_MIPS.
    pub const MIPS: Self = Self(8);
    /// EM_PPC.
    pub const PPC: Self = Self(20);
    /// EM_PPC64.
    pub const PPC64: Self = Self(21);
    /// EM_S390.
    pub const S390: Self = Self(22);
    /// EM_ARM.
    pub const ARM: Self = Self(40);
    /// EM_SPARCV9.
    pub const SPARC64: Self = Self(43);
    /// EM_IA_64.
    pub const IA64: Self = Self(50);
    /// EM_X86_64.
    pub const X86_64: Self = Self(62);
    /// EM_AARCH64.
    pub const AARCH64: Self = Self(183);
    /// EM_RISCV.
    pub const RISCV: Self = Self(243);
    /// EM_LOONGARCH.
    pub const LOONGARCH: Self = Self(258);
}

/// What `uname -m` begins with; longer names stand before what they begin with.
const UTS_NAMES: &[(&str, Machine)] = &[
    ("x86_64", Machine::X86_64),
    ("i386", Machine::I386),
    ("i486", Machine::I386),
    ("i586", Machine::I386),
    ("i686", Machine::I386),
    ("aarch64", Machine::AARCH64),
    ("arm", Machine::ARM),
    ("ppc64", Machine::PPC64),
    ("ppc", Machine::PPC),
    ("s390", Machine::S390),
    ("riscv", Machine::RISCV),
    ("loongarch", Machine::LOONGARCH),
    ("mips", Machine::MIPS),
    ("sparc64", Machine::SPARC64),
    ("ia64", Machine::IA64),
];

impl Machine {
    /// The machine that `uname -m` calls `name`, [`Self::UNKNOWN`] for other names.
    #[must_use]
    pub fn from_uts(name: &[u8]) -> Self {
        UTS_NAMES.iter().find(|(uts, _)| name.starts_with(uts.as_bytes())).map_or(Self::UNKNOWN, |(_, m)| *m)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UTS_NAMES.iter().find(|(_, m)| m == self) {
            Some((name, _)) => f.pad(name),
            None if *self == Self::UNKNOWN => f.pad("unknown machine"),
            None => write!(f, "machine {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_uname_lead_to_elf_numbers_and_back() {
        for (uts, number) in
            [("x86_64", 62), ("ppc64le", 21), ("armv7l", 40), ("i686", 3), ("riscv64", 243), ("vax", 0)]
        {
            assert_eq!(Machine::from_uts(uts.as_bytes()).0, number, "{uts}");
        }
        assert_eq!(Machine::X86_64.to_string(), "x86_64");
        assert_eq!(Machine(9999).to_string(), "machine 9999");
    }
}
