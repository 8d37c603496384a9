//! `coresift info --symbol` and `--struct`: what the dump says of its kernel's names.

use crate::exit::Exit;
use crate::failure::Failing;
use crate::output;
use clap::builder::NonEmptyStringValueParser;
use coresift_engine::lone_part;
use coresift_format::Input;
use coresift_kernel::VirtAddr;
use coresift_kernel::debuginfo::{Answers, DebugFile, FoundSymbol, open_kernel};
use coresift_kernel::types::{Layout, LayoutMember, TypeSource};
use coresift_kernel::{KernelError, printable};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;

/// What is asked.
#[derive(clap::Args)]
pub struct Questions {
    /// Say where the symbol NAME is, or what is at ADDRESS (hexadecimal); modules
    /// included. May be repeated
    #[arg(long = "symbol", value_name = "NAME|ADDRESS", verbatim_doc_comment, value_parser = NonEmptyStringValueParser::new())]
    symbols: Vec<String>,
    /// Show a struct, union, enum or typedef with offsets and sizes, or one member
    /// of it; modules included. May be repeated
    #[arg(long = "struct", value_name = "NAME[.MEMBER]", verbatim_doc_comment, value_parser = NonEmptyStringValueParser::new())]
    types: Vec<String>,
    /// The kernel's vmlinux with debug information, to answer instead of the dump
    /// (before Linux 6.0 the dump cannot)
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    vmlinux: Option<PathBuf>,
}

impl Questions {
    /// Whether there are any.
    pub fn any(&self) -> bool {
        !(self.symbols.is_empty() && self.types.is_empty())
    }
}

/// Answers `questions` about `dump`.
pub fn run(questions: &Questions, dump: &[PathBuf], json: bool) -> Exit {
    match answer(questions, dump, json) {
        Ok(exit) => exit,
        Err(error) => {
            let advice = advice(&*error, dump);
            Failing::new(dump, json).any(error, advice)
        }
    }
}

