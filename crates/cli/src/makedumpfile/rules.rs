//! Which options go together: makedumpfile's rules, checked before any file is opened.

use super::line::CommandLine;
use super::options::Opt;
use std::ffi::OsString;

/// What a command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Mode {
    /// -g: text of VMCOREINFO from a vmlinux.
    Generate,
    /// -R: a dump file from a flattened stream.
    Rearrange,
    /// --reassemble.
    Reassemble,
    /// --dump-dmesg.
    Dmesg,
    /// --mem-usage.
    MemUsage,
    /// A dump of the first name in the others; none of them with -F.
    Create(Vec<OsString>),
}

/// A command line that breaks a rule, with makedumpfile's line about it where it has one.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken(pub Option<&'static str>);

/// One rule: what must not hold, and the line said about it.
type Rule = (fn(&CommandLine) -> bool, Option<&'static str>);

const CODECS: &[Opt] = &[Opt::Zlib, Opt::Lzo, Opt::Snappy, Opt::Zstd];
/// Both set the file that VMCOREINFO is read from.
const VMCOREINFO_FILES: &[Opt] = &[Opt::ReadVmcoreinfo, Opt::XenVmcoreinfo];

fn level(line: &CommandLine) -> bool {
    line.first_level().number() != 0
}

const GENERATE: &[Rule] = &[
    (|l| !l.names.is_empty(), None),
    (|l| l.has_any(CODECS) || level(l) || l.has_any(VMCOREINFO_FILES), None),
    (|l| l.has_any(&[Opt::Elf, Opt::Flatten, Opt::Rearrange, Opt::ExcludeXenDomains]), None),
    (|l| !l.has_any(&[Opt::Vmlinux, Opt::XenSyms]), None),
    (|l| l.has(Opt::DryRun), Some("--dry-run cannot be used with -g.")),
];

const NOT_WITH_PARTS: Rule = (
    |l| {
        let others =
            [Opt::Elf, Opt::Vmlinux, Opt::XenSyms, Opt::Flatten, Opt::GenerateVmcoreinfo, Opt::ExcludeXenDomains];
        l.has_any(CODECS) || level(l) || l.has_any(VMCOREINFO_FILES) || l.has_any(&others)
    },
    None,
);

const REARRANGE: &[Rule] = &[(|l| l.names.len() != 1, None), NOT_WITH_PARTS];

const REASSEMBLE: &[Rule] = &[
    // makedumpfile takes a single name here, and then has no part to read.
    (|l| l.names.len() < 2, None),
    NOT_WITH_PARTS,
    (|l| l.has(Opt::Split), None),
    (|l| l.has(Opt::DryRun), Some("--dry-run cannot be used with --reassemble.")),
];

const CREATE: &[Rule] = &[
    (|l| l.has_any(CODECS) && l.has(Opt::Elf), None),
    (|l| l.has_any(VMCOREINFO_FILES) && l.has_any(&[Opt::Vmlinux, Opt::XenSyms]), None),
    (|l| l.has(Opt::DryRun) && l.has(Opt::DumpDmesg), Some("--dry-run cannot be used with --dump-dmesg.")),
    (|l| l.has(Opt::Flatten) && l.has(Opt::Split), None),
    (|l| l.has(Opt::Config) && !l.has(Opt::Vmlinux), None),
    (|l| l.has(Opt::Diskset) && !cfg!(any(target_arch = "x86_64", target_arch = "x86")), None),
    (|l| l.has(Opt::PartialDmesg) && !l.has(Opt::DumpDmesg), None),
    (|l| l.has(Opt::ExcludeUnusedVmemmap) && !l.has(Opt::WorkDir), Some("-e requires --work-dir")),
    (|l| !names_fit(l), None),
    (|l| l.has(Opt::Split) && l.has(Opt::Elf), Some("Options for splitting dumpfile cannot be used with Elf format.")),
];

/// Whether the number of names is one that creating a dump (or a log) can use.
fn names_fit(line: &CommandLine) -> bool {
    let count = line.names.len();
    let (split, diskset) = (line.has(Opt::Split), line.has(Opt::Diskset));
    match (split, diskset) {
        (true, true) => count >= 2,
        (true, false) => count >= 3,
        (false, true) => count == 1,
        (false, false) if line.has(Opt::Flatten) => count == 1,
        (false, false) => count == 2 || count == 1 && line.has(Opt::MemUsage),
    }
}

/// A mode, the option that asks for it, and its rules; the first that fits is taken, else a dump is created.
type ModeRow = (Opt, Mode, &'static [Rule]);
const MODES: [ModeRow; 5] = [
    (Opt::GenerateVmcoreinfo, Mode::Generate, GENERATE),
    (Opt::Rearrange, Mode::Rearrange, REARRANGE),
    (Opt::Reassemble, Mode::Reassemble, REASSEMBLE),
    (Opt::DumpDmesg, Mode::Dmesg, CREATE),
    (Opt::MemUsage, Mode::MemUsage, CREATE),
];

/// The mode of `line`.
///
/// # Errors
/// The first rule that `line` breaks.
pub fn check(line: &CommandLine) -> Result<Mode, Broken> {
    let row = MODES.into_iter().find(|(opt, _, _)| line.has(*opt));
    let (mode, rules) = match row {
        Some((_, mode, rules)) => (mode, rules),
        None => (Mode::Create(line.names.clone()), CREATE),
    };
    match rules.iter().find(|(broken, _)| broken(line)) {
        Some((_, text)) => Err(Broken(*text)),
        None => Ok(mode),
    }
}

/// Options that cannot apply beside others of `line`. makedumpfile refuses these lines; but kdump scripts add --num-threads on
/// their own (kdump-utils does for every machine with several cpus), and a crashed machine must not save nothing for that.
pub fn notes(line: &CommandLine) -> Vec<String> {
    let split = line.has(Opt::NumThreads) && line.has(Opt::Split);
    split.then(|| "--num-threads does not apply to --split and is ignored".to_owned()).into_iter().collect()
}
