//! `cargo xtask check cut`: what crash and drgn still show of a dump of which only a part of the page data is there.

use super::kdump;
use super::readers::{Crash, drgn_tasks};
use crate::shell;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What crash is asked, and after how many percent of the page data it has to answer as of the whole core.
const COMMANDS: &[(&str, f64)] =
    &[("sys", 10.0), ("log", 10.0), ("bt", 10.0), ("ps", 25.0), ("bt -a", 25.0), ("mod", 25.0)];
/// The same for drgn's list of tasks and their stacks.
const DRGN_FROM: f64 = 25.0;

/// Where dumps are cut, in percent of their page data.
pub const PERCENT: &[f64] = &[10.0, 25.0, 50.0, 90.0, 98.0];

/// What is expected of a core.
struct Whole {
    crash: Crash,
    answers: Vec<String>,
    tasks: String,
}

/// Makes a dump of `raw` with our program `ours` and with makedumpfile where that is, cuts both at each of `percent`, and prints as a
/// table what answers as of `raw`. True where ours does all it has to.
///
/// # Errors
/// A program is missing or fails on the whole core.
pub fn run(ours: &Path, raw: &Path, vmlinux: &Path, percent: &[f64]) -> Result<bool> {
    let commands: Vec<&str> = COMMANDS.iter().map(|row| row.0).collect();
    let crash = Crash::for_core(raw, vmlinux)?;
    let opened = |what: &str, why: String| anyhow::anyhow!("{what} does not read {}: {why}", raw.display());
    let answers = crash.ask(raw, vmlinux, &commands)?.map_err(|why| opened("crash", why))?;
    let tasks = drgn_tasks(raw, vmlinux)?.map_err(|why| opened("drgn", why))?;
    let whole = Whole { crash, answers, tasks };
    println!("{}: {} and drgn on dumps cut after a part of their page data", raw.display(), whole.crash.name());

    let folder = tempfile::tempdir_in(shell::target_dir())?;
    let mut good = true;
    let mut dumps = vec![("coresift", by_coresift(ours, raw, folder.path())?)];
    match super::program("makedumpfile") {
        Ok(program) => dumps.push(("makedumpfile", by_makedumpfile(&program, raw, folder.path())?)),
        Err(error) => println!("  (without makedumpfile: {error})"),
    }
    for (name, dump) in dumps {
        println!(
            "  {name:<14}{:>22}  {}  drgn",
            "pages",
            commands.iter().map(|command| format!("{command:<8}")).collect::<Vec<_>>().join(" ")
        );
        for percent in percent {
            let row = row(&whole, vmlinux, &dump, *percent)?;
            println!("  {:>12} %{:>22}  {}", percent, row.pages, row.text());
            for difference in &row.differences {
                println!("      {difference}");
            }
            good &= name != "coresift" || row.is_good(*percent);
        }
    }
    Ok(good)
}

struct Row {
    pages: String,
    /// For each command and for drgn: whether it answers as of the whole core; `None` where the dump was not opened.
    same: Vec<Option<bool>>,
    /// Where the answers first differ.
    differences: Vec<String>,
}

impl Row {
    fn text(&self) -> String {
        let cell = |same: &Option<bool>| match same {
            Some(true) => "same    ",
            Some(false) => "DIFFERS ",
            None => "no      ",
        };
        self.same.iter().map(cell).collect::<Vec<_>>().join(" ")
    }

    fn is_good(&self, percent: f64) -> bool {
        let from = COMMANDS.iter().map(|row| row.1).chain([DRGN_FROM]);
        self.same.iter().zip(from).all(|(same, from)| percent < from || *same == Some(true))
    }
}

fn row(whole: &Whole, vmlinux: &Path, dump: &Path, percent: f64) -> Result<Row> {
    let cut = dump.with_extension("cut");
    let pages = kdump::cut(dump, &cut, percent)?;
    let commands: Vec<&str> = COMMANDS.iter().map(|row| row.0).collect();
    // As many answers as there are commands, or none.
    let answers = whole.crash.ask(&cut, vmlinux, &commands)?.unwrap_or_default();
    let tasks = drgn_tasks(&cut, vmlinux)?.ok();
    let given = (0..commands.len()).map(|i| answers.get(i)).chain([tasks.as_ref()]);
    let expected = whole.answers.iter().chain([&whole.tasks]);
    let pairs: Vec<_> = given.zip(expected).collect();
    let same = pairs.iter().map(|(given, expected)| given.map(|given| given == *expected)).collect();
    let differences = commands.iter().chain([&"drgn"]).zip(&pairs);
    let differences =
        differences.filter_map(|(command, (given, expected))| first_difference(command, (*given)?, expected));
    Ok(Row { pages: format!("{} of {}", pages.0, pages.1), same, differences: differences.collect() })
}

/// The first line that `given` and `expected` do not share.
fn first_difference(command: &str, given: &str, expected: &str) -> Option<String> {
    let (mut given, mut expected) = (given.lines(), expected.lines());
    loop {
        match (given.next(), expected.next()) {
            (None, None) => return None,
            (a, b) if a == b => {}
            (a, b) => {
                return Some(format!("{command}: {:?} and not {:?}", a.unwrap_or_default(), b.unwrap_or_default()));
            }
        }
    }
}

fn by_coresift(ours: &Path, raw: &Path, folder: &Path) -> Result<PathBuf> {
    let dump = folder.join("coresift");
    shell::capture(Command::new(ours).args(["dump", "-d", "31"]).args([raw, &dump])).context("our dump")?;
    Ok(dump)
}

fn by_makedumpfile(program: &Path, raw: &Path, folder: &Path) -> Result<PathBuf> {
    let (dump, core) = (folder.join("makedumpfile"), super::core_for_makedumpfile(raw, folder)?);
    shell::capture(Command::new(program).args(["-z", "-d", "31"]).args([&core, &dump]))
        .context("makedumpfile's dump")?;
    Ok(dump)
}