fn advice(error: &(dyn Error + 'static), dump: &[PathBuf]) -> Option<&'static str> {
    match error.downcast_ref() {
        Some(KernelError::Read { .. })
            if dump.len() == 1 && Input::open_parts(dump).is_ok_and(|one| lone_part(&one).is_some()) =>
        {
            Some("it may be in another part of the split set: name all parts")
        }
        Some(KernelError::MissingKey { key, .. }) if key.contains("kallsyms") => Some(
            "kernels before Linux 6.0 do not tell where their symbols are: give the kernel's vmlinux with --vmlinux",
        ),
        _ => None,
    }
}

fn answer(questions: &Questions, dump: &[PathBuf], as_json: bool) -> Result<Exit, Box<dyn Error>> {
    let debug = questions.vmlinux.as_deref().map(DebugFile::vmlinux).transpose()?;
    let input = Input::open_parts(dump)?;
    let (kernel, _) = open_kernel(&input, debug.as_ref())?;
    let mut answers = Answers::new(&kernel, input.memory());
    let (mut text, mut symbols, mut types, mut missing) = (String::new(), Vec::new(), Vec::new(), Vec::new());
    for asked in &questions.symbols {
        let found = match address(asked) {
            Some(at) => answers.symbol_at(at)?.into_iter().collect(),
            None => answers.symbols(asked)?,
        };
        if found.is_empty() {
            missing.push(format!("no symbol {asked}"));
        }
        for symbol in found {
            text.push_str(&symbol_line(&symbol));
            symbols.push(symbol_json(&symbol));
        }
    }
    for asked in &questions.types {
        let (name, path) = asked.split_once('.').map_or((asked.as_str(), None), |(name, path)| (name, Some(path)));
        let Some(mut found) = answers.find_type(name)? else {
            missing.push(format!("no type {name}"));
            continue;
        };
        let types_of = &mut *found.source as &mut dyn TypeSource;
        let module = found.module.as_deref();
        let of_module = module.map_or_else(String::new, |module| format!(" [{module}]"));
        match path {
            None => {
                let layout = types_of.layout(found.of)?;
                text.push_str(&layout_text(&layout, &of_module));
                types.push(layout_json(&layout, module));
            }
            Some(path) => {
                let Some(member) = types_of.member_layout(found.of, path)? else {
                    missing.push(format!("no member {path} in {name}"));
                    continue;
                };
                let outer = types_of.declare(found.of, String::new())?;
                let _infallible = writeln!(text, "{outer}.{path}{of_module}");
                member_text(&member, 1, &mut text);
                types.push(json!({ "of": outer, "path": path, "module": module, "member": member_json(&member) }));
            }
        }
    }
    for problem in &answers.problems {
        output::complain(problem);
    }
    for one in &missing {
        output::complain(&format!("{one} in {}", input.name()));
    }
    let exit = if missing.is_empty() { Exit::Ok } else { Exit::Failed };
    if as_json {
        let all = json!({ "symbols": symbols, "types": types, "missing": missing, "problems": answers.problems });
        return Ok(output::print_json(&all, exit));
    }
    Ok(output::print(&printable_lines(&text), exit))
}

/// Names come out of the dump: nothing in them steers a terminal.
fn printable_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", printable(line))).collect()
}

/// The address that `text` is: with `0x`, or 16 hexadecimal digits, or one that begins with a digit, as no name does.
fn address(text: &str) -> Option<VirtAddr> {
    let digits = text.strip_prefix("0x").or_else(|| {
        let is_address = text.len() == 16 || text.starts_with(|c: char| c.is_ascii_digit());
        is_address.then_some(text)
    })?;
    u64::from_str_radix(digits, 16).ok().map(VirtAddr)
}

/// As crash and /proc/kallsyms write it: address, type, name, module.
fn symbol_line(symbol: &FoundSymbol) -> String {
    let FoundSymbol { name, address, offset, kind, module } = symbol;
    let offset_text = if *offset == 0 { String::new() } else { format!("+{offset:#x}") };
    let module = module.as_ref().map_or_else(String::new, |module| format!(" [{module}]"));
    format!("{:016x} {} {name}{offset_text}{module}\n", address.plus(*offset).0, char::from(*kind))
}

/// Addresses as text: numbers of JSON hold 53 bits in many readers.
fn symbol_json(symbol: &FoundSymbol) -> Value {
    json!({
        "name": symbol.name,
        "address": format!("{:#x}", symbol.address.0),
        "offset": symbol.offset,
        "type": char::from(symbol.kind).to_string(),
        "module": symbol.module,
    })
}

/// Where the comment with offset and size begins.
const COMMENT: usize = 56;
const INDENT: usize = 4;

fn layout_text(layout: &Layout, of_module: &str) -> String {
    let mut text = match &layout.alias_of {
        Some(alias) => format!("typedef {alias} {};{of_module}\n", layout.name),
        None => String::new(),
    };
    if !layout.members.is_empty() {
        let name = layout.alias_of.as_deref().unwrap_or(&layout.name);
        let name = name.strip_suffix(" {...}").unwrap_or(name);
        let _infallible = writeln!(text, "{name} {{{of_module}");
        layout.members.iter().for_each(|member| member_text(member, 1, &mut text));
        text.push_str("};\n");
    } else if layout.alias_of.is_none() {
        let _infallible = writeln!(text, "{}{of_module}", layout.name);
    }
    for (name, value) in &layout.values {
        let _infallible = writeln!(text, "{:INDENT$}{name} = {value},", "");
    }
    match layout.bytes {
        Some(bytes) => text.push_str(&format!("/* size: {bytes}, members: {} */\n", layout.members.len())),
        None => text.push_str("/* size not known */\n"),
    }
    text
}

fn member_text(member: &LayoutMember, depth: usize, text: &mut String) {
    let indent = " ".repeat(depth * INDENT);
    let size = member.bytes.map_or("?".to_owned(), |bytes| bytes.to_string());
    let place = match member.bits {
        Some((bit, _)) => format!("/* {:>6}:{bit:<2} {size:>4} */", member.offset),
        None => format!("/* {:>6} {size:>7} */", member.offset),
    };
    let line = if member.members.is_empty() {
        format!("{indent}{};", member.declaration)
    } else {
        let (keyword, rest) = member.declaration.split_once("{...}").unwrap_or((&member.declaration, ""));
        let _infallible = writeln!(text, "{indent}{keyword}{{");
        member.members.iter().for_each(|inner| member_text(inner, depth + 1, text));
        format!("{indent}}}{rest};")
    };
    let _infallible = writeln!(text, "{line:COMMENT$} {place}");
}

fn layout_json(layout: &Layout, module: Option<&str>) -> Value {
    json!({
        "name": layout.name,
        "alias_of": layout.alias_of,
        "size": layout.bytes,
        "module": module,
        "members": layout.members.iter().map(member_json).collect::<Vec<_>>(),
        "values": layout.values.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect::<Vec<_>>(),
    })
}

fn member_json(member: &LayoutMember) -> Value {
    json!({
        "name": member.name,
        "type": member.type_name,
        "offset": member.offset,
        "size": member.bytes,
        "bit": member.bits.map(|(bit, _)| bit),
        "bits": member.bits.map(|(_, width)| width),
        "members": member.members.iter().map(member_json).collect::<Vec<_>>(),
    })
}
