//! Debug information of a kernel: a vmlinux, its symbols and its DWARF.
//!
//! ```text
//! vmlinux ──mmap──> ELF ┬─ .symtab ──> symbols by name or address
//!    │                  ├─ .notes ───> build id          (is it the kernel of the dump?)
//!    │                  └─ .debug_* ─> DwarfTypes        (decompressed where it is compressed)
//!    └─ stripped: separate, by .gnu_debuglink or build id ──> the file that has the rest
//! generate: what makedumpfile -g writes      adopt: a dump with what its own VMCOREINFO lacks
//! ```

use crate::error::{KernelError, Result};
use crate::kernel::printable;
use crate::virt::VirtAddr;
use image::{Image, build_id_of};
use object::{Object, ObjectSection, ObjectSymbol};
use separate::Found;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;

mod adopt;
mod answers;
mod dwarf;
mod generate;
mod image;
mod separate;
#[cfg(test)]
mod tests;

pub(crate) use adopt::describe;
pub use adopt::{DebugFile, open_kernel, open_kernel_by_memory};
pub use answers::{Answers, FoundSymbol, FoundType};
pub use dwarf::DwarfTypes;
pub use generate::vmcoreinfo;
pub use separate::DEBUG_ROOT;

const NEXT: &str = "give the kernel's vmlinux with debug information";
/// The longest banner that is looked at.
const MAX_BANNER: u64 = 512;

/// A kernel's vmlinux, with the file that has its debug information where that is another one.
pub struct Vmlinux {
    image: Image,
    /// Where the image lacks symbols or DWARF, the separate file that has them.
    companion: Found,
    build_id: Option<Vec<u8>>,
}

impl fmt::Debug for Vmlinux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vmlinux").field("file", &self.image.name).finish_non_exhaustive()
    }
}

/// A symbol of a vmlinux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSymbol {
    /// Its name.
    pub name: String,
    /// Its link address: without KASLR.
    pub address: u64,
    /// Its size in bytes, 0 where that is not told.
    pub size: u64,
    /// Its type as nm prints it.
    pub kind: u8,
}

