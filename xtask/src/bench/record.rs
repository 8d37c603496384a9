//! The dated record of one comparison: machine, programs, commands, a table, and every single run.

use super::ceiling::{self, Ceiling};
use super::contender::{CODECS, CONTENDERS, Contender, LEVEL, Run};
use super::pairs;
use super::roofline::Roofline;
use crate::shell;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// All runs of one contender with one codec into one target.
pub struct Series {
    /// Where the dump went: `tmpfs`, `null`, `disk`.
    pub target: &'static str,
    /// Our name of the codec.
    pub codec: &'static str,
    /// Who ran.
    pub contender: Contender,
    /// The command, with CORE and OUT in place of paths.
    pub command: String,
    /// Every run, in order; or why there are none.
    pub runs: Result<Vec<Run>, Failure>,
}

/// Why a contender was not run on.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What it or we said.
    pub why: String,
    /// Seconds it had, where it took longer.
    pub after: Option<f64>,
}

impl Failure {
    /// The line of the error that names no path of this machine.
    pub fn short(&self) -> &str {
        self.why.lines().find(|l| !l.is_empty() && !l.contains('/')).unwrap_or("failed")
    }
}

impl Series {
    /// Wall times in ascending order.
    fn walls(&self) -> Vec<f64> {
        let mut walls: Vec<f64> = self.runs.iter().flatten().map(|r| r.cost.wall).collect();
        walls.sort_by(f64::total_cmp);
        walls
    }

    /// The run with the least wall time.
    pub fn best(&self) -> Option<&Run> {
        self.runs.as_ref().ok()?.iter().min_by(|a, b| a.cost.wall.total_cmp(&b.cost.wall))
    }

    /// The run with the least time for copying.
    pub fn best_copy(&self) -> Option<&Run> {
        self.runs.as_ref().ok()?.iter().min_by(|a, b| a.stages[1].total_cmp(&b.stages[1]))
    }
}

/// The table: best and median, stages of the best run, and how many times faster than each makedumpfile.
pub fn table(all: &[Series]) -> String {
    let mut out = format!(
        "{:<6} {:<6} {:<28} {:>7} {:>7} {:>6} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8} {:>9} {:>6} {:>6}\n",
        "target",
        "codec",
        "program",
        "best s",
        "median",
        "find",
        "copy",
        "user",
        "system",
        "peak MiB",
        "faults",
        "switches",
        "kept",
        "x mdf",
        "x mdf2"
    );
    for series in all {
        let _ = write!(out, "{:<6} {:<6} {:<28} ", series.target, series.codec, series.contender.name);
        let (walls, Some(best)) = (series.walls(), series.best()) else {
            let _ = writeln!(out, "skipped: {}", series.runs.as_ref().err().map_or("no run", Failure::short));
            continue;
        };
        let cost = &best.cost;
        let _ = write!(
            out,
            "{:>7.3} {:>7.3} {:>6.3} {:>7.3} {:>7.3} {:>7.3} {:>8.1} {:>8} {:>8} {:>9}",
            walls.first().copied().unwrap_or_default(),
            walls.get(walls.len() / 2).copied().unwrap_or_default(),
            best.stages[0],
            best.stages[1],
            cost.user,
            cost.system,
            cost.peak_kib as f64 / 1024.0,
            cost.faults[0] + cost.faults[1],
            cost.switches[0] + cost.switches[1],
            best.kept.map_or("-".into(), |k| k.to_string()),
        );
        for other in CONTENDERS.iter().filter(|c| series.contender.ours && !c.ours) {
            let theirs = all
                .iter()
                .find(|s| s.target == series.target && s.codec == series.codec && s.contender == *other)
                .and_then(Series::best);
            let ratio = theirs.map_or("-".into(), |t| format!("{:.2}", t.cost.wall / cost.wall));
            let _ = write!(out, " {ratio:>6}");
        }
        out.push('\n');
    }
    out
}

/// A line for each codec whose outputs do not hold the same number of pages, whoever wrote them.
pub fn unequal_work(all: &[Series]) -> Vec<String> {
    let mut lines = Vec::new();
    for (codec, _) in CODECS {
        let counts: Vec<(&str, u64)> = all
            .iter()
            .filter(|s| s.codec == *codec)
            .flat_map(|s| s.runs.iter().flatten().filter_map(|r| Some((s.contender.name, r.kept?))))
            .collect();
        if let Some(first) = counts.first()
            && let Some(other) = counts.iter().find(|c| c.1 != first.1)
        {
            let percent = (other.1 as f64 / first.1 as f64 - 1.0) * 100.0;
            lines.push(format!(
                "{codec}: {} kept {} pages, {} {} ({percent:+.3} %)",
                first.0, first.1, other.0, other.1
            ));
        }
    }
    lines
}

/// What a record is of.
pub struct Subject<'a> {
    /// The core, as the record shows it.
    pub name: &'a str,
    /// Its file.
    pub core: &'a Path,
    /// The command that made the record.
    pub command: &'a str,
    /// Who was compared.
    pub versions: &'a [String],
    /// Seconds each run had.
    pub timeout: f64,
}

