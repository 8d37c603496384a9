//! Files: inode, device and path behind an `address_space`.

use super::span::{Bytes, Span};
use super::text::{MOST_DEPTH, MOST_NAME, MOST_PATH, no_address, path, text};
use crate::error::{KernelError, Result};
use crate::kernel::printable;
use crate::symbols::{Symbols, Wanted};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use std::collections::HashMap;
use std::sync::Arc;

const PURPOSE: &str = "telling the files of pages";

/// What is asked for here by name.
pub(super) const WANTED: Wanted = Wanted {
    members: &[
        ("address_space", "host"),
        ("inode", "i_ino"),
        ("inode", "i_sb"),
        ("inode", "i_nlink"),
        ("inode", "i_dentry"),
        ("inode", "i_data"),
        ("super_block", "s_dev"),
        ("dentry", "d_u.d_alias"),
        ("dentry", "d_alias"),
        ("dentry", "d_parent"),
        ("dentry", "d_name.name"),
        ("dentry", "d_name.len"),
    ],
    ..Wanted::NONE
};

/// An inode's entry in the list of names: in a union with a name since 3.19, without one since 7.0.
const ALIAS: &[(&str, &str)] = &[("dentry", "d_u.d_alias"), ("dentry", "d_alias")];
/// `MINORBITS`: the lower bits of a `dev_t` in the kernel.
const MINOR_BITS: u32 = 20;
/// Directories and devices that are remembered: a few MiB.
const MOST_DIRECTORIES: usize = 1 << 14;

/// How files are found and named.
#[derive(Clone, Copy, Debug)]
pub struct Files {
    host: u64,
    inode: InodeLayout,
    data: u64,
    dev: u64,
    alias: u64,
    dentry: DentryLayout,
    base: VirtAddr,
}

/// Members of an inode that are read, all at once.
#[derive(Clone, Copy, Debug)]
struct InodeLayout {
    span: Span,
    ino: u64,
    sb: u64,
    nlink: u64,
    dentries: u64,
}

/// Members of a dentry that are read, all at once; short names stand in the dentry behind them.
#[derive(Clone, Copy, Debug)]
struct DentryLayout {
    span: Span,
    parent: u64,
    name: u64,
    len: u64,
}
/// Bytes of a dentry's own name that are read along: most names are shorter than the 32 to 40 that fit.
const OWN_NAME: u64 = 48;

/// The file that pages are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOf {
    /// Its inode number.
    pub inode: u64,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Its path from the root of its file system, with ` (deleted)` behind it where no directory has it any more; `None` for an inode without
    /// a name: of a block device, or whose name the kernel has forgotten.
    pub path: Option<String>,
    /// Whether the address space is the inode's own, which shows that it is one.
    pub certain: bool,
}

/// What a thread has met: paths of directories by the addresses of their dentries, devices by those of their super blocks.
#[derive(Debug, Default)]
pub struct Directories {
    paths: HashMap<u64, Arc<str>>,
    devices: HashMap<u64, u32>,
}

/// A name in a directory.
struct Entry {
    name: String,
    parent: u64,
}

impl Files {
    pub(super) fn new(symbols: &Symbols, base: VirtAddr) -> Result<Self> {
        let at = |structure, member| symbols.offset(structure, member, PURPOSE);
        let alias = symbols.first_offset(ALIAS);
        let lacks = || KernelError::MissingKey { key: "the member dentry.d_alias".to_owned(), purpose: PURPOSE };
        let (ino, sb) = (at("inode", "i_ino")?, at("inode", "i_sb")?);
        let (nlink, dentries) = (at("inode", "i_nlink")?, at("inode", "i_dentry")?);
        let (parent, name) = (at("dentry", "d_parent")?, at("dentry", "d_name.name")?);
        let len = at("dentry", "d_name.len")?;
        let inode_span = Span::of(&[ino, sb, nlink, dentries], 0)?;
        Ok(Self {
            host: at("address_space", "host")?,
            inode: InodeLayout { span: inode_span, ino, sb, nlink, dentries },
            data: at("inode", "i_data")?,
            dev: at("super_block", "s_dev")?,
            alias: alias.ok_or_else(lacks)?,
            dentry: DentryLayout { span: Span::of(&[parent, name, len], OWN_NAME)?, parent, name, len },
            base,
        })
    }

