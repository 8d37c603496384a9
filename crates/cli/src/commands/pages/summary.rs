//! `coresift pages summary`.

mod prometheus;

use super::failure::{self, PagesError};
use super::input::{self, Input};
use super::new_file::{NewFile, Readers};
use super::table::{Table, heading};
use super::{DIMENSIONS, Dimension, columns, name, object};
use crate::exit::{self, Exit};
use crate::output;
use crate::text::{bytes, count, percent};
use coresift_census::table::{SMALL, small_table};
use coresift_census::{CensusError, Counts, Missing, Provenance, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// Count page frames by what they are
///
/// The counts add up to System RAM. A value that the source does not tell is `-`.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// What to count by, several with commas between: class, zone, node, order,
    /// cgroup, flags, slab, mapping, file
    /// [default: class; with --prometheus class,zone,node,order]
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = Dimension::named, verbatim_doc_comment)]
    by: Vec<Dimension>,
    /// Print JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print metrics for the textfile collector of Prometheus' node_exporter
    #[arg(long)]
    prometheus: bool,
    /// Print to FILE, which has its name only when it is complete
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the small table too: pages by class, slab cache, order, node, zone,
    /// mapping and cgroup, in Parquet
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    parquet: Option<PathBuf>,
    /// Overwrite FILE when it exists
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    reading: input::Reading,
    #[command(flatten)]
    files: input::Files,
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift pages summary
  coresift pages summary --by class,cgroup --json
  coresift pages summary --prometheus -fo /var/lib/node_exporter/pages.prom
  coresift pages summary --parquet summary.parquet

{}",
        exit::HELP
    )
}

/// What Prometheus gets unless it is asked for more: few series, whatever runs on the machine.
const BOUNDED: [&str; 4] = ["class", "zone", "node", "order"];

impl Args {
    fn by(&self) -> Vec<Dimension> {
        let default: &[&str] = if self.prometheus { &BOUNDED } else { &["class"] };
        match self.by.as_slice() {
            [] => DIMENSIONS.into_iter().filter(|d| default.contains(&d.name)).collect(),
            asked => asked.to_vec(),
        }
    }
}

pub fn run(args: &Args) -> Exit {
    match summarize(args) {
        Ok(exit) => exit,
        Err(error) => failure::tell(error, &args.files.input, args.json),
    }
}

fn summarize(args: &Args) -> Result<Exit, PagesError> {
    let input = Input::open(&args.files.input, &args.reading)?;
    // Both are begun before the frames are read, so that a name that cannot be had costs nothing.
    let small = args.parquet.as_ref().map(|path| NewFile::create(path, args.force, Readers::Owner)).transpose()?;
    let printed = args.output.as_ref().map(|path| NewFile::create(path, args.force, Readers::Umask)).transpose()?;
    let by = args.by();
    let asked = columns(&by);
    // One pass counts for both.
    let mut all = asked.clone();
    if small.is_some() {
        all.extend(SMALL.into_iter().filter(|id| !asked.contains(id)));
    }
    let (counts, missing) = input.count(&all)?;
    input::tell_missing(missing);
    if let Some(mut file) = small {
        small_table(&counts, input.names(), input.provenance(), missing, &mut file)?;
        file.finish()?;
    }
    let summary = Summary { input: &input, by: &by, rows: rows(&counts.only(&asked), &input), missing };
    if summary.lacks_a_column() {
        input.tell_unknown();
    }
    let text = if args.prometheus {
        prometheus::text(&summary)
    } else if args.json {
        serde_json::to_string_pretty(&summary.json()).map_err(|e| CensusError::Output(e.into()))? + "\n"
    } else {
        summary.text()
    };
    match printed {
        None => Ok(output::print(&text, Exit::Ok)),
        Some(mut file) => {
            file.write_all(text.as_bytes()).map_err(CensusError::Output)?;
            file.finish()?;
            Ok(Exit::Ok)
        }
    }
}

/// The counts, most pages first.
pub fn rows(counts: &Counts, input: &Input) -> Vec<(Vec<Value>, u64)> {
    let rows: BTreeMap<_, _> = counts.rows(input.names());
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, pages)| std::cmp::Reverse(*pages));
    rows
}

/// What was counted.
struct Summary<'a> {
    input: &'a Input,
    by: &'a [Dimension],
    rows: Vec<(Vec<Value>, u64)>,
    missing: Missing,
}

impl Summary<'_> {
    fn pages(&self) -> u64 {
        self.rows.iter().map(|(_, pages)| pages).sum()
    }

    fn bytes(&self, pages: u64) -> u64 {
        pages.saturating_mul(self.input.page_size())
    }

    fn json(&self) -> Json<'_> {
        let columns = columns(self.by);
        let whole = self.pages();
        let group = |(values, pages): &(Vec<Value>, u64)| Group {
            values: object(&columns, values),
            pages: *pages,
            bytes: self.bytes(*pages),
            share: *pages as f64 / whole.max(1) as f64,
        };
        Json {
            provenance: self.input.provenance(),
            missing: self.missing,
            page_size: self.input.page_size(),
            pages: whole,
            bytes: self.bytes(whole),
            by: self.by.iter().map(|dimension| dimension.name).collect(),
            groups: self.rows.iter().map(group).collect(),
        }
    }

    /// Whether one of the columns has no value at all.
    fn lacks_a_column(&self) -> bool {
        (0..columns(self.by).len())
            .any(|i| self.rows.iter().all(|(values, _)| values.get(i).is_none_or(|value| *value == Value::Null)))
    }

    fn text(&self) -> String {
        let whole = self.pages();
        let columns = columns(self.by);
        let mut table = Table::new(columns.iter().map(|id| name(*id)), ["pages", "bytes", "share"]);
        let numbers = |pages| [count(pages), bytes(self.bytes(pages)), format!("{:.1} %", percent(pages, whole))];
        for (values, pages) in &self.rows {
            table.row(values.iter().map(Value::to_string), numbers(*pages));
        }
        table.row(["total".to_owned()], numbers(whole));
        heading(self.input, whole) + "\n" + &table.text()
    }
}

/// The summary as JSON.
#[derive(Serialize)]
struct Json<'a> {
    provenance: &'a Provenance,
    missing: Missing,
    page_size: u64,
    pages: u64,
    bytes: u64,
    by: Vec<&'static str>,
    groups: Vec<Group>,
}

#[derive(Serialize)]
struct Group {
    #[serde(flatten)]
    values: serde_json::Map<String, serde_json::Value>,
    pages: u64,
    bytes: u64,
    share: f64,
}
