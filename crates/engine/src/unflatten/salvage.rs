//! Making a dump that can be read of the part of a stream that arrived.

use super::{LostPages, LostRange, Unflattened};
use crate::error::EngineError;
use coresift_format::kdump::{Header, KdumpFile, PageDesc};
use coresift_format::{Claims, ElfHeaders, FileBytes, Input, Pfn, Rearranged, Written};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Runs of lost pages that are listed.
const MAX_LISTED: usize = 10_000;
/// Descriptors that are taken back with one write at the most.
const AT_A_TIME: usize = 16 << 10;

/// Takes back what the file at `path` says about bytes that are not among those that arrived, `written`, and lists what is lost. Returns
/// why the file cannot be opened, if that is so.
///
/// # Errors
/// The file cannot be read or written.
pub fn salvage(path: &Path, written: Written, made: &mut Unflattened) -> Result<Option<String>, EngineError> {
    if written.lossy() {
        made.notes.push(
            "the blocks are too many and too scattered to be remembered: pages seem lost that are not".to_owned(),
        );
    }
    match made.container {
        Some("kdump") => kdump(path, written, made),
        _ => elf(path, written, made),
    }
}

fn kdump(path: &Path, written: Written, made: &mut Unflattened) -> Result<Option<String>, EngineError> {
    let failed = |offset| move |error| EngineError::Write { path: path.to_owned(), offset, error, readable: true };
    let target = File::options().write(true).open(path).map_err(failed(0))?;
    let (table, end) = match KdumpFile::salvage(Arc::new(FileBytes::open(path)?)) {
        Ok(file) => (file.descriptors(), file.first_data()),
        Err(error) => return Ok(Some(error.to_string())),
    };
    // Readers that find the table of descriptors cut short give up on all of it; zeros in it are pages lost.
    if made.file_bytes < end {
        match target.set_len(end) {
            Ok(()) => made.file_bytes = end,
            Err(error) => made.notes.push(format!("the table of page descriptors is cut short: {error}")),
        }
    }
    let arrived = Rearranged { file: FileBytes::open(path)?, written };
    let file = KdumpFile::salvage(Arc::new(arrived))?;
    let mut back = TakenBack { target: &target, start: 0, count: 0, result: Ok(()) };
    file.each_descriptor(Pfn(0), Pfn(u64::MAX), |page| {
        made.pages += 1;
        if page.state.is_ok() {
            return;
        }
        made.lost_pages += 1;
        let listed = made.lost_page_frames.len();
        match made.lost_page_frames.last_mut() {
            Some(run) if run.pfn + run.pages == page.pfn.0 => run.pages += 1,
            _ if listed < MAX_LISTED => {
                made.lost_page_frames.push(LostPages { pfn: page.pfn.0, pages: 1 });
            }
            _ => {}
        }
        if page.desc != PageDesc::default() {
            made.descriptors_taken_back += 1;
            back.add(page.at);
        }
    });
    back.flush();
    back.result.map_err(failed(table))?;
    name_codecs(&file, &target).map_err(failed(0))?;
    target.sync_data().map_err(failed(0))?;
    Ok(None)
}

/// Names in `status` the codecs of the pages that arrived: in a stream they come last, and crash prepares only those that are named.
fn name_codecs(file: &KdumpFile, target: &File) -> io::Result<()> {
    let status = file.header().status | file.look_at_table().codecs;
    if status == file.header().status {
        return Ok(());
    }
    let layout = file.layout();
    let at = Header::offset_of("status", layout.abi);
    let header = Header { status, ..file.header().clone() }.encode(layout);
    target.write_all_at(header.get(at as usize..).and_then(|field| field.get(..4)).unwrap_or_default(), at)
}

/// Descriptors to be filled with zeros.
struct TakenBack<'a> {
    target: &'a File,
    /// File offset of the first of a run, and their number.
    start: u64,
    count: usize,
    result: io::Result<()>,
}

impl TakenBack<'_> {
    fn add(&mut self, at: u64) {
        if self.count == AT_A_TIME || at != self.start + (self.count * PageDesc::SIZE) as u64 {
            self.flush();
            self.start = at;
        }
        self.count += 1;
    }

    fn flush(&mut self) {
        if self.count > 0 && self.result.is_ok() {
            self.result = self.target.write_all_at(&vec![0; self.count * PageDesc::SIZE], self.start);
        }
        self.count = 0;
    }
}

/// An ELF core has no page descriptors: what its program headers promise and did not arrive is listed. Where that is because a block was
/// at a wrong place, they no longer promise it; what lies behind the end of a file that was only cut short every reader takes for lost.
fn elf(path: &Path, written: Written, made: &mut Unflattened) -> Result<Option<String>, EngineError> {
    let arrived = Rearranged { file: FileBytes::open(path)?, written };
    let headers = match ElfHeaders::read(&arrived) {
        Ok(headers) => headers,
        Err(error) => return Ok(Some(error.to_string())),
    };
    made.lost.clear();
    // Overlapping segments name their gaps again and again: once the list is full, or all that came was looked at, that is enough.
    let ranges = headers.segments.iter().map(|s| s.file_offset..s.file_offset.saturating_add(s.file_size));
    let gaps = ranges.flat_map(|range| arrived.written.gaps(range)).take(MAX_LISTED);
    made.lost.extend(gaps.map(|gap| LostRange { start: gap.start, end: gap.end, what: "memory of a PT_LOAD" }));
    if made.misplaced.is_empty() {
        return Ok(None);
    }
    let page = match Input::open(path) {
        Ok(input) => input.memory().page_size(),
        Err(error) => return Ok(Some(error.to_string())),
    };
    let Some(claims) = Claims::of(&arrived, page)? else { return Ok(None) };
    let failed = |error| EngineError::Write { path: path.to_owned(), offset: claims.at, error, readable: false };
    let target = File::options().write(true).open(path).map_err(failed)?;
    target.write_all_at(&claims.table, claims.at).and_then(|()| target.sync_data()).map_err(failed)?;
    let room = MAX_LISTED.saturating_sub(made.lost.len());
    let dropped = claims.dropped.iter().take(room);
    let what = "arrived, but no program header is left for it";
    made.lost.extend(dropped.map(|range| LostRange { start: range.start, end: range.end, what }));
    Ok(None)
}
