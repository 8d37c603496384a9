//! Where the pages of an ELF core go, and the program headers that say so.
//!
//! Each page is in the file once, whatever number of segments it is in (the kernel image is in two). The pages a debugger needs first
//! stand first, so that a file that was cut short lacks those it can do without; program headers are split there. Pages without data
//! have headers of their own, with a `p_filesz` of 0 and the end of the file as `p_offset`: makedumpfile 1.7.9 takes whatever stands
//! within `p_memsz` of a `p_offset` for the segment's, maps it, and dies of SIGBUS or reads other pages.

use crate::batches::Pass;
use coresift_format::{ChunkBits, PageSet, PageSetBuilder, PageSize, Pfn, Segment};

/// What is needed first is taken in blocks of this many pages,
const BLOCK: u64 = 4;
/// and in no more runs of blocks than this: each can split a program header in three.
const MAX_RUNS: usize = 8192;

/// The parts of a file that stand in front of the rest: what each of the first `passes` writes, in blocks, as far as it has data
/// and no earlier part has it.
#[must_use]
pub fn needed_first(passes: &[Pass], data: &PageSet) -> Vec<PageSet> {
    let (mut parts, mut runs) = (Vec::new(), 0);
    for pass in passes {
        let Pass::Of(set) = pass else { break };
        let block = |(start, end): (Pfn, Pfn)| (Pfn(start.0 / BLOCK * BLOCK), Pfn(end.0.next_multiple_of(BLOCK)));
        let wanted = PageSet::from_ranges(set.all_runs().map(block));
        runs += wanted.all_runs().count();
        if runs > MAX_RUNS {
            break;
        }
        let part = part(&wanted, data, &parts);
        parts.push(part);
    }
    parts
}

/// The pages of `wanted` that have data and are in none of `earlier`.
fn part(wanted: &PageSet, data: &PageSet, earlier: &[PageSet]) -> PageSet {
    let (mut bits, mut other) = (ChunkBits::default(), ChunkBits::default());
    let mut set = PageSetBuilder::default();
    for chunk in wanted.chunks() {
        wanted.copy_chunk(chunk, &mut bits);
        data.copy_chunk(chunk, &mut other);
        bits.intersect(&other);
        for earlier in earlier {
            earlier.copy_chunk(chunk, &mut other);
            bits.subtract(&other);
        }
        set.push(chunk, &bits);
    }
    set.finish()
}

/// Where the page data are.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The pages with data.
    pub data: &'a PageSet,
    /// Sets of these that have no page in common, which stand in front of the others, one behind the other; in each set, and then in
    /// the rest, the pages are in pfn order.
    pub first: &'a [PageSet],
    /// Page size.
    pub page: PageSize,
}

