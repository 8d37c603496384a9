//! What a person asks of a kernel's symbols and types, whatever has the answer.
//!
//! The vmlinux that was given answers for the kernel itself; without one, the kallsyms and the BTF in the dump do. Modules are in the dump
//! only: their symbols behind `struct module`, their types as BTF that goes on from the kernel's.

use super::Vmlinux;
use crate::btf::BtfTypes;
use crate::error::{KernelError, Result};
use crate::kallsyms::Kallsyms;
use crate::kernel::Kernel;
use crate::modules::{Modules, btf_modules};
use crate::space::START_KERNEL_MAP;
use crate::types::{TypeRef, TypeSource};
use crate::virt::{KernelReader, VirtAddr};
use coresift_format::PhysicalMemory;
use std::rc::Rc;

/// Symbols that lead to the rest.
const START: [&str; 4] = ["__start_BTF", "__stop_BTF", "modules", "btf_modules"];
/// `KERNELOFFSET` does not move what is below the kernel image: per-cpu variables before Linux 6.15.
const UNMOVED: u64 = START_KERNEL_MAP;

/// A symbol that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSymbol {
    /// Its name.
    pub name: String,
    /// Its address in the running kernel.
    pub address: VirtAddr,
    /// How far behind it the address is that was asked about; 0 where a name was.
    pub offset: u64,
    /// Its type as nm prints it.
    pub kind: u8,
    /// The module it belongs to.
    pub module: Option<String>,
}

/// A type that was found, in a source of its own.
pub struct FoundType<'a> {
    /// Where it is described.
    pub source: Box<dyn TypeSource + 'a>,
    /// The type.
    pub of: TypeRef,
    /// The module whose it is.
    pub module: Option<String>,
}

/// Answers questions about one kernel.
pub struct Answers<'k> {
    kernel: &'k Kernel,
    memory: &'k dyn PhysicalMemory,
    kallsyms: Result<Kallsyms>,
    /// Addresses of [`START`].
    start: [Option<VirtAddr>; START.len()],
    /// What could not be read and may hold more answers.
    pub problems: Vec<String>,
}

impl<'k> Answers<'k> {
    /// Of the `kernel` in `memory`.
    #[must_use]
    pub fn new(kernel: &'k Kernel, memory: &'k dyn PhysicalMemory) -> Self {
        let mut answers = Self {
            kernel,
            memory,
            kallsyms: Err(KernelError::Kallsyms { why: "not looked at".to_owned() }),
            start: [None; START.len()],
            problems: Vec::new(),
        };
        let mut found = std::collections::HashMap::new();
        answers.kallsyms = match Kallsyms::open(&kernel.info, &mut kernel.reader(memory), &START) {
            Ok((tables, symbols)) => {
                found = symbols.into_iter().map(|(name, symbol)| (name, symbol.address)).collect();
                Ok(tables)
            }
            Err(error) => Err(error),
        };
        if answers.kallsyms.is_err()
            && let Some(vmlinux) = &kernel.vmlinux
            && let Ok(symbols) = vmlinux.symbols(&START)
        {
            found = symbols.into_iter().map(|(name, symbol)| (name, answers.moved(symbol.address))).collect();
        }
        answers.start = START.map(|name| found.get(name).copied());
        answers
    }

    fn moved(&self, link: u64) -> VirtAddr {
        VirtAddr(if link < UNMOVED { link } else { link.wrapping_add(self.kernel.shift()) })
    }

