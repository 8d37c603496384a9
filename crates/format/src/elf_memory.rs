//! The memory of a machine out of the segments of an ELF core.

use crate::bytes::Bytes;
use crate::elf::{ElfHeaders, Segment};
use crate::elf_contradiction;
use crate::elf_holes::Holes;
use crate::elf_origin::ElfOrigin;
use crate::elf_sets::{Claims, ElfSets};
use crate::extents::{Extent, find, resolve};
use crate::window::{Window, faults_taken};
use crate::{FormatError, MemoryView, PageSet, PageSize, Pfn, PhysAddr, PhysicalMemory, ReadError, Result};
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

/// An ELF core, as physical memory.
///
/// Where segments overlap, the one that stands first in the file wins, among those that have data for the address.
/// A page is stored when at least one of its bytes has data in the file; its other bytes read as zero. So is a page that segments have
/// no data for (`p_filesz` below `p_memsz`): it is zeros, which need not be read ([`PhysicalMemory::known_zero`]), unless the file
/// shows that it was something else, or it may have been left out ([`ElfCore::set_unknown`]). Segments without a physical address are counted and left alone.
///
/// Parts of a flattened stream's file that no block brings are zeros, and segments may share their data, unless they claim so much
/// in this way that reading it would not end: then what nobody wrote is not stored.
pub struct ElfCore {
    bytes: Arc<dyn Bytes>,
    headers: ElfHeaders,
    page: PageSize,
    data: Vec<Extent>,
    /// Addresses whose data nobody wrote.
    unwritten: Vec<(u64, u64)>,
    /// Addresses whose data were lost on the way here ([`Bytes::next_lost`]): no page has a byte of them.
    lost: Vec<(u64, u64)>,
    /// Addresses whose data may be those of others ([`elf_contradiction`]): no page has a byte of them.
    contested: Vec<(u64, u64)>,
    /// Addresses that are not taken for memory of the machine.
    aside: Vec<(u64, u64)>,
    holes: Holes,
    origin: Option<ElfOrigin>,
    sets: ElfSets,
    /// Whether somebody looked which pages without data are zeros.
    judged: bool,
}

impl ElfCore {
    /// Reads the headers of a core. `page` is the page size of the crashed kernel as far as it is known.
    ///
    /// # Errors
    /// As [`ElfHeaders::read`].
    pub fn open(bytes: Arc<dyn Bytes>, page: PageSize) -> Result<Self> {
        let headers = ElfHeaders::read(&*bytes)?;
        Ok(Self::with(bytes, headers, page))
    }

