//! Reads every page a dump says it has, on all cpus.

use super::fault::{Fault, PageCounts};
use crate::budget::{WORKER_STACK, usable_cpus};
use crate::observer::{Observer, Stage};
use crate::stop::Stop;
use coresift_format::kdump::{Described, KdumpFile, Loss, Places, TableFit, TableLook};
use coresift_format::{Input, MemoryView, PageSet, Pfn, ReadError};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

/// Pages a thread takes at a time: 1 MiB of memory.
const BATCH: u64 = 256;
/// Problems that are listed; all are counted.
const LISTED: usize = 4096;
/// Ranges of bad pages that are collected before they are merged: 1 MiB of them. Merging goes through the chunks of bad pages, whatever
/// their number.
const MERGE_AT: usize = 1 << 16;

/// Neighbouring pages that cannot be read for the same reason, and the first of them in detail.
#[derive(Clone, Debug, Serialize)]
pub struct PageProblem {
    /// First page frame number.
    pub pfn: u64,
    /// Number of pages.
    pub pages: u64,
    /// Physical address of the first.
    pub address: u64,
    /// Why.
    pub fault: Fault,
    /// File offset of the first one's descriptor, in a kdump-compressed file.
    pub descriptor: Option<u64>,
    /// File offset of its data, where the descriptor tells.
    pub data: Option<u64>,
    /// Bytes of its data.
    pub size: Option<u32>,
    /// Its codec flag.
    pub flags: Option<u32>,
    /// What is wrong with it, in words.
    pub what: String,
}

/// What reading the pages gave.
#[derive(Debug, Default)]
pub struct PageCheck {
    /// How many went how.
    pub counts: PageCounts,
    /// The first problems by page frame number, neighbours with the same fault at once.
    pub problems: Vec<PageProblem>,
    /// All pages that cannot be read.
    pub bad: PageSet,
    /// Whether the 2nd bitmap and the descriptors agree, and codecs; nothing for an ELF core.
    pub table: Option<TableLook>,
    /// Where the data of pages lie, if that was looked at.
    pub places: Option<Places>,
}

impl PageCheck {
    /// Adds what another part of the same set gave.
    pub fn add(&mut self, other: Self) {
        self.counts.add_all(&other.counts);
        self.problems.extend(other.problems);
        self.bad = PageSet::united([&self.bad, &other.bad].into_iter());
    }
}

/// What of the pages is looked at.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Their data are read and decompressed; otherwise only descriptors are read.
    pub data: bool,
    /// The places of their data are compared.
    pub places: bool,
    /// Threads; `None`: one for each usable cpu.
    pub threads: Option<NonZeroUsize>,
}

/// Looks at every stored page of `input`. `None` where `stop` ended it.
///
/// The outcome is the same for any number of threads. Memory: about 300 KiB a thread, a bit for each bad page, and what
/// [`KdumpFile::places`] takes.
///
/// [`KdumpFile::places`]: coresift_format::kdump::KdumpFile::places
pub fn check(input: &Input, look: &Look, stop: &Stop, observer: &dyn Observer) -> Option<PageCheck> {
    let memory = input.memory();
    let table = input.as_kdump().map(KdumpFile::look_at_table);
    let mut found = Found::default();
    if let Some(what) = table.and_then(|table| misfit(table.fit)) {
        for (start, end) in memory.stored().all_runs() {
            found.add(vec![PageProblem::plain(input, start, end.0 - start.0, Fault::Unassigned, what.clone())]);
        }
    } else {
        found = read_all(input, look, stop, observer);
    }
    if stop.scanning().is_some() {
        return None;
    }
    // Lost pages of an ELF core are not among the stored ones.
    let mut lost = 0;
    if let Some(core) = input.as_elf() {
        let cut = format!("they should be beyond the end of the file at {}", input.file_len());
        let torn = "the program header has lost where their data are (p_filesz)".to_owned();
        for (set, fault, what) in
            [(core.beyond_end(), Fault::BeyondEnd, cut), (core.damaged(), Fault::BadDescriptor, torn)]
        {
            lost += set.len();
            for (start, end) in set.all_runs() {
                found.add(vec![PageProblem::plain(input, start, end.0 - start.0, fault, what.clone())]);
            }
        }
    }
    let mut places = None;
    if look.places
        && let Some(file) = input.as_kdump()
        && table.is_some_and(|table| table.fit == TableFit::Fits)
    {
        found.merge();
        let seen = file.places(&found.bad);
        if seen.doubtful() {
            contested(input, file, &seen, &mut found);
        }
        places = Some(seen);
    }
    let mut result = found.finish();
    (result.table, result.places) = (table, places);
    result.counts.stored = memory.stored().len() + lost;
    result.counts.sound = result.counts.stored - result.counts.lost().min(result.counts.stored);
    Some(result)
}

