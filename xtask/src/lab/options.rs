//! The command line of `cargo xtask lab`.

use super::kernel;
use crate::fixture;
use anyhow::{Context, Result, bail};
use lexopt::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

/// What to crash, how big, and what to bring out.
#[derive(Clone, Debug)]
pub struct Options {
    /// A name of `lab/kernels.txt`, or `installed`.
    pub kernel: String,
    /// Memory of the guest, in MiB.
    pub memory_mib: u64,
    /// Value of the kernel parameter.
    pub crashkernel: String,
    /// Percentage of the guest's available memory that the workload fills.
    pub fill: u8,
    /// Where results go; a folder below the cache when not given.
    pub out: Option<PathBuf>,
    /// Arguments of the program in the capture kernel; /proc/vmcore and the output are appended.
    pub dump_args: String,
    /// The program; ours, built static, when not given.
    pub program: Option<PathBuf>,
    /// Run no program in the capture kernel.
    pub raw_only: bool,
    /// Measure the ways to read /proc/vmcore instead of dumping it.
    pub probe: bool,
    /// Run makedumpfile and our program with each codec.
    pub compare: bool,
    /// Processors the capture kernel uses (`nr_cpus`).
    pub capture_cpus: u32,
    /// One processor whose clock counts instructions.
    pub count_instructions: bool,
    /// Do not bring out /proc/vmcore.
    pub no_raw: bool,
    /// Fetch the kernel with debugging information too.
    pub vmlinux: bool,
    /// Let the kernel use 5-level page tables.
    pub five_level_paging: bool,
    /// Store the raw core as the fixture of the repository.
    pub fixture: bool,
    timeout: Option<Duration>,
}

