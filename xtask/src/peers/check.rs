//! `cargo xtask check`: a dump beside its source, or beside makedumpfile's dump of the same core, as peers see them.

use super::kdump::{self, Kdump};
use super::lines::{self, Subject};
use super::readers::{Crash, drgn_tasks};
use super::{cut, kill, repair};
use crate::shell;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

const USAGE: &str = "\
cargo xtask check pages CORE DUMP...                      every stored page equals the source page (libkdumpfile)
cargo xtask check sets CORE [--levels 1,2,4,8,16,31] [--vmlinux FILE]
                                                          our kept pages and makedumpfile's, with the evidence
cargo xtask check crash RAW DUMP VMLINUX                  crash prints the same on both
cargo xtask check drgn RAW DUMP VMLINUX                   drgn lists the same tasks on both
cargo xtask check cut RAW VMLINUX [PERCENT...]            crash and drgn on our dump, and on makedumpfile's, cut after so much
                                                          of their page data
cargo xtask check kill RAW VMLINUX [--points N] [--format elf]
                                                          our program killed at N moments, and stopped by N/2 file size limits: each
                                                          file left is read by libkdumpfile (but ELF cores), drgn and crash
cargo xtask check repair RAW [STEP]                       our dump cut shorter by STEP bytes each time, repaired: consistent, and read
                                                          by libkdumpfile
cargo xtask check lines CORE VMLINUX OTHER-VMLINUX [TEXT] the command lines of xtask/lines.txt (that contain TEXT) do the same here
                                                          and in makedumpfile";

/// What crash is asked. `kmem -i` counts pages by reading every struct page, `ps` walks the task list, `mod` the modules.
const CRASH_COMMANDS: &[&str] = &["sys", "bt -a", "ps", "log", "mod", "kmem -i"];

/// Runs one check.
///
/// # Errors
/// A peer is missing, or a file cannot be read. A difference found is not an error, but exit code 1.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let same = match words.as_slice() {
        ["pages", core, dumps @ ..] if !dumps.is_empty() => {
            let mut same = true;
            for dump in dumps {
                same &= pages(Path::new(core), Path::new(dump))?;
            }
            same
        }
        ["sets", core, options @ ..] => {
            let (mut levels, mut vmlinux) = ("1,2,4,8,16,31", None);
            for pair in options.chunks(2) {
                match pair {
                    ["--levels", list] => levels = list,
                    ["--vmlinux", file] => vmlinux = Some(Path::new(*file)),
                    _ => bail!("{USAGE}"),
                }
            }
            let levels = levels.split(',').map(str::parse).collect::<Result<Vec<u8>, _>>().context("--levels")?;
            sets(&super::coresift(true)?, Path::new(core), &levels, vmlinux)?
        }
        ["crash", raw, dump, vmlinux] => crash(Path::new(raw), Path::new(dump), Path::new(vmlinux))?,
        ["drgn", raw, dump, vmlinux] => drgn(Path::new(raw), Path::new(dump), Path::new(vmlinux))?,
        ["lines", core, vmlinux, other, only @ ..] if only.len() <= 1 => {
            let subject = Subject { core: Path::new(core), vmlinux: Path::new(vmlinux), other: Path::new(other) };
            lines::run(&subject, only.first().unwrap_or(&""))?
        }
        ["cut", raw, vmlinux, percent @ ..] => {
            let percent =
                percent.iter().map(|text| text.parse()).collect::<Result<Vec<f64>, _>>().context("PERCENT")?;
            let percent = if percent.is_empty() { cut::PERCENT } else { &percent };
            cut::run(&super::coresift(true)?, Path::new(raw), Path::new(vmlinux), percent)?
        }
        ["repair", raw, step @ ..] if step.len() <= 1 => {
            let step = step.first().map(|text| text.parse()).transpose().context("STEP")?;
            repair::run(&super::coresift(false)?, Path::new(raw), step)?
        }
        ["kill", raw, vmlinux, rest @ ..] => {
            let (rest, format) = match rest {
                [rest @ .., "--format", "elf"] => (rest, kill::Format::Elf),
                rest => (rest, kill::Format::Kdump),
            };
            let points = match rest {
                [] => kill::POINTS,
                ["--points", number] => number.parse().context("--points")?,
                _ => bail!("{USAGE}"),
            };
            kill::run(&super::coresift(true)?, format, Path::new(raw), Path::new(vmlinux), points)?
        }
        _ => bail!("{USAGE}"),
    };
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether every page that `dump` holds is read by libkdumpfile as the bytes `core` has.
///
/// # Errors
/// The peers' Python is missing or does not start.
pub fn pages(core: &Path, dump: &Path) -> Result<bool> {
    let mut command = super::python("check_pages.py")?;
    let status = command.arg(core).arg(dump).status().with_context(|| shell::line(&command))?;
    if status.code().is_none() {
        println!("libkdumpfile's process ended by {status}");
    }
    Ok(status.success())
}

