//! `cargo xtask check kill`: our program, killed at any moment or out of room at any byte, and what readers make of the file it leaves.

use super::kdump::{self, Kdump};
use super::readers::Crash;
use crate::shell;
use anyhow::{Context, Result};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Moments at which the program is killed, and half as many sizes at which its file may not grow any more.
pub const POINTS: u64 = 200;
/// What crash shows of a file that holds this part of the page data; an ELF core has the pages of need in blocks of four.
const CRASH_FROM: f64 = 0.1;
const CRASH_FROM_ELF: f64 = 0.125;
/// Where runs turn out to take less than was measured, so much of the time is tried, down to the shortest.
const SHORTER: f64 = 0.9;
const SHORTEST: Duration = Duration::from_millis(1);
const CRASH_COMMANDS: &[&str] = &["sys", "log", "bt"];

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A kdump-compressed file.
    Kdump,
    /// An ELF core.
    Elf,
}

impl Format {
    const fn name(self) -> &'static str {
        match self {
            Self::Kdump => "kdump",
            Self::Elf => "elf",
        }
    }

    const fn crash_from(self) -> f64 {
        match self {
            Self::Kdump => CRASH_FROM,
            Self::Elf => CRASH_FROM_ELF,
        }
    }

    const fn signature(self) -> &'static [u8] {
        match self {
            Self::Kdump => b"KDUMP",
            Self::Elf => b"\x7fELF",
        }
    }

    /// Whether `file`, which begins with `head`, is marked incomplete.
    fn incomplete(self, file: &Path, head: &[u8]) -> Result<bool> {
        Ok(match self {
            Self::Kdump => Kdump::open(file)?.incomplete,
            Self::Elf => number(head, E_FLAGS, 4)? & 1 != 0,
        })
    }

    /// Bytes of page data that `file` holds, which begins with `head`.
    fn claimed(self, file: &Path, head: &[u8]) -> Result<u64> {
        Ok(match self {
            Self::Kdump => kdump::claimed(file)?,
            Self::Elf => {
                let notes = number(head, NOTE_OFFSET, 8)? + number(head, NOTE_SIZE, 8)?;
                std::fs::metadata(file)?.len().saturating_sub(notes.next_multiple_of(PAGE))
            }
        })
    }
}

/// Fields of a 64-bit ELF core of ours: those of the header, and of the PT_NOTE behind it, in front of the pages.
const E_FLAGS: usize = 48;
const NOTE_OFFSET: usize = 72;
const NOTE_SIZE: usize = 96;
const PAGE: u64 = 4096;

