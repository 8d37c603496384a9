//! Page tables as a table of levels.

use crate::error::{KernelError, Result};
use crate::virt::{VirtAddr, read_failed};
use coresift_format::{MemoryView, PhysAddr, ReadError};
use std::collections::HashSet;

#[cfg(test)]
mod tests;

/// One level of a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The name its entries go by.
    pub name: &'static str,
    /// log2 of the bytes one entry maps.
    pub shift: u32,
    /// Whether an entry can map memory itself.
    pub leaf: bool,
}

/// Index bits of every level: 512 entries of 8 bytes.
const INDEX_BITS: u32 = 9;
/// Bytes of a table.
const TABLE: usize = 8 << INDEX_BITS;

/// x86-64 with 4 levels (Intel SDM volume 3, 4-level paging).
pub const X86_64_4: &[Level] = &[
    Level { name: "pgd", shift: 39, leaf: false },
    Level { name: "pud", shift: 30, leaf: true },
    Level { name: "pmd", shift: 21, leaf: true },
    Level { name: "pte", shift: 12, leaf: true },
];

/// x86-64 with 5 levels (LA57).
pub const X86_64_5: &[Level] = &[
    Level { name: "pgd", shift: 48, leaf: false },
    Level { name: "p4d", shift: 39, leaf: false },
    Level { name: "pud", shift: 30, leaf: true },
    Level { name: "pmd", shift: 21, leaf: true },
    Level { name: "pte", shift: 12, leaf: true },
];

const PRESENT: u64 = 1;
/// "Page size": the entry is a leaf above the last level.
const LARGE: u64 = 1 << 7;
/// Bits 51..12: the frame, or the next table.
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// The page tables of a kernel.
#[derive(Clone, Debug)]
pub struct Paging {
    /// The levels, the root first.
    pub levels: &'static [Level],
    /// Physical address of the root table.
    pub root: PhysAddr,
    /// Bits of an entry that are no address: AMD's memory encryption bit.
    pub encryption: u64,
}

/// The tables of the last walks, two a level: nearly all walks go through the same upper ones, and neighbouring pages through the same
/// last one. Two, because what follows pointers goes to and fro between the linear map and vmalloc memory.
#[derive(Clone, Debug, Default)]
pub struct LastTables([LastTwo; 5]);

/// The table used last, and the one before.
#[derive(Clone, Debug, Default)]
struct LastTwo([LastTable; 2]);

impl LastTwo {
    /// The entry at `at`.
    fn entry(&mut self, view: &mut dyn MemoryView, at: PhysAddr) -> std::result::Result<u64, ReadError> {
        let Self([last, before]) = self;
        if !last.holds(at) {
            std::mem::swap(last, before);
        }
        last.entry(view, at)
    }
}

/// A table: its address, and its bytes once one was read.
#[derive(Clone, Debug, Default)]
struct LastTable(PhysAddr, Vec<u8>);

impl LastTable {
    fn holds(&self, at: PhysAddr) -> bool {
        !self.1.is_empty() && self.0.plus(at.0 % TABLE as u64) == at
    }

    /// The entry at `at`.
    fn entry(&mut self, view: &mut dyn MemoryView, at: PhysAddr) -> std::result::Result<u64, ReadError> {
        let here = self.holds(at);
        let Self(table, bytes) = self;
        let index = at.0 % TABLE as u64;
        if !here {
            *table = PhysAddr(at.0 - index);
            bytes.resize(TABLE, 0);
            if view.read(*table, bytes).is_err() {
                // Of a page that is there in part, the entry may be there.
                bytes.clear();
                let mut entry = [0; 8];
                return view.read(at, &mut entry).map(|()| u64::from_le_bytes(entry));
            }
        }
        Ok(bytes.as_chunks().0.get(index as usize / 8).map_or(0, |entry| u64::from_le_bytes(*entry)))
    }
}

/// A piece of memory mapped by one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Physical address of its first byte.
    pub frame: PhysAddr,
    /// Its size in bytes, a power of two.
    pub bytes: u64,
}

enum Entry {
    Absent,
    Table(PhysAddr),
    Leaf(Leaf),
}

