//! Header fields of a damaged file that the rest of the file tells.
//!
//! Where the pages are, the headers say twice: block counts follow from the number of pages and the length of the notes, and what stands
//! at the place they lead to shows whether it is right. Of a file with one damaged field, each other value that the field may have had
//! is tried, and the one taken that leads to descriptors and page data.

use super::file::KdumpFile;
use super::header::{Header, HeaderLayout, MAX_VERSION, SIGNATURE, SubHeader};
use super::notes_place;
use super::table::TableFit;
use crate::bytes::{Bytes, read_some};
use crate::endian::Field;
use crate::patched::Patched;
use crate::{Bits, FormatError, PageSize, Pfn, PhysicalMemory};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the signature that have to be right, so that the file is one at all.
const SIGNATURE_BYTES: usize = 6;
/// Bytes of main header and sub header that are looked at.
const HEAD: u64 = 512;
/// Our parts begin at multiples of so many page frames (16 MiB of 4 KiB pages).
const PART_UNIT: u64 = 4096;
/// Page sizes there are.
const PAGE_SHIFTS: std::ops::RangeInclusive<u32> = 12..=18;

/// A field with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    name: &'static str,
    /// Its offset in the file.
    offset: u64,
    size: usize,
    from: u64,
    to: u64,
}

/// Whether `head` begins with a signature, or with one of which a byte or two are damaged.
pub(crate) fn nearly_signed(head: &[u8]) -> bool {
    head.iter().zip(SIGNATURE).filter(|(byte, signature)| byte == signature).count() >= SIGNATURE_BYTES
}

/// The file with a damaged header field put right, and what was wrong; `None` where nothing is, or where nothing tells what is right.
pub(super) fn mended(
    bytes: &Arc<dyn Bytes>,
    open: impl Fn(Arc<dyn Bytes>) -> Option<KdumpFile>,
) -> Option<(KdumpFile, Vec<FormatError>)> {
    let raw = read_some(&**bytes, "main header", 0, HEAD).ok()?;
    let layout = Header::layout_of(&raw);
    let header = Header::decode(&raw, layout)?;
    let mut patches: BTreeMap<u64, u8> = BTreeMap::new();
    let mut problems = Vec::new();
    if !raw.starts_with(SIGNATURE) {
        patches.extend((0..).zip(SIGNATURE.iter().copied()));
        let value = format!("{:02x?}", raw.get(..SIGNATURE.len()).unwrap_or_default());
        problems.push(problem(&**bytes, "signature", 0, value, "KDUMP and three spaces"));
    }
    let headers = Headers { bytes: &**bytes, layout, header };
    let version = headers.version();
    let headers = Headers {
        header: Header {
            header_version: version.map_or(headers.header.header_version, |change| change.to as u32),
            ..headers.header
        },
        ..headers
    };
    for change in version.into_iter().chain(headers.notes_changes()) {
        change.put(layout, &mut patches);
        problems.push(change.problem(&**bytes));
    }
    let patched = |patches: BTreeMap<u64, u8>| open(Arc::new(Patched::new(Arc::clone(bytes), patches)));
    let mut as_it_is = patched(patches.clone());
    // A part has its range twice, and the right one is the one that leads to more pages, or the one that a part of ours can have.
    let ranges = headers.range_changes();
    if !ranges.is_empty() {
        let mut patches = patches.clone();
        ranges.iter().for_each(|change| change.put(layout, &mut patches));
        let other = patched(patches.clone());
        let judged = |file: &Option<KdumpFile>| file.as_ref().map(|file| (pages_sure(file), begins_a_chunk(file)));
        if judged(&other) > judged(&as_it_is) {
            problems.extend(ranges.iter().map(|change| change.problem(&**bytes)));
            as_it_is = other;
        }
    }
    let fits = as_it_is.as_ref().is_some_and(|file| headers.agree() || pages_found(file).is_some());
    if fits {
        return as_it_is.filter(|_| !problems.is_empty()).map(|file| (file, problems));
    }
    let mut found: Vec<(u64, KdumpFile, Change)> = Vec::new();
    for change in headers.changes() {
        let mut patches = patches.clone();
        change.put(layout, &mut patches);
        let Some(file) = patched(patches) else { continue };
        if let Some(pages) = pages_found(&file) {
            found.push((pages, file, change));
        }
    }
    let most = found.iter().map(|(pages, ..)| *pages).max()?;
    found.retain(|(pages, ..)| *pages == most);
    let places = |file: &KdumpFile| (file.descriptors(), file.stored().len(), file.page_size());
    let mut found = found.into_iter();
    let (_, file, change) = found.next()?;
    // Two that lead to different pages: nothing tells which is right.
    if found.any(|(_, other, _)| places(&other) != places(&file)) {
        return None;
    }
    problems.push(change.problem(&**bytes));
    Some((file, problems))
}

