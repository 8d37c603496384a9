//! `cargo xtask bench`: our program and makedumpfile on the same core files, in turn, on a machine that does nothing else.
//!
//! ```text
//! core ── page cache ──> for each target, codec and round: every contender once ──> costs, stages, page counts
//!                        what one core could do at most (machine, core) ────────────> tables, and a dated record
//! ```
//! Rounds are interleaved so that a slow minute of the machine hits all alike. Numbers are for reading, never asserted.

mod ceiling;
mod contender;
mod measure;
mod memory;
mod pairs;
mod record;
mod roofline;

use crate::{peers, shell, synthetic};
use anyhow::{Context, Result, bail};
use contender::{CODECS, CONTENDERS, Run};
use measure::{TimedOut, Watch};
use record::{Failure, Limits, Series, Subject};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const USAGE: &str = "\
cargo xtask bench CORE... [--quick] [--rounds N] [--targets tmpfs,null,disk] [--codecs none,lzo,snappy,zstd,zlib]
                  [--timeout SECONDS] [--memory]
CORE: a raw core, as `cargo xtask lab KERNEL` leaves it, or a synthetic machine, synth:LAYOUT:GIB:MIX, which is made first.
--quick: one round, tmpfs, lzo and zlib; writes no record. --timeout: what one run may take, 120 by default; a contender that
takes longer is out, by name. --memory: instead, our program's memory with 1 to 32 threads.
The newest makedumpfile of `cargo xtask peers`, or of $CORESIFT_PEERS/bin, is compared.";

/// What to compare.
struct Plan {
    cores: Vec<String>,
    rounds: usize,
    targets: Vec<&'static str>,
    codecs: Vec<(&'static str, &'static str)>,
    timeout: Duration,
    memory: bool,
    record: bool,
}

const TARGETS: &[&str] = &["tmpfs", "null", "disk"];

/// Where dumps go, for as long as it lives.
struct Targets {
    tmpfs: tempfile::TempDir,
    disk: tempfile::TempDir,
}

impl Targets {
    fn new() -> Result<Self> {
        let tmpfs = tempfile::Builder::new().prefix("coresift-bench").tempdir_in("/dev/shm");
        let tmpfs = tmpfs.context("needs a tmpfs at /dev/shm")?;
        Ok(Self { tmpfs, disk: tempfile::tempdir_in(shell::target_dir())? })
    }

    fn file(&self, target: &str) -> PathBuf {
        match target {
            "tmpfs" => self.tmpfs.path().join("dump"),
            "disk" => self.disk.path().join("dump"),
            _ => PathBuf::from("/dev/null"),
        }
    }
}

/// A core that was run on, with what came of it.
struct Measured {
    name: String,
    core: PathBuf,
    all: Vec<Series>,
    record: Option<PathBuf>,
}

