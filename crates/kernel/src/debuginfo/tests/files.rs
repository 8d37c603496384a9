//! Files as distributions make them: compressed, stripped, with a part elsewhere.

use super::elf::{Packed, Section, elf};
use super::{abbreviations, plain};
use crate::debuginfo::Vmlinux;
use crate::types::TypeSource;
use std::path::Path;
use tempfile::TempDir;

const ID: &[u8] = &[0xab, 0xcd, 0xef];
/// Where a root has the file by [`ID`].
const BY_ID: &str = ".build-id/ab/cdef.debug";
const SYMBOLS: &[(&str, u64, u16)] = &[("log_buf", 0xffff_ffff_8100_0000, 1), ("empty", 0xffff_ffff_8200_0000, 2)];

fn debug_sections(packed: Packed) -> [Section; 2] {
    [(".debug_info", plain()), (".debug_abbrev", abbreviations())]
        .map(|(name, content)| Section::debug(name, &content, packed))
}

/// A file of everything `--only-keep-debug` keeps.
fn separate(id: Option<&[u8]>) -> Vec<u8> {
    let id = id.map(Section::build_id);
    let sections: Vec<Section> =
        Section::data_and_bss(false).into_iter().chain(id).chain(debug_sections(Packed::Zstd)).collect();
    elf(&sections, SYMBOLS)
}

/// The file whose debug information is in `vmlinux.debug`.
fn stripped(id: Option<&[u8]>, sum: u32) -> Vec<u8> {
    let id = id.map(Section::build_id);
    let link = Section::debug_link("vmlinux.debug", sum);
    let sections: Vec<Section> = Section::data_and_bss(true).into_iter().chain(id).chain([link]).collect();
    elf(&sections, &[])
}

fn put(dir: &TempDir, name: impl AsRef<Path>, bytes: &[u8]) -> std::path::PathBuf {
    let path = dir.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// `struct page` has 64 bytes in all of them.
fn size_of_page(vmlinux: &Vmlinux) -> Result<Option<u64>, String> {
    let mut types = vmlinux.types().map_err(|error| error.to_string())?;
    (&mut types as &mut dyn TypeSource).size_of("page").map_err(|error| error.to_string())
}

#[test]
fn compressed_sections_are_read() {
    let dir = tempfile::tempdir().unwrap();
    for packed in [Packed::Plain, Packed::Zlib, Packed::Zstd, Packed::OldZlib] {
        let path = put(&dir, "vmlinux", &elf(&debug_sections(packed), SYMBOLS));
        assert_eq!(size_of_page(&Vmlinux::open(&path).unwrap()), Ok(Some(64)), "{packed:?}");
    }
}

#[test]
fn a_section_that_cannot_be_decompressed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    // In Elf64_Chdr: the type, and the size it claims.
    for (packed, at, value, said) in [
        (Packed::Zlib, 0, 99u32, "Unsupported ELF compression type"),
        (Packed::Zlib, 0, 2, "zstd"),
        (Packed::Zstd, 0, 1, "zlib"),
        (Packed::Zstd, 8, 1 << 30, "bytes cannot hold the 1073741824 it claims"),
        (Packed::Zlib, 12, 1, "bytes cannot hold the 4294967"),
        (Packed::Zlib, 8, 7, "zlib"),
        (Packed::Zstd, 8, 7, "zstd"),
    ] {
        let mut sections = debug_sections(packed);
        sections[0].3[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let path = put(&dir, "vmlinux", &elf(&sections, SYMBOLS));
        let error = size_of_page(&Vmlinux::open(&path).unwrap()).unwrap_err();
        assert!(error.contains("section .debug_info") && error.contains(said), "{packed:?} {said}: {error}");
    }
    let whole = debug_sections(Packed::Zstd);
    for len in 0..whole[0].3.len() {
        let mut cut = whole.clone();
        cut[0].3.truncate(len);
        let path = put(&dir, "vmlinux", &elf(&cut, SYMBOLS));
        assert!(size_of_page(&Vmlinux::open(&path).unwrap()).is_err(), "cut at {len}");
    }
}

#[test]
fn a_separate_file_is_found_beside_the_stripped_one_and_below_the_root_by_build_id_and_by_path() {
    let places: [fn(&Path, &Path) -> std::path::PathBuf; 4] = [
        |_, root| root.join(BY_ID),
        |folder, _| folder.join("vmlinux.debug"),
        |folder, _| folder.join(".debug/vmlinux.debug"),
        |folder, root| root.join(folder.strip_prefix("/").unwrap()).join("vmlinux.debug"),
    ];
    for place in places {
        let (dir, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = put(&dir, "vmlinux", &stripped(Some(ID), 0));
        let alone = Vmlinux::open_with_root(&path, root.path()).unwrap();
        assert!(size_of_page(&alone).unwrap_err().contains("no DWARF"));
        assert!(alone.symbol("log_buf").unwrap_err().to_string().contains("no symbols"));

        let debug = place(dir.path(), root.path());
        put(&dir, &debug, &separate(Some(ID)));
        let vmlinux = Vmlinux::open_with_root(&path, root.path()).unwrap();
        assert_eq!(size_of_page(&vmlinux), Ok(Some(64)), "{}", debug.display());
        assert_eq!(vmlinux.build_id().as_deref(), Some("abcdef"));
        // All sections of the separate file are without data.
        let kinds = ["log_buf", "empty"].map(|name| char::from(vmlinux.symbol(name).unwrap().unwrap().kind));
        assert_eq!(kinds, ['D', 'B'], "{}", debug.display());

        std::fs::remove_file(&debug).unwrap();
        put(&dir, &debug, &separate(Some(&[0xab, 0xcd])));
        let error = size_of_page(&Vmlinux::open_with_root(&path, root.path()).unwrap()).unwrap_err();
        assert!(error.contains(&format!("{}: has another build id", debug.display())), "{error}");
    }
}

#[test]
fn without_a_build_id_the_checksum_tells_the_separate_file() {
    let dir = tempfile::tempdir().unwrap();
    let debug = separate(None);
    put(&dir, "vmlinux.debug", &debug);
    let mut sum = libdeflater::Crc::new();
    sum.update(&debug);
    let path = put(&dir, "vmlinux", &stripped(None, sum.sum()));
    assert_eq!(size_of_page(&Vmlinux::open(&path).unwrap()), Ok(Some(64)));
    let path = put(&dir, "vmlinux", &stripped(None, sum.sum() ^ 1));
    let error = size_of_page(&Vmlinux::open(&path).unwrap()).unwrap_err();
    assert!(error.contains("vmlinux.debug: has another checksum"), "{error}");
}

#[test]
fn files_that_dwz_took_a_part_of_are_refused_with_the_name_of_the_file_that_has_it() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in [
        (".gnu_debugaltlink", [b"shared.dwz\0", ID].concat()),
        (".debug_sup", [&[5, 0, 0][..], b"shared.dwz\0\x03", ID].concat()),
    ] {
        let mut sections = debug_sections(Packed::Plain).to_vec();
        sections.push(Section::debug(name, &content, Packed::Plain));
        let path = put(&dir, "vmlinux", &elf(&sections, SYMBOLS));
        let error = size_of_page(&Vmlinux::open(&path).unwrap()).unwrap_err();
        assert!(error.contains("dwz has moved some of its DWARF into shared.dwz"), "{name}: {error}");
    }
}