/// How the 2nd bitmap and the descriptors disagree, in words.
pub fn misfit(fit: TableFit) -> Option<String> {
    match fit {
        TableFit::Fits => None,
        TableFit::MoreDescriptors(more) => Some(format!(
            "the file has at least {more} descriptors more than the 2nd bitmap has bits, so which page a descriptor is of is not known"
        )),
        TableFit::FewerDescriptors(real) => Some(format!(
            "the file has {real} descriptors only, and the 2nd bitmap more bits, so which page a descriptor is of is not known"
        )),
    }
}

/// Adds the pages whose data may be another's.
fn contested(input: &Input, file: &KdumpFile, places: &Places, found: &mut Found) {
    let mut problems = Vec::new();
    let bad = found.bad.clone();
    file.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
        if page.state.is_ok() && places.in_doubt(page.pfn, page.desc) && !bad.contains(page.pfn) {
            let what = "its data overlap those of another page, or may be those of a page whose descriptor is wrong"
                .to_owned();
            let problem = PageProblem::plain(input, page.pfn, 1, Fault::Contested, what);
            problems.push(problem.described(&page));
        }
        if problems.len() >= LISTED {
            found.add(std::mem::take(&mut problems));
        }
    });
    found.add(problems);
}

/// Reads every stored page, or its descriptor only.
fn read_all(input: &Input, look: &Look, stop: &Stop, observer: &dyn Observer) -> Found {
    let memory = input.memory();
    let data = memory.data();
    let total = data.len();
    let work = Mutex::new(Work { runs: Box::new(data.all_runs()), rest: None, done: 0 });
    let found = Mutex::new(Found::default());
    let threads = look.threads.map_or_else(usable_cpus, NonZeroUsize::get).max(1);
    let work_on = || {
        let page = vec![0; memory.page_size().bytes()];
        let mut reader = Reader { input, read: look.data, view: memory.view(), page };
        while stop.scanning().is_none() {
            let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((batch, done)) = next else { break };
            let problems = reader.read(&batch);
            observer.progress(Stage::CheckPages, done, total);
            if !problems.is_empty() {
                found.lock().unwrap_or_else(PoisonError::into_inner).add(problems);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let thread = std::thread::Builder::new().name("check pages".to_owned()).stack_size(WORKER_STACK);
            // Where no more threads can be had, this one does it.
            let _fewer = thread.spawn_scoped(scope, work_on);
        }
        work_on();
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What is left to do.
struct Work<'a> {
    runs: Box<dyn Iterator<Item = (Pfn, Pfn)> + Send + 'a>,
    rest: Option<(Pfn, Pfn)>,
    done: u64,
}

impl Iterator for Work<'_> {
    /// Ranges of up to [`BATCH`] pages together, and the number of pages given out so far.
    type Item = (Vec<(Pfn, Pfn)>, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let mut batch = Vec::new();
        let mut room = BATCH;
        while room > 0 {
            let Some((start, end)) = self.rest.take().or_else(|| self.runs.next()) else { break };
            let stop = end.min(start.plus(room));
            batch.push((start, stop));
            room -= stop.0 - start.0;
            self.rest = (stop < end).then_some((stop, end));
        }
        self.done += BATCH - room;
        (!batch.is_empty()).then_some((batch, self.done))
    }
}

struct Reader<'a> {
    input: &'a Input,
    read: bool,
    view: Box<dyn MemoryView + 'a>,
    page: Vec<u8>,
}

