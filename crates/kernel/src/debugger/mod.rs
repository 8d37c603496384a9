//! What a debugger reads before it has answered anything: a walk along the same pointers, each step by its name.
//!
//! ```text
//! STEPS ─> Walker ─ KernelReader ─> Recorder ─> the dump's memory
//!                                      └─> the page frames of each step, page tables on the way among them
//! ```
//!
//! Used twice: to write these pages first, and to tell whether a dump has them. What is walked was learned by watching crash 9 and
//! drgn 0.2 open dumps of Linux 6.1 to 7.2. What the walk does not find is written later than it could be, and nothing else: no page is left
//! out because of it.

mod recorder;
mod system;
mod tasks;
mod unwind;
mod walker;

use crate::error::KernelError;
use crate::kernel::Kernel;
use crate::symbols::Wanted;
use coresift_format::{Pfn, PhysicalMemory};
use recorder::Recorder;
use walker::{Walker, Work};

/// What all steps ask for.
pub(crate) const WANTED: &[&Wanted] = &[&system::WANTED, &tasks::WANTED, &unwind::WANTED];

/// How the walk looks at memory that leads nowhere further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Only where it is, which takes a few ms at the most.
    Addresses,
    /// All of it, as a debugger would: a page that is not there is an error of its step.
    Contents,
}

/// How soon a debugger needs a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// To open the dump at all, to show the kernel log, and what the cpus were doing.
    Open,
    /// To list tasks and their stacks.
    Tasks,
}

/// How a step ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// All of it was found.
    Whole,
    /// Parts of it are not there: the first, which says what and where, and how many.
    Broken {
        /// What was not there first.
        first: Box<KernelError>,
        /// How many parts were not.
        count: u64,
    },
    /// The dump does not say where it is: a symbol, type or key is missing.
    Unknown(Box<KernelError>),
}

/// One step of the walk.
#[derive(Clone, Debug)]
pub struct Step {
    /// What a debugger is after.
    pub name: &'static str,
    /// How soon it needs it.
    pub need: Need,
    /// How it ended.
    pub outcome: Outcome,
    /// How many things it found: cpus, nodes, modules, tasks. `None` for a step that counts none.
    pub found: Option<u64>,
    /// The page frames it touched that no step before it did, ascending.
    pub pages: Vec<Pfn>,
}

/// A step: its name, how soon it is needed, and what does it.
type Row = (&'static str, Need, fn(&mut Walker<'_>) -> Work);

/// In the order in which a debugger does them, nearly.
const STEPS: &[Row] = &[
    ("kernel version", Need::Open, system::version),
    ("kernel variables", Need::Open, system::variables),
    ("cpus", Need::Open, system::cpus),
    ("memory nodes", Need::Open, system::nodes),
    ("memory sections", Need::Open, system::sections),
    ("kernel log", Need::Open, system::log),
    ("modules", Need::Open, system::modules),
    ("memory blocks", Need::Open, system::memory_blocks),
    ("interrupt stacks", Need::Open, tasks::interrupt_stacks),
    ("running tasks", Need::Open, tasks::running),
    ("unwind tables of running tasks", Need::Open, unwind::of_stacks),
    ("code of modules", Need::Tasks, system::module_code),
    ("tasks", Need::Tasks, tasks::all),
    ("unwind tables", Need::Tasks, unwind::of_stacks),
    ("slab caches", Need::Tasks, system::slab_caches),
];

/// Walks all steps in `memory`.
#[must_use]
pub fn walk(kernel: &Kernel, memory: &dyn PhysicalMemory, reading: Reading) -> Vec<Step> {
    let recorder = Recorder::new(memory);
    let mut walker = Walker::new(kernel, &recorder, reading);
    let step = |(name, need, take): &Row| {
        let (outcome, found) = walker.step(*take);
        Step { name, need: *need, outcome, found, pages: recorder.take() }
    };
    STEPS.iter().map(step).collect()
}
