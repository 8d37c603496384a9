//! `cargo xtask test`: everything that must hold, step by step, with one line of counts at the very end for CI to read.
//!
//! ```text
//! source ─ fmt, clippy, doc, licences ─> tests ─> bundled crash dump ─> a real kernel crashed in QEMU ─> peers look at the dump
//! ```
//! What cannot run on this machine is skipped by name, with the reason. Nothing is downloaded twice.

use crate::debian::Skipped;
use crate::lab::{self, Outcome};
use crate::peers::{check, cut, install, kill};
use crate::{audit, fixture, instructions, peers, shell};
use anyhow::{Context, Result, bail, ensure};
use std::cell::OnceCell;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// The kernel of `lab/kernels.txt` that every test run crashes.
const KERNEL: &str = "6.12";

/// How many checks passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

/// What later steps need of earlier ones.
#[derive(Default)]
struct Shared {
    crash: OnceCell<Outcome>,
}

/// One step. An error is a failure, or a skip where it is [`Skipped`].
struct Step {
    name: &'static str,
    run: fn(&Shared) -> Result<Counts>,
}

/// Kills of every test run; `cargo xtask check kill` makes more.
const KILLS: u64 = 8;
/// And of an ELF core.
const ELF_KILLS: u64 = 6;

const ONE: Counts = Counts { passed: 1, failed: 0, skipped: 0 };

const STEPS: &[Step] = &[
    Step { name: "cargo fmt", run: |_| cargo(&["fmt", "--all", "--check"]) },
    Step {
        name: "cargo clippy",
        run: |_| cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
    },
    Step {
        name: "cargo clippy of the scaling measurement",
        run: |_| {
            let engine = ["-p", "coresift-engine", "--features", "measure", "--all-targets", "--locked"];
            cargo(&[&["clippy", "--quiet"][..], &engine, &["--", "-D", "warnings"]].concat())
        },
    },
    Step { name: "cargo doc", run: |_| cargo(&["doc", "--quiet", "--workspace", "--no-deps", "--locked"]) },
    Step { name: "licences", run: |_| licences() },
    Step { name: "peers", run: |_| peers() },
    Step { name: "unit, property and snapshot tests", run: |_| tests() },
    Step { name: "tests on real cores", run: |_| real_cores() },
    Step { name: "doc tests", run: |_| count(cargo_command(&["test", "--workspace", "--doc", "--locked"]), LIBTEST) },
    Step { name: "bundled dump: filtered with every codec, every page through libkdumpfile", run: |_| bundled_pages() },
    Step { name: "bundled dump: the pages that makedumpfile keeps", run: |_| bundled_sets() },
    Step { name: "instruction counts", run: |_| instructions::step().map(|()| ONE) },
    Step { name: "a real kernel, crashed and dumped in its capture kernel", run: crash },
    Step { name: "real kernel: every kept page through libkdumpfile", run: |s| on_crash(s, "python", check_pages) },
    Step { name: "real kernel: the pages that makedumpfile keeps", run: |s| on_crash(s, "makedumpfile", check_set) },
    Step { name: "real kernel: crash prints the same", run: |s| on_crash(s, "crash", check_crash) },
    Step { name: "real kernel: drgn lists the same tasks", run: |s| on_crash(s, "drgn", check_drgn) },
    Step { name: "real kernel: crash and drgn on a dump cut short", run: |s| on_crash(s, "crash", check_cut) },
    Step { name: "real kernel: what is left of killed runs", run: |s| on_crash(s, "crash", check_kill) },
];

