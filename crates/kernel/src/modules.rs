//! The modules of the crashed kernel, their symbols and their BTF.

use crate::error::{KernelError, Result};
use crate::types::TypeSource;
use crate::virt::{VirtAddr, VirtualMemory};

/// Modules in a list; distributions load 200.
const MAX_MODULES: usize = 1 << 14;
/// Symbols of one module; amdgpu has 20,000.
const MAX_SYMBOLS: u64 = 1 << 20;
/// Bytes of `module.name`: MODULE_NAME_LEN.
const NAME: usize = 56;
/// The longest name of a symbol.
const MAX_NAME: usize = 1024;
/// Bytes of an Elf64_Sym, and where its fields are.
const ELF_SYM: usize = 24;
/// The names of one module's symbols; amdgpu has a MiB of them.
const MAX_STRINGS: u64 = 64 << 20;

/// A module in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Where its `struct module` is.
    pub at: VirtAddr,
}

/// A symbol of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleSymbol {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: VirtAddr,
    /// Its type as nm prints it; `?` before Linux 5.2, which keeps none.
    pub kind: u8,
    /// Its size in bytes.
    pub size: u64,
}

/// The way through the list of modules, by types of whatever source.
#[derive(Clone, Copy, Debug)]
pub struct Modules {
    /// Offsets in `struct module`.
    list: u64,
    name: u64,
    kallsyms: u64,
    /// Offsets in `struct mod_kallsyms` (Linux 4.5).
    symtab: u64,
    num_symtab: u64,
    strtab: u64,
    typetab: Option<u64>,
}

impl Modules {
    /// Learns the layouts from `types`.
    ///
    /// # Errors
    /// `types` lack them.
    pub fn new(types: &mut dyn TypeSource) -> Result<Self> {
        let mut at = |name: &str, member: &str| {
            let missing =
                || KernelError::MissingKey { key: format!("the member {name}.{member}"), purpose: "reading modules" };
            types.offset_of(name, member)?.ok_or_else(missing)
        };
        Ok(Self {
            list: at("module", "list")?,
            name: at("module", "name")?,
            kallsyms: at("module", "kallsyms")?,
            symtab: at("mod_kallsyms", "symtab")?,
            num_symtab: at("mod_kallsyms", "num_symtab")?,
            strtab: at("mod_kallsyms", "strtab")?,
            typetab: at("mod_kallsyms", "typetab").ok(),
        })
    }

    /// The modules in the list whose head, the symbol `modules`, is at `head`; and why the list ends early, if it does.
    pub fn list(&self, mem: &mut dyn VirtualMemory, head: VirtAddr) -> (Vec<Module>, Option<KernelError>) {
        let mut found = Vec::new();
        let mut node = head;
        loop {
            node = match mem.read_u64(node) {
                Ok(next) => VirtAddr(next),
                Err(error) => return (found, Some(error)),
            };
            if node == head {
                return (found, None);
            }
            if found.len() == MAX_MODULES {
                let hint = ", for the list of modules does not end";
                return (found, Some(KernelError::Implausible { what: "modules", addr: head, value: node.0, hint }));
            }
            let at = VirtAddr(node.0.wrapping_sub(self.list));
            let mut name = [0; NAME];
            if let Err(error) = mem.read_virt(at.plus(self.name), &mut name) {
                return (found, Some(error));
            }
            let name = name.split(|b| *b == 0).next().unwrap_or_default();
            found.push(Module { name: crate::kernel::printable(&String::from_utf8_lossy(name)), at });
        }
    }

    /// The symbols that `module` defines.
    ///
    /// # Errors
    /// Its tables cannot be read.
    pub fn symbols(&self, mem: &mut dyn VirtualMemory, module: &Module) -> Result<Vec<ModuleSymbol>> {
        let tables = VirtAddr(mem.read_u64(module.at.plus(self.kallsyms))?);
        let symtab = VirtAddr(mem.read_u64(tables.plus(self.symtab))?);
        let strtab = VirtAddr(mem.read_u64(tables.plus(self.strtab))?);
        // An unsigned int.
        let count_at = tables.plus(self.num_symtab);
        let count = u64::from(mem.read_u32(count_at)?);
        if count > MAX_SYMBOLS {
            let hint = ", for a module has thousands of symbols";
            return Err(KernelError::Implausible { what: "num_symtab", addr: count_at, value: count, hint });
        }
        let typetab = self.typetab.map(|at| mem.read_u64(tables.plus(at))).transpose()?;
        let mut raw = vec![0; count as usize * ELF_SYM];
        mem.read_virt(symtab, &mut raw)?;
        let mut kinds = vec![b'?'; count as usize];
        if let Some(typetab) = typetab.filter(|at| *at != 0) {
            mem.read_virt(VirtAddr(typetab), &mut kinds)?;
        }
        let rows = || raw.as_chunks::<ELF_SYM>().0.iter();
        let strings = Strings::read(mem, strtab, rows().map(|row| number(row, 0, 4)).max().unwrap_or(0))?;
        let mut found = Vec::new();
        for (row, kind) in rows().zip(kinds) {
            let (name, section) = (number(row, 0, 4), number(row, 6, 2));
            // What the module does not define has section 0.
            if section == 0 || name == 0 {
                continue;
            }
            let (address, size) = (VirtAddr(number(row, 8, 8)), number(row, 16, 8));
            found.push(ModuleSymbol { name: strings.get(name), address, kind, size });
        }
        Ok(found)
    }
}

