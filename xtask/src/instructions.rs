//! `cargo xtask instructions`: how many instructions a dump takes, against a table that is checked in.
//!
//! ```text
//! release program ── valgrind --tool=callgrind ──> instructions of each function ── parts ──> xtask/instructions.txt: equal, within %
//! ```
//! Instructions, unlike time, are the same on a busy machine. They are not the same everywhere: libraries choose code by what the
//! processor can do, and another compiler makes other code. The table says under which it was made; under others the check is wider.

use crate::debian::{self, Skipped};
use crate::{fixture, peers, shell, synthetic};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// One dump that is counted.
struct Case {
    name: &'static str,
    core: Core,
    codec: &'static str,
}

enum Core {
    /// The bundled crash.
    Bundled,
    /// A synthetic machine, as [`synthetic::core`] takes it.
    Synthetic(&'static str),
}

/// What is counted: level 31, one thread, into /dev/null.
const CASES: &[Case] = &[
    Case { name: "bundled none", core: Core::Bundled, codec: "none" },
    Case { name: "bundled lzo", core: Core::Bundled, codec: "lzo" },
    Case { name: "bundled snappy", core: Core::Bundled, codec: "snappy" },
    Case { name: "bundled zstd", core: Core::Bundled, codec: "zstd" },
    Case { name: "bundled zlib", core: Core::Bundled, codec: "zlib" },
    // 16.8 million struct pages in the runs of real sections, and contents of nothing but zeros.
    Case { name: "scan of 64 GiB", core: Core::Synthetic("6.12:64:real+scan"), codec: "none" },
];

/// A part of the program: functions with one of these in their name, the first part that fits.
struct Part {
    name: &'static str,
    functions: &'static [&'static str],
}

/// The part that counts a copied byte as an instruction, where the C library copies by `rep movsb`, and vector loops elsewhere.
const MEMORY: &str = "memory";
/// What no other part has.
const REST: &str = "rest";
/// All but [`MEMORY`].
const TOTAL: &str = "total";

const PARTS: &[Part] = &[
    Part { name: MEMORY, functions: &["__memset_", "__memcpy_", "__memmove_", "__memcmp_", "__memchr_", "__bcmp"] },
    Part {
        name: "codec",
        functions: &[
            "coresift_format::codec",
            "snap::",
            "zstd_safe",
            "libdeflate",
            "deflate_",
            "ZSTD_",
            "HUF_",
            "FSE_",
            "HIST_",
            "XXH",
            "build_tree",
            "compute_length_counts",
            "gen_codewords",
            "sort_symbols",
            "adler32",
        ],
    },
    Part { name: "kernel", functions: &["coresift_kernel"] },
    Part { name: "engine", functions: &["coresift_engine"] },
    Part { name: "format", functions: &["coresift_format"] },
];

/// Percent a part may grow, where processor and compiler are those of the table and where not. Parts get more room
/// than their sum, and count only where it grows too.
const GROWTH_TOTAL: [u64; 2] = [10, 30];
const GROWTH_PART: [u64; 2] = [25, 60];
/// Percent the total must grow for a part's growth to count.
const TRADED: u64 = 2;
/// A part below this share of its case's total, in percent, is not worth a failure.
const SMALL: u64 = 3;

/// Features of the processor by which libraries choose code, as /proc/cpuinfo has them. valgrind passes no AVX-512 on.
const FEATURES: &[&str] =
    &["ssse3", "sse4_2", "avx", "avx2", "bmi1", "bmi2", "fma", "abm", "movbe", "pclmulqdq", "erms", "fsrm"];

const USAGE: &str = "\
cargo xtask instructions [--record]
Counts the instructions of a few dumps with valgrind and compares them with xtask/instructions.txt; --record writes that anew.";

/// Instructions by case and part.
type Counts = BTreeMap<(String, String), u64>;

/// Where and how counts were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Origin {
    cpu: String,
    compiler: String,
}

/// Compares, or writes the table.
///
/// # Errors
/// valgrind cannot be had ([`Skipped`]), or a run or a file fails.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(if check()? { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        ["--record"] => {
            let (origin, counts) = (origin(), count_all()?);
            std::fs::write(table_path(), text(&origin, &counts)).context("cannot write the table")?;
            println!("recorded: {}", table_path().display());
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("{USAGE}"),
    }
}

/// Counts and compares with the table; prints what differs. Whether nothing grew too much.
///
/// # Errors
/// As [`run`].
pub fn check() -> Result<bool> {
    let recorded = std::fs::read_to_string(table_path()).context("xtask/instructions.txt")?;
    let (then, expected) = parse(&recorded)?;
    let now = origin();
    for (what, a, b) in [("processor", &then.cpu, &now.cpu), ("compiler", &then.compiler, &now.compiler)] {
        if a != b {
            println!("another {what} than the table's, so more growth is allowed: {b} (table: {a})");
        }
    }
    let rows = compare(&expected, &count_all()?, then == now);
    for row in &rows {
        println!("{:<16} {:<7} {:>14} {:>+7.1} %{}", row.case, row.part, row.now, row.growth, row.verdict());
    }
    let failed = rows.iter().any(|r| r.failed);
    if failed {
        println!("where this is meant: cargo xtask instructions --record, and say in the commit what it is for");
    }
    Ok(!failed)
}

