//! Huge machines whose memory sections are laid out like those of real ones.
//!
//! ```text
//! real.txt: blocks of page classes of real sections, in order ─┬─ struct pages: 2 MiB leaves, one template a recorded section
//!                                                              └─ contents: one PT_LOAD for each turn through the sections, all on
//!                                                                 the same file bytes; pages that no level 31 keeps are a hole
//! ```
//!
//! A turn is some GiB long, so that a terabyte has hundreds of program headers and not thousands: makedumpfile 1.7.9 looks for each page
//! among all of them in turn, and would be slower here than on a real machine, which has a dozen.

use crate::image::{Image, Truth};
use crate::layout::KernelLayout;
use crate::machine::{Contents, Machine, Tail};
use crate::memmap::SECTION_PAGES;
use crate::paging::Leaf;
use crate::population::Population;
use crate::ram::Filler;
use std::fmt::Write;
use std::ops::Range;

/// The recorded sections.
const DATA: &str = include_str!("real.txt");

/// Letters of `real.txt`, and the kind of population each stands for.
pub const LETTERS: [(char, &str); 11] = [
    ('k', "kernel"),
    ('s', "slab"),
    ('c', "cache"),
    ('v', "private-cache"),
    ('u', "anon"),
    ('h', "hugetlb"),
    ('f', "buddy"),
    ('x', "unaccepted"),
    ('o', "offline"),
    ('p', "hwpoison"),
    ('z', "zero"),
];

/// First section that repeats recorded ones: RAM is the first section, then everything from 4 GiB on.
const FIRST: u64 = 32;

/// One recorded section: blocks as (letter, order, how many in a row).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The kernel it is of, and its number there.
    pub origin: String,
    /// Blocks from the section's start to its end.
    pub runs: Vec<(char, u32, u64)>,
}

/// The recorded sections.
///
/// # Panics
/// `real.txt` is not what [`text`] writes.
#[must_use]
pub fn sections() -> Vec<Section> {
    parse(DATA)
}

/// Reads what [`text`] writes: `section ORIGIN`, then words of a letter, the order as a hexadecimal digit, and the number of blocks
/// where it is not 1; `#` begins a comment.
///
/// # Panics
/// On anything else, and on a section that does not have [`SECTION_PAGES`] pages.
#[must_use]
pub fn parse(text: &str) -> Vec<Section> {
    let mut all: Vec<Section> = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        if let Some(origin) = line.strip_prefix("section ") {
            all.push(Section { origin: origin.into(), runs: Vec::new() });
            continue;
        }
        let section = all.last_mut().expect("a `section` line before the first block");
        section.runs.extend(line.split_whitespace().map(|word| {
            let mut letters = word.chars();
            let (letter, order) = (letters.next().unwrap_or(' '), letters.next().and_then(|c| c.to_digit(16)));
            let count = if letters.as_str().is_empty() { Ok(1) } else { letters.as_str().parse() };
            match (order, count) {
                (Some(order), Ok(count)) if LETTERS.iter().any(|l| l.0 == letter) => (letter, order, count),
                _ => panic!("not a block: `{word}`"),
            }
        }));
    }
    for section in &all {
        let pages: u64 = section.runs.iter().map(|r| r.2 << r.1).sum();
        assert!(pages == SECTION_PAGES, "section {} has {pages} pages", section.origin);
    }
    all
}

/// The text form of sections, under the comment `head`.
#[must_use]
pub fn text(head: &str, sections: &[Section]) -> String {
    let mut out = String::new();
    head.lines().for_each(|line| out += &format!("# {line}\n"));
    for section in sections {
        let _ = write!(out, "section {}", section.origin);
        let mut width = usize::MAX;
        for (letter, order, count) in &section.runs {
            let word = if *count == 1 { format!("{letter}{order:x}") } else { format!("{letter}{order:x}{count}") };
            out.push(if width > 120 { '\n' } else { ' ' });
            width = if width > 120 { word.len() } else { width + 1 + word.len() };
            out += &word;
        }
        out.push('\n');
    }
    out
}

