//! The report of a native dump: makedumpfile's lines, then what they do not tell.

use crate::text::{bytes, count, percent, rate, seconds};
use coresift_engine::Report;
use std::fmt::Write;

/// The report as text.
pub fn text(report: &Report) -> String {
    sections(
        crate::makedumpfile::report::lines(report),
        &[amounts, outcome, classes, guard, checks, unreadable, notes],
        report,
    )
}

/// How the page classes were told, what was protected, and how the counts compare.
pub fn evidence(report: &Report) -> String {
    sections(String::new(), &[classes, guard, checks], report)
}

/// Runs of unreadable pages that are shown one by one.
const RUNS_SHOWN: usize = 16;

type Section = fn(&Report) -> String;

/// `out` and the sections that have something to say, with a blank line before each.
fn sections(mut out: String, sections: &[Section], report: &Report) -> String {
    for body in sections.iter().map(|section| section(report)).filter(|body| !body.is_empty()) {
        out.push('\n');
        out.push_str(&body);
    }
    out
}

fn amounts(report: &Report) -> String {
    let input_size = report.ram_pages.saturating_mul(report.page_size);
    let mut out = format!(
        "{} read, {} written in {} by {} {} ({}, level {})\n",
        bytes(report.bytes_in),
        bytes(report.bytes_out),
        seconds(report.seconds),
        report.threads,
        if report.threads == 1 { "thread" } else { "threads" },
        report.compression,
        report.level,
    );
    let _infallible = writeln!(
        out,
        "The dump is {:.1} % of the {} of memory; {} pages kept, {} of them zero, {} the same as another",
        percent(report.bytes_out, input_size),
        bytes(input_size),
        count(report.kept_pages),
        count(report.zero_pages),
        count(report.shared_pages),
    );
    for part in &report.parts {
        let failed = part.failed.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        let _infallible = writeln!(
            out,
            "  {}: pfn {:#x} to {:#x}, {} pages, {}{failed}",
            part.path.display(),
            part.start_pfn,
            part.end_pfn,
            count(part.pages),
            bytes(part.bytes),
        );
    }
    if !report.chosen.is_empty() {
        let all: u64 = report.chosen.iter().map(|row| row.batches).sum();
        let shares = report.chosen.iter().filter(|row| row.batches > 0);
        let shares: Vec<String> =
            shares.map(|row| format!("{:.0} % {}", percent(row.batches, all), row.compression)).collect();
        let _infallible = writeln!(out, "Compressed by {}", shares.join(", "));
    }
    for stage in &report.stages {
        let per_second = |amount, unit: fn(u64) -> String| {
            rate(amount, stage.seconds).filter(|_| amount > 0).map_or_else(|| "-".into(), unit)
        };
        let _infallible = writeln!(
            out,
            "  {:<12} {:>10}  {:>14} pages/s  {:>12}/s",
            stage.name,
            seconds(stage.seconds),
            per_second(stage.pages, count),
            per_second(stage.bytes, bytes),
        );
    }
    let _infallible = writeln!(
        out,
        "Memory: {} at the peak, of a budget of {}",
        bytes(report.peak_memory),
        bytes(report.memory_budget)
    );
    out
}

/// What a dry run foretells, and the attempts that did not fit.
fn outcome(report: &Report) -> String {
    let mut out = String::new();
    if report.dry_run {
        let _infallible = write!(out, "Nothing was written: the file would have {} bytes", count(report.file_bytes));
        let _infallible = match report.space {
            Some(space) if space.fits => writeln!(out, ", and fits: {} are free", count(space.free)),
            Some(space) => {
                writeln!(
                    out,
                    ", and does not fit: it takes {}, and {} are free",
                    count(space.needed),
                    count(space.free)
                )
            }
            None => writeln!(out),
        };
    }
    if let Some(ended) = &report.ended {
        let _infallible = writeln!(out, "Ended early: {ended}");
    }
    for row in &report.attempts {
        let _infallible = writeln!(
            out,
            "Level {} did not fit: {} ({} of {} pages, {} bytes, {})",
            row.level,
            row.ended,
            count(row.kept_pages),
            count(row.pages),
            count(row.file_bytes),
            seconds(row.seconds),
        );
    }
    out
}

fn classes(report: &Report) -> String {
    if report.classes.is_empty() {
        return String::new();
    }
    let kernel = report.release.as_deref().unwrap_or("an unknown kernel");
    let mut out = format!("Page classes of {kernel}\n");
    let _infallible = writeln!(out, "  {:<13} {:>14} {:>14}  told by", "class", "pages", "left out");
    for row in &report.classes {
        let left_out = if row.excluded { count(row.excluded_pages) } else { "-".into() };
        let evidence = row.evidence.as_deref().unwrap_or("no evidence in this dump; such pages count as another class");
        let _infallible = writeln!(out, "  {:<13} {:>14} {left_out:>14}  {evidence}", row.name, count(row.pages));
    }
    out
}

fn guard(report: &Report) -> String {
    table("Protected memory, whatever the class of its pages\n", &report.guard, |row| {
        format!(
            "  {:<16} {:>14} pages, of which {} would have been left out",
            row.what,
            count(row.pages),
            count(row.saved)
        )
    })
}

fn checks(report: &Report) -> String {
    table("Checks against the kernel's own counters\n", &report.checks, |row| {
        let verdict = if row.warning { "WARNING: they should be about equal" } else { "ok" };
        format!("  {:<16} {:>14} found {:>14} counted  {verdict}", row.what, count(row.found), count(row.kernel))
    })
}

fn unreadable(report: &Report) -> String {
    if report.unreadable_pages == 0 {
        return String::new();
    }
    let title = format!("{} pages could not be read and were left out\n", count(report.unreadable_pages));
    let shown = report.unreadable.iter().take(RUNS_SHOWN);
    let more = report.unreadable_pages.saturating_sub(shown.clone().map(|run| run.pages).sum());
    let mut out = shown.fold(title, |mut out, run| {
        let _infallible = writeln!(out, "  pfn {:#x}, {} pages: {}", run.pfn, run.pages, run.reason);
        out
    });
    if more > 0 {
        let _infallible = writeln!(out, "  and {} pages more", count(more));
    }
    out
}

fn notes(report: &Report) -> String {
    table("Notes\n", &report.notes, |note| format!("  {note}"))
}

/// `title`, and a line for each row; nothing without rows.
fn table<T>(title: &str, rows: &[T], line: impl Fn(&T) -> String) -> String {
    if rows.is_empty() {
        return String::new();
    }
    rows.iter().fold(title.to_owned(), |mut out, row| {
        out.push_str(&line(row));
        out.push('\n');
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_report_reads_as_reviewed() {
        insta::assert_snapshot!(text(&sample::report()));
    }

    #[test]
    fn an_empty_report_has_only_its_amounts() {
        let text = text(&Report::default());
        for title in ["Page classes", "Protected", "Checks", "could not be read", "Notes"] {
            assert!(!text.contains(title), "{title} in {text}");
        }
    }
}
