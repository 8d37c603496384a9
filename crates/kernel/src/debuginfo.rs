//! Debug information of a kernel: a vmlinux, its symbols and its DWARF.
//!
//! ```text
//! vmlinux ──mmap──> ELF ┬─ .symtab ──> symbols by name or address
//!    │                  ├─ .notes ───> build id          (is it the kernel of the dump?)
//!    │                  └─ .debug_* ─> DwarfTypes        (decompressed where it is compressed)
//!    └─ stripped: .gnu_debuglink, /usr/lib/debug/.build-id ──> the file that has the rest
//! generate: what makedumpfile -g writes      adopt: a dump with what its own VMCOREINFO lacks
//! ```

use crate::error::{KernelError, Result};
use crate::kernel::printable;
use crate::virt::VirtAddr;
use coresift_format::codec::{Codec, Decompressor};
use coresift_format::{Bytes, FileBytes, Window};
use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{CompressionFormat, Object, ObjectSection, ObjectSegment, ObjectSymbol};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

mod adopt;
mod answers;
mod dwarf;
mod generate;
#[cfg(test)]
mod tests;

pub(crate) use adopt::describe;
pub use adopt::{DebugFile, open_kernel};
pub use answers::{Answers, FoundSymbol, FoundType};
pub use dwarf::DwarfTypes;
pub use generate::vmcoreinfo;

const NEXT: &str = "give the kernel's vmlinux with debug information";
/// Where distributions put debug information (GDB manual, "Separate Debug Files").
const DEBUG_ROOT: &str = "/usr/lib/debug";
/// Sections of DWARF that hold types and their names. Line tables name the source file of a type.
const SECTIONS: [SectionId; 7] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugStr,
    SectionId::DebugLineStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugLine,
    SectionId::DebugAddr,
];
/// A section that says it is larger when decompressed than this is damaged: .debug_info of the largest kernels has half a GiB.
const MAX_SECTION: u64 = 4 << 30;
/// Compressed debug information is not smaller than this part of what it was: both formats stop at about 1:1000.
const MAX_RATIO: u64 = 4096;
/// The longest banner that is looked at.
const MAX_BANNER: u64 = 512;

/// The content of a file: mapped, or where that cannot be, read.
enum Content {
    Mapped(Window),
    Read(Vec<u8>),
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(window) => window,
            Self::Read(bytes) => bytes,
        }
    }
}

/// One ELF file.
struct Image {
    name: String,
    content: Content,
    /// Sections that had to be decompressed, once they were.
    inflated: OnceLock<Result<HashMap<&'static str, Vec<u8>>>>,
}

/// A kernel's vmlinux, with the file that has its debug information where that is another one.
pub struct Vmlinux {
    image: Image,
    /// Where the image lacks symbols or DWARF, the separate file that has them.
    companion: Option<Image>,
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

impl Image {
    fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed = |what: String| KernelError::DebugInfo { file: name.clone(), what, next: NEXT };
        let file = FileBytes::open(path).map_err(|e| failed(chain(&e)))?.with_windows(true);
        let len = usize::try_from(file.len()).unwrap_or(usize::MAX);
        let content = match file.window(0, len) {
            Some(window) => Content::Mapped(window),
            None => {
                let mut bytes = vec![0; len];
                let have = file.read_at(0, &mut bytes).map_err(|e| failed(format!("cannot be read: {e}")))?;
                bytes.truncate(have);
                Content::Read(bytes)
            }
        };
        Ok(Self { name, content, inflated: OnceLock::new() })
    }

    fn error(&self, what: String) -> KernelError {
        KernelError::DebugInfo { file: self.name.clone(), what, next: NEXT }
    }

