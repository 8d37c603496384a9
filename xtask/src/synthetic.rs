//! Synthetic machines as core files, made when asked for: `synth:LAYOUT:GIB:MIX`.

use crate::shell;
use anyhow::{Context, Result, bail};
use coresift_synth::huge::{MIXES, named};
use coresift_synth::{KernelLayout, LAYOUTS};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// What a core argument begins with that is no file.
pub const PREFIX: &str = "synth:";

/// How such an argument is written.
pub fn usage() -> String {
    let layouts: Vec<&str> = LAYOUTS.iter().map(|l| l.name).collect();
    format!("synth:LAYOUT:GIB:MIX, LAYOUT one of {}; MIX one of {MIXES}", layouts.join(", "))
}

/// The core of the machine `spec`, an argument without [`PREFIX`], below cargo's output folder. Made anew, so that it is what this
/// tree makes: segments share file bytes, so that even 16 TiB take less than half a GiB.
///
/// # Errors
/// The text names no machine, or the file cannot be written.
pub fn core(spec: &str) -> Result<PathBuf> {
    let mut words = spec.splitn(3, ':');
    let (layout, gib, mix) = (words.next(), words.next().and_then(|n| n.parse().ok()), words.next());
    // Mixes need marks on free pages, which the oldest layout lacks.
    let layout = LAYOUTS.iter().find(|l| Some(l.name) == layout && l.types.buddy.is_some());
    let (Some(layout), Some(gib @ 1..=32_768), Some(mix)) = (layout, gib, mix) else {
        bail!("{PREFIX}{spec}: {}", usage());
    };
    let image = named(KernelLayout::get(layout.name), gib, mix).with_context(|| format!("{mix}? {}", usage()))?;
    let path = path(spec);
    std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
    println!("making {}", path.display());
    image.elf().file().save(&path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// [`core()`], in a process of its own: what a program's peak memory begins with is that of the program that starts it.
///
/// # Errors
/// As [`core()`].
pub fn core_by_child(spec: &str) -> Result<PathBuf> {
    shell::run(Command::new(std::env::current_exe()?).args(["machine", spec]))?;
    Ok(path(spec))
}

/// `cargo xtask machine LAYOUT:GIB:MIX`.
///
/// # Errors
/// As [`core()`].
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let [spec] = arguments else { bail!("cargo xtask machine LAYOUT:GIB:MIX, as in {}", usage()) };
    core(spec)?;
    Ok(ExitCode::SUCCESS)
}

fn path(spec: &str) -> PathBuf {
    shell::target_dir().join("synth").join(spec.replace([':', '+'], "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_machine_is_refused_with_what_does() {
        for spec in ["", "6.12", "6.12:0:real", "6.12:many:real", "9.9:64:real", "6.12:64:surreal", "2.6.32:64:server"]
        {
            let error = core(spec).unwrap_err().to_string();
            assert!(error.contains("LAYOUT:GIB:MIX"), "{spec}: {error}");
        }
    }
}
