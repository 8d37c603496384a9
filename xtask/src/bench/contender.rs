//! Who is compared: command lines, and how to read what each one reports.

use super::measure::{Cost, measure};
use crate::peers::kdump::{self, Kdump};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Our name of a codec, and makedumpfile's option for it.
pub const CODECS: &[(&str, &str)] = &[("none", ""), ("lzo", "-l"), ("snappy", "-p"), ("zstd", "-z"), ("zlib", "-c")];

/// The dump level that is compared: what everyone uses, and the most work to find pages.
pub const LEVEL: &str = "31";

/// A program with fixed options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// As in the table.
    pub name: &'static str,
    /// Whether it is coresift.
    pub ours: bool,
    /// `--threads` or `--num-threads`; `None`: not given.
    pub threads: Option<&'static str>,
}

/// All of them, in the order of the first round.
pub const CONTENDERS: &[Contender] = &[
    Contender { name: "makedumpfile", ours: false, threads: None },
    Contender { name: "makedumpfile --num-threads 2", ours: false, threads: Some("2") },
    Contender { name: "coresift --threads 1", ours: true, threads: Some("1") },
    Contender { name: "coresift --threads 2", ours: true, threads: Some("2") },
    Contender { name: "coresift", ours: true, threads: None },
];

/// What one run of a contender cost and gave.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it cost.
    pub cost: Cost,
    /// Time of finding the pages to keep, and of copying them, in seconds, as the program reports them.
    pub stages: [f64; 2],
    /// Pages with a descriptor in the output; `None` where the output cannot be read back.
    pub kept: Option<u64>,
    /// Size of the output in bytes; `None` likewise.
    pub bytes: Option<u64>,
}

impl Contender {
    /// The command line that dumps `core` to `out`.
    pub fn command(&self, programs: (&Path, &Path), codec: (&str, &str), core: &Path, out: &Path) -> Command {
        let (makedumpfile, coresift) = programs;
        let mut command = Command::new(if self.ours { coresift } else { makedumpfile });
        if self.ours {
            command.args(["dump", "-f", "--json", "-d", LEVEL, "--compress", codec.0]);
            command.args(self.threads.iter().flat_map(|n| ["--threads", n]));
        } else {
            // 16 prints the report and the time of each step; 1, progress, is off: the terminal is no part of the work.
            command.args(["-f", "--message-level", "20", "-d", LEVEL]);
            command.args(Some(codec.1).filter(|c| !c.is_empty()));
            command.args(self.threads.iter().flat_map(|n| ["--num-threads", n]));
        }
        command.args([core, out]);
        command
    }

    /// Runs `command`, and reads the output back where it is a file.
    ///
    /// # Errors
    /// The program fails, or its report cannot be read.
    pub fn run(&self, command: &mut Command, out: &Path) -> Result<Run> {
        let (cost, said) = measure(command)?;
        let stages = if self.ours { our_stages(&said)? } else { makedumpfile_stages(&said) };
        let file = out.metadata().ok().filter(std::fs::Metadata::is_file);
        let kept = file.as_ref().map(|_| Kdump::open(out).map(|k| kdump::count(&k.kept))).transpose()?;
        Ok(Run { cost, stages, kept, bytes: file.map(|f| f.len()) })
    }
}

/// `STEP [Copying data               ] : 1.400858 seconds`, some of them more than once.
fn makedumpfile_stages(said: &str) -> [f64; 2] {
    let mut stages = [0.0; 2];
    for line in said.lines().filter_map(|l| l.trim().strip_prefix("STEP [")) {
        let Some((name, rest)) = line.split_once(']') else { continue };
        let number: String = rest.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
        stages[usize::from(name.starts_with("Copying"))] += number.parse().unwrap_or(0.0);
    }
    stages
}

/// The `stages` of the JSON report, which begins with the first brace of what was printed.
fn our_stages(said: &str) -> Result<[f64; 2]> {
    let json = said.find('{').and_then(|at| said.get(at..)).context("coresift --json printed no report")?;
    let report: Value = serde_json::Deserializer::from_str(json).into_iter().next().context("no JSON")??;
    let mut stages = [0.0; 2];
    for stage in report["stages"].as_array().into_iter().flatten() {
        stages[usize::from(stage["name"] == "copy pages")] += stage["seconds"].as_f64().unwrap_or(0.0);
    }
    Ok(stages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_makedumpfile_add_up_by_stage() {
        let said = "STEP [Checking for memory holes  ] : 0.5 seconds\nSTEP [Excluding unnecessary pages] : 0.25 seconds\n\
            STEP [Copying data               ] : 1.5 seconds\nSTEP [Copying data               ] : 0.125 seconds\n";
        assert_eq!(makedumpfile_stages(said), [0.75, 1.625]);
    }

    #[test]
    fn our_stages_come_from_the_json_report_wherever_it_begins() {
        let said = "a note\n{\"stages\":[{\"name\":\"find pages\",\"seconds\":0.5},{\"name\":\"copy pages\",\"seconds\":2}]}\nbye";
        assert_eq!(our_stages(said).unwrap(), [0.5, 2.0]);
        assert!(our_stages("no report").is_err());
    }
}