/// Whether our program `ours` and makedumpfile keep the same pages of `core` at each of `levels`, those aside that our guard keeps.
/// Differing pages are printed in groups, with what their struct pages say; flag names beyond VMCOREINFO's come from `vmlinux`.
///
/// # Errors
/// One of the two programs is missing or fails.
pub fn sets(ours: &Path, core: &Path, levels: &[u8], vmlinux: Option<&Path>) -> Result<bool> {
    let makedumpfile = super::program("makedumpfile")?;
    let folder = tempfile::tempdir_in(shell::target_dir())?;
    let readable = super::core_for_makedumpfile(core, folder.path())?;
    println!("{}: kept pages of {} and of coresift", core.display(), super::version(&makedumpfile, "-v"));
    let mut all_same = true;
    for level in levels {
        let d = level.to_string();
        let (theirs_path, ours_path) = (folder.path().join("theirs"), folder.path().join("ours"));
        shell::capture(
            Command::new(&makedumpfile)
                .args(["-l", "-f", "--message-level", "5", "-d", &d])
                .args([&readable, &theirs_path]),
        )?;
        let mut dump = Command::new(ours);
        let json = shell::capture(
            dump.args(["dump", "-f", "--json", "--compress", "lzo", "-d", &d]).args([core, &ours_path]),
        )?;
        let (a, b) = (Kdump::open(&ours_path)?, Kdump::open(&theirs_path)?);
        let (more, less) = (kdump::only_in(&a.kept, &b.kept), kdump::only_in(&b.kept, &a.kept));
        let pages = |runs: &[(u64, u64)]| runs.iter().map(|(s, e)| e - s).sum::<u64>();
        println!(
            "  level {d:>2}: ours {} makedumpfile {} of {} pages; only ours {}, only makedumpfile's {}",
            kdump::count(&a.kept),
            kdump::count(&b.kept),
            kdump::count(&a.ram),
            pages(&more),
            pages(&less)
        );
        let ram = (kdump::only_in(&a.ram, &b.ram), kdump::only_in(&b.ram, &a.ram));
        if !ram.0.is_empty() || !ram.1.is_empty() {
            println!(
                "    1st bitmaps differ: only ours {} pages, only makedumpfile's {}",
                pages(&ram.0),
                pages(&ram.1)
            );
        }
        if a.incomplete || b.incomplete || a.level != b.level {
            println!(
                "    headers differ: level {} and {}, incomplete {} and {}",
                a.level, b.level, a.incomplete, b.incomplete
            );
            all_same = false;
        }
        if !more.is_empty() || !less.is_empty() {
            evidence(core, vmlinux, &[("coresift", &more), ("makedumpfile", &less)])?;
            let report: Value = serde_json::from_str(&json).context("coresift --json")?;
            let (guarded, offline) = (guarded(&report), offline(&report));
            println!("    {guarded} of ours kept by the guard of kernel image, page tables, per-cpu areas and mem_map");
            // At levels 0 and 1 makedumpfile looks at no struct page unless the kernel knows of hardware poison.
            let unread = if *level <= 1 { offline } else { 0 };
            println!(
                "    {unread} of makedumpfile's are offline pages, which must not be read and which it did not ask for"
            );
            all_same &= (less.is_empty() || pages(&less) == unread) && pages(&more) == guarded;
        }
    }
    Ok(all_same)
}