impl Placement<'_> {
    /// Where the data of a page begin that has some, in bytes from the first page's.
    fn offset(&self, pfn: Pfn) -> u64 {
        let (mut before, mut below) = (0, 0);
        for part in self.first {
            let rank = part.rank(pfn);
            if part.contains(pfn) {
                return (before + rank) << self.page.shift();
            }
            before += part.len();
            below += rank;
        }
        (before + self.data.rank(pfn) - below) << self.page.shift()
    }

    /// The end of the pages from `at` on that stand one behind the other in the file, where all up to `end` have data.
    fn together(&self, at: Pfn, end: Pfn) -> Pfn {
        let next = self.first.iter().filter_map(|part| {
            let (start, stop) = part.runs(at, end).next()?;
            Some(if start == at { stop } else { start })
        });
        next.min().unwrap_or(end)
    }

    /// The pieces of the pages `from..to` that have data and lie one behind the other in the file, ascending.
    fn pieces(&self, from: Pfn, to: Pfn) -> impl Iterator<Item = (Pfn, Pfn)> + '_ {
        self.data.runs(from, to).flat_map(move |(start, end)| {
            let mut at = start;
            std::iter::from_fn(move || {
                let piece = (at, self.together(at, end));
                at = piece.1;
                (piece.0 < end).then_some(piece)
            })
        })
    }

    /// The program headers of the memory that `source` describes, with file offsets from the first page's data on: no data are
    /// described that the pages do not have, nor any address that `source` does not have.
    pub fn headers(&self, source: &Segment) -> impl Iterator<Item = Segment> + '_ {
        let source = *source;
        let (start, len) = (source.paddr, source.mem_size.max(source.file_size));
        let end = start.saturating_add(len);
        let shift = self.page.shift();
        let within = move |pfn: Pfn| (u128::from(pfn.0) << shift).clamp(start.into(), end.into()) as u64;
        let mut pieces = self.pieces(Pfn(start >> shift), Pfn(self.page.pages_for(end))).peekable();
        let behind = self.data.len() << shift;
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let here = pieces.next_if(|piece| within(piece.0) == at);
            let next = here
                .or(pieces.peek().copied())
                .map_or(end, |piece| within(if here.is_some() { piece.1 } else { piece.0 }));
            let header = Segment {
                file_offset: here.map_or(behind, |piece| self.offset(piece.0) + (at - (piece.0.0 << shift))),
                // A header without a virtual address has all ones in it.
                vaddr: if source.vaddr == u64::MAX { source.vaddr } else { source.vaddr.wrapping_add(at - start) },
                paddr: at,
                file_size: if here.is_some() { next - at } else { 0 },
                mem_size: next - at,
                ..source
            };
            at = next;
            Some(header)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_with_data_is_described_once_and_at_its_place(
            data in proptest::collection::vec((0u64..400, 1u64..40), 0..12),
            first in proptest::collection::vec((0u64..400, 1u64..40), 0..6),
            second in proptest::collection::vec((0u64..400, 1u64..40), 0..6),
            start in 0u64..400 << 12, len in 1u64..100 << 12,
        ) {
            let set = |ranges: &[(u64, u64)]| PageSet::from_ranges(ranges.iter().map(|(s, n)| (Pfn(*s), Pfn(s + n))));
            let data = set(&data);
            let chosen = |wanted: &PageSet, but: &PageSet| {
                let pages = (0..500).map(Pfn).filter(|p| data.contains(*p) && wanted.contains(*p) && !but.contains(*p));
                PageSet::from_ranges(pages.map(|p| (p, p.plus(1))))
            };
            let one = chosen(&set(&first), &PageSet::default());
            let two = chosen(&set(&second), &one);
            let first = [one, two];
            let placement = Placement { data: &data, first: &first, page: PageSize::K4 };
            // The order of writing.
            let pages = |set: &PageSet| set.all_runs().flat_map(|(s, e)| s.0..e.0).collect::<Vec<u64>>();
            let rest = pages(&data).into_iter().filter(|p| !first.iter().any(|part| part.contains(Pfn(*p))));
            let order: Vec<u64> = first.iter().flat_map(&pages).chain(rest).collect();
            let source = Segment { paddr: start, vaddr: 0xffff_8880_0000_0000 + start, mem_size: len, file_size: len, flags: 7, ..Segment::default() };
            let headers: Vec<Segment> = placement.headers(&source).collect();
            let mut at = start;
            for h in &headers {
                prop_assert_eq!((h.paddr, h.vaddr, h.flags), (at, 0xffff_8880_0000_0000 + at, 7));
                prop_assert!(h.mem_size > 0 && (h.file_size == h.mem_size || h.file_size == 0));
                prop_assert!(h.file_size > 0 || h.file_offset == data.len() << 12);
                for byte in (h.paddr..h.paddr + h.mem_size).step_by(997).chain([h.paddr + h.mem_size - 1]) {
                    let has = byte < h.paddr + h.file_size;
                    prop_assert_eq!(has, data.contains(Pfn(byte >> 12)), "byte {:#x}", byte);
                    if has {
                        let place = h.file_offset + (byte - h.paddr);
                        prop_assert_eq!((order[(place >> 12) as usize], place & 4095), (byte >> 12, byte & 4095));
                    }
                }
                at += h.mem_size;
            }
            prop_assert_eq!(at, start + len);
        }
    }

    #[test]
    fn what_is_needed_first_is_taken_in_whole_blocks_of_what_there_is_once() {
        let set = |ranges: &[(u64, u64)]| PageSet::from_ranges(ranges.iter().map(|(s, e)| (Pfn(*s), Pfn(*e))));
        let data = set(&[(10, 100), (200, 1000)]);
        let of = |parts: Vec<PageSet>| -> Vec<Vec<(u64, u64)>> {
            parts.iter().map(|part| part.all_runs().map(|(s, e)| (s.0, e.0)).collect()).collect()
        };
        let passes = || vec![Pass::Of(set(&[(99, 101)])), Pass::Of(set(&[(80, 85), (203, 204)])), Pass::Slab];
        assert_eq!(of(needed_first(&passes(), &data)), [vec![(96, 100)], vec![(80, 88), (200, 204)]]);
        let scattered = (0..=MAX_RUNS as u64).map(|i| (2 * BLOCK * i, 2 * BLOCK * i + 1)).collect::<Vec<_>>();
        let huge = Pass::Of(set(&scattered));
        let parts = of(needed_first(&[passes().remove(0), huge, passes().remove(1)], &data));
        assert_eq!(parts, [vec![(96, 100)]], "what is too much stays where it is, and so does what comes after it");
    }
}
