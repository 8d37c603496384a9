//! How fast the frames of this machine are read and written.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement, not a part of the program")]
use coresift_census::{ColumnId, Counts, Source, live::Live, table::*, walk};
fn main() {
    let threads = std::env::args().nth(1).map_or(1, |t| t.parse().unwrap());
    let order = if std::env::args().nth(2).as_deref() == Some("pfn") { Order::Pfn } else { Order::Class };
    let live = Live::open(std::path::Path::new("/proc")).unwrap();
    let t = std::time::Instant::now();
    let mut all = Counts::by(&[ColumnId::Class, ColumnId::Zone, ColumnId::CgroupPath]);
    let missing = walk(
        &live,
        threads,
        1 << 17,
        |f| {
            let mut s = Counts::by(&[ColumnId::Class, ColumnId::Zone, ColumnId::CgroupPath]);
            s.count(f);
            Ok(s)
        },
        |s| {
            all.merge(s);
            Ok(())
        },
    )
    .unwrap();
    println!("{} frames {:?}", all.pages(), t.elapsed());
    let t = std::time::Instant::now();
    let table = ParquetTable::new(order).unwrap();
    let mut file = table.file(std::io::BufWriter::new(std::fs::File::create("/dev/shm/t.parquet").unwrap())).unwrap();
    walk(&live, threads, 1 << 17, |f| table.row_group(f, live.names()), |g| file.append(g)).unwrap();
    drop(file.finish(live.provenance(), missing).unwrap());
    println!("{:?} {} bytes", t.elapsed(), std::fs::metadata("/dev/shm/t.parquet").unwrap().len());
}
