//! The kernel symbols and types this program asks for by name: one pass over kallsyms, one over BTF (Linux 6.0 on), for all names
//! together.

use crate::btf::Btf;
use crate::counters;
use crate::debugger;
use crate::error::{KernelError, Result};
use crate::kallsyms::Kallsyms;
use crate::protected;
use crate::virt::{VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use std::collections::HashMap;

/// What a part of this program asks the kernel's symbols and types for: a table at the place that asks. Parts of a path to a member are
/// separated by dots; members of anonymous structs and unions belong to the struct around them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Names of symbols.
    pub symbols: &'static [&'static str],
    /// Structures (or typedefs), and members of them.
    pub members: &'static [(&'static str, &'static str)],
    /// Structures (or typedefs) whose sizes are wanted.
    pub sizes: &'static [&'static str],
    /// Names of enumerators.
    pub enumerators: &'static [&'static str],
}

impl Wanted {
    /// Nothing, to be filled in with what is wanted.
    pub const NONE: Self = Self { symbols: &[], members: &[], sizes: &[], enumerators: &[] };

    fn asks_for_types(&self) -> bool {
        !(self.members.is_empty() && self.sizes.is_empty() && self.enumerators.is_empty())
    }
}

/// What every dump needs, found in one pass when its kernel is opened.
const ALWAYS: &[&Wanted] = &[&protected::WANTED, &counters::WANTED];

/// The symbols between which BTF stands.
const BTF: [&str; 2] = ["__start_BTF", "__stop_BTF"];

/// Symbols, and facts about types, found in the dump.
#[derive(Clone, Debug)]
pub struct Symbols {
    found: HashMap<&'static str, VirtAddr>,
    types: Result<Types>,
}

/// What is kept of the kernel's types; the types themselves are several MiB.
#[derive(Clone, Debug, Default)]
struct Types {
    members: HashMap<(&'static str, &'static str), u64>,
    sizes: HashMap<&'static str, u64>,
    enumerators: HashMap<&'static str, u64>,
}

impl Types {
    fn read(
        symbols: &HashMap<&'static str, VirtAddr>,
        memory: &mut dyn VirtualMemory,
        wanted: &[&Wanted],
    ) -> Result<Self> {
        let at = |name: &str| {
            let missing =
                || KernelError::MissingKey { key: name.to_owned(), purpose: "reading the kernel's own types" };
            symbols.get(name).copied().ok_or_else(missing)
        };
        let [start, stop] = BTF;
        let members = || wanted.iter().flat_map(|w| w.members);
        let sizes = || wanted.iter().flat_map(|w| w.sizes).copied();
        let enumerators = || wanted.iter().flat_map(|w| w.enumerators).copied();
        let of_members = members().flat_map(|(name, path)| [*name].into_iter().chain(path.split('.')));
        let names: Vec<&str> = of_members.chain(sizes()).chain(enumerators()).collect();
        let mut btf = Btf::read(memory, at(start)?, at(stop)?, &names)?;
        Ok(Self {
            members: members().filter_map(|m| Some((*m, btf.offset_of(m.0, m.1)?))).collect(),
            sizes: sizes().filter_map(|name| Some((name, btf.size_of(name)?))).collect(),
            enumerators: enumerators()
                .filter_map(|name| Some((name, u64::try_from(btf.enumerator(name)?).ok()?)))
                .collect(),
        })
    }
}

impl Symbols {
    /// What every dump needs.
    pub(crate) fn open(info: &VmcoreInfo, memory: &mut dyn VirtualMemory) -> Result<Self> {
        let wanted: Vec<&Wanted> = ALWAYS.iter().chain(debugger::WANTED).copied().collect();
        Self::find(info, memory, &wanted)
    }

    /// Looks up all that is `wanted` in the kallsyms and the BTF of the dump: one pass over each, so ask for everything at once. A name
    /// that the kernel does not have is told when it is asked for.
    ///
    /// # Errors
    /// The dump has no kallsyms that can be found (before Linux 6.0), or they cannot be read.
    pub fn find(info: &VmcoreInfo, memory: &mut dyn VirtualMemory, wanted: &[&Wanted]) -> Result<Self> {
        let names: Vec<&'static str> = wanted.iter().flat_map(|w| w.symbols).chain(&BTF).copied().collect();
        let (_, symbols) = Kallsyms::open(info, memory, &names)?;
        let found: HashMap<_, _> = symbols.into_iter().map(|(name, symbol)| (name, symbol.address)).collect();
        let types = if wanted.iter().any(|w| w.asks_for_types()) {
            Types::read(&found, memory, wanted)
        } else {
            Ok(Types::default())
        };
        Ok(Self { found, types })
    }

    /// The address of `name`, one of those that were wanted.
    ///
    /// # Errors
    /// The kernel has no such symbol.
    pub fn get(&self, name: &'static str, purpose: &'static str) -> Result<VirtAddr> {
        let found = self.found.get(name).copied();
        found.ok_or_else(|| KernelError::MissingKey { key: format!("the symbol {name}"), purpose })
    }

    /// The offset of `member` in `structure`, in bytes.
    ///
    /// # Errors
    /// The dump has no BTF, or the structure no such member.
    pub fn offset(&self, structure: &'static str, member: &'static str, purpose: &'static str) -> Result<u64> {
        let found = self.types()?.members.get(&(structure, member)).copied();
        found.ok_or_else(|| KernelError::MissingKey { key: format!("the member {structure}.{member}"), purpose })
    }

    /// The size of `structure`, in bytes.
    ///
    /// # Errors
    /// The dump has no BTF, or no such structure.
    pub fn size(&self, structure: &'static str, purpose: &'static str) -> Result<u64> {
        let found = self.types()?.sizes.get(structure).copied();
        found.ok_or_else(|| KernelError::MissingKey { key: format!("the structure {structure}"), purpose })
    }

    /// The value of the enumerator `name`.
    ///
    /// # Errors
    /// The dump has no BTF, or no such enumerator.
    pub fn enumerator(&self, name: &'static str, purpose: &'static str) -> Result<u64> {
        let found = self.types()?.enumerators.get(name).copied();
        found.ok_or_else(|| KernelError::MissingKey { key: format!("the enumerator {name}"), purpose })
    }

    fn types(&self) -> Result<&Types> {
        self.types.as_ref().map_err(Clone::clone)
    }
}
