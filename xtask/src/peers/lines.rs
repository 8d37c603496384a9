//! `cargo xtask check lines`: command lines of makedumpfile, run by it and by our program over one core.

use crate::{peers, shell};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The lines; its head says what they may use.
const LINES: &str = "xtask/lines.txt";
/// The core, its kernel, another kernel.
pub struct Subject<'a> {
    /// The raw core.
    pub core: &'a Path,
    /// Its kernel with debugging information.
    pub vmlinux: &'a Path,
    /// Another kernel with debugging information.
    pub other: &'a Path,
}

/// What of two outcomes differs. Bytes of a page that both have are never meant to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The exit code.
    Exit,
    /// What is printed on the standard output.
    Report,
    /// Which files there are.
    Files,
    /// The bytes of a file of text.
    Text,
    /// Ours lacks pages.
    PagesMissing,
    /// Ours has more pages.
    PagesMore,
    /// A page has other bytes, or the two files cannot be compared.
    Bytes,
}

impl Kind {
    /// The tags of the table.
    const TAGS: [(&'static str, Self); 6] = [
        ("exit", Self::Exit),
        ("report", Self::Report),
        ("files", Self::Files),
        ("text", Self::Text),
        ("pages-missing", Self::PagesMissing),
        ("pages-more", Self::PagesMore),
    ];

    fn tag(self) -> &'static str {
        Self::TAGS.iter().find(|(_, kind)| *kind == self).map_or("bytes", |(tag, _)| tag)
    }
}

/// How two outcomes differ: in what, and in words.
type Difference = (Kind, String);

/// What may differ, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reason<'a> {
    /// All of these,
    always: BTreeSet<Kind>,
    /// and perhaps these, on some kernels or cores.
    perhaps: BTreeSet<Kind>,
    why: &'a str,
}

impl<'a> Reason<'a> {
    /// Of a line such as `[report] [files?] why`; what has a question mark differs on some kernels or cores only.
    fn parse(line: &'a str) -> Result<Self> {
        let mut reason = Self { always: BTreeSet::new(), perhaps: BTreeSet::new(), why: line.trim() };
        while let Some((tag, behind)) = reason.why.strip_prefix('[').and_then(|open| open.split_once(']')) {
            let (name, kinds) = match tag.strip_suffix('?') {
                Some(name) => (name, &mut reason.perhaps),
                None => (tag, &mut reason.always),
            };
            let Some((_, kind)) = Kind::TAGS.iter().find(|(known, _)| *known == name) else {
                bail!("[{tag}] is nothing that may differ: {line}");
            };
            kinds.insert(*kind);
            reason.why = behind.trim_start();
        }
        let some = !reason.always.is_empty() || !reason.perhaps.is_empty();
        ensure!(some && !reason.why.is_empty(), "a reason begins with what may differ, and says why: {line}");
        Ok(reason)
    }
}

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    script: &'a str,
    /// How and why the two programs differ.
    differs: Option<Reason<'a>>,
}

impl Row<'_> {
    /// What is wrong with what was `found`: a difference without a reason, or a reason without a difference.
    fn wrong(&self, found: &[Difference]) -> Vec<String> {
        let meant = |kind: &Kind| {
            self.differs.as_ref().is_some_and(|reason| reason.always.contains(kind) || reason.perhaps.contains(kind))
        };
        let mut wrong: Vec<String> =
            found.iter().filter(|(kind, _)| !meant(kind)).map(|(_, words)| words.clone()).collect();
        wrong.dedup();
        let always = self.differs.iter().flat_map(|reason| &reason.always);
        let unused = always.filter(|kind| found.iter().all(|(other, _)| other != *kind));
        wrong.extend(unused.map(|kind| format!("the table says that {} differs, and it does not", kind.tag())));
        wrong
    }
}

fn rows(table: &str) -> Result<Vec<Row<'_>>> {
    let (mut rows, mut differs) = (Vec::new(), None);
    for line in table.lines() {
        if let Some(reason) = line.strip_prefix("#!") {
            differs = Some(Reason::parse(reason)?);
        } else if !line.is_empty() && !line.starts_with('#') {
            rows.push(Row { script: line, differs: differs.take() });
        }
    }
    Ok(rows)
}

