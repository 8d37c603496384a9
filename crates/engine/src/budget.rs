//! Memory and threads: one number that everything is derived from.

use crate::pipeline::bytes_per_worker;
use crate::selection::Later;
use coresift_format::codec::Compression;
use std::fs;
use std::path::Path;

/// What the program needs whatever it does: code, headers, notes, waiting descriptors, the table of pages that are shared. Measured as
/// 6.4 to 7.3 MiB with one thread, that thread's own included.
const BASE_BYTES: u64 = 8 << 20;
/// What each further file takes that is written at the same time: its waiting descriptors, twice 1 MiB at the most, and its table of
/// pages that are shared, 1 MiB and some.
const PART_BYTES: u64 = 3584 << 10;
/// Share of the available memory that is taken when no budget is given: the page cache of the target needs the rest.
const DEFAULT_SHARE: u64 = 60;

/// Bytes of page sets that a plan gets in any case.
const LEAST_ROOM: u64 = 256 << 10;

/// Stack of a worker thread: the default of 2 MiB counts against a capture kernel that does not overcommit.
pub const WORKER_STACK: usize = 256 << 10;

/// How much memory a run may use, and how many threads fit in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes.
    pub bytes: u64,
    /// Whether a user set it.
    pub given: bool,
}

impl Budget {
    /// The budget a user gave, else a share of MemAvailable (of MemFree on kernels before 3.14, which lack it).
    #[must_use]
    pub fn new(given: Option<u64>) -> Self {
        match given {
            Some(bytes) => Self { bytes, given: true },
            None => {
                let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
                let available = available.unwrap_or(256 << 20).min(cgroup_limit().unwrap_or(u64::MAX));
                Self { bytes: available / 100 * DEFAULT_SHARE, given: false }
            }
        }
    }

    /// The least a run needs that has `fixed` bytes of page sets whatever the budget: see [`Self::fixed`].
    #[must_use]
    pub fn needed(compression: Compression, fixed: u64) -> u64 {
        BASE_BYTES + fixed + LEAST_ROOM + bytes_per_worker(compression) as u64
    }

    /// What page sets take in any case: `known` bytes those of the input and where its memory map is, and for each of the `chunks` of the memory map what is
    /// remembered of one that does not fit.
    #[must_use]
    pub fn fixed(known: u64, chunks: u64) -> u64 {
        known.saturating_add(chunks.saturating_mul(size_of::<Later>() as u64))
    }

    /// Bytes the page sets of a plan may take beside the `fixed` ones: a quarter of what one worker leaves, for
    /// a chunk that does not fit costs four more scans, a hundredth of its copy, and a thread that does not fit costs more.
    #[must_use]
    pub fn room(&self, compression: Compression, fixed: u64) -> usize {
        let used = BASE_BYTES + fixed + bytes_per_worker(compression) as u64;
        usize::try_from((self.bytes.saturating_sub(used) / 4).max(LEAST_ROOM)).unwrap_or(usize::MAX)
    }

    /// How many of the `parts` of a split set are written at once, each by a thread of its own at least, and how many threads there are
    /// in all: as many as are `wanted` and fit beside page sets of `page_set` bytes.
    #[must_use]
    pub fn lanes(&self, parts: usize, wanted: usize, compression: Compression, page_set: u64) -> (usize, usize) {
        let worker = bytes_per_worker(compression) as u64;
        let first = BASE_BYTES.saturating_add(page_set).saturating_add(worker);
        let more = self.bytes.saturating_sub(first) / (worker + PART_BYTES);
        let lanes = parts.min(usize::try_from(more).unwrap_or(usize::MAX).saturating_add(1)).max(1);
        let taken = page_set.saturating_add((lanes as u64 - 1).saturating_mul(PART_BYTES));
        (lanes, self.threads(wanted.max(lanes), compression, taken).max(lanes))
    }

    /// As many of the `wanted` threads as fit beside a page set of `page_set` bytes, at least one.
    #[must_use]
    pub fn threads(&self, wanted: usize, compression: Compression, page_set: u64) -> usize {
        let room = self.bytes.saturating_sub(BASE_BYTES + page_set) / bytes_per_worker(compression) as u64;
        wanted.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
    }
}

/// The lowest memory limit of this process's control group and those around it (version 2), if there is one.
fn cgroup_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut limit = None;
    loop {
        let file = Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        let here: Option<u64> = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        limit = limit.into_iter().chain(here).min();
        let Some((outer, _)) = group.rsplit_once('/') else { return limit };
        group = outer;
    }
}

/// The cpus this process may use: its affinity mask and its cgroup's quota.
#[must_use]
pub fn usable_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Peak resident memory of this process so far, in bytes; 0 where /proc does not tell.
#[must_use]
pub fn peak_memory() -> u64 {
    fs::read_to_string("/proc/self/status").ok().and_then(|text| kilobytes(&text, "VmHWM:")).unwrap_or(0)
}

fn available(meminfo: &str) -> Option<u64> {
    kilobytes(meminfo, "MemAvailable:").or_else(|| kilobytes(meminfo, "MemFree:"))
}

/// The value of a line such as `MemFree:   1234 kB`, in bytes.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_format::codec::Codec;

    #[test]
    fn available_memory_is_read_with_and_without_memavailable() {
        assert_eq!(available("MemTotal: 9 kB\nMemFree:  1 kB\nMemAvailable:   2 kB\n"), Some(2048));
        assert_eq!(available("MemFree:  1 kB\n"), Some(1024));
        assert_eq!(available("nothing"), None);
    }

    #[test]
    fn every_part_has_a_thread_where_memory_allows_it() {
        let zlib = Compression::from(Codec::Zlib);
        let lanes = |mib: u64, parts, wanted| Budget { bytes: mib << 20, given: true }.lanes(parts, wanted, zlib, 0);
        assert_eq!(lanes(1, 7, 4), (1, 1));
        assert_eq!(lanes(4096, 7, 2), (7, 7));
        assert_eq!(lanes(4096, 3, 8), (3, 8));
        let (few, threads) = lanes(24, 7, 7);
        assert!(few > 1 && few < 7 && threads >= few, "{few} {threads}");
    }

    #[test]
    fn fewer_threads_before_failure() {
        let zlib = Compression::from(Codec::Zlib);
        let budget = |mib: u64| Budget { bytes: mib << 20, given: true };
        assert_eq!(budget(1).threads(16, zlib, 0), 1);
        assert_eq!(budget(4096).threads(16, zlib, 0), 16);
        let some = budget(24).threads(64, zlib, 0);
        assert!(some > 1 && some < 64, "{some}");
        assert!(budget(24).threads(64, zlib, 4 << 20) < some, "the page set comes out of the same number");
    }
}
