//! The options of makedumpfile 1.7.9, a row each: spelling, arity, what becomes of them here, and the help line.

use super::options::Support::{Missing, NoEffect, Works};

/// An option, by what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opt {
    BlockOrder,
    Zlib,
    Lzo,
    Snappy,
    Zstd,
    Level,
    SizeLimit,
    Elf,
    Flatten,
    Rearrange,
    Vmlinux,
    ReadVmcoreinfo,
    GenerateVmcoreinfo,
    ExcludeXenDomains,
    ExcludeUnusedVmemmap,
    Force,
    Debug,
    Help,
    Version,
    Split,
    SplitblockSize,
    Reassemble,
    NumThreads,
    CyclicBuffer,
    WorkDir,
    NonMmap,
    MessageLevel,
    ShowStats,
    CheckParams,
    DryRun,
    Vtop,
    DumpDmesg,
    PartialDmesg,
    Config,
    Eppic,
    Extension,
    MemUsage,
    XenSyms,
    XenVmcoreinfo,
    XenPhysStart,
    Diskset,
}

/// What this program does with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// What makedumpfile does.
    Works,
    /// Accepted and told: the dump is as good without it, for the reason given. A configured machine must never save nothing.
    NoEffect(&'static str),
    /// Accepted by the parameter check, refused by a run: what is not built, and what to do instead.
    Missing(&'static str, &'static str),
}

/// One option.
#[derive(Debug)]
pub struct Row {
    pub opt: Opt,
    /// The letter after one dash.
    pub short: Option<char>,
    /// The name after two dashes.
    pub long: Option<&'static str>,
    /// What its value is called, where it takes one.
    pub value: Option<&'static str>,
    pub support: Support,
    pub help: &'static str,
}

impl Row {
    /// The spelling shown to people: the letter where there is one.
    pub fn name(&self) -> String {
        match (self.short, self.long) {
            (Some(letter), _) => format!("-{letter}"),
            (None, long) => format!("--{}", long.unwrap_or_default()),
        }
    }
}

/// The row of `opt`.
pub fn row(opt: Opt) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.opt == opt)
}

const fn short(opt: Opt, letter: char, value: Option<&'static str>, support: Support, help: &'static str) -> Row {
    Row { opt, short: Some(letter), long: None, value, support, help }
}

const fn long(opt: Opt, name: &'static str, value: Option<&'static str>, support: Support, help: &'static str) -> Row {
    Row { opt, short: None, long: Some(name), value, support, help }
}

const INSTEAD_MAKEDUMPFILE: &str = "use makedumpfile for this step";
const ERASE: &str = "erasing data from the dump";
const INSTEAD_ERASE: &str = "use makedumpfile; a dump that still holds the data is not made";
const XEN: &str = "dumps of Xen hosts";
const FORMAT_ONLY: &str = "memory use follows --max-memory of `coresift dump` and the free memory, not a buffer size";

