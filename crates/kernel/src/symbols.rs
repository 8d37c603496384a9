//! The kernel symbols and types this program asks for by name: one pass over kallsyms, one over BTF (Linux 6.0 on).

use crate::btf::Btf;
use crate::error::{KernelError, Result};
use crate::kallsyms::Kallsyms;
use crate::virt::{VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use std::collections::HashMap;

/// All names that are asked for anywhere.
const NAMES: &[&str] = &[
    // The kernel image and the parts of it that are given back once the kernel has booted.
    "_text",
    "_end",
    "_etext",
    "__start_rodata",
    "__end_rodata",
    "_sdata",
    "__init_begin",
    "__init_end",
    "__smp_locks",
    "__smp_locks_end",
    "__start_bss_decrypted_unused",
    "__end_bss_decrypted",
    "__brk_base",
    // The first chunk of per-cpu memory (mm/percpu.c).
    "pcpu_base_addr",
    "pcpu_unit_offsets",
    "pcpu_nr_units",
    "pcpu_first_chunk",
    // Counters.
    "vm_node_stat",
    "hstates",
    "hugetlb_max_hstate",
];

/// Members whose offsets are asked for anywhere, in bytes.
const MEMBERS: &[(&str, &str)] =
    &[("pcpu_chunk", "base_addr"), ("pcpu_chunk", "nr_pages"), ("hstate", "order"), ("hstate", "nr_huge_pages")];

/// Structures whose sizes are asked for anywhere, in bytes.
const SIZES: &[&str] = &["hstate"];

/// Enumerators whose values are asked for anywhere.
const ENUMERATORS: &[&str] = &["NR_SLAB_RECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE_B"];

/// The symbols between which BTF stands.
const BTF: [&str; 2] = ["__start_BTF", "__stop_BTF"];

/// Symbols, and facts about types, found in the dump.
#[derive(Clone, Debug)]
pub struct Symbols {
    found: HashMap<&'static str, VirtAddr>,
    types: Result<Types>,
}

/// What is kept of the kernel's types; the types themselves are several MiB.
#[derive(Clone, Debug)]
struct Types {
    members: HashMap<(&'static str, &'static str), u64>,
    sizes: HashMap<&'static str, u64>,
    enumerators: HashMap<&'static str, u64>,
}

impl Types {
    fn read(symbols: &HashMap<&'static str, VirtAddr>, memory: &mut dyn VirtualMemory) -> Result<Self> {
        let at = |name: &str| {
            let missing =
                || KernelError::MissingKey { key: name.to_owned(), purpose: "reading the kernel's own types" };
            symbols.get(name).copied().ok_or_else(missing)
        };
        let [start, stop] = BTF;
        let of_members = MEMBERS.iter().flat_map(|member| [member.0, member.1]);
        let names: Vec<&str> = of_members.chain(SIZES.iter().chain(ENUMERATORS).copied()).collect();
        let mut btf = Btf::read(memory, at(start)?, at(stop)?, &names)?;
        Ok(Self {
            members: MEMBERS.iter().filter_map(|m| Some((*m, btf.offset_of(m.0, m.1)?))).collect(),
            sizes: SIZES.iter().filter_map(|name| Some((*name, btf.size_of(name)?))).collect(),
            enumerators: ENUMERATORS
                .iter()
                .filter_map(|name| Some((*name, u64::try_from(btf.enumerator(name)?).ok()?)))
                .collect(),
        })
    }
}

impl Symbols {
    /// Looks up all names in the kallsyms of the dump.
    ///
    /// # Errors
    /// The dump has no kallsyms that can be found (before Linux 6.0), or they cannot be read.
    pub fn open(info: &VmcoreInfo, memory: &mut dyn VirtualMemory) -> Result<Self> {
        let wanted: Vec<&'static str> = NAMES.iter().chain(&BTF).copied().collect();
        let (_, symbols) = Kallsyms::open(info, memory, &wanted)?;
        let found: HashMap<_, _> = symbols.into_iter().map(|(name, symbol)| (name, symbol.address)).collect();
        let types = Types::read(&found, memory);
        Ok(Self { found, types })
    }

    /// The address of `name`, one of those this program asks for.
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
