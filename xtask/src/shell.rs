//! Running other programs: said before, checked after.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The top folder of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// cargo's output folder: what is built or downloaded goes below it, never into the source tree.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), |d| workspace().join(d))
}

/// `program` with `arguments`, as a person would type it.
pub fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .map(
            |a| if a.is_empty() || a.contains([' ', '\'', '"', '$', '\n']) { format!("{a:?}") } else { a.into_owned() },
        )
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs `command` with its output going where ours goes.
///
/// # Errors
/// It could not be started, or did not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line(command)))?;
    if !status.success() {
        bail!("{}: {status}", line(command));
    }
    Ok(())
}

/// Runs `command` and keeps what it prints.
///
/// # Errors
/// It could not be started. That it failed is in [`Output::status`].
pub fn output(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", line(command)))
}

/// Runs `command` and returns its standard output.
///
/// # Errors
/// It could not be started, or did not succeed; with the end of what it printed.
pub fn capture(command: &mut Command) -> Result<String> {
    let out = output(command)?;
    if !out.status.success() {
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        bail!("{}: {}\n{}", line(command), out.status, tail(&said, 20));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The last `lines` lines of `text`.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Where `program` is on PATH.
pub fn find_program(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|d| d.join(program)).find(|p| p.is_file())
}