/// Runs the comparison.
///
/// # Errors
/// A program is missing, a core cannot be read or made, or a record not written.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let plan = plan(arguments)?;
    let command = format!("cargo xtask bench {}", shown(arguments));
    let ours = peers::coresift(true)?;
    let targets = Targets::new()?;
    if plan.memory {
        let versions = [peers::version(&ours, "--version")];
        for argument in &plan.cores {
            let (name, core) = core(argument)?;
            warm(&core)?;
            let table = memory::table(&ours, &core, plan.timeout)?;
            let text = record::memory_record(&subject(&name, &core, &command, &versions, &plan), &table);
            print!("\n{table}");
            save(&plan, &format!("{name}-memory"), None, &text)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let theirs = peers::program("makedumpfile")?;
    let versions = [peers::version(&theirs, "-v"), peers::version(&ours, "--version")];
    println!("{}, {}, {} rounds", versions[0], versions[1], plan.rounds);
    let mut measured = Vec::new();
    for argument in &plan.cores {
        let (name, core) = core(argument)?;
        let core = peers::core_for_makedumpfile(&core, targets.disk.path())?;
        println!("{name}");
        warm(&core)?;
        let mut all: Vec<Series> = Vec::new();
        for target in &plan.targets {
            for codec in &plan.codecs {
                all.extend(series(&plan, target, *codec, (&theirs, &ours), &core, &targets.file(target)));
            }
        }
        let subject = subject(&name, &core, &command, &versions, &plan);
        let record = save(&plan, &name, None, &record::record(&subject, &Limits::default(), &all))?;
        measured.push(Measured { name, core, all, record });
    }
    // Last: a child's peak memory begins at its parent's, and this needs large buffers.
    for Measured { name, core, all, record } in measured {
        let kept = all.iter().filter_map(Series::best).find_map(|r| Some(r.said?.kept_pages)).unwrap_or(0);
        let outs: Vec<(&'static str, PathBuf)> = plan.targets.iter().map(|t| (*t, targets.file(t))).collect();
        let ceiling = ceiling::measure(&core, kept, &all, &outs).map_err(|e| format!("{e:#}"));
        let limits = Limits { roofline: Some(roofline::measure(&core, targets.tmpfs.path())?), ceiling: Some(ceiling) };
        let text = record::record(&subject(&name, &core, &command, &versions, &plan), &limits, &all);
        print!("\n{}", text.split("\ntarget\tcodec").next().unwrap_or(&text));
        save(&plan, &name, record, &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn subject<'a>(name: &'a str, core: &'a Path, command: &'a str, versions: &'a [String], plan: &Plan) -> Subject<'a> {
    Subject { name, core, command, versions, timeout: plan.timeout.as_secs_f64() }
}

/// The arguments with no path of this machine but a core's folder and name.
fn shown(arguments: &[String]) -> String {
    let short = |a: &String| match Path::new(a).file_name() {
        Some(file) if a.contains('/') => Path::new(&label(a)).join(file).display().to_string(),
        _ => a.clone(),
    };
    arguments.iter().map(short).collect::<Vec<_>>().join(" ")
}

/// What a core is called in a record: the folder it is in, or the machine it was made as.
fn label(argument: &str) -> String {
    match argument.strip_prefix(synthetic::PREFIX) {
        Some(spec) => format!("synth-{}", spec.replace([':', '+'], "-")),
        None => {
            Path::new(argument).parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
        }
    }
}

/// The name and the file of a core argument.
fn core(argument: &str) -> Result<(String, PathBuf)> {
    let path = match argument.strip_prefix(synthetic::PREFIX) {
        Some(spec) => synthetic::core_by_child(spec)?,
        None => PathBuf::from(argument),
    };
    Ok((label(argument), path))
}

/// Writes a record, over `old` where there is one.
fn save(plan: &Plan, name: &str, old: Option<PathBuf>, text: &str) -> Result<Option<PathBuf>> {
    if !plan.record {
        return Ok(None);
    }
    let folder = shell::workspace().join("docs/benchmarks");
    std::fs::create_dir_all(&folder)?;
    let path = match old {
        Some(old) => old,
        None => {
            let date = shell::capture(Command::new("date").args(["-u", "+%F-%H%M"]))?;
            folder.join(format!("{}-{name}.txt", date.trim()))
        }
    };
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("\nrecord: {}", path.display());
    Ok(Some(path))
}

fn plan(arguments: &[String]) -> Result<Plan> {
    let mut plan = Plan {
        cores: Vec::new(),
        rounds: 5,
        targets: TARGETS.to_vec(),
        codecs: CODECS.to_vec(),
        timeout: Duration::from_secs(120),
        memory: false,
        record: true,
    };
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
        match word {
            "--quick" => {
                (plan.rounds, plan.record, plan.targets) = (1, false, vec!["tmpfs"]);
                plan.codecs.retain(|c| matches!(c.0, "lzo" | "zlib"));
            }
            "--memory" => plan.memory = true,
            "--rounds" => plan.rounds = value()?.parse().context("--rounds")?,
            "--timeout" => plan.timeout = Duration::from_secs(value()?.parse().context("--timeout")?),
            "--targets" => plan.targets = pick(TARGETS, value()?, |t| t)?,
            "--codecs" => plan.codecs = pick(CODECS, value()?, |c| c.0)?,
            _ if word.starts_with('-') => bail!("{USAGE}"),
            _ => plan.cores.push(word.into()),
        }
    }
    if plan.cores.is_empty() {
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

/// Reads what the core's file holds once, holes left out, so that all programs find it in the page cache; the bytes read.
fn warm(core: &Path) -> Result<u64> {
    let file = File::open(core).with_context(|| format!("cannot open {}", core.display()))?;
    let (mut block, mut at, mut total) = (vec![0; 1 << 20], 0, 0);
    while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(data))?;
        at = data;
        while at < end {
            let most = block.len().min((end - at) as usize);
            match file.read_at(&mut block[..most], at)? {
                0 => return Ok(total),
                n => (at, total) = (at + n as u64, total + n as u64),
            }
        }
    }
    Ok(total)
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
            let watch = Watch { timeout: plan.timeout, sample: None };
            let run = series.contender.run(&mut series.contender.command(programs, codec, core, out), out, watch);
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
                    let after = error.downcast_ref::<TimedOut>().map(|t| t.0.as_secs_f64());
                    series.runs = Err(Failure { why: format!("{error:#}"), after });
                }
            }
        }
    }
    all
}

fn say(round: usize, target: &str, codec: &str, name: &str, run: &Run) {
    println!("round {} {target:<6} {codec:<6} {name:<28} {:>8.3} s", round + 1, run.cost.wall);
}
