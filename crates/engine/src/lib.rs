//! Which pages of a dump to keep, and how they get out. Knows no command line and prints nothing.
//!
//! ```text
//! Input ──kernel──> page classes ──plan──> PageSet + order ──pipeline──> batches, in order ──sink──> dump file
//!                                                                             └──────> Report
//! ```

mod batches;
mod bitmap;
mod budget;
mod checks;
mod descriptors;
mod dump;
mod error;
mod observer;
mod options;
mod pipeline;
mod plan;
mod report;
mod scan;
mod selection;
mod source;
mod target;
mod writer;

pub use budget::usable_cpus;
pub use dump::{dump, dump_input};
pub use error::EngineError;
pub use observer::{Event, Observer, Silent, Stage};
pub use options::{DumpOptions, Exclusion, Target};
pub use report::{CheckRow, ClassRow, GuardRow, Report, StageRow, UnreadableRun};
