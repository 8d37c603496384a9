//! `coresift info`.

use super::ask::{self, Questions};
use crate::exit::{self, Exit};
use crate::failure::Failing;
use crate::{output, text};
use coresift_engine::lone_part;
use coresift_format::codec::Codec;
use coresift_format::kdump::{DescriptorCounts, KdumpFile};
use coresift_format::{ElfCore, FileBytes, FormatError, Input, PageSize};
use coresift_kernel::{Kernel, NoteCpus, VmcoreInfo, field};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Say what a dump is and what it holds
///
/// Reads headers, bitmaps and page descriptors, not the pages. An incomplete or
/// damaged dump is described as far as it goes, and one that ended early or is
/// damaged ends with exit code 3 or 4; a script looks at that, or at `complete` of
/// --json.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    questions: Questions,
    /// An ELF core or a kdump-compressed file, flattened or not; or the parts of a
    /// split set
    #[arg(required = true, verbatim_doc_comment)]
    dump: Vec<PathBuf>,
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift info /var/crash/vmcore
  coresift info --json vmcore | jq .complete
  coresift info --symbol schedule --symbol ffffffff81000123 vmcore
  coresift info --struct page --struct task_struct.pid vmcore

{}",
        exit::HELP
    )
}

pub fn run(args: &Args) -> Exit {
    if args.questions.any() {
        return ask::run(&args.questions, &args.dump, args.json);
    }
    match Info::read(&args.dump) {
        Ok(info) if args.json => output::print_json(&info, info.exit()),
        Ok(info) => output::print(&info.text(), info.exit()),
        Err(error) => Failing::new(&args.dump, args.json).format(error),
    }
}

/// Memory ranges shown as text; JSON has them all.
const RANGES_SHOWN: usize = 16;

/// What the descriptors of all files of a dump say.
fn counts(files: &[KdumpFile]) -> Option<DescriptorCounts> {
    files.iter().map(KdumpFile::count_descriptors).reduce(|mut all, more| {
        all.add(&more);
        all
    })
}

/// What a dump is and holds. In JSON any field may be absent in a later version; null is "not said by the file".
#[derive(Debug, Serialize)]
struct Info {
    file: String,
    file_bytes: u64,
    /// `elf` or `kdump`.
    container: &'static str,
    /// Header version of a kdump-compressed file.
    version: Option<u32>,
    flattened: bool,
    /// Whether the dump holds all that it promises.
    complete: bool,
    /// Whether its writer marked it as ended early.
    marked_incomplete: bool,
    /// What is wrong with the file, although it can be read.
    problems: Vec<String>,
    /// Whether that is more than an early end.
    #[serde(skip)]
    damaged: bool,
    machine: String,
    kernel: KernelInfo,
    /// Seconds since 1970.
    crash_time: Option<i64>,
    cpus: u32,
    page_size: u64,
    /// Dump level that the file records.
    level: Option<i32>,
    /// Codecs that the header of a kdump-compressed file names.
    compression: Option<String>,
    /// First page frame number, and one more than the last, of a part of a split set.
    part: Option<[u64; 2]>,
    /// Number of this part, counted from 1, and of all parts, where the part tells.
    part_number: Option<[u32; 2]>,
    /// Of a part that was read without the others, which it is.
    lone_part: Option<String>,
    /// Number of parts read together.
    parts: usize,
    pages: Pages,
    /// What is not sure about pages without data.
    hole_note: Option<String>,
    /// Physical addresses of memory, start and end.
    ranges: Vec<[u64; 2]>,
}

#[derive(Debug, Default, Serialize)]
struct KernelInfo {
    release: Option<String>,
    version: Option<String>,
    machine: Option<String>,
    node: Option<String>,
    /// Why the rest is not known.
    problem: Option<String>,
    /// The cpu that each register note is of, in the order of the notes: null for a note that is no cpu's or could be several's. Null
    /// as a whole where the kernel does not tell (before Linux 6.0).
    register_notes: Option<Vec<Option<u32>>>,
}

