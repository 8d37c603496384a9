//! `cargo xtask peers`: programs of other projects, from their packages, into `target/peers`; nothing of them is built here.
//!
//! Debian's newest, since older ones misread newer kernels: crash 8.0.2 finds 2 of the tasks of a 6.1 kernel, makedumpfile
//! 1.7.2 leaves twice the pages of a 6.12 kernel in. They run with the C library they were built for, in a root of their own,
//! so that the machine's packages stay as they are.

use crate::debian::{self, Apt};
use crate::shell;
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The Debian suite with the newest crash and makedumpfile.
const SUITE: &str = "sid";
/// Where Debian's amd64 libraries are, its loader among them.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The PyPI wheel that brings drgn, and libkdumpfile inside it.
const DRGN: &str = "drgn>=0.3";
/// The PyPI wheels of the engines that read tables of page frames.
const TABLES: [&str; 2] = ["duckdb>=1.1", "polars>=1.0"];

/// One peer: the program in `bin`, how it gets there, and the argument that makes it say its version.
struct Peer {
    name: &'static str,
    install: fn(&Path, &str) -> Result<()>,
    version: &'static str,
}

const PEERS: &[Peer] = &[
    Peer { name: "crash", install: from_debian, version: "--version" },
    Peer { name: "makedumpfile", install: from_debian, version: "-v" },
    Peer { name: "python", install: python_with_drgn, version: "--version" },
    Peer { name: "drgn", install: drgn, version: "--version" },
    Peer { name: "duckdb-polars", install: tables, version: "--version" },
];

/// `cargo xtask peers`.
///
/// # Errors
/// Files cannot be written. A peer that cannot be had is no error, but a line that says why.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    if !arguments.is_empty() {
        bail!("cargo xtask peers takes no arguments");
    }
    for (name, state) in install()? {
        match state {
            Ok(version) => println!("peer {name}: {version}"),
            Err(why) => println!("peer {name}: skipped: {why}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Installs what is missing. For each peer its version, or why it is not there.
///
/// # Errors
/// Files cannot be written.
pub fn install() -> Result<Vec<(&'static str, Result<String, String>)>> {
    let home = super::home();
    fs::create_dir_all(home.join("bin")).with_context(|| format!("cannot make {}", home.display()))?;
    let mut states = Vec::new();
    for peer in PEERS {
        let program = home.join("bin").join(peer.name);
        let note = home.join(format!("{}.skipped", peer.name));
        let result = if program.exists() { Ok(()) } else { (peer.install)(&home, peer.name) };
        states.push(match result {
            Ok(()) => {
                let _ = fs::remove_file(&note);
                (peer.name, Ok(super::version(&program, peer.version)))
            }
            Err(error) => {
                let why = format!("{error:#}").lines().filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ");
                fs::write(&note, &why)?;
                (peer.name, Err(why))
            }
        });
    }
    Ok(states)
}

/// A program of a Debian package of the same name, with all that it depends on.
fn from_debian(home: &Path, name: &str) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("only amd64 packages are used");
    }
    if shell::find_program("apt-get").is_none() || shell::find_program("dpkg-deb").is_none() {
        bail!("needs apt-get and dpkg-deb");
    }
    let root = home.join("root");
    Apt::for_suites(&home.join("apt"), &[SUITE])?.fetch_with_dependencies(name, &root)?;
    let Some(inside) =
        ["usr/bin", "usr/sbin"].map(|d| format!("{d}/{name}")).into_iter().find(|p| root.join(p).is_file())
    else {
        bail!("package {name} holds no program {name}");
    };
    let script = format!(
        "#!/bin/sh\nR=$(cd \"$(dirname \"$0\")/../root\" && pwd)\n\
         exec \"$R/{LIBRARIES}/ld-linux-x86-64.so.2\" --library-path \"$R/{LIBRARIES}\" \"$R/{inside}\" \"$@\"\n"
    );
    write_program(home, name, &script)
}

/// A Python of its own with drgn in it.
fn python_with_drgn(home: &Path, name: &str) -> Result<()> {
    let venv = home.join("venv");
    let make = || shell::capture(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    if make().is_err() {
        // Debian's python3 comes without the parts that make an environment.
        debian::install(&["python3", "python3-venv"])?;
        make()?;
    }
    shell::capture(Command::new(venv.join("bin/pip")).args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        DRGN,
    ]))?;
    write_program(home, name, "#!/bin/sh\nexec \"$(dirname \"$0\")/../venv/bin/python\" \"$@\"\n")
}

/// drgn's own program, which came with [`python_with_drgn`].
fn drgn(home: &Path, name: &str) -> Result<()> {
    if !home.join("venv/bin/drgn").exists() {
        bail!("comes with python, which is not there");
    }
    write_program(home, name, "#!/bin/sh\nexec \"$(dirname \"$0\")/../venv/bin/drgn\" \"$@\"\n")
}

/// DuckDB and Polars, beside [`python_with_drgn`].
fn tables(home: &Path, name: &str) -> Result<()> {
    let pip = home.join("venv/bin/pip");
    if !pip.exists() {
        bail!("comes with python, which is not there");
    }
    shell::capture(Command::new(pip).args(["install", "--quiet", "--disable-pip-version-check"]).args(TABLES))?;
    let script = "#!/bin/sh\nexec \"$(dirname \"$0\")/../venv/bin/python\" -c \
                  'import duckdb, polars; print(\"DuckDB\", duckdb.__version__, \"Polars\", polars.__version__)'\n";
    write_program(home, name, script)
}

fn write_program(home: &Path, name: &str, script: &str) -> Result<()> {
    let path = home.join("bin").join(name);
    fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