/// Every option, in the order of the help text.
pub const ROWS: &[Row] = &[
    short(Opt::Zlib, 'c', None, Works, "compress each page with zlib"),
    short(Opt::Lzo, 'l', None, Works, "compress each page with LZO"),
    short(Opt::Snappy, 'p', None, Works, "compress each page with snappy"),
    short(Opt::Zstd, 'z', None, Works, "compress each page with zstd; of -c, -l, -p and -z the last one counts"),
    short(
        Opt::Level,
        'd',
        Some("LEVEL[,LEVEL...]"),
        Works,
        "leave out the page types of this dump level (table below); the next level of the list is tried when the dump \
         does not fit",
    ),
    short(Opt::Force, 'f', None, Works, "overwrite DUMPFILE when it exists"),
    long(Opt::NumThreads, "num-threads", Some("N"), Works, "use N threads; without it, one for each usable cpu"),
    long(Opt::DryRun, "dry-run", None, Works, "do everything but write; the size is reported"),
    long(Opt::ShowStats, "show-stats", None, Works, "print the report (adds 16 to the message level)"),
    long(Opt::MessageLevel, "message-level", Some("LEVEL"), Works, "which messages are printed (table below)"),
    short(Opt::Debug, 'D', None, Works, "print debugging messages (adds 8 to the message level)"),
    long(
        Opt::CheckParams,
        "check-params",
        None,
        Works,
        "check the command line only: silent and exit code 0 when it is good",
    ),
    long(Opt::NonMmap, "non-mmap", None, Works, "read VMCORE instead of mapping it"),
    Row { opt: Opt::Help, short: Some('h'), long: Some("help"), value: None, support: Works, help: "print this text" },
    short(Opt::Version, 'v', None, Works, "print the version and the codecs"),
    short(
        Opt::BlockOrder,
        'b',
        Some("ORDER"),
        NoEffect("pages are always written in large blocks"),
        "write buffer of 2^ORDER pages",
    ),
    long(Opt::CyclicBuffer, "cyclic-buffer", Some("KIB"), NoEffect(FORMAT_ONLY), "size of the page bitmap buffer"),
    long(
        Opt::WorkDir,
        "work-dir",
        Some("DIR"),
        NoEffect("no temporary file is made"),
        "directory of temporary bitmap files",
    ),
    long(Opt::SplitblockSize, "splitblock-size", Some("KIB"), Works, "granularity of --split"),
    short(Opt::Elf, 'E', None, Works, "write an ELF file, which gdb opens too; pages are stored as they are"),
    short(
        Opt::Flatten,
        'F',
        None,
        Works,
        "write the flattened format to the standard output; all messages go to the standard error",
    ),
    short(Opt::Rearrange, 'R', None, Works, "make a DUMPFILE of the flattened format read from the standard input"),
    short(Opt::SizeLimit, 'L', Some("SIZE"), Works, "write at most SIZE bytes (K, M, G, T, P, E)"),
    long(Opt::Split, "split", None, Works, "write several DUMPFILEs in parallel"),
    long(Opt::Reassemble, "reassemble", None, Works, "join the DUMPFILEs of --split"),
    short(Opt::Vmlinux, 'x', Some("VMLINUX"), Works, "kernel with debug information, for what VMCORE does not tell"),
    short(Opt::ReadVmcoreinfo, 'i', Some("FILE"), Works, "VMCOREINFO text made with -g"),
    short(Opt::GenerateVmcoreinfo, 'g', Some("FILE"), Works, "make a VMCOREINFO text of -x VMLINUX"),
    short(
        Opt::ExcludeUnusedVmemmap,
        'e',
        None,
        Works,
        "leave out vmemmap pages that describe no kept page (needs --work-dir)",
    ),
    long(Opt::DumpDmesg, "dump-dmesg", None, Works, "write the kernel log instead of a dump"),
    long(
        Opt::PartialDmesg,
        "partial-dmesg",
        None,
        Works,
        "with --dump-dmesg: only what was logged since the last clear",
    ),
    long(Opt::Vtop, "vtop", Some("ADDRESS"), Works, "print the physical address of a virtual one"),
    long(
        Opt::MemUsage,
        "mem-usage",
        None,
        Works,
        "print how many pages of /proc/kcore each dump level would leave out",
    ),
    long(
        Opt::Config,
        "config",
        Some("FILE"),
        Missing(ERASE, INSTEAD_ERASE),
        "erase what this configuration names (needs -x)",
    ),
    long(Opt::Eppic, "eppic", Some("PATH"), Missing(ERASE, INSTEAD_ERASE), "erase what these eppic macros name"),
    long(
        Opt::Extension,
        "extension",
        Some("LIBRARY"),
        NoEffect("extensions are not loaded; the dump holds what they would leave out"),
        "load a filter extension; may be repeated",
    ),
    short(Opt::ExcludeXenDomains, 'X', None, Missing(XEN, INSTEAD_MAKEDUMPFILE), "leave out the pages of Xen guests"),
    long(
        Opt::XenSyms,
        "xen-syms",
        Some("FILE"),
        Missing(XEN, INSTEAD_MAKEDUMPFILE),
        "hypervisor with debug information",
    ),
    long(
        Opt::XenVmcoreinfo,
        "xen-vmcoreinfo",
        Some("FILE"),
        Missing(XEN, INSTEAD_MAKEDUMPFILE),
        "VMCOREINFO text of the hypervisor",
    ),
    long(
        Opt::XenPhysStart,
        "xen_phys_start",
        Some("ADDRESS"),
        Missing(XEN, INSTEAD_MAKEDUMPFILE),
        "physical address of the hypervisor",
    ),
    long(
        Opt::Diskset,
        "diskset",
        Some("VMCORE"),
        Missing("sadump disk sets", INSTEAD_MAKEDUMPFILE),
        "one file of a sadump disk set; may be repeated",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_the_reference_option_string() {
        let short: HashSet<String> = ROWS
            .iter()
            .filter_map(|r| r.short.map(|c| format!("{c}{}", if r.value.is_some() { ":" } else { "" })))
            .collect();
        let reference = "b: c D d: e E F f g: h i: l L: p R v X x: z";
        assert_eq!(short, reference.split(' ').map(str::to_owned).collect());

        let long: HashSet<String> = ROWS
            .iter()
            .filter_map(|r| r.long.map(|name| format!("{name}{}", if r.value.is_some() { "=" } else { "" })))
            .collect();
        let reference = "split reassemble xen-syms= xen-vmcoreinfo= xen_phys_start= message-level= vtop= dump-dmesg \
            partial-dmesg config= help diskset= cyclic-buffer= eppic= non-mmap mem-usage splitblock-size= work-dir= \
            num-threads= check-params dry-run show-stats extension=";
        assert_eq!(long, reference.split_whitespace().map(str::to_owned).collect());
    }

    #[test]
    fn the_document_of_compatibility_says_the_same_of_every_option() {
        let document = include_str!("../../../../docs/compatibility.md");
        let rows: Vec<&str> = document.lines().filter(|l| l.starts_with("| `")).collect();
        for r in ROWS {
            let named = |line: &&&str| {
                let cell = line.split('|').nth(1).unwrap_or_default();
                cell.split('`').any(|code| code.split([' ', '[']).next() == Some(&r.name()))
            };
            let verdict = match r.support {
                Works => "| same |",
                NoEffect(_) => "| noted |",
                Missing(..) => "| not yet |",
            };
            let line = rows.iter().find(named).unwrap_or_else(|| panic!("{} is not in the document", r.name()));
            let better = r.support == Works && line.contains("| better |");
            assert!(better || line.contains(verdict), "{line} should say {verdict}");
        }
    }

    #[test]
    fn no_option_stands_twice() {
        for r in ROWS {
            assert_eq!(ROWS.iter().filter(|other| other.opt == r.opt).count(), 1, "{}", r.name());
        }
    }
}
