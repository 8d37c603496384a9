//! What kind of file this is, by its first bytes.

use crate::bytes::{Bytes, read_some};
use crate::flattened::FLAT_SIGNATURE;
use crate::kdump::{SIGNATURE, nearly_signed};
use crate::{FormatError, Result};

/// The containers this crate reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Flattened,
    Kdump,
    Elf,
}

/// A file begins with `magic` at `offset`: it is ours, or something to be named.
struct Row {
    offset: usize,
    magic: &'static [u8],
    found: std::result::Result<Kind, (&'static str, &'static str)>,
}

/// Bytes that have to be read to see every magic: a media backup of sadump has its mark behind one block.
const HEAD: u64 = 4096 + 8;

const OTHER: &str = "this program reads ELF cores, kdump-compressed and flattened files";

const fn ours(magic: &'static [u8], kind: Kind) -> Row {
    Row { offset: 0, magic, found: Ok(kind) }
}

const fn other(offset: usize, magic: &'static [u8], found: &'static str, next: &'static str) -> Row {
    Row { offset, magic, found: Err((found, next)) }
}

/// Looked at in this order.
const ROWS: &[Row] = &[
    ours(FLAT_SIGNATURE, Kind::Flattened),
    ours(SIGNATURE, Kind::Kdump),
    ours(b"\x7fELF", Kind::Elf),
    other(0, b"DISKDUMP", "a dump of old diskdump", "open it in crash as it is"),
    other(0, b"diskdump", "a dump partition of old diskdump", "open it in crash as it is"),
    other(0, b"sadump\0\0", "a Fujitsu sadump", OTHER),
    other(4096, b"sadump\0\0", "a Fujitsu sadump media backup", OTHER),
    other(0, b"\xed\x23\x8f\x61\x73\x01\x19\xa8", "an LKCD dump", OTHER),
    other(0, b"\xcd\x23\x8f\x61\x73\x01\x19\xa8", "a live LKCD dump", OTHER),
    other(0, b"\xa8\x19\x01\x73\x61\x8f\x23\xed", "an LKCD dump", OTHER),
    other(0, b"\xa8\x19\x01\x73\x61\x8f\x23\xcd", "a live LKCD dump", OTHER),
    other(0, b"\xa8\x19\x01\x73\x61\x8f\x23\xfd", "an s390 stand-alone dump", "make an ELF core of it with zgetdump"),
    other(0, b"EMiL", "a LiME memory image", OTHER),
    other(0, b"AVML", "an AVML memory image", "make a raw or LiME image of it with avml-convert"),
    other(0, b"\xd0\xbe\xd2\xbe", "a VMware suspend state (vmss)", "make an ELF core of it with vmss2core"),
    other(0, b"\xd1\xba\xd1\xba", "a VMware suspend state (vmss)", "make an ELF core of it with vmss2core"),
    other(0, b"\xd2\xbe\xd2\xbe", "a VMware suspend state (vmss)", "make an ELF core of it with vmss2core"),
    other(0, b"\xd3\xbe\xd3\xbe", "a VMware suspend state (vmss)", "make an ELF core of it with vmss2core"),
    other(0, b"LibvirtQemudSave", "a libvirt saved guest", "dump the guest with `virsh dump --memory-only` instead"),
    other(
        0,
        b"LibvirtQemudPart",
        "an unfinished libvirt saved guest",
        "dump the guest with `virsh dump --memory-only`",
    ),
    other(0, b"QEVM", "a QEMU migration stream", "dump the guest with `dump-guest-memory` instead"),
    other(0, b"PAGEDUMP", "a Windows crash dump", OTHER),
    other(0, b"PAGEDU64", "a Windows crash dump", OTHER),
    other(0, b"MDMP", "a minidump of a process", OTHER),
    other(0, b"\x1f\x9d", "a file packed by compress", "unpack it first: uncompress -c FILE > DUMP"),
    other(0, b"\x1f\x8b", "a file packed by gzip", "unpack it first: gzip -dc FILE > DUMP"),
    other(0, b"\xfd7zXZ\0", "a file packed by xz", "unpack it first: xz -dc FILE > DUMP"),
    other(0, b"\x28\xb5\x2f\xfd", "a file packed by zstd", "unpack it first: zstd -dc FILE > DUMP"),
    other(0, b"\x04\x22\x4d\x18", "a file packed by lz4", "unpack it first: lz4 -dc FILE > DUMP"),
    other(0, b"BZh", "a file packed by bzip2", "unpack it first: bzip2 -dc FILE > DUMP"),
    other(0, b"\x89LZO\0", "a file packed by lzop", "unpack it first: lzop -dc FILE > DUMP"),
];