/// Runs all steps, whatever fails; `--list` names them, other arguments pick steps by a part of their name.
///
/// # Errors
/// Never for a failed step: that is exit code 1.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    if arguments.iter().any(|a| a == "--list") {
        STEPS.iter().for_each(|s| println!("{}", s.name));
        return Ok(ExitCode::SUCCESS);
    }
    let (shared, mut sum, mut notes) = (Shared::default(), Counts::default(), Vec::new());
    let picked = |s: &&Step| arguments.is_empty() || arguments.iter().any(|a| s.name.contains(a.as_str()));
    let steps: Vec<&Step> = STEPS.iter().filter(picked).collect();
    ensure!(!steps.is_empty(), "no step is called so; `cargo xtask test --list` names them");
    for (number, step) in steps.iter().enumerate() {
        println!("\n== {}/{} {}", number + 1, steps.len(), step.name);
        let start = Instant::now();
        let counts = match (step.run)(&shared) {
            Ok(counts) => counts,
            Err(error) => match error.downcast_ref::<Skipped>() {
                Some(skipped) => {
                    notes.push(format!("skipped: {}: {}", step.name, skipped.0));
                    Counts { skipped: 1, ..Counts::default() }
                }
                None => {
                    println!("{error:#}");
                    Counts { failed: 1, ..Counts::default() }
                }
            },
        };
        if counts.failed > 0 {
            notes.push(format!("FAILED: {}", step.name));
        }
        println!("-- {}: {} ({:.1} s)", step.name, text(counts), start.elapsed().as_secs_f64());
        sum = Counts {
            passed: sum.passed + counts.passed,
            failed: sum.failed + counts.failed,
            skipped: sum.skipped + counts.skipped,
        };
    }
    println!();
    notes.iter().for_each(|n| println!("{n}"));
    println!("{}", text(sum));
    Ok(if sum.failed == 0 && sum.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(c: Counts) -> String {
    format!("{} passed, {} failed, {} skipped", c.passed, c.failed, c.skipped)
}

fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Snapshots are compared, never written; rustdoc takes its lints from the environment.
    command
        .args(arguments)
        .current_dir(shell::workspace())
        .env("INSTA_UPDATE", "no")
        .env("RUSTDOCFLAGS", "-D warnings");
    command
}

fn cargo(arguments: &[&str]) -> Result<Counts> {
    if let [tool @ ("fmt" | "clippy"), ..] = arguments
        && shell::find_program(&format!("cargo-{tool}")).is_none()
    {
        return Err(Skipped(format!("cargo-{tool} is not installed (rustup component add {tool})")).into());
    }
    shell::run(&mut cargo_command(arguments))?;
    Ok(ONE)
}

fn licences() -> Result<Counts> {
    let refused = audit::refused_licences()?;
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    Ok(ONE)
}

/// Each peer that is there counts as passed, each that cannot be had as skipped, by name.
fn peers() -> Result<Counts> {
    let mut counts = Counts::default();
    for (name, state) in install::install()? {
        match state {
            Ok(version) => {
                println!("peer {name}: {version}");
                counts.passed += 1;
            }
            Err(why) => {
                println!("skipped: peer {name}: {why}");
                counts.skipped += 1;
            }
        }
    }
    Ok(counts)
}

/// What is ignored here is no loss: tests on real cores have a step of their own, others are run by a test, in a process of their own.
fn tests() -> Result<Counts> {
    let counts = if shell::find_program("cargo-nextest").is_some() {
        let arguments = ["nextest", "run", "--workspace", "--locked", "--no-fail-fast", "--status-level", "fail"];
        count(cargo_command(&arguments), NEXTEST)
    } else {
        count(cargo_command(&["test", "--workspace", "--all-targets", "--locked", "--no-fail-fast"]), LIBTEST)
    };
    counts.map(|counts| Counts { skipped: 0, ..counts })
}

/// How the tests that need real cores are called, and what those have in their names that need makedumpfile besides.
const REAL_CORES: &str = "real_core";
const WITH_MAKEDUMPFILE: &str = "makedumpfile";

