//! Debian packages: kernels of any suite, fetched without touching the machine's own apt, and programs this machine lacks.

use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Exit code of a command that could not do its work here for a reason that is no fault (automake's convention).
const EXIT_SKIPPED: u8 = 77;

/// The environment variable that names a Debian mirror where the machine's apt sources have none.
const MIRROR_VARIABLE: &str = "CORESIFT_DEBIAN_MIRROR";

/// Names of Debian suites, by which a Debian mirror is told from other sources.
const SUITES: &[&str] = &[
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "unstable",
    "testing",
    "stable",
    "oldstable",
    "oldoldstable",
];

/// Why a command did nothing, and what would change that.
#[derive(Debug)]
pub struct Skipped(pub String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

impl std::error::Error for Skipped {}

/// Success, or [`EXIT_SKIPPED`] where `result` is [`Skipped`].
///
/// # Errors
/// Every other error of `result`.
pub fn exit_code(result: Result<()>) -> Result<ExitCode> {
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            let skipped = error.downcast::<Skipped>()?;
            println!("{skipped}");
            Ok(ExitCode::from(EXIT_SKIPPED))
        }
    }
}

/// Makes sure that each program is there, installing the package that has it where it is not and we are root.
///
/// # Errors
/// [`Skipped`] where packages are missing and cannot be installed; or apt's own failure.
pub fn require(programs: &[(&str, &str)]) -> Result<()> {
    let mut packages: Vec<&str> =
        programs.iter().filter(|(program, _)| find(program).is_none()).map(|&(_, package)| package).collect();
    packages.dedup();
    install(&packages)
}

/// Installs packages where we are root.
///
/// # Errors
/// As [`require`].
pub fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if find("apt-get").is_none() {
        return Err(Skipped(format!("needs what Debian calls {list}, and there is no apt-get")).into());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Skipped(format!("needs packages: sudo apt-get install {list}")).into());
    }
    println!("installing {list}");
    shell::capture(Command::new("apt-get").args(["update", "-qq"]))?;
    shell::capture(
        Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(list.split(' '))
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )?;
    Ok(())
}

/// Where `program` is; the folders of system programs count too, which are not on every user's PATH.
pub fn find(program: &str) -> Option<PathBuf> {
    let system = ["/usr/sbin", "/sbin"].map(|d| Path::new(d).join(program));
    shell::find_program(program).or_else(|| system.into_iter().find(|p| p.is_file()))
}

/// Unpacks a package into `into`.
///
/// # Errors
/// dpkg-deb fails.
pub fn unpack(package: &Path, into: &Path) -> Result<()> {
    shell::capture(Command::new("dpkg-deb").arg("-x").args([package, into]))?;
    Ok(())
}

