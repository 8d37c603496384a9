//! Texts of the kernel, and paths made of them.

use crate::error::{KernelError, Result};
use crate::kernel::printable;
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};

/// `PATH_MAX`: no path that a program can name is longer.
pub(super) const MOST_PATH: usize = 4096;
/// `NAME_MAX`.
pub(super) const MOST_NAME: usize = 255;
/// Names of a path: of one byte each.
pub(super) const MOST_DEPTH: usize = MOST_PATH / 2;

/// Bytes read at a time; texts are seldom longer, and a piece of this size at a multiple of it crosses no page.
const PIECE: u64 = 32;

/// The text at `addr` up to its NUL, at most `most` bytes of it, without what would steer a terminal.
///
/// # Errors
/// It cannot be read.
pub(crate) fn text(reader: &mut KernelReader<'_>, addr: VirtAddr, most: usize) -> Result<String> {
    let mut bytes = Vec::new();
    let mut at = addr;
    while bytes.len() < most {
        let mut piece = [0; PIECE as usize];
        let len = (PIECE - at.0 % PIECE) as usize;
        let piece = piece.get_mut(..len.min(most - bytes.len())).unwrap_or_default();
        reader.read_virt(at, piece)?;
        let end = piece.iter().position(|b| *b == 0);
        bytes.extend_from_slice(piece.get(..end.unwrap_or(piece.len())).unwrap_or_default());
        if end.is_some() {
            break;
        }
        at = at.plus(piece.len() as u64);
    }
    Ok(printable(&String::from_utf8_lossy(&bytes)))
}

/// The path of names that were met from the inside out.
pub(super) fn path<'n>(base: &str, inside_out: impl DoubleEndedIterator<Item = &'n String>) -> String {
    let mut path = base.to_owned();
    for name in inside_out.rev() {
        path.push('/');
        path.push_str(name);
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

/// That `value`, read at `addr`, is no address of `what`.
pub(super) const fn no_address(what: &'static str, addr: VirtAddr, value: u64) -> KernelError {
    KernelError::Implausible { what, addr, value, hint: "" }
}
