//! `coresift explain`.

use super::verify;
use crate::exit::{self, Exit};
use crate::failure::Failing;
use crate::output;
use crate::text::count;
use coresift_engine::{Explanation, Explanations, InFile, InKernel, State, Subject};
use std::fmt::Write;
use std::path::PathBuf;

/// Say what a page is, and why it is in a dump or not
///
/// For each page: its class and what tells it (page flags, mapping, counts, the block or
/// compound page it is in), the memory no level leaves out that it belongs to, where its
/// descriptor and its data are, which pages share the data, and the rule by which it was
/// kept or left out. Exit code 1 where an address or a symbol leads to no page; the
/// others are explained all the same.
#[derive(clap::Args)]
#[command(after_help = help(), verbatim_doc_comment)]
pub struct Args {
    /// The kernel's vmlinux with debug information, for symbols and types that the
    /// dump does not tell or has lost; exit code 2 when it is that of another kernel
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    vmlinux: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A further part, where DUMP is one part of a split set; once for each
    #[arg(long = "part", value_name = "FILE")]
    parts: Vec<PathBuf>,
    /// An ELF core or a kdump-compressed file, flattened or not
    dump: PathBuf,
    /// A page: a decimal number or pfn:N is a page frame number; 0x... is a physical
    /// address, and from 0xff00000000000000 on a kernel virtual one; phys: and virt:
    /// say which; anything else is a kernel symbol
    #[arg(required = true, value_name = "PFN|ADDRESS|SYMBOL", verbatim_doc_comment)]
    pages: Vec<Subject>,
}

fn help() -> String {
    format!(
        "\
Examples:
  coresift explain vmcore pfn:0x1267 0x1267000
  coresift explain vmcore init_task 0xffff888003c00000
  coresift explain --json vmcore 4711 | jq .pages[].why

{}",
        exit::HELP
    )
}

pub fn run(args: &Args) -> Exit {
    let files: Vec<PathBuf> = std::iter::once(&args.dump).chain(&args.parts).cloned().collect();
    let failing = Failing::new(&files, args.json);
    let debug = match verify::debug_file(args.vmlinux.as_deref(), failing) {
        Ok(debug) => debug,
        Err(exit) => return exit,
    };
    match coresift_engine::explain_set(&files, &args.pages, debug.as_ref()) {
        Ok(found) => {
            let exit = if found.failed.is_empty() { Exit::Ok } else { Exit::Failed };
            if args.json { output::print_json(&found, exit) } else { output::print(&report(&found), exit) }
        }
        Err(error) => failing.engine(&error),
    }
}

fn report(found: &Explanations) -> String {
    let mut out = String::new();
    for (i, page) in found.pages.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        explain(&mut out, page);
    }
    for failed in &found.failed {
        let _infallible = writeln!(out, "\n{}: {}", failed.asked, failed.why);
    }
    for note in &found.notes {
        let _infallible = writeln!(out, "note: {note}");
    }
    out
}

const fn standing(state: State) -> &'static str {
    match state {
        State::Kept => "in the dump",
        State::LeftOut => "left out",
        State::Lost => "LOST",
        State::NoRam => "no RAM",
        State::OtherPart => "in another part",
    }
}

fn explain(out: &mut String, page: &Explanation) {
    let mut row = |name: &str, value: String| {
        let _infallible = writeln!(out, "{name:<13} {value}");
    };
    let of = match (&page.symbol, page.virtual_address) {
        (Some(symbol), Some(addr)) => format!(" ({symbol}, {addr:#x})"),
        (None, Some(addr)) => format!(" ({addr:#x})"),
        _ => String::new(),
    };
    row("Page", format!("pfn {:#x}, physical address {:#x}{of}", page.pfn, page.address));
    row(standing(page.file.state), page.why.clone());
    if let Some(kernel) = &page.kernel {
        kernel_rows(&mut row, kernel);
    }
    file_rows(&mut row, &page.file);
}

fn kernel_rows(row: &mut impl FnMut(&str, String), kernel: &InKernel) {
    let evidence = kernel.evidence.as_ref().map_or_else(String::new, |evidence| format!(": {evidence}"));
    row("Class", format!("{}{evidence}", kernel.class));
    match (kernel.struct_page, &kernel.unread) {
        (Some(addr), None) => row("struct page", format!("{addr:#x}")),
        (Some(addr), Some(why)) => row("struct page", format!("{addr:#x}, which cannot be read: {why}")),
        (None, _) => row("struct page", "none".to_owned()),
    }
    if let Some(flags) = kernel.flags {
        row("  flags", format!("{flags:#x} {}", kernel.flag_names.join(" ")));
    }
    if let Some(mapping) = kernel.mapping {
        let anonymous = if mapping & 1 == 1 && kernel.class == "user" { " (anonymous)" } else { "" };
        row("  mapping", format!("{mapping:#x}{anonymous}"));
    }
    if let Some(mapcount) = kernel.mapcount {
        let kind = kernel.page_type.map_or_else(String::new, |kind| format!(" ({kind})"));
        row("  _mapcount", format!("{mapcount}{kind}"));
    }
    if let Some(refcount) = kernel.refcount {
        row("  _refcount", refcount.to_string());
    }
    if let Some((head, order)) = kernel.block {
        row("Block", format!("of order {order} from pfn {head:#x} on ({} pages)", count(1 << order)));
    }
    if let Some(head) = kernel.tail_of {
        row("Tail", format!("of the compound page at pfn {head:#x}"));
    }
    if !kernel.protected.is_empty() {
        row("Protected", kernel.protected.join(", "));
    }
}

fn file_rows(row: &mut impl FnMut(&str, String), file: &InFile) {
    if let Some(part) = &file.part {
        row("Part", part.clone());
    }
    if let Some(at) = file.descriptor {
        row("Descriptor", format!("at file offset {at}"));
    }
    if let (Some(data), Some(size)) = (file.data, file.size) {
        let codec = file.codec.map_or_else(|| "in an unknown form".to_owned(), |codec| format!("codec {codec}"));
        row("Data", format!("{size} bytes at file offset {data}, {codec}"));
    }
    if let Some(what) = &file.what {
        row("  problem", what.clone());
    }
    if file.zero == Some(true) {
        row("Content", "all zeros".to_owned());
    }
    if file.sharers > 0 {
        let first: Vec<String> = file.first_sharers.iter().map(|pfn| format!("{pfn:#x}")).collect();
        let more = if file.sharers > first.len() as u64 { ", ..." } else { "" };
        row("Shared", format!("with {} other pages: pfn {}{more}", count(file.sharers), first.join(", ")));
    }
}
