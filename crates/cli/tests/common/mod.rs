//! Runs the built program in a directory of its own.
#![allow(dead_code, reason = "each test file uses some of it")]

use coresift_synth::{Image, KernelLayout, Machine};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A directory with a core file called `vmcore`.
pub struct Place {
    dir: TempDir,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_coresift");

/// A 6.12 machine of 384 pages: the kernel's first 128, and far from what the guard takes for its image a range with every class.
pub fn image() -> Image {
    Machine::new(KernelLayout::get("6.12"))
        .cpus(2)
        .ram(0x1000..0x1080)
        .ram(0x3000..0x3100)
        .pages(
            "@0x3000 20 zero
             @0x3020 16 hugetlb order=4
             @0x3030  4 hwpoison
             @0x3034  4 offline
             @0x3040 32 buddy order=5
             @0x3060  8 buddy order=3
             @0x3068 30 cache
             @0x3086 10 private-cache
             @0x3090 30 anon
             @0x30b0 16 slab order=2",
        )
        .build()
}

impl Place {
    pub fn empty() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// With an ELF core of [`image`].
    pub fn new() -> Self {
        let place = Self::empty();
        place.put("vmcore", &image().elf().bytes());
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// A command to be run here.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs `coresift` with the words of `line`.
    pub fn run(&self, line: &str) -> Ended {
        self.command(PROGRAM).args(line.split_whitespace()).output().unwrap().into()
    }

    /// Runs `coresift makedumpfile` with the words of `line`.
    pub fn makedumpfile(&self, line: &str) -> Ended {
        self.run(&format!("makedumpfile {line}"))
    }

    /// Runs a shell command line in which `$P` is the program.
    pub fn shell(&self, line: &str) -> Ended {
        self.command("sh").arg("-c").arg(line).env("P", PROGRAM).output().unwrap().into()
    }

    /// What `coresift info --json` says of a file.
    pub fn info(&self, name: &str) -> serde_json::Value {
        let ended = self.run(&format!("info --json {name}"));
        let info: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(ended.err, "", "{name}");
        let no_problem = info.get("problems").and_then(|all| all.as_array()).is_some_and(Vec::is_empty);
        let good = info.get("complete") == Some(&true.into()) && no_problem;
        assert_eq!(ended.code == Some(0), good, "{name}: {ended:?}");
        info
    }
}
