//! What a run found and did, for people and as JSON.

use coresift_kernel::{DumpLevel, PageClass};
use serde::Serialize;
use std::path::PathBuf;

/// The outcome of a dump. Any field may be absent in a later version; numbers of pages are page frames of `page_size` bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The input file.
    pub input: String,
    /// Its container: `elf`, `kdump`, with `flattened ` before it where it is wrapped.
    pub container: String,
    /// The kind of file written: `kdump` or `elf`.
    pub format: String,
    /// What only an ELF core has.
    pub elf: Option<ElfRow>,
    /// The crashed kernel's release, where known.
    pub release: Option<String>,
    /// The dump level recorded in the file.
    pub level: u8,
    /// The codec, as the command line names it.
    pub compression: String,
    /// With `auto`: how often each codec was chosen.
    pub chosen: Vec<ChosenRow>,
    /// Page size in bytes.
    pub page_size: u64,
    /// Page frame numbers the dump speaks of: `max_mapnr`.
    pub total_pages: u64,
    /// Page frames that exist as RAM.
    pub ram_pages: u64,
    /// RAM pages of the input whose bytes were not in it (left out by an earlier filtering or without file data).
    pub absent_pages: u64,
    /// Pages with a descriptor in the output, or in a program header of an ELF core.
    pub kept_pages: u64,
    /// Kept pages that are filled with zeros: they share one stored page, or most have no data in an ELF core.
    pub zero_pages: u64,
    /// Kept pages, zeros not counted, that share the stored bytes of another page of the same content.
    pub shared_pages: u64,
    /// Pages of the memory map left out because they describe no kept page.
    pub unused_map_pages: u64,
    /// Pages that could not be read, and were left out.
    pub unreadable_pages: u64,
    /// The first of them, with the reason.
    pub unreadable: Vec<UnreadableRun>,
    /// Those that are not among the first.
    pub unreadable_more: u64,
    /// A row for each page class.
    pub classes: Vec<ClassRow>,
    /// Pages of an excluded class that were kept because something essential lives in them.
    pub guard: Vec<GuardRow>,
    /// Our counts beside the kernel's own.
    pub checks: Vec<CheckRow>,
    /// Time and amount of each stage.
    pub stages: Vec<StageRow>,
    /// Bytes read from the input.
    pub bytes_in: u64,
    /// Bytes passed to write, rewritten headers included.
    pub bytes_out: u64,
    /// Wall time of the whole run, in seconds.
    pub seconds: f64,
    /// Worker threads.
    pub threads: usize,
    /// Peak resident memory in bytes, and the budget it was to stay in.
    pub peak_memory: u64,
    /// The memory budget in bytes.
    pub memory_budget: u64,
    /// Size of the file, in bytes.
    pub file_bytes: u64,
    /// Whether nothing was written: all of this is what a run would do.
    pub dry_run: bool,
    /// The kernel log that was saved first, where that was asked for.
    pub log: Option<LogRow>,
    /// A row for each part of a split set; none for a single file.
    pub parts: Vec<PartRow>,
    /// Whether the file holds all it should.
    pub complete: bool,
    /// Of a dry run, whether the target's file system has room for the file.
    pub space: Option<SpaceRow>,
    /// What ended the run early.
    pub ended: Option<String>,
    /// Attempts whose dump did not fit, made before this one.
    pub attempts: Vec<AttemptRow>,
    /// Things a user should know: evidence that was missing, options that did not apply.
    pub notes: Vec<String>,
}

impl Report {
    /// RAM pages of a class that this run leaves out, or that the recorded level says an earlier run left out; 0 for a class that is
    /// kept.
    #[must_use]
    pub fn of_excluded(&self, class: PageClass) -> u64 {
        let before = DumpLevel::new(self.level).is_some_and(|level| level.excluded().has(class));
        let row = self.classes.iter().find(|row| row.name == class.name());
        row.filter(|row| row.excluded || before).map_or(0, |row| row.pages)
    }

