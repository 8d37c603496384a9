//! Putting the parts of a split set together, without unpacking a page.
//!
//! ```text
//! parts ─ arranged ─> headers, notes and bitmaps of one, checked against the others
//!     part by part: page data in one piece ──> descriptors, moved by as much
//! ```
//!
//! The page data of a part are copied as they stand, whatever their order: pages that share bytes go on sharing them, and the file
//! system may share the blocks instead of copying them. Descriptors are written when their data are on the medium, and the mark
//! of an incomplete file goes last, as in a dump.

use crate::descriptors::{Descriptors, Encoded};
use crate::error::EngineError;
use crate::names::same_file;
use crate::observer::{Event, Observer, Stage};
use crate::stop::{Stop, StopReason};
use crate::target::{CopyFailed, Output, Progress, WriteFailed};
use coresift_format::kdump::{KdumpFile, PageDesc, STATUS_INCOMPLETE, SetError, SubHeader, arrange, common_sub_header};
use coresift_format::{FormatError, Input, PageSet, PhysicalMemory, erase_info};
use serde::Serialize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Descriptors handled at a time (384 KiB).
const AT_A_TIME: u64 = 16 << 10;
/// Bytes of bitmaps compared at a time.
const COMPARED: usize = 256 << 10;

/// How to put parts together.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// Overwrite an existing target.
    pub force: bool,
    /// Put together what is there, where parts are missing: their pages are lost.
    pub partial: bool,
    /// When to end early.
    pub stop: Stop,
}

/// What was put together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Joined {
    /// The parts in the order of their pages.
    pub parts: Vec<JoinedPart>,
    /// What of the set is missing or incomplete, in words.
    pub problems: Vec<String>,
    /// Pages that have their data in the output.
    pub pages: u64,
    /// Pages the bitmap promises and no part holds.
    pub lost_pages: u64,
    /// Bytes of the output.
    pub bytes: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Whether the output holds all it should.
    pub complete: bool,
}

/// One part of what was put together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JoinedPart {
    /// The file.
    pub path: String,
    /// First page frame number,
    pub start_pfn: u64,
    /// and one more than the last.
    pub end_pfn: u64,
    /// Pages it has data of.
    pub pages: u64,
    /// Pages it should have and has not.
    pub lost_pages: u64,
}

/// Puts the `parts` of a split set, in any order, together in `target`.
///
/// # Errors
/// The parts are not those of one set, or not all without `partial`; or reading or writing failed, or `stop` came: what was written
/// then is a readable dump, marked incomplete, or there is no file.
pub fn join(
    parts: &[PathBuf],
    target: &Path,
    options: JoinOptions,
    observer: &dyn Observer,
) -> Result<Joined, EngineError> {
    let started = Instant::now();
    Output::check(target, options.force)?;
    if parts.iter().any(|part| same_file(part, target)) {
        return Err(EngineError::TargetIsInput { path: target.to_owned() });
    }
    let files =
        parts.iter().map(|path| Ok(Input::open(path)?.into_kdump()?)).collect::<Result<Vec<_>, EngineError>>()?;
    if files.is_empty() {
        return Err(FormatError::Set(SetError::Empty).into());
    }
    let arranged = arrange(files).map_err(FormatError::Set)?;
    let missing = |problem: &&SetError| matches!(problem, SetError::Missing { .. });
    if !options.partial && arranged.problems.iter().any(|problem| missing(&problem)) {
        let missing: Vec<String> = arranged.problems.iter().filter(missing).map(ToString::to_string).collect();
        return Err(EngineError::PartsMissing { missing: missing.join("; ") });
    }
    let joining = Joining::new(&arranged.parts, &options.stop)?;
    for problem in &arranged.problems {
        observer.event(Event::Note(problem.to_string()));
    }
    let output = Arc::new(Output::open(target, options.force, false)?);
    let mut joined = Joined {
        problems: arranged.problems.iter().map(ToString::to_string).collect(),
        complete: arranged.problems.is_empty(),
        ..Joined::default()
    };
    let begun = joining.begin(&output).map_err(|failed| {
        output.remove_new();
        failed.at(target, false)
    });
    let end = begun?;
    joining.write(&output, end, &mut joined, observer).map_err(|failed| failed.at(target, true))?;
    joined.bytes = output.len();
    joined.seconds = started.elapsed().as_secs_f64();
    Ok(joined)
}

