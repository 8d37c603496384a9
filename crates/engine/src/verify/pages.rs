//! Reads every page a dump says it has, on all cpus.

use crate::budget::{WORKER_STACK, usable_cpus};
use crate::observer::{Observer, Stage};
use coresift_format::kdump::{Described, Loss};
use coresift_format::{Input, MemoryView, PageSet, Pfn, ReadError};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

/// Pages a thread takes at a time: 1 MiB of memory.
const BATCH: u64 = 256;
/// Problems that are listed; all are counted.
const LISTED: usize = 4096;
/// Ranges of bad pages that are collected before they are merged: 1 MiB of them.
const MERGE_AT: usize = 1 << 16;

/// Why a page cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Its descriptor was never written: the dump ended early.
    Unwritten,
    /// Its descriptor or its data lie beyond the end of the file, or in what a flattened stream lost.
    BeyondEnd,
    /// Its descriptor cannot be true.
    BadDescriptor,
    /// Its data are not what its codec makes.
    Undecodable,
    /// The operating system cannot read it.
    Unreadable,
}

impl Fault {
    /// Whether bytes of the file are wrong, rather than missing.
    #[must_use]
    pub const fn is_damage(self) -> bool {
        !matches!(self, Self::Unwritten | Self::BeyondEnd)
    }

    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unwritten => "never written",
            Self::BeyondEnd => "beyond the end of the file",
            Self::BadDescriptor => "with a descriptor that cannot be true",
            Self::Undecodable => "that cannot be decompressed",
            Self::Unreadable => "that the system cannot read",
        }
    }
}

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

/// Pages by how reading them went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounts {
    /// Pages the dump says it has.
    pub stored: u64,
    /// Pages whose bytes were read, or with `--quick` whose descriptors can be true.
    pub sound: u64,
    /// [`Fault::Unwritten`].
    pub unwritten: u64,
    /// [`Fault::BeyondEnd`].
    pub beyond_end: u64,
    /// [`Fault::BadDescriptor`].
    pub bad_descriptor: u64,
    /// [`Fault::Undecodable`].
    pub undecodable: u64,
    /// [`Fault::Unreadable`].
    pub unreadable: u64,
}

impl PageCounts {
    /// Each fault with the number of its pages.
    #[must_use]
    pub const fn faults(&self) -> [(Fault, u64); 5] {
        [
            (Fault::Unwritten, self.unwritten),
            (Fault::BeyondEnd, self.beyond_end),
            (Fault::BadDescriptor, self.bad_descriptor),
            (Fault::Undecodable, self.undecodable),
            (Fault::Unreadable, self.unreadable),
        ]
    }

    /// Pages that cannot be read.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.faults().iter().map(|fault| fault.1).sum()
    }

    fn add(&mut self, fault: Fault, pages: u64) {
        *match fault {
            Fault::Unwritten => &mut self.unwritten,
            Fault::BeyondEnd => &mut self.beyond_end,
            Fault::BadDescriptor => &mut self.bad_descriptor,
            Fault::Undecodable => &mut self.undecodable,
            Fault::Unreadable => &mut self.unreadable,
        } += pages;
    }
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
}

impl PageCheck {
    /// Adds what another part of the same set gave.
    pub fn add(&mut self, other: Self) {
        let (a, b) = (&mut self.counts, other.counts);
        a.stored += b.stored;
        a.sound += b.sound;
        a.unwritten += b.unwritten;
        a.beyond_end += b.beyond_end;
        a.bad_descriptor += b.bad_descriptor;
        a.undecodable += b.undecodable;
        a.unreadable += b.unreadable;
        self.problems.extend(other.problems);
        self.bad = PageSet::from_ranges(self.bad.all_runs().chain(other.bad.all_runs()));
    }
}

/// Reads every stored page of `input` on up to `threads` threads, or, unless `read`, looks at descriptors only.
///
/// The outcome is the same for any number of threads. Memory: about 300 KiB a thread, and a bit for each bad page.
pub fn check(input: &Input, read: bool, threads: Option<NonZeroUsize>, observer: &dyn Observer) -> PageCheck {
    let memory = input.memory();
    let (stored, data) = (memory.stored().len(), memory.data());
    let total = data.len();
    let work = Mutex::new(Work { runs: Box::new(data.all_runs()), rest: None, done: 0 });
    let found = Mutex::new(Found::default());
    let threads = threads.map_or_else(usable_cpus, NonZeroUsize::get).max(1);
    let work_on = || {
        let mut reader = Reader { input, read, view: memory.view(), page: vec![0; memory.page_size().bytes()] };
        loop {
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
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
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
    let mut result = found.finish();
    result.counts.stored = stored + lost;
    result.counts.sound = result.counts.stored - result.counts.lost().min(result.counts.stored);
    result
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
                    let walked = file.each_descriptor(*start, *end, |page| {
                        if let Err((loss, error)) = &page.state {
                            push(&mut problems, self.problem(page.pfn, error, Some(&page), Some(*loss)));
                        }
                    });
                    if let Err(error) = walked {
                        let what = error.to_string();
                        push(
                            &mut problems,
                            PageProblem::plain(self.input, *start, end.0 - start.0, Fault::Unreadable, what),
                        );
                    }
                }
                (None, false) => {}
                (_, true) => {
                    for pfn in (start.0..end.0).map(Pfn) {
                        let addr = pfn.addr(self.input.memory().page_size());
                        if let Err(error) = self.view.read(addr, &mut self.page) {
                            let described = self.input.as_kdump().and_then(|file| file.describe(pfn).ok().flatten());
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
        let fault = match (loss, error) {
            (Some(Loss::Unwritten), _) => Fault::Unwritten,
            (Some(Loss::BeyondEnd), _) | (None, ReadError::Truncated { .. }) => Fault::BeyondEnd,
            (Some(Loss::BadDescriptor), _) => Fault::BadDescriptor,
            (None, ReadError::Io { .. }) => Fault::Unreadable,
            (None, _) => Fault::Undecodable,
        };
        let mut problem = PageProblem::plain(self.input, pfn, 1, fault, without_page(error));
        if let Some(page) = page {
            problem.descriptor = Some(page.at);
            if fault != Fault::Unwritten {
                (problem.data, problem.size, problem.flags) =
                    (Some(page.desc.offset), Some(page.desc.size), Some(page.desc.flags));
            }
        }
        problem
    }
}

impl PageProblem {
    fn plain(input: &Input, pfn: Pfn, pages: u64, fault: Fault, what: String) -> Self {
        let address = pfn.addr(input.memory().page_size()).0;
        Self { pfn: pfn.0, pages, address, fault, descriptor: None, data: None, size: None, flags: None, what }
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

/// Adds a problem, joined to the one before where both are the same. Pages that cannot be decompressed stay apart: each is another
/// damaged place.
fn push(problems: &mut Vec<PageProblem>, problem: PageProblem) {
    match problems.last_mut() {
        Some(last)
            if last.fault == problem.fault
                && last.pfn + last.pages == problem.pfn
                && problem.fault != Fault::Undecodable =>
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
        self.bad = PageSet::from_ranges(self.bad.all_runs().chain(self.ranges.drain(..)));
    }

    fn finish(mut self) -> PageCheck {
        self.merge();
        self.problems.sort_by_key(|p| p.pfn);
        self.problems.truncate(LISTED);
        let mut joined = Vec::new();
        for problem in self.problems {
            push(&mut joined, problem);
        }
        PageCheck { counts: self.counts, problems: joined, bad: self.bad }
    }
}