/// What was measured beside the runs.
#[derive(Default)]
pub struct Limits {
    /// Of the machine.
    pub roofline: Option<Roofline>,
    /// Of the core on this machine; or why there is none.
    pub ceiling: Option<Result<Ceiling, String>>,
}

/// The whole record as text.
pub fn record(subject: &Subject<'_>, limits: &Limits, all: &[Series]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "# coresift and makedumpfile on one core, dump level {LEVEL}\n");
    head(&mut out, subject);
    let kept = all.iter().filter_map(Series::best).find_map(|r| r.kept.or(r.said.map(|s| s.kept_pages))).unwrap_or(0);
    if let Some(roofline) = limits.roofline {
        let gib = |rate: f64| rate / f64::from(1 << 30);
        let _ = writeln!(
            out,
            "\none core can: read the core at {:.2} GiB/s, copy memory at {:.2} GiB/s, write to tmpfs at {:.2} GiB/s;\n\
             the {kept} pages kept are {:.2} GiB: {:.3} s to read, {:.3} s to write raw",
            gib(roofline.read),
            gib(roofline.copy),
            gib(roofline.write),
            gib(kept as f64 * 4096.0),
            kept as f64 * 4096.0 / roofline.read,
            kept as f64 * 4096.0 / roofline.write,
        );
    }
    let unequal = unequal_work(all);
    let _ = writeln!(
        out,
        "pages kept: {}\n",
        if unequal.is_empty() { "equal wherever the output could be read back".into() } else { unequal.join("; ") }
    );
    let _ = writeln!(
        out,
        "Seconds; find and copy as the program reports them; x mdf: times faster than makedumpfile, best to best;\n\
         x mdf2: than makedumpfile --num-threads 2. Programs ran in turn, round by round, each run with {:.0} s at most.\n\n{}",
        subject.timeout,
        table(all)
    );
    let _ = writeln!(
        out,
        "Pair by pair: their seconds by ours in the same round; median of the rounds, worst and best. else: what is neither\n\
         stage (start, headers, page tables, symbols, end).\n\n{}",
        pairs::table(all)
    );
    match &limits.ceiling {
        Some(Ok(ceiling)) => {
            let _ = writeln!(out, "What one core could do at most\n\n{}", ceiling::table(ceiling, all));
        }
        Some(Err(why)) => {
            let _ = writeln!(out, "What one core could do at most was not measured: {why}\n");
        }
        None => {}
    }
    let _ = writeln!(
        out,
        "target\tcodec\tprogram\twall\tuser\tsystem\tpeak_kib\tminflt\tmajflt\tnvcsw\tnivcsw\tfind\tcopy\tkept\tbytes"
    );
    for s in all {
        for r in s.runs.iter().flatten() {
            let c = &r.cost;
            let number = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
            let _ = writeln!(
                out,
                "{}\t{}\t{}\t{:.4}\t{:.3}\t{:.3}\t{}\t{}\t{}\t{}\t{}\t{:.4}\t{:.4}\t{}\t{}",
                s.target,
                s.codec,
                s.contender.name,
                c.wall,
                c.user,
                c.system,
                c.peak_kib,
                c.faults[0],
                c.faults[1],
                c.switches[0],
                c.switches[1],
                r.stages[0],
                r.stages[1],
                number(r.kept),
                number(r.bytes),
            );
        }
    }
    out.push_str("\nCommands\n");
    for s in all {
        let _ = writeln!(out, "{}", s.command);
    }
    out
}

/// A record of memory by threads.
pub fn memory_record(subject: &Subject<'_>, table: &str) -> String {
    let mut out = format!("# Memory of coresift by threads, dump level {LEVEL}, into /dev/null\n\n");
    head(&mut out, subject);
    let _ = write!(out, "\n{table}");
    out
}

/// Machine, versions, command and core.
fn head(out: &mut String, subject: &Subject<'_>) {
    for line in machine().iter().chain(subject.versions) {
        let _ = writeln!(out, "{line}");
    }
    let size = subject.core.metadata().map_or(0, |m| m.len());
    let _ = writeln!(out, "command: {}\ncore: {} ({size} bytes), in the page cache", subject.command, subject.name);
}

/// Date, processor, memory, kernel, compiler and commit.
fn machine() -> Vec<String> {
    let first = |path: &str, key: &str| -> String {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with(key)).unwrap_or_default();
        line.split_once(':').map_or("", |l| l.1).trim().to_owned()
    };
    let says = |program: &str, arguments: &[&str]| {
        let out = shell::capture(Command::new(program).args(arguments).current_dir(shell::workspace()));
        out.unwrap_or_default().trim().to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    vec![
        format!("date: {}", says("date", &["-u", "+%F %H:%M UTC"])),
        format!(
            "machine: {cores} cores of {}, MemTotal {}",
            first("/proc/cpuinfo", "model name"),
            first("/proc/meminfo", "MemTotal")
        ),
        format!("load before: {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim()),
        format!("kernel: {}", says("uname", &["-sr"])),
        format!("compiler: {}", says("rustc", &["--version"])),
        format!("commit: {}", says("git", &["describe", "--always", "--dirty"])),
    ]
}
