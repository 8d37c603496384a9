//! `--mem-usage`: what each dump level would leave out of the running kernel's memory, in makedumpfile's table.

use super::Stop;
use super::create::{failed, may_read, options};
use super::line::CommandLine;
use super::messages::{Class, Messages};
use super::options::Opt;
use super::progress::Progress;
use crate::cause;
use coresift_engine::{DumpOptions, Exclusion, Report, usage};
use coresift_format::{FormatError, Input};
use coresift_kernel::{ClassSet, DumpLevel, KernelVersion, PageClass};
use std::fmt::Write;
use std::path::Path;

/// The rows: name with its tabs, classes, and what they are.
const ROWS: [(&str, ClassSet, &str); 5] = [
    ("ZERO\t\t", ClassSet::of(&[PageClass::Zero]), "Pages filled with zero"),
    ("NON_PRI_CACHE\t", ClassSet::of(&[PageClass::Cache]), "Cache pages without private flag"),
    ("PRI_CACHE\t", ClassSet::of(&[PageClass::PrivateCache]), "Cache pages with private flag"),
    ("USER\t\t", ClassSet::of(&[PageClass::User, PageClass::HugeTlb]), "User process pages"),
    ("FREE\t\t", ClassSet::of(&[PageClass::Free, PageClass::Unaccepted]), "Free pages"),
];
/// The first kernel whose /proc/kcore tells physical addresses (commit 464920104bf7).
const WITH_PADDR: KernelVersion = KernelVersion(4, 11, 0);
/// Everything.
const LEVEL: u8 = 31;

/// Prints the table of the first name of `line`.
pub fn show(line: &CommandLine, messages: &Messages) -> Result<(), Stop> {
    let Some(name) = line.names.first() else { return Err(super::parameter_error(messages).into()) };
    let path = Path::new(name);
    may_read(path, messages)?;
    let input = open(path, line, messages).map_err(|error| {
        cause::chain(&error).for_each(|text| messages.line(Class::Error, &text));
        Stop::Failed
    })?;
    if input.is_memory() && !line.has(Opt::Force) && running().is_some_and(|version| version < WITH_PADDR) {
        messages.line(Class::Common, "mem-usage not supported for this kernel.");
        messages.line(Class::Common, "You can try with -f if your kernel's kcore has valid p_paddr");
        return Err(Stop::Failed);
    }
    let level = DumpLevel::new(LEVEL).unwrap_or_default();
    let options = DumpOptions { exclude: vec![Exclusion::new(level, ClassSet::NONE, ClassSet::NONE)], ..options(line) };
    let progress = Progress::new(messages, path, path);
    let result = usage(input, &options, &progress);
    progress.end();
    match result {
        Ok(report) if !report.complete => {
            messages.line(Class::Error, "The pages were not counted to the end.");
            Err(Stop::Failed)
        }
        Ok(report) => {
            messages.raw(Class::Common, &table(&report));
            Ok(())
        }
        Err(error) => {
            failed(&error, path, messages);
            Err(Stop::Failed)
        }
    }
}

/// The input; the memory of a crash kernel is none that a dump would have.
fn open(path: &Path, line: &CommandLine, messages: &Messages) -> Result<Input, FormatError> {
    let mut input = Input::open_with(path, !line.has(Opt::NonMmap))?;
    let skipped = input.as_elf().map_or(0, coresift_format::ElfCore::segments_without_paddr);
    if skipped > 0 {
        messages.note(&format!(
            "{skipped} segments without a physical address (vmalloc, modules) were skipped: they stand for no memory of their own"
        ));
    }
    if input.is_memory() {
        let iomem = std::fs::read_to_string("/proc/iomem").unwrap_or_default();
        let reserved = crash_kernel(&iomem);
        if reserved.is_empty() {
            // makedumpfile ends here; but who wants to know what to reserve has not done so yet.
            messages.note("No memory is reserved for crashkernel!");
        }
        input.set_aside(reserved);
    }
    Ok(input)
}

/// Physical addresses, start and end, of what `iomem` calls the crash kernel's. Addresses read as 0 by users who may not see them.
fn crash_kernel(iomem: &str) -> Vec<(u64, u64)> {
    let range = |line: &str| {
        let (range, name) = line.split_once(" : ")?;
        let (start, last) = range.trim().split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(start)?, hex(last)?.checked_add(1)?);
        (name.trim() == "Crash kernel" && end > start + 1).then_some((start, end))
    };
    iomem.lines().filter_map(range).collect()
}

/// The release of the running kernel.
fn running() -> Option<KernelVersion> {
    KernelVersion::parse(&std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

fn table(report: &Report) -> String {
    let count = |classes: ClassSet| classes.iter().map(|class| report.excluded(class)).fold(0, u64::saturating_add);
    let unreadable = count(ClassSet::UNREADABLE);
    let excluded = ROWS.iter().map(|row| count(row.1)).fold(unreadable, u64::saturating_add);
    let mut text = format!("TYPE\t\tPAGES\t\t\tEXCLUDABLE\tDESCRIPTION\n{:-<70}\n", "");
    let rows = ROWS.iter().map(|(name, classes, what)| (*name, count(*classes), "yes", *what));
    let kernel = ("KERN_DATA\t", report.ram_pages.saturating_sub(excluded), "no", "Dumpable kernel data");
    for (name, pages, excludable, what) in rows.chain([kernel]) {
        let _infallible = writeln!(text, "{name}{pages:<16}\t{excludable}\t\t{what}");
    }
    let size = report.ram_pages.saturating_mul(report.page_size);
    let _infallible = writeln!(text, "\npage size:\t\t{:<16}", report.page_size);
    let _infallible = writeln!(text, "Total pages on system:\t{:<16}", report.ram_pages);
    let _infallible = writeln!(text, "Total size on system:\t{size:<16} Byte");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_table_is_makedumpfiles() {
        let text = table(&sample::report());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "TYPE\t\tPAGES\t\t\tEXCLUDABLE\tDESCRIPTION");
        assert_eq!(lines[1], "-".repeat(70));
        assert_eq!(lines[3], "NON_PRI_CACHE\t31510           \tyes\t\tCache pages without private flag");
        assert_eq!(lines[7], "KERN_DATA\t38961           \tno\t\tDumpable kernel data");
        assert_eq!(lines[9], "page size:\t\t4096            ");
        assert_eq!(lines[10], "Total pages on system:\t142084          ");
        assert_eq!(lines[11], "Total size on system:\t581976064        Byte");
    }

    #[test]
    fn the_crash_kernels_memory_is_found_in_iomem() {
        let iomem = "\
00000000-00000fff : Reserved
00100000-bfffffff : System RAM
  27000000-2effffff : Crash kernel
  00000000-00000000 : Crash kernel
100000000-23fffffff : System RAM
  220000000-22fffffff : Crash kernel
";
        assert_eq!(crash_kernel(iomem), [(0x2700_0000, 0x2f00_0000), (0x2_2000_0000, 0x2_3000_0000)]);
        assert!(crash_kernel("nonsense\n : Crash kernel\n").is_empty());
    }
}