    fn reader(&self) -> KernelReader<'k> {
        self.kernel.reader(self.memory)
    }

    fn problem(&mut self, what: &str, error: &KernelError) {
        self.problems.push(format!("{what}: {error}"));
    }

    /// All symbols called `name`, those of the kernel first.
    ///
    /// # Errors
    /// Neither the dump nor a vmlinux has the kernel's symbols.
    pub fn symbols(&mut self, name: &str) -> Result<Vec<FoundSymbol>> {
        let found = |address, kind| FoundSymbol { name: name.to_owned(), address, offset: 0, kind, module: None };
        let mut all: Vec<FoundSymbol> = match (&self.kernel.vmlinux, &self.kallsyms) {
            (Some(vmlinux), _) => {
                let symbols = vmlinux.all_symbols(name)?;
                symbols.into_iter().map(|symbol| found(self.moved(symbol.address), symbol.kind)).collect()
            }
            (None, Ok(tables)) => {
                let symbols = tables.all(&mut self.reader(), name)?;
                symbols.into_iter().map(|symbol| found(symbol.address, symbol.kind)).collect()
            }
            (None, Err(error)) => return Err(error.clone()),
        };
        self.each_module_symbol(|module, symbol| {
            if symbol.name == name {
                let module = Some(module.to_owned());
                all.push(FoundSymbol { module, ..found(symbol.address, symbol.kind) });
            }
        });
        Ok(all)
    }

    /// The symbol that `addr` belongs to: of a module where it lies inside one of its symbols, else the nearest of the kernel before it.
    ///
    /// # Errors
    /// As [`Self::symbols`].
    pub fn symbol_at(&mut self, addr: VirtAddr) -> Result<Option<FoundSymbol>> {
        let mut found: Option<FoundSymbol> = None;
        self.each_module_symbol(|module, symbol| {
            let offset = addr.0.wrapping_sub(symbol.address.0);
            if offset < symbol.size.max(1) && found.as_ref().is_none_or(|have| offset < have.offset) {
                found = Some(FoundSymbol {
                    name: symbol.name.clone(),
                    address: symbol.address,
                    offset,
                    kind: symbol.kind,
                    module: Some(module.to_owned()),
                });
            }
        });
        if found.is_some() {
            return Ok(found);
        }
        let row = |name, kind, offset| FoundSymbol {
            name,
            address: VirtAddr(addr.0.wrapping_sub(offset)),
            offset,
            kind,
            module: None,
        };
        match (&self.kernel.vmlinux, &self.kallsyms) {
            (Some(vmlinux), _) => {
                let link = if addr.0 < UNMOVED { addr.0 } else { addr.0.wrapping_sub(self.kernel.shift()) };
                let end = vmlinux.symbol("_end")?.map_or(u64::MAX, |end| end.address);
                let found = vmlinux.symbol_at(link)?.filter(|_| link < end);
                Ok(found.map(|symbol| row(symbol.name, symbol.kind, link.wrapping_sub(symbol.address))))
            }
            (None, Ok(tables)) => {
                let found = tables.nearest(&mut self.reader(), addr)?;
                Ok(found.map(|(name, kind, offset)| row(name, kind, offset)))
            }
            (None, Err(error)) => Err(error.clone()),
        }
    }

    /// The type called `name` (see [`TypeSource::find`] behind `struct`, `union` or `enum` or none): of the kernel, else of the first module
    /// that has one.
    ///
    /// # Errors
    /// Neither the dump nor a vmlinux has the kernel's types.
    pub fn find_type(&mut self, name: &str) -> Result<Option<FoundType<'k>>> {
        let kernel = self.kernel;
        if let Some(vmlinux) = &kernel.vmlinux {
            let mut source = Vmlinux::types(vmlinux)?;
            if let Some(of) = (&mut source as &mut dyn TypeSource).named(name)? {
                return Ok(Some(FoundType { source: Box::new(source), of, module: None }));
            }
        }
        let base = match self.btf() {
            Ok(base) => base,
            // A vmlinux has answered already.
            Err(error) if kernel.vmlinux.is_some() => {
                self.problem("the types of modules", &error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if let Some(problem) = base.problem() {
            let problem = problem.clone();
            self.problem("the types are not all there", &problem);
        }
        let base = Rc::new(base);
        let mut own = SharedTypes(Rc::clone(&base));
        if kernel.vmlinux.is_none()
            && let Some(of) = (&mut own as &mut dyn TypeSource).named(name)?
        {
            return Ok(Some(FoundType { source: Box::new(own), of, module: None }));
        }
        let [_, _, _, Some(head)] = self.start else { return Ok(None) };
        let mut reader = self.reader();
        let (modules, problem) = btf_modules(&mut reader, &mut own, head)?;
        if let Some(error) = problem {
            self.problem("the list of the types of modules", &error);
        }
        for (module, start, len) in modules {
            // The kernel's own stands in the list too.
            if module == "vmlinux" {
                continue;
            }
            let types = BtfTypes::read(&mut reader, start, len, Some(Rc::clone(&base)));
            match types {
                Ok(mut types) => {
                    if let Some(of) = (&mut types as &mut dyn TypeSource).named(name)? {
                        return Ok(Some(FoundType { source: Box::new(types), of, module: Some(module) }));
                    }
                }
                Err(error) => self.problem(&format!("the types of module {module}"), &error),
            }
        }
        Ok(None)
    }

    /// The kernel's types in the dump.
    fn btf(&self) -> Result<BtfTypes> {
        let [Some(start), Some(stop), ..] = self.start else {
            return Err(match &self.kallsyms {
                Err(error) => error.clone(),
                Ok(_) => KernelError::MissingKey {
                    key: "the symbol __start_BTF".to_owned(),
                    purpose: "reading the kernel's own types",
                },
            });
        };
        BtfTypes::read(&mut self.reader(), start, stop.0.wrapping_sub(start.0), None)
    }

    fn each_module_symbol(&mut self, mut each: impl FnMut(&str, &crate::modules::ModuleSymbol)) {
        let [_, _, Some(head), _] = self.start else { return };
        let layouts = match (self.btf(), &self.kernel.vmlinux) {
            (Ok(mut types), _) => Modules::new(&mut types),
            (Err(_), Some(vmlinux)) => vmlinux.types().and_then(|mut types| Modules::new(&mut types)),
            (Err(error), None) => Err(error),
        };
        let layouts = match layouts {
            Ok(layouts) => layouts,
            Err(error) => return self.problem("modules", &error),
        };
        let mut reader = self.reader();
        let (modules, problem) = layouts.list(&mut reader, head);
        if let Some(error) = problem {
            self.problem("the list of modules", &error);
        }
        for module in modules {
            match layouts.symbols(&mut reader, &module) {
                Ok(symbols) => symbols.iter().for_each(|symbol| each(&module.name, symbol)),
                Err(error) => self.problem(&format!("the symbols of module {}", module.name), &error),
            }
        }
    }
}

/// The kernel's types, which modules' types go on from.
struct SharedTypes(Rc<BtfTypes>);

impl TypeSource for SharedTypes {
    fn prepare(&mut self, _asked: &[crate::types::Ask<'_>]) -> Result<()> {
        Ok(())
    }

    fn find(&mut self, tag: crate::types::Tag, name: &str) -> Result<Option<TypeRef>> {
        Ok(self.0.find_type(tag, name))
    }

    fn enumerator(&mut self, name: &str) -> Result<Option<i64>> {
        Ok(self.0.find_enumerator(name))
    }

    fn variable(&mut self, _name: &str) -> Result<Option<TypeRef>> {
        Ok(None)
    }

    fn shape(&mut self, of: TypeRef) -> Result<crate::types::Shape> {
        self.0.shape_of(of)
    }
}
