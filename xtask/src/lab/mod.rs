//! `cargo xtask lab`: crashes a real kernel and dumps it with our program, in QEMU.
//!
//! ```text
//! Debian packages ─ kernel ─> image + modules ┐
//! lab/*.sh, lab/guest.c, our static program ──┴─ guest ─> initramfs ─ qemu ─> workload, crash, capture kernel, dump
//! ```

mod cpio;
mod guest;
mod kernel;
mod options;
mod qemu;
mod runs;

pub use options::Options;

use crate::debian::{self, Skipped};
use crate::{fixture, shell};
use anyhow::{Context, Result, bail};
use qemu::{Accelerator, Ended, Guest, Machine};
use runs::{Run, value};
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Programs the host needs, with the Debian packages that have them.
const NEEDS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mkfs.ext4", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("cc", "gcc libc6-dev"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// How often a kernel is started before the lab gives up. Two accidents happen: the kernel lies, by KASLR, where the
/// crashkernel reservation needs the room (one in six at 512 MiB with 256 MiB reserved); and under translation a kernel
/// sometimes dies while it patches its own code. The last try is without KASLR.
const ATTEMPTS: u32 = 5;

/// What a run of the lab leaves behind, and `lab.json` says.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// `uname -r` of the kernel that crashed.
    pub release: String,
    /// Version line of QEMU, and how it ran the guest.
    pub qemu: String,
    /// Memory of the guest, in MiB.
    pub memory_mib: u64,
    /// Memory reserved for the capture kernel.
    pub crashkernel: String,
    /// `MemAvailable` in the capture kernel before the dump, in KiB.
    pub available_kib: Option<u64>,
    /// What ran in the capture kernel, without input and output.
    pub program: Option<String>,
    /// How it ended, as a shell would say it; where several were run, the first one that failed.
    pub exit: Option<i64>,
    /// Every run, with what it cost.
    pub runs: Vec<Run>,
    /// What lab/probe.c measured.
    pub probes: Vec<String>,
    /// Processors the capture kernel used.
    pub capture_cpus: Option<u64>,
    /// Things the workload could not do in this kernel.
    pub notes: Vec<String>,
    /// The dump it wrote.
    pub dump: Option<PathBuf>,
    /// /proc/vmcore as it was.
    pub vmcore: Option<PathBuf>,
    /// The kernel with debugging information.
    pub vmlinux: Option<PathBuf>,
    /// What both kernels said.
    pub console: PathBuf,
}

/// The command.
///
/// # Errors
/// Wrong arguments, or what [`crash`] says.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let Some(options) = Options::parse(arguments)? else {
        print!("{}", options::help());
        return Ok(ExitCode::SUCCESS);
    };
    debian::exit_code(crash(&options).and_then(|outcome| {
        report(&outcome);
        if options.fixture { store_fixture(&outcome) } else { check(&outcome) }
    }))
}

/// The folder for what is downloaded and built for the guests; `CORESIFT_LAB_DIR` moves it.
pub fn cache_dir() -> PathBuf {
    std::env::var_os("CORESIFT_LAB_DIR")
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| shell::target_dir().join("lab"), PathBuf::from)
}

/// Boots and crashes a kernel as `options` say, and brings out what they ask for.
///
/// # Errors
/// [`Skipped`] where the machine lacks a program and we may not install it; the mirror, QEMU or the guest failed.
/// That our program failed is no error here but in [`Outcome::exit`].
pub fn crash(options: &Options) -> Result<Outcome> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Skipped("the lab boots x86-64 kernels on x86-64 only".to_owned()).into());
    }
    debian::require(NEEDS)?;
    let cache = cache_dir();
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let _lock = one_at_a_time(&cache)?;
    let kernel = kernel::get(&options.kernel, &cache, options.vmlinux)?;
    let out = options.out.clone().unwrap_or_else(|| cache.join("runs").join(&options.kernel));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.canonicalize()?;
    let work = WorkDir::new(cache.join("work"))?;

    let mut outcome = Outcome {
        release: kernel.release.clone(),
        memory_mib: options.memory_mib,
        crashkernel: options.crashkernel.clone(),
        program: options.program_line(),
        vmlinux: kernel.vmlinux.clone(),
        console: out.join("console.log"),
        ..Outcome::default()
    };
    let initramfs = work.0.join("initramfs");
    fs::write(&initramfs, guest::initramfs(options, &kernel, &cache)?)?;

    let disk = |name: &str, mib: u64| -> Result<PathBuf> {
        let path = work.0.join(name);
        File::create(&path)?.set_len(mib << 20)?;
        Ok(path)
    };
    let [scratch, dumps] = [disk("scratch", options.memory_mib * 2)?, disk("dumps", options.memory_mib * 3 / 2 + 256)?];
    for ext4 in [&scratch, &dumps] {
        let mkfs = debian::find("mkfs.ext4").context("no mkfs.ext4")?;
        shell::capture(Command::new(mkfs).args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1"]).arg(ext4))?;
    }
    let raw = out.join("vmcore.part");
    File::create(&raw)?.set_len((options.memory_mib + 64) << 20)?;
    let mut machine = Machine {
        accelerator: if options.count_instructions { Accelerator::Tcg } else { Accelerator::best() },
        memory_mib: options.memory_mib,
        five_level_paging: options.five_level_paging,
        kernel: &kernel.image,
        initramfs: &initramfs,
        count_instructions: options.count_instructions,
        command_line: "",
        disks: &[scratch, dumps.clone(), raw.clone()],
        console: &outcome.console.clone(),
    };
    let result = boot_until_it_works(&mut machine, options, &mut outcome);
    let length = match result {
        Ok(length) => length,
        Err(error) => {
            let _ = fs::remove_file(&raw);
            return Err(error);
        }
    };
    outcome.qemu = format!("{}, {}", qemu::version()?, machine.accelerator.name());
    if let Some(length) = length {
        File::options().write(true).open(&raw)?.set_len(length)?;
        let vmcore = out.join("vmcore");
        fs::rename(&raw, &vmcore)?;
        outcome.vmcore = Some(vmcore);
    } else {
        fs::remove_file(&raw)?;
    }
    if outcome.program.is_some() {
        outcome.dump = extract(&dumps, "dump", &out)?;
    }
    fs::write(out.join("lab.json"), serde_json::to_string_pretty(&outcome)? + "\n")?;
    Ok(outcome)
}

