//! Where page frames come from.

use super::WINDOW;
use super::failure::PagesError;
use crate::{output, progress, signals};
use coresift_census::dump::Dump;
use coresift_census::live::Live;
use coresift_census::table::TableFile;
use coresift_census::{CensusError, ColumnId, Counts, Frames, Missing, Names, Provenance, Source, walk};
use coresift_engine::Stage;
use coresift_kernel::debuginfo::DebugFile;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The options of every command that reads page frames.
#[derive(clap::Args)]
pub struct Reading {
    /// Reading threads [default: one for each usable cpu]
    #[arg(long, value_name = "N", value_parser = super::super::threads)]
    pub threads: Option<NonZeroUsize>,
    /// The kernel's vmlinux with debug information, for what a dump does not tell of
    /// itself (before Linux 6.0)
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    pub vmlinux: Option<PathBuf>,
}

/// What is read.
#[derive(clap::Args)]
pub struct Files {
    /// A snapshot; or a dump: an ELF core or a kdump-compressed file, flattened or not,
    /// or the parts of a split set [default: this machine]
    #[arg(value_name = "INPUT", verbatim_doc_comment)]
    pub input: Vec<PathBuf>,
}

impl Reading {
    fn threads(&self) -> usize {
        self.threads.map_or_else(coresift_engine::usable_cpus, NonZeroUsize::get)
    }
}

/// Something that has page frames.
pub struct Input {
    from: From,
    threads: usize,
    progress: bool,
}

enum From {
    Source(Box<dyn Source>),
    Table(Box<TableFile>),
}

/// The number of the signal that came, once for all inputs of a command.
fn signal() -> usize {
    static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();
    SIGNAL.get_or_init(signals::watch).load(Ordering::Relaxed)
}

impl Input {
    /// The snapshot or the dump in `files`; without one, the machine this runs on.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(files: &[PathBuf], reading: &Reading) -> Result<Self, PagesError> {
        signal();
        let table = match files {
            [file] => TableFile::open(file)?,
            _ => None,
        };
        let is_dump = table.is_none() && !files.is_empty();
        if reading.vmlinux.is_some() && !is_dump {
            output::complain("--vmlinux has no effect: the input is no dump");
        }
        let from = match table {
            Some(table) => From::Table(Box::new(table)),
            None if is_dump => {
                let debug = reading.vmlinux.as_deref().map(DebugFile::vmlinux).transpose()?;
                From::Source(Box::new(Dump::open(coresift_format::Input::open_parts(files)?, debug.as_ref())?))
            }
            None => From::Source(Box::new(Live::open(Path::new("/proc"))?)),
        };
        Ok(Self { from, threads: reading.threads(), progress: true })
    }

    /// The same without progress, where several are read at once.
    pub fn quiet(self) -> Self {
        Self { progress: false, ..self }
    }

    /// Where the rows come from.
    pub fn provenance(&self) -> &Provenance {
        match &self.from {
            From::Source(source) => source.provenance(),
            From::Table(table) => table.provenance(),
        }
    }

    /// The names that rows speak of.
    pub fn names(&self) -> &Names {
        match &self.from {
            From::Source(source) => source.names(),
            From::Table(table) => table.names(),
        }
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> u64 {
        match &self.from {
            From::Source(source) => source.page_size(),
            From::Table(table) => table.page_size(),
        }
    }

    /// Says once what the source cannot tell.
    pub fn tell_unknown(&self) {
        for what in &self.provenance().unknown {
            output::complain(&format!("note: {what}"));
        }
    }

    /// Reads all rows, some at a time: `shape` on the threads, `take` in order. Of a snapshot only `columns` are read.
    ///
    /// # Errors
    /// As those of the source, of `shape` and `take`; a signal.
    pub fn read<P: Send>(
        &self,
        columns: &[ColumnId],
        shape: impl Fn(&mut Frames) -> Result<P, CensusError> + Sync,
        mut take: impl FnMut(P) -> Result<(), CensusError>,
    ) -> Result<Missing, PagesError> {
        let mut take = |part| if signal() == 0 { take(part) } else { Err(CensusError::Stopped) };
        let result = match &self.from {
            From::Table(table) => table.read(columns, &mut |frames| take(shape(frames)?)).map(|()| Missing::default()),
            From::Source(source) => self.walk(&**source, shape, take),
        };
        match signal() {
            0 => Ok(result?),
            signal => Err(PagesError::Signal(signal)),
        }
    }

    fn walk<P: Send>(
        &self,
        source: &dyn Source,
        shape: impl Fn(&mut Frames) -> Result<P, CensusError> + Sync,
        mut take: impl FnMut(P) -> Result<(), CensusError>,
    ) -> Result<Missing, CensusError> {
        let total: u64 = source.ranges().iter().map(|(start, end)| end.0 - start.0).sum();
        let mut done = 0;
        let progress = self.progress.then(progress::new);
        let shape = |frames: &mut Frames| Ok((frames.len() as u64, shape(frames)?));
        let result = walk(source, self.threads, WINDOW, shape, |(rows, part)| {
            done += rows;
            if let Some(progress) = &progress {
                progress.progress(Stage::FindPages, done, total);
            }
            take(part)
        });
        if let Some(progress) = progress {
            progress.finish();
        }
        result
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
        let missing = self.read(columns, count, |counts| {
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
        (no_page, "have no page descriptor (memory that comes or goes, holes): their class is a guess"),
        (short, "are past the end of what the source tells: their class is a guess"),
        (failed, "could not be read: their class is a guess"),
        (lost, "belong to a file, slab cache or cgroup that cannot be found"),
    ] {
        if frames > 0 {
            output::complain(&format!("note: {frames} page frames {what}"));
        }
    }
}
