use super::*;
use coresift_format::ReadError;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Physical memory of page tables only: the table of each page frame.
#[derive(Default)]
struct Tables {
    pages: BTreeMap<u64, [u64; 512]>,
    next: u64,
    scratch: Vec<u8>,
}

impl Tables {
    fn new() -> Self {
        Self { pages: BTreeMap::from([(1, [0; 512])]), next: 2, scratch: Vec::new() }
    }

    /// Maps `virt` by an entry of `shift` bits, making tables on the way.
    fn map(&mut self, levels: &[Level], virt: u64, frame: u64, shift: u32, bits: u64) {
        let mut table = 1;
        for level in levels {
            let index = (virt >> level.shift & 511) as usize;
            if level.shift == shift {
                let large = if shift > 12 { 0x80 } else { 0 };
                self.pages.get_mut(&table).unwrap()[index] = frame | 0x163 | large | bits;
                return;
            }
            let entry = self.pages[&table][index];
            table = if entry == 0 {
                let new = self.next;
                self.next += 1;
                self.pages.insert(new, [0; 512]);
                self.pages.get_mut(&table).unwrap()[index] = new << 12 | 0x63 | bits;
                new
            } else {
                (entry & FRAME & !bits) >> 12
            };
        }
        panic!("no level has {shift} bits");
    }

    fn set(&mut self, table: u64, index: usize, entry: u64) {
        self.pages.get_mut(&table).unwrap()[index] = entry;
    }
}

impl MemoryView for Tables {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> std::result::Result<(), ReadError> {
        let table = self.pages.get(&(addr.0 >> 12)).ok_or(ReadError::NotPresent { addr })?;
        let bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let from = (addr.0 & 0xfff) as usize;
        buf.copy_from_slice(&bytes[from..from + buf.len()]);
        Ok(())
    }

    fn slice(&mut self, addr: PhysAddr, len: usize) -> std::result::Result<&[u8], ReadError> {
        let mut bytes = vec![0; len];
        self.read(addr, &mut bytes)?;
        self.scratch = bytes;
        Ok(&self.scratch)
    }
}

fn paging(levels: &'static [Level]) -> Paging {
    Paging { levels, root: PhysAddr(0x1000), encryption: 0 }
}

#[test]
fn every_level_that_may_end_a_walk_does() {
    for levels in [X86_64_4, X86_64_5] {
        for level in levels.iter().filter(|l| l.leaf || l.shift == 12) {
            let mut tables = Tables::new();
            let virt = 0xffff_8123_4567_8000;
            let frame = 0x000a_bcde_f000_0000 & !((1 << level.shift) - 1) & FRAME;
            tables.map(levels, virt, frame, level.shift, 0);
            let leaf = paging(levels).walk(&mut tables, VirtAddr(virt + 0x123), &mut LastTables::default()).unwrap();
            assert_eq!(leaf, Leaf { frame: PhysAddr(frame), bytes: 1 << level.shift }, "{}", level.name);
        }
    }
}

#[test]
fn an_entry_that_is_not_present_is_named_with_its_level_and_place() {
    let virt = VirtAddr(0xffff_8880_0060_3000);
    for (depth, level) in X86_64_4.iter().enumerate() {
        let mut tables = Tables::new();
        tables.map(X86_64_4, virt.0, 0x5000, 12, 0);
        let table = 1 + depth as u64;
        let index = virt.0 >> level.shift & 511;
        // All bits but the present one: a swapped page looks like that.
        tables.set(table, index as usize, 0xffff_ffff_ffff_fffe);
        let error = paging(X86_64_4).walk(&mut tables, virt, &mut LastTables::default()).unwrap_err();
        let KernelError::NotMapped { level: named, entry_at, entry, .. } = error else { panic!("{error}") };
        assert_eq!((named, entry_at, entry), (level.name, table * 4096 + index * 8, 0xffff_ffff_ffff_fffe));
    }
}

