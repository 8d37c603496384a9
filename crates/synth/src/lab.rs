//! Real cores, for the tests that need them: `CORESIFT_LAB` names a folder of folders such as `6.12-kdump`, each with a `vmcore` and
//! its kernel's `vmlinux`.
//!
//! Such a test is called `real_core...` and is `#[ignore]`d, so that every runner tells that it did not run;
//! `cargo xtask test` runs it where there are cores, and names it as skipped where there are none.

use std::path::PathBuf;

/// The folders, in the order of their names.
///
/// # Panics
/// There are none: the test was asked for, and cannot run.
#[must_use]
pub fn folders() -> Vec<PathBuf> {
    let lab = std::env::var_os("CORESIFT_LAB").expect("CORESIFT_LAB names the folder of real cores");
    let entries = std::fs::read_dir(&lab).expect("CORESIFT_LAB names a folder");
    let mut found: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).filter(|p| p.join("vmcore").exists()).collect();
    found.sort();
    assert!(!found.is_empty(), "no folder in {} has a vmcore", lab.display());
    found
}

/// The folder called `name`.
///
/// # Panics
/// It is not there.
#[must_use]
pub fn folder(name: &str) -> PathBuf {
    let found = folders().into_iter().find(|folder| folder.ends_with(name));
    found.unwrap_or_else(|| panic!("no folder {name} with a vmcore in the one that CORESIFT_LAB names"))
}
