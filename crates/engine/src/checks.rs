//! Our counts beside the kernel's own.

use crate::report::{CheckRow, ClassRow};
use coresift_format::PhysicalMemory;
use coresift_kernel::{Kernel, PageClass, nodes};

/// Differences above this share, in percent, are worth a warning: counters lag behind by what each cpu holds back.
const TOLERANCE: u64 = 3;
/// Differences of fewer pages than this are never worth one.
const SLACK: u64 = 2048;

/// Compares the pages found with the kernel's counters; what cannot be compared is said in a note.
pub fn compare(kernel: &Kernel, memory: &dyn PhysicalMemory, classes: &[ClassRow]) -> (Vec<CheckRow>, Vec<String>) {
    let found = |class: PageClass| classes.iter().find(|row| row.name == class.name()).map_or(0, |row| row.pages);
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    match nodes::free_pages(kernel, memory) {
        Ok(count) => rows.push(row("free", found(PageClass::Free), count)),
        Err(e) => notes.push(format!("the number of free pages was not checked against the kernel's: {e}")),
    }
    for row in rows.iter().filter(|row| row.warning) {
        notes.push(format!(
            "{} pages: {} were found, the kernel's own counter says {}; the rules that tell them may not fit this kernel",
            row.what, row.found, row.kernel
        ));
    }
    (rows, notes)
}

fn row(what: &'static str, found: u64, kernel: u64) -> CheckRow {
    let difference = found.abs_diff(kernel);
    CheckRow { what, found, kernel, warning: difference > SLACK && difference > kernel / 100 * TOLERANCE }
}