#[derive(Debug, Default, Serialize)]
struct Pages {
    /// Page frame numbers the dump speaks of.
    total: u64,
    /// Of those, RAM.
    ram: u64,
    /// Of those, with data in the file.
    stored: u64,
    /// Stored pages by codec.
    codecs: Vec<CodecRow>,
    /// Stored pages of an ELF core that are zeros without data.
    holes: u64,
    /// Pages that should be stored, but were not written before the dump ended,
    unwritten: u64,
    /// or lie beyond the end of the file,
    beyond_end: u64,
    /// or have a descriptor that cannot be true,
    damaged: u64,
    /// or one that the operating system cannot read.
    unreadable: u64,
}

#[derive(Debug, Serialize)]
struct CodecRow {
    codec: &'static str,
    pages: u64,
}

impl Info {
    fn read(paths: &[PathBuf]) -> Result<Self, FormatError> {
        let mut input = match paths {
            [path] => Input::salvage(Arc::new(FileBytes::open(path)?))?,
            parts => Input::open_parts(parts)?,
        };
        let text = input.vmcoreinfo().map(<[u8]>::to_vec);
        let vmcoreinfo = text.as_deref().map(VmcoreInfo::parse).unwrap_or_default();
        let mut problems: Vec<String> = input.problems().iter().map(ToString::to_string).collect();
        let damaged = input.problems().iter().any(|problem| !matches!(problem, FormatError::CutShort { .. }));
        if let Some(page) = vmcoreinfo.text("PAGESIZE").and_then(|v| v.parse().ok()).and_then(PageSize::new) {
            problems.extend(input.set_page_size(page).err().map(|error| error.to_string()));
        }
        let counts = counts(input.kdump_files());
        let pages = Pages::of(&input, counts.as_ref());
        let header = input.kdump_header();
        let crash_time = header
            .map(|(header, _)| header.tv_sec)
            .filter(|seconds| *seconds > 0)
            .or_else(|| vmcoreinfo.text("CRASHTIME").and_then(|v| v.parse().ok()));
        let lost = pages.unwritten + pages.beyond_end + pages.damaged + pages.unreadable;
        let lone_part = lone_part(&input);
        let page_size = input.memory().page_size().bytes() as u64;
        let damaged = damaged || pages.damaged + pages.unreadable > 0;
        Ok(Self {
            file: input.name().to_owned(),
            file_bytes: input.file_len(),
            container: input.container().name(),
            version: header.map(|(header, _)| header.header_version),
            flattened: input.flattened(),
            complete: !input.incomplete()
                && input.truncated().is_none()
                && lost == 0
                && lone_part.is_none()
                && !cut(&input),
            marked_incomplete: input.incomplete(),
            problems,
            damaged,
            machine: input.machine().to_string(),
            kernel: KernelInfo::of(&input, text.as_deref(), &vmcoreinfo),
            crash_time,
            cpus: input.cpus(),
            page_size,
            level: input.level(),
            compression: header.map(|(header, _)| codecs_named(header.status)),
            part: input.as_kdump().and_then(|file| file.part()).map(|part| [part.start.0, part.end.0]),
            part_number: input.as_kdump().and_then(|file| file.identity()).map(|known| [known.index + 1, known.count]),
            lone_part,
            parts: if input.as_kdump().is_some() { 0 } else { input.kdump_files().len() },
            pages,
            hole_note: input.as_elf().and_then(ElfCore::hole_note),
            ranges: input
                .memory()
                .ram()
                .all_runs()
                .map(|(start, end)| [start.0.saturating_mul(page_size), end.0.saturating_mul(page_size)])
                .collect(),
        })
    }

