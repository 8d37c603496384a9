//! Reading the memory of an ELF core: mapped a window at a time where it pays, copied where not.

use super::ElfCore;
use crate::elf_sets::ElfSets;
use crate::extents::find;
use crate::window::{Window, faults_taken};
use crate::{MemoryView, Pfn, PhysAddr, ReadError};
use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes mapped at a time. In a capture kernel, mapping and unmapping a window takes 12,400 instructions and 215 a page (6.12, 7.2;
/// 26,000 and 135 in 6.1; 5.8 us and 0.027 us on a machine of 2013), reading a page 5,700 to 5,900 and a call 850: pages too many
/// cost less than another window up to 60 (200) of them. On the reads of whole dumps of five cores, with one and two threads and by
/// each of these costs, no other size is better everywhere: 256 KiB costs 1.3 to 1.9 times as much on 8 GiB, 4 MiB 0.7 to 1.6 times,
/// sizes that follow what was used of the last window 0.7 to 1.2 times. `cargo xtask lab 6.12 --probe --icount` measures it.
/// The kernel needs 8 bytes of page table a page of a window.
const WINDOW: usize = 1 << 20;
/// Pieces this large are mapped wherever they are, smaller ones only when they follow the piece before: reading costs as much as
/// mapping for two pages in 6.12 and 7.2, five in 6.1. That it is not 64 KiB saves 2 to 5 % in this way, and 20 to 45 % where a read
/// takes 20 us, as in 2013.
const WORTH_MAPPING: usize = 12 << 10;
/// Bytes copied at a time where mapping is not possible and small pieces follow each other: at first, and at most. Each time that a
/// piece follows what was copied it is four times as much: two objects that happen to lie side by side are no stream. (With 128 KiB
/// from the beginning, the walk of what a debugger reads copied 120 MB of a core of 512 MiB.)
const AHEAD: [usize; 2] = [8 << 10, 128 << 10];
/// Pieces larger than this gain nothing by a read ahead of them.
const SMALL: usize = 16 << 10;
/// Touching a byte every so often touches every page, on any host.
const TOUCH: usize = 4096;

/// Reads a core, on one thread.
pub(super) struct ElfView<'a> {
    core: &'a ElfCore,
    /// A piece of the file at hand: the file offset of its first byte, and the piece.
    held: Option<(u64, Held)>,
    scratch: Vec<u8>,
    /// File offset behind the last slice.
    next: u64,
    /// Bytes of the last read ahead.
    ahead: usize,
    /// Nothing is read ahead below this file offset, for a read ahead up to here failed.
    no_ahead: u64,
}

enum Held {
    Mapped(Window),
    Copied(Vec<u8>),
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(window) => window,
            Self::Copied(bytes) => bytes,
        }
    }
}

impl MemoryView for ElfView<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let page = self.core.page.bytes() as u64;
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            let at = addr.0.checked_add(done as u64).ok_or(ReadError::NotPresent { addr })?;
            let (extent, until) = match find(&self.core.data, at) {
                Some(e) if e.start <= at => (Some(e), e.end),
                Some(e) => (None, e.start.min((at / page).saturating_add(1).saturating_mul(page))),
                None => (None, (at / page).saturating_add(1).saturating_mul(page)),
            };
            let n = usize::try_from(until - at).unwrap_or(usize::MAX).clamp(1, rest.len());
            let Some(piece) = rest.get_mut(..n) else { break };
            match extent {
                Some(e) => self.copy(at, e.source_of(at), piece)?,
                None => {
                    self.core.zeros_at(PhysAddr(at))?;
                    piece.fill(0);
                }
            }
            done += n;
        }
        Ok(())
    }

    fn slice(&mut self, addr: PhysAddr, len: usize) -> Result<&[u8], ReadError> {
        if let Some(offset) = self.hold(addr.0, len) {
            return within(self.held.as_ref(), offset, len).ok_or(ReadError::NotPresent { addr });
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(len, 0);
        let read = self.read(addr, &mut scratch);
        self.scratch = scratch;
        read.map(|()| self.scratch.as_slice())
    }
}

fn within(held: Option<&(u64, Held)>, offset: u64, len: usize) -> Option<&[u8]> {
    let (start, bytes) = held?;
    let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
    bytes.get(from..from.checked_add(len)?)
}

impl<'a> ElfView<'a> {
    pub(super) fn new(core: &'a ElfCore) -> Self {
        Self { core, held: None, scratch: Vec::new(), next: u64::MAX, ahead: AHEAD[0], no_ahead: 0 }
    }

