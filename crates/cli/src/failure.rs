//! How a native command ends that has nothing to show: what it says, the JSON object it prints all the same, and its exit code.

use crate::cause;
use crate::exit::Exit;
use crate::output::{self, Results};
use coresift_engine::{EngineError, path_text};
use coresift_format::FormatError;
use coresift_kernel::KernelError;
use serde_json::json;
use std::error::Error;
use std::path::PathBuf;

/// What a command was to work on, and whether it prints JSON, and where.
#[derive(Clone, Copy)]
pub struct Failing<'a> {
    /// Its inputs.
    pub inputs: &'a [PathBuf],
    /// Where JSON goes, if it was asked for.
    pub json: Option<Results>,
}

impl<'a> Failing<'a> {
    /// Of a command that prints to the standard output.
    pub fn new(inputs: &'a [PathBuf], json: bool) -> Self {
        Self { inputs, json: json.then_some(Results::Stdout) }
    }

    /// Says what `error` is; the exit code that belongs to it.
    pub fn engine(self, error: &EngineError) -> Exit {
        self.tell(cause::chain(error).collect(), cause::advice(error), exit_of(error, self.inputs))
    }

    /// As [`Self::engine`], of an input that cannot be opened.
    pub fn format(self, error: FormatError) -> Exit {
        self.engine(&EngineError::Input(error))
    }

    /// As [`Self::engine`], of what a command asked the kernel in the dump, or its debug information.
    pub fn kernel(self, error: &KernelError, advice: Option<&'static str>) -> Exit {
        self.tell(cause::chain(error).collect(), advice, exit_of_kernel(error))
    }

    /// As [`Self::engine`], of one of these errors.
    pub fn any(self, error: Box<dyn Error>, advice: Option<&'static str>) -> Exit {
        match error.downcast::<FormatError>() {
            Ok(error) => self.format(*error),
            Err(error) => {
                let exit = error.downcast_ref().map_or(Exit::Failed, exit_of_kernel);
                self.tell(cause::chain(&*error).collect(), advice, exit)
            }
        }
    }

    /// Says `causes`, outermost first, and what to do next.
    pub fn tell(self, causes: Vec<String>, advice: Option<&str>, exit: Exit) -> Exit {
        if let Some(results) = self.json {
            let object = json!({
                "complete": false,
                "input": self.inputs.first().map(|path| path_text(path)),
                "error": causes.join(": "),
                "next": advice,
                "exit_code": exit as u8,
            });
            let _told = results.print_json(&object, exit);
        }
        output::complain_chain(causes.into_iter(), advice);
        exit
    }
}

/// The exit code of `error` about `inputs`. A damaged input is something else than one that cannot be read.
pub fn exit_of(error: &EngineError, inputs: &[PathBuf]) -> Exit {
    let empty = |file: &PathBuf| std::fs::metadata(file).is_ok_and(|file| file.is_file() && file.len() == 0);
    match error {
        // Of a transfer that failed at once.
        EngineError::Input(_) if inputs.iter().any(empty) => Exit::Damaged,
        EngineError::Input(
            FormatError::CutShort { .. } | FormatError::BadField { .. } | FormatError::Unknown { .. },
        ) => Exit::Damaged,
        EngineError::NoDump { .. } => Exit::Damaged,
        EngineError::Kernel { error, .. } => exit_of_kernel(error),
        EngineError::NoSpace { readable: true, .. }
        | EngineError::Stopped { readable: true, .. }
        | EngineError::Interrupted { readable: true, .. }
        | EngineError::Write { readable: true, .. } => Exit::Incomplete,
        _ => Exit::Failed,
    }
}

/// The exit code of an error about the kernel in the dump.
pub const fn exit_of_kernel(error: &KernelError) -> Exit {
    if matches!(error, KernelError::OtherKernel(_)) { Exit::OtherKernel } else { Exit::Failed }
}