/// Why writing ended early.
enum Failed {
    Input(FormatError),
    Read(String, std::io::Error, u64),
    Write(WriteFailed),
    Stopped(StopReason),
    TooLarge,
}

impl Failed {
    /// The same as an error, where what was written is `readable`.
    fn at(self, target: &Path, readable: bool) -> EngineError {
        let path = target.to_owned();
        match self {
            Self::Input(error) => error.into(),
            Self::Read(file, error, offset) => FormatError::Io { file, what: "page data", offset, error }.into(),
            Self::Write(WriteFailed { offset, error, .. }) => EngineError::Write { path, offset, error, readable },
            Self::Stopped(why) => EngineError::Interrupted { path, why, readable },
            Self::TooLarge => EngineError::PartsTooLarge,
        }
    }
}

impl From<WriteFailed> for Failed {
    fn from(failed: WriteFailed) -> Self {
        Self::Write(failed)
    }
}

impl From<FormatError> for Failed {
    fn from(error: FormatError) -> Self {
        Self::Input(error)
    }
}

/// One part, and which descriptors are its own.
struct Source<'a> {
    file: &'a KdumpFile,
    /// Indices of its pages among all.
    ranks: Range<u64>,
    /// File offset of the shared zero page, if its page data begin with one.
    zero: Option<u64>,
    /// File offsets of the page data its descriptors name.
    data: Range<u64>,
}

struct Joining<'a> {
    /// Headers, notes and bitmaps come from here.
    model: &'a KdumpFile,
    parts: Vec<Source<'a>>,
    total: u64,
    block: u64,
    stop: &'a Stop,
}

impl<'a> Joining<'a> {
    /// Finds where the page data of each part are.
    fn new(files: &'a [KdumpFile], stop: &'a Stop) -> Result<Self, EngineError> {
        // A part that ended early may lack bits; one that did not has them all.
        let whole = files.iter().find(|file| !file.incomplete());
        let (model, stored) = match whole {
            Some(file) => (file, file.stored_in_set()?),
            None => fullest(files)?,
        };
        let (block, total) = (model.page_size().bytes() as u64, stored.len());
        let mut parts = Vec::new();
        for file in files {
            if !same_bitmaps(model, file)? && !file.incomplete() {
                let error = SetError::Foreign {
                    file: file.name().to_owned(),
                    first: model.name().to_owned(),
                    what: "the bitmaps differ".to_owned(),
                };
                return Err(FormatError::Set(error).into());
            }
            let ranks = stored.rank(file.range().start)..stored.rank(file.range().end);
            parts.push(Source::new(file, ranks, total, block)?);
        }
        Ok(Self { model, parts, total, block, stop })
    }

    /// File offset of the zero page, which stands behind the descriptors.
    fn zero(&self) -> Option<u64> {
        self.model.descriptors().checked_add(self.total.checked_mul(PageDesc::SIZE as u64)?)
    }

    /// Writes what stands in front of the page data, of an incomplete file without pages; returns where the data begin.
    fn begin(&self, output: &Output) -> Result<u64, Failed> {
        let descriptors = self.model.descriptors();
        let end = self.zero().and_then(|zero| zero.checked_add(self.block)).ok_or(Failed::TooLarge)?;
        output.empty(descriptors)?;
        let head = self.head(&common_sub_header(self.model));
        // What a block device held may be anything, descriptors too: it is no dump until those are zeros.
        if !output.has_old_content() {
            output.write_at(&head, 0)?;
        }
        let front = head.len() as u64..descriptors;
        if !output.has_old_content() {
            output.reserve(front.start, front.end)?;
        }
        self.copy_in(output, self.model, front, head.len() as u64, &mut |_| None)?;
        output.reserve(descriptors, end)?;
        if output.has_old_content() {
            output.write_at(&head, 0)?;
        }
        Ok(end)
    }