/// An apt with lists and cache of its own, so that it needs no root and leaves the machine's as they are.
pub struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// One that knows `suites` of the Debian mirror this machine uses. Its state is in `dir` and is used again.
    ///
    /// # Errors
    /// No mirror is known, or it does not answer.
    pub fn for_suites(dir: &Path, suites: &[&str]) -> Result<Self> {
        let machine = machine_sources();
        let mut list = String::new();
        for suite in suites {
            list += &source_line(&machine, suite)?;
        }
        let dir = dir.join(suites.join("+"));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("sources.list"), list)?;
        Self::open(dir, "Dir::Etc::SourceList \"sources.list\";\nDir::Etc::SourceParts \"-\";\n")
    }

    /// One that knows what the machine's own apt sources offer.
    ///
    /// # Errors
    /// A source does not answer.
    pub fn of_this_machine(dir: &Path) -> Result<Self> {
        Self::open(dir.join("machine"), "")
    }

    fn open(dir: PathBuf, sources: &str) -> Result<Self> {
        for d in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(d)).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let at = |name: &str| dir.join(name).display().to_string();
        let sources = sources.replace("\"sources.list\"", &format!("{:?}", at("sources.list")));
        // The sandbox user cannot write into a folder of ours; archives are checked against signed lists either way.
        let conf = format!(
            "{sources}Dir::State::Lists {:?};\nDir::Cache {:?};\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n",
            at("lists"),
            at("cache"),
        );
        fs::write(dir.join("apt.conf"), conf)?;
        let apt = Self { dir };
        if !apt.dir.join("updated").exists() {
            apt.update()?;
        }
        Ok(apt)
    }

    fn update(&self) -> Result<()> {
        // Without the option a mirror that does not answer is no more than a warning.
        shell::capture(self.command("apt-get").args(["update", "-qq", "-o", "APT::Update::Error-Mode=any"]))?;
        Ok(fs::write(self.dir.join("updated"), "")?)
    }

    /// Runs a download; once more with new lists where it fails, for a mirror drops old versions.
    fn download(&self, command: &mut Command) -> Result<()> {
        command.args(["-o", "Acquire::http::Timeout=30"]);
        if shell::capture(command).is_err() {
            self.update()?;
            shell::capture(command)?;
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.dir.join("apt.conf"));
        command
    }

    /// Names of all packages that begin with `prefix`, oldest version first.
    ///
    /// # Errors
    /// apt-cache fails.
    pub fn packages(&self, prefix: &str) -> Result<Vec<String>> {
        let out = shell::capture(self.command("apt-cache").args(["pkgnames", prefix]))?;
        let mut names: Vec<String> = out.lines().map(str::to_owned).collect();
        names.sort_by_cached_key(|name| version_key(name));
        Ok(names)
    }

    /// Downloads `package` and everything it depends on, as for a machine with nothing installed, and unpacks it into `into`.
    ///
    /// # Errors
    /// The package is unknown, or a download or dpkg-deb fails.
    pub fn fetch_with_dependencies(&self, package: &str, into: &Path) -> Result<()> {
        let (cache, status) = (self.dir.join("closure"), self.dir.join("nothing-installed"));
        let _ = fs::remove_dir_all(&cache);
        fs::create_dir_all(cache.join("partial"))?;
        fs::write(&status, "")?;
        let mut install = self.command("apt-get");
        install.args(["install", "-y", "-qq", "--download-only", "--no-install-recommends"]);
        for option in
            [format!("Dir::State::status={}", status.display()), format!("Dir::Cache::archives={}", cache.display())]
        {
            install.args(["-o", &option]);
        }
        self.download(install.arg(package))?;
        for file in
            fs::read_dir(&cache)?.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "deb"))
        {
            unpack(&file, into)?;
        }
        fs::remove_dir_all(&cache)?;
        Ok(())
    }

    /// Downloads and unpacks `package` into `into`.
    pub fn fetch(&self, package: &str, into: &Path) -> Result<()> {
        let download = self.dir.join("download");
        let _ = fs::remove_dir_all(&download);
        fs::create_dir_all(&download)?;
        self.download(self.command("apt-get").args(["download", "-qq", package]).current_dir(&download))?;
        let file = fs::read_dir(&download)?.next().with_context(|| format!("apt-get downloaded no {package}"))??;
        unpack(&file.path(), into)?;
        fs::remove_dir_all(&download)?;
        Ok(())
    }
}

/// Numbers in a name compare as numbers, the rest as text.
fn version_key(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| text + n);
        key.push((rest[..text].to_owned(), rest[text..digits].parse().unwrap_or(0)));
        rest = &rest[digits..];
    }
    key
}

/// One entry of the machine's apt sources.
#[derive(Debug, Default, PartialEq, Eq)]
struct Source {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
}

fn machine_sources() -> Vec<Source> {
    let apt = Path::new("/etc/apt");
    let mut files: Vec<PathBuf> =
        fs::read_dir(apt.join("sources.list.d")).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    files.insert(0, apt.join("sources.list"));
    let mut sources = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        match file.extension().and_then(|e| e.to_str()) {
            Some("sources") => sources.extend(parse_deb822(&text)),
            Some("list") => sources.extend(text.lines().filter_map(parse_line)),
            _ => {}
        }
    }
    sources
}

