//! One ELF file: its sections, decompressed where they are compressed, and its DWARF.

use super::{NEXT, chain};
use crate::error::{KernelError, Result};
use crate::kernel::printable;
use coresift_format::codec::{Codec, Decompressor};
use coresift_format::{Bytes, FileBytes, Window};
use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use object::read::elf::{ElfFile64, ElfSection64};
use object::{CompressionFormat, Object, ObjectSection, ObjectSegment};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::OnceLock;

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
/// No debug information becomes smaller than this part of what it was: zlib stops at about 1:1000, and zstd gets 1:5 of a vmlinux.
const MAX_RATIO: u64 = 4096;

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
pub(super) struct Image {
    /// As it was opened.
    pub(super) name: String,
    content: Content,
    /// Sections that had to be decompressed, once they were.
    inflated: OnceLock<Result<HashMap<&'static str, Vec<u8>>>>,
}

impl Image {
    pub(super) fn open(path: &Path) -> Result<Self> {
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

    pub(super) fn error(&self, what: String) -> KernelError {
        KernelError::DebugInfo { file: self.name.clone(), what, next: NEXT }
    }

    pub(super) fn elf(&self) -> Result<ElfFile64<'_, object::Endianness>> {
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

    pub(super) fn has_symbols(&self) -> bool {
        self.elf().is_ok_and(|elf| elf.symbols().next().is_some())
    }

    pub(super) fn has_types(&self) -> bool {
        let content = |elf: ElfFile64<'_, _>| debug_section(&elf, ".debug_info")?.file_range();
        self.elf().is_ok_and(|elf| content(elf).is_some_and(|(_, bytes)| bytes > 0))
    }

    /// All sections of [`SECTIONS`] that are compressed, decompressed.
    fn inflate(&self) -> Result<HashMap<&'static str, Vec<u8>>> {
        let elf = self.elf()?;
        let mut inflated = HashMap::new();
        for id in SECTIONS {
            let Some(section) = debug_section(&elf, id.name()) else { continue };
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

    pub(super) fn dwarf(&self) -> Result<Dwarf<EndianSlice<'_, LittleEndian>>> {
        let elf = self.elf()?;
        if let Some(name) = supplementary(&elf) {
            return Err(self.error(format!("dwz has moved some of its DWARF into {name}, which is not read")));
        }
        let inflated = self.inflated.get_or_init(|| self.inflate()).as_ref().map_err(Clone::clone)?;
        Dwarf::load(|id: SectionId| {
            if !SECTIONS.contains(&id) {
                return Ok(EndianSlice::new(&[], LittleEndian));
            }
            if let Some(bytes) = inflated.get(id.name()) {
                return Ok(EndianSlice::new(bytes, LittleEndian));
            }
            let Some(section) = debug_section(&elf, id.name()) else { return Ok(EndianSlice::new(&[], LittleEndian)) };
            let bytes = section.data().map_err(|e| self.error(format!("section {}: {e}", id.name())))?;
            Ok(EndianSlice::new(bytes, LittleEndian))
        })
    }

    /// The build id in its notes.
    pub(super) fn build_id(&self) -> Option<Vec<u8>> {
        build_id(&self.elf().ok()?)
    }

    /// The name and the checksum of the file that has what was stripped of this one, where it says.
    pub(super) fn debug_link(&self) -> Option<(String, u32)> {
        let elf = self.elf().ok()?;
        let (name, sum) = elf.gnu_debuglink().ok().flatten()?;
        Some((String::from_utf8(name.to_vec()).ok()?, sum))
    }

    /// The checksum by which a stripped file names this one.
    pub(super) fn checksum(&self) -> u32 {
        let mut sum = libdeflater::Crc::new();
        sum.update(&self.content);
        sum.sum()
    }

    /// The names of the sections without data of their own: `.bss`.
    pub(super) fn empty_sections(&self) -> HashSet<Vec<u8>> {
        let Ok(elf) = self.elf() else { return HashSet::new() };
        let empty = elf.sections().filter(|section| section.kind() == object::SectionKind::UninitializedData);
        empty.filter_map(|section| section.name_bytes().ok().map(<[u8]>::to_vec)).collect()
    }

    /// `len` bytes at the link address `at`, where the file has them.
    pub(super) fn bytes_at(&self, at: u64, len: u64) -> Option<&[u8]> {
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

/// The section of debug information `name` (`.debug_info`), under its old name where that tells that it is compressed (`.zdebug_info`).
fn debug_section<'data, 'file>(
    elf: &'file ElfFile64<'data, object::Endianness>,
    name: &str,
) -> Option<ElfSection64<'data, 'file, object::Endianness>> {
    elf.section_by_name(name).or_else(|| elf.section_by_name(&name.replacen('.', ".z", 1)))
}

/// The file that has some of the DWARF of `elf`, where `dwz -m` moved what several files have in common: before DWARF 5 and since.
fn supplementary(elf: &ElfFile64<'_, object::Endianness>) -> Option<String> {
    let name = match elf.gnu_debugaltlink() {
        Ok(Some((name, _))) => name,
        // Version 5 and whether it is the supplementary file itself (DWARF 5, 7.3.6).
        _ => {
            let name = elf.section_by_name(".debug_sup")?.data().ok()?.strip_prefix(&[5, 0, 0])?;
            name.split(|byte| *byte == 0).next()?
        }
    };
    Some(printable(&String::from_utf8_lossy(name)))
}

/// The build id that a note segment of `elf` holds, or the section of the kernel's own notes.
fn build_id(elf: &ElfFile64<'_, object::Endianness>) -> Option<Vec<u8>> {
    let by_headers = elf.build_id().ok().flatten().map(<[u8]>::to_vec);
    by_headers.or_else(|| build_id_of(elf.section_by_name(".notes")?.data().ok()?))
}

/// NT_GNU_BUILD_ID of the owner `GNU`.
const BUILD_ID: u32 = 3;

/// The build id in ELF notes.
pub(super) fn build_id_of(mut notes: &[u8]) -> Option<Vec<u8>> {
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
