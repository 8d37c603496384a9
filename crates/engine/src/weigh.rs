//! How much of the file the kept pages will take, slice by slice, so that it can be cut into parts of the same size.
//!
//! Pages differ: the page cache of a machine full of text compresses to a third, memory full of pictures not at all, and zeros take
//! nothing. So a few pages are compressed before the cut: of every 64 kept pages the first, 1.6 %.

use crate::batches::Run;
use crate::budget::WORKER_STACK;
use crate::dedup::Known;
use crate::lock::Lock;
use crate::options::Choice;
use crate::selection::{Kinds, Selection};
use crate::stop::Stop;
use crate::worker::{Batch, Stored, Worker};
use coresift_format::codec::CodecError;
use coresift_format::kdump::PageDesc;
use coresift_format::{CHUNK_SHIFT, Pfn, PhysicalMemory};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of so many kept pages one is compressed.
const STRIDE: u64 = 64;
/// Pages that are compressed if there are as many: fewer say too little of a small dump.
const SAMPLES: u64 = 1024;
/// Slices at the most: 256 KiB of numbers, each slice less than a ten-thousandth of the dump.
const MAX_SLICES: u64 = 16 << 10;
/// Pages that are compressed together.
const AT_A_TIME: usize = 64;

/// A run of kept pages in pfn order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its first page.
    pub start: Pfn,
    /// What it takes, in units that are the same for all slices of a dump.
    pub weight: u64,
}

/// All kept pages, weighed; and the bytes read for that. The same for any number of threads.
pub struct Weighed {
    /// The slices, ascending. None is empty.
    pub slices: Vec<Slice>,
    /// Pages compressed.
    pub pages: u64,
}

struct Shared<'a> {
    selection: &'a Selection<'a>,
    stride: u64,
    /// Kept pages of a slice.
    width: u64,
    chunks: Lock<Box<dyn Iterator<Item = u64> + Send + 'a>>,
    slices: Vec<(AtomicU64, AtomicU64)>,
    pages: AtomicU64,
    stop: &'a Stop,
}

/// Weighs the pages of `selection` as `choice` compresses them; only the first of them where `stop` ends finding pages meanwhile, which makes
/// the parts of what is still written differ in size, and nothing else.
///
/// # Errors
/// The codec cannot be set up.
pub fn weigh(
    memory: &dyn PhysicalMemory,
    selection: &Selection<'_>,
    choice: Choice,
    threads: usize,
    stop: &Stop,
) -> Result<Weighed, CodecError> {
    let total = selection.len();
    let stride = (total / SAMPLES).clamp(1, STRIDE);
    let width = stride * (total / stride).div_ceil(MAX_SLICES).max(1);
    let shared = Shared {
        selection,
        stride,
        width,
        chunks: Lock::new("chunks to weigh", Box::new(selection.chunks())),
        slices: std::iter::repeat_with(Default::default).take(total.div_ceil(width) as usize).collect(),
        pages: AtomicU64::new(0),
        stop,
    };
    let known = Known::new(memory.page_size());
    let worker = || Worker::new(memory, choice.ladder(), choice.start(), &known, false);
    let first = worker()?;
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let thread = std::thread::Builder::new().name("weigh pages".to_owned()).stack_size(WORKER_STACK);
            // A thread that does not start leaves its share to the others.
            let _ = thread.spawn_scoped(scope, || {
                if let Ok(worker) = worker() {
                    shared.work(worker, choice.start());
                }
            });
        }
        shared.work(first, choice.start());
    });
    let pages = shared.pages.into_inner();
    let slice =
        |(start, weight): (AtomicU64, AtomicU64)| Slice { start: Pfn(start.into_inner()), weight: weight.into_inner() };
    // Pages that could not be found again leave slices without a weight.
    let slices = shared.slices.into_iter().map(slice).filter(|slice| slice.weight > 0).collect();
    Ok(Weighed { slices, pages })
}

impl Shared<'_> {
    fn work(&self, mut worker: Worker<'_>, rung: usize) {
        let (mut kinds, mut batch) = (Kinds::default(), Batch::default());
        loop {
            let Some(chunk) = self.chunks.hold().next().filter(|_| self.stop.scanning().is_none()) else { return };
            self.selection.load(chunk, &mut kinds, false);
            batch.runs.clear();
            let mut rank = self.selection.before(chunk);
            for (start, end) in kinds.keep.runs() {
                let first = rank.next_multiple_of(self.stride) - rank;
                for at in (start + first..end).step_by(self.stride as usize) {
                    let pfn = Pfn((chunk << CHUNK_SHIFT) + at);
                    batch.runs.push(Run { start: pfn, pages: 1, rank: rank + at - start });
                    if batch.runs.len() == AT_A_TIME {
                        self.weigh(&mut worker, &mut batch, rung);
                    }
                }
                rank += end - start;
            }
            self.weigh(&mut worker, &mut batch, rung);
        }
    }

    /// Adds what the pages of `batch` take.
    fn weigh(&self, worker: &mut Worker<'_>, batch: &mut Batch, rung: usize) {
        if self.stop.scanning().is_some() {
            batch.runs.clear();
            return;
        }
        worker.fill(batch, 0, rung);
        for (run, page) in batch.runs.iter().zip(&batch.pages) {
            let data = if let Stored::Data { size, .. } = page { u64::from(*size) } else { 0 };
            let Some((start, weight)) = self.slices.get((run.rank / self.width) as usize) else { continue };
            weight.fetch_add(data + PageDesc::SIZE as u64, Ordering::Relaxed);
            if run.rank.is_multiple_of(self.width) {
                start.store(run.start.0, Ordering::Relaxed);
            }
        }
        self.pages.fetch_add(batch.runs.len() as u64, Ordering::Relaxed);
        batch.runs.clear();
    }
}

