//! `coresift pages diff`.

mod frames;

use super::failure::{self, PagesError};
use super::input::{self, Input};
use super::table::{Table, heading};
use super::{DIMENSIONS, Dimension, columns, name, object};
use crate::exit::{self, Exit};
use crate::output;
use crate::text::{bytes, count};
use coresift_census::{Counts, Provenance, Value};
use frames::{Compared, compare};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Show what changed between two snapshots or dumps, or since one
///
/// By class, cgroup, file and slab cache, what grew or shrank most first; and how many
/// frames went from one class to another. Without B, A is compared with this machine.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// How many of each to show
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    number: usize,
    /// Print JSON, with all that changed
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: input::Reading,
    /// A snapshot or a dump
    a: PathBuf,
    /// A later one
    b: Option<PathBuf>,
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift pages diff before.parquet
  coresift pages diff -n 20 before.parquet after.parquet

{}",
        exit::HELP
    )
}

/// What is compared.
fn subjects() -> Vec<Dimension> {
    DIMENSIONS.into_iter().filter(|d| ["class", "cgroup", "file", "slab"].contains(&d.name)).collect()
}

/// A side of the comparison.
#[derive(Serialize)]
struct Side<'a> {
    provenance: &'a Provenance,
    page_size: u64,
    pages: u64,
}

impl<'a> Side<'a> {
    fn new(input: &'a Input, counts: &Counts) -> Self {
        Self { provenance: input.provenance(), page_size: input.page_size(), pages: counts.pages() }
    }
}

/// The result as JSON.
#[derive(Serialize)]
struct Json<'a> {
    a: Side<'a>,
    b: Side<'a>,
    changes: BTreeMap<&'static str, Vec<serde_json::Map<String, serde_json::Value>>>,
    frames: &'a Compared,
}

/// Pages of a group in A and in B.
type Change = (Vec<Value>, u64, u64);

pub fn run(args: &Args) -> Exit {
    let inputs: Vec<PathBuf> = std::iter::once(&args.a).chain(&args.b).cloned().collect();
    match diff(args) {
        Ok(exit) => exit,
        Err(error) => failure::tell(error, &inputs, args.json),
    }
}

fn diff(args: &Args) -> Result<Exit, PagesError> {
    let a = Input::open(std::slice::from_ref(&args.a), &args.reading)?.quiet();
    let b = Input::open(args.b.as_slice(), &args.reading)?.quiet();
    let (compared, counts_a, counts_b) = compare(&a, &b, &columns(&subjects()))?;
    let changes = subjects().into_iter().map(|subject| {
        let of = |counts: &Counts, input: &Input| counts.only(subject.columns).rows(input.names());
        (subject, changes(&of(&counts_a, &a), &of(&counts_b, &b)))
    });
    if args.json {
        let json = Json {
            a: Side::new(&a, &counts_a),
            b: Side::new(&b, &counts_b),
            changes: changes
                .map(|(subject, rows)| (subject.name, rows.iter().map(|r| row(subject, r)).collect()))
                .collect(),
            frames: &compared,
        };
        return Ok(output::print_json(&json, Exit::Ok));
    }
    let mut out = format!("A: {}B: {}", heading(&a, counts_a.pages()), heading(&b, counts_b.pages()));
    for (subject, rows) in changes {
        out.push_str(&told(subject, &rows, args.number, b.page_size()));
    }
    out.push_str(&moved(&compared, args.number, b.page_size()));
    Ok(output::print(&out, Exit::Ok))
}

/// What is not the same in both, the largest change first.
fn changes(a: &BTreeMap<Vec<Value>, u64>, b: &BTreeMap<Vec<Value>, u64>) -> Vec<Change> {
    let mut both: BTreeMap<&Vec<Value>, (u64, u64)> = a.iter().map(|(values, pages)| (values, (*pages, 0))).collect();
    for (values, pages) in b {
        both.entry(values).or_default().1 = *pages;
    }
    let changed = both.into_iter().filter(|(_, (a, b))| a != b);
    let mut changes: Vec<Change> = changed.map(|(values, (a, b))| (values.clone(), a, b)).collect();
    changes.sort_by_key(|(_, a, b)| std::cmp::Reverse(a.abs_diff(*b)));
    changes
}

fn row(subject: Dimension, (values, a, b): &Change) -> serde_json::Map<String, serde_json::Value> {
    let mut row = object(subject.columns, values);
    row.insert("a_pages".into(), (*a).into());
    row.insert("b_pages".into(), (*b).into());
    row
}

fn told(subject: Dimension, rows: &[Change], number: usize, page_size: u64) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(subject.columns.iter().map(|id| name(*id)), ["A", "B", "pages", "bytes"]);
    for (values, a, b) in rows.iter().take(number) {
        let sign = if a > b { '-' } else { '+' };
        let change = a.abs_diff(*b);
        let size = bytes(change.saturating_mul(page_size));
        let numbers = [count(*a), count(*b), format!("{sign}{}", count(change)), format!("{sign}{size}")];
        table.row(values.iter().map(Value::to_string), numbers);
    }
    let more = rows.len().saturating_sub(number);
    let more = if more == 0 { String::new() } else { format!("({} more)\n", count(more as u64)) };
    format!("\n{}{more}", table.text())
}

fn moved(compared: &Compared, number: usize, page_size: u64) -> String {
    let mut out = format!(
        "\n{} frames are of another class in B, {} are only in A, {} only in B\n",
        count(compared.changed()),
        count(compared.only_a),
        count(compared.only_b)
    );
    if !compared.moves.is_empty() {
        let mut table = Table::new(["from", "to"], ["pages", "bytes"]);
        for one in compared.moves.iter().take(number) {
            let numbers = [count(one.pages), bytes(one.pages.saturating_mul(page_size))];
            table.row([one.from.to_owned(), one.to.to_owned()], numbers);
        }
        out.push_str(&table.text());
    }
    out
}