/// What a program made of a line.
struct Outcome {
    code: Option<i32>,
    out: String,
    err: String,
    folder: PathBuf,
}

/// Runs all lines that contain `only`; true where the two programs agree but for the differences that the table names.
///
/// # Errors
/// A program is missing, or the core cannot be read.
pub fn run(subject: &Subject<'_>, only: &str) -> Result<bool> {
    let (ours, peer) = (peers::coresift(true)?, peers::program("makedumpfile")?);
    let table = std::fs::read_to_string(shell::workspace().join(LINES)).context(LINES)?;
    let place = tempfile::tempdir_in(shell::target_dir())?;
    let core = peers::core_for_makedumpfile(subject.core, place.path())?;
    let shim = place.path().join("makedumpfile");
    std::os::unix::fs::symlink(&ours, &shim)?;
    let address = peers::python("vaddr.py").and_then(|mut python| shell::capture(python.arg(&core)))?;
    let overlap = overlap(&core)?;
    let guarded = guarded(&ours, subject.core)?;
    println!(
        "{}: {} and coresift; segments overlap by {overlap} pages, the guard keeps up to {guarded}",
        subject.core.display(),
        peers::version(&peer, "-v")
    );
    let (mut same, mut meant, mut wrong) = (0, 0, 0);
    for row in rows(&table)?.iter().filter(|row| row.script.contains(only)) {
        let go = |program: &Path, name: &str| -> Result<Outcome> {
            let folder = place.path().join(name);
            if folder.exists() {
                std::fs::remove_dir_all(&folder)?;
            }
            std::fs::create_dir(&folder)?;
            let mut command = Command::new("timeout");
            command.args(["120", "sh", "-c", row.script]).current_dir(&folder);
            command.env("M", program).env("PEER", &peer).env("CORE", &core).env("VADDR", address.trim());
            command.env("VMLINUX", subject.vmlinux).env("OTHER", subject.other);
            let done = shell::output(&mut command)?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok(Outcome { code: done.status.code(), out: text(&done.stdout), err: text(&done.stderr), folder })
        };
        let (a, b) = (go(&shim, "ours")?, go(&peer, "theirs")?);
        let found = differences(&a, &b, overlap, guarded)?;
        let unmeant = row.wrong(&found);
        match (found.as_slice(), unmeant.as_slice()) {
            ([], []) => same += 1,
            (_, []) => {
                meant += 1;
                println!("differs  {}", row.script);
                found.iter().for_each(|(kind, words)| println!("    [{}] {words}", kind.tag()));
                row.differs.iter().for_each(|reason| println!("    {}", reason.why));
            }
            (_, unmeant) => {
                wrong += 1;
                println!("DIFFERS  {}", row.script);
                unmeant.iter().for_each(|line| println!("    {line}"));
                for (who, outcome) in [("ours", &a), ("makedumpfile", &b)] {
                    let last =
                        outcome.err.lines().map(|l| l.rsplit('\r').next().unwrap_or(l)).rfind(|l| !l.trim().is_empty());
                    println!("    {who} exit {:?}: {}", outcome.code, last.unwrap_or("").trim());
                }
            }
        }
    }
    println!("{} lines: {same} the same, {meant} different as the table says, {wrong} wrong", same + meant + wrong);
    ensure!(same + meant + wrong > 0, "no line contains {only:?}");
    Ok(wrong == 0)
}