    /// Writes the page data of all parts from `end` on, and their descriptors.
    fn write(
        &self,
        output: &Arc<Output>,
        mut end: u64,
        joined: &mut Joined,
        observer: &dyn Observer,
    ) -> Result<(), Failed> {
        let zero = self.zero().ok_or(Failed::TooLarge)?;
        let bytes = self.parts.iter().map(|part| part.data.end - part.data.start).fold(0, u64::saturating_add);
        let mut done = 0u64;
        let mut table = Descriptors::new(Arc::clone(output));
        for part in &self.parts {
            // At the same place in its block as in the part, so that a file system can share whole blocks.
            let to = end.checked_add((part.data.start.wrapping_sub(end)) % self.block).ok_or(Failed::TooLarge)?;
            end = to.checked_add(part.data.end - part.data.start).ok_or(Failed::TooLarge)?;
            self.copy_in(output, part.file, part.data.clone(), to, &mut |copied| {
                done = done.saturating_add(copied);
                let pages = u128::from(done) * u128::from(self.total) / u128::from(bytes.max(1));
                observer.progress(Stage::CopyPages, (pages as u64).min(self.total), self.total);
                self.stop.copying(false)
            })?;
            let row = part.queue_descriptors(&table, self.model.descriptors(), Moved { to, zero }, self.block)?;
            joined.pages += row.pages;
            joined.parts.push(row);
        }
        table.finish()?;
        self.erased(output, end)?;
        joined.lost_pages = self.total.saturating_sub(joined.pages);
        joined.complete &= joined.lost_pages == 0;
        output.sync()?;
        if joined.complete {
            let mut header = self.model.header().clone();
            header.status &= !STATUS_INCOMPLETE;
            output.write_at(&header.encode(self.model.layout()), 0)?;
            output.sync()?;
        }
        Ok(())
    }

    /// Both headers, up to the end of the sub header: of an incomplete file.
    fn head(&self, sub: &SubHeader) -> Vec<u8> {
        let mut header = self.model.header().clone();
        header.status |= STATUS_INCOMPLETE;
        let mut head = header.encode(self.model.layout());
        head.resize(self.block as usize, 0);
        head.extend(sub.encode(header.header_version, self.model.layout()));
        head
    }

    /// Writes what was erased behind the page data.
    fn erased(&self, output: &Output, end: u64) -> Result<(), Failed> {
        let text = erase_info(self.parts.iter().map(|part| part.file))?;
        if text.is_empty() {
            return Ok(());
        }
        output.write_at(&text, end)?;
        let sub =
            SubHeader { offset_eraseinfo: end, size_eraseinfo: text.len() as u64, ..common_sub_header(self.model) };
        let head = self.head(&sub);
        Ok(output.write_at(head.get(self.block as usize..).unwrap_or_default(), self.block)?)
    }

    fn copy_in(
        &self,
        output: &Output,
        from: &KdumpFile,
        range: Range<u64>,
        to: u64,
        progress: &mut Progress<'_>,
    ) -> Result<(), Failed> {
        output.copy_in(from.bytes(), range, to, progress).map_err(|failed| match failed {
            CopyFailed::Read(offset, error) => Failed::Read(from.name().to_owned(), error, offset),
            CopyFailed::Write(failed) => Failed::Write(failed),
            CopyFailed::Stopped(why) => Failed::Stopped(why),
        })
    }
}

/// Where the page data of a part went.
#[derive(Clone, Copy)]
struct Moved {
    /// The beginning of its data.
    to: u64,
    /// The zero page.
    zero: u64,
}

impl<'a> Source<'a> {
    fn new(file: &'a KdumpFile, ranks: Range<u64>, total: u64, block: u64) -> Result<Self, EngineError> {
        let first = file.descriptors().saturating_add(total.saturating_mul(PageDesc::SIZE as u64));
        let mut page = vec![0xff; block as usize];
        let read = file.bytes().read_at(first, &mut page).unwrap_or(0);
        let zero = (read == page.len() && page.iter().all(|b| *b == 0)).then_some(first);
        let mut source = Self { file, ranks, zero, data: first..first };
        let (mut start, mut end) = (u64::MAX, 0);
        let len = file.bytes().len();
        source.each(|_, batch| {
            for desc in batch.iter().filter(|desc| source.place(**desc, block, len) == Place::Data) {
                start = start.min(desc.offset);
                end = end.max(desc.offset + u64::from(desc.size));
            }
            Ok::<_, FormatError>(())
        })?;
        if start < end {
            source.data = start..end;
        }
        Ok(source)
    }

