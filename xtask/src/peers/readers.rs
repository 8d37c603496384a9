//! What crash and drgn say of a dump, command by command, so that what they say of two can be compared.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Lines of crash that name the file, and so must differ.
const CRASH_NAMES: &[&str] = &["DUMPFILE:", "DEBUG KERNEL:", "KERNEL:"];
/// Printed between the answers.
const MARK: &str = "-- next command --";

/// crash with the options under which it opens a core.
pub struct Crash {
    program: PathBuf,
    options: &'static [&'static str],
}

impl Crash {
    /// crash, as it opens `raw`. One with modules that this crash cannot read is opened without them.
    ///
    /// # Errors
    /// crash is missing, or opens `raw` in no way.
    pub fn for_core(raw: &Path, vmlinux: &Path) -> Result<Self> {
        let program = super::program("crash")?;
        let mut said = String::new();
        for options in [&["-s"][..], &["-s", "--no_modules"]] {
            let crash = Self { program: program.clone(), options };
            match crash.ask(raw, vmlinux, &["sys"])? {
                Ok(_) => return Ok(crash),
                Err(why) => said = why,
            }
        }
        bail!("crash does not open {}: {said}", raw.display())
    }

    /// Its version, and the options.
    pub fn name(&self) -> String {
        format!("{} {}", super::version(&self.program, "--version"), self.options.join(" "))
    }

    /// What crash prints for each of `commands`, without lines that name the file; or the end of what it said instead of opening `dump`.
    ///
    /// # Errors
    /// crash does not start.
    pub fn ask(
        &self,
        dump: &Path,
        vmlinux: &Path,
        commands: &[&str],
    ) -> Result<std::result::Result<Vec<String>, String>> {
        let mut command = Command::new(&self.program);
        command.args(self.options).arg(vmlinux).arg(dump);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| shell::line(&command))?;
        let mark = format!("echo {MARK}\n");
        let script: String = commands.iter().map(|c| format!("{c}\n{mark}")).collect();
        // Where crash ended before it read this, its output tells why.
        let _unread =
            child.stdin.take().context("no pipe to crash")?.write_all(format!("{mark}{script}quit\n").as_bytes());
        let out = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        // What it says of the file stands in front of the first answer.
        let answers: Vec<String> = text.split(MARK).skip(1).take(commands.len()).map(without_names).collect();
        if out.status.success() && answers.len() == commands.len() {
            return Ok(Ok(answers));
        }
        Ok(Err(shell::tail(format!("{text}{}", String::from_utf8_lossy(&out.stderr)).trim(), 3)))
    }
}

fn without_names(answer: &str) -> String {
    let named = |line: &&str| CRASH_NAMES.iter().any(|name| line.trim_start().starts_with(name));
    answer.trim().lines().filter(|line| !named(line)).collect::<Vec<_>>().join("\n")
}

/// The tasks of `dump` with their stacks as drgn lists them, or the end of what it said instead.
///
/// # Errors
/// drgn is missing, or does not start.
pub fn drgn_tasks(dump: &Path, vmlinux: &Path) -> Result<std::result::Result<String, String>> {
    let out = shell::output(super::python("tasks.py")?.arg(dump).arg(vmlinux))?;
    if out.status.success() {
        return Ok(Ok(String::from_utf8_lossy(&out.stdout).into_owned()));
    }
    Ok(Err(shell::tail(String::from_utf8_lossy(&out.stderr).trim(), 2)))
}
