//! Opens the dump as a debugger would, and says what it would miss first.

use super::structure::Verdict;
use super::witness::Effort;
use crate::error::EngineError;
use crate::explain::Explainer;
use coresift_format::{Input, Pfn, ReadError};
use coresift_kernel::debugger::{Need, Outcome, Reading, Step, walk};
use coresift_kernel::debuginfo::{DebugFile, open_kernel, open_kernel_by_memory};
use coresift_kernel::{Kernel, KernelError};
use serde::Serialize;

/// What a debugger finds in the dump.
#[derive(Debug, Serialize)]
pub struct DebuggerView {
    /// The kernel's release.
    pub release: Option<String>,
    /// Why nothing is found.
    pub problem: Option<String>,
    /// Step by step.
    pub steps: Vec<DebuggerStep>,
    /// Why the dump's own symbols (kallsyms) could not be read, by which the steps look: a debugger that has vmlinux may find more.
    pub without_symbols: Option<String>,
}

/// One thing a debugger is after.
#[derive(Debug, Serialize)]
pub struct DebuggerStep {
    /// What.
    pub name: &'static str,
    /// Whether it is needed to open the dump at all, or to list tasks.
    pub need: &'static str,
    /// How good this part of the dump is.
    pub verdict: Verdict,
    /// How many there are: cpus, memory nodes, modules, tasks.
    pub found: Option<u64>,
    /// Pages this step read and no step before it.
    pub pages: u64,
    /// How many parts are missing.
    pub missing: u64,
    /// The first part that is missing, or why the step could not be done.
    pub first: Option<String>,
    /// The page frame of it, and the rule by which the dump lacks that.
    pub pfn: Option<u64>,
    /// The rule.
    pub rule: Option<String>,
}

/// The kernel of the dump, or why it is not understood: with [`Effort::AllPages`] also by what its memory has of its VMCOREINFO, where
/// that of the notes is damaged.
///
/// # Errors
/// `debug` is of another kernel.
pub(crate) fn kernel(
    input: &Input,
    debug: Option<&DebugFile>,
    effort: Effort,
) -> Result<Result<Kernel, KernelError>, EngineError> {
    match open_kernel(input, debug) {
        Err(error @ KernelError::OtherKernel(_)) => Err(EngineError::Kernel { file: input.name().to_owned(), error }),
        Err(error) => {
            let by_memory = (effort == Effort::AllPages).then(|| open_kernel_by_memory(input)).flatten();
            Ok(by_memory.ok_or(error))
        }
        Ok((kernel, _)) => Ok(Ok(kernel)),
    }
}

/// Walks the dump.
pub(super) fn view(input: &Input, kernel: Result<Kernel, KernelError>) -> DebuggerView {
    let kernel = match kernel {
        Ok(kernel) => kernel,
        Err(error) => {
            let problem = Some(error.to_string());
            return DebuggerView { release: None, problem, steps: Vec::new(), without_symbols: None };
        }
    };
    let steps = walk(&kernel, input.memory(), Reading::Contents);
    // Only where something is missing: names of page flags out of a vmlinux take a second. What could not be found for explanations is
    // of no interest to the first missing page.
    let mut explainer = None;
    let mut rule = |pfn| {
        let explainer = explainer.get_or_insert_with(|| Explainer::new(input, Some(&kernel), &mut Vec::new()));
        Some(explainer.rule(pfn))
    };
    DebuggerView {
        release: Some(kernel.release.clone()),
        problem: None,
        steps: steps.iter().map(|step| row(step, &mut rule)).collect(),
        without_symbols: kernel.symbols.as_ref().err().map(ToString::to_string),
    }
}

fn row(step: &Step, rule: &mut dyn FnMut(Pfn) -> Option<String>) -> DebuggerStep {
    let mut row = DebuggerStep {
        name: step.name,
        need: match step.need {
            Need::Open => "open",
            Need::Tasks => "tasks",
        },
        verdict: Verdict::Good,
        found: step.found,
        pages: step.pages.len() as u64,
        missing: 0,
        first: None,
        pfn: None,
        rule: None,
    };
    match &step.outcome {
        Outcome::Whole => {}
        Outcome::Unknown(error) => row.first = Some(error.to_string()),
        Outcome::Broken { first, count } => {
            row.missing = *count;
            row.first = Some(first.to_string());
            // An address that the kernel did not map is no fault of the dump.
            if let KernelError::Read { purpose, addr, source } = &**first {
                row.verdict = Verdict::Incomplete;
                row.first = Some(format!("{purpose} at {addr}"));
                row.pfn = page_of(source).map(|pfn| pfn.0);
                row.rule = Some(page_of(source).and_then(rule).unwrap_or_else(|| source.to_string()));
            }
        }
    }
    row
}

const fn page_of(error: &ReadError) -> Option<Pfn> {
    match error {
        ReadError::Excluded { pfn, .. }
        | ReadError::Truncated { pfn, .. }
        | ReadError::Io { pfn, .. }
        | ReadError::Corrupt { pfn, .. } => Some(*pfn),
        ReadError::NotPresent { .. } => None,
    }
}
