use super::*;
use crate::names::Names;
use crate::source::Provenance;
use coresift_format::Pfn;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Numbers {
    ranges: Vec<(Pfn, Pfn)>,
    names: Names,
    provenance: Provenance,
    fail_at: Option<u64>,
    reads: AtomicUsize,
}

impl Numbers {
    fn new(ranges: &[(u64, u64)], fail_at: Option<u64>) -> Self {
        let ranges = ranges.iter().map(|&(a, b)| (Pfn(a), Pfn(b))).collect();
        Self { ranges, names: Names::default(), provenance: Provenance::default(), fail_at, reads: AtomicUsize::new(0) }
    }
}

impl Source for Numbers {
    fn ranges(&self) -> &[(Pfn, Pfn)] {
        &self.ranges
    }
    fn page_size(&self) -> u64 {
        4096
    }
    fn names(&self) -> &Names {
        &self.names
    }
    fn provenance(&self) -> &Provenance {
        &self.provenance
    }
    fn reader(&self) -> Result<Box<dyn FrameReader + '_>> {
        Ok(Box::new(self))
    }
}

impl FrameReader for &Numbers {
    fn read(&mut self, runs: &[(u64, u64)], _: &mut Frames) -> Result<Missing> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.fail_at {
            Some(at) if runs.iter().any(|r| r.0 <= at && at < r.1) => Err(CensusError::Stopped),
            _ => Ok(Missing { short: 1, ..Missing::default() }),
        }
    }
}

#[test]
fn rows_come_by_pfn_whatever_the_number_of_threads() {
    let source = Numbers::new(&[(3, 40), (50, 51), (60, 1000)], None);
    let expected: Vec<i64> = (3..40).chain(50..51).chain(60..1000).collect();
    for threads in [1, 2, 3, 16] {
        for window in [1, 7, 64, 4096] {
            let mut rows = Vec::new();
            let missing = walk(
                &source,
                threads,
                window,
                |f| Ok(f.pfn.clone()),
                |part| {
                    rows.extend(part);
                    Ok(())
                },
            )
            .expect("read");
            assert_eq!(rows, expected, "{threads} threads, windows of {window}");
            let windows = expected.iter().map(|p| p / window.cast_signed()).collect::<std::collections::BTreeSet<_>>();
            assert_eq!(missing.short, windows.len() as u64);
        }
    }
}

#[test]
fn an_error_comes_after_all_windows_before_it_and_ends_the_reading() {
    let source = Numbers::new(&[(0, 100_000)], Some(500));
    for threads in [1, 2, 8] {
        source.reads.store(0, Ordering::Relaxed);
        let mut rows = 0;
        let result = walk(
            &source,
            threads,
            100,
            |f| Ok(f.len()),
            |n| {
                rows += n;
                Ok(())
            },
        );
        assert!(matches!(result, Err(CensusError::Stopped)));
        assert_eq!(rows, 500);
        assert!(source.reads.load(Ordering::Relaxed) < 6 + threads * (AHEAD + 1), "the rest was read");
    }
}

#[test]
fn what_take_refuses_ends_the_reading() {
    let source = Numbers::new(&[(0, 100_000)], None);
    let result = walk(&source, 4, 100, |f| Ok(f.len()), |_| Err(CensusError::Stopped));
    assert!(matches!(result, Err(CensusError::Stopped)));
    assert!(source.reads.load(Ordering::Relaxed) <= 4 * AHEAD);
}