/// The little-endian number of `bytes` bytes at `at`.
fn number(row: &[u8; ELF_SYM], at: usize, bytes: usize) -> u64 {
    row.iter().skip(at).take(bytes).rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// A table of strings, up to the last one.
struct Strings(Vec<u8>);

impl Strings {
    fn read(mem: &mut dyn VirtualMemory, at: VirtAddr, last: u64) -> Result<Self> {
        if last > MAX_STRINGS {
            let hint = ", for a module's names are few MiB";
            return Err(KernelError::Implausible { what: "an offset in strtab", addr: at, value: last, hint });
        }
        let mut bytes = vec![0; last as usize];
        mem.read_virt(at, &mut bytes)?;
        // The last string ends somewhere behind: in the same page, or the table goes on.
        while bytes.len() < last as usize + MAX_NAME {
            let mut byte = [0];
            mem.read_virt(at.plus(bytes.len() as u64), &mut byte)?;
            bytes.extend(byte);
            if byte == [0] {
                break;
            }
        }
        Ok(Self(bytes))
    }

    fn get(&self, at: u64) -> String {
        let rest = self.0.get(at as usize..).unwrap_or_default();
        crate::kernel::printable(&String::from_utf8_lossy(rest.split(|b| *b == 0).next().unwrap_or_default()))
    }
}

/// Where the BTF of each module is: its name, address and length in bytes, from the list `btf_modules` at `head` (Linux 5.11); and why the
/// list ends early, if it does.
///
/// # Errors
/// `types` lack `struct btf_module`.
#[allow(clippy::type_complexity, reason = "a row of three plain values, used once")]
pub fn btf_modules(
    mem: &mut dyn VirtualMemory,
    types: &mut dyn TypeSource,
    head: VirtAddr,
) -> Result<(Vec<(String, VirtAddr, u64)>, Option<KernelError>)> {
    let mut at = |name: &str, member: &str| {
        let missing = || KernelError::MissingKey {
            key: format!("the member {name}.{member}"),
            purpose: "reading the types of modules",
        };
        types.offset_of(name, member)?.ok_or_else(missing)
    };
    let (list, module, btf) = (at("btf_module", "list")?, at("btf_module", "module")?, at("btf_module", "btf")?);
    let (data, size, name) = (at("btf", "data")?, at("btf", "data_size")?, at("module", "name")?);
    let mut found = Vec::new();
    let mut node = head;
    loop {
        let mut step = || -> Result<Option<(String, VirtAddr, u64)>> {
            node = VirtAddr(mem.read_u64(node)?);
            if node == head {
                return Ok(None);
            }
            let row = VirtAddr(node.0.wrapping_sub(list));
            let owner = VirtAddr(mem.read_u64(row.plus(module))?);
            let types = VirtAddr(mem.read_u64(row.plus(btf))?);
            let mut text = [0; NAME];
            mem.read_virt(owner.plus(name), &mut text)?;
            let text = text.split(|b| *b == 0).next().unwrap_or_default();
            let start = VirtAddr(mem.read_u64(types.plus(data))?);
            let len = u64::from(mem.read_u32(types.plus(size))?);
            Ok(Some((crate::kernel::printable(&String::from_utf8_lossy(text)), start, len)))
        };
        match step() {
            Ok(Some(row)) if found.len() < MAX_MODULES => found.push(row),
            Ok(Some((_, start, _))) => {
                let hint = ", for the list of BTF does not end";
                let error = KernelError::Implausible { what: "btf_modules", addr: head, value: start.0, hint };
                return Ok((found, Some(error)));
            }
            Ok(None) => return Ok((found, None)),
            Err(error) => return Ok((found, Some(error))),
        }
    }
}
