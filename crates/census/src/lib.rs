//! Page frames as a table, one schema whether they are a live machine's or a dump's.
//!
//! ```text
//! live: /proc/iomem ─> ranges ─ /proc/kpageflags, kpagecount, kpagecgroup ┐
//! dump: memory map ranges ─ struct page ──────────────────────────────────┴─> Frames (a window of rows, by pfn)
//!     Frames, on all threads ─ walk(shape) ─> parts, in order ─ walk(take) ─> table file, Counts, picture
//! a table's file ─ TableFile ─> Frames, a batch at a time
//! ```

mod blocks;
mod counts;
pub mod dump;
mod error;
mod frames;
mod kpf;
pub mod live;
mod names;
mod schema;
mod source;
pub mod table;
mod walk;
mod zones;

pub use blocks::{BlockCounts, ByClass};
pub use counts::{Counts, Value};
pub use error::{CensusError, Result};
pub use frames::{Cell, Column, Frames, Mapping, NULL_INT, NULL_LONG};
pub use kpf::Kpf;
pub use names::{NameId, Names};
pub use schema::{COLUMNS, ColumnId, Definition, Encoding, Kind, every_column};
pub use source::{FrameReader, Missing, Provenance, Source};
pub use walk::walk;
