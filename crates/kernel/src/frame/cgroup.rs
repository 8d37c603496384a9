//! Memory cgroups that pages are charged to.

use super::text::{MOST_DEPTH, MOST_NAME, MOST_PATH, no_address, path, text};
use crate::error::{KernelError, Result};
use crate::symbols::{Symbols, Wanted};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};

const PURPOSE: &str = "telling the cgroups of pages";

/// What is asked for here by name.
pub(super) const WANTED: Wanted = Wanted {
    members: &[
        ("page", "memcg_data"),
        ("page", "mem_cgroup"),
        ("mem_cgroup", "css.cgroup"),
        ("mem_cgroup", "css.parent"),
        ("mem_cgroup", "css.flags"),
        ("mem_cgroup", "css"),
        ("obj_cgroup", "memcg"),
        ("obj_cgroup", "is_root"),
        ("cgroup", "kn"),
        ("kernfs_node", "id.ino"),
        ("kernfs_node", "ino"),
        ("kernfs_node", "id"),
        ("kernfs_node", "parent"),
        ("kernfs_node", "__parent"),
        ("kernfs_node", "name"),
    ],
    ..Wanted::NONE
};

/// The parent in kernfs, read through RCU since Linux 6.15.
const PARENT: &[(&str, &str)] = &[("kernfs_node", "parent"), ("kernfs_node", "__parent")];
/// The inode number, 32 bits of it before Linux 5.5.
const NARROW_INODE: &[(&str, &str)] = &[("kernfs_node", "id.ino"), ("kernfs_node", "ino")];
const INODE: &[(&str, &str)] = &[("kernfs_node", "id")];

/// `CSS_ONLINE`.
const ONLINE: u32 = 1 << 1;
/// `MEMCG_DATA_OBJEXTS` (`MEMCG_DATA_OBJCGS` at first): the word points at the owners of single objects.
const OBJECTS: u64 = 1 << 0;
/// `MEMCG_DATA_KMEM`: the word points at a `struct obj_cgroup`.
const KMEM: u64 = 1 << 1;
/// No pointer has any of these bits.
const BITS: u64 = 7;

/// How cgroups are found and named.
#[derive(Clone, Copy, Debug)]
pub struct Cgroups {
    css: u64,
    css_cgroup: u64,
    css_parent: u64,
    css_flags: u64,
    /// `obj_cgroup.memcg`, since Linux 5.9.
    objcg_memcg: Option<u64>,
    /// Whether user pages too are charged through a `struct obj_cgroup`, as since it can be that of a root (Linux 7.1).
    only_objcg: bool,
    kn: u64,
    inode: u64,
    narrow_inode: bool,
    parent: u64,
    name: u64,
    base: VirtAddr,
}

/// A cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupOf {
    /// Its inode number, as /proc/kpagecgroup tells it.
    pub inode: u64,
    /// Its path in its hierarchy.
    pub path: String,
}

impl Cgroups {
    pub(super) fn new(symbols: &Symbols, base: VirtAddr) -> Result<Self> {
        let at = |structure, member| symbols.offset(structure, member, PURPOSE);
        let first = |names: &[(&'static str, &'static str)], key: &str| {
            let lacks = || KernelError::MissingKey { key: key.to_owned(), purpose: PURPOSE };
            symbols.first_offset(names).ok_or_else(lacks)
        };
        first(&[("page", "memcg_data"), ("page", "mem_cgroup")], "the member page.memcg_data")?;
        let narrow = symbols.first_offset(NARROW_INODE);
        Ok(Self {
            css: at("mem_cgroup", "css")?,
            css_cgroup: at("mem_cgroup", "css.cgroup")?,
            css_parent: at("mem_cgroup", "css.parent")?,
            css_flags: at("mem_cgroup", "css.flags")?,
            objcg_memcg: symbols.first_offset(&[("obj_cgroup", "memcg")]),
            only_objcg: symbols.first_offset(&[("obj_cgroup", "is_root")]).is_some(),
            kn: at("cgroup", "kn")?,
            inode: narrow.map_or_else(|| first(INODE, "the member kernfs_node.id"), Ok)?,
            narrow_inode: narrow.is_some(),
            parent: first(PARENT, "the member kernfs_node.parent")?,
            name: at("kernfs_node", "name")?,
            base,
        })
    }

    /// The cgroup that the page or slab with this word is charged to, the nearest above it that is online, as /proc/kpagecgroup has it; `None`
    /// for none, and for a slab whose objects are charged one by one.
    ///
    /// # Errors
    /// What the word points at cannot be read, or is no cgroup.
    pub fn cgroup(&self, reader: &mut KernelReader<'_>, word: u64) -> Result<Option<CgroupOf>> {
        let pointer = word & !BITS;
        if word & OBJECTS != 0 || pointer == 0 {
            return Ok(None);
        }
        let mut memcg = self.kernel("the cgroup of a page", VirtAddr(pointer), pointer)?;
        if let Some(at) = self.objcg_memcg.filter(|_| self.only_objcg || word & KMEM != 0) {
            memcg = self.pointer(reader, "obj_cgroup.memcg", memcg.plus(at))?;
        }
        for _ in 0..MOST_DEPTH {
            if reader.read_u32(memcg.plus(self.css_flags))? & ONLINE != 0 {
                let cgroup = self.pointer(reader, "mem_cgroup.css.cgroup", memcg.plus(self.css_cgroup))?;
                let node = self.pointer(reader, "cgroup.kn", cgroup.plus(self.kn))?;
                return self.named(reader, node).map(Some);
            }
            let parent = reader.read_u64(memcg.plus(self.css_parent))?;
            if parent == 0 {
                return Ok(None);
            }
            memcg = VirtAddr(self.kernel("css.parent", memcg, parent)?.0.wrapping_sub(self.css));
        }
        Err(no_address("the way from a cgroup to its root", memcg, word))
    }

    fn named(&self, reader: &mut KernelReader<'_>, node: VirtAddr) -> Result<CgroupOf> {
        let at = node.plus(self.inode);
        let inode = if self.narrow_inode { reader.read_u32(at)?.into() } else { reader.read_u64(at)? };
        let mut names = Vec::new();
        let (mut at, mut bytes) = (node, 0);
        loop {
            let parent = reader.read_u64(at.plus(self.parent))?;
            if parent == 0 {
                break;
            }
            let name = self.pointer(reader, "kernfs_node.name", at.plus(self.name))?;
            let name = text(reader, name, MOST_NAME)?;
            bytes += name.len() + 1;
            if names.len() >= MOST_DEPTH || bytes > MOST_PATH {
                return Err(no_address("the way from a kernfs node to its root", node, at.0));
            }
            names.push(name);
            at = self.kernel("kernfs_node.parent", at, parent)?;
        }
        Ok(CgroupOf { inode, path: path("", names.iter()) })
    }

    fn pointer(&self, reader: &mut KernelReader<'_>, what: &'static str, at: VirtAddr) -> Result<VirtAddr> {
        let value = reader.read_u64(at)?;
        self.kernel(what, at, value)
    }

    fn kernel(&self, what: &'static str, at: VirtAddr, value: u64) -> Result<VirtAddr> {
        if value < self.base.0 { Err(no_address(what, at, value)) } else { Ok(VirtAddr(value)) }
    }
}
