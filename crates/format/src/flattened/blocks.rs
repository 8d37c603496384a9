//! What a flattened stream is made of: its header, block headers, and the end marker.

use crate::bytes::Bytes;
use crate::detect::{Kind, detect};
use crate::endian::Endian;
use crate::error::FETCH_AGAIN;
use crate::window::Window;
use crate::{FormatError, Result};
use std::io;

/// What a flattened stream begins with, zero-padded to 16 bytes.
pub const FLAT_SIGNATURE: &[u8; 16] = b"makedumpfile\0\0\0\0";
/// Bytes of the stream header; the first block follows.
pub(super) const HEADER: u64 = 4096;
/// Bytes of a block header: offset and size, signed and big-endian whatever machine crashed.
pub(super) const BLOCK_HEADER: u64 = 16;
/// Where the type is in the stream header; 1 is the only one.
const TYPE_AT: u64 = 16;
/// Bytes of the stream header, for those who read a stream from a pipe.
pub const FLAT_HEADER_LEN: usize = HEADER as usize;

/// What a stream begins with: signature, type 1, version 1, and zeros up to the first block.
#[must_use]
pub fn flat_header() -> Vec<u8> {
    let mut header = FLAT_SIGNATURE.to_vec();
    header.extend(1u64.to_be_bytes());
    header.extend(1u64.to_be_bytes());
    header.resize(HEADER as usize, 0);
    header
}

/// What a whole stream ends with: an offset and a size of -1.
pub const FLAT_END: [u8; BLOCK_HEADER as usize] = [0xff; BLOCK_HEADER as usize];

/// The header of a block of `len` bytes (at least one) for `offset`; both are below 2^63, as all file offsets.
#[must_use]
pub fn flat_block(offset: u64, len: u64) -> [u8; BLOCK_HEADER as usize] {
    (u128::from(offset) << 64 | u128::from(len)).to_be_bytes()
}

/// What a block header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlatBlock {
    /// The end marker.
    End,
    /// `len` bytes for `offset` follow; `len` is not 0, and `offset + len` is below 2^63.
    Bytes {
        /// Where they belong in the file inside.
        offset: u64,
        /// Their number.
        len: u64,
    },
    /// No writer writes this: a negative offset or a size below 1, or an end beyond 2^63.
    Bad {
        /// The offset as it is in the block header.
        offset: i64,
        /// The size as it is in the block header.
        size: i64,
    },
}

impl FlatBlock {
    /// Bytes of a block header.
    pub const LEN: usize = BLOCK_HEADER as usize;

    /// Reads a block header.
    #[must_use]
    pub fn decode(raw: &[u8; Self::LEN]) -> Self {
        let both = u128::from_be_bytes(*raw);
        match ((both >> 64) as u64 as i64, both as u64 as i64) {
            (-1, -1) => Self::End,
            (offset @ 0.., size @ 1..) if offset.checked_add(size).is_some() => {
                Self::Bytes { offset: offset as u64, len: size as u64 }
            }
            (offset, size) => Self::Bad { offset, size },
        }
    }
}

/// Whether `head`, the first [`FLAT_HEADER_LEN`] bytes of what is called `file` or all it has, begin a flattened stream.
///
/// # Errors
/// It is something else, which is named with what to do; or its header is no such.
pub fn check_flat_head(file: &str, head: &[u8]) -> Result<()> {
    let next = match detect(&Head { name: file, bytes: head })? {
        Kind::Flattened if head.len() < FLAT_HEADER_LEN => {
            let (what, end, len) = ("flattened stream header", HEADER, head.len() as u64);
            return Err(FormatError::CutShort { file: file.to_owned(), what, offset: 0, end, len });
        }
        Kind::Flattened => return check_header(file, head),
        Kind::Kdump => "a kdump-compressed file",
        Kind::Elf => "an ELF core",
    };
    Err(FormatError::OtherFormat {
        file: file.to_owned(),
        found: next,
        offset: 0,
        next: "it is no flattened stream, and needs no rearranging: use it as it is",
    })
}

/// The signature and the type of a stream header.
pub(super) fn check_header(file: &str, head: &[u8]) -> Result<()> {
    let bad = |field, offset, value: String, rule: &str| FormatError::BadField {
        file: file.to_owned(),
        field,
        offset,
        value,
        rule: rule.to_owned(),
        next: FETCH_AGAIN,
    };
    if !head.starts_with(FLAT_SIGNATURE) {
        let value = format!("{:02x?}", head.get(..16).unwrap_or_default());
        return Err(bad("signature", 0, value, "a flattened stream begins with \"makedumpfile\""));
    }
    // The version behind it is not looked at: makedumpfile does not either.
    match Endian::Big.u64(head, TYPE_AT as usize) {
        Some(1) => Ok(()),
        other => Err(bad("type", TYPE_AT, other.unwrap_or_default().to_string(), "the only type is 1")),
    }
}

/// The first bytes of a file that cannot be read twice.
struct Head<'a> {
    name: &'a str,
    bytes: &'a [u8],
}

impl Bytes for Head<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|at| self.bytes.get(at..)).unwrap_or_default();
        let n = from.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), from.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(n)
    }

    fn window(&self, _offset: u64, _len: usize) -> Option<Window> {
        None
    }
}