    /// Shows `each` all descriptors of the part, by 16,384, with the index of the first among all pages. Those beyond the end of
    /// the file are zeros.
    fn each<E: From<FormatError>>(&self, mut each: impl FnMut(u64, &[PageDesc]) -> Result<(), E>) -> Result<(), E> {
        let mut rank = self.ranks.start;
        while rank < self.ranks.end {
            let count = AT_A_TIME.min(self.ranks.end - rank);
            let mut batch = self.file.read_descriptors(rank - self.ranks.start, count)?;
            batch.resize(count as usize, PageDesc::default());
            each(rank, &batch)?;
            rank += count;
        }
        Ok(())
    }

    fn place(&self, desc: PageDesc, block: u64, len: u64) -> Place {
        let PageDesc { offset, size, flags } = desc;
        let own = self
            .file
            .descriptors()
            .saturating_add(self.ranks.end.saturating_sub(self.ranks.start).saturating_mul(PageDesc::SIZE as u64));
        let end = offset.checked_add(size.into());
        if offset < own || size == 0 || u64::from(size) > block || end.is_none_or(|end| end > len) {
            Place::Lost
        } else if self.zero == Some(offset) && u64::from(size) == block && flags == 0 {
            Place::Zero
        } else {
            Place::Data
        }
    }

    /// Hands the descriptors of the part, whose data are written, to those of the new file, whose table begins at `at`.
    fn queue_descriptors(&self, table: &Descriptors, at: u64, moved: Moved, block: u64) -> Result<JoinedPart, Failed> {
        let endian = self.file.layout().endian;
        let len = self.file.bytes().len();
        let range = self.file.range();
        let mut row = JoinedPart {
            path: self.file.name().to_owned(),
            start_pfn: range.start.0,
            end_pfn: range.end.0,
            ..JoinedPart::default()
        };
        let mut encoded = Encoded::default();
        self.each(|rank, batch| {
            encoded.clear();
            for (rank, desc) in (rank..).zip(batch) {
                let offset = match self.place(*desc, block, len) {
                    Place::Data => Some(moved.to + (desc.offset - self.data.start)),
                    Place::Zero => Some(moved.zero),
                    Place::Lost => None,
                };
                row.pages += u64::from(offset.is_some());
                row.lost_pages += u64::from(offset.is_none());
                let desc = offset.map_or_else(PageDesc::default, |offset| PageDesc { offset, ..*desc });
                let place = at.saturating_add(rank.saturating_mul(PageDesc::SIZE as u64));
                encoded.push(place, &desc.encode(endian));
            }
            table.queue(&encoded);
            Ok::<_, Failed>(table.check()?)
        })?;
        Ok(row)
    }
}

/// Where a descriptor says a page is.
#[derive(PartialEq, Eq)]
enum Place {
    Data,
    /// In the zero page that all share.
    Zero,
    /// Nowhere: it was never written, or cannot be true.
    Lost,
}

/// Of parts that all ended early, that with the most pages in its bitmap.
fn fullest(files: &[KdumpFile]) -> Result<(&KdumpFile, PageSet), EngineError> {
    let mut best: Option<(&KdumpFile, PageSet)> = None;
    for file in files {
        let stored = file.stored_in_set()?;
        if best.as_ref().is_none_or(|(_, most)| stored.len() > most.len()) {
            best = Some((file, stored));
        }
    }
    best.ok_or(EngineError::Input(FormatError::Set(SetError::Empty)))
}

/// Whether both files have the same bitmaps.
fn same_bitmaps(one: &KdumpFile, other: &KdumpFile) -> Result<bool, EngineError> {
    if std::ptr::eq(one, other) {
        return Ok(true);
    }
    let (mut at, end) = (one.bitmaps_at(), one.descriptors());
    let (mut a, mut b) = (vec![0; COMPARED], vec![0; COMPARED]);
    while at < end {
        let n = (end - at).min(COMPARED as u64) as usize;
        let (a, b) = (a.get_mut(..n).unwrap_or_default(), b.get_mut(..n).unwrap_or_default());
        for (file, buf) in [(one, &mut *a), (other, &mut *b)] {
            let read = file.bytes().read_at(at, buf);
            read.map_err(|error| FormatError::Io { file: file.name().to_owned(), what: "bitmaps", offset: at, error })?;
        }
        if a != b {
            return Ok(false);
        }
        // Both are holes up to where either has something.
        at = (at + n as u64).max(one.bytes().next_data(at + n as u64).min(other.bytes().next_data(at + n as u64)));
    }
    Ok(true)
}