/// The tests that need real cores. Where the environment names none, or makedumpfile is not there, those that cannot run are skipped by
/// name.
fn real_cores() -> Result<Counts> {
    let tests = |more: &[&str]| {
        let all = ["test", "--quiet", "--workspace", "--lib", "--bins", "--tests", "--locked", "--", "--ignored"];
        cargo_command(&[&all, more].concat())
    };
    let skip = |filter: &[&str], why: &str| -> Result<u64> {
        let listed = shell::capture(&mut tests(&[filter, &["--list"]].concat()))?;
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.inspect(|name| println!("skipped: {name}: {why}")).count() as u64)
    };
    if std::env::var_os("CORESIFT_LAB").is_none_or(|folder| folder.is_empty()) {
        let skipped = skip(&[REAL_CORES], "CORESIFT_LAB names no folder of real cores")?;
        return Ok(Counts { skipped, ..Counts::default() });
    }
    let Err(missing) = skip_without("makedumpfile") else {
        let mut command = tests(&[REAL_CORES]);
        command.env("CORESIFT_PEERS", peers::home());
        return count(command, LIBTEST);
    };
    let theirs = skip(&[WITH_MAKEDUMPFILE], &missing.to_string())?;
    let counts = count(tests(&[REAL_CORES, "--skip", WITH_MAKEDUMPFILE]), LIBTEST)?;
    Ok(Counts { skipped: theirs, ..counts })
}

/// How the summary line of a runner begins. nextest repeats the lines of the standard runner for each failed test.
const NEXTEST: &str = "Summary [";
const LIBTEST: &str = "test result:";

/// Runs a test runner, shows what it prints, and adds up its summary lines.
fn count(mut command: Command, runner: &str) -> Result<Counts> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .env("CARGO_TERM_COLOR", "never")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {}", shell::line(&command)))?;
    // The command holds the writing ends of the pipe, and with them the end of the output back.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let counts = count_summaries(reader, runner);
    let status = child.wait()?;
    if !status.success() && counts.failed == 0 {
        bail!("{}: {status}", shell::line(&command));
    }
    Ok(counts)
}

fn count_summaries(output: impl Read, runner: &str) -> Counts {
    let mut sum = Counts::default();
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        println!("{line}");
        if let Some(counts) = line.trim_start().strip_prefix(runner).map(summary) {
            sum.passed += counts.passed;
            sum.failed += counts.failed;
            sum.skipped += counts.skipped;
        }
    }
    sum
}

/// The counts of a summary line: `N tests run: N passed, N failed, N skipped`, with other words between (nextest), or
/// `ok. N passed; N failed; N ignored; ...`.
fn summary(line: &str) -> Counts {
    let number = |word: &str| -> u64 {
        let words: Vec<&str> = line.split([' ', ',', ';', '.', '(', ')']).filter(|w| !w.is_empty()).collect();
        words.windows(2).filter(|pair| pair[1] == word).filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
    };
    // A test that ran out of time or crashed its process is listed apart by nextest.
    let failed = number("failed") + number("timed") + number("exec");
    Counts { passed: number("passed"), failed, skipped: number("skipped") + number("ignored") }
}

/// Level 31 is where the most is decided, level 0 where the most is copied.
fn bundled_pages() -> Result<Counts> {
    let (ours, core) = (peers::coresift(false)?, fixture::unpacked()?);
    skip_without("python")?;
    let folder = tempfile::tempdir_in(shell::target_dir())?;
    let mut counts = Counts::default();
    for (codec, level) in ["none", "zlib", "lzo", "snappy", "zstd"].into_iter().flat_map(|c| [(c, "31"), (c, "0")]) {
        let out = folder.path().join(format!("{codec}-{level}"));
        let mut command = Command::new(&ours);
        shell::capture(command.args(["dump", "-d", level, "--compress", codec]).args([&core, &out]))?;
        ensure!(check::pages(&core, &out)?, "{codec} at level {level}: see above");
        counts.passed += 1;
        std::fs::remove_file(out)?;
    }
    Ok(counts)
}

fn bundled_sets() -> Result<Counts> {
    let (ours, core) = (peers::coresift(false)?, fixture::unpacked()?);
    skip_without("makedumpfile")?;
    ensure!(check::sets(&ours, &core, &[1, 2, 4, 8, 16, 31], None)?, "they differ; see above");
    Ok(ONE)
}