    fn elf(&self) -> Result<ElfFile64<'_, object::Endianness>> {
        let elf = ElfFile64::parse(&*self.content).map_err(|e| {
            self.error(format!("no 64-bit ELF file ({e}); a vmlinuz or bzImage has no debug information"))
        })?;
        if elf.architecture() != object::Architecture::X86_64 {
            return Err(
                self.error(format!("a kernel for {:?}, of which only x86-64 is supported yet", elf.architecture()))
            );
        }
        Ok(elf)
    }

    fn has_symbols(&self) -> bool {
        self.elf().is_ok_and(|elf| elf.symbols().next().is_some())
    }

    fn has_types(&self) -> bool {
        self.elf().is_ok_and(|elf| {
            [".debug_info", ".zdebug_info"].iter().any(|name| {
                elf.section_by_name(name)
                    .is_some_and(|s| s.compressed_file_range().is_ok_and(|range| range.compressed_size > 0))
            })
        })
    }

    /// All sections of [`SECTIONS`] that are compressed, decompressed.
    fn inflate(&self) -> Result<HashMap<&'static str, Vec<u8>>> {
        let elf = self.elf()?;
        let mut inflated = HashMap::new();
        for id in SECTIONS {
            let Some(section) = elf.section_by_name(id.name()) else { continue };
            let bad = |e: &dyn fmt::Display| self.error(format!("section {} cannot be decompressed: {e}", id.name()));
            let data = section.compressed_data().map_err(|e| bad(&e))?;
            let codec = match data.format {
                CompressionFormat::None => continue,
                CompressionFormat::Zlib => Codec::Zlib,
                CompressionFormat::Zstandard => Codec::Zstd,
                other => return Err(bad(&format!("unknown compression {other:?}"))),
            };
            let size = data.uncompressed_size;
            if size > MAX_SECTION || size / MAX_RATIO > data.data.len() as u64 {
                return Err(bad(&format!("{} bytes cannot hold the {size} it claims", data.data.len())));
            }
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
            Decompressor::new().decompress(codec, data.data, &mut bytes).map_err(|e| bad(&e))?;
            inflated.insert(id.name(), bytes);
        }
        Ok(inflated)
    }

    fn dwarf(&self) -> Result<Dwarf<EndianSlice<'_, LittleEndian>>> {
        let elf = self.elf()?;
        let inflated = self.inflated.get_or_init(|| self.inflate()).as_ref().map_err(Clone::clone)?;
        Dwarf::load(|id: SectionId| {
            if !SECTIONS.contains(&id) {
                return Ok(EndianSlice::new(&[], LittleEndian));
            }
            if let Some(bytes) = inflated.get(id.name()) {
                return Ok(EndianSlice::new(bytes, LittleEndian));
            }
            let Some(section) = elf.section_by_name(id.name()) else { return Ok(EndianSlice::new(&[], LittleEndian)) };
            let bytes = section.data().map_err(|e| self.error(format!("section {}: {e}", id.name())))?;
            Ok(EndianSlice::new(bytes, LittleEndian))
        })
    }

    /// `len` bytes at the link address `at`, where the file has them.
    fn bytes_at(&self, at: u64, len: u64) -> Option<&[u8]> {
        let elf = self.elf().ok()?;
        elf.segments().find_map(|segment| {
            let offset = at.checked_sub(segment.address())?;
            let data = segment.data().ok()?;
            let from = usize::try_from(offset).ok()?;
            let to = from.checked_add(usize::try_from(len).ok()?)?;
            data.get(from..to.min(data.len())).filter(|bytes| !bytes.is_empty())
        })
    }
}