/// A machine with `ram_bytes` of RAM, rounded to whole sections, up to 60 TiB: 128 MiB of its own, then the recorded sections from 4 GiB
/// on, over and over; with `pages_bytes` only up to so much RAM, and free from there on. Without `contents` the kept pages are zero, and the file is small.
///
/// # Panics
/// For layouts whose struct pages are not 64 bytes long or whose free pages are not marked (2.6.32).
#[must_use]
pub fn real(layout: KernelLayout, ram_bytes: u64, pages_bytes: Option<u64>, contents: bool) -> Image {
    let recorded = sections();
    let turn = recorded.len();
    let in_sections = |bytes: u64| (bytes / crate::PAGE).div_ceil(SECTION_PAGES) as usize;
    let count = in_sections(ram_bytes).max(2) - 1;
    let used = pages_bytes.map_or(count, |bytes| in_sections(bytes).min(count));
    let sections: Vec<(u64, usize)> =
        (0..count).map(|i| (FIRST + i as u64, if i < used { i % turn } else { turn })).collect();
    let free = Section { origin: String::new(), runs: vec![('f', 10, SECTION_PAGES >> 10)] };
    let templates: Vec<Vec<Population>> =
        recorded.iter().chain((used < count).then_some(&free)).map(populations).collect();
    let kept = if contents { kept(&layout, &templates[..turn.min(used)]) } else { Vec::new() };
    let contents = Contents::OfTurn { sections: turn as u64, kept };
    Machine::new(layout)
        .ram(0x100..SECTION_PAGES)
        .pages("@0x7000 4096 buddy order=10 content=zero")
        .linear_leaf(Leaf::G1)
        .vmemmap_leaf(Leaf::M2)
        .tail(Tail { sections, templates, contents })
        .build()
}

fn populations(section: &Section) -> Vec<Population> {
    let mut lines = String::new();
    let mut at = 0;
    for (letter, order, count) in &section.runs {
        let kind = LETTERS.iter().find(|l| l.0 == *letter).map_or("kernel", |l| l.1);
        let pages = count << order;
        let _ = writeln!(lines, "@{at} {pages} {kind} order={order} content=words");
        at += pages;
    }
    Population::parse(&lines)
}

/// The pages of a turn that level 31 may keep, as runs of page numbers from the start of the turn.
fn kept(layout: &KernelLayout, templates: &[Vec<Population>]) -> Vec<Range<u64>> {
    let mut truth = Truth::default();
    for (number, template) in templates.iter().enumerate() {
        let start = number as u64 * SECTION_PAGES;
        for p in template {
            let (head, rest) = p.class(layout);
            let class = if [head, rest].iter().any(|c| ["kernel", "slab"].contains(c)) { "kernel" } else { "hole" };
            truth.push(start + p.pfns.start, start + p.pfns.end, class);
        }
    }
    truth.runs().filter(|r| r.1 == "kernel").map(|r| r.0).collect()
}

/// What the page at that place of a turn holds where it is kept. Shares as measured in kept pages of 6.12 lab cores: a tenth is zero, a
/// seventh of the others repeats; the rest shrinks to a third under lzo and snappy.
pub(crate) fn filler(at: u64) -> Filler {
    // Runs of four pages, as zeros and repetitions come in runs.
    match crate::huge::random(at / 4) % 100 {
        0..10 => Filler::Zero,
        10..23 => Filler::Same,
        23..25 => Filler::Noise,
        25..43 => Filler::Words,
        43..78 => Filler::Few,
        _ => Filler::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_sections_come_back_from_their_text() {
        let all = sections();
        assert!(all.len() >= 32, "{}", all.len());
        assert_eq!(parse(&text("a head\nof two lines", &all)), all);
        // Of everything that makes a dump, and of more than one kernel.
        for letter in ['k', 's', 'c', 'v', 'u', 'h', 'f'] {
            assert!(all.iter().any(|s| s.runs.iter().any(|r| r.0 == letter)), "{letter}");
        }
        let kernels: std::collections::BTreeSet<&str> = all.iter().filter_map(|s| s.origin.split(' ').next()).collect();
        assert!(kernels.len() >= 3, "{kernels:?}");
        assert!(DATA.len() < 200_000, "{}", DATA.len());
    }

    #[test]
    fn a_block_is_a_letter_an_order_and_a_count() {
        let section = &parse("# head\nsection 6.12 7\nka ka2 u01024\nf9 s0512 h954")[0];
        assert_eq!(section.runs[..3], [('k', 10, 1), ('k', 10, 2), ('u', 0, 1024)]);
    }

    #[test]
    fn a_claim_of_ram_behind_the_used_part_is_free() {
        let image = real(KernelLayout::get("6.12"), 1 << 40, Some(1 << 30), true);
        let of_all: u64 = image.truth.counts().iter().filter(|c| c.0 != "hole").map(|c| c.1).sum();
        assert_eq!(of_all, (1 << 28) - 0x100);
        assert!(image.truth.count("free") > (1 << 28) - (2 << 18));
        assert_eq!(image.truth.class(FIRST * SECTION_PAGES + 8 * SECTION_PAGES), "free");
    }
}