/// Boots until a guest gets to the end: by another accelerator, or once more after one of the accidents of [`ATTEMPTS`].
/// Returns the length of the raw core.
fn boot_until_it_works(machine: &mut Machine<'_>, options: &Options, outcome: &mut Outcome) -> Result<Option<u64>> {
    let mut attempt = 1;
    loop {
        let no_kaslr = if attempt == ATTEMPTS { " nokaslr" } else { "" };
        let command_line = format!("console=ttyS0 panic=-1 crashkernel={}{no_kaslr}", options.crashkernel);
        let how = machine.accelerator.name();
        println!(
            "lab: booting {} under {how}, {} MiB, crashkernel={}",
            outcome.release, machine.memory_mib, options.crashkernel
        );
        let mut crashed = false;
        match boot(&Machine { command_line: &command_line, ..*machine }, options, outcome, &mut crashed) {
            Ok(Said::End(raw)) => return Ok(raw),
            Ok(Said::Again(why)) if attempt < ATTEMPTS => println!("lab: again: {why}"),
            Ok(Said::Again(why)) => bail!("the guest failed {ATTEMPTS} times, the last time: {why}"),
            Err(error) => match error.downcast_ref::<Ended>() {
                Some(Ended::Unusable) => {
                    println!("lab: {error}; its instructions will be translated");
                    machine.accelerator = Accelerator::Tcg;
                    continue;
                }
                Some(Ended::Exited(_)) if !crashed && attempt < ATTEMPTS => {
                    println!("lab: again: the kernel died while booting")
                }
                _ => return Err(error),
            },
        }
        attempt += 1;
    }
}

/// How a guest came to its end.
enum Said {
    /// All done; the length of the raw core where one was taken.
    End(Option<u64>),
    /// It could not do its work this time, and why.
    Again(String),
}

/// One boot: follows what the guest says until it is done. `crashed`: it got as far as that.
fn boot(machine: &Machine<'_>, options: &Options, outcome: &mut Outcome, crashed: &mut bool) -> Result<Said> {
    let started = Instant::now();
    let deadline = started + options.timeout();
    let mut guest = Guest::start(machine)?;
    let mut raw = None;
    (outcome.exit, outcome.runs, outcome.probes, outcome.notes) = Default::default();
    loop {
        let (verb, rest) = guest.listen(deadline)?;
        let stamp = started.elapsed().as_secs_f64();
        match verb.as_str() {
            "boot" => println!("lab: {stamp:5.1} s  {rest}: workload"),
            "inflate" => guest.inflate(rest.parse().with_context(|| format!("guest asked to inflate by {rest:?}"))?)?,
            "ready" => {
                println!("lab: {stamp:5.1} s  crash");
                *crashed = true;
            }
            "capture" => {
                println!("lab: {stamp:5.1} s  capture kernel up");
                outcome.available_kib = value(&rest, "available_kib");
                outcome.capture_cpus = value(&rest, "cpus");
            }
            "run" => {
                println!("lab: {stamp:5.1} s  {rest}");
                outcome.runs.push(Run { command: rest, ..Run::default() });
            }
            "result" => {
                println!("lab: {stamp:5.1} s  {rest}");
                let run = outcome.runs.last_mut().context("the guest gives a result of nothing")?;
                run.ended(&rest);
                outcome.exit = outcome.exit.filter(|&exit| exit != 0).or(run.exit);
            }
            "size" => {
                if let Some(run) = outcome.runs.last_mut() {
                    run.bytes = rest.parse().ok();
                }
            }
            "probe" => outcome.probes.push(rest),
            "raw" => {
                println!("lab: {stamp:5.1} s  raw core copied");
                raw = Some(rest.parse().with_context(|| format!("length {rest:?} of /proc/vmcore"))?);
            }
            "note" => outcome.notes.push(rest),
            "retry" => return Ok(Said::Again(rest)),
            "fail" => bail!("guest: {rest}"),
            "done" => {
                guest.quit()?;
                return Ok(Said::End(raw));
            }
            other => bail!("guest says {other:?} {rest:?}, which the host does not know"),
        }
    }
}

