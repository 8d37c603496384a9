//! ELF files written by hand: sections and symbols, no more.

/// How the debug sections are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    Plain,
    /// SHF_COMPRESSED, ELFCOMPRESS_ZLIB.
    Zlib,
    /// SHF_COMPRESSED, ELFCOMPRESS_ZSTD.
    Zstd,
    /// `.zdebug_*`, as GNU tools made them before ELF had a flag for it.
    OldZlib,
}

/// A section: name, type, flags, content.
#[derive(Clone)]
pub(super) struct Section(pub(super) String, pub(super) u32, pub(super) u64, pub(super) Vec<u8>);

/// sh_type
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOTE: u32 = 7;
const NOBITS: u32 = 8;
/// sh_flags
const WRITE: u64 = 1;
const ALLOC: u64 = 2;
const COMPRESSED: u64 = 0x800;

impl Section {
    /// One of debug information.
    pub(super) fn debug(name: &str, content: &[u8], packed: Packed) -> Self {
        let size = content.len() as u64;
        // Elf64_Chdr: type, reserved, size, alignment.
        let header = |kind: u32| [&kind.to_le_bytes()[..], &[0; 4], &size.to_le_bytes(), &1u64.to_le_bytes()].concat();
        match packed {
            Packed::Plain => Self(name.into(), PROGBITS, 0, content.into()),
            Packed::Zlib => Self(name.into(), PROGBITS, COMPRESSED, [header(1), zlib(content)].concat()),
            Packed::Zstd => {
                let mut stream = vec![0; zstd_safe::compress_bound(content.len())];
                let len = zstd_safe::compress(&mut stream[..], content, 3).unwrap();
                stream.truncate(len);
                Self(name.into(), PROGBITS, COMPRESSED, [header(2), stream].concat())
            }
            Packed::OldZlib => {
                let content = [b"ZLIB", &size.to_be_bytes()[..], &zlib(content)].concat();
                Self(name.replace(".debug", ".zdebug"), PROGBITS, 0, content)
            }
        }
    }

    /// `.notes` with a build id.
    pub(super) fn build_id(id: &[u8]) -> Self {
        let note =
            [&4u32.to_le_bytes()[..], &(id.len() as u32).to_le_bytes(), &3u32.to_le_bytes(), b"GNU\0", id].concat();
        Self(".notes".into(), NOTE, ALLOC, note)
    }

    /// `.gnu_debuglink`.
    pub(super) fn debug_link(name: &str, sum: u32) -> Self {
        let mut content = name.as_bytes().to_vec();
        content.resize((name.len() + 1).next_multiple_of(4), 0);
        content.extend(sum.to_le_bytes());
        Self(".gnu_debuglink".into(), PROGBITS, 0, content)
    }

    /// `.data` and `.bss`, with content or as a separate debug file has them.
    pub(super) fn data_and_bss(content: bool) -> [Self; 2] {
        let data = if content { PROGBITS } else { NOBITS };
        [(".data", data), (".bss", NOBITS)].map(|(name, kind)| Self(name.into(), kind, ALLOC | WRITE, vec![0; 8]))
    }
}

fn zlib(content: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; content.len() + 64];
    let len = libdeflater::Compressor::new(libdeflater::CompressionLvl::default())
        .zlib_compress(content, &mut stream)
        .unwrap();
    stream.truncate(len);
    stream
}

/// A file of `sections` and of global `symbols`: name, address, number of the section from 1 on.
pub(super) fn elf(sections: &[Section], symbols: &[(&str, u64, u16)]) -> Vec<u8> {
    let mut sections = sections.to_vec();
    if !symbols.is_empty() {
        let (mut names, mut table) = (vec![0], vec![0; 24]);
        for (name, address, section) in symbols {
            table.extend((names.len() as u32).to_le_bytes());
            table.extend([0x11, 0]);
            table.extend(section.to_le_bytes());
            table.extend(address.to_le_bytes());
            table.extend(8u64.to_le_bytes());
            names.extend(name.bytes().chain([0]));
        }
        sections.push(Section(".symtab".into(), SYMTAB, 0, table));
        sections.push(Section(".strtab".into(), STRTAB, 0, names));
    }
    sections.push(Section(".shstrtab".into(), STRTAB, 0, Vec::new()));
    let (count, mut names, mut body) = (sections.len(), vec![0], vec![0; 64]);
    let mut headers = vec![0; 64];
    for (number, Section(name, kind, flags, content)) in sections.iter().enumerate() {
        let name_at = names.len() as u32;
        names.extend(name.bytes().chain([0]));
        let content = if number + 1 == count { &names } else { content };
        body.resize(body.len().next_multiple_of(8), 0);
        // The table of symbols links to that of their names behind it; all of its symbols but the first are global.
        let (link, info, entry) = if *kind == SYMTAB { (number as u32 + 2, 1u32, 24u64) } else { (0, 0, 0) };
        headers.extend([name_at, *kind].map(u32::to_le_bytes).concat());
        headers.extend([*flags, 0, body.len() as u64, content.len() as u64].map(u64::to_le_bytes).concat());
        headers.extend([link, info].map(u32::to_le_bytes).concat());
        headers.extend([1, entry].map(u64::to_le_bytes).concat());
        if *kind != NOBITS {
            body.extend(content);
        }
    }
    let table_at = body.len().next_multiple_of(8);
    body.resize(table_at, 0);
    body.extend(headers);
    // ELF64, little-endian; ET_EXEC for x86-64.
    body[..16].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    body[40..48].copy_from_slice(&(table_at as u64).to_le_bytes());
    let ends = [64u16, 0, 0, 64, count as u16 + 1, count as u16].map(u16::to_le_bytes).concat();
    body[52..64].copy_from_slice(&ends);
    body
}
