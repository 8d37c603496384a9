//! The programs whose word counts: makedumpfile as the judge of page sets, crash, drgn and libkdumpfile as readers.
//!
//! ```text
//! install ──> target/peers/{root, venv, bin}     programs of Debian packages and of a PyPI wheel, none built here
//! check ────> our dump | makedumpfile's dump ── kdump (bitmaps), libkdumpfile (pages), crash, drgn ──> differences
//! ```

pub mod check;
pub mod cut;
pub mod install;
pub mod kdump;
pub mod kill;
pub mod lines;
pub mod readers;
pub mod repair;

use crate::shell;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the peers are: `$CORESIFT_PEERS` (a folder with a `bin` like ours), or what `cargo xtask peers` installed.
pub fn home() -> PathBuf {
    std::env::var_os("CORESIFT_PEERS")
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| shell::target_dir().join("peers"), PathBuf::from)
}

/// A peer's program: from [`home`], else from PATH.
///
/// # Errors
/// It is nowhere; the text says how to get it, and why the last try failed where that is known.
pub fn program(name: &str) -> Result<PathBuf> {
    let ours = home().join("bin").join(name);
    if ours.is_file() {
        return Ok(ours);
    }
    if let Some(found) = shell::find_program(name).filter(|_| name != "python") {
        return Ok(found);
    }
    let why = std::fs::read_to_string(home().join(format!("{name}.skipped"))).unwrap_or_default();
    bail!(
        "{name} is not installed; `cargo xtask peers` gets it{}{}",
        if why.is_empty() { "" } else { ": " },
        why.trim()
    )
}

/// A Python script of `xtask/py`, run where libkdumpfile and drgn can be imported.
///
/// # Errors
/// The peers' Python is not installed.
pub fn python(script: &str) -> Result<Command> {
    let mut command = Command::new(program("python")?);
    command.arg(shell::workspace().join("xtask/py").join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// Our own program, built as the tests build it, or for speed.
///
/// # Errors
/// It does not build.
pub fn coresift(release: bool) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "coresift"]).args(release.then_some("--release"));
    shell::run(cargo.current_dir(shell::workspace()))?;
    Ok(shell::target_dir().join(if release { "release" } else { "debug" }).join("coresift"))
}

/// The first line `program ARGUMENT` prints that holds a digit: its version.
pub fn version(program: &Path, argument: &str) -> String {
    let Ok(out) = shell::output(Command::new(program).arg(argument)) else { return "does not start".into() };
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    text.lines()
        .find(|l| l.contains(|c: char| c.is_ascii_digit()))
        .unwrap_or("no version")
        .trim()
        .trim_end_matches(',')
        .into()
}

/// A core that makedumpfile can read: `core` itself, or a copy in `folder` whose program headers follow the ELF header.
///
/// makedumpfile up to 1.7.9 takes no notice of e_phoff; QEMU from 7.2 on writes the section headers first.
///
/// # Errors
/// The file cannot be read or copied.
pub fn core_for_makedumpfile(core: &Path, folder: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(core).with_context(|| format!("cannot open {}", core.display()))?;
    let mut header = [0u8; 64];
    file.read_exact_at(&mut header, 0).with_context(|| format!("{}: no ELF header", core.display()))?;
    let phoff = u64::from_le_bytes(header[32..40].try_into()?);
    if !header.starts_with(b"\x7fELF") || phoff == 64 {
        return Ok(core.to_path_buf());
    }
    let length = usize::from(u16::from_le_bytes(header[54..56].try_into()?))
        * usize::from(u16::from_le_bytes(header[56..58].try_into()?));
    let mut programs = vec![0u8; length];
    file.read_exact_at(&mut programs, phoff)?;

    let copy = folder.join("core-with-moved-headers");
    std::fs::copy(core, &copy)?;
    let mut permissions = std::fs::metadata(&copy)?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
    std::fs::set_permissions(&copy, permissions)?;
    header[32..40].copy_from_slice(&64u64.to_le_bytes());
    // e_shoff, e_ehsize (QEMU leaves 8), and the section header fields.
    header[40..48].fill(0);
    header[52..54].copy_from_slice(&64u16.to_le_bytes());
    header[60..64].fill(0);
    let out = std::fs::OpenOptions::new().write(true).open(&copy)?;
    out.write_all_at(&header, 0)?;
    out.write_all_at(&programs, 64)?;
    Ok(copy)
}