    /// The same core with the segments `put` elsewhere, each as it is and as it should be, for who knows better than the program headers.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn with_segments(&self, put: &[(Segment, Segment)]) -> Result<Self> {
        let mut headers = ElfHeaders::read(&*self.bytes)?;
        for (is, should) in put {
            headers.segments.iter_mut().filter(|segment| *segment == is).for_each(|segment| *segment = *should);
        }
        let mut core = Self::with(Arc::clone(&self.bytes), headers, self.page);
        // The notes and what is wrong with the file are known.
        core.take_notes();
        Ok(core)
    }

    /// Reads the file `bytes` by what `headers` say.
    fn with(bytes: Arc<dyn Bytes>, headers: ElfHeaders, page: PageSize) -> Self {
        let claims = headers.segments.iter().filter(|s| s.has_paddr(headers.bits)).map(|s| Extent {
            start: s.paddr,
            end: s.paddr.saturating_add(s.file_size),
            source: s.file_offset,
        });
        let (data, unwritten) = written(&*bytes, resolve(claims.collect()));
        let (data, lost) = lost(&*bytes, data);
        let (aside, origin, sets) = (Vec::new(), None, ElfSets::default());
        let mut core = Self {
            bytes,
            headers,
            page,
            data,
            unwritten,
            lost,
            contested: Vec::new(),
            aside,
            holes: Holes::default(),
            origin,
            sets,
            judged: false,
        };
        // The kernel makes the headers of its own memory anew each time.
        if !core.bytes.is_memory() {
            core.contested = elf_contradiction::contested(&core.headers, core.bytes.len());
            core.data = without(std::mem::take(&mut core.data), &core.contested);
            let problems = elf_contradiction::problems(core.bytes.name(), &core.headers, &core.contested);
            core.headers.problems.extend(problems);
        }
        core.holes = Holes::find(&*core.bytes, &core.headers, page, None);
        core.set_page_size(page);
        core.headers.problems.extend(core.cut_short());
        core.headers.problems.extend(core.never_written());
        core.headers.problems.append(&mut core.holes.problems);
        core
    }

    /// The segment data that nobody wrote.
    fn never_written(&self) -> Option<FormatError> {
        let (start, end) = self.unwritten.first()?;
        let lost: u64 = self.unwritten.iter().fold(0, |sum, (start, end)| sum.saturating_add(end - start));
        Some(FormatError::BadField {
            file: self.bytes.name().to_owned(),
            field: "segment data (p_offset, p_filesz of PT_LOAD)",
            offset: self
                .headers
                .segments
                .iter()
                .find(|s| s.paddr <= *start && *end > s.paddr)
                .map_or(0, |s| s.file_offset),
            value: format!("{lost} bytes longer than what was written"),
            rule: "a core has the data of all its segments".to_owned(),
            next: "those pages are lost: fetch the file again or use another copy",
        })
    }

    /// The segment data that should lie beyond the end of the file.
    fn cut_short(&self) -> Option<FormatError> {
        let len = self.bytes.len();
        let lost = self.data.iter().map(|e| (e.source.max(len), e.source_of(e.end))).filter(|(_, end)| *end > len);
        let (offset, end) = lost.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        let file = self.bytes.name().to_owned();
        Some(FormatError::CutShort { file, what: "segment data (p_offset, p_filesz of PT_LOAD)", offset, end, len })
    }

    /// Leaves the physical addresses `ranges` (start and end) out of the memory: in the segments of a running kernel is also what it set
    /// aside for a crash kernel.
    pub fn set_aside(&mut self, ranges: Vec<(u64, u64)>) {
        self.aside = ranges;
        self.set_page_size(self.page);
    }

    /// Takes those of the pages without data that are in `pages` for something that may have been left out: they are not stored, although
    /// they read as zeros, as other readers have it. Holds until the pages are found anew.
    pub fn set_unknown(&mut self, pages: PageSet) {
        self.judged = true;
        self.sets.forget(pages);
    }

    /// Pages without data that are not known to be zeros.
    #[must_use]
    pub const fn unknown(&self) -> &PageSet {
        &self.sets.unknown
    }

    /// Sets the page size once VMCOREINFO has told it, and finds the pages anew.
    pub fn set_page_size(&mut self, page: PageSize) {
        self.page = page;
        self.judged = false;
        let claims = Claims {
            headers: &self.headers,
            data: &self.data,
            unwritten: &self.unwritten,
            lost: &self.lost,
            contested: &self.contested,
            holes: &self.holes,
            left_out: self.origin.as_ref().map_or(&[], |origin| &origin.ram),
            aside: &self.aside,
            len: self.bytes.len(),
        };
        self.sets = ElfSets::find(&claims, page);
    }

    /// What the headers say.
    #[must_use]
    pub const fn headers(&self) -> &ElfHeaders {
        &self.headers
    }

    /// The file.
    #[must_use]
    pub fn bytes(&self) -> &dyn Bytes {
        &*self.bytes
    }

    /// The notes, without the one of [`ElfOrigin`], and what is wrong with the file.
    pub(crate) fn take_notes(&mut self) -> (Vec<u8>, Vec<FormatError>) {
        let mut notes = std::mem::take(&mut self.headers.notes);
        self.origin = ElfOrigin::take(&mut notes, self.headers.endian);
        if let Some(origin) = &self.origin {
            let mut holes = Holes::find(&*self.bytes, &self.headers, self.page, Some(origin));
            self.headers.problems.append(&mut holes.problems);
            self.holes = holes;
            self.set_page_size(self.page);
        }
        (notes, std::mem::take(&mut self.headers.problems))
    }

    /// How this program made the core, where it did.
    #[must_use]
    pub const fn origin(&self) -> Option<&ElfOrigin> {
        self.origin.as_ref()
    }

    /// The PT_LOADs in file order, those without a physical address included.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.headers.segments
    }

    /// How many PT_LOADs have no physical address (vmalloc and modules in /proc/kcore) and were left alone.
    #[must_use]
    pub fn segments_without_paddr(&self) -> usize {
        self.headers.segments.iter().filter(|s| !s.has_paddr(self.headers.bits)).count()
    }

    /// Pages whose data should lie beyond the end of the file, or were never written to it: the file was cut short.
    #[must_use]
    pub const fn beyond_end(&self) -> &PageSet {
        &self.sets.beyond_end
    }

    /// Pages whose program header is damaged: their data are in the file, where no header has them.
    #[must_use]
    pub const fn damaged(&self) -> &PageSet {
        &self.sets.damaged
    }

    /// One more than the highest page that has data.
    #[must_use]
    pub const fn data_end(&self) -> Pfn {
        self.sets.data_end
    }

    /// What a user should know of the pages without data, where some may be something else than zeros: makedumpfile describes pages
    /// that it left out in the same way.
    #[must_use]
    pub fn hole_note(&self) -> Option<String> {
        let (zeros, unknown) = (self.sets.zero.len(), self.sets.unknown.len());
        if zeros + unknown == 0 || self.origin.is_some() {
            return None;
        }
        let told = format!(
            "{} pages are in program headers, but have no data in the file (p_filesz below p_memsz)",
            zeros + unknown
        );
        Some(if !self.judged {
            format!("{told}: zeros, or left out by the program that wrote the core, which does not tell the two apart")
        } else {
            format!(
                "{told}: {zeros} of them are zeros, for no dump level leaves out what they are; {unknown} may be zeros or have been left out, \
                 which this core does not tell, and count as not in the input"
            )
        })
    }
}

