//! How an attempt ended early, and what a dry run foretells of it.

use crate::report::{AttemptRow, Report};
use crate::room::Forecast;
use crate::stop::StopReason;
use crate::target::{Output, WriteFailed};
use crate::writer::Readable;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Of a dry run, the file system with the least to spare.
pub(super) fn forecast(outputs: &[Arc<Output>]) -> Option<Forecast> {
    let spare = |room: &Forecast| i128::from(room.room()) - i128::from(room.needed);
    Forecast::by_device(outputs.iter().filter_map(|output| output.forecast())).min_by_key(spare)
}

/// Of a dry run, the first file on a file system that has no room for all that go there.
pub(super) fn lacking(outputs: &[Arc<Output>]) -> Option<(usize, Forecast)> {
    let room = forecast(outputs).filter(|room| !room.fits())?;
    let on = |output: &Arc<Output>| output.forecast().is_some_and(|other| other.device == room.device);
    Some((outputs.iter().position(on)?, room))
}

/// What is told of an attempt that did not fit, made since `since`, with `kept` pages to write.
pub(super) fn failure(report: &Report, kept: u64, since: Instant) -> AttemptRow {
    AttemptRow {
        level: report.level,
        ended: report.ended.clone().unwrap_or_default(),
        pages: kept,
        kept_pages: report.kept_pages,
        file_bytes: report.file_bytes,
        bytes_out: report.bytes_out,
        seconds: since.elapsed().as_secs_f64(),
    }
}

/// What ended an attempt early.
#[derive(Debug)]
pub(crate) enum Ended {
    Write(WriteFailed),
    Stopped(StopReason),
    /// A dry run's file would not fit.
    NoRoom(Forecast),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(failed) => failed.error.fmt(f),
            Self::Stopped(why) => why.fmt(f),
            Self::NoRoom(room) => write!(f, "{} bytes are needed, {} are free", room.needed, room.room()),
        }
    }
}

/// Which file of the target failed, and why.
pub(crate) struct Failed {
    /// Its place in [`Target::paths`].
    pub file: usize,
    /// Why.
    pub ended: Ended,
    /// Whether what was written of it can be read.
    pub readable: Readable,
}

impl Failed {
    pub(crate) fn of(file: usize, (ended, readable): (Ended, Readable)) -> Self {
        Self { file, ended, readable }
    }
}
