//! `cargo xtask check repair`: a dump of a real core, cut shorter and shorter, is repaired each time; what comes of it is consistent, and
//! libkdumpfile reads the same bytes in it as in the core.

use crate::shell;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A file is cut at multiples of this.
const SECTOR: u64 = 512;
/// Cuts where no step is given, and how many of all are read page by page by libkdumpfile.
const CUTS: u64 = 128;
const READ: u64 = 8;
/// Exit codes of `coresift repair` and `verify`: incomplete; not even the headers are left.
const INCOMPLETE: i32 = 3;
const DAMAGED: i32 = 4;
/// Bytes of main header and sub header of a 64-bit file.
const HEADERS: u64 = 4096 + 104;

/// Makes a dump of `raw` with our program `ours` and cuts it every `step` bytes; prints what went wrong, and a line in the end.
///
/// # Errors
/// A program is missing, or the dump cannot be made.
pub fn run(ours: &Path, raw: &Path, step: Option<u64>) -> Result<bool> {
    let folder = tempfile::tempdir_in(shell::target_dir())?;
    let (dump, out) = (folder.path().join("cut"), folder.path().join("repaired"));
    shell::run(Command::new(ours).args(["dump", "-f"]).args([raw, &dump]).stdout(std::process::Stdio::null()))?;
    let file = std::fs::OpenOptions::new().write(true).open(&dump)?;
    let len = file.metadata()?.len();
    let step = step.unwrap_or(len / CUTS).next_multiple_of(SECTOR).max(SECTOR);
    let first = (len - 1) / SECTOR * SECTOR;
    // Whatever the step, two cuts go through the headers.
    let ends: Vec<u64> =
        (HEADERS..=first).rev().step_by(step as usize).map(|end| end / SECTOR * SECTOR).chain([4096, 512]).collect();
    let cuts = ends.len() as u64;
    println!("{}: a dump of {len} bytes, cut {cuts} times, {step} bytes less each time", raw.display());
    let (mut good, mut most, mut none) = (true, u64::MAX, 0u64);
    for (i, end) in ends.into_iter().enumerate() {
        file.set_len(end)?;
        let done = shell::output(Command::new(ours).args(["repair", "-f", "--json"]).args([&dump, &out]))?;
        let code = done.status.code();
        if end < HEADERS {
            good &= told(code == Some(DAMAGED), end, || format!("repair ended with {code:?}, not {DAMAGED}"));
            none += 1;
            continue;
        }
        let error = || String::from_utf8_lossy(&done.stderr).trim().to_owned();
        if !told(code == Some(INCOMPLETE), end, || format!("repair ended with {code:?}: {}", error())) {
            good = false;
            continue;
        }
        let report: Value = serde_json::from_slice(&done.stdout).context("the report of repair")?;
        let sound = report["pages"]["sound"].as_u64().context("pages.sound of repair")?;
        good &= told(sound <= most, end, || format!("{sound} pages, more than the {most} of a longer piece"));
        most = sound;
        let again = shell::output(Command::new(ours).args(["verify", "--quick", "--json"]).arg(&out))?;
        let found: Value = serde_json::from_slice(&again.stdout).context("the report of verify")?;
        good &= told(again.status.code() == Some(INCOMPLETE), end, || format!("verify says {}", found["verdict"]));
        good &=
            told(found["pages"]["sound"] == sound, end, || format!("verify finds {} pages", found["pages"]["sound"]));
        if sound > 0 && (i as u64).is_multiple_of((cuts / READ).max(1)) {
            let mut pages = super::python("check_pages.py")?;
            let read = shell::output(pages.arg(raw).arg(&out).arg("--unfinished"))?;
            let text = || format!("libkdumpfile: {}", shell::tail(&String::from_utf8_lossy(&read.stdout), 3));
            good &= told(read.status.success(), end, text);
        }
    }
    ensure!(most < u64::MAX, "no cut left the headers");
    println!("  {} cuts repaired, {none} below the headers refused", cuts - none);
    Ok(good)
}

/// Prints what went wrong where the file ends at `end`, unless it is `right`.
fn told(right: bool, end: u64, what: impl FnOnce() -> String) -> bool {
    if !right {
        println!("  cut at {end}: {}", what());
    }
    right
}