    const fn exit(&self) -> Exit {
        match (self.damaged, self.complete) {
            (true, _) => Exit::Damaged,
            (false, false) => Exit::Incomplete,
            (false, true) => Exit::Ok,
        }
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let unknown = || "not said".to_owned();
        let mut row = |name: &str, value: String| {
            let _infallible = writeln!(out, "{name:<13} {value}");
        };
        row("File", format!("{} ({})", self.file, text::bytes(self.file_bytes)));
        row("Format", self.format());
        row("Complete", if self.complete { "yes".into() } else { self.incompleteness() });
        for problem in &self.problems {
            row("Problem", problem.clone());
        }
        if !self.complete || !self.problems.is_empty() {
            row("Next", self.next());
        }
        row("Kernel", self.kernel.release.clone().unwrap_or_else(unknown));
        for (name, value) in
            [("  version", &self.kernel.version), ("  node", &self.kernel.node), ("  note", &self.kernel.problem)]
        {
            if let Some(value) = value {
                row(name, value.clone());
            }
        }
        row("Machine", self.kernel.machine.clone().unwrap_or_else(|| self.machine.clone()));
        row("Crash time", self.crash_time.map_or_else(unknown, |seconds| format!("{} UTC", text::utc(seconds))));
        row("CPUs", if self.cpus == 0 { unknown() } else { self.cpus.to_string() });
        if let Some(notes) = self.kernel.register_notes.as_ref().filter(|notes| !notes.is_empty()) {
            row("", format!("registers of {}", cpus_named(notes)));
        }
        if let Some(level) = self.level {
            row("Dump level", level.to_string());
        }
        if let Some(compression) = &self.compression {
            row("Compression", compression.clone());
        }
        if let Some([start, end]) = self.part {
            let number = self.part_number.map_or_else(String::new, |[number, count]| format!("{number} of {count}, "));
            row("Part", format!("{number}pfn {start:#x} to {end:#x} of a split set"));
        }
        if self.parts > 0 {
            row("Parts", format!("{} of a split set, read as one", self.parts));
        }
        row("Page size", text::bytes(self.page_size));
        row("Pages", format!("{:>14} up to the highest", text::count(self.pages.total)));
        row("", format!("{:>14} of memory ({})", text::count(self.pages.ram), self.size_of(self.pages.ram)));
        row("", format!("{:>14} in the dump ({})", text::count(self.pages.stored), self.size_of(self.pages.stored)));
        if self.pages.holes > 0 {
            row("", format!("{:>14} of them without data", text::count(self.pages.holes)));
        }
        for codec in &self.pages.codecs {
            row("", format!("{:>14} {}", text::count(codec.pages), stored_as(codec.codec)));
        }
        if let Some(note) = &self.hole_note {
            row("  note", note.clone());
        }
        row("Memory", format!("{} ranges", self.ranges.len()));
        for [start, end] in self.ranges.iter().take(RANGES_SHOWN) {
            row("", format!("{start:#014x} to {end:#014x}  {}", text::bytes(end - start)));
        }
        if self.ranges.len() > RANGES_SHOWN {
            row("", format!("and {} more, all of them with --json", self.ranges.len() - RANGES_SHOWN));
        }
        out
    }

    fn format(&self) -> String {
        let flattened = if self.flattened { ", flattened" } else { "" };
        match self.version {
            Some(version) => format!("kdump-compressed version {version}{flattened}"),
            None => format!("ELF core{flattened}"),
        }
    }

    /// What to do about a dump that is not all there.
    fn next(&self) -> String {
        if self.lone_part.is_some() {
            return "name all parts; `coresift join PART... OUT` makes one file of them".to_owned();
        }
        let (parts, part) = if self.parts > 0 { ("PART...", "PART") } else { (&*self.file, &*self.file) };
        format!("`coresift verify {parts}` reads every page; `coresift repair {part} OUT` makes an openable dump")
    }

    fn incompleteness(&self) -> String {
        let Pages { unwritten, beyond_end, damaged, unreadable, .. } = self.pages;
        let lost = [
            (unwritten, "never written"),
            (beyond_end, "beyond the end of the file"),
            (damaged, "damaged"),
            (unreadable, "that the system cannot read"),
        ];
        let lost: String = lost
            .iter()
            .filter(|(pages, _)| *pages > 0)
            .map(|(pages, why)| format!("; {} pages {why}", text::count(*pages)))
            .collect();
        let marked = if self.marked_incomplete { "; marked as ended early" } else { "" };
        let part = self.lone_part.as_ref().map_or_else(String::new, |part| format!("; {part}"));
        format!("no{marked}{lost}{part}")
    }

