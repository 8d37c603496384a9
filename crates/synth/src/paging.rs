//! Page tables of x86-64, built inside the machine's own memory.

use crate::PAGE;
use crate::ram::Ram;

/// Where the kernel image's map begins (`__START_KERNEL_map`).
pub const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

const PRESENT: u64 = 1;
/// Present, writable, accessed, dirty.
const TABLE: u64 = 0x063;
/// The same, global, not executable.
const LEAF: u64 = 0x8000_0000_0000_0163;
const LARGE: u64 = 0x80;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Bytes one entry of the leaf maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaf {
    /// A page table entry.
    K4,
    /// A PMD entry.
    M2,
    /// A PUD entry.
    G1,
}

impl Leaf {
    /// Bytes mapped.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    const fn shift(self) -> u32 {
        match self {
            Self::K4 => 12,
            Self::M2 => 21,
            Self::G1 => 30,
        }
    }
}

/// A tree of page tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageTables {
    /// Page frame of the top table.
    pub root: u64,
    /// 4 or 5.
    pub levels: u32,
    /// Bit set in every entry of a machine with memory encryption; 0 without.
    pub sme_mask: u64,
}

impl PageTables {
    /// Maps one leaf. Tables on the way are taken from RAM.
    pub fn map(&self, ram: &mut Ram, virt: u64, phys: u64, leaf: Leaf) {
        assert!(
            virt.is_multiple_of(leaf.bytes()) && phys.is_multiple_of(leaf.bytes()),
            "{virt:#x} -> {phys:#x} is not aligned to {leaf:?}"
        );
        let mut table = self.root;
        let mut shift = 12 + 9 * (self.levels - 1);
        loop {
            let entry = table * PAGE + (virt >> shift & 511) * 8;
            let old = ram.read_u64(entry);
            if shift == leaf.shift() {
                let large = if leaf == Leaf::K4 { 0 } else { LARGE };
                return ram.write_u64(entry, phys | LEAF | large | self.sme_mask);
            }
            table = if old & PRESENT == 0 {
                let new = ram.alloc(1, 1);
                ram.write_u64(entry, (new * PAGE) | TABLE | self.sme_mask);
                new
            } else {
                assert!(old & LARGE == 0, "{virt:#x} is already mapped by a larger leaf");
                (old & !self.sme_mask & ADDRESS) / PAGE
            };
            shift -= 9;
        }
    }

    /// Maps `len` bytes with the largest leaves up to `max` that fit, as the kernel maps RAM.
    pub fn map_range(&self, ram: &mut Ram, mut virt: u64, mut phys: u64, len: u64, max: Leaf) {
        let end = virt + len;
        while virt < end {
            let leaf = [Leaf::G1, Leaf::M2, Leaf::K4]
                .into_iter()
                .find(|l| {
                    *l <= max
                        && virt.is_multiple_of(l.bytes())
                        && phys.is_multiple_of(l.bytes())
                        && end - virt >= l.bytes()
                })
                .unwrap_or(Leaf::K4);
            self.map(ram, virt, phys, leaf);
            virt += leaf.bytes();
            phys += leaf.bytes();
        }
    }
}