#[test]
fn a_table_outside_the_dump_is_a_read_error() {
    let mut tables = Tables::new();
    tables.set(1, 0, 0x7_7000 | 0x63);
    let error = paging(X86_64_4).walk(&mut tables, VirtAddr(0), &mut LastTables::default()).unwrap_err();
    assert!(matches!(error, KernelError::Read { .. }), "{error}");
}

#[test]
fn the_size_bit_above_the_levels_that_have_it_is_no_leaf() {
    for levels in [X86_64_4, X86_64_5] {
        let mut tables = Tables::new();
        let virt = 0xffff_8880_0000_0000u64;
        tables.map(levels, virt, 0x9000, 12, 0);
        let index = (virt >> levels[0].shift & 511) as usize;
        let entry = tables.pages[&1][index];
        tables.set(1, index, entry | LARGE);
        assert_eq!(
            paging(levels).walk(&mut tables, VirtAddr(virt), &mut LastTables::default()).unwrap().frame,
            PhysAddr(0x9000)
        );
    }
}

#[test]
fn c40_the_encryption_bit_is_no_part_of_an_address_and_all_others_are() {
    for bit in [47, 51] {
        let mask = 1u64 << bit;
        for shift in [12, 21, 30] {
            let mut tables = Tables::new();
            let virt = 0xffff_c900_4000_0000;
            tables.map(X86_64_4, virt, 0x40_0000_0000, shift, mask);
            let with = Paging { encryption: mask, ..paging(X86_64_4) };
            assert_eq!(
                with.walk(&mut tables, VirtAddr(virt), &mut LastTables::default()).unwrap().frame,
                PhysAddr(0x40_0000_0000)
            );
            assert!(
                paging(X86_64_4).walk(&mut tables, VirtAddr(virt), &mut LastTables::default()).is_err(),
                "without it the tables are elsewhere"
            );
        }
    }
}

#[test]
fn attribute_bits_of_large_leaves_are_no_address() {
    // Bit 12 of a large leaf is PAT; NX and the protection key are above the address.
    let mut tables = Tables::new();
    tables.map(X86_64_4, 0xffff_8880_0020_0000, 0x60_0000 | 1 << 12, 21, 1 << 63 | 0xf << 59);
    let leaf = paging(X86_64_4).walk(&mut tables, VirtAddr(0xffff_8880_0020_0000), &mut LastTables::default()).unwrap();
    assert_eq!(leaf, Leaf { frame: PhysAddr(0x60_0000), bytes: 2 << 20 });
}

/// Walks everything: table frames in order of visit, leaves, and whether it was all.
fn walk(paging: &Paging, tables: &mut Tables, max: usize) -> (Vec<u64>, BTreeMap<u64, Leaf>, bool) {
    let (mut seen, mut leaves) = (Vec::new(), BTreeMap::new());
    let whole = paging.walk_kernel(tables, max, &mut |t| seen.push(t.0 >> 12), &mut |v, l| {
        assert!(leaves.insert(v.0, l).is_none(), "{v} comes twice");
    });
    (seen, leaves, whole)
}

#[test]
fn tables_that_several_entries_share_are_walked_once() {
    let mut tables = Tables::new();
    tables.map(X86_64_4, 0xffff_8880_0000_0000, 0x5000, 12, 0);
    // KASAN's zero shadow: a whole table of entries that point at the same table.
    let entry = tables.pages[&2][0];
    tables.pages.insert(2, [entry; 512]);
    let (seen, leaves, whole) = walk(&paging(X86_64_4), &mut tables, 100);
    assert!(whole);
    assert_eq!((seen.len(), seen.iter().collect::<BTreeSet<_>>().len()), (4, 4));
    assert_eq!(leaves.len(), 1);
}

#[test]
fn a_table_that_points_at_itself_ends() {
    let mut tables = Tables::new();
    tables.set(1, 511, 0x1000 | 0x63);
    tables.set(1, 300, 0x1000 | 0x63);
    let (seen, leaves, whole) = walk(&paging(X86_64_4), &mut tables, 100);
    assert_eq!((seen, leaves.len(), whole), (vec![1], 0, true));
}