fn table_path() -> PathBuf {
    shell::workspace().join("xtask/instructions.txt")
}

fn origin() -> Origin {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find_map(|l| l.strip_prefix("flags")).unwrap_or_default();
    let has = |feature: &&&str| flags.split_whitespace().any(|f| f == **feature);
    let cpu: Vec<&str> = FEATURES.iter().filter(has).copied().collect();
    let compiler = shell::capture(Command::new("rustc").arg("--version")).unwrap_or_default();
    Origin { cpu: cpu.join(" "), compiler: compiler.trim().to_owned() }
}

fn count_all() -> Result<Counts> {
    debian::require(&[("valgrind", "valgrind")])?;
    let program = peers::coresift(true)?;
    let folder = tempfile::tempdir_in(shell::target_dir())?;
    let mut counts = Counts::new();
    for case in CASES {
        let core = match case.core {
            Core::Bundled => fixture::unpacked()?,
            Core::Synthetic(spec) => synthetic::core(spec)?,
        };
        let out = folder.path().join("callgrind");
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", out.display()));
        command.arg(&program).args(["dump", "-f", "-d", "31", "--threads", "1", "--compress", case.codec]);
        // A budget of its own: the default goes by the machine's free memory, and buffers by the budget.
        command.args(["--max-memory", "64M"]).arg(&core).arg("/dev/null");
        shell::capture(&mut command)?;
        let by_part = parts(&std::fs::read_to_string(&out)?)?;
        println!("{}: {} instructions", case.name, by_part.get(TOTAL).copied().unwrap_or(0));
        counts.extend(by_part.into_iter().map(|(part, n)| ((case.name.to_owned(), part.to_owned()), n)));
    }
    Ok(counts)
}

/// Instructions of each part in a callgrind file, and their sum under [`TOTAL`].
fn parts(profile: &str) -> Result<BTreeMap<&'static str, u64>> {
    let mut sums = BTreeMap::new();
    for (function, own) in functions(profile)? {
        let part = PARTS.iter().find(|p| p.functions.iter().any(|f| function.contains(f))).map_or(REST, |p| p.name);
        *sums.entry(part).or_insert(0) += own;
        if part != MEMORY {
            *sums.entry(TOTAL).or_insert(0) += own;
        }
    }
    Ok(sums)
}

/// Each function's own instructions, from a callgrind file (format description: valgrind's manual, "Callgrind Format
/// Specification"): after `fn=(ID) NAME`, or `fn=(ID)` once the name is known, lines `POSITION COST`; after `calls=` one such
/// line with what the called function cost, which is not the function's own.
fn functions(profile: &str) -> Result<HashMap<&str, u64>> {
    ensure!(
        profile.contains("\nevents: Ir\n") && profile.contains("\npositions: line\n"),
        "no callgrind file of Ir by line"
    );
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut own: HashMap<&str, u64> = HashMap::new();
    let (mut current, mut called) = ("", false);
    for line in profile.lines() {
        let name = ["fn=", "cfn="].iter().find_map(|key| line.strip_prefix(key));
        if let Some(name) = name {
            let (id, text) = name.split_once(' ').unwrap_or((name, ""));
            if !text.is_empty() {
                names.insert(id, text);
            }
            if line.starts_with("fn=") {
                current = names.get(id).copied().with_context(|| format!("a function {id} without a name"))?;
            }
        } else if line.starts_with("calls=") {
            called = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
            let cost = line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
            if !std::mem::take(&mut called) {
                *own.entry(current).or_insert(0) += cost.with_context(|| format!("no cost in {line:?}"))?;
            }
        }
    }
    Ok(own)
}

/// One comparison.
struct Row {
    case: String,
    part: String,
    now: u64,
    /// In percent.
    growth: f64,
    failed: bool,
}

impl Row {
    fn verdict(&self) -> &'static str {
        if self.failed { "  MORE THAN ALLOWED" } else { "" }
    }
}

fn compare(expected: &Counts, counted: &Counts, alike: bool) -> Vec<Row> {
    let of = |case: &str, part: &str| expected.get(&(case.to_owned(), part.to_owned())).copied();
    let row = |((case, part), &now): (&(String, String), &u64)| {
        let before = of(case, part);
        let total = of(case, TOTAL).unwrap_or(0);
        // Parts trade functions when code moves or is inlined elsewhere; that is no growth.
        let traded = counted.get(&(case.clone(), TOTAL.to_owned())).is_some_and(|n| *n <= total + total / 100 * TRADED);
        let allowed = if part == TOTAL { GROWTH_TOTAL } else { GROWTH_PART }[usize::from(!alike)];
        let small = part == MEMORY || traded || now.saturating_sub(before.unwrap_or(0)) < total * SMALL / 100;
        let limit = before.unwrap_or(0) / 100 * (100 + allowed);
        let growth = before.map_or(f64::INFINITY, |b| (now as f64 / b.max(1) as f64 - 1.0) * 100.0);
        // A case that the table does not have fails as a whole, so that it is recorded.
        let failed = if total == 0 { part == TOTAL } else { now > limit && !(small && part != TOTAL) };
        Row { case: case.clone(), part: part.clone(), now, growth, failed }
    };
    counted.iter().map(row).collect()
}

