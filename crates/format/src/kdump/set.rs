//! The parts of a split set, as one physical memory.
//!
//! ```text
//! files ─ same machine, same run? ─ sort by range ─ gaps? ─> parts in order + what is missing
//!                                                              └─ SplitSet: each page from the part of its range
//! ```

use super::file::KdumpFile;
use super::header::{Header, STATUS_INCOMPLETE, SubHeader};
use super::read::KdumpView;
use super::region::Region;
use crate::{FormatError, MemoryView, PageSet, PageSize, Pfn, PhysAddr, PhysicalMemory};
use crate::{ReadError, Result};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Parts that a view keeps open: each has buffers of some 200 KiB.
const VIEWS: usize = 4;

/// What is wrong with files given as the parts of one set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// No part was given.
    #[error("no part was given; name the parts of one set")]
    Empty,
    /// A file is whole.
    #[error("{file} is no part of a split set, but a whole file; give the parts of one set only")]
    NotAPart {
        /// The file.
        file: String,
    },
    /// A part is of another set.
    #[error("{file} is not of the same set as {first}: {what}; give the parts of one run")]
    Foreign {
        /// The part.
        file: String,
        /// The part it is compared with.
        first: String,
        /// What differs.
        what: String,
    },
    /// Two parts hold the same pages, or are the same part.
    #[error("{file} and {other} both hold {what}; give each part once")]
    Twice {
        /// One of them.
        file: String,
        /// The other.
        other: String,
        /// Part number, or page range.
        what: String,
    },
    /// Pages are in no part that was given.
    #[error("pfn {start:#x} to {end:#x} are in none of the parts given{which}", start = range.start.0, end = range.end.0)]
    Missing {
        /// The pages.
        range: Range<Pfn>,
        /// Which parts of how many these are, where the others tell.
        which: String,
    },
    /// A part ended early.
    #[error("{file} is incomplete{which}: it lacks {what}")]
    Incomplete {
        /// The part.
        file: String,
        /// Which part of how many it is, where it tells.
        which: String,
        /// What it lacks.
        what: String,
    },
    /// No part lacks a page, and yet some are marked as ended early.
    #[error(
        "no page is missing, but {marked} of {parts} parts are marked incomplete, {file} for one: the run that wrote them ended before \
         it took all marks away"
    )]
    Marked {
        /// One of them.
        file: String,
        /// Number of these.
        marked: usize,
        /// Number of parts.
        parts: usize,
    },
}

/// Parts in the order of their pages, and what of the set is not there.
pub struct Arranged {
    /// The parts.
    pub parts: Vec<KdumpFile>,
    /// Missing and incomplete parts.
    pub problems: Vec<SetError>,
}

/// Puts the parts of one set in order.
///
/// # Errors
/// Two of them cannot be parts of one set.
pub fn arrange(mut parts: Vec<KdumpFile>) -> std::result::Result<Arranged, SetError> {
    if let Some(whole) = parts.iter().find(|file| file.part().is_none() && file.identity().is_none()) {
        return Err(SetError::NotAPart { file: whole.name().to_owned() });
    }
    if let Some((first, rest)) = parts.split_first() {
        rest.iter().try_for_each(|part| same_set(first, part))?;
    }
    parts.sort_by_key(|part| (part.range().start, part.range().end, part.identity().map(|known| known.index)));
    let end = parts.first().map_or(Pfn(0), KdumpFile::max_pfn);
    let mut problems = Vec::new();
    let mut before: Option<&KdumpFile> = None;
    for part in &parts {
        let last = before.map_or(Pfn(0), |before| before.range().end);
        if part.range().start > last {
            problems.push(missing(&parts, before, Some(part), last..part.range().start));
        } else if part.range().start < last
            && !part.range().is_empty()
            && let Some(other) = before
        {
            let both = part.range().start..last.min(part.range().end);
            let what = format!("pfn {:#x} to {:#x}", both.start.0, both.end.0);
            return Err(SetError::Twice { file: part.name().to_owned(), other: other.name().to_owned(), what });
        }
        before = Some(part);
    }
    let last = before.map_or(Pfn(0), |before| before.range().end);
    if last < end {
        problems.push(missing(&parts, before, None, last..end));
    }
    for (index, part) in parts.iter().enumerate() {
        let known = part.identity();
        let same = |other: &&KdumpFile| known.is_some() && other.identity() == known;
        if let Some(other) = parts.iter().take(index).find(same) {
            let what = known.map_or_else(String::new, |known| known.to_string());
            return Err(SetError::Twice { file: part.name().to_owned(), other: other.name().to_owned(), what });
        }
    }
    problems.extend(incomplete(&parts));
    let mut marked = parts.iter().filter(|part| part.incomplete());
    if problems.is_empty()
        && let Some(first) = marked.next()
    {
        let (file, marked) = (first.name().to_owned(), 1 + marked.count());
        problems.push(SetError::Marked { file, marked, parts: parts.len() });
    }
    Ok(Arranged { parts, problems })
}