/// An error with what caused it in one line.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl Vmlinux {
    /// Opens the vmlinux at `path`. Where it is stripped, the file with its symbols and debug information is looked for, below
    /// [`DEBUG_ROOT`] too.
    ///
    /// # Errors
    /// It cannot be read or is no ELF file for x86-64.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with_root(path, Path::new(DEBUG_ROOT))
    }

    /// As [`Self::open`], with the directory that has debug information by build id and by path in place of [`DEBUG_ROOT`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_root(path: &Path, debug_root: &Path) -> Result<Self> {
        let image = Image::open(path)?;
        image.elf()?;
        let whole = image.has_symbols() && image.has_types();
        let companion = if whole { Found::default() } else { Found::of(&image, path, debug_root) };
        Ok(Self { build_id: image.build_id(), image, companion })
    }

    /// That there is no `what` in it, with the files that were no help.
    fn lacks(&self, what: &str) -> KernelError {
        let others: String = self.companion.others.iter().map(|other| format!("; {other}")).collect();
        self.image.error(format!("no {what} in it, nor in a separate debug file where those are{others}"))
    }

    /// The name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.image.name
    }

    /// The kernel's build id, where it has one.
    #[must_use]
    pub fn build_id(&self) -> Option<String> {
        self.build_id.as_ref().map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The kernel's release, out of its banner.
    #[must_use]
    pub fn release(&self) -> Option<String> {
        let at = self.symbol("linux_banner").ok().flatten()?.address;
        let banner = self.images().find_map(|image| image.bytes_at(at, MAX_BANNER))?;
        let rest = banner.strip_prefix(b"Linux version ")?;
        let release = rest.split(|b| *b == b' ').next()?;
        Some(printable(&String::from_utf8_lossy(release)))
    }

    /// The types in its DWARF.
    ///
    /// # Errors
    /// It has none, or they are damaged.
    pub fn types(&self) -> Result<DwarfTypes<'_>> {
        let image =
            self.images().find(|image| image.has_types()).ok_or_else(|| self.lacks("DWARF (section .debug_info)"))?;
        DwarfTypes::new(&image.name, image.dwarf()?)
    }

    /// The symbol `name`: a global one before a local one.
    ///
    /// # Errors
    /// The file has no symbols.
    pub fn symbol(&self, name: &str) -> Result<Option<LinkSymbol>> {
        Ok(self.symbols(&[name])?.remove(name))
    }

    /// The symbols called `names`, in one pass: of several with a name, a global one before a local one. What is not found is not in the
    /// result.
    ///
    /// # Errors
    /// The file has no symbols.
    pub fn symbols<'n>(&self, names: &[&'n str]) -> Result<HashMap<&'n str, LinkSymbol>> {
        let by_name: HashMap<&[u8], &'n str> = names.iter().map(|name| (name.as_bytes(), *name)).collect();
        let mut found: HashMap<&'n str, LinkSymbol> = HashMap::new();
        self.each_symbol(|name, symbol| {
            let Some(name) = by_name.get(name) else { return };
            let better = |have: &LinkSymbol| !have.kind.is_ascii_uppercase() && symbol.kind.is_ascii_uppercase();
            if found.get(name).is_none_or(better) {
                found.insert(name, symbol.named(name));
            }
        })?;
        Ok(found)
    }

    /// All symbols called `name`, in the order of their addresses.
    ///
    /// # Errors
    /// The file has no symbols.
    pub fn all_symbols(&self, name: &str) -> Result<Vec<LinkSymbol>> {
        let mut found = Vec::new();
        self.each_symbol(|have, symbol| {
            if have == name.as_bytes() {
                found.push(symbol.named(name));
            }
        })?;
        found.sort_by_key(|symbol| symbol.address);
        Ok(found)
    }

    /// The symbol of text or data at or before the link address `at`: the last one in the file's order of those that share the address of
    /// the nearest is taken where it is global.
    ///
    /// # Errors
    /// The file has no symbols.
    pub fn symbol_at(&self, at: u64) -> Result<Option<LinkSymbol>> {
        let mut found: Option<LinkSymbol> = None;
        self.each_symbol(|name, symbol| {
            let global = symbol.kind.is_ascii_uppercase();
            let better = |have: &LinkSymbol| {
                symbol.address > have.address
                    || symbol.address == have.address && global && !have.kind.is_ascii_uppercase()
            };
            if symbol.address <= at && found.as_ref().is_none_or(better) {
                found = Some(symbol.named(&String::from_utf8_lossy(name)));
            }
        })?;
        Ok(found)
    }

    fn each_symbol(&self, mut each: impl FnMut(&[u8], Unnamed)) -> Result<()> {
        let image =
            self.images().find(|image| image.has_symbols()).ok_or_else(|| self.lacks("symbols (section .symtab)"))?;
        let elf = image.elf()?;
        // A separate debug file has no data for any section: what is .bss the stripped file tells.
        let empty = self.image.empty_sections();
        let kind_of = |section: object::read::elf::ElfSection64<'_, '_, object::Endianness>| {
            letter(section.flags(), section.name_bytes().is_ok_and(|name| empty.contains(name)))
        };
        let kinds: HashMap<usize, u8> = elf.sections().map(|section| (section.index().0, kind_of(section))).collect();
        for symbol in elf.symbols() {
            let (Ok(name), false) = (symbol.name_bytes(), symbol.is_undefined()) else { continue };
            if name.is_empty() || matches!(symbol.kind(), object::SymbolKind::File | object::SymbolKind::Section) {
                continue;
            }
            let kind = match symbol.section() {
                object::SymbolSection::Absolute => b'a',
                object::SymbolSection::Section(index) => kinds.get(&index.0).copied().unwrap_or(b'?'),
                _ => b'?',
            };
            let kind = match (symbol.is_weak(), symbol.is_global()) {
                (true, _) => b'W',
                (false, true) => kind.to_ascii_uppercase(),
                (false, false) => kind,
            };
            each(name, Unnamed { address: symbol.address(), size: symbol.size(), kind });
        }
        Ok(())
    }

    fn images(&self) -> impl Iterator<Item = &Image> {
        std::iter::once(&self.image).chain(&self.companion.image)
    }

    /// Where the kernel has its notes when it runs, by link address, and the bytes that stand there: they hold the build id.
    fn notes(&self) -> Option<(VirtAddr, &[u8])> {
        let found = self.symbols(&["__start_notes", "__stop_notes"]).ok()?;
        let (start, stop) = (found.get("__start_notes")?.address, found.get("__stop_notes")?.address);
        let bytes = self.images().find_map(|image| image.bytes_at(start, stop.checked_sub(start)?))?;
        Some((VirtAddr(start), bytes))
    }
}

/// A symbol as it passes by.
#[derive(Clone, Copy)]
struct Unnamed {
    address: u64,
    size: u64,
    kind: u8,
}

impl Unnamed {
    fn named(self, name: &str) -> LinkSymbol {
        LinkSymbol { name: name.to_owned(), address: self.address, size: self.size, kind: self.kind }
    }
}

/// The letter by which nm tells a section.
fn letter(flags: object::SectionFlags, nobits: bool) -> u8 {
    let object::SectionFlags::Elf { sh_flags, .. } = flags else { return b'?' };
    let has = |flag| sh_flags.contains(flag);
    if has(object::elf::SHF_EXECINSTR) {
        b't'
    } else if !has(object::elf::SHF_WRITE) {
        if has(object::elf::SHF_ALLOC) { b'r' } else { b'n' }
    } else if nobits {
        b'b'
    } else {
        b'd'
    }
}
