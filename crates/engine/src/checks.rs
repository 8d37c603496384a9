//! Our counts beside the kernel's own.

use crate::report::{CheckRow, ClassRow};
use coresift_format::PhysicalMemory;
use coresift_kernel::{Counters, Kernel, PageClass, nodes};

/// Differences above these shares, in percent, are worth a warning: how much more, and how much less, is found than counted.
/// Counters lag behind by what each cpu holds back; that of slab also counts large kmalloc areas, which are no slab pages
/// (5 % in small guests).
const TOLERANCE: [(PageClass, u64, u64); 3] =
    [(PageClass::Free, 3, 3), (PageClass::Slab, 3, 25), (PageClass::HugeTlb, 0, 0)];
/// Differences of fewer pages than this are never worth one where counters lag; that of hugetlb is exact.
const SLACK: u64 = 1024;

/// Compares the pages found with the kernel's counters; what cannot be compared is said in a note.
pub fn compare(kernel: &Kernel, memory: &dyn PhysicalMemory, classes: &[ClassRow]) -> (Vec<CheckRow>, Vec<String>) {
    let found = |class: PageClass| classes.iter().find(|row| row.name == class.name()).map_or(0, |row| row.pages);
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    let counters = Counters::read(kernel, memory);
    let counted = [
        (PageClass::Free, nodes::free_pages(kernel, memory)),
        (PageClass::Slab, counters.slab),
        (PageClass::HugeTlb, counters.hugetlb),
    ];
    for (class, count) in counted {
        match count {
            // Why is said once, where the symbols are read.
            Err(_) if class != PageClass::Free && kernel.symbols.is_err() => {}
            Ok(count) => rows.push(row(class, found(class), count)),
            Err(e) => notes.push(format!("the number of {class} pages was not checked against the kernel's: {e}")),
        }
    }
    for row in rows.iter().filter(|row| row.warning) {
        notes.push(format!(
            "{} pages: {} were found, the kernel's own counter says {}; the rules that tell them may not fit this kernel",
            row.what, row.found, row.kernel
        ));
    }
    (rows, notes)
}

fn row(class: PageClass, found: u64, kernel: u64) -> CheckRow {
    let (more, less) = TOLERANCE.iter().find(|t| t.0 == class).map_or((0, 0), |t| (t.1, t.2));
    let percent = if found > kernel { more } else { less };
    let slack = if percent == 0 { 0 } else { SLACK };
    let difference = found.abs_diff(kernel);
    CheckRow { what: class.name(), found, kernel, warning: difference > slack && difference > kernel / 100 * percent }
}