/// How two outcomes differ, in words.
fn differences(a: &Outcome, b: &Outcome, overlap: u64, guarded: u64) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    if a.code != b.code {
        found.push((Kind::Exit, format!("exit code {:?} and {:?}", a.code, b.code)));
    }
    // What is filtered again has no segments, and so no pages that are counted twice.
    let x = printed(&a.out, 0);
    let told = [overlap, 0].map(|overlap| differing_lines(&x, &printed(&b.out, overlap), guarded));
    let told = told.into_iter().min_by_key(Vec::len).unwrap_or_default();
    found.extend(told.into_iter().map(|words| (Kind::Report, words)));
    let names = |folder: &Path| -> Result<BTreeSet<String>> {
        let names = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: Result<BTreeSet<String>> = names.collect();
        Ok(names?.into_iter().filter(|name| name.starts_with("out") || name.starts_with("text")).collect())
    };
    let (ours, theirs) = (names(&a.folder)?, names(&b.folder)?);
    if ours != theirs {
        found.push((Kind::Files, format!("files {ours:?} and {theirs:?}")));
    }
    for name in ours.intersection(&theirs) {
        let (x, y) = (a.folder.join(name), b.folder.join(name));
        if name.starts_with("text") {
            let other = std::fs::read(&x)? != std::fs::read(&y)?;
            found.extend(other.then(|| (Kind::Text, format!("{name}: other text"))));
        } else if std::fs::metadata(&x)?.len().max(std::fs::metadata(&y)?.len()) > 0 && a.code == Some(0) {
            // What a run that failed leaves is judged by other tests: ours can be read, makedumpfile's mostly cannot.
            let mut compare = peers::python("same_pages.py")?;
            let done = shell::output(compare.arg(&x).arg(&y).arg(guarded.to_string()))?;
            if !done.status.success() {
                let said = String::from_utf8_lossy(&done.stdout).into_owned();
                let failed = shell::tail(&String::from_utf8_lossy(&done.stderr), 1);
                let words = format!("{name}: {}{failed}", said.trim());
                found.extend(page_kinds(&said, guarded).into_iter().map(|kind| (kind, words.clone())));
            }
        }
    }
    Ok(found)
}

/// What the numbers of same_pages.py, which found two files to differ, say of how. Anything else it says is that they cannot be compared.
fn page_kinds(said: &str, guarded: u64) -> BTreeSet<Kind> {
    let kind = |part: &str| {
        let (number, words) = part.trim().split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        Some(match words.split(" (").next()? {
            "same" => None,
            // The guard is why there may be this many more.
            "only ours" if number <= guarded => None,
            "only ours" | "lost in theirs" => Some(Kind::PagesMore),
            "only theirs" | "lost in ours" => Some(Kind::PagesMissing),
            _ => Some(Kind::Bytes),
        })
    };
    let parts = said.trim().split(", ").map(|part| kind(part).unwrap_or(Some(Kind::Bytes)));
    let kinds: BTreeSet<Kind> = parts.flatten().collect();
    // It does not fail for nothing.
    if kinds.is_empty() { [Kind::Bytes].into() } else { kinds }
}

/// Whether two lines of a report give numbers that differ by no more pages than our guard keeps.
fn near(a: &str, b: &str, guarded: u64) -> bool {
    let split = |line: &str| {
        let (name, hex) = line.split_once(": 0x")?;
        Some((name.to_owned(), u64::from_str_radix(hex, 16).ok()?))
    };
    matches!((split(a), split(b)), (Some((x, n)), Some((y, m))) if x == y && n.abs_diff(m) <= guarded)
}

/// Lines that one of the two prints and the other does not.
fn differing_lines(ours: &[String], theirs: &[String], guarded: u64) -> Vec<String> {
    let only = |x: &[String], y: &[String]| {
        let missing = x.iter().filter(|l| !y.contains(l) && !y.iter().any(|other| near(l, other, guarded)));
        missing.cloned().collect::<Vec<_>>()
    };
    let mut found: Vec<String> = only(ours, theirs).iter().map(|l| format!("only ours prints: {l}")).collect();
    found.extend(only(theirs, ours).iter().map(|l| format!("only makedumpfile prints: {l}")));
    if found.is_empty() && (ours != theirs && guarded == 0 || ours.len() != theirs.len()) {
        found.push("the same lines are printed in another order or number".into());
    }
    found
}

/// Lines that tell of time, of compressed bytes, of a cache we do not have, or of a version.
const OWN: &[&str] = &["Cache hit", "Write bytes", "erase info", "    Extension filter pages"];

/// Lines of its own that makedumpfile may print behind another: a step's time, and that it does not know a kernel as new as this.
const GLUED: [&str; 3] =
    ["STEP [", "The kernel version is not supported.", "The makedumpfile operation may be incomplete."];