/// Cuts the page frames below `end` into at most `parts` ranges of about the same weight, each with a page in it but the only one of
/// a dump without pages; as far as that goes, the boundaries are multiples of `align` page frames.
#[must_use]
pub fn cut(slices: &[Slice], parts: usize, end: Pfn, align: u64) -> Vec<std::ops::Range<Pfn>> {
    // Between two places where a cut may be, all is one piece.
    let mut pieces: Vec<Slice> = Vec::new();
    for slice in slices {
        let start = Pfn(slice.start.0 / align * align);
        match pieces.last_mut() {
            Some(last) if last.start == start => last.weight = last.weight.saturating_add(slice.weight),
            _ => pieces.push(Slice { start, ..*slice }),
        }
    }
    let total: u128 = pieces.iter().map(|piece| u128::from(piece.weight)).sum();
    let mut ranges = Vec::new();
    let (mut start, mut before, mut next) = (Pfn(0), 0u128, 1u128);
    for (index, piece) in pieces.iter().enumerate() {
        let weight = u128::from(piece.weight);
        // A boundary goes where the sum is nearest: in front of the piece whose middle is behind it.
        while next < parts as u128 && (2 * before + weight) * parts as u128 > 2 * total * next {
            if index > 0 && piece.start > start {
                ranges.push(start..piece.start);
                start = piece.start;
            }
            next += 1;
        }
        before += weight;
    }
    ranges.push(start..end);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_format::codec::Codec;
    use coresift_format::{Input, PageSet};
    use coresift_synth::{KernelLayout, Machine};
    use proptest::prelude::*;
    use std::borrow::Cow;
    use std::sync::Arc;
    use std::time::Duration;

    proptest! {
        #[test]
        fn ranges_follow_each_other_and_none_is_much_heavier_than_its_share(
            weights in proptest::collection::vec((1u64..50, 1u64..5000), 0..400),
            parts in 1usize..12,
            shift in 0u32..8,
        ) {
            let mut at = 3;
            let slices: Vec<Slice> = weights.iter().map(|(pages, weight)| {
                at += pages;
                Slice { start: Pfn(at), weight: *weight }
            }).collect();
            let end = Pfn(at + 100);
            let ranges = cut(&slices, parts, end, 1 << shift);
            prop_assert!(ranges.len() <= parts && ranges[0].start == Pfn(0) && ranges.last().unwrap().end == end);
            for pair in ranges.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert!(pair[0].start < pair[0].end && pair[0].end.0 % (1 << shift) == 0);
            }
            if shift == 0 {
                let total: u64 = slices.iter().map(|s| s.weight).sum();
                let most = slices.iter().map(|s| s.weight).max().unwrap_or(0);
                for range in &ranges {
                    let within = slices.iter().filter(|s| range.contains(&s.start));
                    prop_assert!(within.map(|s| s.weight).sum::<u64>() <= total.div_ceil(parts as u64) + most);
                }
            }
        }
    }

    #[test]
    fn more_parts_than_slices_leave_a_slice_each() {
        let slices = [10, 20, 30].map(|at| Slice { start: Pfn(at), weight: 7 });
        let ranges = cut(&slices, 9, Pfn(100), 1);
        assert_eq!(ranges, [Pfn(0)..Pfn(20), Pfn(20)..Pfn(30), Pfn(30)..Pfn(100)]);
        assert_eq!(cut(&[], 3, Pfn(100), 1), [Pfn(0)..Pfn(100)]);
    }

    #[test]
    fn pages_are_weighed_until_the_run_is_to_end() {
        let image = Machine::new(KernelLayout::get("6.12")).ram(0x1000..0x3000).build();
        let input = Input::from_bytes(Arc::new(image.elf().with_image().bytes())).unwrap();
        let memory = input.memory();
        let selection = Selection::new(Cow::Borrowed(memory.stored()), PageSet::default(), PageSet::default());
        let weighed = |stop: &Stop| weigh(memory, &selection, Codec::None.into(), 2, stop).unwrap();
        let all = weighed(&Stop::default());
        assert!(all.pages >= SAMPLES && !all.slices.is_empty());
        let none = weighed(&Stop::default().after(Duration::ZERO));
        assert_eq!((none.pages, none.slices.len()), (0, 0));
    }
}