#[test]
fn a_walk_that_is_cut_off_or_meets_a_hole_says_so() {
    let mut tables = Tables::new();
    for i in 0..20u64 {
        tables.map(X86_64_4, 0xffff_8880_0000_0000 + (i << 30), 0x5000 + (i << 12), 12, 0);
    }
    let all = tables.pages.len();
    assert!(walk(&paging(X86_64_4), &mut tables, all).2);
    for max in [1, 2, all - 1] {
        let (seen, _, whole) = walk(&paging(X86_64_4), &mut tables, max);
        assert!(!whole && seen.len() <= max, "{max}");
    }
    tables.set(2, 100, 0x7_7000 | 0x63);
    let (_, leaves, whole) = walk(&paging(X86_64_4), &mut tables, 1000);
    assert!(!whole && leaves.len() == 20, "what can be reached is reached");
}

#[test]
fn the_lower_half_is_not_the_kernels() {
    let mut tables = Tables::new();
    tables.map(X86_64_4, 0x40_0000, 0x5000, 12, 0);
    tables.map(X86_64_4, 0xffff_ffff_8000_0000, 0x6000, 12, 0);
    let (seen, leaves, _) = walk(&paging(X86_64_4), &mut tables, 100);
    assert_eq!(leaves.keys().copied().collect::<Vec<_>>(), [0xffff_ffff_8000_0000]);
    assert_eq!(seen.len(), 4, "the root and the kernel's three");
}

proptest! {
    #[test]
    fn what_is_mapped_is_found_one_by_one_and_all_together(
        five in any::<bool>(),
        // Gigabytes of the kernel's half; in each, leaves of one size.
        places in proptest::collection::btree_map(0u64..1 << 16, (0u32..3, proptest::collection::btree_map(0u64..512, 0u64..1 << 20, 1..6)), 1..6),
    ) {
        let levels = if five { X86_64_5 } else { X86_64_4 };
        let half = u64::MAX << (levels[0].shift + 8);
        let mut tables = Tables::new();
        let mut expected = BTreeMap::new();
        for (gigabyte, (size, leaves)) in places {
            let shift = [12, 21, 30][size as usize];
            for (i, frame) in leaves {
                let virt = half + (gigabyte << 30) + if shift == 30 { 0 } else { i << shift };
                let frame = (frame << 30) & FRAME;
                tables.map(levels, virt, frame, shift, 0);
                expected.insert(virt, Leaf { frame: PhysAddr(frame), bytes: 1 << shift });
            }
        }
        let paging = paging(levels);
        for (virt, leaf) in &expected {
            for inside in [0, leaf.bytes / 2, leaf.bytes - 1] {
                prop_assert_eq!(paging.walk(&mut tables, VirtAddr(virt + inside), &mut LastTables::default()).unwrap(), *leaf);
            }
        }
        let (seen, leaves, whole) = walk(&paging, &mut tables, 1 << 20);
        prop_assert!(whole);
        prop_assert_eq!(leaves, expected);
        prop_assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), tables.pages.keys().copied().collect::<BTreeSet<_>>());
    }

    #[test]
    fn random_tables_are_walked_to_an_end(
        entries in proptest::collection::vec((1u64..6, 0usize..512, any::<u64>()), 1..200),
        addr in any::<u64>(),
    ) {
        let mut tables = Tables::new();
        for table in 2..6 {
            tables.pages.insert(table, [0; 512]);
        }
        for (table, index, entry) in entries {
            // Half of them point at one of the tables.
            let entry = if entry & 2 == 0 { entry & !FRAME | (1 + entry % 6) << 12 } else { entry };
            tables.set(table, index, entry);
        }
        for levels in [X86_64_4, X86_64_5] {
            let _ = paging(levels).walk(&mut tables, VirtAddr(addr), &mut LastTables::default());
            let mut count = 0;
            paging(levels).walk_kernel(&mut tables, 1000, &mut |_| count += 1, &mut |_, _| {});
            prop_assert!(count <= 5);
        }
    }
}