    /// Sees to it that the `len` bytes at physical address `at` are at hand, all of them real, and returns their file
    /// offset. `None` where they are to be copied on their own.
    fn hold(&mut self, at: u64, len: usize) -> Option<u64> {
        let extent = find(&self.core.data, at).filter(|e| e.start <= at && e.end - at >= len as u64)?;
        let offset = extent.source_of(at);
        let gap = offset.checked_sub(self.next);
        let follows = gap.is_some_and(|gap| gap <= WINDOW as u64);
        let near = gap.is_some_and(|gap| gap <= SMALL as u64);
        self.next = offset.saturating_add(len as u64);
        if within(self.held.as_ref(), offset, len).is_none() {
            let room = (extent.end - at).min(self.core.bytes.len().saturating_sub(offset));
            let most = |n: usize| room.min(n as u64) as usize;
            // Given up before the next one is made, so that a thread has one window at a time.
            let (copied, spare) = match self.held.take() {
                Some((start, Held::Copied(bytes))) => {
                    (start..start.saturating_add((bytes.len() + SMALL) as u64), bytes)
                }
                _ => (0..0, Vec::new()),
            };
            let window = if follows || len >= WORTH_MAPPING {
                self.core.bytes.window(offset, most(len.max(WINDOW))).map(Held::Mapped)
            } else {
                None
            };
            self.held = match window {
                None if near && len <= SMALL && offset >= self.no_ahead && !self.core.bytes.is_memory() => {
                    self.ahead = if copied.contains(&offset) { (self.ahead * 4).min(AHEAD[1]) } else { AHEAD[0] };
                    let ahead = most(self.ahead.max(len));
                    let read = self.read_ahead(offset, ahead, spare);
                    if read.is_none() {
                        self.no_ahead = offset.saturating_add(ahead as u64);
                    }
                    read.map(Held::Copied)
                }
                window => window,
            }
            .map(|held| (offset, held));
        }
        self.is_real(offset, len).then_some(offset)
    }

    fn read_ahead(&self, offset: u64, len: usize, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        bytes.resize(len, 0);
        let read = self.core.bytes.read_at(offset, &mut bytes).ok()?;
        (read == len).then_some(bytes)
    }

    /// Whether a piece is at hand and every page of it is really there. A window that is not, and now shows zeros, is
    /// given up.
    fn is_real(&mut self, offset: u64, len: usize) -> bool {
        let Some(slice) = within(self.held.as_ref(), offset, len) else { return false };
        let before = faults_taken();
        if matches!(self.held, Some((_, Held::Mapped(_)))) {
            for page in slice.chunks(TOUCH) {
                std::hint::black_box(page.first().copied());
            }
            std::hint::black_box(slice.last().copied());
        }
        let real = faults_taken() == before;
        if !real {
            self.held = None;
        }
        real
    }

    /// Fills `buf` with the file's bytes from `offset` on, which belong to physical address `at`.
    fn copy(&mut self, at: u64, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        if self.hold(at, buf.len()).is_some()
            && let Some(slice) = within(self.held.as_ref(), offset, buf.len())
        {
            buf.copy_from_slice(slice);
            return Ok(());
        }
        match self.core.bytes.read_at(offset, buf) {
            Ok(n) if n == buf.len() => Ok(()),
            _ => self.core.copy_by_page(at, offset, buf),
        }
    }
}

impl ElfCore {
    /// Reads page by page what could not be read as a whole, to name the page that fails.
    fn copy_by_page(&self, at: u64, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        let mut done = 0;
        while done < buf.len() {
            let (at, offset) = (at.saturating_add(done as u64), offset.saturating_add(done as u64));
            let pfn = PhysAddr(at).pfn(self.page);
            let n = (self.page.bytes() - self.page.offset_of(at)).min(buf.len() - done);
            let Some(piece) = buf.get_mut(done..done + n) else { break };
            match self.bytes.read_at(offset, piece) {
                Ok(read) if read == n => done += n,
                Ok(_) => return Err(ReadError::Truncated { pfn, offset, len: self.bytes.len() }),
                Err(error) => return Err(io_error(pfn, error)),
            }
        }
        Ok(())
    }

    /// Whether the byte at `addr`, which has no data in the file, is a zero of a stored page; else why it is not there.
    fn zeros_at(&self, addr: PhysAddr) -> Result<(), ReadError> {
        let pfn = addr.pfn(self.page);
        let ElfSets { ram, stored, unknown, beyond_end, damaged, .. } = &self.sets;
        if stored.contains(pfn) || unknown.contains(pfn) {
            Ok(())
        } else if beyond_end.contains(pfn) {
            Err(ReadError::Truncated { pfn, offset: self.bytes.len(), len: self.bytes.len() })
        } else if damaged.contains(pfn) {
            Err(ReadError::Corrupt { pfn, what: DAMAGED.to_owned() })
        } else if ram.contains(pfn) {
            let level = self.origin.as_ref().map_or(0, |origin| origin.level.into());
            Err(ReadError::Excluded { pfn, level })
        } else {
            Err(ReadError::NotPresent { addr })
        }
    }
}

/// What is wrong with a page of [`ElfCore::damaged`].
const DAMAGED: &str = "its program header has no data for it (p_filesz), and the file has data that no header has";

pub(crate) fn io_error(pfn: Pfn, error: io::Error) -> ReadError {
    ReadError::Io { pfn, error: Arc::new(error) }
}
