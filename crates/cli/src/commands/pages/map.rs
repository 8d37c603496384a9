//! `coresift pages map`.

mod svg;

use super::failure::{self, PagesError};
use super::input::{self, Input};
use super::new_file::{NewFile, Readers};
use super::table::heading;
use crate::exit::{self, Exit};
use crate::output;
use crate::text::{bytes, count};
use coresift_census::{BlockCounts, CensusError, ColumnId, Frames};
use std::io::Write;
use std::path::PathBuf;

/// Draw physical memory as a picture
///
/// A cell is a block of page frames, coloured by the classes of its pages in their
/// shares: a block that is free in parts only is seen as such, and so is a single
/// poisoned page. Blocks are as small as 8192 of them allow. In a browser each cell
/// tells its addresses and its pages.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// The SVG file to write; - is the standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
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
  coresift pages map -o memory.svg
  coresift pages map -o crash.svg /var/crash/vmcore

{}",
        exit::HELP
    )
}

/// Cells of a picture at the most.
const CELLS: usize = 8192;

pub fn run(args: &Args) -> Exit {
    if args.output.extension().is_some_and(|name| !name.eq_ignore_ascii_case("svg")) {
        output::complain("a map is an SVG file: name it so, and convert it where another kind is needed");
        return Exit::Usage;
    }
    match draw(args) {
        Ok(_) if args.output.as_os_str() == "-" => Exit::Ok,
        Ok((cells, block)) => {
            let what = format!("{} blocks of {}", count(cells), bytes(block));
            output::print(&format!("{}: {what}\n", args.output.display()), Exit::Ok)
        }
        Err(error) => failure::tell(error, &args.files.input, false),
    }
}

/// Draws the picture; its cells, and the bytes of a block.
fn draw(args: &Args) -> Result<(u64, u64), PagesError> {
    let input = Input::open(&args.files.input, &args.reading)?;
    let mut out = NewFile::create(&args.output, args.force, Readers::Owner)?;
    let mut blocks = BlockCounts::new(CELLS);
    let shape = |frames: &mut Frames| {
        let mut part = BlockCounts::new(CELLS);
        part.count(frames);
        Ok(part)
    };
    let missing = input.read(&[ColumnId::Pfn, ColumnId::Class], shape, |part| {
        blocks.merge(part);
        Ok(())
    })?;
    input::tell_missing(missing);
    let pages = blocks.blocks().flat_map(|(_, counts)| counts).sum();
    let title = heading(&input, pages).trim_end().to_owned();
    let picture = svg::Picture { title, page: input.page_size(), blocks: &blocks };
    out.write_all(picture.to_string().as_bytes()).map_err(CensusError::Output)?;
    out.finish()?;
    Ok((blocks.blocks().count() as u64, blocks.frames().saturating_mul(input.page_size())))
}