/// Pages that our program would have left out, had they not been essential ones, from its JSON report.
fn guarded(report: &Value) -> u64 {
    report["guard"].as_array().into_iter().flatten().filter_map(|row| row["saved"].as_u64()).sum()
}

/// Pages that our program left out because they are offline, from its JSON report.
fn offline(report: &Value) -> u64 {
    let rows = report["classes"].as_array().into_iter().flatten();
    rows.filter(|row| row["name"] == "offline").filter_map(|row| row["excluded_pages"].as_u64()).sum()
}

/// Prints what the struct pages of `sides` say, each side being who keeps the page frames, and which.
fn evidence(core: &Path, vmlinux: Option<&Path>, sides: &[(&str, &[(u64, u64)])]) -> Result<()> {
    let mut command = super::python("check_sets.py")?;
    command.arg(core);
    if let Some(vmlinux) = vmlinux {
        command.arg("--vmlinux").arg(vmlinux);
    }
    let mut child = command.stdin(Stdio::piped()).spawn().with_context(|| shell::line(&command))?;
    let mut input = child.stdin.take().context("no pipe to Python")?;
    for (who, runs) in sides {
        for (first, end) in *runs {
            writeln!(input, "{who} {first} {end}")?;
        }
    }
    drop(input);
    if !child.wait()?.success() {
        println!("    (no evidence: {} failed)", shell::line(&command));
    }
    Ok(())
}

/// Whether crash prints the same for `raw` and for `dump`.
///
/// # Errors
/// crash is missing, or cannot open one of the two.
pub fn crash(raw: &Path, dump: &Path, vmlinux: &Path) -> Result<bool> {
    let crash = Crash::for_core(raw, vmlinux)?;
    println!("{} on {} and {}", crash.name(), raw.display(), dump.display());
    let ask = |core: &Path| -> Result<Vec<String>> {
        let answers = crash.ask(core, vmlinux, CRASH_COMMANDS)?;
        answers.map_err(|why| anyhow!("crash does not open {}: {why}", core.display()))
    };
    let (a, b) = (ask(raw)?, ask(dump)?);
    let mut same = true;
    for (command, (a, b)) in CRASH_COMMANDS.iter().zip(a.iter().zip(&b)) {
        same &= compare(command, a, b);
    }
    Ok(same)
}

/// Whether drgn lists the same tasks, with the same stacks, for `raw` and for `dump`.
///
/// # Errors
/// drgn is missing, or cannot read one of the two.
pub fn drgn(raw: &Path, dump: &Path, vmlinux: &Path) -> Result<bool> {
    let tasks = |core: &Path| -> Result<String> {
        drgn_tasks(core, vmlinux)?.map_err(|why| anyhow!("drgn does not read {}: {why}", core.display()))
    };
    println!("drgn on {} and {}", raw.display(), dump.display());
    Ok(compare("tasks and their stacks", &tasks(raw)?, &tasks(dump)?))
}

/// Prints how `a` (of the raw core) and `b` (of the dump) differ; true where they do not.
fn compare(what: &str, a: &str, b: &str) -> bool {
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    let (a, b) = (lines(a), lines(b));
    if a == b && !a.is_empty() {
        println!("  {what:<24} same ({} lines)", a.len());
        return true;
    }
    println!("  {what:<24} DIFFERS: {} lines of the raw core, {} of the dump", a.len(), b.len());
    let only = |x: &[String], y: &[String]| x.iter().filter(|l| !y.contains(l)).take(8).cloned().collect::<Vec<_>>();
    for (sign, lines) in [('-', only(&a, &b)), ('+', only(&b, &a))] {
        for line in lines {
            println!("    {sign} {line}");
        }
    }
    false
}
