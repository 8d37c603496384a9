//! Writing a kdump-compressed file anew, with the page data where they are.

use super::mend::Witnesses;
use super::{Failed, Job, Repair, mend};
use crate::observer::Stage;
use coresift_format::kdump::{BitmapFaults, Header, KdumpFile, PageDesc, PartIdentity, SIGNATURE, STATUS_INCOMPLETE};
use coresift_format::{Bytes, Pfn, PhysicalMemory};

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;
/// Bytes of descriptors written at a time.
const DESCRIPTORS: usize = 384 << 10;
/// Bytes read at a time around a place that cannot be read.
const SMALL: usize = 512;

impl Job<'_> {
    /// Writes a kdump-compressed file; it can be read, and is marked incomplete, from its first write on.
    pub(super) fn kdump(&self, file: &KdumpFile, report: &mut Repair) -> Result<(), Failed> {
        let output = self.output;
        let (mut header, mut sub) = (file.header().clone(), file.sub_header().clone());
        let notes = self.mended_notes(report);
        let by = Witnesses {
            input: self.input,
            notes: notes.as_ref().map_or(self.input.notes(), |(notes, _)| notes),
            kernel: self.kernel,
            table: self.found.table,
        };
        mend::headers(&by, file, &mut header, &mut sub, &mut report.changed);
        if file.bitmap_faults()? != BitmapFaults::default() {
            report.changed.push("bits of the bitmaps that contradict each other set or cleared".to_owned());
        }
        let notes_at = sub.offset_note;
        // A damaged place may be that of the bitmaps.
        let notes = notes.filter(|(notes, _)| {
            notes_at >= report.page_size && notes_at.saturating_add(notes.len() as u64) <= file.bitmaps_at()
        });
        report.changed.extend(notes.iter().map(|(_, what)| (*what).to_owned()));
        self.judge(report);
        let main_header = |incomplete: bool| {
            let marked =
                Header { status: header.status | if incomplete { STATUS_INCOMPLETE } else { 0 }, ..header.clone() };
            let mut raw = marked.encode(file.layout());
            raw.iter_mut().zip(SIGNATURE).for_each(|(to, from)| *to = *from);
            raw
        };
        let data = file.first_data();
        // Without a sound page there is nothing behind the descriptors worth having; where the 2nd bitmap lost bits, it is more of them.
        let end = if self.found.counts.sound == 0 { data } else { file.bytes().len().max(data) };
        let block = report.page_size;
        let sub = sub.encode(header.header_version, file.layout());
        // Bitmaps may be mostly holes.
        output.admits(file.bitmaps_at())?;
        output.empty(data)?;
        if !output.has_old_content() {
            // They are written last, and there has to be room for them then.
            output.reserve(file.descriptors(), data)?;
        }
        output.write_at(&main_header(true), 0)?;
        if let Some(identity) = file.identity() {
            output.write_at(&identity.encode(file.layout().endian), PartIdentity::OFFSET)?;
        }
        output.write_at(&sub, block)?;
        self.copy(file.bytes(), block + sub.len() as u64, file.bitmaps_at(), &mut |_| {})?;
        if let Some((notes, _)) = notes {
            output.write_at(&notes, notes_at)?;
        }
        let mut failed = None;
        file.each_bitmap_piece(|at, bits| {
            if failed.is_none() {
                failed = output.write_at(bits, at).err();
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        self.readable.set(true);
        let copied = self.data(file, data, end)?;
        output.sync()?;
        report.unsaved = self.descriptors(file, copied)?;
        output.sync()?;
        self.admit(report);
        if report.complete {
            output.write_at(&main_header(false), 0)?;
            output.sync()?;
        }
        Ok(())
    }

    /// Copies the page data; where they end in the new file, in bytes from its start.
    fn data(&self, file: &KdumpFile, data: u64, end: u64) -> Result<u64, Failed> {
        let pages = |at: u64| at.saturating_sub(data) / file.page_size().bytes() as u64;
        let copied = self.copy(file.bytes(), data, end.min(file.bytes().len()), &mut |at| {
            self.observer.progress(Stage::CopyPages, pages(at), pages(end));
        })?;
        // A hole at the end of a sparse file was not copied.
        if self.ended.borrow().is_none() && self.output.len() < end {
            return match self.output.write_at(&[0], end - 1) {
                Ok(()) => Ok(end),
                Err(failed) => self.unless_full(failed).map(|()| copied),
            };
        }
        Ok(copied)
    }

    /// Writes the descriptors of sound pages whose data end at `copied` or before; those of others stay zero. The number of sound pages
    /// that were not copied.
    fn descriptors(&self, file: &KdumpFile, copied: u64) -> Result<u64, Failed> {
        let endian = file.layout().endian;
        let (mut raw, mut at, mut failed) = (Vec::with_capacity(DESCRIPTORS), file.descriptors(), None);
        let mut unsaved = 0;
        file.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
            let sound = page.state.is_ok() && !self.found.bad.contains(page.pfn);
            let there = page.desc.offset.saturating_add(page.desc.size.into()) <= copied;
            unsaved += u64::from(sound && !there);
            raw.extend_from_slice(&if sound && there { page.desc } else { PageDesc::default() }.encode(endian));
            if raw.len() >= DESCRIPTORS && failed.is_none() {
                failed = self.output.write_at(&raw, at).err();
                at += raw.len() as u64;
                raw.clear();
            }
        });
        failed.map_or(Ok(()), Err)?;
        self.output.write_at(&raw, at)?;
        Ok(unsaved)
    }

    /// Copies the bytes `from..to` to where they are, without the holes of a sparse file, until all are copied, the target is full or
    /// somebody stops it; where it ended. Until what is there can be read, a full target is an error.
    fn copy(&self, bytes: &dyn Bytes, from: u64, to: u64, told: &mut dyn FnMut(u64)) -> Result<u64, Failed> {
        let mut buf = vec![0; PIECE];
        let mut at = bytes.next_data(from);
        while at < to {
            if self.readable.get() && self.stopped() {
                return Ok(at);
            }
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
            match self.output.write_at(piece.get(..n).unwrap_or_default(), at) {
                Ok(()) => {}
                Err(failed) if self.readable.get() => {
                    let end = failed.offset + failed.done as u64;
                    return self.unless_full(failed).map(|()| end);
                }
                Err(failed) => return Err(failed.into()),
            }
            told(at);
            at = bytes.next_data(at + n as u64);
        }
        Ok(to)
    }
}

/// Fills `piece` with what can be read from `at` on, and zeros; returns its length.
fn in_small_pieces(bytes: &dyn Bytes, at: u64, piece: &mut [u8]) -> usize {
    for (i, small) in piece.chunks_mut(SMALL).enumerate() {
        if bytes.read_at(at + (i * SMALL) as u64, small).is_err() {
            small.fill(0);
        }
    }
    piece.len()
}
