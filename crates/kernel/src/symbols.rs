//! The kernel symbols and types this program asks for by name: one pass over kallsyms, one over BTF (Linux 6.0 on), for all names
//! together.

use crate::btf::Btf;
use crate::counters;
use crate::debugger;
use crate::debuginfo::Vmlinux;
use crate::error::{KernelError, Result};
use crate::kallsyms::Kallsyms;
use crate::protected;
use crate::space::START_KERNEL_MAP;
use crate::types::{Ask, Tag, TypeSource};
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

/// What is looked up when a kernel is opened: that, and what a debugger looks for.
pub(crate) fn wanted_at_once() -> Vec<&'static Wanted> {
    ALWAYS.iter().chain(debugger::WANTED).copied().collect()
}

/// The symbols between which BTF stands.
const BTF: [&str; 2] = ["__start_BTF", "__stop_BTF"];

/// Symbols, and facts about types, found in the dump.
#[derive(Clone, Debug)]
pub struct Symbols {
    found: HashMap<&'static str, VirtAddr>,
    types: Result<Types>,
    /// The dump's kallsyms, where the symbols are out of them.
    kallsyms: Option<Kallsyms>,
}

/// What is kept of the kernel's types; the types themselves are several MiB.
#[derive(Clone, Debug, Default)]
struct Types {
    members: HashMap<(&'static str, &'static str), u64>,
    sizes: HashMap<&'static str, u64>,
    enumerators: HashMap<&'static str, u64>,
}

type Asked = (Vec<(&'static str, &'static str)>, Vec<&'static str>, Vec<&'static str>);

/// Members, sizes and enumerators that are wanted.
fn asked(wanted: &[&Wanted]) -> Asked {
    (
        wanted.iter().flat_map(|w| w.members).copied().collect(),
        wanted.iter().flat_map(|w| w.sizes).copied().collect(),
        wanted.iter().flat_map(|w| w.enumerators).copied().collect(),
    )
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
        let (members, sizes, enumerators) = asked(wanted);
        let of_members = members.iter().flat_map(|(name, path)| [*name].into_iter().chain(path.split('.')));
        let names: Vec<&str> = of_members.chain(sizes.iter().chain(&enumerators).copied()).collect();
        let mut btf = Btf::read(memory, at(start)?, at(stop)?, &names)?;
        Ok(Self {
            members: members.into_iter().filter_map(|m| Some((m, btf.offset_of(m.0, m.1)?))).collect(),
            sizes: sizes.into_iter().filter_map(|name| Some((name, btf.size_of(name)?))).collect(),
            enumerators: enumerators
                .into_iter()
                .filter_map(|name| Some((name, u64::try_from(btf.enumerator(name)?).ok()?)))
                .collect(),
        })
    }

    /// The same out of another source.
    fn of(types: &mut dyn TypeSource, wanted: &[&Wanted]) -> Result<Self> {
        let (members, sizes, enumerators) = asked(wanted);
        let structures = || members.iter().map(|m| m.0).chain(sizes.iter().copied());
        let structs = structures().map(|name| Ask::Type(Tag::Struct, name));
        types.prepare(&structs.chain(enumerators.iter().map(|name| Ask::Enumerator(name))).collect::<Vec<_>>())?;
        let mut found = Self::default();
        for member in members {
            if let Some(offset) = types.offset_of(member.0, member.1)? {
                found.members.insert(member, offset);
            }
        }
        for name in sizes {
            if let Some(size) = types.size_of(name)? {
                found.sizes.insert(name, size);
            }
        }
        for name in enumerators {
            if let Some(value) = types.enumerator(name)?.and_then(|value| u64::try_from(value).ok()) {
                found.enumerators.insert(name, value);
            }
        }
        Ok(found)
    }
}

impl Symbols {
    /// What every dump needs.
    pub(crate) fn open(info: &VmcoreInfo, memory: &mut dyn VirtualMemory) -> Result<Self> {
        Self::find(info, memory, &wanted_at_once())
    }

    /// Looks up all that is `wanted` in the kallsyms and the BTF of the dump: one pass over each, so ask for everything at once. A name
    /// that the kernel does not have is told when it is asked for.
    ///
    /// # Errors
    /// The dump has no kallsyms that can be found (before Linux 6.0), or they cannot be read.
    pub fn find(info: &VmcoreInfo, memory: &mut dyn VirtualMemory, wanted: &[&Wanted]) -> Result<Self> {
        let names: Vec<&'static str> = wanted.iter().flat_map(|w| w.symbols).chain(&BTF).copied().collect();
        let (kallsyms, symbols) = Kallsyms::open(info, memory, &names)?;
        let found: HashMap<_, _> = symbols.into_iter().map(|(name, symbol)| (name, symbol.address)).collect();
        let types = if wanted.iter().any(|w| w.asks_for_types()) {
            Types::read(&found, memory, wanted)
        } else {
            Ok(Types::default())
        };
        Ok(Self { found, types, kallsyms: Some(kallsyms) })
    }

    /// The same out of a vmlinux, whose link addresses KASLR moved by `shift`.
    pub(crate) fn of_vmlinux(vmlinux: &Vmlinux, shift: u64, wanted: &[&Wanted]) -> Result<Self> {
        let names: Vec<&'static str> = wanted.iter().flat_map(|w| w.symbols).copied().collect();
        // Per-cpu variables have small link addresses before Linux 6.15 and do not move.
        let moved = |link: u64| if link >= START_KERNEL_MAP { link.wrapping_add(shift) } else { link };
        let found = vmlinux
            .symbols(&names)?
            .into_iter()
            .map(|(name, symbol)| (name, VirtAddr(moved(symbol.address))))
            .collect();
        Self { found, types: Ok(Types::default()), kallsyms: None }.with_types_of(vmlinux, wanted)
    }

    /// These symbols with the types of `vmlinux`.
    pub(crate) fn with_types_of(self, vmlinux: &Vmlinux, wanted: &[&Wanted]) -> Result<Self> {
        if !wanted.iter().any(|w| w.asks_for_types()) {
            return Ok(self);
        }
        let types = vmlinux.types().and_then(|mut types| Types::of(&mut types, wanted));
        Ok(Self { types, ..self })
    }

    /// Whether the kernel's types could not be read.
    pub(crate) fn lacks_types(&self) -> bool {
        self.types.is_err()
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

    /// The offset, in bytes, of the first of these members, by the names that kernels have had for one, that this kernel has.
    #[must_use]
    pub fn first_offset(&self, names: &[(&'static str, &'static str)]) -> Option<u64> {
        let members = &self.types().ok()?.members;
        names.iter().find_map(|name| members.get(name).copied())
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

    /// Where the function that `addr` lies in begins; `None` where no kallsyms tell.
    pub(crate) fn function_start(&self, memory: &mut dyn VirtualMemory, addr: VirtAddr) -> Option<VirtAddr> {
        self.kallsyms.as_ref()?.start_of(memory, addr).ok().flatten()
    }

    fn types(&self) -> Result<&Types> {
        self.types.as_ref().map_err(Clone::clone)
    }
}
