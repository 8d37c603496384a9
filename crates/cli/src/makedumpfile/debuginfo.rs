//! -x, -i, -g and --vtop: debug information, and one address translated.

use super::Stop;
use super::line::CommandLine;
use super::messages::{Class, Messages};
use crate::cause;
use coresift_engine::same_file;
use coresift_format::Input;
use coresift_kernel::debuginfo::{self, DebugFile, Vmlinux};
use coresift_kernel::{Mismatch, VirtAddr};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// -g: writes the VMCOREINFO text of the vmlinux of -x.
pub fn generate(line: &CommandLine, messages: &Messages) -> Result<(), Stop> {
    let (Some(target), Some(vmlinux)) = (&line.generate, &line.vmlinux) else {
        messages.line(Class::Error, "-g: dumps of Xen hosts are not built yet; give a vmlinux with -x");
        return Err(Stop::Failed);
    };
    let (target, vmlinux) = (Path::new(target), Path::new(vmlinux));
    if same_file(vmlinux, target) {
        let text = format!("Can't open the vmcoreinfo file({}). It is the kernel file", target.display());
        messages.line(Class::Error, &text);
        return Err(Stop::Failed);
    }
    let text = Vmlinux::open(vmlinux).and_then(|vmlinux| debuginfo::vmcoreinfo(&vmlinux)).map_err(|error| {
        messages.line(Class::Error, &error.to_string());
        Stop::Failed
    })?;
    fs::write(target, text).map_err(|error| {
        let text = format!("Can't open the vmcoreinfo file({}). {}", target.display(), cause::text(&error));
        messages.line(Class::Error, &text);
        Stop::Failed
    })?;
    messages.raw(Class::Common, &format!("\nThe vmcoreinfo is saved to {}.\n", target.display()));
    Ok(())
}

/// The file of -x or -i, opened. One that cannot be used is told, and the dump's own VMCOREINFO has to do: where it does not, the run
/// fails later.
pub fn open(line: &CommandLine, messages: &Messages) -> Option<DebugFile> {
    let opened = match (&line.vmlinux, &line.vmcoreinfo) {
        (Some(path), _) => DebugFile::vmlinux(Path::new(path)),
        (None, Some(path)) => DebugFile::text(Path::new(path)),
        (None, None) => return None,
    };
    opened.inspect_err(|error| messages.note(&format!("going on without it: {error}"))).ok()
}

/// What the dump of another kernel than that of -x or -i ends with: scripts know the first line.
pub fn other_kernel(found: &Mismatch, messages: &Messages) -> Stop {
    let Mismatch { file, dump, what, ours, theirs } = found;
    messages.line(Class::Error, &format!("{file} and {dump} don't match."));
    messages.line(Class::Error, &format!("the {what} of {file} is {ours}, that of {dump} is {theirs}"));
    Stop::OtherKernel
}

/// What is printed where there is no physical address (makedumpfile's NOT_PADDR).
const NOWHERE: u64 = u64::MAX;

/// --vtop: prints how `addr` is translated. A dump that cannot be understood ends the run where it needs to be, not here.
pub fn translate(addr: u64, input: &Path, debug: Option<&DebugFile>, messages: &Messages) {
    let mut text = format!("\nTranslating virtual address {addr:x} to physical address.\n");
    let physical = walk(addr, input, debug, &mut text).unwrap_or_else(|error| {
        messages.line(Class::Error, &error);
        NOWHERE
    });
    let _infallible = write!(text, "VIRTUAL           PHYSICAL\n{addr:16x}  {physical:x}\n\n");
    messages.raw(Class::Common, &text);
}

fn walk(addr: u64, input: &Path, debug: Option<&DebugFile>, text: &mut String) -> Result<u64, String> {
    let input = Input::open(input).map_err(|error| cause::chain(&error).collect::<Vec<_>>().join(": "))?;
    let (kernel, _) = debuginfo::open_kernel(&input, debug).map_err(|error| error.to_string())?;
    let mut view = input.memory().view();
    let (entries, end) = kernel.paging.steps(view.as_mut(), VirtAddr(addr));
    for (level, at, entry) in entries {
        let _infallible = writeln!(text, "  {:<3} : {:>16x} => {entry:>16x}", level.name.to_uppercase(), at.0);
    }
    let leaf = end.map_err(|error| error.to_string())?;
    Ok(leaf.frame.0 | addr & (leaf.bytes - 1))
}
