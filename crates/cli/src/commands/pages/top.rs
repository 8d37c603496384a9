//! `coresift pages top`.

use super::failure::{self, PagesError};
use super::input::{self, Input};
use super::summary::rows;
use super::table::{Table, heading};
use super::{Dimension, columns, name, object};
use crate::exit::{self, Exit};
use crate::output;
use crate::text::{bytes, count, percent};
use clap::ValueEnum;
use coresift_census::{CensusError, Provenance, Value};
use serde::Serialize;

/// Show which cgroups, files or slab caches have the most memory
///
/// Memory that is there is counted, by whom it is charged to or belongs to. The files of
/// a live machine are known only where the source tells them.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// How many to show
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    number: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: input::Reading,
    /// What to compare
    #[arg(value_name = "WHAT", default_value = "cgroups")]
    subject: Subject,
    #[command(flatten)]
    files: input::Files,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
    Cgroups,
    Files,
    Slabs,
}

impl Subject {
    fn dimension(self) -> Result<Dimension, String> {
        Dimension::named(match self {
            Self::Cgroups => "cgroup",
            Self::Files => "file",
            Self::Slabs => "slab",
        })
    }
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift pages top
  coresift pages top slabs -n 20 vmcore
  coresift pages top files --json before.parquet

{}",
        exit::HELP
    )
}

/// The result as JSON.
#[derive(Serialize)]
struct Json<'a> {
    provenance: &'a Provenance,
    page_size: u64,
    pages: u64,
    /// Pages of those that are not shown.
    other_pages: u64,
    /// Pages of which it is not known, or that belong to none.
    none_pages: u64,
    top: Vec<serde_json::Map<String, serde_json::Value>>,
}

pub fn run(args: &Args) -> Exit {
    match top(args) {
        Ok(exit) => exit,
        Err(error) => failure::tell(error, &args.files.input, args.json),
    }
}

fn top(args: &Args) -> Result<Exit, PagesError> {
    let input = Input::open(&args.files.input, &args.reading)?;
    let dimension = args.subject.dimension().map_err(|why| CensusError::Output(std::io::Error::other(why)))?;
    let columns = columns(&[dimension]);
    let (counts, missing) = input.count(&columns)?;
    input::tell_missing(missing);
    let whole = counts.pages();
    let nothing = |(values, _): &(Vec<Value>, u64)| values.iter().all(|value| *value == Value::Null);
    let (none, mut known): (Vec<_>, Vec<_>) = rows(&counts, &input).into_iter().partition(nothing);
    if known.is_empty() {
        input.tell_unknown();
    }
    let others = known.split_off(args.number.min(known.len()));
    let sum = |rows: &[(Vec<Value>, u64)]| rows.iter().map(|(_, pages)| pages).sum::<u64>();
    let size = |pages: u64| pages.saturating_mul(input.page_size());
    if args.json {
        let shown = known.iter().map(|(values, pages)| {
            let mut group = object(&columns, values);
            group.insert("pages".into(), (*pages).into());
            group.insert("bytes".into(), size(*pages).into());
            group
        });
        let json = Json {
            provenance: input.provenance(),
            page_size: input.page_size(),
            pages: whole,
            other_pages: sum(&others),
            none_pages: sum(&none),
            top: shown.collect(),
        };
        return Ok(output::print_json(&json, Exit::Ok));
    }
    let mut table = Table::new(columns.iter().map(|id| name(*id)), ["pages", "bytes", "share"]);
    let numbers = |pages| [count(pages), bytes(size(pages)), format!("{:.1} %", percent(pages, whole))];
    for (values, pages) in &known {
        table.row(values.iter().map(Value::to_string), numbers(*pages));
    }
    if !others.is_empty() {
        table.row([format!("({} more)", count(others.len() as u64))], numbers(sum(&others)));
    }
    table.row(["(none)".to_owned()], numbers(sum(&none)));
    Ok(output::print(&(heading(&input, whole) + "\n" + &table.text()), Exit::Ok))
}