/// How many pages have a descriptor that can be true, where the descriptors fit the 2nd bitmap and few of them are wrong.
fn pages_found(file: &KdumpFile) -> Option<u64> {
    let counts = file.count_descriptors();
    let found = file.stored().len().checked_sub(counts.lost())?;
    let few = counts.damaged <= found / 8;
    (found > 0 && few && file.look_at_table().fit == TableFit::Fits).then_some(found)
}

/// Whether the part begins where ours do, and ends there or with the last page.
fn begins_a_chunk(file: &KdumpFile) -> bool {
    let starts = |pfn: Pfn| pfn.0.is_multiple_of(PART_UNIT);
    file.part().is_some_and(|part| starts(part.start) && (starts(part.end) || part.end == file.max_pfn()))
}

/// Pages that have a descriptor that can be true, less those whose descriptor cannot.
fn pages_sure(file: &KdumpFile) -> u64 {
    let lost = file.count_descriptors().lost();
    file.stored().len().saturating_sub(lost).saturating_sub(lost)
}

fn problem(bytes: &dyn Bytes, field: &'static str, offset: u64, value: String, right: &str) -> FormatError {
    let rule = format!("the rest of the file says that it is {right}");
    FormatError::BadField { file: bytes.name().to_owned(), field, offset, value, rule, next: "that is taken for it" }
}

impl Change {
    fn put(&self, layout: HeaderLayout, patches: &mut BTreeMap<u64, u8>) {
        let mut raw = vec![0; self.size];
        layout.endian.put(&mut raw, Field { at: 0, size: self.size }, self.to);
        patches.extend((self.offset..).zip(raw));
    }

    fn problem(&self, bytes: &dyn Bytes) -> FormatError {
        problem(bytes, self.name, self.offset, self.from.to_string(), &self.to.to_string())
    }
}

/// The headers as they are in the file.
struct Headers<'a> {
    bytes: &'a dyn Bytes,
    layout: HeaderLayout,
    header: Header,
}

