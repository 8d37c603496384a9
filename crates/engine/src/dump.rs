//! A dump, from the input's name to the report.

use crate::batches::{BATCH_BYTES, Batches};
use crate::budget::{Budget, peak_memory, usable_cpus};
use crate::checks;
use crate::error::EngineError;
use crate::observer::{Event, Observer};
use crate::options::{DumpOptions, Exclusion, Target};
use crate::pipeline::{Copied, copy};
use crate::plan::Plan;
use crate::report::{Report, StageRow, UnreadableRun};
use crate::target::{Output, WriteFailed};
use crate::writer::{Metadata, Writer};
use coresift_format::kdump::{
    Abi, Header, HeaderLayout, Layout, MAX_VERSION, STATUS_EXCLUDED_VMEMMAP, STATUS_INCOMPLETE, SubHeader,
};
use coresift_format::{Bits, Container, Field, Input, Machine, Pfn};
use coresift_kernel::{ClassSet, DumpLevel, FoundInfo, Kernel, PageClass};
use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// Makes a dump of `input` at `target`.
///
/// # Errors
/// The input cannot be understood, the target exists or cannot be opened, or writing failed; what was written by then is a
/// readable dump, marked incomplete.
pub fn dump(
    input: &Path,
    target: &Target,
    options: &DumpOptions,
    observer: &dyn Observer,
) -> Result<Report, EngineError> {
    let started = Instant::now();
    let Target::Path(path) = target;
    // Before the input, which may take long to open.
    Output::check(path, options.force)?;
    if same_file(input, path) {
        return Err(EngineError::TargetIsInput { path: path.clone() });
    }
    run(Input::open_with(input, options.map_input)?, target, options, observer, started)
}

