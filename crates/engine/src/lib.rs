//! Which pages of a dump to keep, and how they get out. Knows no command line and prints nothing.
//!
//! ```text
//! Input ──kernel──> page classes ──plan──> PageSet + order ──pipeline──> batches, in order ──sink──> dump file
//!                                                                             └──────> Report
//! ```

mod auto;
mod batches;
mod bitmap;
mod budget;
mod checks;
mod decide;
mod dedup;
mod descriptors;
mod dump;
mod elf_early;
mod elf_pages;
mod elf_segments;
mod elf_writer;
mod error;
mod explain;
mod file_writer;
mod holes;
mod join;
mod lock;
mod log;
mod merge;
mod names;
mod observer;
mod options;
mod pipeline;
mod plan;
mod repair;
mod report;
mod room;
mod scan;
mod selection;
mod source;
mod split;
mod stop;
mod target;
mod unflatten;
mod verify;
mod watched;
mod weigh;
mod worker;
mod writer;

pub use budget::usable_cpus;
pub use dump::{dump, dump_input, dump_set, usage};
pub use error::EngineError;
pub use explain::{
    Explanation, Explanations, Failed, InFile, InKernel, State, Subject, UnknownSubject, explain, explain_set,
};
pub use join::{JoinOptions, Joined, JoinedPart, join};
#[cfg(feature = "measure")]
pub use lock::{LockTimes, lock_times};
pub use log::{open_log_file, write_log};
pub use names::{path_text, same_file};
pub use observer::{Event, Observer, Silent, Stage};
pub use options::{Choice, ChoiceError, DumpOptions, Exclusion, Format, StreamFrom, StreamTo, Target, UnknownFormat};
pub use repair::{Repair, RepairOptions, repair};
pub use report::{
    AttemptRow, CheckRow, ChosenRow, ClassRow, ElfRow, GuardRow, LogRow, PartRow, Report, SpaceRow, StageRow,
    UnreadableRun,
};
pub use stop::{Stop, StopReason};
pub use target::Full;
pub use unflatten::{LostPages, LostRange, UnflattenOptions, Unflattened, unflatten};
pub use verify::{
    Check, DebuggerStep, DebuggerView, Fault, PageCounts, PageProblem, Verdict, Verification, VerifyOptions, lone_part,
    verify, verify_set,
};
