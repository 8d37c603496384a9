#![allow(clippy::print_stdout, clippy::unwrap_used)]
use coresift_census::{Source, Summary, live::Live, walk};
fn main() {
    let threads = std::env::args().nth(1).map_or(1, |t| t.parse().unwrap());
    let live = Live::open(std::path::Path::new("/proc")).unwrap();
    let t = std::time::Instant::now();
    let mut all = Summary::default();
    let missing = walk(
        &live,
        threads,
        1 << 17,
        |f| {
            let mut s = Summary::default();
            s.count(f);
            Ok(s)
        },
        |s| {
            all.merge(s);
            Ok(())
        },
    )
    .unwrap();
    let d = t.elapsed();
    println!("{} frames {:?} {} groups {} flags {:?}", all.pages(), d, all.groups.len(), all.flags.len(), missing);
    let mut by = std::collections::BTreeMap::new();
    for (g, n) in &all.groups {
        *by.entry(g.class.name()).or_insert(0) += n;
    }
    println!("{by:?} {:?}", live.provenance());
}
