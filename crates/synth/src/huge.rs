//! Machines of many tebibytes in a file of some megabytes.
//!
//! ```text
//! section 0      kernel image, page tables, mem_section, templates: bytes of their own
//! section 1..n   struct pages: 2 MiB leaves of the vmemmap, many of them on the same template
//!                contents:     PT_LOADs of 128 MiB, all on the same file bytes, most of which are a hole in the file
//! ```
//!
//! Four of the 64 page blocks of a section are unmovable (slab, kernel) and have real contents; the movable ones are holes in the file
//! and read as zero. So a dump at level 31 keeps real pages, 6 % of RAM, unless [`Mix::no_kernel_pages`] says otherwise.

use crate::image::Image;
use crate::layout::KernelLayout;
use crate::machine::{Contents, Machine, Tail};
use crate::memmap::SECTION_PAGES;
use crate::paging::Leaf;
use crate::population::Population;
use crate::ram::Filler;
use std::fmt::Write;

/// Pages of a page block.
const BLOCK: u64 = 512;
/// One page block in so many is unmovable.
const UNMOVABLE: u64 = 16;
/// RAM does not use the last GiB below 4 GiB.
const PCI_HOLE: std::ops::Range<u64> = 24..32;
/// Sections a gigantic page of order 18 fills.
const GIGANTIC: u64 = 8;

/// What the movable page blocks of a section hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionKind {
    /// Free blocks of the largest orders.
    Free,
    /// File cache: single pages, folios of orders 2 and 4, some with private data.
    Cache,
    /// Anonymous memory in small pages, some in swap cache, some in folios of order 4.
    Anon,
    /// Anonymous memory in 2 MiB pages.
    Thp,
    /// Hugetlb pages of 2 MiB, a quarter of them unused.
    Hugetlb,
    /// One hugetlb page of 1 GiB over eight sections.
    Gigantic,
    /// Runs of 1 to 32 pages of everything, in no order.
    Fragmented,
}

/// Shares of section kinds.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Kind and weight.
    pub shares: Vec<(SectionKind, u32)>,
    /// Whether sections have unmovable page blocks.
    pub kernel_pages: bool,
}

impl Mix {
    /// A machine that has been up for a while: cache, anonymous memory, some free, some fragmented.
    #[must_use]
    pub fn server() -> Self {
        use SectionKind::{Anon, Cache, Fragmented, Free, Thp};
        Self { shares: vec![(Cache, 40), (Anon, 15), (Thp, 15), (Free, 15), (Fragmented, 15)], kernel_pages: true }
    }

    /// A host of virtual machines or a database: memory given out in huge pages.
    #[must_use]
    pub fn huge_pages() -> Self {
        use SectionKind::{Cache, Free, Gigantic, Hugetlb};
        Self { shares: vec![(Gigantic, 50), (Hugetlb, 35), (Cache, 10), (Free, 5)], kernel_pages: true }
    }

    /// Every run as short as it gets: the worst case of a scan.
    #[must_use]
    pub fn fragmented() -> Self {
        Self { shares: vec![(SectionKind::Fragmented, 1)], kernel_pages: true }
    }

    /// Without unmovable page blocks: at level 31 only section 0 and the slab runs of fragmented sections (zero bytes here) are left, so
    /// that the scan is most of the work.
    #[must_use]
    pub fn no_kernel_pages(mut self) -> Self {
        self.kernel_pages = false;
        self
    }
}

/// A machine with `ram_bytes` of RAM, rounded to whole sections of 128 MiB, up to 64 TiB. Deterministic.
///
/// # Panics
/// For layouts without a mark on free pages (2.6.32), whose free lists would have to name every block.
#[must_use]
pub fn huge(layout: KernelLayout, ram_bytes: u64, mix: &Mix) -> Image {
    assert!(layout.types.buddy.is_some(), "free pages of {} are only on lists", layout.name);
    let count = ram_bytes.div_ceil(SECTION_PAGES * crate::PAGE).max(2);
    let sections: Vec<u64> = (1..).filter(|s| !PCI_HOLE.contains(s)).take(count as usize - 1).collect();
    assert!(sections.last().is_some_and(|s| *s < 1 << 19), "more than 64 TiB needs more than 46 address bits");

    let mut kinds: Vec<(SectionKind, bool)> = Vec::new();
    let mut number = |kind, rest| {
        kinds.iter().position(|k| *k == (kind, rest)).unwrap_or_else(|| {
            kinds.push((kind, rest));
            kinds.len() - 1
        })
    };
    let mut assigned = Vec::with_capacity(sections.len());
    for &section in &sections {
        let first = section / GIGANTIC * GIGANTIC;
        let whole = first > 0 && sections.binary_search(&(first + GIGANTIC - 1)).is_ok();
        let kind = if whole && pick(mix, first, true) == SectionKind::Gigantic {
            number(SectionKind::Gigantic, section != first)
        } else {
            number(pick(mix, section, false), false)
        };
        assigned.push((section, kind));
    }
    let templates =
        kinds.iter().map(|(kind, rest)| Population::parse(&template(*kind, *rest, mix.kernel_pages))).collect();
    let filler = if mix.kernel_pages { unmovable_filler } else { |_| Filler::Zero };
    Machine::new(layout)
        .ram(0x100..SECTION_PAGES)
        .pages("@0x4000 16384 buddy order=10 content=zero")
        .linear_leaf(Leaf::G1)
        .vmemmap_leaf(Leaf::M2)
        .tail(Tail { sections: assigned, templates, contents: Contents::OfSection(filler) })
        .build()
}

