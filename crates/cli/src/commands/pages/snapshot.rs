//! `coresift pages snapshot`.

use super::failure::{self, PagesError};
use super::input::{self, Input};
use super::new_file::{NewFile, Readers};
use crate::exit::{self, Exit};
use crate::output;
use crate::text::{bytes, count};
use clap::ValueEnum;
use coresift_census::table::{Order, ParquetTable, TextFormat, TextTable};
use coresift_census::{CensusError, Frames, Missing, every_column};
use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

/// Write a row for each page frame
///
/// Parquet takes about 1.3 bytes a frame, and DuckDB, Polars, Spark and pandas read it.
/// The rows are the same for any number of threads, as far as the machine stands still.
/// The file has its name only when it is complete.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// The file to write; - is the standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What to write [default: as FILE is called, else parquet]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// class: by class, slab cache and frame within each 128 Ki frames, which makes
    /// small files and quick questions about classes; pfn: by frame
    #[arg(long, value_name = "ORDER", default_value = "class", verbatim_doc_comment)]
    order: RowOrder,
    /// Overwrite FILE when it exists
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    reading: input::Reading,
    #[command(flatten)]
    files: input::Files,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Parquet,
    Csv,
    Jsonl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RowOrder {
    Class,
    Pfn,
}

impl RowOrder {
    const fn order(self) -> Order {
        match self {
            Self::Class => Order::Class,
            Self::Pfn => Order::Pfn,
        }
    }
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift pages snapshot -o now.parquet
  coresift pages snapshot -o crash.parquet /var/crash/vmcore
  coresift pages snapshot -o - --format csv | gzip > frames.csv.gz

{}",
        exit::HELP
    )
}

/// The format that a file's name asks for.
fn by_name(path: &Path) -> Format {
    match path.extension().and_then(|e| e.to_str()) {
        Some("csv") => Format::Csv,
        Some("jsonl" | "ndjson") => Format::Jsonl,
        _ => Format::Parquet,
    }
}

pub fn run(args: &Args) -> Exit {
    let format = args.format.unwrap_or_else(|| by_name(&args.output));
    let to_stdout = args.output.as_os_str() == "-";
    if to_stdout && format == Format::Parquet && stdout().is_terminal() {
        output::complain("Parquet is nothing for a terminal: redirect the standard output, or name a file");
        return Exit::Usage;
    }
    match write(args, format) {
        Ok(_) if to_stdout => Exit::Ok,
        Ok((rows, size)) => output::print(
            &format!("{}: {} page frames in {}\n", args.output.display(), count(rows), bytes(size)),
            Exit::Ok,
        ),
        Err(error) => failure::tell(error, &args.files.input, false),
    }
}

/// Writes the table; its rows and bytes.
fn write(args: &Args, format: Format) -> Result<(u64, u64), PagesError> {
    let input = Input::open(&args.files.input, &args.reading)?;
    let mut out = NewFile::create(&args.output, args.force, Readers::Owner)?;
    input.tell_unknown();
    let order = args.order.order();
    let (rows, missing) = match format {
        Format::Parquet => parquet(&input, order, &mut out)?,
        Format::Csv => text(&input, TextTable::new(TextFormat::Csv, order), &mut out)?,
        Format::Jsonl => text(&input, TextTable::new(TextFormat::JsonLines, order), &mut out)?,
    };
    input::tell_missing(missing);
    Ok((rows, out.finish()?))
}

fn parquet(input: &Input, order: Order, out: &mut NewFile) -> Result<(u64, Missing), PagesError> {
    let table = ParquetTable::new(order)?;
    let mut file = table.file(out)?;
    let mut rows = 0;
    let encode = |frames: &mut Frames| Ok((frames.len() as u64, table.row_group(frames, input.names())?));
    let missing = input.read(&every_column(), encode, |(n, group)| {
        rows += n;
        file.append(group)
    })?;
    file.finish(input.provenance(), missing)?;
    Ok((rows, missing))
}

fn text(input: &Input, table: TextTable, out: &mut NewFile) -> Result<(u64, Missing), PagesError> {
    out.write_all(table.header().as_bytes()).map_err(CensusError::Output)?;
    let mut rows = 0;
    let encode = |frames: &mut Frames| Ok((frames.len() as u64, table.rows(frames, input.names())));
    let missing = input.read(&every_column(), encode, |(n, text)| {
        rows += n;
        out.write_all(&text).map_err(CensusError::Output)
    })?;
    Ok((rows, missing))
}