impl PhysicalMemory for ElfCore {
    fn page_size(&self) -> PageSize {
        self.page
    }

    fn ram(&self) -> &PageSet {
        &self.sets.ram
    }

    fn stored(&self) -> &PageSet {
        &self.sets.stored
    }

    fn known_zero(&self) -> &PageSet {
        &self.sets.zero
    }

    fn max_pfn(&self) -> Pfn {
        self.sets.ram.end()
    }

    fn view(&self) -> Box<dyn MemoryView + '_> {
        Box::new(ElfView { core: self, held: None, scratch: Vec::new(), next: u64::MAX, ahead: AHEAD[0], no_ahead: 0 })
    }
}

/// Bytes that segments may claim for each byte of the file. A guest that has used little of its memory, written without its zeros,
/// claims a hundred; the synthetic machine of 16 TiB in 270 MB that the benchmarks use claims 65,536. What a file of 100 KB can
/// claim in this way is read in half a minute.
const CLAIMS_A_BYTE: u64 = 1 << 20;
/// Bytes of the smallest run of a flattened stream, with its block header: there cannot be more runs than file for them.
const RUN_BYTES: u64 = 16;

/// All of `claims` where the file can account for them, else their parts that somebody wrote (or that lie beyond the end of the
/// file), and the addresses of the others.
fn written(bytes: &dyn Bytes, claims: Vec<Extent>) -> (Vec<Extent>, Vec<(u64, u64)>) {
    let len = bytes.len();
    let mut room = bytes.backed().saturating_mul(CLAIMS_A_BYTE);
    let in_file = |c: &Extent| c.source_of(c.end).min(len).saturating_sub(c.source);
    if claims.iter().fold(0u64, |sum, c| sum.saturating_add(in_file(c))) <= room {
        return (claims, Vec::new());
    }
    let mut pieces = (bytes.backed() / RUN_BYTES).saturating_add(claims.len() as u64);
    let (mut data, mut unwritten) = (Vec::<Extent>::with_capacity(claims.len()), Vec::new());
    for claim in claims {
        let file_end = claim.source_of(claim.end);
        let mut at = claim.source;
        while at < file_end {
            let end = file_end.min(len);
            let run = if at >= len {
                at..file_end
            } else {
                match bytes.next_written(at).filter(|run| run.start < end && room > 0 && pieces > 0) {
                    Some(run) => run.start..run.end.min(end).min(run.start.saturating_add(room)),
                    None => end..end,
                }
            };
            let address = |source: u64| claim.start + (source - claim.source);
            if at < run.start {
                unwritten.push((address(at), address(run.start)));
            }
            if run.start < run.end {
                if run.start < len {
                    room -= run.end - run.start;
                    pieces -= 1;
                }
                let piece = Extent { start: address(run.start), end: address(run.end), source: run.start };
                match data.last_mut() {
                    Some(last) if last.end == piece.start && last.source_of(last.end) == piece.source => {
                        last.end = piece.end
                    }
                    _ => data.push(piece),
                }
            }
            at = run.end;
        }
    }
    (data, unwritten)
}