    /// The file whose address space is at `mapping`; `None` for an address space of no file, as swap has.
    ///
    /// # Errors
    /// What the address leads to cannot be read, or is no inode.
    pub fn file(
        &self,
        reader: &mut KernelReader<'_>,
        known: &mut Directories,
        mapping: VirtAddr,
    ) -> Result<Option<FileOf>> {
        self.kernel("the mapping of a page", mapping, mapping.0)?;
        let at = mapping.plus(self.host);
        let host = reader.read_u64(at)?;
        if host == 0 {
            return Ok(None);
        }
        let inode = self.kernel("address_space.host", at, host)?;
        let bytes = self.inode.span.read(reader, inode)?;
        let super_block = self.kernel("inode.i_sb", inode.plus(self.inode.sb), bytes.word(self.inode.sb))?;
        let dev = self.device(reader, known, super_block)?;
        let path = self.path(reader, known, inode, &bytes).ok().flatten();
        Ok(Some(FileOf {
            inode: bytes.word(self.inode.ino),
            device: (dev >> MINOR_BITS, dev & ((1 << MINOR_BITS) - 1)),
            path,
            certain: inode.plus(self.data) == mapping,
        }))
    }

    fn device(&self, reader: &mut KernelReader<'_>, known: &mut Directories, super_block: VirtAddr) -> Result<u32> {
        if let Some(dev) = known.devices.get(&super_block.0) {
            return Ok(*dev);
        }
        let dev = reader.read_u32(super_block.plus(self.dev))?;
        if known.devices.len() >= MOST_DIRECTORIES {
            known.devices.clear();
        }
        known.devices.insert(super_block.0, dev);
        Ok(dev)
    }

    fn kernel(&self, what: &'static str, at: VirtAddr, value: u64) -> Result<VirtAddr> {
        if value < self.base.0 { Err(no_address(what, at, value)) } else { Ok(VirtAddr(value)) }
    }

    /// The path of an inode, whose members are `bytes`, by the first of its names.
    fn path(
        &self,
        reader: &mut KernelReader<'_>,
        known: &mut Directories,
        inode: VirtAddr,
        bytes: &Bytes,
    ) -> Result<Option<String>> {
        let first = bytes.word(self.inode.dentries);
        if first == 0 {
            return Ok(None);
        }
        let at = inode.plus(self.inode.dentries);
        let dentry = self.kernel("inode.i_dentry", at, first)?.0.wrapping_sub(self.alias);
        let entry = self.entry(reader, dentry)?;
        let mut whole = if entry.parent == dentry {
            root(&entry.name)
        } else {
            path(&self.directory(reader, known, entry.parent)?, std::iter::once(&entry.name))
        };
        if bytes.half(self.inode.nlink) == 0 {
            whole.push_str(" (deleted)");
        }
        Ok(Some(if whole.is_empty() { "/".to_owned() } else { whole }))
    }

    /// The path of a directory, empty for the root.
    fn directory(&self, reader: &mut KernelReader<'_>, known: &mut Directories, dentry: u64) -> Result<Arc<str>> {
        let mut names = Vec::new();
        let (mut at, mut bytes) = (dentry, 0);
        let base = loop {
            if let Some(path) = known.paths.get(&at) {
                break path.clone();
            }
            let entry = self.entry(reader, at)?;
            if entry.parent == at {
                break root(&entry.name).into();
            }
            bytes += entry.name.len() + 1;
            if names.len() >= MOST_DEPTH || bytes > MOST_PATH {
                return Err(no_address("the way from a dentry to its root", VirtAddr(dentry), at));
            }
            names.push(entry.name);
            at = entry.parent;
        };
        let whole: Arc<str> = if names.is_empty() { base } else { path(&base, names.iter()).into() };
        if known.paths.len() >= MOST_DIRECTORIES {
            known.paths.clear();
        }
        known.paths.insert(dentry, whole.clone());
        Ok(whole)
    }

    fn entry(&self, reader: &mut KernelReader<'_>, dentry: u64) -> Result<Entry> {
        let dentry = self.kernel("a dentry", VirtAddr(dentry), dentry)?;
        let layout = &self.dentry;
        let bytes = layout.span.read(reader, dentry)?;
        let at = dentry.plus(layout.name);
        let name = self.kernel("dentry.d_name", at, bytes.word(layout.name))?;
        let len = bytes.half(layout.len) as usize;
        if len > MOST_NAME {
            return Err(no_address("the length of a dentry's name", dentry.plus(layout.len), len as u64));
        }
        let name = match bytes.at(name.0.wrapping_sub(dentry.0), len) {
            Some(own) => printable(&String::from_utf8_lossy(own)),
            None => text(reader, name, len)?,
        };
        Ok(Entry { name, parent: bytes.word(layout.parent) })
    }
}

/// The path that begins at a dentry without parent: the root of a file system is called `/`; another one is a file that never had a directory
/// (`memfd:x`, `SYSV00000000`, a pipe).
fn root(name: &str) -> String {
    if name == "/" { String::new() } else { format!("/{}", name.trim_start_matches('/')) }
}
