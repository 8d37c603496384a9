//! Makes a dump that readers open out of whatever is left of one.
//!
//! ```text
//! file ─ Input::salvage ─> verify::check_pages ─> bad pages
//!   headers (mark set, places of lost regions taken out) ─> notes, bitmaps ─> page data as they are ─> sync
//!                                        ─> descriptors, zeros for bad pages ─> sync
//! ```
//!
//! An ELF core gets new program headers instead, of the sound pages only, and its mark.
//!
//! Page data of a kdump-compressed file keep their places, so that nothing is compressed anew and pages that share data still do.

use crate::elf_segments::Placement;
use crate::elf_writer::ElfWriter;
use crate::error::EngineError;
use crate::names::same_file;
use crate::observer::{Observer, Stage};
use crate::source::{add_origin, joined};
use crate::target::{Output, WriteFailed};
use crate::verify::{PageCheck, PageCounts, PageProblem, check_pages, salvage};
use coresift_format::kdump::{
    Header, KdumpFile, PageDesc, PartIdentity, Region, SIGNATURE, STATUS_INCOMPLETE, SubHeader,
};
use coresift_format::{Bytes, ELF_INCOMPLETE, ElfCore, ElfKind, Field, FormatError, Input, Notes, Pfn, PhysicalMemory};
use serde::Serialize;
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;
/// Bytes of descriptors written at a time.
const DESCRIPTORS: usize = 384 << 10;

/// How to repair.
#[derive(Clone, Copy, Debug)]
pub struct RepairOptions {
    /// Read every page, and give up those that cannot be decompressed; otherwise only what describes them is looked at.
    pub read_pages: bool,
    /// Threads; `None`: one for each usable cpu.
    pub threads: Option<NonZeroUsize>,
    /// Overwrite an existing target.
    pub force: bool,
}

/// What was done. Any field may be absent in a later version.
#[derive(Debug, Serialize)]
pub struct Repair {
    /// The damaged dump.
    pub file: String,
    /// Its length in bytes.
    pub file_bytes: u64,
    /// `elf` or `kdump`, with `flattened ` before it where it is wrapped.
    pub container: String,
    /// The repaired dump.
    #[serde(serialize_with = "crate::names::serialize")]
    pub out: PathBuf,
    /// Whether it holds all that the damaged one promises.
    pub complete: bool,
    /// What was wrong with the headers.
    pub found: Vec<String>,
    /// What was changed in them.
    pub changed: Vec<String>,
    /// Pages of the damaged dump by how reading them went; the sound ones are in the repaired one.
    pub pages: PageCounts,
    /// The first of the lost pages, ascending.
    pub lost: Vec<PageProblem>,
    /// Page size in bytes.
    pub page_size: u64,
}

/// Makes an openable dump `out` of the dump `path`, which is not touched.
///
/// # Errors
/// Not even the headers are left, the target exists or cannot be written, or the input is the target.
pub fn repair(
    path: &Path,
    out: &Path,
    options: &RepairOptions,
    observer: &dyn Observer,
) -> Result<Repair, EngineError> {
    Output::check(out, options.force)?;
    if same_file(path, out) {
        return Err(EngineError::TargetIsInput { path: out.to_owned() });
    }
    let input = salvage(path)?;
    let found = check_pages(&input, options.read_pages, options.threads, observer);
    let mut report = Repair {
        file: input.name().to_owned(),
        file_bytes: input.file_len(),
        container: input.container_name(),
        out: out.to_owned(),
        complete: false,
        found: input.problems().iter().map(ToString::to_string).collect(),
        changed: Vec::new(),
        pages: found.counts,
        lost: Vec::new(),
        page_size: input.memory().page_size().bytes() as u64,
    };
    let output = Arc::new(Output::open(out, options.force, false)?);
    let job = Job { input: &input, found: &found, output: &output, observer, unread: Cell::new(false) };
    let done = match (input.as_kdump(), input.as_elf()) {
        (Some(file), _) => job.kdump(file, &mut report),
        (None, Some(core)) => job.elf(core, &mut report),
        (None, None) => Ok(()),
    };
    report.lost = found.problems;
    match done {
        Ok(()) => Ok(report),
        Err(Stop::Read(error)) => Err(error),
        Err(Stop::Write(WriteFailed { offset, error, .. })) => {
            Err(EngineError::Write { path: out.to_owned(), offset, error, readable: false })
        }
    }
}

/// Why a repair ended early.
enum Stop {
    Read(EngineError),
    Write(WriteFailed),
}

impl From<FormatError> for Stop {
    fn from(error: FormatError) -> Self {
        Self::Read(error.into())
    }
}

impl From<WriteFailed> for Stop {
    fn from(failed: WriteFailed) -> Self {
        Self::Write(failed)
    }
}

