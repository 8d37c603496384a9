use super::*;
use crate::paging::X86_64_4;
use coresift_format::{PageSet, PageSize, Pfn};
use std::sync::atomic::{AtomicUsize, Ordering};

const ROOT: PhysAddr = PhysAddr(0x1000);
const END: u64 = 16 << 20;

/// Memory below 16 MiB in which each word outside the tables is its own address. What is mapped: two leaves of 2 MiB, then 511
/// pages back to front.
struct Memory {
    tables: Vec<u8>,
    pages: PageSet,
    table_reads: AtomicUsize,
}

struct View<'a>(&'a Memory);

impl Memory {
    fn new() -> Self {
        let mut tables = vec![0; 0x5000];
        let mut set = |at: usize, entry: u64| tables[at..at + 8].copy_from_slice(&entry.to_le_bytes());
        for (at, entry) in
            [(0x1000, 0x2003), (0x2000, 0x3003), (0x3000, 0x60_0083), (0x3008, 0x80_0083), (0x3010, 0x4003)]
        {
            set(at, entry);
        }
        for page in 0..511 {
            set(0x4000 + page * 8, 0xc0_0003 + ((511 - page as u64) << 12));
        }
        Self { tables, pages: PageSet::default(), table_reads: AtomicUsize::new(0) }
    }

    fn reader<'a>(&'a self, paging: &'a Paging) -> KernelReader<'a> {
        KernelReader::new(self, paging)
    }
}

impl PhysicalMemory for Memory {
    fn page_size(&self) -> PageSize {
        PageSize::K4
    }

    fn ram(&self) -> &PageSet {
        &self.pages
    }

    fn stored(&self) -> &PageSet {
        &self.pages
    }

    fn max_pfn(&self) -> Pfn {
        Pfn(END >> 12)
    }

    fn view(&self) -> Box<dyn MemoryView + '_> {
        Box::new(View(self))
    }
}

impl MemoryView for View<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> std::result::Result<(), ReadError> {
        let start = addr.0 as usize;
        if let Some(bytes) = self.0.tables.get(start..start + buf.len()) {
            self.0.table_reads.fetch_add(1, Ordering::Relaxed);
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        for (at, byte) in (addr.0..).zip(buf) {
            *byte = if at < END {
                (at & !7).to_le_bytes()[(at & 7) as usize]
            } else {
                return Err(ReadError::NotPresent { addr });
            };
        }
        Ok(())
    }

    fn slice(&mut self, addr: PhysAddr, _: usize) -> std::result::Result<&[u8], ReadError> {
        Err(ReadError::NotPresent { addr })
    }
}

fn paging() -> Paging {
    Paging { levels: X86_64_4, root: ROOT, encryption: 0 }
}

/// Where the tables map `addr`.
fn mapped(addr: u64) -> u64 {
    match addr >> 21 {
        0 => 0x60_0000 + addr,
        1 => 0x80_0000 + addr % (2 << 20),
        _ => 0xc0_0000 + ((511 - (addr >> 12) % 512) << 12) + addr % 4096,
    }
}

/// Addresses on both sides of every page, in an order that goes back and forth between the leaves.
fn addresses() -> impl Iterator<Item = u64> {
    (0..511u64).flat_map(|page| [0, 2 << 20, 4 << 20].map(|leaf| leaf + page * 4096)).flat_map(|at| [at, at + 4088])
}

#[test]
fn leaves_of_all_sizes_are_remembered_side_by_side_and_tables_read_once() {
    let (memory, paging) = (Memory::new(), paging());
    let mut reader = memory.reader(&paging);
    for at in addresses() {
        assert_eq!(reader.read_u64(VirtAddr(at)).unwrap(), mapped(at), "{at:#x}");
    }
    assert_eq!(memory.table_reads.load(Ordering::Relaxed), 4);
}

#[test]
fn a_read_goes_through_all_leaves_it_touches() {
    let (memory, paging) = (Memory::new(), paging());
    let mut whole = vec![0; (6 << 20) - 4096];
    memory.reader(&paging).read_virt(VirtAddr(0), &mut whole).unwrap();
    for (at, word) in (0..).step_by(8).zip(whole.as_chunks().0) {
        assert_eq!(u64::from_le_bytes(*word), mapped(at), "{at:#x}");
    }
    // The last page of the table is not there, nor what follows.
    let error = memory.reader(&paging).read_virt(VirtAddr(8), &mut whole).unwrap_err();
    assert!(matches!(error, KernelError::NotMapped { addr: VirtAddr(0x5f_f000), level: "pte", .. }), "{error}");
}

#[test]
fn reading_ahead_misses_nothing_that_cannot_be_read_behind_what_is_asked() {
    let (memory, paging) = (Memory::new(), paging());
    let mut reader = memory.reader(&paging);
    let mut ahead = ReadAhead::new(&mut reader);
    let end = (6 << 20) - 4096;
    for step in [8, 4096, 5000, 65_536, 100_000] {
        let mut at = end - 300_000 / 8 * 8;
        while at + step <= end {
            let bytes = ahead.get(VirtAddr(at), step as usize).unwrap();
            assert!(bytes.len() >= step as usize);
            for place in [0, (step as usize - 8) / 8 * 8] {
                let want = mapped(at + place as u64).to_le_bytes();
                assert_eq!(bytes[place..place + 8], want, "{at:#x} {step}");
            }
            at += step / 8 * 8;
        }
        for n in [1, 8, 5000] {
            assert!(ahead.get(VirtAddr(end - n + 1), n as usize).is_err());
            assert_eq!(ahead.get(VirtAddr(end - n), n as usize).unwrap().len() as u64, n);
        }
    }
}
