//! `cargo xtask bench`: our program and makedumpfile on one core file, in turn, on a machine that does nothing else.
//!
//! ```text
//! core ── page cache ──> for each target, codec and round: every contender once ──> costs, stages, page counts
//!                                                       └──> table, and a dated record under docs/benchmarks
//! ```
//! Rounds are interleaved so that a slow minute of the machine hits all alike. Numbers are for reading, never asserted.

mod contender;
mod measure;
mod record;
mod roofline;

use crate::{peers, shell};
use anyhow::{Context, Result, bail};
use contender::{CODECS, CONTENDERS, Run};
use record::Series;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
cargo xtask bench CORE [--quick] [--rounds N] [--targets tmpfs,null,disk] [--codecs none,lzo,snappy,zstd,zlib]
CORE: a raw core, as `cargo xtask lab KERNEL` leaves it. --quick: one round, tmpfs, lzo and zlib; writes no record.
The newest makedumpfile of `cargo xtask peers`, or of $CORESIFT_PEERS/bin, is compared.";

/// What to compare.
struct Plan {
    core: PathBuf,
    rounds: usize,
    targets: Vec<&'static str>,
    codecs: Vec<(&'static str, &'static str)>,
    record: bool,
}

const TARGETS: &[&str] = &["tmpfs", "null", "disk"];

/// Runs the comparison.
///
/// # Errors
/// A program is missing, the core cannot be read, or the record not written.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let plan = plan(arguments)?;
    let (ours, theirs) = (peers::coresift(true)?, peers::program("makedumpfile")?);
    let tmpfs = tempfile::Builder::new()
        .prefix("coresift-bench")
        .tempdir_in("/dev/shm")
        .context("needs a tmpfs at /dev/shm")?;
    let disk = tempfile::tempdir_in(shell::target_dir())?;
    let core = peers::core_for_makedumpfile(&plan.core, disk.path())?;
    let versions = [peers::version(&theirs, "-v"), peers::version(&ours, "--version")];
    println!("{}: {}, {}, {} rounds", plan.core.display(), versions[0], versions[1], plan.rounds);

    let mut all: Vec<Series> = Vec::new();
    warm(&core)?;
    for target in &plan.targets {
        let out = match *target {
            "tmpfs" => tmpfs.path().join("dump"),
            "disk" => disk.path().join("dump"),
            _ => PathBuf::from("/dev/null"),
        };
        for codec in &plan.codecs {
            all.extend(series(&plan, target, *codec, (&theirs, &ours), &core, &out));
        }
    }
    // Last: a child's peak memory begins at its parent's, and this needs large buffers.
    let roofline = roofline::measure(&core, tmpfs.path())?;
    let text = record::record(&plan.core, &versions, roofline, &all);
    print!("\n{}", text.split("\ntarget\tcodec").next().unwrap_or(&text));
    if plan.record {
        let date = shell::capture(Command::new("date").args(["-u", "+%F-%H%M"]))?;
        let name = plan.core.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        let path = shell::workspace().join(format!("docs/benchmarks/{}-{name}.txt", date.trim()));
        std::fs::create_dir_all(shell::workspace().join("docs/benchmarks"))?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("\nrecord: {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(arguments: &[String]) -> Result<Plan> {
    let mut plan =
        Plan { core: PathBuf::new(), rounds: 5, targets: TARGETS.to_vec(), codecs: CODECS.to_vec(), record: true };
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
        match word {
            "--quick" => {
                (plan.rounds, plan.record, plan.targets) = (1, false, vec!["tmpfs"]);
                plan.codecs.retain(|c| matches!(c.0, "lzo" | "zlib"));
            }
            "--rounds" => plan.rounds = value()?.parse().context("--rounds")?,
            "--targets" => plan.targets = pick(TARGETS, value()?, |t| t)?,
            "--codecs" => plan.codecs = pick(CODECS, value()?, |c| c.0)?,
            _ if word.starts_with('-') || !plan.core.as_os_str().is_empty() => bail!("{USAGE}"),
            _ => plan.core = word.into(),
        }
    }
    if plan.core.as_os_str().is_empty() {
        bail!("{USAGE}");
    }
    Ok(plan)
}

/// Those of `all` that `list` names.
fn pick<T: Copy>(all: &[T], list: &str, name: impl Fn(&T) -> &str) -> Result<Vec<T>> {
    list.split(',')
        .map(|word| all.iter().find(|t| name(t) == word).copied().with_context(|| format!("{word}?\n{USAGE}")))
        .collect()
}

/// Reads the core once, so that all programs find it in the page cache.
fn warm(core: &Path) -> Result<()> {
    let mut file = std::fs::File::open(core).with_context(|| format!("cannot open {}", core.display()))?;
    std::io::copy(&mut file, &mut std::io::sink())?;
    Ok(())
}

/// All contenders with one codec into one target, round by round. One that fails is out, with its reason.
fn series(
    plan: &Plan,
    target: &'static str,
    codec: (&'static str, &'static str),
    programs: (&Path, &Path),
    core: &Path,
    out: &Path,
) -> Vec<Series> {
    let mut all: Vec<Series> = CONTENDERS
        .iter()
        .map(|contender| {
            let shown = contender.command(
                (Path::new("makedumpfile"), Path::new("coresift")),
                codec,
                Path::new("CORE"),
                Path::new("OUT"),
            );
            Series { target, codec: codec.0, contender: *contender, command: shell::line(&shown), runs: Ok(Vec::new()) }
        })
        .collect();
    for round in 0..plan.rounds {
        for series in &mut all {
            let Ok(runs) = &mut series.runs else { continue };
            let run = series.contender.run(&mut series.contender.command(programs, codec, core, out), out);
            if out.is_file() {
                let _ = std::fs::remove_file(out);
            }
            match run {
                Ok(run) => {
                    say(round, target, codec.0, series.contender.name, &run);
                    runs.push(run);
                }
                Err(error) => {
                    println!("{target} {} {}: {error:#}", codec.0, series.contender.name);
                    series.runs = Err(format!("{error:#}"));
                }
            }
        }
    }
    all
}

fn say(round: usize, target: &str, codec: &str, name: &str, run: &Run) {
    println!("round {} {target:<6} {codec:<6} {name:<28} {:>8.3} s", round + 1, run.cost.wall);
}