/// A repair under way.
struct Job<'a> {
    input: &'a Input,
    found: &'a PageCheck,
    output: &'a Arc<Output>,
    observer: &'a dyn Observer,
    /// Whether a part of the input could not be read while it was copied.
    unread: Cell<bool>,
}

impl Job<'_> {
    /// Writes a kdump-compressed file; it can be read, and is marked incomplete, from its first write on.
    fn kdump(&self, file: &KdumpFile, report: &mut Repair) -> Result<(), Stop> {
        let (input, output) = (self.input, self.output);
        let (mut header, mut sub) = (file.header().clone(), file.sub_header().clone());
        mend(input, file, &mut header, &mut sub, &mut report.changed);
        self.judge(report);
        let main_header = |incomplete: bool| {
            let marked =
                Header { status: header.status | if incomplete { STATUS_INCOMPLETE } else { 0 }, ..header.clone() };
            let mut raw = marked.encode(file.layout());
            raw.iter_mut().zip(SIGNATURE).for_each(|(to, from)| *to = *from);
            raw
        };
        let data = file.descriptor_at(file.stored().len());
        let end = file.bytes().len().max(data);
        let block = report.page_size;
        let sub = sub.encode(header.header_version, file.layout());
        output.empty(end)?;
        output.write_at(&main_header(true), 0)?;
        if let Some(identity) = file.identity() {
            output.write_at(&identity.encode(file.layout().endian), PartIdentity::OFFSET)?;
        }
        output.write_at(&sub, block)?;
        self.copy(file.bytes(), block + sub.len() as u64, file.bitmaps_at(), &mut |_| {})?;
        let mut failed = None;
        file.each_bitmap_piece(|at, bits| {
            if failed.is_none() {
                failed = output.write_at(bits, at).err();
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        let pages = |at: u64| at.saturating_sub(data) / block;
        self.copy(file.bytes(), data, file.bytes().len(), &mut |at| {
            self.observer.progress(Stage::CopyPages, pages(at), pages(end));
        })?;
        output.sync()?;
        self.descriptors(file)?;
        output.sync()?;
        self.admit(report);
        if report.complete {
            output.write_at(&main_header(false), 0)?;
            output.sync()?;
        }
        Ok(())
    }

    /// Whether the new file will hold all that the old one promises, and so is not marked.
    fn judge(&self, report: &mut Repair) {
        let input = self.input;
        report.complete = self.found.counts.lost() == 0
            && report.found.is_empty()
            && !input.incomplete()
            && input.truncated().is_none();
        if !report.complete && !input.incomplete() {
            report.changed.push("marked as ended early, so that readers expect pages to be missing".to_owned());
        }
    }

    /// What could not be read now, though nothing was found wrong with it, is zeros in the new file: that stays marked.
    fn admit(&self, report: &mut Repair) {
        if report.complete && self.unread.get() {
            report.complete = false;
            report.changed.push(
                "left marked as ended early: the disk failed while pages were copied; run it without --quick"
                    .to_owned(),
            );
        }
    }

    /// Writes an ELF core of the sound pages; those that are not written yet lie beyond its end.
    fn elf(&self, core: &ElfCore, report: &mut Repair) -> Result<(), Stop> {
        let (memory, headers) = (self.input.memory(), core.headers());
        self.judge(report);
        if core.segments_without_paddr() > 0 {
            let without = core.segments_without_paddr();
            report.changed.push(format!("{without} segments without a physical address left out"));
        }
        let zeros = memory.known_zero().without(&self.found.bad);
        let data = memory.data().without(&self.found.bad);
        let page = memory.page_size();
        let placement = Placement { data: &data, zeros: &zeros, first: &[], page };
        let sources = joined(core.segments().iter().filter(|s| s.has_paddr(headers.bits)));
        let kind = ElfKind {
            bits: headers.bits,
            endian: headers.endian,
            machine: headers.machine,
            flags: headers.flags & !ELF_INCOMPLETE,
        };
        let mut notes = whole_notes(self.input);
        core.origin().into_iter().for_each(|origin| add_origin(&mut notes, headers.endian, origin));
        let (_, layout) = placement.layout(kind, &sources, notes.len() as u64).map_err(Stop::Read)?;
        let mut writer = ElfWriter::begin(Arc::clone(self.output), layout, placement, &sources, &notes)
            .map_err(|(failed, _)| failed)?;
        let (mut view, mut buf, mut done) = (memory.view(), vec![0; PIECE], 0);
        for (start, end) in data.all_runs() {
            let mut at = start;
            while at < end {
                let pages = (end.0 - at.0).min((PIECE / page.bytes()) as u64);
                let piece = buf.get_mut(..pages as usize * page.bytes()).unwrap_or_default();
                // Each page was read before, but for --quick; what cannot be read now is zeros, as it would be in a copy.
                if view.read(at.addr(page), piece).is_err() {
                    self.unread.set(true);
                    piece.fill(0);
                }
                writer.pages(piece)?;
                done += pages;
                self.observer.progress(Stage::CopyPages, done, data.len());
                at = at.plus(pages);
            }
        }
        self.admit(report);
        Ok(writer.finish(report.complete)?)
    }

    /// Writes the descriptors of sound pages; those of others stay zero.
    fn descriptors(&self, file: &KdumpFile) -> Result<(), Stop> {
        let endian = file.layout().endian;
        let (mut raw, mut at, mut failed) = (Vec::with_capacity(DESCRIPTORS), file.descriptors(), None);
        file.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
            let sound = page.state.is_ok() && !self.found.bad.contains(page.pfn);
            raw.extend_from_slice(&if sound { page.desc } else { PageDesc::default() }.encode(endian));
            if raw.len() >= DESCRIPTORS && failed.is_none() {
                failed = self.output.write_at(&raw, at).err();
                at += raw.len() as u64;
                raw.clear();
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        Ok(self.output.write_at(&raw, at)?)
    }

    /// Copies the bytes `from..to` to where they are, without the holes of a sparse file.
    fn copy(&self, bytes: &dyn Bytes, from: u64, to: u64, told: &mut dyn FnMut(u64)) -> Result<(), Stop> {
        let mut buf = vec![0; PIECE];
        let mut at = bytes.next_data(from);
        while at < to {
            let want = usize::try_from(to - at).unwrap_or(PIECE).min(PIECE);
            let piece = buf.get_mut(..want).unwrap_or_default();
            // Where the disk fails, the pages that lie there are lost already, and what lies around them is not.
            let n = bytes.read_at(at, piece).unwrap_or_else(|_| {
                self.unread.set(true);
                in_small_pieces(bytes, at, piece)
            });
            if n == 0 {
                break;
            }
            self.output.write_at(piece.get(..n).unwrap_or_default(), at)?;
            told(at);
            at = bytes.next_data(at + n as u64);
        }
        Ok(())
    }
}

/// Takes out of the headers what cannot be true, and puts in what the rest of the file tells.
fn mend(input: &Input, file: &KdumpFile, header: &mut Header, sub: &mut SubHeader, changed: &mut Vec<String>) {
    for region in [Region::Vmcoreinfo, Region::Notes, Region::Eraseinfo] {
        if !file.has_region(region) {
            region.set(sub, 0, 0);
            changed.push(format!("{} that lay outside the file taken out of the sub header", region.name()));
        }
    }
    let text = input.vmcoreinfo().map_or(0, |text| text.len() as u64);
    if let Some(at) = input.vmcoreinfo_offset_in_notes()
        && sub.size_vmcoreinfo != text
    {
        Region::Vmcoreinfo.set(sub, sub.offset_note.saturating_add(at), text);
        changed.push("the place of VMCOREINFO taken from the notes".to_owned());
    }
    if header.nr_cpus <= 0 && input.cpus() > 0 {
        header.nr_cpus = i32::try_from(input.cpus()).unwrap_or(i32::MAX);
        changed.push(format!("nr_cpus set to {}, the number of register notes", header.nr_cpus));
    }
}

/// The notes of `input`; one that was cut is made as short as what is left of it.
fn whole_notes(input: &Input) -> Vec<u8> {
    /// Bytes in front of a note's name, and where in them the length of its data is (`n_descsz`).
    const HEADER: usize = 12;
    const DESC_SIZE: Field = Field { at: 4, size: 4 };
    let (mut raw, endian) = (input.notes().to_vec(), input.byte_order());
    let torn = Notes::new(input.notes(), endian).find(|note| note.torn);
    let Some(torn) = torn else { return raw };
    let name = (torn.name.len() + 1).next_multiple_of(4);
    let start = torn.desc_offset.saturating_sub(name + HEADER);
    match raw.get_mut(start..) {
        Some(header) if !torn.desc.is_empty() => endian.put(header, DESC_SIZE, torn.desc.len() as u64),
        _ => raw.truncate(start),
    }
    raw
}

/// Bytes read at a time around a place that cannot be read.
const SMALL: usize = 512;

/// Fills `piece` with what can be read from `at` on, and zeros; returns its length.
fn in_small_pieces(bytes: &dyn Bytes, at: u64, piece: &mut [u8]) -> usize {
    for (i, small) in piece.chunks_mut(SMALL).enumerate() {
        if bytes.read_at(at + (i * SMALL) as u64, small).is_err() {
            small.fill(0);
        }
    }
    piece.len()
}