/// The entries of a `.sources` file: stanzas of `Field: value` lines (sources.list(5)).
fn parse_deb822(text: &str) -> Vec<Source> {
    let without_comments = text.lines().filter(|l| !l.starts_with('#')).collect::<Vec<_>>().join("\n");
    let words = |stanza: &str, field: &str| -> Vec<String> {
        let line = stanza.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    without_comments
        .split("\n\n")
        .filter(|stanza| words(stanza, "Types").iter().any(|t| t == "deb"))
        .map(|s| Source { uris: words(s, "URIs"), suites: words(s, "Suites"), components: words(s, "Components") })
        .collect()
}

/// An entry of a `.list` file: `deb [options] uri suite component...`.
fn parse_line(line: &str) -> Option<Source> {
    let mut rest = line.trim().strip_prefix("deb ")?.trim_start();
    if rest.starts_with('[') {
        rest = rest.split_once(']')?.1;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source { uris: vec![words.next()?], suites: vec![words.next()?], components: words.collect() })
}

/// The `sources.list` line for `suite`, from the mirror that the machine takes other suites from.
fn source_line(machine: &[Source], suite: &str) -> Result<String> {
    let (codename, security) = suite.strip_suffix("-security").map_or((suite, false), |name| (name, true));
    ensure!(SUITES.contains(&codename), "{suite} is no Debian suite known here");
    let with = |matches: &dyn Fn(&str) -> bool| {
        machine
            .iter()
            .find(|s| s.components.iter().any(|c| c == "main") && s.suites.iter().any(|s| matches(s)))
            .and_then(|s| s.uris.first())
            .map(|uri| uri.trim_end_matches('/').to_owned())
    };
    let main = std::env::var(MIRROR_VARIABLE).ok().or_else(|| with(&|s| SUITES.contains(&s)));
    let Some(main) = main else {
        bail!(
            "the apt sources of this machine name no Debian mirror: set {MIRROR_VARIABLE} to one, or take the kernel `installed`"
        );
    };
    let uri = if security {
        with(&|s| s.ends_with("-security") && SUITES.contains(&s.trim_end_matches("-security")))
            .unwrap_or_else(|| format!("{main}-security"))
    } else {
        main
    };
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    Ok(format!("deb [arch=amd64 signed-by={keyring}] {uri} {suite} main\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "Types: deb\n# a comment\nURIs: http://mirror.test/debian/\nSuites: bookworm bookworm-updates\n\
        Components: main\nSigned-By: /k.gpg\n\nTypes: deb\nURIs: http://mirror.test/sec\nSuites: bookworm-security\n\
        Components: main\n\nTypes: deb-src\nURIs: http://other.test/\nSuites: sid\nComponents: main\n";

    #[test]
    fn other_suites_come_from_the_mirror_of_this_one() {
        let sources = parse_deb822(DEB822);
        assert_eq!(sources.len(), 2);
        let line = |suite| source_line(&sources, suite).unwrap();
        assert!(line("sid").ends_with("http://mirror.test/debian sid main\n"), "{}", line("sid"));
        assert!(line("bookworm-security").ends_with("http://mirror.test/sec bookworm-security main\n"));
    }

    #[test]
    fn one_line_sources_are_read_with_and_without_options() {
        let with = parse_line("deb [arch=amd64 signed-by=/k] http://m.test/debian sid main contrib").unwrap();
        assert_eq!(with, parse_line("deb http://m.test/debian sid main contrib").unwrap());
        assert_eq!(with.uris, ["http://m.test/debian"]);
        assert_eq!(parse_line("# deb http://m.test/debian sid main"), None);
    }

    #[test]
    fn a_machine_without_a_debian_mirror_is_told_what_to_set() {
        let ubuntu = parse_line("deb http://m.test/ubuntu noble main").unwrap();
        let error = source_line(&[ubuntu], "sid").unwrap_err().to_string();
        assert!(error.contains(MIRROR_VARIABLE), "{error}");
    }

    #[test]
    fn versions_sort_by_number() {
        let mut names = ["linux-image-6.1.0-9-cloud", "linux-image-6.1.0-10-cloud", "linux-image-6.1.0-2-cloud"];
        names.sort_by_cached_key(|n| version_key(n));
        assert_eq!(names.map(|n| &n[18..]), ["2-cloud", "9-cloud", "10-cloud"]);
    }
}