impl Reader<'_> {
    fn read(&mut self, batch: &[(Pfn, Pfn)]) -> Vec<PageProblem> {
        let mut problems: Vec<PageProblem> = Vec::new();
        for (start, end) in batch {
            match (self.input.as_kdump(), self.read) {
                (Some(file), false) => {
                    file.each_descriptor(*start, *end, |page| {
                        if let Err((loss, error)) = &page.state {
                            push(&mut problems, self.problem(page.pfn, error, Some(&page), Some(*loss)));
                        }
                    });
                }
                (None, false) => {}
                (_, true) => {
                    for pfn in (start.0..end.0).map(Pfn) {
                        let addr = pfn.addr(self.input.memory().page_size());
                        if let Err(error) = self.view.read(addr, &mut self.page) {
                            let described = self.input.as_kdump().and_then(|file| file.describe(pfn));
                            let loss = described.as_ref().and_then(|d| d.state.as_ref().err()).map(|e| e.0);
                            push(&mut problems, self.problem(pfn, &error, described.as_ref(), loss));
                        }
                    }
                }
            }
        }
        problems
    }

    fn problem(&self, pfn: Pfn, error: &ReadError, page: Option<&Described>, loss: Option<Loss>) -> PageProblem {
        let fault = Fault::of(loss, error);
        let problem = PageProblem::plain(self.input, pfn, 1, fault, without_page(error));
        match page {
            Some(page) => problem.described(page),
            None => problem,
        }
    }
}

impl PageProblem {
    fn plain(input: &Input, pfn: Pfn, pages: u64, fault: Fault, what: String) -> Self {
        let address = pfn.addr(input.memory().page_size()).0;
        Self { pfn: pfn.0, pages, address, fault, descriptor: None, data: None, size: None, flags: None, what }
    }

    /// With what its descriptor says.
    fn described(mut self, page: &Described) -> Self {
        self.descriptor = Some(page.at);
        if self.fault != Fault::Unwritten {
            (self.data, self.size, self.flags) = (Some(page.desc.offset), Some(page.desc.size), Some(page.desc.flags));
        }
        self
    }
}

/// The error without the page it is about, which stands beside it.
fn without_page(error: &ReadError) -> String {
    match error {
        ReadError::Corrupt { what, .. } => what.clone(),
        ReadError::Io { error, .. } => error.to_string(),
        ReadError::Truncated { offset, len, .. } => {
            format!("it should be at file offset {offset}, beyond the end of the file at {len}")
        }
        other => other.to_string(),
    }
}

/// Adds a problem, joined to the one before where both are the same. Pages that are damaged one by one stay apart.
fn push(problems: &mut Vec<PageProblem>, problem: PageProblem) {
    match problems.last_mut() {
        Some(last)
            if last.fault == problem.fault && last.pfn + last.pages == problem.pfn && !problem.fault.is_single() =>
        {
            last.pages += problem.pages;
        }
        _ => problems.push(problem),
    }
}

/// The problems of all threads.
#[derive(Default)]
struct Found {
    counts: PageCounts,
    /// The lowest ones, not in order.
    problems: Vec<PageProblem>,
    ranges: Vec<(Pfn, Pfn)>,
    bad: PageSet,
}

impl Found {
    fn add(&mut self, problems: Vec<PageProblem>) {
        for problem in &problems {
            self.counts.add(problem.fault, problem.pages);
            self.ranges.push((Pfn(problem.pfn), Pfn(problem.pfn).plus(problem.pages)));
        }
        if self.ranges.len() >= MERGE_AT {
            self.merge();
        }
        self.problems.extend(problems);
        // The lowest stay, whichever thread was first.
        if self.problems.len() >= 2 * LISTED {
            self.problems.sort_by_key(|p| p.pfn);
            self.problems.truncate(LISTED);
        }
    }

    fn merge(&mut self) {
        let more = PageSet::from_ranges(self.ranges.drain(..));
        self.bad = PageSet::united([&self.bad, &more].into_iter());
    }

    fn finish(mut self) -> PageCheck {
        self.merge();
        self.problems.sort_by_key(|p| p.pfn);
        self.problems.truncate(LISTED);
        let mut joined = Vec::new();
        for problem in self.problems {
            push(&mut joined, problem);
        }
        PageCheck { counts: self.counts, problems: joined, bad: self.bad, table: None, places: None }
    }
}