/// Copies a file out of an ext4 image that is not mounted.
fn extract(image: &Path, name: &str, to: &Path) -> Result<Option<PathBuf>> {
    let target = to.join(name);
    let _ = fs::remove_file(&target);
    let debugfs = debian::find("debugfs").context("no debugfs")?;
    // Relative names, for debugfs splits its request at spaces. It succeeds even where the file does not exist.
    shell::capture(Command::new(debugfs).args(["-R", &format!("dump /{name} {name}")]).arg(image).current_dir(to))?;
    Ok(target.is_file().then_some(target))
}

/// Held by the one lab that may run: two guests at once would disturb each other's times and memory.
fn one_at_a_time(cache: &Path) -> Result<File> {
    let lock = File::create(cache.join("lock"))?;
    if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        println!("lab: waiting for another lab to end");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    }
    Ok(lock)
}

/// A folder for the time of a run.
struct WorkDir(PathBuf);

impl WorkDir {
    fn new(path: PathBuf) -> Result<Self> {
        let _ = fs::remove_dir_all(&path); // of a run that was killed
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the program printed in the capture kernel.
///
/// # Errors
/// The console's log cannot be read.
pub fn program_output(outcome: &Outcome) -> Result<String> {
    let path = &outcome.console;
    let console = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let console = String::from_utf8_lossy(&console).replace('\r', "");
    let after = console.rsplit_once("LAB capture ").map_or("", |(_, rest)| rest);
    let after = after.split_once("LAB run ").map_or(after, |(_, rest)| rest);
    let between = after.split_once("LAB result ").map_or(after, |(output, _)| output);
    Ok(between.split_once('\n').map_or("", |(_, output)| output).trim_end().to_owned())
}

/// Says what came of a run.
pub fn report(outcome: &Outcome) {
    println!("\nkernel            {} ({})", outcome.release, outcome.qemu);
    println!("memory            {} MiB, crashkernel={}", outcome.memory_mib, outcome.crashkernel);
    if let Some(kib) = outcome.available_kib {
        println!("available         {:.1} MiB in the capture kernel", kib as f64 / 1024.0);
    }
    if let (Some(program), Some(exit)) = (&outcome.program, outcome.exit) {
        println!("program           {program}");
        println!("exit code         {exit}");
    }
    if let [run] = outcome.runs.as_slice() {
        let seconds = |ms: Option<u64>| ms.unwrap_or(0) as f64 / 1e3;
        let cpu = seconds(run.user_ms) + seconds(run.system_ms);
        println!("time              {:.2} s ({cpu:.2} s processor)", seconds(run.wall_ms));
        println!("peak memory       {:.1} MiB resident", run.peak_kib.unwrap_or(0) as f64 / 1024.0);
    } else {
        print!("{}", runs::table(&outcome.runs));
        outcome.probes.iter().for_each(|line| println!("{line}"));
    }
    for note in &outcome.notes {
        println!("not in this guest {note}");
    }
    for (what, path) in [("dump", &outcome.dump), ("raw core", &outcome.vmcore), ("vmlinux", &outcome.vmlinux)] {
        if let Some(path) = path {
            let bytes = fs::metadata(path).map_or(0, |m| m.len());
            println!("{what:<17} {} ({:.1} MiB)", path.display(), bytes as f64 / f64::from(1 << 20));
        }
    }
    println!("console           {}", outcome.console.display());
}

/// Fails where our program did, or wrote nothing.
fn check(outcome: &Outcome) -> Result<()> {
    match (&outcome.program, outcome.exit, &outcome.dump) {
        (None, ..) | (Some(_), Some(0), Some(_)) => Ok(()),
        (Some(_), Some(0), None) if outcome.probes.is_empty() => bail!("the program succeeded but wrote no dump"),
        (Some(_), Some(0), None) => Ok(()),
        (Some(_), exit, _) => {
            let code = exit.map_or("no exit code".to_owned(), |code| format!("exit code {code}"));
            bail!("the program ended with {code}:\n{}", shell::tail(&program_output(outcome)?, 20))
        }
    }
}

/// Keeps the raw core of a small guest for the demo and the tests.
fn store_fixture(outcome: &Outcome) -> Result<()> {
    let path = fixture::store(outcome.vmcore.as_ref().context("no raw core came out")?)?;
    println!("fixture           {} ({} bytes)", path.display(), fs::metadata(&path)?.len());
    Ok(())
}
