//! What the headers and notes say of the kernel, held against the kernel's own memory.

use super::structure::{Check, Verdict};
use crate::repair::notes;
use coresift_format::Input;
use coresift_format::kdump::{Header, SubHeader};
use coresift_kernel::{Kernel, NoteCpus, field, find_in_memory, printable};
use std::collections::HashSet;

/// Members of `struct new_utsname`, in their order.
const UTSNAME: [&str; 6] = ["sysname", "nodename", "release", "version", "machine", "domainname"];
const MACHINE: usize = 4;

/// What is compared: a part of the headers or notes, and whether it agrees; `None` where it cannot be told.
type Row = (&'static str, fn(&Input, &Kernel, Effort) -> Option<Result<(), String>>);

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Where the kernel's symbols say.
    Symbols,
    /// In all pages, where they say nothing.
    AllPages,
}

const ROWS: [Row; 4] =
    [("utsname", utsname), ("phys_base", phys_base), ("VMCOREINFO", vmcoreinfo), ("registers", registers)];

/// One check for all that agrees, and one for each thing that does not.
pub fn check(input: &Input, kernel: &Kernel, effort: Effort) -> Vec<Check> {
    let (mut agree, mut checks) = (Vec::new(), Vec::new());
    for (what, compare) in ROWS {
        match compare(input, kernel, effort) {
            Some(Ok(())) => agree.push(what),
            Some(Err(detail)) => checks.push(Check { what: "kernel", verdict: Verdict::Damaged, detail }),
            None => {}
        }
    }
    // What is none of the above: the heads of notes, and registers of which the headers do not tell that the kernel saved them.
    if checks.is_empty() && notes::differ(input, kernel, effort) == Some(true) {
        let detail = "the notes are not those that the kernel's memory has, and one of the two is damaged".to_owned();
        checks.push(Check { what: "kernel", verdict: Verdict::Damaged, detail });
    }
    if !agree.is_empty() {
        let detail = format!("{} as in the kernel's memory", agree.join(", "));
        checks.insert(0, Check { what: "kernel", verdict: Verdict::Good, detail });
    }
    checks
}

/// Whether the writer knew the kernel. QEMU does not: it fills in the machine alone, and guesses `phys_base`.
pub fn knew_kernel(header: &Header) -> bool {
    header.utsname.iter().enumerate().any(|(i, member)| i != MACHINE && member.iter().any(|byte| *byte != 0))
}

/// The members of the header's utsname that are not those in the kernel's memory.
fn utsname(input: &Input, kernel: &Kernel, _: Effort) -> Option<Result<(), String>> {
    let (header, _) = input.kdump_header()?;
    let of_header = header.utsname.as_flattened();
    let all = knew_kernel(header);
    let differing: Vec<String> = (0..)
        .zip(UTSNAME)
        .filter(|(i, _)| all || *i == MACHINE)
        .map(|(i, name)| (name, field(of_header, i), field(&kernel.utsname[..], i)))
        .filter(|(_, one, other)| one != other)
        .map(|(name, one, other)| format!("{name} is `{one}`, and `{other}` in the kernel's memory"))
        .collect();
    Some(if differing.is_empty() { Ok(()) } else { Err(format!("utsname of the header: {}", differing.join("; "))) })
}

/// crash translates addresses of the kernel image with it.
fn phys_base(input: &Input, kernel: &Kernel, _: Effort) -> Option<Result<(), String>> {
    let (header, SubHeader { phys_base, .. }) = input.kdump_header().filter(|(header, _)| knew_kernel(header))?;
    header.machine().starts_with(b"x86_64").then_some(())?;
    Some(if *phys_base == kernel.phys_base {
        Ok(())
    } else {
        Err(format!("phys_base of the sub header is {phys_base:#x}, and {:#x} by the page tables", kernel.phys_base))
    })
}

/// VMCOREINFO as the kernel's memory has it: one text, or where the symbols do not tell its place, all that it may be.
pub fn kernel_texts(input: &Input, kernel: &Kernel, effort: Effort) -> Vec<Vec<u8>> {
    match (kernel.own_vmcoreinfo(input.memory()), effort) {
        (Ok(own), _) => vec![own],
        (Err(_), Effort::Symbols) => Vec::new(),
        (Err(_), Effort::AllPages) => {
            // Other kernels' may be left in memory; this one's begins with its release.
            let release = format!("OSRELEASE={}\n", kernel.release);
            let found = find_in_memory(input.memory()).into_iter().map(|one| one.text);
            found.filter(|text| text.starts_with(release.as_bytes())).collect()
        }
    }
}

/// Every line the kernel has, the note has too. It may have more: what a vmlinux told, for instance.
fn vmcoreinfo(input: &Input, kernel: &Kernel, effort: Effort) -> Option<Result<(), String>> {
    let note = input.vmcoreinfo()?;
    let lines = |text: &[u8]| text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let have: HashSet<Vec<u8>> = lines(note).into_iter().collect();
    let lacks = |own: &[u8]| lines(own).into_iter().find(|line| !have.contains(line));
    let texts = kernel_texts(input, kernel, effort);
    let mut lacking = texts.iter().map(|text| lacks(text));
    let first = lacking.next()?;
    let missing = if lacking.any(|lacks| lacks.is_none()) { None } else { first };
    Some(missing.map_or(Ok(()), |line| {
        let line = printable(&String::from_utf8_lossy(&line));
        Err(format!("VMCOREINFO of the notes lacks `{line}`, which the kernel's has"))
    }))
}

/// The registers in the notes are copies of what each cpu saved.
fn registers(input: &Input, kernel: &Kernel, _: Effort) -> Option<Result<(), String>> {
    input.kdump_header().filter(|(header, _)| knew_kernel(header))?;
    let found = NoteCpus::find(kernel, input)
        .ok()
        .filter(|found| found.unsaved > 0 || found.notes.iter().any(Option::is_some))?;
    let mut owners: Vec<u32> = found.notes.iter().flatten().copied().collect();
    let all = owners.len();
    owners.sort_unstable();
    owners.dedup();
    Some(match (found.unsaved, all - owners.len()) {
        (0, 0) => Ok(()),
        (0, twice) => Err(format!("the registers of {twice} notes are those of a cpu that another note is of")),
        (unsaved, _) => Err(format!("the registers of {unsaved} notes are none that a cpu saved")),
    })
}
