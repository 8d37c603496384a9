//! The report in the lines makedumpfile users and their scripts know.

use coresift_engine::Report;
use coresift_kernel::{ClassSet, PageClass};
use std::fmt::Write;

/// The lines of excluded pages, and the classes each counts.
const ROWS: [(&str, ClassSet); 7] = [
    ("Pages filled with zero ", ClassSet::of(&[PageClass::Zero])),
    ("Non-private cache pages", ClassSet::of(&[PageClass::Cache])),
    ("Private cache pages    ", ClassSet::of(&[PageClass::PrivateCache])),
    ("User process data pages", ClassSet::of(&[PageClass::User, PageClass::HugeTlb])),
    ("Free pages             ", ClassSet::of(&[PageClass::Free, PageClass::Unaccepted])),
    ("Hwpoison pages         ", ClassSet::of(&[PageClass::HwPoison])),
    ("Offline pages          ", ClassSet::of(&[PageClass::Offline])),
];

/// The report's lines from `Original pages` to `Write bytes`.
pub fn lines(report: &Report) -> String {
    // Of a dump that is filtered again, pages are named that an earlier run left out, as makedumpfile names them; what remains is
    // what is there.
    let again = report.absent_pages > 0;
    let left_out = |class: PageClass| if again { report.of_excluded(class) } else { report.excluded(class) };
    let count = |classes: ClassSet| classes.iter().map(left_out).fold(0, u64::saturating_add);
    let original = report.ram_pages;
    let excluded = if again {
        original.saturating_sub(report.kept_pages.saturating_sub(report.of_excluded(PageClass::Zero)))
    } else {
        ROWS.iter().map(|(_, classes)| count(*classes)).fold(0, u64::saturating_add)
    };
    let remaining = original.saturating_sub(excluded);
    let hole = report.total_pages.saturating_sub(original);

    let mut text = format!("Original pages  : 0x{original:016x}\n  Excluded pages   : 0x{excluded:016x}\n");
    // Pages with data.
    let in_elf = report.elf.map(|elf| report.kept_pages.saturating_sub(elf.hole_pages));
    if let Some(pages) = in_elf {
        let _infallible = writeln!(text, "     in ELF format : 0x{:016x}", original.saturating_sub(pages));
    }
    for (name, classes) in ROWS {
        let _infallible = writeln!(text, "    {name} : 0x{:016x}", count(classes));
    }
    let _infallible = writeln!(text, "  Remaining pages  : 0x{remaining:016x}");
    if let Some(pages) = in_elf {
        let _infallible = writeln!(text, "     in ELF format : 0x{pages:016x}");
    }
    let left = in_elf.unwrap_or(remaining);
    if let Some(percent) = (u128::from(left) * 100).checked_div(u128::from(original)) {
        let _infallible = writeln!(text, "  (The number of pages is reduced to {percent}%.)");
    }
    let _infallible = writeln!(text, "Memory Hole     : 0x{hole:016x}");
    let _infallible = writeln!(text, "{:-<50}", "");
    let _infallible = writeln!(text, "Total pages     : 0x{:016x}", report.total_pages);
    let _infallible = writeln!(text, "Write bytes     : {}", report.bytes_out);
    text
}

/// The stages as makedumpfile times them, a line each.
pub fn steps(report: &Report) -> String {
    let name = |stage: &str| match stage {
        "find pages" => Some("Excluding unnecessary pages"),
        "copy pages" => Some("Copying data               "),
        _ => None,
    };
    let known = report.stages.iter().filter_map(|stage| Some((name(stage.name)?, stage.seconds)));
    known.fold(String::new(), |mut text, (name, seconds)| {
        let _infallible = writeln!(text, "STEP [{name}] : {seconds:.6} seconds");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_lines_are_those_of_makedumpfile() {
        // Counts of a 6.12 lab core, as makedumpfile 1.7.9 prints them (less its cache line and its extension line).
        let wanted = "\
Original pages  : 0x0000000000022b04
  Excluded pages   : 0x00000000000192d3
    Pages filled with zero  : 0x00000000000012b3
    Non-private cache pages : 0x0000000000007b16
    Private cache pages     : 0x000000000000163a
    User process data pages : 0x000000000000b253
    Free pages              : 0x0000000000003c7d
    Hwpoison pages          : 0x0000000000000000
    Offline pages           : 0x0000000000000000
  Remaining pages  : 0x0000000000009831
  (The number of pages is reduced to 27%.)
Memory Hole     : 0x000000000000d4d0
--------------------------------------------------
Total pages     : 0x000000000002ffd4
Write bytes     : 41608977
";
        assert_eq!(lines(&sample::report()), wanted);
    }

    #[test]
    fn hugetlb_counts_as_user_and_unaccepted_as_free() {
        let mut report = sample::report();
        for row in &mut report.classes {
            row.excluded_pages = match row.name {
                "hugetlb" => 0x200,
                "unaccepted" => 0x10,
                _ => 0,
            };
        }
        let text = lines(&report);
        assert!(text.contains("User process data pages : 0x0000000000000200"), "{text}");
        assert!(text.contains("Free pages              : 0x0000000000000010"), "{text}");
        assert!(text.contains("Excluded pages   : 0x0000000000000210"), "{text}");
    }

    #[test]
    fn a_dump_without_pages_has_no_percentage() {
        let report = Report::default();
        assert!(!lines(&report).contains('%'));
    }
}