/// [`Skipped`] where a peer is not there.
fn skip_without(peer: &str) -> Result<()> {
    peers::program(peer).map_err(|e| Skipped(format!("{e:#}")))?;
    Ok(())
}

/// Crashes a kernel and lets our program dump it.
fn crash(shared: &Shared) -> Result<Counts> {
    let mut options = lab::Options::new(KERNEL);
    options.vmlinux = true;
    let outcome = lab::crash(&options)?;
    lab::report(&outcome);
    ensure!(
        outcome.exit == Some(0),
        "the program ended with {:?} in the capture kernel; see the console",
        outcome.exit
    );
    ensure!(outcome.dump.is_some(), "it wrote no dump");
    let _ = shared.crash.set(outcome);
    Ok(ONE)
}

/// The files of a crash: raw core, our dump, kernel with debugging information.
struct Files<'a> {
    raw: &'a Path,
    dump: &'a Path,
    vmlinux: &'a Path,
}

/// Runs `check` on the crashed kernel's files, where there are such, and the peer `needs` is there.
fn on_crash(shared: &Shared, needs: &str, check: fn(&Files<'_>) -> Result<bool>) -> Result<Counts> {
    let Some(outcome) = shared.crash.get() else {
        return Err(Skipped("no kernel was crashed and dumped".into()).into());
    };
    skip_without(needs)?;
    let (Some(raw), Some(dump), Some(vmlinux)) = (&outcome.vmcore, &outcome.dump, &outcome.vmlinux) else {
        bail!("the lab left no raw core, dump or vmlinux");
    };
    ensure!(check(&Files { raw, dump, vmlinux })?, "they differ; see above");
    Ok(ONE)
}

fn check_pages(files: &Files<'_>) -> Result<bool> {
    check::pages(files.raw, files.dump)
}

fn check_set(files: &Files<'_>) -> Result<bool> {
    check::sets(
        &peers::coresift(false)?,
        files.raw,
        &[31],
        Some(files.vmlinux).filter(|_| peers::program("python").is_ok()),
    )
}

fn check_crash(files: &Files<'_>) -> Result<bool> {
    check::crash(files.raw, files.dump, files.vmlinux)
}

fn check_drgn(files: &Files<'_>) -> Result<bool> {
    check::drgn(files.raw, files.dump, files.vmlinux)
}

/// The decisive shares: less than anything opened before, and what more commands need.
fn check_cut(files: &Files<'_>) -> Result<bool> {
    cut::run(&peers::coresift(false)?, files.raw, files.vmlinux, &[10.0, 25.0])
}

fn check_kill(files: &Files<'_>) -> Result<bool> {
    Ok(kill::run(&peers::coresift(false)?, kill::Format::Kdump, files.raw, files.vmlinux, KILLS)?
        && kill::run(&peers::coresift(false)?, kill::Format::Elf, files.raw, files.vmlinux, ELF_KILLS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_both_runners_are_counted_and_other_lines_are_not() {
        let of = |passed, failed, skipped| Counts { passed, failed, skipped };
        for (runner, lines, expected) in [
            (NEXTEST, "     Summary [   0.005s] 8 tests run: 8 passed, 0 skipped", of(8, 0, 0)),
            (NEXTEST, "     Summary [   0.1s] 1 test run: 1 passed, 0 skipped", of(1, 0, 0)),
            (
                NEXTEST,
                "    test result: FAILED. 0 passed; 1 failed; 0 ignored\n     Summary [   1.5s] 9/10 tests run: \
                 6 passed (1 slow, 2 flaky), 2 failed, 1 timed out, 3 skipped",
                of(6, 3, 3),
            ),
            (LIBTEST, "test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out", of(7, 0, 2)),
            (
                LIBTEST,
                "test result: ok. 7 passed; 0 failed\nnoise\ntest result: FAILED. 1 passed; 1 failed",
                of(8, 1, 0),
            ),
            (LIBTEST, "test codec::zlib ... ok", of(0, 0, 0)),
        ] {
            assert_eq!(count_summaries(lines.as_bytes(), runner), expected, "{lines}");
        }
    }
}
