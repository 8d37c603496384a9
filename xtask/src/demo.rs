//! `cargo xtask demo`: what the program does, on a real crash, in about a minute.

use crate::debian;
use crate::fixture;
use crate::lab;
use crate::peers::{self, check};
use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use coresift_format::{Input, PageSize, Pfn};
use lexopt::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// The kernel that `--live` crashes unless another is named.
const KERNEL: &str = "6.12";

const HELP: &str = "\
cargo xtask demo [--live [KERNEL]]

Builds the program, dumps a real crashed machine's memory at level 31, and checks every page of the dump against its source.

  --live [KERNEL]  boot and crash a kernel under QEMU instead of taking the bundled crash (Debian, Ubuntu); KERNEL as for
                   `cargo xtask lab`, 6.12 when not named

Files: target/demo. The bundled crash needs no network; --live downloads packages the first time.
";

/// The command.
///
/// # Errors
/// Wrong arguments; the program does not build, or fails; or the dump differs from its source.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut live, mut kernel) = (false, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            Long("live") => live = true,
            Value(name) if live && kernel.is_none() => kernel = Some(name.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let folder = shell::target_dir().join("demo");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    debian::exit_code(demo(live.then(|| kernel.unwrap_or_else(|| KERNEL.to_owned())), &folder))
}

fn demo(live: Option<String>, folder: &Path) -> Result<()> {
    step("build the program");
    let program = peers::coresift(true)?;
    let started = Instant::now();

    let (core, dump) = match live {
        Some(kernel) => crash(&kernel, folder)?,
        None => {
            let (core, dump) = (bundled()?, folder.join("dump"));
            step("dump it: no zero, cache, user and free pages, the others compressed");
            show(Command::new(&program).args(["dump", "--force", "--level", "31"]).args([&core, &dump]))?;
            (core, dump)
        }
    };
    step("what the dump says of itself");
    show(Command::new(&program).arg("info").arg(&dump))?;

    step("compare every page of the dump with the crash");
    let pages = compare(&core, &dump)?;
    println!("{pages} pages, read back by our own reader: all the same");
    if peers::program("python").is_ok() {
        ensure!(check::pages(&core, &dump)?, "libkdumpfile sees other pages");
    } else {
        println!("by libkdumpfile: skipped, it is not here; `cargo xtask peers` gets it");
    }

    let size = |path: &Path| fs::metadata(path).map_or(0, |m| m.len());
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "\nA core of {:.0} MiB became a dump of {:.1} MiB: {}",
        mib(size(&core)),
        mib(size(&dump)),
        dump.display()
    );
    println!("All of it, after the build, in {seconds:.1} s.");
    Ok(())
}

fn step(what: &str) {
    println!("\n== {what}");
}

fn show(command: &mut Command) -> Result<()> {
    println!("$ {}", shell::line(command));
    shell::run(command)
}

/// The crash that comes with the source.
fn bundled() -> Result<PathBuf> {
    step("take a crash: a Debian machine that was crashed by sysrq, its /proc/vmcore as it was");
    let packed = fixture::path();
    let core = fixture::unpacked()?;
    println!("{} ({} bytes)", packed.display(), fs::metadata(&packed)?.len());
    println!("unpacked: {} ({} bytes)", core.display(), fs::metadata(&core)?.len());
    Ok(core)
}

/// A crash of now: the raw core and the dump that our program made in the capture kernel.
fn crash(kernel: &str, folder: &Path) -> Result<(PathBuf, PathBuf)> {
    step("crash a machine, and dump it in its capture kernel");
    let mut options = lab::Options::new(kernel);
    options.out = Some(folder.join("live"));
    let outcome = lab::crash(&options)?;
    lab::report(&outcome);
    step("what the program said in the capture kernel");
    println!("{}", lab::program_output(&outcome)?);
    ensure!(outcome.exit == Some(0), "the program ended with {:?}; see {}", outcome.exit, outcome.console.display());
    match (outcome.vmcore, outcome.dump) {
        (Some(core), Some(dump)) => Ok((core, dump)),
        _ => bail!("the lab brought out no core or no dump; see {}", outcome.console.display()),
    }
}

/// Compares each page that `dump` holds with the same page of `core`; how many there are.
///
/// # Errors
/// A page differs, is not in `core`, or cannot be read.
fn compare(core: &Path, dump: &Path) -> Result<u64> {
    let (core, dump) = (Input::open(core)?, Input::open(dump)?);
    let page = dump.memory().page_size();
    ensure!(page == PageSize::K4, "the dump has pages of {} bytes", page.bytes());
    let (mut source, mut copy) = (core.memory().view(), dump.memory().view());
    let mut kept = 0;
    for (first, end) in dump.memory().stored().all_runs() {
        for pfn in (first.0..end.0).map(Pfn) {
            let got = copy.slice(pfn.addr(page), page.bytes()).with_context(|| format!("the dump's {pfn}"))?;
            let want = source.slice(pfn.addr(page), page.bytes()).with_context(|| format!("the crash's {pfn}"))?;
            ensure!(got == want, "{pfn} is not what it was");
            kept += 1;
        }
    }
    ensure!(kept > 0, "the dump holds no pages");
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF core with one segment at 0 that holds `pages`.
    fn elf_core(path: &Path, pages: &[[u8; 4096]]) {
        let bytes = pages.concat();
        let mut elf = vec![0; 4096];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[6] = 1;
        for (at, value) in [(16, 4u16), (18, 62), (52, 64), (54, 56), (56, 1)] {
            elf[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        elf[20..24].copy_from_slice(&1u32.to_le_bytes());
        elf[64..68].copy_from_slice(&1u32.to_le_bytes());
        let size = bytes.len() as u64;
        for (at, value) in [(32, 64u64), (64 + 8, 4096), (64 + 32, size), (64 + 40, size)] {
            elf[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        fs::write(path, [elf, bytes].concat()).unwrap();
    }

    #[test]
    fn one_byte_in_one_page_is_a_difference() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| dir.path().join(name));
        let mut pages = [[1; 4096], [2; 4096], [3; 4096]];
        elf_core(&a, &pages);
        elf_core(&b, &pages);
        pages[1][4095] = 9;
        elf_core(&c, &pages);
        assert_eq!(compare(&a, &b).unwrap(), 3);
        let error = compare(&a, &c).unwrap_err().to_string();
        assert!(error.contains("0x1"), "{error}");
    }

    #[test]
    fn a_page_the_crash_does_not_have_is_a_difference() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        elf_core(&a, &[[1; 4096]]);
        elf_core(&b, &[[1; 4096], [2; 4096]]);
        assert!(compare(&a, &b).is_err());
    }
}
