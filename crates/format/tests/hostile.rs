//! No bytes can make opening and reading a dump panic, hang, or take more memory than the file justifies.
//!
//! Alone in its program, because it counts every byte allocated.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(dead_code, reason = "the writers are shared with the other tests")]
#![allow(unsafe_code, reason = "an allocator that counts")]

#[path = "it/make.rs"]
mod make;

use coresift_format::codec::Codec;
use coresift_format::kdump::Abi;
use coresift_format::{Bits, Endian, Input, MemoryView, PhysAddr};
use make::{Elf, Kdump, Load, flatten, page_of};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What views may hold whatever the file: read-ahead, cached pages, codec contexts.
const FIXED: usize = 4 << 20;
/// Bytes of index a byte of file may cost, at worst: a flattened stream of one-byte blocks.
const A_BYTE: usize = 12;

/// Opens a file and reads from everything it says it holds.
fn exercise(file: Vec<u8>) {
    let len = file.len();
    let bytes = Arc::new(file);
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    if let Ok(input) = Input::from_bytes(bytes) {
        let memory = input.memory();
        assert!(memory.stored().len() <= memory.ram().len());
        let mut view = memory.view();
        let page = memory.page_size().bytes();
        for set in [memory.stored(), memory.ram()] {
            for (start, end) in set.all_runs().take(50) {
                for pfn in [start.0, start.0 + 1, end.0 - 1, end.0] {
                    read_around(&mut *view, pfn << memory.page_size().shift(), page);
                }
            }
        }
        let text = input.vmcoreinfo().map_or(0, <[u8]>::len);
        let _ = (input.cpus(), input.machine(), input.truncated(), text, input.problems().len());
    }
    let used = PEAK.load(Ordering::Relaxed) - before;
    assert!(used <= FIXED + A_BYTE * len, "{used} bytes taken for a file of {len}");
}

fn read_around(view: &mut dyn MemoryView, addr: u64, page: usize) {
    let mut buf = vec![0; 2 * page];
    let _ = view.read(PhysAddr(addr), &mut buf[..page]);
    let _ = view.read(PhysAddr(addr.wrapping_sub(3)), &mut buf);
    let _ = view.slice(PhysAddr(addr), 3 * page);
    let _ = view.slice(PhysAddr(addr), 8);
}

/// Small whole files of every kind.
fn files() -> Vec<Vec<u8>> {
    let elf = |bits, endian| {
        Elf::new(bits, endian)
            .load(Load::new(0x1000, &page_of(1, 0x2800)).spanning(0x6000))
            .load(Load::new(0x3800, &page_of(2, 0x1800)))
            .load(Load::new(0x10_0000, &[]).spanning(0x5000))
    };
    let mut extended = elf(Bits::B64, Endian::Little);
    extended.extended = true;
    let kdump = |abi, endian, version, codec| {
        let mut file = Kdump::new(abi, endian, version);
        file.max_mapnr = 3000;
        file.excluded = vec![5];
        file.pages.retain(|p, _| *p < 3000);
        file.codec = codec;
        file
    };
    let mut part = kdump(Abi::Lp64, Endian::Little, 6, Codec::Snappy);
    part.part = Some((1, 9));
    let mut files = vec![
        elf(Bits::B64, Endian::Little).build(),
        elf(Bits::B32, Endian::Big).build(),
        extended.build(),
        kdump(Abi::Lp64, Endian::Little, 6, Codec::Zlib).build(),
        kdump(Abi::Lp64, Endian::Big, 5, Codec::Zstd).build(),
        kdump(Abi::Ilp32Packed, Endian::Little, 6, Codec::Lzo).build(),
        kdump(Abi::Ilp32Padded, Endian::Big, 3, Codec::None).build(),
        part.build(),
    ];
    for i in [0, 3] {
        let pieces = files[i].chunks(500).enumerate().map(|(n, c)| (500 * n as u64, c));
        files.push(flatten(pieces.collect::<Vec<_>>()));
    }
    files
}

/// A change of a file: where (as a part of its length, or near its start), what, and whether it is cut there.
#[derive(Clone, Debug)]
enum Change {
    Byte(u32, u8),
    Number(u32, u64, usize, bool),
    Early(u16, u64, usize, bool),
    Cut(u32),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let number = prop_oneof![
        any::<u64>(),
        (0u32..64).prop_map(|s| 1 << s),
        (0u32..64).prop_map(|s| u64::MAX >> s),
        0u64..70_000,
        Just(0),
    ];
    let size = prop_oneof![Just(2usize), Just(4), Just(8)];
    let change = prop_oneof![
        4 => (any::<u32>(), any::<u8>()).prop_map(|(a, b)| Change::Byte(a, b)),
        4 => (any::<u32>(), number.clone(), size.clone(), any::<bool>()).prop_map(|(a, n, s, e)| Change::Number(a, n, s, e)),
        8 => (any::<u16>(), number, size, any::<bool>()).prop_map(|(a, n, s, e)| Change::Early(a, n, s, e)),
        1 => any::<u32>().prop_map(Change::Cut),
    ];
    proptest::collection::vec(change, 1..8)
}

fn apply(file: &mut Vec<u8>, change: &Change) {
    let len = file.len();
    let place = |part: u32| ((u64::from(part) * len as u64) >> 32) as usize;
    let mut write = |at: usize, bytes: &[u8]| {
        for (to, from) in file.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    };
    let number = |value: u64, size: usize, big: bool| {
        if big { value.to_be_bytes()[8 - size..].to_vec() } else { value.to_le_bytes()[..size].to_vec() }
    };
    match change {
        Change::Byte(at, byte) => write(place(*at), &[*byte]),
        Change::Number(at, value, size, big) => write(place(*at) & !3, &number(*value, *size, *big)),
        // Headers are in the first bytes, of the file, of block 1, or of the first flattened block.
        Change::Early(at, value, size, big) => {
            let start = [0, 0, 400, 4096, 4112, 4512][usize::from(*at) % 6];
            write(start + (usize::from(*at) / 6 % 64 * 2), &number(*value, *size, *big));
        }
        Change::Cut(at) => file.truncate(place(*at)),
    }
}

#[test]
fn damaged_dumps_are_an_error_or_a_dump_but_never_a_panic_or_a_balloon() {
    for file in files() {
        exercise(file);
    }
    let tiny: Vec<(u64, Vec<u8>)> = (0..20_000).map(|i| ((i * 7919) % 40_000, vec![1])).collect();
    exercise(flatten(tiny.iter().map(|(at, data)| (*at, &data[..]))));

    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let files = files();
    runner
        .run(&(0..files.len(), changes()), |(which, changes)| {
            let mut file = files[which].clone();
            for change in &changes {
                apply(&mut file, change);
            }
            exercise(file);
            Ok(())
        })
        .unwrap();
}
