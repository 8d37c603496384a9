//! Which pages an ELF core has: by its headers, and by what there is of the file.

use crate::elf::ElfHeaders;
use crate::elf_holes::Holes;
use crate::extents::Extent;
use crate::{PageSet, PageSize, Pfn};

/// What the page sets of a core are made of; physical addresses (start and end) in bytes.
pub struct Claims<'a> {
    /// The headers.
    pub headers: &'a ElfHeaders,
    /// Where data are, ascending.
    pub data: &'a [Extent],
    /// Addresses whose data nobody wrote.
    pub unwritten: &'a [(u64, u64)],
    /// Addresses whose data were lost: of the pages that have a byte of them nothing else counts.
    pub lost: &'a [(u64, u64)],
    /// Addresses whose data may be those of others.
    pub contested: &'a [(u64, u64)],
    /// Addresses without data.
    pub holes: &'a Holes,
    /// Memory that was left out, where the core tells.
    pub left_out: &'a [(u64, u64)],
    /// Addresses that are not taken for memory of the machine.
    pub aside: &'a [(u64, u64)],
    /// Length of the file in bytes.
    pub len: u64,
}

/// The pages of a core.
#[derive(Debug, Default)]
pub struct ElfSets {
    /// Memory.
    pub ram: PageSet,
    /// Pages that can be read.
    pub stored: PageSet,
    /// Of these, pages that are zeros without being read.
    pub zero: PageSet,
    /// Pages that may be zeros or may have been left out: not stored.
    pub unknown: PageSet,
    /// Pages whose data should lie beyond the end of the file, or were never written to it.
    pub beyond_end: PageSet,
    /// Pages whose header is damaged.
    pub damaged: PageSet,
    /// One more than the highest page with data.
    pub data_end: Pfn,
}

impl ElfSets {
    /// The pages of `size` bytes that `claims` describe. A page counts for the best of what is said of any of its bytes.
    pub fn find(claims: &Claims<'_>, size: PageSize) -> Self {
        let size = size.bytes() as u64;
        let pages = |start: u64, end: u64| (Pfn(start / size), Pfn(end.div_ceil(size)));
        let all = |ranges: &[(u64, u64)]| PageSet::from_ranges(ranges.iter().map(|(start, end)| pages(*start, *end)));
        let segments = claims.headers.segments.iter().filter(|s| s.has_paddr(claims.headers.bits));
        let described = segments.map(|s| (s.paddr, s.paddr.saturating_add(s.mem_size.max(s.file_size))));
        let ram = PageSet::from_ranges(
            described.chain(claims.left_out.iter().copied()).map(|(start, end)| pages(start, end)),
        );
        // The address at which an extent runs out of file.
        let readable_end = |e: &Extent| e.end.min(e.start.saturating_add(claims.len.saturating_sub(e.source)));
        let data = PageSet::from_ranges(claims.data.iter().map(|e| {
            let end = readable_end(e);
            let (first, last) = pages(e.start, end);
            if end < e.end { (first, Pfn(end / size)) } else { (first, last) }
        }));
        let cut = claims.data.iter().filter(|e| readable_end(e) < e.end).map(|e| pages(readable_end(e), e.end));
        let unwritten = claims.unwritten.iter().map(|(start, end)| {
            // Only the first and the last page can have a byte of something else.
            let (first, last) = pages(*start, *end);
            let shared = |pfn: Pfn| u64::from(data.contains(pfn));
            (first.plus(shared(first)), Pfn(last.0 - shared(Pfn(last.0 - 1))))
        });
        let lost = all(claims.lost);
        let beyond_end = PageSet::from_ranges(cut.chain(unwritten).chain(lost.all_runs()));
        let contested = all(claims.contested);
        let data = data.without(&lost).without(&contested);
        let damaged = PageSet::united([&all(&claims.holes.damaged), &contested].into_iter());
        let damaged = damaged.without(&data).without(&beyond_end);
        let zero = all(&claims.holes.zeros).without(&data).without(&beyond_end).without(&damaged);
        let aside = all(claims.aside);
        let [ram, data, zero, beyond_end, damaged] =
            [ram, data, zero, beyond_end, damaged].map(|set| set.without(&aside));
        let stored = PageSet::from_ranges(data.all_runs().chain(zero.all_runs()));
        Self { ram, stored, zero, unknown: PageSet::default(), beyond_end, damaged, data_end: data.end() }
    }

    /// Takes `pages` for something else than zeros, of which nothing is known.
    pub fn forget(&mut self, pages: PageSet) {
        self.zero = self.zero.without(&pages);
        self.stored = self.stored.without(&pages);
        self.unknown = pages;
    }
}