/// The text of `--help`.
pub fn help() -> String {
    let kernels: Vec<&str> = kernel::list().map(|(name, _)| name).chain([kernel::INSTALLED]).collect();
    format!(
        "\
cargo xtask lab KERNEL [OPTION...]

Boots a kernel under QEMU, fills its memory with every class of page, crashes it by sysrq, and dumps it in its capture
kernel with our program. KERNEL: {}.

  --mem SIZE           memory of the guest (512M)
  --crashkernel SIZE   memory reserved for the capture kernel (256M)
  --fill PERCENT       how much of the available memory the workload uses (75)
  --dump-args ARGS     what our program is told, before input and output (\"dump -d 31 --compress zstd\")
  --program FILE       another static program instead of ours
  --raw-only           run no program, only bring out /proc/vmcore
  --probe              measure the ways to read /proc/vmcore (lab/probe.c) instead of dumping it
  --compare            dump with makedumpfile and with our program, with each codec, on one and two threads
  --cpus N             processors of the capture kernel (1, as distributions have it; 2 at most)
  --icount             let the guest's clock count instructions: a nanosecond each, on one processor
  --no-raw             do not bring out /proc/vmcore
  --vmlinux            fetch the kernel with debugging information too
  --la57               5-level page tables
  --fixture            a small guest, its core stored in fixtures/ for the demo and the tests (KERNEL: {})
  --out DIR            where results go (runs/KERNEL below the cache)
  --timeout SECONDS    for a whole guest (300, and 90 more for each GiB)

Results: dump, vmcore (/proc/vmcore as it was), console.log, lab.json.
Exit code 77 where the machine lacks a program and this user may not install it.
The cache for packages and guests is target/lab; CORESIFT_LAB_DIR moves it. Packages come from the mirror named in the
machine's apt sources, else from CORESIFT_DEBIAN_MIRROR.
",
        kernels.join(", "),
        fixture::KERNEL,
    )
}

impl Options {
    /// The defaults for `kernel`.
    pub fn new(kernel: &str) -> Self {
        Self {
            kernel: kernel.to_owned(),
            memory_mib: 512,
            crashkernel: "256M".to_owned(),
            fill: 75,
            out: None,
            dump_args: "dump -d 31 --compress zstd".to_owned(),
            program: None,
            raw_only: false,
            probe: false,
            compare: false,
            capture_cpus: 1,
            count_instructions: false,
            no_raw: false,
            vmlinux: false,
            five_level_paging: false,
            fixture: false,
            timeout: None,
        }
    }

    /// The command line; nothing where help is asked for.
    ///
    /// # Errors
    /// An argument is unknown, lacks its value, or has one that makes no sense.
    pub fn parse(arguments: &[String]) -> Result<Option<Self>> {
        let mut parser = lexopt::Parser::from_args(arguments);
        let mut options = Self::new("");
        while let Some(argument) = parser.next()? {
            match argument {
                Value(name) if options.kernel.is_empty() => options.kernel = name.string()?,
                Short('h') | Long("help") => return Ok(None),
                Long("mem") => options.memory_mib = mebibytes(&parser.value()?.string()?)?,
                Long("crashkernel") => options.crashkernel = parser.value()?.string()?,
                Long("fill") => options.fill = parser.value()?.parse()?,
                Long("dump-args") => options.dump_args = parser.value()?.string()?,
                Long("program") => options.program = Some(parser.value()?.into()),
                Long("raw-only") => options.raw_only = true,
                Long("no-raw") => options.no_raw = true,
                Long("probe") => (options.probe, options.no_raw) = (true, true),
                Long("compare") => (options.compare, options.no_raw) = (true, true),
                Long("cpus") => options.capture_cpus = parser.value()?.parse()?,
                Long("icount") => options.count_instructions = true,
                Long("vmlinux") => options.vmlinux = true,
                Long("la57") => options.five_level_paging = true,
                Long("out") => options.out = Some(parser.value()?.into()),
                Long("timeout") => options.timeout = Some(Duration::from_secs(parser.value()?.parse()?)),
                Long("fixture") => {
                    // As small as the kernel allows: it loads no capture kernel that needs more than half of the memory
                    // it has itself.
                    (options.fixture, options.raw_only) = (true, true);
                    (options.memory_mib, options.crashkernel, options.fill) = (272, "112M".to_owned(), 10);
                }
                other => return Err(other.unexpected().into()),
            }
        }
        if options.kernel.is_empty() {
            bail!("which kernel? `cargo xtask lab --help` lists them");
        }
        if options.memory_mib < 192 || options.fill > 90 {
            bail!("a guest needs 192M or more, and a tenth of its memory to itself");
        }
        if options.fixture && options.kernel != fixture::KERNEL {
            bail!("the fixture is a core of {}: that of a newer kernel is too big to be kept", fixture::KERNEL);
        }
        if options.raw_only && options.no_raw {
            bail!("--raw-only and --no-raw together leave nothing to do");
        }
        if options.probe && options.compare || options.raw_only && (options.probe || options.compare) {
            bail!("--raw-only, --probe and --compare say different things of what to run");
        }
        if !(1..=2).contains(&options.capture_cpus) || options.count_instructions && options.capture_cpus > 1 {
            bail!("a guest has two processors, and one where instructions are counted");
        }
        Ok(Some(options))
    }

    /// The program and its arguments, for people; nothing where none is run.
    pub fn program_line(&self) -> Option<String> {
        let several = [(self.probe, "probe"), (self.compare, "makedumpfile and coresift")];
        if let Some((_, what)) = several.iter().find(|(runs, _)| *runs) {
            return Some((*what).to_owned());
        }
        let name = self.program.as_ref().map_or_else(|| "coresift".into(), |p| p.to_string_lossy());
        (!self.raw_only).then(|| format!("{name} {}", self.dump_args))
    }

    /// How many times longer than a single dump the runs of this kind take.
    const fn slowness(&self) -> u64 {
        if self.count_instructions {
            12
        } else if self.probe || self.compare {
            4
        } else {
            1
        }
    }

    /// How long a guest may take, under translation on a busy machine.
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or_else(|| Duration::from_secs((300 + 90 * self.memory_mib / 1024) * self.slowness()))
    }
}

/// A size like 512M or 8G, in MiB.
fn mebibytes(text: &str) -> Result<u64> {
    let unit = if text.ends_with('G') { 1024 } else { 1 };
    let number: u64 = text
        .strip_suffix(['M', 'G'])
        .and_then(|n| n.parse().ok())
        .with_context(|| format!("{text:?} is no size like 512M or 8G"))?;
    number
        .checked_mul(unit)
        .filter(|&mib| mib <= 1 << 20)
        .with_context(|| format!("{text} is more than a guest can have"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>> {
        Options::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(mebibytes("512M").unwrap(), 512);
        assert_eq!(mebibytes("8G").unwrap(), 8192);
        for bad in ["", "512", "M", "1T", "-1G", "99999999999999999G"] {
            assert!(mebibytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_are_read_and_what_makes_no_sense_is_refused() {
        let options = parse("6.12 --mem 8G --raw-only --timeout 5").unwrap().unwrap();
        assert_eq!((options.kernel.as_str(), options.memory_mib, options.raw_only), ("6.12", 8192, true));
        assert_eq!(options.timeout(), Duration::from_secs(5));
        assert!(parse("6.12 --help").unwrap().is_none());
        for bad in [
            "--mem 8G",
            "6.12 6.1",
            "6.12 --mem 64M",
            "6.12 --raw-only --no-raw",
            "6.12 --probe --compare",
            "6.12 --cpus 2 --icount",
            "6.12 --fill 100",
            "6.12 --bogus",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