/// The parts that lack something. Writers leave the marks of all in their places until the last part is written: a mark alone says
/// nothing of the part it is in.
fn incomplete(parts: &[KdumpFile]) -> Vec<SetError> {
    let lacks = |part: &KdumpFile| match (part.part(), part.count_descriptors()) {
        (None, _) => Some("its whole range, for it ended before that was known".to_owned()),
        (_, counts) if counts.lost() == 0 => None,
        (_, counts) => Some(format!("{} of the {} pages of its range", counts.lost(), part.stored.len())),
    };
    let marked = parts.iter().filter(|part| part.incomplete());
    let named = marked.filter_map(|part| {
        let which = part.identity().map_or_else(String::new, |known| format!(" ({known})"));
        Some(SetError::Incomplete { file: part.name().to_owned(), which, what: lacks(part)? })
    });
    named.collect()
}

/// The gap between two parts, or behind the last.
fn missing(parts: &[KdumpFile], before: Option<&KdumpFile>, after: Option<&KdumpFile>, range: Range<Pfn>) -> SetError {
    let Some(count) = parts.iter().find_map(|part| Some(part.identity()?.count)) else {
        return SetError::Missing { range, which: String::new() };
    };
    // Counted from 1; empty parts stand at the end and can be missing without a gap.
    let first = before.map_or(Some(1), |part| Some(part.identity()?.index + 2));
    let last = after.map_or(Some(count), |part| Some(part.identity()?.index));
    let which = match (first, last) {
        (Some(first), Some(last)) if first == last => format!(" (part {first} of {count})"),
        (Some(first), Some(last)) if first < last => format!(" (parts {first} to {last} of {count})"),
        _ => format!(" (of {count} parts)"),
    };
    SetError::Missing { range, which }
}

/// Whether `part` can be of the same set as `first`: whatever is the same in all parts has to be.
fn same_set(first: &KdumpFile, part: &KdumpFile) -> std::result::Result<(), SetError> {
    let differs =
        |what: String| Err(SetError::Foreign { file: part.name().to_owned(), first: first.name().to_owned(), what });
    if first.layout() != part.layout() || common_header(first) != common_header(part) {
        return differs("the main headers differ".to_owned());
    }
    let levels = [first, part].map(|file| file.sub_header().dump_level);
    if let [one, other] = levels
        && one != other
    {
        return differs(format!("the dump levels are {other} and {one}"));
    }
    if common_sub_header(first) != common_sub_header(part) {
        return differs("the sub headers differ".to_owned());
    }
    if first.region(Region::Notes).ok() != part.region(Region::Notes).ok() {
        return differs("the ELF notes differ".to_owned());
    }
    match (first.identity(), part.identity()) {
        (Some(one), Some(other)) if one.count != other.count => {
            differs(format!("it is one of {} parts, and not of {}", other.count, one.count))
        }
        (Some(one), Some(other)) if one.set != other.set => {
            differs("they were written by runs with different options".to_owned())
        }
        _ => Ok(()),
    }
}

fn common_header(file: &KdumpFile) -> Header {
    let header = file.header().clone();
    Header { status: header.status & !STATUS_INCOMPLETE, ..header }
}

/// The sub header without what is each part's own: that of a whole file.
#[must_use]
pub fn common_sub_header(file: &KdumpFile) -> SubHeader {
    SubHeader {
        split: 0,
        start_pfn: 0,
        end_pfn: 0,
        start_pfn_64: 0,
        end_pfn_64: 0,
        offset_eraseinfo: 0,
        size_eraseinfo: 0,
        ..file.sub_header().clone()
    }
}

/// The parts of a split set, opened.
pub struct SplitSet {
    parts: Vec<KdumpFile>,
    problems: Vec<SetError>,
    ram: PageSet,
    stored: PageSet,
}