/// Finds out what a file is.
///
/// # Errors
/// [`FormatError::OtherFormat`] naming a format this crate does not read, [`FormatError::Unknown`] where nothing fits.
pub(crate) fn detect(bytes: &dyn Bytes) -> Result<Kind> {
    let head = read_some(bytes, "the first bytes", 0, HEAD)?;
    let row = ROWS.iter().find(|r| head.get(r.offset..).is_some_and(|h| h.starts_with(r.magic)));
    let named = |found, offset: usize, next| FormatError::OtherFormat {
        file: bytes.name().to_owned(),
        found,
        offset: offset as u64,
        next,
    };
    match row {
        Some(Row { found: Ok(kind), .. }) => Ok(*kind),
        Some(Row { found: Err((found, next)), offset, .. }) => Err(named(found, *offset, next)),
        None if head.is_empty() && is_device(bytes) => Err(named("a device that holds nothing", 0, "name a dump")),
        None if head.is_empty() => {
            Err(named("an empty file", 0, "nothing was written to it: look at where it came from"))
        }
        None if head.iter().all(|b| *b == 0) => Err(named(
            "a file that begins with zeros",
            0,
            "its beginning was never written: look at where it came from",
        )),
        None => Err(FormatError::Unknown {
            file: bytes.name().to_owned(),
            head: head.iter().take(16).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "),
        }),
    }
}

/// As [`detect`], of a file whose signature may be damaged.
///
/// # Errors
/// As [`detect`].
pub(crate) fn detect_damaged(bytes: &dyn Bytes) -> Result<Kind> {
    detect(bytes).or_else(|error| {
        let head = read_some(bytes, "the first bytes", 0, SIGNATURE.len() as u64)?;
        if nearly_signed(&head) { Ok(Kind::Kdump) } else { Err(error) }
    })
}

/// Whether the bytes are those of a character device, such as /dev/null.
fn is_device(bytes: &dyn Bytes) -> bool {
    use std::os::unix::fs::FileTypeExt;
    bytes.file().and_then(|file| file.metadata().ok()).is_some_and(|file| file.file_type().is_char_device())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_leads_to_its_own_row() {
        for (i, row) in ROWS.iter().enumerate() {
            let mut file = vec![0xee; row.offset];
            file.extend(row.magic);
            file.resize(5000, 0xee);
            let first = ROWS.iter().position(|r| file[r.offset..].starts_with(r.magic));
            assert_eq!(first, Some(i), "row {i} is hidden by an earlier one");
            match (detect(&file), &row.found) {
                (Ok(kind), Ok(expected)) => assert_eq!(kind, *expected),
                (Err(FormatError::OtherFormat { found, .. }), Err((expected, _))) => assert_eq!(found, *expected),
                (other, _) => panic!("row {i}: {other:?}"),
            }
        }
    }

    #[test]
    fn empty_blank_and_strange_files_say_so() {
        let message = |file: Vec<u8>| detect(&file).unwrap_err().to_string();
        assert!(message(vec![]).contains("empty"));
        assert!(message(vec![0; 9000]).contains("zeros"));
        assert!(message(b"hello, world".to_vec()).contains("68 65 6c 6c"));
    }
}
