//! 3.5 to 5.9: records of a header, a text and a dictionary, one behind the other (`struct log`, since 3.11 `struct printk_log`).

use super::memory::Pages;
use super::problem::{Problems, Wrong};
use super::record::{Caller, Message, Record};
use super::{Out, PURPOSE, Since, length, pointer, symbol};
use crate::error::{KernelError, Result};
use crate::version::KernelVersion;
use crate::virt::{VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use std::ops::{ControlFlow, Range};

/// `LOG_ALIGN` where unaligned access is cheap; 8 elsewhere, which is also a multiple of it.
const ALIGN: u64 = 4;
/// The most that a record is longer than its parts, because the next is aligned.
const MOST_PADDING: u64 = 8;
/// Records that must follow from a place for it to be taken as the start of one, where nothing else tells.
const SYNC_RECORDS: usize = 8;
const PAGE: u64 = 4096;

/// Where the records are.
#[derive(Clone, Debug)]
pub(super) struct Records {
    buffer: VirtAddr,
    len: u64,
    /// Index in bytes of the oldest record, and of the one that comes next.
    first: u64,
    next: u64,
    clear: Option<VirtAddr>,
    header: Layout,
}

/// The header of a record: its size, and where in it the members are.
#[derive(Clone, Debug)]
struct Layout {
    size: u64,
    time: u64,
    len: u64,
    text_len: u64,
    dict_len: Option<u64>,
    /// Facility, then flags and level, in a byte each.
    priority: Option<u64>,
    caller: Option<u64>,
}

impl Layout {
    fn of(info: &VmcoreInfo) -> Result<Self> {
        let mut sizes = Vec::new();
        for name in ["printk_log", "log"] {
            sizes.extend(info.size(name)?.map(|size| (name, size)));
        }
        let found = sizes.into_iter().next();
        let (name, size) = VmcoreInfo::require(found, "SIZE(printk_log), SIZE(log) or SYMBOL(log_end)", PURPOSE)?;
        let inside = |member: &str, width: u64| match info.offset(&format!("{name}.{member}"))? {
            Some(at) if at + width > size => Err(KernelError::BadValue {
                key: format!("OFFSET({name}.{member})"),
                value: at.to_string(),
                expected: "inside the header of a record",
            }),
            at => Ok(at),
        };
        let need = |member: &str, width| {
            VmcoreInfo::require(inside(member, width)?, &format!("OFFSET({name}.{member})"), PURPOSE)
        };
        let dict_len = inside("dict_len", 2)?;
        // Linux 3.5 had both in one number of 16 bits (before commit 5becfb1df5ac).
        let since_3_6 =
            info.text("OSRELEASE").and_then(KernelVersion::parse).is_some_and(|v| v >= KernelVersion(3, 6, 0));
        Ok(Self {
            size,
            time: need("ts_nsec", 8)?,
            len: need("len", 2)?,
            text_len: need("text_len", 2)?,
            dict_len,
            priority: dict_len.map(|at| at + 2).filter(|at| since_3_6 && at + 2 <= size),
            caller: inside("caller_id", 4)?,
        })
    }
}

/// A header, read.
struct Header {
    time: u64,
    len: u64,
    text_len: u64,
    dict_len: u64,
    priority: Option<[u8; 2]>,
    caller: Option<u32>,
}

impl Records {
    pub(super) fn open(info: &VmcoreInfo, pages: &mut Pages<'_>) -> Result<Self> {
        let (at, len_at) = (symbol(info, "log_buf")?, symbol(info, "log_buf_len")?);
        let header = Layout::of(info)?;
        let len = u64::from(pages.read_u32(len_at)?);
        let mut index = |name| pages.read_u32(symbol(info, name)?).map(u64::from);
        let (first, next) = (index("log_first_idx")?, index("log_next_idx")?);
        Ok(Self {
            buffer: pointer(pages, "log_buf", at)?,
            len: length(pages, "log_buf_len", len_at, len)?,
            first,
            next,
            clear: info.symbol("clear_idx")?,
            header,
        })
    }

    pub(super) fn walk(
        &self,
        info: &VmcoreInfo,
        pages: &mut Pages<'_>,
        since: Since,
        out: &mut Out<'_>,
    ) -> ControlFlow<()> {
        let mut from = match since {
            Since::Boot => None,
            Since::Clear => self.cleared(info, pages, &mut out.problems),
        };
        let mut walk = Walk::new(self, &mut out.problems);
        while let Some((index, header)) = walk.next(pages, &mut out.problems) {
            // Nothing is shown until the record that was the next when the log was cleared.
            if from.is_some_and(|from| from != index && walk.turned_at != Some(from)) {
                continue;
            }
            from = None;
            let record = self.record(index, &header, pages, &mut out.problems);
            out.record(&record)?;
        }
        ControlFlow::Continue(())
    }

    /// The index of the first record since the log was cleared; `None` where that is older than all that are left.
    fn cleared(&self, info: &VmcoreInfo, pages: &mut Pages<'_>, problems: &mut Problems) -> Option<u64> {
        let Some(at) = self.clear else {
            let release = info.text("OSRELEASE").unwrap_or("this kernel");
            problems.add(Wrong::Clear, || format!("the dump lacks SYMBOL(clear_idx), as {release} has it"));
            return None;
        };
        let clear =
            pages.read_u32(at).inspect_err(|error| problems.add(Wrong::Clear, || error.to_string())).ok()?.into();
        // The kernel does not move clear_idx when the record there is overwritten: it is one only if a record is met there.
        // (A newer record may by chance be where the old one was; what would tell, clear_seq, is not in VMCOREINFO.)
        let mut unseen = Problems::default();
        let mut walk = Walk::new(self, &mut unseen);
        let met = clear == self.next
            || std::iter::from_fn(|| walk.next(pages, &mut unseen)).any(|(index, _)| index == clear)
            || walk.turned_at == Some(clear);
        met.then_some(clear)
    }

    fn header(&self, index: u64, pages: &mut Pages<'_>) -> Result<Header> {
        let at = self.buffer.plus(index);
        let layout = &self.header;
        let mut u16_at = |offset| {
            let mut bytes = [0; 2];
            pages.read_virt(at.plus(offset), &mut bytes).map(|()| bytes)
        };
        let mut number = |offset| u16_at(offset).map(|bytes| u64::from(u16::from_le_bytes(bytes)));
        let (len, text_len) = (number(layout.len)?, number(layout.text_len)?);
        let dict_len = layout.dict_len.map_or(Ok(0), number)?;
        let priority = layout.priority.map(u16_at).transpose()?;
        let time = pages.read_u64(at.plus(layout.time))?;
        let caller = layout.caller.map(|offset| pages.read_u32(at.plus(offset))).transpose()?;
        Ok(Header { time, len, text_len, dict_len, priority, caller })
    }

    fn record(&self, index: u64, header: &Header, pages: &mut Pages<'_>, problems: &mut Problems) -> Record {
        let at = self.buffer.plus(index + self.header.size);
        let mut text = Vec::new();
        let mut dict = Vec::new();
        let lost = pages.append(at, header.text_len, &mut text);
        let lost = pages.append(at.plus(header.text_len), header.dict_len, &mut dict).or(lost);
        if let Some(error) = lost {
            problems.add(Wrong::Unreadable, || format!("the text at index {index:#x}: {error}"));
        }
        let message = if text.is_empty() && header.text_len > 0 { Message::Lost } else { Message::Text(text) };
        Record {
            time: Some(header.time),
            facility: header.priority.map(|[facility, _]| facility),
            // Five bits of flags below three of level.
            level: header.priority.map(|[_, bits]| bits >> 5),
            caller: header.caller.map(Caller),
            message,
            dict: properties(&dict),
            ..Record::default()
        }
    }
}

/// `NAME=value` pairs, each with a NUL behind.
fn properties(dict: &[u8]) -> Vec<(String, String)> {
    let pairs = dict.split(|b| *b == 0).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let text = String::from_utf8_lossy(pair);
            let (name, value) = text.split_once('=').unwrap_or((&*text, ""));
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

/// The way from record to record: forward through one or two pieces of the buffer, so that it ends whatever the records say.
struct Walk<'r> {
    records: &'r Records,
    index: u64,
    /// Where this piece ends, and what comes behind it.
    end: u64,
    then: Option<Range<u64>>,
    /// The index of the empty header at which the records went on at the start of the buffer.
    turned_at: Option<u64>,
    /// Whether it is not known that a record begins at `index`.
    lost: bool,
}

impl<'r> Walk<'r> {
    fn new(records: &'r Records, problems: &mut Problems) -> Self {
        let Records { len, first, next, buffer, .. } = *records;
        for (name, index) in [("log_first_idx", first), ("log_next_idx", next)] {
            if index > len {
                problems.add(Wrong::Outside, || place(buffer, index) + &format!(", of {name}"));
            }
        }
        let (index, end, then, lost) = match (first > len, next > len) {
            (false, false) if first <= next => (first, next, None, false),
            (false, false) => (first, len, Some(0..next), false),
            (false, true) => (first, len, None, false),
            // What is behind the newest record is older than it, unless it was never used.
            (true, false) => (next, len, Some(0..next), true),
            (true, true) => (0, len, None, true),
        };
        Self { records, index, end, then, turned_at: None, lost }
    }

    /// The index and header of the next record.
    fn next(&mut self, pages: &mut Pages<'_>, problems: &mut Problems) -> Option<(u64, Header)> {
        loop {
            if self.lost {
                match self.sync(pages) {
                    Some(index) => (self.index, self.lost) = (index, false),
                    None => self.turn()?,
                }
            }
            if self.index >= self.end {
                self.turn()?;
                continue;
            }
            let Records { buffer, len, ref header, .. } = *self.records;
            let index = self.index;
            let found = match self.records.header(index, pages) {
                Ok(found) => found,
                Err(error) => {
                    problems.add(Wrong::Unreadable, || format!("index {index:#x}: {error}"));
                    self.lost = true;
                    continue;
                }
            };
            if found.len == 0 {
                // The kernel goes on at the start of the buffer. Without a piece there, that is among what was read already.
                if self.then.is_none() {
                    problems.add(Wrong::Cycle, || place(buffer, index));
                }
                self.turned_at = Some(index);
                self.turn()?;
                continue;
            }
            let parts = header.size + found.text_len + found.dict_len;
            if found.len < parts || index + found.len > len {
                problems.add(Wrong::Outside, || place(buffer, index));
                self.lost = true;
                continue;
            }
            self.index += found.len;
            if self.index > self.end {
                problems.add(Wrong::Cycle, || place(buffer, index));
            }
            return Some((index, found));
        }
    }

    /// Goes on with the next piece.
    fn turn(&mut self) -> Option<()> {
        let next = self.then.take()?;
        (self.index, self.end, self.lost) = (next.start, next.end, false);
        Some(())
    }

    /// The first place behind `self.index` where records seem to begin.
    fn sync(&self, pages: &mut Pages<'_>) -> Option<u64> {
        let mut at = (self.index + 1).next_multiple_of(ALIGN);
        while at < self.end {
            match self.may_begin(at, pages).and_then(|may| Ok(may && self.chain(at, pages)?)) {
                Ok(true) => return Some(at),
                Ok(false) => at += ALIGN,
                // Nothing begins in a page that cannot be read.
                Err(_) => {
                    let virt = self.records.buffer.plus(at).0;
                    at += PAGE - virt % PAGE;
                }
            }
        }
        None
    }

    /// Whether the length of a record may stand at `at`: the cheapest test, which nearly all places fail.
    fn may_begin(&self, at: u64, pages: &mut Pages<'_>) -> Result<bool> {
        let Records { buffer, ref header, .. } = *self.records;
        let mut bytes = [0; 2];
        pages.read_virt(buffer.plus(at + header.len), &mut bytes)?;
        let len = u64::from(u16::from_le_bytes(bytes));
        Ok(len >= header.size && len.is_multiple_of(ALIGN) && at + len <= self.end)
    }

    /// Whether a chain of records begins at `at`: of several that follow each other in time, or that leads to the end.
    fn chain(&self, at: u64, pages: &mut Pages<'_>) -> Result<bool> {
        let mut index = at;
        let mut time = 0;
        for seen in 0..SYNC_RECORDS {
            if index == self.end {
                return Ok(seen > 0);
            }
            let found = match self.records.header(index, pages) {
                Ok(found) => found,
                Err(error) if seen == 0 => return Err(error),
                Err(_) => return Ok(seen > 1),
            };
            if found.len == 0 && found.text_len == 0 && self.then.is_some() {
                return Ok(seen > 0);
            }
            let parts = self.records.header.size + found.text_len + found.dict_len;
            let fits = (parts..parts + MOST_PADDING).contains(&found.len) && found.len.is_multiple_of(ALIGN);
            if !fits || index + found.len > self.end || found.time < time {
                return Ok(false);
            }
            time = found.time;
            index += found.len;
        }
        Ok(true)
    }
}

/// A place in the buffer, in makedumpfile's words.
fn place(buffer: VirtAddr, index: u64) -> String {
    format!("log_buf = {buffer}, idx = {index:#x}")
}
