//! Where the pages of an ELF core go, and the program headers that say so.
//!
//! Each page is in the file once, whatever number of segments it is in (the kernel image is in two). The pages a debugger needs first
//! stand first, so that a file that was cut short lacks those it can do without; program headers are split there. Zeros have headers of
//! their own, with a `p_filesz` of 0 and the end of the file as `p_offset`: makedumpfile 1.7.9 takes whatever stands within `p_memsz`
//! of a `p_offset` for the segment's, maps it, and dies of SIGBUS or reads other pages. What was left out is in no header.

use crate::batches::Pass;
use crate::error::EngineError;
use coresift_format::{ChunkBits, ElfKind, ElfLayout, PageSet, PageSetBuilder, PageSize, Pfn, Segment};

/// More program headers than this, 3.7 GB of them, no reader takes.
const MAX_HEADERS: usize = 1 << 26;
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
    /// The pages of zeros without data; none of them is in `data`.
    pub zeros: &'a PageSet,
    /// Sets of these that have no page in common, which stand in front of the others, one behind the other; in each set, and then in
    /// the rest, the pages are in pfn order.
    pub first: &'a [PageSet],
    /// Pages of `data` that are in no header after all; they keep their places.
    pub lost: &'a PageSet,
    /// Page size.
    pub page: PageSize,
}

/// The runs of the pages `start..end` that are not in `lost`.
fn between(lost: &PageSet, start: Pfn, end: Pfn) -> impl Iterator<Item = (Pfn, Pfn)> + '_ {
    let mut at = start;
    lost.runs(start, end).chain([(end, end)]).filter_map(move |(from, to)| {
        let run = (at, from);
        at = to;
        (run.0 < run.1).then_some(run)
    })
}

impl<'a> Placement<'a> {
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

