//! How fast one thread classifies the memory map of a core, against reading it: `cargo run --release -p coresift-kernel --example scan -- CORE`.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a tool for whoever measures by hand")]
#![allow(clippy::indexing_slicing, reason = "by class numbers and lengths that are in range, in a tool")]

use coresift_format::{Input, PageSize, Pfn};
use coresift_kernel::{ClassSet, ClassSink, FoundInfo, Kernel, PageClass, Scanner};
use std::time::Instant;

#[derive(Default)]
struct Count([u64; PageClass::ALL.len()], u64);

impl ClassSink for Count {
    fn pages(&mut self, start: Pfn, end: Pfn, class: PageClass) {
        self.0[class as usize] += end.0 - start.0;
        self.1 += 1;
    }
}

fn main() {
    let core = std::env::args().nth(1).expect("a core");
    let input = Input::open(core.as_ref()).expect("the core");
    let info = FoundInfo::of(&input).expect("VMCOREINFO");
    let kernel = Kernel::open(&input, &info.text).expect("a kernel");
    let memory = input.memory();
    let size = kernel.rules.size() as u64;
    let chunks: Vec<u64> = memory.ram().chunks().collect();
    let mut best = [f64::MAX; 3];
    let (mut count, mut read) = (Count::default(), 0);
    let mut buffer = vec![0; 256 << 10];
    for _ in 0..15 {
        for (skip, best) in [ClassSet::SELECTABLE, ClassSet::NONE].into_iter().zip(&mut best) {
            let clock = Instant::now();
            let mut scanner = Scanner::new(&kernel, memory, skip);
            count = Count::default();
            for chunk in &chunks {
                scanner.scan_chunk(*chunk, memory.ram(), &mut count);
            }
            *best = best.min(clock.elapsed().as_secs_f64());
            if skip == ClassSet::SELECTABLE {
                read = scanner.bytes_read();
            }
        }
        let clock = Instant::now();
        let mut reader = kernel.reader(memory);
        let mut sum = 0u64;
        for range in kernel.memmap.ranges() {
            let (mut at, len) = (0, (range.end.0 - range.start.0) * size);
            while at < len {
                let Ok((phys, have)) = reader.contiguous(range.map.plus(at), (len - at).min(256 << 10)) else {
                    at += PageSize::K4.bytes() as u64;
                    continue;
                };
                let piece = &mut buffer[..have as usize];
                if reader.physical().read(phys, piece).is_ok() {
                    sum = piece.chunks_exact(64).fold(sum, |sum, page| sum.wrapping_add(u64::from(page[0])));
                }
                at += have;
            }
        }
        std::hint::black_box(sum);
        best[2] = best[2].min(clock.elapsed().as_secs_f64());
    }
    let pages: u64 = count.0.iter().sum();
    let ns = |seconds: f64| seconds * 1e9 / pages as f64;
    println!(
        "{pages} struct pages, {} runs; ns a page: {:.2} level 31 ({:.1} % of the map read), {:.2} every page asked, {:.2} plain sweep",
        count.1,
        ns(best[0]),
        read as f64 * 100.0 / (pages * size) as f64,
        ns(best[1]),
        ns(best[2])
    );
}