    fn size_of(&self, pages: u64) -> String {
        text::bytes(pages.saturating_mul(self.page_size))
    }
}

/// Whether the file ends before all that it should have.
fn cut(input: &Input) -> bool {
    input.problems().iter().any(|problem| matches!(problem, FormatError::CutShort { .. }))
}

impl Pages {
    fn of(input: &Input, counts: Option<&DescriptorCounts>) -> Self {
        let memory = input.memory();
        let mut pages = Self {
            total: memory.max_pfn().0,
            ram: memory.ram().len(),
            stored: memory.stored().len(),
            holes: memory.known_zero().len(),
            beyond_end: input.as_elf().map_or(0, |core| core.beyond_end().len()),
            damaged: input.as_elf().map_or(0, |core| core.damaged().len()),
            ..Self::default()
        };
        if let Some(counts) = counts {
            pages.codecs = Codec::ALL
                .iter()
                .map(|codec| CodecRow { codec: codec.name(), pages: counts.of(*codec) })
                .filter(|row| row.pages > 0)
                .collect();
            // The bitmap promises more than the file holds when its writer was stopped.
            pages.stored = pages.stored.saturating_sub(counts.lost());
            pages.unwritten = counts.unwritten;
            pages.beyond_end = counts.beyond_end;
            pages.damaged = counts.damaged;
            pages.unreadable = counts.unreadable;
        }
        pages
    }
}

impl KernelInfo {
    /// From the utsname in the kernel's memory, else from the header, else from VMCOREINFO.
    fn of(input: &Input, text: Option<&[u8]>, vmcoreinfo: &VmcoreInfo) -> Self {
        let kernel = text.map(|text| Kernel::open(input, text));
        let problem = match &kernel {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some("the dump has no VMCOREINFO".to_owned()),
        };
        let kernel = kernel.and_then(Result::ok);
        let notes = kernel.as_ref().and_then(|kernel| NoteCpus::find(kernel, input).ok()).map(|found| found.notes);
        let in_memory = kernel.map(|kernel| kernel.utsname);
        let of_header = input.kdump_header().map(|(header, _)| header.utsname.as_flattened());
        let uts = |index: usize| {
            let from = |utsname: &[u8]| Some(field(utsname, index)).filter(|text| !text.is_empty());
            in_memory.as_deref().and_then(|u| from(u)).or_else(|| of_header.and_then(from))
        };
        // Members of struct new_utsname: sysname, nodename, release, version, machine.
        let release = uts(2).or_else(|| vmcoreinfo.text("OSRELEASE").map(coresift_kernel::printable));
        Self { release, version: uts(3), machine: uts(4), node: uts(1), problem, register_notes: notes }
    }
}

/// The cpus of register notes, in words.
fn cpus_named(notes: &[Option<u32>]) -> String {
    let unknown = notes.iter().filter(|cpu| cpu.is_none()).count();
    let known: Vec<String> = notes.iter().flatten().map(u32::to_string).collect();
    match (known.len(), unknown) {
        (_, 0) => format!("cpu {}", known.join(", ")),
        (0, _) => "cpus that cannot be told apart".to_owned(),
        _ => format!("cpu {}, and {unknown} that cannot be told apart", known.join(", ")),
    }
}

/// The codecs whose bits are set in a header's `status`.
fn codecs_named(status: u32) -> String {
    let names: Vec<&str> = Codec::ALL
        .iter()
        .filter(|codec| codec.flag() != 0 && status & codec.flag() != 0)
        .map(|codec| codec.name())
        .collect();
    if names.is_empty() { "none".into() } else { names.join("+") }
}

fn stored_as(codec: &str) -> String {
    if codec == "none" { "as they are".into() } else { format!("compressed with {codec}") }
}