/// Names of mixes, as [`named`] knows them.
pub const MIXES: &str = "real, claim (of which only 8 GiB are used), server, huge-pages, fragmented, and +scan behind one of them but \
                         claim for a machine with hardly a page to keep that is not zero";

/// A machine with so many GiB of RAM and the mix of that name; `None` for a name that is none of [`MIXES`].
#[must_use]
pub fn named(layout: KernelLayout, gib: u64, mix: &str) -> Option<Image> {
    const CLAIM_USED: u64 = 8 << 30;
    let (name, scan) = mix.strip_suffix("+scan").map_or((mix, false), |name| (name, true));
    let shares = match name {
        "real" => return Some(crate::real::real(layout, gib << 30, None, !scan)),
        "claim" if !scan => return Some(crate::real::real(layout, gib << 30, Some(CLAIM_USED), true)),
        "server" => Mix::server(),
        "huge-pages" => Mix::huge_pages(),
        "fragmented" => Mix::fragmented(),
        _ => return None,
    };
    Some(huge(layout, gib << 30, &if scan { shares.no_kernel_pages() } else { shares }))
}

/// A kind for a section, by weight; gigantic pages only if asked for.
fn pick(mix: &Mix, section: u64, gigantic: bool) -> SectionKind {
    let shares = || mix.shares.iter().filter(|s| gigantic || s.0 != SectionKind::Gigantic);
    let total: u32 = shares().map(|s| s.1).sum();
    if total == 0 {
        return SectionKind::Free;
    }
    let mut at = (random(section) % u64::from(total)) as u32;
    for (kind, weight) in shares() {
        match at.checked_sub(*weight) {
            Some(rest) => at = rest,
            None => return *kind,
        }
    }
    SectionKind::Free
}

pub(crate) fn random(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// What a place of a section holds, in every section: only unmovable page blocks hold anything, and a sixteenth of that is zero.
fn unmovable_filler(at: u64) -> Filler {
    match (at / BLOCK % UNMOVABLE, at % 16) {
        (0, 5) => Filler::Zero,
        (0, 1) => Filler::Text,
        (0, 2) => Filler::Noise,
        (0, _) => Filler::Words,
        _ => Filler::Zero,
    }
}

/// The populations of a section, relative to its start.
fn template(kind: SectionKind, rest: bool, kernel_pages: bool) -> String {
    let mut text = String::new();
    let mut line = |at: u64, count: u64, what: &str| {
        let content = if what.contains("content=") { "" } else { "content=zero" };
        let _ = writeln!(text, "@{at} {count} {what} {content}");
    };
    if kind == SectionKind::Gigantic {
        let what = if rest { "hugetlb order=18 continues=32768" } else { "hugetlb order=18" };
        line(0, SECTION_PAGES, what);
        return text;
    }
    for block in 0..SECTION_PAGES / BLOCK {
        let at = block * BLOCK;
        if kernel_pages && block % UNMOVABLE == 0 {
            line(at, 256, "slab order=3");
            line(at + 256, 128, "slab");
            for i in (at + 384..at + 512).step_by(16) {
                line(i, 5, "kernel content=words");
                line(i + 5, 1, "zero");
                line(i + 6, 10, "kernel content=words");
            }
            continue;
        }
        match kind {
            // The largest order is two page blocks; the neighbour of an unmovable one is smaller.
            SectionKind::Free if kernel_pages && block % UNMOVABLE == 1 => line(at, BLOCK, "buddy order=9"),
            SectionKind::Free if block % 2 == 0 => line(at, 2 * BLOCK, "buddy order=10"),
            SectionKind::Free => {}
            SectionKind::Thp => line(at, BLOCK, "anon-thp"),
            SectionKind::Hugetlb => line(at, BLOCK, if block % 4 == 3 { "hugetlb pool" } else { "hugetlb" }),
            SectionKind::Cache => {
                line(at, 256, "file-thp order=4");
                line(at + 256, 64, "file-thp order=2");
                line(at + 320, 128, "cache");
                line(at + 448, 48, "private-cache");
                line(at + 496, 16, "buddy order=4");
            }
            SectionKind::Anon => {
                line(at, 256, "anon");
                line(at + 256, 128, "anon-thp order=4");
                line(at + 384, 64, "anon");
                line(at + 448, 32, "swapcache");
                line(at + 480, 32, "buddy order=5");
            }
            SectionKind::Fragmented | SectionKind::Gigantic => fragments(at, &mut line),
        }
    }
    text
}

/// Short runs that fill a page block.
fn fragments(start: u64, line: &mut impl FnMut(u64, u64, &str)) {
    let (mut at, end) = (start, start + BLOCK);
    while at < end {
        let r = random(at);
        let count = (1 + (r >> 8) % 32).min(end - at);
        match r % 8 {
            0 | 1 => line(at, count, "cache"),
            2 | 3 => line(at, count, "anon"),
            4 => line(at, count, "private-cache"),
            5 => line(at, count, "slab"),
            6 if r >> 20 & 63 == 0 => line(at, count, "offline"),
            _ => {
                let order = ((r >> 16) % 4).min(u64::from(at.trailing_zeros()));
                let count = 1 << order;
                if at + count > end {
                    line(at, 1, "buddy");
                    at += 1;
                    continue;
                }
                line(at, count, &format!("buddy order={order}"));
                at += count;
                continue;
            }
        }
        at += count;
    }
}