fn same_file(one: &Path, other: &Path) -> bool {
    match (metadata(one), metadata(other)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// As [`dump`], of an input that is open already, for instance of bytes that are in no file.
///
/// # Errors
/// As [`dump`].
pub fn dump_input(
    input: Input,
    target: &Target,
    options: &DumpOptions,
    observer: &dyn Observer,
) -> Result<Report, EngineError> {
    run(input, target, options, observer, Instant::now())
}

fn run(
    input: Input,
    target: &Target,
    options: &DumpOptions,
    observer: &dyn Observer,
    started: Instant,
) -> Result<Report, EngineError> {
    let Target::Path(path) = target;
    Output::check(path, options.force)?;
    let source = Source::of(input, options, observer)?;
    let mut attempts = options.exclude.iter().peekable();
    let mut output = None;
    while let Some(asked) = attempts.next() {
        let exclusion = source.raise(*asked, observer);
        let mut run = Run::new(&source, options, exclusion, started);
        let plan = run.plan(observer)?;
        // The input is understood and the pages are found: only now is the target touched.
        let output = match &mut output {
            Some(open) => open,
            none => none.insert(Output::open(path, options.force, options.dry_run)?),
        };
        let kept = plan.keep.len();
        let failed = run.copy(plan, output, observer)?;
        let mut report = run.finish(output);
        let Some(failed) = failed else {
            report.complete = source.missing.is_none() && report.unreadable_pages == 0;
            return Ok(report);
        };
        if !failed.is_full() {
            return Err(EngineError::Write { path: path.clone(), offset: failed.offset, error: failed.error });
        }
        match attempts.peek() {
            Some(next) => observer.event(Event::Retry { level: next.level }),
            None => return Err(EngineError::NoSpace { path: path.clone(), kept, report: Box::new(report) }),
        }
    }
    Err(EngineError::NothingAsked)
}

/// The input and what is known about its kernel.
struct Source {
    input: Input,
    kernel: Option<Kernel>,
    /// VMCOREINFO that the input's notes lack, to be added to the output's.
    found_info: Option<Vec<u8>>,
    /// Why pages are missing from the input that no filtering left out.
    missing: Option<String>,
    notes: Vec<String>,
}

impl Source {
    fn of(input: Input, options: &DumpOptions, observer: &dyn Observer) -> Result<Self, EngineError> {
        let mut notes: Vec<String> = input.problems().iter().map(ToString::to_string).collect();
        let missing = missing_pages(&input);
        notes.extend(missing.iter().cloned());
        let needed = options.exclude.iter().any(|e| {
            let readable = e.classes.without(ClassSet::UNREADABLE);
            readable.iter().any(|class| class != PageClass::Zero)
        });
        let understood = FoundInfo::of(&input).and_then(|found| Ok((Kernel::open(&input, &found.text)?, found)));
        let (kernel, found_info) = match understood {
            Ok((kernel, found)) => {
                notes.extend(found.notes.iter().cloned());
                notes.extend(kernel.notes.iter().cloned());
                (Some(kernel), (input.vmcoreinfo_offset_in_notes().is_none()).then_some(found.text))
            }
            Err(e) if needed => return Err(e.into()),
            Err(e) => {
                notes.push(format!(
                    "all pages are kept, poisoned and offline ones too, for the kernel in the dump is not understood: {e}"
                ));
                let text = input.vmcoreinfo().filter(|_| input.vmcoreinfo_offset_in_notes().is_none());
                (None, text.map(<[u8]>::to_vec))
            }
        };
        for note in &notes {
            observer.event(Event::Note(note.clone()));
        }
        Ok(Self { input, kernel, found_info, missing, notes })
    }

    /// What was left out of the input before stays left out.
    fn raise(&self, asked: Exclusion, observer: &dyn Observer) -> Exclusion {
        let before = self.input.kdump_header().and_then(|(header, sub)| {
            let level = u8::try_from(sub.dump_level).ok().and_then(DumpLevel::new);
            level.filter(|_| header.header_version > 0)
        });
        let Some(before) = before else { return asked };
        let recorded = DumpLevel::new(asked.level.number() | before.number()).unwrap_or(asked.level);
        if recorded != asked.level {
            observer.event(Event::LevelRaised { asked: asked.level, input: before, recorded });
        }
        Exclusion { classes: asked.classes, level: recorded }
    }

    /// Notes for the output: the input's, and the VMCOREINFO found elsewhere. With it, the offset of the text in them.
    fn output_notes(&self) -> (Vec<u8>, Option<(u64, u64)>) {
        let mut notes = self.input.notes().to_vec();
        if let Some(text) = &self.found_info {
            notes.resize(notes.len().next_multiple_of(4), 0);
            let endian = self.input.byte_order();
            let name = *b"VMCOREINFO\0\0";
            for number in [11, text.len() as u64, 0] {
                let mut raw = [0; 4];
                endian.put(&mut raw, Field { at: 0, size: 4 }, number);
                notes.extend_from_slice(&raw);
            }
            notes.extend_from_slice(&name);
            let at = notes.len() as u64;
            notes.extend_from_slice(text);
            notes.resize(notes.len().next_multiple_of(4), 0);
            return (notes, Some((at, text.len() as u64)));
        }
        let at = self.input.vmcoreinfo_offset_in_notes();
        let len = self.input.vmcoreinfo().map_or(0, |t| t.len() as u64);
        (notes, at.map(|at| (at, len)))
    }

    fn layout(&self) -> HeaderLayout {
        self.input.kdump_layout().unwrap_or(HeaderLayout {
            abi: match self.input.bits() {
                Bits::B64 => Abi::Lp64,
                Bits::B32 if self.input.machine() == Machine::I386 => Abi::Ilp32Packed,
                Bits::B32 => Abi::Ilp32Padded,
            },
            endian: self.input.byte_order(),
        })
    }

    fn utsname(&self) -> [[u8; 65]; 6] {
        let mut utsname = [[0; 65]; 6];
        if let Some(kernel) = &self.kernel {
            for (field, raw) in utsname.iter_mut().zip(kernel.utsname.as_chunks::<65>().0) {
                *field = *raw;
            }
        } else if let Some((header, _)) = self.input.kdump_header() {
            utsname = header.utsname;
        } else if let Some(machine) = utsname.get_mut(4) {
            // Readers choose the architecture by it.
            for (to, from) in machine.iter_mut().take(64).zip(self.input.machine().to_string().bytes()) {
                *to = from;
            }
        }
        utsname
    }

    /// Seconds and microseconds of the crash: what an earlier dump recorded, else CRASHTIME, else 0.
    fn crash_time(&self) -> (i64, i64) {
        if let Some((header, _)) = self.input.kdump_header()
            && header.tv_sec != 0
        {
            return (header.tv_sec, header.tv_usec);
        }
        let time = self.kernel.as_ref().and_then(|k| k.info.plain_decimal("CRASHTIME").ok().flatten());
        (time.and_then(|t| i64::try_from(t).ok()).unwrap_or(0), 0)
    }
}

/// Why the input does not hold all that it should.
fn missing_pages(input: &Input) -> Option<String> {
    let cut = input.as_elf().map_or(0, |elf| elf.beyond_end().len());
    if cut > 0 {
        Some(format!(
            "the input ends early: {cut} pages lie beyond its end and are missing; get a whole copy if there is one"
        ))
    } else if input.truncated().is_some() {
        Some("the input is a flattened stream that was cut short; what it lost is missing".to_owned())
    } else {
        input.incomplete().then(|| "the input is itself marked incomplete; what it lacks is missing".to_owned())
    }
}

/// One attempt.
struct Run<'a> {
    source: &'a Source,
    options: &'a DumpOptions,
    exclusion: Exclusion,
    started: Instant,
    budget: Budget,
    report: Report,
}

impl<'a> Run<'a> {
    fn new(source: &'a Source, options: &'a DumpOptions, exclusion: Exclusion, started: Instant) -> Self {
        let input = &source.input;
        let memory = input.memory();
        let container = match input.container() {
            Container::Elf => "elf",
            Container::Kdump => "kdump",
        };
        let report = Report {
            input: input.name().to_owned(),
            container: if input.flattened() { format!("flattened {container}") } else { container.to_owned() },
            release: source.kernel.as_ref().map(|k| k.release.clone()),
            level: exclusion.level.number(),
            compression: options.compression.to_string(),
            page_size: memory.page_size().bytes() as u64,
            total_pages: memory.max_pfn().0,
            ram_pages: memory.ram().len(),
            absent_pages: memory.ram().len() - memory.stored().len(),
            notes: source.notes.clone(),
            ..Report::default()
        };
        Self { source, options, exclusion, started, budget: Budget::new(options.max_memory), report }
    }

    fn threads(&self, page_set: u64) -> usize {
        self.budget.threads(self.options.threads.unwrap_or_else(usable_cpus).max(1), page_set)
    }

    fn plan(&mut self, observer: &dyn Observer) -> Result<Plan, EngineError> {
        let memory = self.source.input.memory();
        let clock = Instant::now();
        let mut plan = match &self.source.kernel {
            Some(kernel) => Plan::filter(kernel, memory, self.exclusion.classes, self.threads(0), observer),
            None => Plan::keep_all(memory),
        };
        if let Some(kernel) = &self.source.kernel {
            let (rows, notes) = checks::compare(kernel, memory, &plan.classes);
            self.report.checks = rows;
            plan.notes.extend(notes);
        }
        for note in &plan.notes {
            observer.event(Event::Note(note.clone()));
        }
        self.stage("find pages", clock, memory.ram().len(), plan.bytes_in);
        self.report.notes.append(&mut plan.notes);
        self.report.classes = std::mem::take(&mut plan.classes);
        self.report.guard = std::mem::take(&mut plan.guard);
        let needed = Budget::needed(plan.memory());
        if self.budget.given && needed > self.budget.bytes {
            return Err(EngineError::Budget { budget: self.budget.bytes, needed });
        }
        Ok(plan)
    }

    /// Writes the planned pages; returns why it ended early, if it did.
    fn copy(
        &mut self,
        plan: Plan,
        output: &mut Output,
        observer: &dyn Observer,
    ) -> Result<Option<WriteFailed>, EngineError> {
        let input = &self.source.input;
        let memory = input.memory();
        let clock = Instant::now();
        let threads = self.threads(plan.memory());
        self.report.threads = threads;
        let max_mapnr = memory.max_pfn().0;
        let meta = self.metadata(max_mapnr, plan.keep.len())?;
        let writer = match Writer::begin(output, meta, memory.ram(), &plan.keep) {
            Ok(writer) => writer,
            Err(failed) => return Ok(Some(failed)),
        };
        let batches = Batches::new(&plan.keep, &plan.first, (BATCH_BYTES / memory.page_size().bytes()).max(1));
        let total = plan.keep.len();
        let (copied, writer) = copy(memory, batches, total, writer, self.options.compression, threads, observer)?;
        self.account(&copied);
        self.stage("copy pages", clock, copied.pages, copied.bytes_in);
        match (copied.failed, writer) {
            (None, Some(writer)) => {
                let complete = self.source.missing.is_none() && copied.lost_count == 0;
                Ok(writer.finish(complete).err())
            }
            (failed, _) => Ok(failed),
        }
    }

    fn metadata(&self, max_mapnr: u64, pages: u64) -> Result<Metadata, EngineError> {
        let source = self.source;
        let layout = source.layout();
        let page = source.input.memory().page_size();
        let (notes, info) = source.output_notes();
        let regions = Layout::new(page, layout.abi, notes.len() as u64, max_mapnr, pages)
            .ok_or(EngineError::TooLarge { max_mapnr, pages })?;
        let before = source.input.kdump_header();
        let (tv_sec, tv_usec) = source.crash_time();
        // Of an earlier dump's marks, only that it lacks memory map pages is still true.
        let status = before.map_or(0, |(h, _)| h.status & STATUS_EXCLUDED_VMEMMAP);
        let header = Header {
            header_version: MAX_VERSION,
            utsname: source.utsname(),
            tv_sec,
            tv_usec,
            status: status & !STATUS_INCOMPLETE | self.options.compression.codec.flag(),
            block_size: page.bytes() as u32,
            sub_hdr_size: regions.sub_hdr_size,
            bitmap_blocks: regions.bitmap_blocks,
            max_mapnr: u32::try_from(max_mapnr).unwrap_or(u32::MAX),
            nr_cpus: i32::try_from(source.input.cpus()).unwrap_or(i32::MAX),
            ..Header::default()
        };
        let (offset_vmcoreinfo, size_vmcoreinfo) = info.map_or((0, 0), |(at, len)| (regions.notes + at, len));
        let sub_header = SubHeader {
            phys_base: match (&source.kernel, before) {
                (Some(kernel), _) => kernel.phys_base,
                (None, Some((_, sub))) => sub.phys_base,
                (None, None) => 0,
            },
            dump_level: self.exclusion.level.number().into(),
            offset_vmcoreinfo,
            size_vmcoreinfo,
            offset_note: if notes.is_empty() { 0 } else { regions.notes },
            size_note: notes.len() as u64,
            max_mapnr_64: max_mapnr,
            ..SubHeader::default()
        };
        Ok(Metadata { layout, header, sub_header, notes, regions })
    }

    fn account(&mut self, copied: &Copied) {
        let report = &mut self.report;
        report.kept_pages = copied.pages;
        report.zero_pages = copied.zero;
        report.unreadable_pages = copied.lost_count;
        let mut lost = copied.lost.clone();
        lost.sort_by_key(|l| l.0);
        report.unreadable = neighbours(&lost);
        let excluded = self.exclusion.classes.has(PageClass::Zero);
        if let Some(row) = report.classes.iter_mut().find(|row| row.name == PageClass::Zero.name()) {
            row.pages = copied.zero;
            row.excluded_pages = if excluded { copied.zero } else { 0 };
        }
    }

    fn stage(&mut self, name: &'static str, clock: Instant, pages: u64, bytes: u64) {
        self.report.stages.push(StageRow { name, seconds: clock.elapsed().as_secs_f64(), pages, bytes });
        self.report.bytes_in += bytes;
    }

    fn finish(mut self, output: &Output) -> Report {
        self.report.bytes_out = output.written();
        self.report.seconds = self.started.elapsed().as_secs_f64();
        self.report.peak_memory = peak_memory();
        self.report.memory_budget = self.budget.bytes;
        self.report
    }
}

/// Joins neighbouring pages lost for the same reason.
fn neighbours(lost: &[(Pfn, String)]) -> Vec<UnreadableRun> {
    let mut runs: Vec<UnreadableRun> = Vec::new();
    for (pfn, reason) in lost {
        // The reason begins with the page's own number.
        let reason =
            reason.split_once(' ').and_then(|(_, rest)| rest.split_once(' ')).map_or(&**reason, |(_, rest)| rest);
        match runs.last_mut() {
            Some(run) if run.pfn + run.pages == pfn.0 && run.reason == reason => run.pages += 1,
            _ => runs.push(UnreadableRun { pfn: pfn.0, pages: 1, reason: reason.to_owned() }),
        }
    }
    runs
}
