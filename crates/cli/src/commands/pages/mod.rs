//! `coresift pages`: page frames as a table, and what is asked of it most.
//!
//! ```text
//! a live machine | a dump ─ census::walk ──┐                        ┌─ snapshot: parquet, csv, jsonl
//! a snapshot's file ─ census::table reader ┴─ input: windows of rows ┼─ counts ─ summary, top, diff
//!                                                                    └─ blocks ─ map: svg
//! ```

mod diff;
mod failure;
mod input;
mod map;
mod new_file;
mod snapshot;
mod summary;
mod table;
mod top;

use crate::exit::Exit;
use clap::Subcommand;
use coresift_census::{ColumnId, Value};

/// List page frames of this machine, a dump or a snapshot
///
/// One row a page frame of System RAM, with its class (as `coresift dump` has them),
/// flags, counts, mapping, order, node, zone, cgroup and more, as far as the source
/// can tell. The columns are described in docs/page-table.md.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Snapshot(snapshot::Args),
    Summary(summary::Args),
    Top(top::Args),
    Diff(diff::Args),
    Map(map::Args),
}

pub fn run(args: &Args) -> Exit {
    match &args.command {
        Command::Snapshot(args) => snapshot::run(args),
        Command::Summary(args) => summary::run(args),
        Command::Top(args) => top::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Map(args) => map::run(args),
    }
}

/// Rows of a window: a row group of 128 Ki frames, 10 MiB of memory.
const WINDOW: u64 = 128 << 10;

/// What pages can be grouped by: the words of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dimension {
    name: &'static str,
    columns: &'static [ColumnId],
}

const DIMENSIONS: [Dimension; 9] = {
    use ColumnId as C;
    const fn row(name: &'static str, columns: &'static [ColumnId]) -> Dimension {
        Dimension { name, columns }
    }
    [
        row("class", &[C::Class]),
        row("zone", &[C::Zone]),
        row("node", &[C::Node]),
        row("order", &[C::Order]),
        row("cgroup", &[C::CgroupPath, C::Cgroup]),
        row("flags", &[C::Flags]),
        row("slab", &[C::Slab]),
        row("mapping", &[C::Mapping]),
        row("file", &[C::Path, C::Device, C::Inode]),
    ]
};

impl Dimension {
    fn named(text: &str) -> Result<Self, String> {
        let known = DIMENSIONS.iter().find(|d| d.name == text).copied();
        known.ok_or_else(|| format!("it is one of {}", DIMENSIONS.map(|d| d.name).join(", ")))
    }
}

/// The columns of `dimensions`, one after another.
fn columns(dimensions: &[Dimension]) -> Vec<ColumnId> {
    dimensions.iter().flat_map(|d| d.columns).copied().collect()
}

/// The name of a column.
fn name(id: ColumnId) -> &'static str {
    id.definition().map_or("", |definition| definition.name)
}

/// A group as an object of JSON: a field a column.
fn object(columns: &[ColumnId], values: &[Value]) -> serde_json::Map<String, serde_json::Value> {
    let json = |value: &Value| match value {
        Value::Null => serde_json::Value::Null,
        Value::Number(number) => (*number).into(),
        Value::Text(text) => serde_json::Value::from(&**text),
    };
    columns.iter().zip(values).map(|(id, value)| (name(*id).to_owned(), json(value))).collect()
}