impl SplitSet {
    /// The memory that `parts` hold together. Parts may be missing or incomplete: see [`Self::problems`].
    ///
    /// # Errors
    /// There are none, or two of them cannot be parts of one set.
    pub fn new(parts: Vec<KdumpFile>) -> Result<Self> {
        let Arranged { mut parts, problems } = arrange(parts)?;
        let ram = PageSet::united(parts.iter().map(|part| &part.ram));
        let stored = PageSet::united(parts.iter().map(|part| &part.stored));
        // All have the same; one copy is enough.
        parts.iter_mut().for_each(|part| part.ram = PageSet::default());
        Ok(Self { parts, problems, ram, stored })
    }

    /// The parts in the order of their pages.
    #[must_use]
    pub fn parts(&self) -> &[KdumpFile] {
        &self.parts
    }

    /// What of the set is missing or incomplete.
    #[must_use]
    pub fn problems(&self) -> &[SetError] {
        &self.problems
    }

    /// The part that holds `pfn`, if it was given.
    fn part_of(&self, pfn: Pfn) -> Option<(usize, &KdumpFile)> {
        // Empty parts stand behind a part that ends where they do, or before one that begins there.
        let next = self.parts.partition_point(|part| part.range().end <= pfn);
        let part = self.parts.get(next)?;
        part.range().contains(&pfn).then_some((next, part))
    }
}

impl PhysicalMemory for SplitSet {
    fn page_size(&self) -> PageSize {
        self.parts.first().map_or(PageSize::K4, |part| part.page)
    }

    fn ram(&self) -> &PageSet {
        &self.ram
    }

    fn stored(&self) -> &PageSet {
        &self.stored
    }

    fn max_pfn(&self) -> Pfn {
        self.parts.first().map_or(Pfn(0), KdumpFile::max_pfn)
    }

    fn view(&self) -> Box<dyn MemoryView + '_> {
        Box::new(SetView { set: self, views: Vec::new(), scratch: Vec::new() })
    }
}

/// Reads each page through a view of its part.
struct SetView<'a> {
    set: &'a SplitSet,
    /// Views by the number of their part, the one used last at the end.
    views: Vec<(usize, KdumpView<'a>)>,
    scratch: Vec<u8>,
}

impl<'a> SetView<'a> {
    /// A view of the part that holds the page of `addr`, and how many bytes from `addr` on are of its range.
    fn view(&mut self, addr: PhysAddr) -> std::result::Result<(&mut KdumpView<'a>, u64), ReadError> {
        let set = self.set;
        let pfn = addr.pfn(set.page_size());
        let Some((number, part)) = set.part_of(pfn) else {
            if !set.ram.contains(pfn) {
                return Err(ReadError::NotPresent { addr });
            }
            let error = io::Error::new(io::ErrorKind::NotFound, "the part of the split set it is in was not given");
            return Err(ReadError::Io { pfn, error: Arc::new(error) });
        };
        if !set.stored.contains(pfn) && set.ram.contains(pfn) {
            return Err(ReadError::Excluded { pfn, level: part.sub_header().dump_level });
        }
        match self.views.iter().position(|(of, _)| *of == number) {
            Some(at) => self.views.get_mut(at..).into_iter().for_each(|used_since| used_since.rotate_left(1)),
            None => {
                if self.views.len() == VIEWS {
                    self.views.remove(0);
                }
                self.views.push((number, KdumpView::new(part)));
            }
        }
        let room = part.range().end.addr(set.page_size()).0.saturating_sub(addr.0);
        match self.views.last_mut() {
            Some((_, view)) => Ok((view, room)),
            None => Err(ReadError::NotPresent { addr }),
        }
    }
}

impl MemoryView for SetView<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> std::result::Result<(), ReadError> {
        let mut done = 0;
        while done < buf.len() {
            let at = addr.0.checked_add(done as u64).ok_or(ReadError::NotPresent { addr })?;
            let (view, room) = self.view(PhysAddr(at))?;
            let n = usize::try_from(room).unwrap_or(usize::MAX).min(buf.len() - done);
            view.read(PhysAddr(at), buf.get_mut(done..done + n).unwrap_or_default())?;
            done += n;
        }
        Ok(())
    }

    fn slice(&mut self, addr: PhysAddr, len: usize) -> std::result::Result<&[u8], ReadError> {
        let (_, room) = self.view(addr)?;
        if len as u64 <= room {
            return self.view(addr)?.0.slice(addr, len);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(len, 0);
        let read = self.read(addr, &mut scratch);
        self.scratch = scratch;
        read.map(|()| self.scratch.as_slice())
    }
}

impl From<SetError> for FormatError {
    fn from(error: SetError) -> Self {
        Self::Set(error)
    }
}