impl Headers<'_> {
    /// The sub header, read as that of a file of `version` with blocks of `page`.
    fn sub(&self, version: u32, page: PageSize) -> Option<SubHeader> {
        let raw = read_some(self.bytes, "sub header", page.bytes() as u64, HEAD).ok()?;
        SubHeader::decode(&raw, version, self.layout)
    }

    fn page(&self) -> Option<PageSize> {
        PageSize::new(self.header.block_size.into())
    }

    /// Bytes of a sub header of `version`.
    fn sub_len(&self, version: u32) -> u64 {
        SubHeader::size(version, self.layout.abi) as u64
    }

    /// Whether the notes begin directly behind the sub header of a file of `version`, as writers put them; and their length.
    fn notes(&self, version: u32, page: PageSize) -> Option<u64> {
        let sub = self.sub(version, page)?;
        let (offset, size) = match version {
            4..=MAX_VERSION => (sub.offset_note, sub.size_note),
            3 => (sub.offset_vmcoreinfo, sub.size_vmcoreinfo),
            _ => return None,
        };
        (size > 0 && offset == page.bytes() as u64 + self.sub_len(version)).then_some(size)
    }

    /// The version that the sub header is of, where that is another: its length, and so where the notes begin, differs.
    fn version(&self) -> Option<Change> {
        let page = self.page()?;
        if self.notes(self.header.header_version, page).is_some() {
            return None;
        }
        let mut right = (0..=MAX_VERSION).filter(|version| self.notes(*version, page).is_some());
        let (to, None) = (right.next()?, right.next()) else { return None };
        self.main("header_version", self.header.header_version.into(), to.into())
    }

    /// The place of the notes, where the sub header has it wrong.
    fn notes_changes(&self) -> Vec<Change> {
        let version = self.header.header_version;
        let found = self.page().zip(self.page().and_then(|page| self.sub(version, page)));
        let Some((page, sub)) = found.filter(|_| (4..=MAX_VERSION).contains(&version)) else { return Vec::new() };
        let start = page.bytes() as u64 + self.sub_len(version);
        let end = (1 + u64::from(self.header.sub_hdr_size)) * page.bytes() as u64;
        let Some(size) = notes_place::size(self.bytes, self.layout.endian, &sub, start..end) else { return Vec::new() };
        let changes = [
            self.sub_field("offset_note", page, sub.offset_note, start),
            self.sub_field("size_note", page, sub.size_note, size),
        ];
        changes.into_iter().flatten().collect()
    }

    /// Whether the fields that lead to the pages agree with each other.
    fn agree(&self) -> bool {
        let version = self.header.header_version;
        let Some(page) = self.page() else { return false };
        let Some(sub) = self.sub(version, page) else { return false };
        let blocks = self.blocks_for(page, &sub);
        let bitmaps = u64::from(self.header.bitmap_blocks);
        let ranges = [sub.start_pfn, sub.end_pfn, sub.start_pfn_64, sub.end_pfn_64];
        (version < 6 || sub.max_mapnr_64.min(u32::MAX.into()) == u64::from(self.header.max_mapnr))
            && (bitmaps == blocks || bitmaps == 2 * blocks)
            && self.notes(version, page).is_none_or(|notes| {
                u64::from(self.header.sub_hdr_size) == page.pages_for(self.sub_len(version).saturating_add(notes))
            })
            && (sub.split != 0) == ranges.iter().any(|pfn| *pfn != 0)
    }

    /// What makes the range of a part that is read the other one, where the two are not the same. Only where a page frame number takes
    /// 8 bytes in both.
    fn range_changes(&self) -> Vec<Change> {
        let version = self.header.header_version;
        let found = self.page().and_then(|page| Some((page, self.sub(version, page)?)));
        let wide = version >= 6 && self.layout.abi.bits() == Bits::B64;
        let Some((page, sub)) = found.filter(|(_, sub)| wide && sub.split == 1) else { return Vec::new() };
        let changes = [
            self.sub_field("start_pfn_64", page, sub.start_pfn_64, sub.start_pfn),
            self.sub_field("end_pfn_64", page, sub.end_pfn_64, sub.end_pfn),
        ];
        changes.into_iter().flatten().collect()
    }

    /// Blocks of one bitmap.
    fn blocks_for(&self, page: PageSize, sub: &SubHeader) -> u64 {
        let wide = self.header.header_version >= 6 && sub.max_mapnr_64 != 0;
        let pages = if wide { sub.max_mapnr_64 } else { self.header.max_mapnr.into() };
        page.pages_for(pages.div_ceil(8))
    }

    /// What one damaged field may have been.
    fn changes(&self) -> Vec<Change> {
        let mut all: Vec<Option<Change>> = Vec::new();
        let header = &self.header;
        for shift in PAGE_SHIFTS {
            all.push(self.main("block_size", header.block_size.into(), 1 << shift));
        }
        let Some(page) = self.page() else { return all.into_iter().flatten().collect() };
        let version = header.header_version;
        if let Some(notes) = self.notes(version, page) {
            let needed = page.pages_for(self.sub_len(version).saturating_add(notes));
            all.push(self.main("sub_hdr_size", header.sub_hdr_size.into(), needed));
        }
        let Some(sub) = self.sub(version, page) else { return all.into_iter().flatten().collect() };
        let blocks = self.blocks_for(page, &sub);
        for copies in [1, 2] {
            all.push(self.main("bitmap_blocks", header.bitmap_blocks.into(), copies * blocks));
        }
        let narrow = u64::from(header.max_mapnr);
        if version >= 6 {
            all.push(self.sub_field("max_mapnr_64", page, sub.max_mapnr_64, narrow));
            all.push(self.sub_field("start_pfn_64", page, sub.start_pfn_64, sub.start_pfn));
            all.push(self.sub_field("end_pfn_64", page, sub.end_pfn_64, sub.end_pfn));
        }
        if version >= 2 {
            let split = u64::from(sub.split as u32);
            all.extend([0, 1].map(|to| self.sub_field("split", page, split, to)));
        }
        all.into_iter().flatten().collect()
    }

    /// A field of the main header that may be `to`.
    fn main(&self, name: &'static str, from: u64, to: u64) -> Option<Change> {
        let field = Header::field(name, self.layout.abi)?;
        (from != to).then_some(Change { name, offset: field.at as u64, size: field.size, from, to })
    }

    /// A field of the sub header that may be `to`.
    fn sub_field(&self, name: &'static str, page: PageSize, from: u64, to: u64) -> Option<Change> {
        let field = SubHeader::field(name, self.layout.abi)?;
        let offset = page.bytes() as u64 + field.at as u64;
        (from != to).then_some(Change { name, offset, size: field.size, from, to })
    }
}
