//! Who is compared: command lines, and how to read what each one reports.

use super::measure::{Cost, Watch, measure};
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
    /// What our program says of itself.
    pub said: Option<Said>,
}

/// Figures of our program's report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Said {
    /// Page frames that exist.
    pub ram_pages: u64,
    /// Pages with a descriptor.
    pub kept_pages: u64,
    /// Those of them that are zero.
    pub zero_pages: u64,
    /// Those that share another's data.
    pub shared_pages: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Peak resident memory, in bytes.
    pub peak_memory: u64,
    /// What it was to stay in, in bytes.
    pub memory_budget: u64,
}

/// A stage that both programs have: its name, and its seconds in a run.
pub type Stage = (&'static str, fn(&Run) -> f64);

/// The stages that are compared. What comes before the first and after the last stage a program reports is everything else: both
/// read headers, VMCOREINFO and page tables there.
pub const STAGES: [Stage; 5] = [
    ("find", |run| run.stages[0]),
    ("copy", |run| run.stages[1]),
    ("else", |run| (run.cost.wall - run.stages[0] - run.stages[1]).max(0.0)),
    ("total", |run| run.cost.wall),
    // Not a stage: processor time of the whole run, which says most on a busy machine.
    ("cpu", |run| run.cost.user + run.cost.system),
];

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
    /// The program fails or takes too long, or its report cannot be read.
    pub fn run(&self, command: &mut Command, out: &Path, watch: Watch) -> Result<Run> {
        let (cost, text) = measure(command, watch)?;
        let (stages, said) = if self.ours {
            let (stages, said) = our_report(&text)?;
            (stages, Some(said))
        } else {
            (makedumpfile_stages(&text), None)
        };
        let file = out.metadata().ok().filter(std::fs::Metadata::is_file);
        let kept = file.as_ref().map(|_| Kdump::open(out).map(|k| kdump::count(&k.kept))).transpose()?;
        Ok(Run { cost, stages, kept, bytes: file.map(|f| f.len()), said })
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

/// Stages and figures of the JSON report, which begins with the first brace of what was printed. Stages of other names than the two
/// count as everything else.
fn our_report(said: &str) -> Result<([f64; 2], Said)> {
    let json = said.find('{').and_then(|at| said.get(at..)).context("coresift --json printed no report")?;
    let report: Value = serde_json::Deserializer::from_str(json).into_iter().next().context("no JSON")??;
    let mut stages = [0.0; 2];
    for stage in report["stages"].as_array().into_iter().flatten() {
        let number = match stage["name"].as_str() {
            Some("find pages") => 0,
            Some("copy pages") => 1,
            _ => continue,
        };
        stages[number] += stage["seconds"].as_f64().unwrap_or(0.0);
    }
    let figure = |name: &str| report[name].as_u64().unwrap_or(0);
    let said = Said {
        ram_pages: figure("ram_pages"),
        kept_pages: figure("kept_pages"),
        zero_pages: figure("zero_pages"),
        shared_pages: figure("shared_pages"),
        bytes_out: figure("bytes_out"),
        peak_memory: figure("peak_memory"),
        memory_budget: figure("memory_budget"),
    };
    Ok((stages, said))
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
    fn our_figures_come_from_the_json_report_wherever_it_begins() {
        let said = "a note\n{\"stages\":[{\"name\":\"understand\",\"seconds\":9},{\"name\":\"find pages\",\"seconds\":0.5},\
            {\"name\":\"copy pages\",\"seconds\":2}],\"kept_pages\":7,\"bytes_out\":8}\nbye";
        let (stages, figures) = our_report(said).unwrap();
        assert_eq!((stages, figures), ([0.5, 2.0], Said { kept_pages: 7, bytes_out: 8, ..Said::default() }));
        assert!(our_report("no report").is_err());
    }

    #[test]
    fn what_no_stage_has_is_everything_else() {
        let cost = Cost { wall: 3.0, user: 1.0, system: 0.5, ..Cost::default() };
        let run = Run { cost, stages: [0.5, 2.0], kept: None, bytes: None, said: None };
        assert_eq!(STAGES.map(|s| s.1(&run)), [0.5, 2.0, 0.5, 3.0, 1.5]);
    }
}