impl Paging {
    /// What maps `addr`. Reads the tables that are not in `last` already.
    ///
    /// # Errors
    /// The entry that is not present, or the table that cannot be read.
    pub fn walk(&self, view: &mut dyn MemoryView, addr: VirtAddr, last: &mut LastTables) -> Result<Leaf> {
        let mut table = self.root;
        let mut failed = KernelError::NotMapped { addr, level: "root", entry_at: self.root.0, entry: 0 };
        for (level, last) in self.levels.iter().zip(&mut last.0) {
            let at = table.plus((addr.0 >> level.shift & ((1 << INDEX_BITS) - 1)) * 8);
            let entry = last.entry(view, at).map_err(|e| read_failed("a page table", addr, e))?;
            match self.decode(level, entry) {
                Entry::Absent => {
                    return Err(KernelError::NotMapped { addr, level: level.name, entry_at: at.0, entry });
                }
                Entry::Table(next) => table = next,
                Entry::Leaf(leaf) => return Ok(leaf),
            }
            failed = KernelError::NotMapped { addr, level: level.name, entry_at: at.0, entry };
        }
        Err(failed)
    }

    /// The entries that are read to translate `addr`, each with its level and its physical address, the one that ends the walk among them;
    /// and how the walk ends.
    ///
    /// # Errors
    /// In the second part, as [`Self::walk`].
    pub fn steps(&self, view: &mut dyn MemoryView, addr: VirtAddr) -> (Vec<(Level, PhysAddr, u64)>, Result<Leaf>) {
        let mut table = self.root;
        let mut entries = Vec::new();
        let mut failed = KernelError::NotMapped { addr, level: "root", entry_at: self.root.0, entry: 0 };
        for level in self.levels {
            let at = table.plus((addr.0 >> level.shift & ((1 << INDEX_BITS) - 1)) * 8);
            let entry = match LastTable::default().entry(view, at) {
                Ok(entry) => entry,
                Err(e) => return (entries, Err(read_failed("a page table", addr, e))),
            };
            entries.push((*level, at, entry));
            failed = KernelError::NotMapped { addr, level: level.name, entry_at: at.0, entry };
            match self.decode(level, entry) {
                Entry::Absent => break,
                Entry::Table(next) => table = next,
                Entry::Leaf(leaf) => return (entries, Ok(leaf)),
            }
        }
        (entries, Err(failed))
    }

    /// Walks all tables of the kernel's half of the address space. `table` is called once with each table page, `leaf` with
    /// each piece mapped (virtual address first). Tables that several entries share (as KASAN's zero shadow does) are
    /// descended once. Stops after `max_tables` tables and returns whether all were seen; tables that cannot be read are
    /// skipped and make it false as well.
    pub fn walk_kernel(
        &self,
        view: &mut dyn MemoryView,
        max_tables: usize,
        table: &mut dyn FnMut(PhysAddr),
        leaf: &mut dyn FnMut(VirtAddr, Leaf),
    ) -> bool {
        let mut seen = HashSet::from([self.root]);
        let mut complete = true;
        let mut todo = vec![(self.root, 0usize, 0u64)];
        let mut bytes = [0u8; TABLE];
        while let Some((at, depth, base)) = todo.pop() {
            let Some(level) = self.levels.get(depth) else { continue };
            if view.read(at, &mut bytes).is_err() {
                complete = false;
                continue;
            }
            table(at);
            let first = if depth == 0 { 256 } else { 0 };
            for (index, raw) in bytes.as_chunks::<8>().0.iter().enumerate().skip(first) {
                let mut virt = base | (index as u64) << level.shift;
                if depth == 0 {
                    // The upper half is the sign extension of the root's highest index bit.
                    virt |= u64::MAX << (level.shift + INDEX_BITS);
                }
                match self.decode(level, u64::from_le_bytes(*raw)) {
                    Entry::Absent => {}
                    Entry::Leaf(l) => leaf(VirtAddr(virt), l),
                    Entry::Table(next) if seen.len() >= max_tables => {
                        complete &= seen.contains(&next);
                    }
                    Entry::Table(next) => {
                        if seen.insert(next) {
                            todo.push((next, depth + 1, virt));
                        }
                    }
                }
            }
        }
        complete
    }

    fn decode(&self, level: &Level, entry: u64) -> Entry {
        if entry & PRESENT == 0 {
            return Entry::Absent;
        }
        let address = entry & FRAME & !self.encryption;
        let last = level.shift == 12;
        if last || level.leaf && entry & LARGE != 0 {
            let bytes = 1u64 << level.shift;
            // Bit 12 of a large leaf is a memory type bit, not address.
            Entry::Leaf(Leaf { frame: PhysAddr(address & !(bytes - 1)), bytes })
        } else {
            Entry::Table(PhysAddr(address))
        }
    }
}
