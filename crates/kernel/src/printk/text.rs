//! Until 3.4: characters, the newest over the oldest.

use super::memory::Pages;
use super::problem::Wrong;
use super::record::{Message, Record};
use super::{Out, Since, length, pointer, symbol};
use crate::error::Result;
use crate::virt::{VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use std::ops::ControlFlow;

const PAGE: u64 = 4096;
/// A line longer than this is given in pieces.
const MOST_LINE: usize = 64 << 10;

/// Where the characters are.
#[derive(Clone, Debug)]
pub(super) struct Text {
    buffer: VirtAddr,
    len: u64,
    /// Characters ever logged, modulo 2^32.
    end: u32,
    /// Where the number of characters since the last clear is, where the kernel says.
    logged: Option<VirtAddr>,
}

impl Text {
    pub(super) fn open(info: &VmcoreInfo, pages: &mut Pages<'_>) -> Result<Self> {
        let (at, len_at) = (symbol(info, "log_buf")?, symbol(info, "log_buf_len")?);
        let len = u64::from(pages.read_u32(len_at)?);
        Ok(Self {
            buffer: pointer(pages, "log_buf", at)?,
            len: length(pages, "log_buf_len", len_at, len)?,
            // An unsigned long until 2.6.24, whose low half counts all the same.
            end: pages.read_u32(symbol(info, "log_end")?)?,
            logged: info.symbol("logged_chars")?,
        })
    }

    pub(super) fn walk(&self, pages: &mut Pages<'_>, since: Since, out: &mut Out<'_>) -> ControlFlow<()> {
        let end = u64::from(self.end);
        let all = end.min(self.len);
        let wanted = match since {
            Since::Boot => all,
            Since::Clear => self.since_clear(pages, out).unwrap_or(all).min(all),
        };
        let mut lines = Lines::default();
        let mut done = 0;
        while done < wanted {
            let index = (end - wanted + done) & (self.len - 1);
            let at = self.buffer.plus(index);
            let here = (PAGE - at.0 % PAGE).min(wanted - done).min(self.len - index);
            match pages.rest_of_page(at) {
                Ok(bytes) => lines.feed(bytes.get(..here as usize).unwrap_or_default(), out)?,
                Err(error) => {
                    lines.end(out)?;
                    out.problems.add(Wrong::Unreadable, || error.to_string());
                }
            }
            done += here;
        }
        lines.end(out)
    }

    fn since_clear(&self, pages: &mut Pages<'_>, out: &mut Out<'_>) -> Option<u64> {
        let Some(at) = self.logged else {
            out.problems.add(Wrong::Clear, || "the dump lacks SYMBOL(logged_chars)".to_owned());
            return None;
        };
        let read = pages.read_u32(at);
        read.inspect_err(|error| out.problems.add(Wrong::Clear, || error.to_string())).ok().map(u64::from)
    }
}

/// Characters, cut into lines.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8], out: &mut Out<'_>) -> ControlFlow<()> {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            self.line.extend(piece);
            if piece.ends_with(b"\n") || self.line.len() >= MOST_LINE {
                self.end(out)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self, out: &mut Out<'_>) -> ControlFlow<()> {
        if self.line.is_empty() {
            return ControlFlow::Continue(());
        }
        out.record(&parse(std::mem::take(&mut self.line)))
    }
}

/// A line such as `<6>[    1.204000] text`; level and time may both be missing.
fn parse(raw: Vec<u8>) -> Record {
    let text = raw.strip_suffix(b"\n").unwrap_or(&raw);
    let (priority, text) = split_priority(text).map_or((None, text), |(p, rest)| (Some(p), rest));
    let (time, text) = split_time(text).map_or((None, text), |(ns, rest)| (Some(ns), rest));
    Record {
        time,
        // Three bits of level below the facility, as in syslog(2).
        facility: priority.map(|p| p >> 3),
        level: priority.map(|p| p & 7),
        message: Message::Text(text.to_vec()),
        raw: Some(raw),
        ..Record::default()
    }
}

fn split_priority(text: &[u8]) -> Option<(u8, &[u8])> {
    let (number, rest) = split_at_byte(text.strip_prefix(b"<")?, b'>')?;
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, rest))
}

fn split_time(text: &[u8]) -> Option<(u64, &[u8])> {
    let (time, rest) = split_at_byte(text.strip_prefix(b"[")?, b']')?;
    let (seconds, micros) = std::str::from_utf8(time).ok()?.trim_start().split_once('.')?;
    let micros: u64 = micros.parse().ok().filter(|_| micros.len() == 6)?;
    let seconds: u64 = seconds.parse().ok()?;
    let ns = seconds.checked_mul(1_000_000_000)?.checked_add(micros * 1000)?;
    Some((ns, rest.strip_prefix(b" ").unwrap_or(rest)))
}

fn split_at_byte(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    // Neither a priority nor a time is longer.
    let at = text.iter().take(24).position(|b| *b == byte)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}