    /// Pages left out because of their class.
    #[must_use]
    pub fn excluded(&self, class: PageClass) -> u64 {
        self.classes.iter().find(|row| row.name == class.name() && row.excluded).map_or(0, |row| row.excluded_pages)
    }
}

/// What the file of a dry run needs, and what there is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SpaceRow {
    /// Bytes of blocks that would be written: less than the file's size where that has holes.
    pub needed: u64,
    /// Free bytes.
    pub free: u64,
    /// Whether it fits.
    pub fits: bool,
}

/// One attempt whose dump did not fit the target.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptRow {
    /// Its dump level.
    pub level: u8,
    /// Why it ended.
    pub ended: String,
    /// Pages that were to be written.
    pub pages: u64,
    /// Pages that were.
    pub kept_pages: u64,
    /// Size the file had then, in bytes.
    pub file_bytes: u64,
    /// Bytes passed to write.
    pub bytes_out: u64,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// The kernel log, saved in a file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogRow {
    /// The file.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Whether all of the log is in it.
    pub complete: bool,
    /// What is wrong with the log, or why it was not saved.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// One part of a split set.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PartRow {
    /// The file.
    #[serde(serialize_with = "crate::names::serialize")]
    pub path: PathBuf,
    /// First page frame number,
    pub start_pfn: u64,
    /// and one more than the last.
    pub end_pfn: u64,
    /// Pages it has a descriptor for.
    pub pages: u64,
    /// Bytes passed to write.
    pub bytes: u64,
    /// What went wrong with it.
    pub failed: Option<String>,
}

/// What was decided about the pages of an ELF core beyond their class.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ElfRow {
    /// PT_LOAD program headers.
    pub segments: u64,
    /// Kept pages that are zeros in a program header without data.
    pub hole_pages: u64,
}

/// One codec that `auto` chose.
#[derive(Clone, Debug, Serialize)]
pub struct ChosenRow {
    /// The codec and level, as the command line names them.
    pub compression: String,
    /// Batches of pages.
    pub batches: u64,
}

/// One page class: how many, whether left out, and by what evidence it is told.
#[derive(Clone, Debug, Serialize)]
pub struct ClassRow {
    /// The class's name.
    pub name: &'static str,
    /// RAM pages of the class.
    pub pages: u64,
    /// Whether this run leaves the class out.
    pub excluded: bool,
    /// Pages of it that were left out by this run.
    pub excluded_pages: u64,
    /// What the class is told by; `None` where evidence is missing and the class is therefore kept.
    pub evidence: Option<String>,
}

/// One kind of protected memory.
#[derive(Clone, Debug, Serialize)]
pub struct GuardRow {
    /// `kernel image`, `page tables`, `per-cpu areas`, `mem_map`.
    pub what: &'static str,
    /// Pages of this kind.
    pub pages: u64,
    /// How many of them would have been left out.
    pub saved: u64,
}

/// One comparison with a counter of the crashed kernel.
#[derive(Clone, Debug, Serialize)]
pub struct CheckRow {
    /// What is compared.
    pub what: &'static str,
    /// What the page classes give, in pages.
    pub found: u64,
    /// What the kernel's counter says, in pages.
    pub kernel: u64,
    /// Whether they differ by more than a few percent.
    pub warning: bool,
}

/// One stage of the run.
#[derive(Clone, Debug, Serialize)]
pub struct StageRow {
    /// `understand` (headers, page tables, symbols), `find pages`, `find zeros` (for ELF), `copy pages`.
    pub name: &'static str,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Page frames handled.
    pub pages: u64,
    /// Input bytes read in the stage.
    pub bytes: u64,
}

/// Neighbouring pages that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct UnreadableRun {
    /// First page frame number.
    pub pfn: u64,
    /// Number of pages.
    pub pages: u64,
    /// What the system or the format said.
    pub reason: String,
}
