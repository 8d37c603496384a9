//! The picture: rows of cells, each a block of physical memory.

use crate::text::{bytes, count, percent};
use coresift_census::{BlockCounts, ByClass};
use coresift_kernel::PageClass;
use std::fmt;

/// Cells of a row, and the side of one.
const COLUMNS: u64 = 128;
const CELL: u64 = 8;
/// Room for the addresses at the left, and above the rows.
const LEFT: u64 = 120;
const TOP: u64 = 96;
/// Between rows that have addresses between them where no RAM is.
const GAP: u64 = 6;
/// Entries of a row of the legend, and the room of each.
const LEGEND: usize = 5;
const ENTRY: u64 = 228;
/// Heights are in hundredths; a poisoned page has so many at the least.
const WHOLE: u64 = CELL * 100;
const SEEN: u64 = 200;

/// The colours, in the order of the classes. Free memory is pale, poisoned red.
const COLOURS: [(PageClass, &str); PageClass::ALL.len()] = [
    (PageClass::Kernel, "#4c72b0"),
    (PageClass::Slab, "#8172b3"),
    (PageClass::Zero, "#c9c9c9"),
    (PageClass::Cache, "#55a868"),
    (PageClass::PrivateCache, "#1f6f43"),
    (PageClass::User, "#dd8452"),
    (PageClass::HugeTlb, "#c9a227"),
    (PageClass::Free, "#e9eef2"),
    (PageClass::Unaccepted, "#b8d4e3"),
    (PageClass::Offline, "#7f7f7f"),
    (PageClass::HwPoison, "#e3000f"),
];

/// What is drawn.
pub struct Picture<'a> {
    /// What stands above it.
    pub title: String,
    /// Bytes of a page.
    pub page: u64,
    /// The blocks.
    pub blocks: &'a BlockCounts,
}

/// Neighbours of one class, or a single block: from one column to before another of a row.
struct Run {
    start: u64,
    end: u64,
    counts: ByClass,
}

/// Blocks of neighbouring addresses.
struct Row {
    number: u64,
    /// Room above it.
    gap: u64,
    runs: Vec<Run>,
}

impl fmt::Display for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        let height = TOP + rows.iter().map(|row| row.gap + CELL).sum::<u64>() + GAP;
        let width = LEFT + COLUMNS * CELL + GAP;
        let title = escaped(&self.title);
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" role="img">
<title>{title}</title>
<rect width="100%" height="100%" fill="white"/>
<text x="{GAP}" y="18" font-size="14">{title}</text>"#
        )?;
        self.legend(f)?;
        writeln!(f, r#"<g shape-rendering="crispEdges" font-size="8">"#)?;
        let mut y = TOP;
        for row in &rows {
            y += row.gap;
            let address = row.number * COLUMNS * self.block();
            writeln!(f, r#"<text x="{}" y="{}" text-anchor="end">{address:#x}</text>"#, LEFT - 4, y + CELL - 1)?;
            for run in &row.runs {
                self.cell(f, row.number, run, y)?;
            }
            y += CELL;
        }
        writeln!(f, "</g>\n</svg>")
    }
}

impl Picture<'_> {
    /// Bytes of a block.
    const fn block(&self) -> u64 {
        self.blocks.frames().saturating_mul(self.page)
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for (block, counts) in self.blocks.blocks() {
            let (number, column) = (block / COLUMNS, block % COLUMNS);
            if rows.last().is_none_or(|last| last.number != number) {
                let apart = rows.last().is_some_and(|last| last.number + 1 != number);
                rows.push(Row { number, gap: if apart { GAP } else { 0 }, runs: Vec::new() });
            }
            let Some(Row { runs, .. }) = rows.last_mut() else { continue };
            match runs.last_mut() {
                Some(run) if run.end == column && only(counts).is_some() && only(&run.counts) == only(counts) => {
                    run.end += 1;
                    run.counts.iter_mut().zip(counts).for_each(|(sum, more)| *sum += more);
                }
                _ => runs.push(Run { start: column, end: column + 1, counts: *counts }),
            }
        }
        rows
    }

    fn legend(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sums = ByClass::default();
        self.blocks.blocks().for_each(|(_, counts)| sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n));
        let all = sums.iter().sum();
        let shown = COLOURS.iter().zip(sums).filter(|(_, pages)| *pages > 0);
        for (i, ((class, colour), pages)) in shown.enumerate() {
            let (x, y) = (GAP + (i % LEGEND) as u64 * ENTRY, 30 + (i / LEGEND) as u64 * 20);
            let (size, share) = (bytes(pages.saturating_mul(self.page)), percent(pages, all));
            writeln!(f, r##"<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}" stroke="#888"/>"##)?;
            writeln!(f, r#"<text x="{}" y="{}">{} {size} ({share:.1} %)</text>"#, x + 17, y + 10, class.name())?;
        }
        Ok(())
    }

    /// A run of row `number`: its classes one above the other, in their shares; poisoned pages can be seen, however few.
    fn cell(&self, f: &mut fmt::Formatter<'_>, number: u64, run: &Run, y: u64) -> fmt::Result {
        let all = run.counts.iter().sum::<u64>().max(1);
        let (x, width) = (LEFT + run.start * CELL, (run.end - run.start) * CELL);
        let address = |column| (number * COLUMNS + column) * self.block();
        let classes = || COLOURS.iter().zip(run.counts).filter(|(_, pages)| *pages > 0);
        let told: Vec<String> =
            classes().map(|((class, _), pages)| format!("{} {}", class.name(), count(pages))).collect();
        write!(f, "<g><title>{:#x} to {:#x}: {}</title>", address(run.start), address(run.end) - 1, told.join(", "))?;
        let mut done = 0;
        for ((class, colour), pages) in classes() {
            let (from, to) = (done * WHOLE / all, (done + pages) * WHOLE / all);
            done += pages;
            let height = (to - from).max(if *class == PageClass::HwPoison { SEEN } else { 0 });
            let top = hundredths(y * 100 + from.min(WHOLE - height));
            let height = hundredths(height);
            write!(f, r#"<rect x="{x}" y="{top}" width="{width}" height="{height}" fill="{colour}"/>"#)?;
        }
        writeln!(f, "</g>")
    }
}

/// The class of all pages, if they have one.
fn only(counts: &ByClass) -> Option<usize> {
    let mut some = counts.iter().enumerate().filter(|(_, pages)| **pages > 0).map(|(class, _)| class);
    some.next().filter(|_| some.next().is_none())
}

/// A number of hundredths with a decimal point.
fn hundredths(n: u64) -> String {
    if n.is_multiple_of(100) { (n / 100).to_string() } else { format!("{}.{:02}", n / 100, n % 100) }
}

/// `text` as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace(|c: char| c.is_control(), " ")
}