/// An error with what caused it in one line.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl Vmlinux {
    /// Opens the vmlinux at `path`. Where it is stripped, the file with its symbols and debug information is looked for: by its build id
    /// below /usr/lib/debug/.build-id, then by its .gnu_debuglink beside it, in `.debug` and below /usr/lib/debug.
    ///
    /// # Errors
    /// It cannot be read or is no ELF file for x86-64.
    pub fn open(path: &Path) -> Result<Self> {
        let image = Image::open(path)?;
        let elf = image.elf()?;
        let build_id = elf.build_id().ok().flatten().map(<[u8]>::to_vec).or_else(|| build_id_in_notes(&elf));
        let mut companion = None;
        if !(image.has_symbols() && image.has_types()) {
            let link = elf.gnu_debuglink().ok().flatten().map(|(name, _)| name.to_vec());
            let candidates = separate(path, build_id.as_deref(), link.as_deref());
            let fits = |other: &Image| {
                let id = other.elf().ok().and_then(|elf| elf.build_id().ok().flatten().map(<[u8]>::to_vec));
                id == build_id && (other.has_types() || other.has_symbols())
            };
            companion = candidates.iter().filter_map(|p| Image::open(p).ok()).find(fits);
        }
        Ok(Self { image, companion, build_id })
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
        let image = self.images().find(|image| image.has_types()).ok_or_else(|| {
            self.image.error(
                "no DWARF in it (no section .debug_info), nor a separate debug file beside it or below /usr/lib/debug"
                    .to_owned(),
            )
        })?;
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
        let image = self.images().find(|image| image.has_symbols()).ok_or_else(|| {
            self.image
                .error("no symbol table in it, nor a separate debug file beside it or below /usr/lib/debug".to_owned())
        })?;
        let elf = image.elf()?;
        let sections: HashMap<usize, object::SectionFlags> = elf.sections().map(|s| (s.index().0, s.flags())).collect();
        let nobits: HashMap<usize, bool> =
            elf.sections().map(|s| (s.index().0, s.kind() == object::SectionKind::UninitializedData)).collect();
        for symbol in elf.symbols() {
            let (Ok(name), false) = (symbol.name_bytes(), symbol.is_undefined()) else { continue };
            if name.is_empty() || matches!(symbol.kind(), object::SymbolKind::File | object::SymbolKind::Section) {
                continue;
            }
            let kind = match symbol.section() {
                object::SymbolSection::Absolute => b'a',
                object::SymbolSection::Section(index) => {
                    letter(sections.get(&index.0), nobits.get(&index.0).copied().unwrap_or(false))
                }
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
        std::iter::once(&self.image).chain(&self.companion)
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
fn letter(flags: Option<&object::SectionFlags>, nobits: bool) -> u8 {
    let Some(object::SectionFlags::Elf { sh_flags, .. }) = flags else { return b'?' };
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

/// The build id among the kernel's own notes, for a vmlinux whose note segment is not found by its header.
fn build_id_in_notes(elf: &ElfFile64<'_, object::Endianness>) -> Option<Vec<u8>> {
    build_id_of(elf.section_by_name(".notes")?.data().ok()?)
}

/// NT_GNU_BUILD_ID of the owner `GNU`.
const BUILD_ID: u32 = 3;

/// The build id in ELF notes.
fn build_id_of(mut notes: &[u8]) -> Option<Vec<u8>> {
    // Each has 12 bytes at least.
    while let Some((head, rest)) = notes.split_at_checked(12) {
        let word = |at: usize| head.get(at..).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b));
        let (name, desc, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let desc_at = name.checked_next_multiple_of(4)?;
        let end = desc_at.checked_add(desc)?;
        if kind == BUILD_ID && rest.starts_with(b"GNU\0") {
            return rest.get(desc_at..end).map(<[u8]>::to_vec);
        }
        notes = rest.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

/// Files that may have the debug information of the stripped file at `path`.
fn separate(path: &Path, build_id: Option<&[u8]>, link: Option<&[u8]>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some((first, rest)) = build_id.and_then(<[u8]>::split_first) {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        found.push(Path::new(DEBUG_ROOT).join(format!(".build-id/{first:02x}/{rest}.debug")));
    }
    // A name only: what has directories in it would lead out of the places below.
    let link =
        link.and_then(|name| std::str::from_utf8(name).ok()).filter(|name| !name.contains('/') && !name.is_empty());
    if let (Some(link), Some(folder)) = (link, path.parent()) {
        found.extend([folder.join(link), folder.join(".debug").join(link)]);
        if let Ok(absolute) = std::path::absolute(folder) {
            found.push(Path::new(DEBUG_ROOT).join(absolute.strip_prefix("/").unwrap_or(&absolute)).join(link));
        }
    }
    // The same file again would be no help.
    found.retain(|candidate| candidate != path);
    found
}
