//! The memory of a machine out of the segments of an ELF core.

use crate::bytes::Bytes;
use crate::elf::{ElfHeaders, Segment};
use crate::elf_contradiction;
use crate::elf_holes::Holes;
use crate::elf_origin::ElfOrigin;
use crate::elf_sets::{Claims, ElfSets};
use crate::extents::{Extent, resolve};
use crate::{FormatError, MemoryView, PageSet, PageSize, Pfn, PhysicalMemory, Result};
use std::sync::Arc;

mod view;

use view::ElfView;
pub(crate) use view::io_error;

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
        Box::new(ElfView::new(self))
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