fn text(origin: &Origin, counts: &Counts) -> String {
    let mut out = String::from(
        "# Instructions of the release program, by case and part; `cargo xtask instructions --record` makes this file.\n",
    );
    let _ = writeln!(out, "cpu: {}\ncompiler: {}", origin.cpu, origin.compiler);
    for ((case, part), n) in counts {
        let _ = writeln!(out, "{case}\t{part}\t{n}");
    }
    out
}

fn parse(text: &str) -> Result<(Origin, Counts)> {
    let (mut origin, mut counts) = (Origin::default(), Counts::new());
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        if let Some(cpu) = line.strip_prefix("cpu: ") {
            origin.cpu = cpu.to_owned();
        } else if let Some(compiler) = line.strip_prefix("compiler: ") {
            origin.compiler = compiler.to_owned();
        } else {
            let mut words = line.split('\t');
            let (Some(case), Some(part), Some(Ok(n))) = (words.next(), words.next(), words.next().map(str::parse))
            else {
                bail!("xtask/instructions.txt: not CASE, PART and number: {line:?}");
            };
            counts.insert((case.to_owned(), part.to_owned()), n);
        }
    }
    Ok((origin, counts))
}

/// For `cargo xtask test`: [`check`], failed or not.
///
/// # Errors
/// As [`run`], and where something grew too much.
pub fn step() -> Result<()> {
    // Counts of another architecture's code say nothing.
    if !cfg!(target_arch = "x86_64") || !Path::new("/proc/cpuinfo").exists() {
        return Err(Skipped("the table is of x86-64 Linux".into()).into());
    }
    ensure!(check()?, "more instructions than the table allows; see above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "# callgrind format\npositions: line\nevents: Ir\nob=(1) /bin/x\nfl=(1) a.rs\n\
        fn=(1) coresift_kernel::scan\n10 5\n+1 7\nfi=(2) core.rs\n* 3\ncfn=(2) __memset_avx2\ncalls=2 0\n11 400\n-1 1\n\n\
        fn=(2)\n1 400\n\nfn=(3) main\n4 2\ncfn=(1)\ncalls=1 9\n* 416\n";

    #[test]
    fn what_a_called_function_costs_is_not_its_callers() {
        let own = functions(PROFILE).unwrap();
        assert_eq!((own["coresift_kernel::scan"], own["__memset_avx2"], own["main"]), (16, 400, 2));
        let parts = parts(PROFILE).unwrap();
        assert_eq!((parts["kernel"], parts[MEMORY], parts[REST], parts[TOTAL]), (16, 400, 2, 18));
        assert!(functions("no profile").is_err());
    }

    #[test]
    fn the_table_comes_back_from_its_text_and_the_checked_in_one_has_every_case() {
        let origin = Origin { cpu: "avx avx2".into(), compiler: "rustc 1".into() };
        let counts: Counts = [(("a case".into(), TOTAL.into()), 12)].into();
        assert_eq!(parse(&text(&origin, &counts)).unwrap(), (origin, counts));
        let (_, recorded) = parse(&std::fs::read_to_string(table_path()).unwrap()).unwrap();
        for case in CASES {
            assert!(recorded.contains_key(&(case.name.to_owned(), TOTAL.to_owned())), "{}", case.name);
        }
        assert!(parse("a case\ttotal\tmany").is_err());
    }

    #[test]
    fn growth_beyond_the_tolerance_fails_and_small_parts_and_copied_bytes_do_not() {
        let counts = |total, kernel, memory, rest| -> Counts {
            [(TOTAL, total), ("kernel", kernel), (MEMORY, memory), (REST, rest)]
                .map(|(part, n)| (("c".to_owned(), part.to_owned()), n))
                .into()
        };
        let failures = |now: &Counts, alike| -> Vec<String> {
            compare(&counts(1000, 500, 300, 10), now, alike).into_iter().filter(|r| r.failed).map(|r| r.part).collect()
        };
        assert_eq!(failures(&counts(1100, 620, 9000, 30), true), [""; 0]);
        assert_eq!(failures(&counts(1101, 500, 300, 10), true), [TOTAL]);
        assert_eq!(failures(&counts(1040, 640, 300, 10), true), ["kernel"]);
        assert_eq!(failures(&counts(1010, 900, 300, 10), true), [""; 0]);
        assert_eq!(failures(&counts(1290, 640, 300, 10), false), [""; 0]);
        assert_eq!(failures(&counts(500, 100, 100, 1), true), [""; 0]);
        let unknown: Counts = [(("d".to_owned(), TOTAL.to_owned()), 1)].into();
        assert_eq!(failures(&unknown, true), [TOTAL]);
    }
}
