//! What runs in the capture kernel, and what each run cost there.

use super::options::Options;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Arguments of lab/probe.c, a run each. Reads of /proc/vmcore are measured against reads of a file in the page cache, where the
/// same bytes are copied but nothing has to be mapped first.
const PROBES: &[&str] = &[
    "costs /proc/vmcore",
    "read /proc/vmcore seq k,r4k,r64k,r256k,r1m,m64k,m256k,m512k,m1m,m2m,m4m,m16m,m64m,m64kp,m1mp,m16mp THREADS 64 3",
    "read /proc/vmcore slab r256k,m256k,m512k,m1m,m2m,m2mp THREADS 64 3",
    // What kept pages are like: runs of a page to half a window, some of them far from each other.
    "read /proc/vmcore 1/2,4/8,16/32,64/128,1/8,4/32,16/128,64/512,1/64 \
     r256k,m64k,m128k,m256k,m512k,m1m,m2m,m4m,m16m,m4ke THREADS 32 3",
    "read /out/cached seq k,r4k,r64k,r256k,r1m,m64k,m256k,m1m,m4m,m16m,m1mp THREADS 64 3",
];

/// Our codec names with makedumpfile's option for each.
const CODECS: &[(&str, &str)] = &[("none", ""), ("lzo", "-l "), ("snappy", "-p "), ("zstd", "-z "), ("zlib", "-c ")];

/// One program's run in the capture kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The command line.
    pub command: String,
    /// How it ended, as a shell would say it.
    pub exit: Option<i64>,
    /// How long it took, in milliseconds of the guest's clock.
    pub wall_ms: Option<u64>,
    /// Processor time it used itself, in milliseconds.
    pub user_ms: Option<u64>,
    /// Processor time the kernel used for it, in milliseconds.
    pub system_ms: Option<u64>,
    /// Its peak resident memory, in KiB; mapped pages of /proc/vmcore count.
    pub peak_kib: Option<u64>,
    /// Page faults served without input.
    pub minor_faults: Option<u64>,
    /// Page faults that waited for input.
    pub major_faults: Option<u64>,
    /// When the dump had a first byte, in milliseconds after the start, give or take 5.
    pub first_byte_ms: Option<u64>,
    /// Length of the dump it wrote.
    pub bytes: Option<u64>,
}

impl Run {
    /// Takes over what lab/guest.c says of a program that has ended: `exit=0 wall_ms=1234 ...`.
    pub fn ended(&mut self, said: &str) {
        self.exit = value(said, "exit").map(u64::cast_signed);
        self.wall_ms = value(said, "wall_ms");
        self.user_ms = value(said, "user_ms");
        self.system_ms = value(said, "system_ms");
        self.peak_kib = value(said, "peak_kib");
        self.minor_faults = value(said, "minor_faults");
        self.major_faults = value(said, "major_faults");
        self.first_byte_ms = value(said, "first_byte_ms");
    }
}

/// The number after `key=` in `text`.
pub fn value(text: &str, key: &str) -> Option<u64> {
    text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
}

/// The command lines to run, as a shell reads them.
pub fn commands(options: &Options) -> Result<Vec<String>> {
    if options.raw_only {
        return Ok(Vec::new());
    }
    if options.probe {
        let threads = if options.capture_cpus > 1 { "1,2" } else { "1" };
        let cached = "dd if=/proc/vmcore of=/out/cached bs=1M count=70 skip=64".to_owned();
        let probes = PROBES.iter().map(|line| format!("probe {}", line.replace("THREADS", threads)));
        return Ok([cached].into_iter().chain(probes).collect());
    }
    let ours = options.program.as_deref().map_or(Ok("coresift"), name)?;
    if !options.compare {
        return Ok(vec![format!("{} {} /proc/vmcore /out/dump", single_quoted(ours), options.dump_args)]);
    }
    let both = |&(codec, option): &(&str, &str)| {
        let ours = |threads| format!("{ours} dump -d 31 --compress {codec} --threads {threads} /proc/vmcore /out/dump");
        let makedumpfile = |more| format!("makedumpfile -d 31 --message-level 4 {option}{more}/proc/vmcore /out/dump");
        let mut lines = vec![makedumpfile(""), ours(1), ours(2)];
        if options.capture_cpus > 1 {
            // On one processor its threads spin for each other: 48 to 72 s for what takes one thread 2 to 10 s.
            lines.insert(1, makedumpfile("--num-threads 2 "));
        }
        lines
    };
    Ok(CODECS.iter().flat_map(both).collect())
}

/// A file's own name: programs like busybox, and ours, do what they are called.
pub fn name(path: &Path) -> Result<&str> {
    path.file_name().and_then(|n| n.to_str()).with_context(|| format!("{} has no name", path.display()))
}

/// `text` as one word of a shell.
fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The runs, a line each.
pub fn table(runs: &[Run]) -> String {
    let mut table = String::from("  wall s   user s system s  first s  peak KiB    faults  dump MiB  exit\n");
    let seconds = |ms: Option<u64>| ms.map_or(f64::NAN, |ms| ms as f64 / 1e3);
    for run in runs {
        let _ = writeln!(
            table,
            "{:8.2} {:8.2} {:8.2} {:8.2} {:9} {:9} {:9.1} {:>5}  {}",
            seconds(run.wall_ms),
            seconds(run.user_ms),
            seconds(run.system_ms),
            seconds(run.first_byte_ms),
            run.peak_kib.unwrap_or(0),
            run.minor_faults.unwrap_or(0) + run.major_faults.unwrap_or(0),
            run.bytes.unwrap_or(0) as f64 / f64::from(1 << 20),
            run.exit.map_or("?".to_owned(), |code| code.to_string()),
            run.command,
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_the_shell() {
        assert_eq!(single_quoted("a 'b' $c"), r"'a '\''b'\'' $c'");
    }

    #[test]
    fn what_the_guest_says_of_a_run_is_taken_over() {
        let mut run = Run::default();
        run.ended(
            "exit=137 wall_ms=12 user_ms=3 system_ms=4 peak_kib=5 minor_faults=6 major_faults=0 first_byte_ms=-1",
        );
        assert_eq!((run.exit, run.wall_ms, run.system_ms), (Some(137), Some(12), Some(4)));
        assert_eq!((run.minor_faults, run.first_byte_ms, run.bytes), (Some(6), None, None));
    }

    #[test]
    fn a_program_is_run_by_its_own_name_and_a_comparison_runs_both_with_each_codec() {
        let mut options = Options::new("6.12");
        options.program = Some("/bin/dump it".into());
        assert_eq!(commands(&options).unwrap(), ["'dump it' dump -d 31 --compress zstd /proc/vmcore /out/dump"]);
        options = Options::new("6.12");
        options.compare = true;
        let lines = commands(&options).unwrap();
        assert_eq!(lines.len(), 3 * CODECS.len());
        assert!(
            lines.iter().any(|l| l == "makedumpfile -d 31 --message-level 4 -l /proc/vmcore /out/dump"),
            "{lines:?}"
        );
    }
}