fn number(head: &[u8], at: usize, size: usize) -> Result<u64> {
    let raw = head.get(at..at + size).context("the file ends within its header")?;
    Ok(raw.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Runs `ours` on `raw` again and again, each time ended at another point. True where every file left is one that libkdumpfile and drgn
/// open, with no page that differs from `raw`, and that crash shows as the whole core when a tenth (of an ELF core: an eighth) of the page data is in it; and
/// where there were such files at all.
///
/// # Errors
/// A program is missing, or fails on the whole core.
pub fn run(ours: &Path, format: Format, raw: &Path, vmlinux: &Path, points: u64) -> Result<bool> {
    let crash = Crash::for_core(raw, vmlinux)?;
    let answers =
        crash.ask(raw, vmlinux, CRASH_COMMANDS)?.map_err(|why| anyhow::anyhow!("crash on the core: {why}"))?;
    let folder = tempfile::tempdir_in(shell::target_dir())?;
    let file = folder.path().join("dump");
    let (time, size, whole) = whole_run(&|| command(ours, format, raw, &file), format, &file)?;
    println!(
        "{}: a dump takes {:.2} s and {size} bytes; {points} kills, {} limits",
        raw.display(),
        time.as_secs_f64(),
        points / 2
    );

    let judge = Judge { format, raw, vmlinux, crash, answers, whole };
    let mut counts = Counts::default();
    let mut time = time;
    for point in 0..points {
        let mut delay = time.mul_f64(fraction(point));
        // The machine may be faster now than it was: a run that has ended was not killed.
        while !kill_after(&mut command(ours, format, raw, &file), delay)? && delay > SHORTEST {
            (time, delay) = (time.mul_f64(SHORTER), delay.mul_f64(SHORTER));
        }
        judge.look(&file, &format!("killed after {:.1} ms", delay.as_secs_f64() * 1e3), &mut counts)?;
    }
    counts.killed = counts.unfinished;
    for point in points..points + points / 2 {
        let limit = (size as f64 * fraction(point)) as u64;
        under_limit(&command(ours, format, raw, &file), limit)?;
        judge.look(&file, &format!("limited to {limit} bytes"), &mut counts)?;
    }
    println!(
        "  {} files without a header yet, {} unfinished ({} of them by a kill), {} finished; \
         crash opened {} of {} unfinished ones that hold enough; {} wrong",
        counts.empty,
        counts.unfinished,
        counts.killed,
        counts.finished,
        counts.crash_same,
        counts.crash_due,
        counts.wrong
    );
    let failure = counts.failure();
    failure.iter().for_each(|why| println!("  {why}"));
    Ok(failure.is_none())
}

/// A number from 0 to 1, another for each `point`, the same every time (SplitMix64).
fn fraction(point: u64) -> f64 {
    let mut z = point.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31) as f64 / u64::MAX as f64
}

fn command(ours: &Path, format: Format, raw: &Path, file: &Path) -> Command {
    let mut command = Command::new(ours);
    command
        .args(["dump", "-d", "31", "-f", "--format", format.name()])
        .args([raw, file])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Time and size of a dump nobody interrupts, and the bytes of page data its descriptors point at.
fn whole_run(command: &dyn Fn() -> Command, format: Format, file: &Path) -> Result<(Duration, u64, u64)> {
    let mut time = Duration::ZERO;
    // The first run brings the core into the page cache.
    for _ in 0..2 {
        let clock = Instant::now();
        shell::run(&mut command())?;
        time = clock.elapsed();
    }
    let head = std::fs::read(file)?;
    let claimed = format.claimed(file, &head)?;
    std::fs::remove_file(file)?;
    Ok((time, head.len() as u64, claimed))
}

/// Whether the program was killed, and had not ended before.
fn kill_after(command: &mut Command, delay: Duration) -> Result<bool> {
    let mut child = command.spawn().with_context(|| shell::line(command))?;
    std::thread::sleep(delay);
    // One that has ended by itself cannot be killed.
    let _ended = child.kill();
    Ok(child.wait()?.signal().is_some())
}

/// Runs `command` where a file may have `limit` bytes at the most, and writing on is an error and no signal.
fn under_limit(command: &Command, limit: u64) -> Result<()> {
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", limit / 512);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.stdout(Stdio::null()).stderr(Stdio::null()).status().context("sh")?;
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Counts {
    empty: u64,
    unfinished: u64,
    /// Unfinished files that a kill left; the others are those of a limit.
    killed: u64,
    finished: u64,
    /// Unfinished files that hold enough for crash, and those of them that it shows as the whole core.
    crash_due: u64,
    crash_same: u64,
    wrong: u64,
}

impl Counts {
    /// Why nothing was shown, if so.
    const fn failure(&self) -> Option<&'static str> {
        match self {
            Self { wrong: 1.., .. } => Some("what is wrong stands above"),
            Self { killed: 0, .. } => {
                Some("no kill left an unfinished file: nothing was shown; take a larger core or more kills")
            }
            Self { crash_due: 0, .. } => {
                Some("no unfinished file held enough for crash: nothing was shown; take more kills")
            }
            _ if self.crash_same < self.crash_due => Some("crash did not open all it should"),
            _ => None,
        }
    }
}

struct Judge<'a> {
    format: Format,
    raw: &'a Path,
    vmlinux: &'a Path,
    crash: Crash,
    answers: Vec<String>,
    /// Bytes of page data of the whole dump.
    whole: u64,
}

impl Judge<'_> {
    /// Looks at `file`, and removes it.
    fn look(&self, file: &PathBuf, what: &str, counts: &mut Counts) -> Result<()> {
        let mut wrong = |why: &str| {
            counts.wrong += 1;
            println!("  {what}: {why}");
        };
        let head = std::fs::read(file).unwrap_or_default();
        if !head.starts_with(self.format.signature()) {
            // Opened, and not written to yet.
            counts.empty += 1;
            if head.iter().any(|byte| *byte != 0) {
                wrong("the file has content, but no header");
            }
            // One that existed before is an ELF core only when its pages are known.
            drop(std::fs::remove_file(file));
            return Ok(());
        }
        let incomplete = self.format.incomplete(file, &head)?;
        *(if incomplete { &mut counts.unfinished } else { &mut counts.finished }) += 1;
        let (script, option) = match self.format {
            Format::Kdump => ("check_pages.py", incomplete.then_some("--unfinished")),
            Format::Elf => ("check_elf.py", None),
        };
        let mut pages = super::python(script)?;
        pages.arg(self.raw).arg(file).args(option);
        let out = shell::output(&mut pages)?;
        if !out.status.success() {
            wrong(&format!("{script}:\n{}", shell::tail(&String::from_utf8_lossy(&out.stdout), 30)));
        }
        let out = shell::output(super::python("opens.py")?.arg(file))?;
        if !out.status.success() {
            wrong(&format!("drgn: {}", shell::tail(&String::from_utf8_lossy(&out.stderr), 2)));
        }
        if self.format.claimed(file, &head)? as f64 >= self.whole as f64 * self.format.crash_from() {
            counts.crash_due += u64::from(incomplete);
            match self.crash.ask(file, self.vmlinux, CRASH_COMMANDS)? {
                Ok(answers) if answers == self.answers => counts.crash_same += u64::from(incomplete),
                Ok(_) => wrong("crash prints something else"),
                Err(why) => wrong(&format!("crash: {why}")),
            }
        }
        std::fs::remove_file(file)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_that_leave_nothing_to_look_at_show_nothing() {
        let good = Counts { unfinished: 9, killed: 3, crash_due: 2, crash_same: 2, finished: 5, ..Counts::default() };
        assert_eq!(good.failure(), None);
        for bad in [
            Counts { killed: 0, ..good },
            Counts { crash_due: 0, crash_same: 0, ..good },
            Counts { crash_same: 1, ..good },
            Counts { wrong: 1, ..good },
            Counts::default(),
        ] {
            assert!(bad.failure().is_some());
        }
    }
}