/// The lines of the report whose numbers count pages of overlapping segments twice in makedumpfile.
const TWICE: [&str; 3] = ["Original pages  : 0x", "  Remaining pages  : 0x", "     in ELF format : 0x"];

/// What a program printed, without what is its own, with `overlap` taken out of the numbers that count it.
fn printed(out: &str, overlap: u64) -> Vec<String> {
    // makedumpfile does not end its line about the level in front of the next.
    let cut = |line| GLUED.iter().fold(line, |l: &str, next| l.split_once(next).map_or(l, |(before, _)| before));
    let lines = out.lines().map(cut);
    let lines = lines.filter(|l| !OWN.iter().any(|own| l.starts_with(own)) && !l.trim().is_empty());
    let (mut after_remaining, mut user) = (false, 0);
    lines
        .filter(|l| !l.starts_with("  (The number of pages is reduced to"))
        .map(|line| {
            let number = |prefix: &str| line.strip_prefix(prefix).and_then(|hex| u64::from_str_radix(hex, 16).ok());
            // Poisoned pages are counted as such here, and as what they were by makedumpfile; both are left out.
            if let Some(n) = number("    User process data pages : 0x") {
                user = n;
                return String::new();
            }
            if let Some(n) = number("    Hwpoison pages          : 0x") {
                return format!("    User process data and hwpoison pages : {:#x}", user + n);
            }
            if let Some(n) = number("Memory Hole     : 0x") {
                return format!("Memory Hole     : {:#x}", n.wrapping_add(overlap));
            }
            for prefix in TWICE {
                if let Some(n) = number(prefix) {
                    after_remaining |= prefix.contains("Remaining");
                    let twice = !prefix.contains("ELF") || after_remaining;
                    return format!("{prefix}{:x}", n.wrapping_sub(if twice { overlap } else { 0 }));
                }
            }
            line.to_owned()
        })
        .filter(|line| !line.is_empty())
        .collect()
}

/// Pages that an ELF core's segments hold more than once.
fn overlap(core: &Path) -> Result<u64> {
    let bytes = coresift_format::Input::open(core)?;
    let loads = bytes.segments().iter().filter(|s| s.paddr != u64::MAX);
    let all: u64 = loads.map(|s| (s.paddr + s.mem_size).div_ceil(4096) - s.paddr / 4096).sum();
    Ok(all.saturating_sub(bytes.memory().ram().len()))
}