    /// The pieces of the pages `from..to` that have data and lie one behind the other in the file, and those that are zeros without
    /// data, ascending; and whether they have data.
    fn pieces(self, from: Pfn, to: Pfn) -> impl Iterator<Item = (Pfn, Pfn, bool)> + 'a {
        let mut data = self
            .data
            .runs(from, to)
            .flat_map(move |(start, end)| between(self.lost, start, end))
            .flat_map(move |(start, end)| {
                let mut at = start;
                std::iter::from_fn(move || {
                    let piece = (at, self.together(at, end), true);
                    at = piece.1;
                    (piece.0 < end).then_some(piece)
                })
            })
            .peekable();
        let mut zeros = self.zeros.runs(from, to).map(|(start, end)| (start, end, false)).peekable();
        std::iter::from_fn(move || match (data.peek(), zeros.peek()) {
            (Some(data), Some(zero)) if zero.0 < data.0 => zeros.next(),
            (Some(_), _) => data.next(),
            (None, _) => zeros.next(),
        })
    }

    /// The program headers of what of the memory that `sources` describe stays, with file offsets from the first page's data on:
    /// no address is described that they do not have. Where nothing stays, one that describes nothing: a core without any is none.
    pub fn headers<'s>(self, sources: &'s [Segment]) -> impl Iterator<Item = Segment> + 's
    where
        'a: 's,
    {
        let headers = || sources.iter().flat_map(move |source| self.headers_of(source));
        let first = sources.first().copied().unwrap_or_default();
        let nothing = Segment { file_offset: self.data.len() << self.page.shift(), file_size: 0, mem_size: 0, ..first };
        let none = headers().next().is_none();
        headers().chain(none.then_some(nothing))
    }

    /// The number of [`Self::headers`], and the layout of a core of `kind` with them and `notes_len` bytes of notes.
    ///
    /// # Errors
    /// They are too many, or the file would be too long for its class.
    pub fn layout(self, kind: ElfKind, sources: &[Segment], notes_len: u64) -> Result<(u64, ElfLayout), EngineError> {
        let count = self.headers(sources).take(MAX_HEADERS + 1).count();
        let (segments, bytes) = (count as u64, self.data.len().saturating_mul(self.page.bytes() as u64));
        let layout = ElfLayout::new(kind, segments, notes_len, bytes, self.page).filter(|_| count <= MAX_HEADERS);
        Ok((segments, layout.ok_or(EngineError::TooLargeForElf { segments, bytes })?))
    }

    /// Those of one of the sources.
    fn headers_of(self, source: &Segment) -> impl Iterator<Item = Segment> + 'a {
        let source = *source;
        let (start, len) = (source.paddr, source.mem_size.max(source.file_size));
        let end = start.saturating_add(len);
        let shift = self.page.shift();
        let within = move |pfn: Pfn| (u128::from(pfn.0) << shift).clamp(start.into(), end.into()) as u64;
        let behind = self.data.len() << shift;
        self.pieces(Pfn(start >> shift), Pfn(self.page.pages_for(end))).map(move |(first, last, has_data)| {
            let (from, to) = (within(first), within(last));
            Segment {
                file_offset: if has_data { self.offset(first) + (from - (first.0 << shift)) } else { behind },
                // A header without a virtual address has all ones in it.
                vaddr: if source.vaddr == u64::MAX { source.vaddr } else { source.vaddr.wrapping_add(from - start) },
                paddr: from,
                file_size: if has_data { to - from } else { 0 },
                mem_size: to - from,
                ..source
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_that_stays_is_described_once_and_at_its_place(
            data in proptest::collection::vec((0u64..400, 1u64..40), 0..12),
            first in proptest::collection::vec((0u64..400, 1u64..40), 0..6),
            second in proptest::collection::vec((0u64..400, 1u64..40), 0..6),
            zeros in proptest::collection::vec((0u64..400, 1u64..40), 0..6),
            lost in proptest::collection::vec((0u64..400, 1u64..9), 0..4),
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
            let zeros = set(&zeros).without(&data);
            let lost = chosen(&set(&lost), &PageSet::default());
            let placement = Placement { data: &data, zeros: &zeros, first: &first, lost: &lost, page: PageSize::K4 };
            let described = data.without(&lost);
            // The order of writing.
            let pages = |set: &PageSet| set.all_runs().flat_map(|(s, e)| s.0..e.0).collect::<Vec<u64>>();
            let rest = pages(&data).into_iter().filter(|p| !first.iter().any(|part| part.contains(Pfn(*p))));
            let order: Vec<u64> = first.iter().flat_map(&pages).chain(rest).collect();
            let source = Segment { paddr: start, vaddr: 0xffff_8880_0000_0000 + start, mem_size: len, file_size: len, flags: 7, ..Segment::default() };
            let headers: Vec<Segment> = placement.headers_of(&source).collect();
            let mut at = start;
            let nowhere = |from: u64, to: u64| (from..to).step_by(997).all(|byte| {
                let pfn = Pfn(byte >> 12);
                !described.contains(pfn) && !zeros.contains(pfn)
            });
            for h in &headers {
                prop_assert!(h.paddr >= at && nowhere(at, h.paddr), "what stays is described, in order");
                prop_assert_eq!((h.vaddr, h.flags), (0xffff_8880_0000_0000 + h.paddr, 7));
                prop_assert!(h.mem_size > 0 && (h.file_size == h.mem_size || h.file_size == 0));
                prop_assert!(h.file_size > 0 || h.file_offset == data.len() << 12);
                at = h.paddr + h.mem_size;
                for byte in (h.paddr..at).step_by(997).chain([at - 1]) {
                    let (has, pfn) = (h.file_size > 0, Pfn(byte >> 12));
                    prop_assert_eq!((has, !has), (described.contains(pfn), zeros.contains(pfn)), "byte {:#x}", byte);
                    if has {
                        let place = h.file_offset + (byte - h.paddr);
                        prop_assert_eq!((order[(place >> 12) as usize], place & 4095), (byte >> 12, byte & 4095));
                    }
                }
            }
            prop_assert!(at <= start + len && nowhere(at, start + len));
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
