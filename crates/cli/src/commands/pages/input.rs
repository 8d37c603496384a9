//! Where page frames come from.

use super::WINDOW;
use super::failure::PagesError;
use crate::{output, progress, signals};
use coresift_census::dump::Dump;
use coresift_census::live::Live;
use coresift_census::{CensusError, ColumnId, Counts, Frames, Missing, Names, Provenance, Source, walk};
use coresift_engine::Stage;
use coresift_kernel::debuginfo::DebugFile;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The options of every command that reads page frames.
#[derive(clap::Args)]
pub struct Reading {
    /// Reading threads [default: one for each usable cpu]
    #[arg(long, value_name = "N", value_parser = super::super::threads)]
    pub threads: Option<NonZeroUsize>,
    /// The kernel's vmlinux with debug information, for what a dump does not tell of
    /// itself (before Linux 6.0)
    #[arg(long, value_name = "FILE", requires = "dump", verbatim_doc_comment)]
    pub vmlinux: Option<PathBuf>,
    /// An ELF core or a kdump-compressed file, flattened or not; or the parts of a
    /// split set [default: this machine]
    #[arg(value_name = "DUMP", verbatim_doc_comment)]
    pub dump: Vec<PathBuf>,
}

impl Reading {
    fn threads(&self) -> usize {
        self.threads.map_or_else(coresift_engine::usable_cpus, NonZeroUsize::get)
    }
}

/// Something that has page frames.
pub struct Input {
    source: Box<dyn Source>,
    threads: usize,
    signal: Arc<AtomicUsize>,
}

impl Input {
    /// The dump, else the machine this runs on.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(reading: &Reading) -> Result<Self, PagesError> {
        let source: Box<dyn Source> = if reading.dump.is_empty() {
            Box::new(Live::open(Path::new("/proc"))?)
        } else {
            let debug = reading.vmlinux.as_deref().map(DebugFile::vmlinux).transpose()?;
            Box::new(Dump::open(coresift_format::Input::open_parts(&reading.dump)?, debug.as_ref())?)
        };
        Ok(Self { source, threads: reading.threads(), signal: signals::watch() })
    }

    /// Where the rows come from.
    pub fn provenance(&self) -> &Provenance {
        self.source.provenance()
    }

    /// The names that rows speak of.
    pub fn names(&self) -> &Names {
        self.source.names()
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> u64 {
        self.source.page_size()
    }

    /// Says once what the source cannot tell.
    pub fn tell_unknown(&self) {
        for what in &self.provenance().unknown {
            output::complain(&format!("note: {what}"));
        }
    }

    /// Reads all rows, a window at a time: `shape` on the threads, `take` in order.
    ///
    /// # Errors
    /// As those of the source, of `shape` and `take`; a signal.
    pub fn read<P: Send>(
        &self,
        shape: impl Fn(&mut Frames) -> Result<P, CensusError> + Sync,
        mut take: impl FnMut(P) -> Result<(), CensusError>,
    ) -> Result<Missing, PagesError> {
        let total: u64 = self.source.ranges().iter().map(|(start, end)| end.0 - start.0).sum();
        let mut done = 0;
        let progress = progress::new();
        let shape = |frames: &mut Frames| Ok((frames.len() as u64, shape(frames)?));
        let result = walk(&*self.source, self.threads, WINDOW, shape, |(rows, part)| {
            if self.signal.load(Ordering::Relaxed) != 0 {
                return Err(CensusError::Stopped);
            }
            done += rows;
            progress.progress(Stage::FindPages, done, total);
            take(part)
        });
        progress.finish();
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(result?),
            signal => Err(PagesError::Signal(signal)),
        }
    }

    /// Counts all rows by the values of `columns`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn count(&self, columns: &[ColumnId]) -> Result<(Counts, Missing), PagesError> {
        let mut all = Counts::by(columns);
        let count = |frames: &mut Frames| {
            let mut counts = Counts::by(columns);
            counts.count(frames);
            Ok(counts)
        };
        let missing = self.read(count, |counts| {
            all.merge(counts);
            Ok(())
        })?;
        Ok((all, missing))
    }
}

/// Says what went missing while rows were read.
pub fn tell_missing(missing: Missing) {
    let Missing { no_page, short, failed, lost } = missing;
    for (frames, what) in [
        (no_page, "have no page descriptor (memory that comes or goes, holes)"),
        (short, "are past the end of what the source tells"),
        (failed, "could not be read"),
    ] {
        if frames > 0 {
            output::complain(&format!("note: {frames} page frames {what}; their class is a guess"));
        }
    }
    if lost > 0 {
        output::complain(&format!(
            "note: {lost} page frames point at a file, slab cache or cgroup that cannot be read; those columns are null"
        ));
    }
}