/// Pages that our program keeps at level 31 because something essential lives in them.
fn guarded(ours: &Path, core: &Path) -> Result<u64> {
    let json = shell::capture(
        Command::new(ours).args(["dump", "-d", "31", "--compress", "none", "--json"]).arg(core).arg("/dev/null"),
    )?;
    let report: serde_json::Value = serde_json::from_str(&json)?;
    let Some(rows) = report["guard"].as_array() else { bail!("no guard in the report of {}", core.display()) };
    Ok(rows.iter().filter_map(|row| row["saved"].as_u64()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_belongs_to_the_line_behind_it_alone() {
        let table = "# head\n\n#! [report] because\n$M -a\n$M -b\n";
        let reason = Reason { always: [Kind::Report].into(), perhaps: BTreeSet::new(), why: "because" };
        assert_eq!(
            rows(table).unwrap(),
            [Row { script: "$M -a", differs: Some(reason) }, Row { script: "$M -b", differs: None }]
        );
    }

    #[test]
    fn a_reason_says_what_may_differ_and_why() {
        for wrong in ["because", "[report]", "[report?]", "[bytes] because", "[reprot] because", "[report because"] {
            assert!(Reason::parse(wrong).is_err(), "{wrong}");
        }
        let reason = Reason::parse(" [exit] [text?] [files] because [x]").unwrap();
        assert_eq!(
            (reason.always, reason.perhaps, reason.why),
            ([Kind::Exit, Kind::Files].into(), [Kind::Text].into(), "because [x]")
        );
    }

    #[test]
    fn a_reason_covers_what_it_names_alone_and_is_wrong_where_it_no_longer_applies() {
        let row = |reason: &'static str| Row { script: "", differs: Some(Reason::parse(reason).unwrap()) };
        let of = |kinds: &[Kind]| kinds.iter().map(|kind| (*kind, format!("{kind:?}"))).collect::<Vec<Difference>>();
        let report = row("[report] because");
        assert!(report.wrong(&of(&[Kind::Report, Kind::Report])).is_empty());
        assert_eq!(report.wrong(&of(&[Kind::Report, Kind::PagesMissing])), ["PagesMissing"]);
        assert_eq!(report.wrong(&of(&[Kind::Report, Kind::Bytes])), ["Bytes"]);
        assert_eq!(report.wrong(&[]).len(), 1, "it does not differ any more");
        let both = row("[exit] [files] because");
        assert_eq!(both.wrong(&of(&[Kind::Exit])).len(), 1, "one of the two does not differ any more");
        let perhaps = row("[exit] [files?] because");
        assert!(
            perhaps.wrong(&of(&[Kind::Exit])).is_empty() && perhaps.wrong(&of(&[Kind::Exit, Kind::Files])).is_empty()
        );
        assert_eq!(perhaps.wrong(&of(&[Kind::Files])).len(), 1, "what always differs does not");
        assert_eq!(perhaps.wrong(&of(&[Kind::Exit, Kind::Bytes])), ["Bytes"]);
        assert_eq!(Row { script: "", differs: None }.wrong(&of(&[Kind::Exit])), ["Exit"]);
    }

    #[test]
    fn pages_that_are_there_once_are_told_from_pages_with_other_bytes() {
        let of = |said| page_kinds(said, 3).into_iter().collect::<Vec<_>>();
        assert_eq!(
            of("26083 same, 8 only ours (first: pfn 0x1fff), 2400 only theirs (first: pfn 0x1001)\n"),
            [Kind::PagesMissing, Kind::PagesMore]
        );
        assert_eq!(of("1 same, 3 only ours (first: pfn 0x1), 1 lost in ours (first: pfn 0x1)"), [Kind::PagesMissing]);
        assert_eq!(of("1 same, 1 different (first: pfn 0x1)"), [Kind::Bytes]);
        assert_eq!(
            of("1 same, 4 only ours (first: pfn 0x1), 1 different (first: pfn 0x1)"),
            [Kind::PagesMore, Kind::Bytes]
        );
        for failed in ["", "one is an ELF file, the other is not\n", "Traceback, line 1"] {
            assert_eq!(of(failed), [Kind::Bytes], "{failed}");
        }
    }

    #[test]
    fn pages_counted_twice_are_taken_out_of_the_numbers_that_count_them() {
        let text = "Original pages  : 0x0000000000000010\n     in ELF format : 0x0000000000000004\n  Remaining pages  : 0x0000000000000008\n     in ELF format : 0x000000000000000c\nMemory Hole     : 0x0000000000000001\nSTEP [x] : 1 seconds\n";
        let want = [
            "Original pages  : 0xe",
            "     in ELF format : 0x4",
            "  Remaining pages  : 0x6",
            "     in ELF format : 0xa",
            "Memory Hole     : 0x3",
        ];
        assert_eq!(printed(text, 2), want);
    }

    #[test]
    fn numbers_may_differ_by_what_the_guard_keeps_and_nothing_else_may() {
        let of = |text: &str| vec![text.to_owned()];
        let (a, b) = (of("  Excluded pages   : 0x10"), of("  Excluded pages   : 0x13"));
        assert!(differing_lines(&a, &b, 3).is_empty());
        assert_eq!(differing_lines(&a, &b, 2).len(), 2);
        assert_eq!(differing_lines(&of("saved to a."), &of("saved to b."), 3).len(), 2);
        assert_eq!(differing_lines(&a, &[], 3).len(), 1);
    }

    #[test]
    fn the_table_has_at_least_sixty_lines_and_none_twice() {
        let table = std::fs::read_to_string(shell::workspace().join(LINES)).unwrap();
        let all = rows(&table).unwrap();
        assert!(all.len() >= 60);
        let scripts: BTreeSet<&str> = all.iter().map(|row| row.script).collect();
        assert_eq!(scripts.len(), all.len());
    }
}