/// `data` without the addresses `ranges`, both ascending.
fn without(data: Vec<Extent>, ranges: &[(u64, u64)]) -> Vec<Extent> {
    let mut left = Vec::with_capacity(data.len());
    for extent in data {
        let mut at = extent.start;
        let mut keep = |from: u64, to: u64| {
            if from < to {
                left.push(Extent { start: from, end: to, source: extent.source_of(from) });
            }
        };
        let first = ranges.partition_point(|(_, end)| *end <= extent.start);
        for (start, end) in ranges.iter().skip(first).take_while(|(start, _)| *start < extent.end) {
            keep(at, *start);
            at = at.max(*end);
        }
        keep(at, extent.end);
    }
    left
}

/// `data` without what was lost on the way here, and the addresses of that. Of a file that says more of that than it has bytes for, the
/// rest is lost.
fn lost(bytes: &dyn Bytes, data: Vec<Extent>) -> (Vec<Extent>, Vec<(u64, u64)>) {
    let mut pieces = (bytes.backed() / RUN_BYTES).saturating_add(data.len() as u64);
    let (mut kept, mut lost) = (Vec::with_capacity(data.len()), Vec::new());
    for extent in data {
        let (mut at, end) = (extent.source, extent.source_of(extent.end));
        let address = |source: u64| extent.start + (source - extent.source);
        while let Some(run) = bytes.next_lost(at).filter(|run| run.start < end) {
            let until = if pieces == 0 { end } else { run.end.min(end) };
            pieces = pieces.saturating_sub(1);
            if at < run.start {
                kept.push(Extent { start: address(at), end: address(run.start), source: at });
            }
            lost.push((address(run.start), address(until)));
            at = until;
        }
        if at < end {
            kept.push(Extent { start: address(at), end: extent.end, source: at });
        }
    }
    (kept, lost)
}

struct ElfView<'a> {
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
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> std::result::Result<(), ReadError> {
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

    fn slice(&mut self, addr: PhysAddr, len: usize) -> std::result::Result<&[u8], ReadError> {
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

impl ElfView<'_> {
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
    fn copy(&mut self, at: u64, offset: u64, buf: &mut [u8]) -> std::result::Result<(), ReadError> {
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
    fn copy_by_page(&self, at: u64, offset: u64, buf: &mut [u8]) -> std::result::Result<(), ReadError> {
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
    fn zeros_at(&self, addr: PhysAddr) -> std::result::Result<(), ReadError> {
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
