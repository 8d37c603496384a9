//! A kdump-compressed file, opened: headers checked, bitmaps read.

use super::bitmap::{Bitmaps, check_base};
use super::derived;
use super::desc::PageDesc;
use super::detect;
use super::header::{Abi, Header, HeaderLayout, MAX_VERSION, SIGNATURE, STATUS_INCOMPLETE, SubHeader};
use super::identity::PartIdentity;
use super::limits::{limit_blocks, limit_pages};
use super::realign::Realigned;
use super::region::Region;
use crate::bytes::{Bytes, Padded, read_exact, read_some};
use crate::endian::Bits;
use crate::error::FETCH_AGAIN;
use crate::patched::Patched;
use crate::{FormatError, MemoryView, PageSet, PageSize, Pfn, PhysicalMemory, Result};
use std::ops::Range;
use std::sync::Arc;

/// Bytes a main header has at least.
const HEADER_MIN: u64 = 452;
/// Bytes a main header has at most.
const HEADER_MAX: u64 = 464;
/// Bytes a sub header has at most.
pub(super) const SUB_HEADER_MAX: u64 = 104;
/// The field is unusable, but the pages can be read without it.
const REST_IS_USABLE: &str = "the pages can be read, what the field stands for cannot";

/// What becomes of a file that ends inside its notes or bitmaps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Refused,
    Padded,
}

/// A kdump-compressed file, as physical memory.
///
/// A part of a split set is a file that holds only the pages of its range.
pub struct KdumpFile {
    pub(super) bytes: Arc<dyn Bytes>,
    pub(super) layout: HeaderLayout,
    pub(super) header: Header,
    pub(super) sub: SubHeader,
    pub(super) page: PageSize,
    pub(super) ram: PageSet,
    pub(super) stored: PageSet,
    pub(super) maps: Bitmaps,
    /// File offset of the descriptor of the first stored page.
    pub(super) descriptors: u64,
    max_pfn: Pfn,
    identity: Option<PartIdentity>,
    /// Pages of which it is not known which descriptor is theirs.
    pub(super) doubt: PageSet,
    problems: Vec<FormatError>,
}

impl KdumpFile {
    /// Reads headers and bitmaps.
    ///
    /// # Errors
    /// A header field with a value that makes the pages unreachable, or a file that ends before the descriptors. A
    /// field the pages do not depend on is left to [`Self::problems`].
    pub fn open(bytes: Arc<dyn Bytes>) -> Result<Self> {
        Self::read(bytes, Cut::Refused)
    }

    /// As [`Self::open`], of a file that may end anywhere behind the sub header: notes and bitmaps beyond the end read as
    /// zeros, so that pages beyond are not known, and a page count that does not fit its bitmap is cut to it. A damaged header field
    /// that the rest of the file tells is taken from there. Each such thing is one of [`Self::problems`].
    ///
    /// # Errors
    /// The headers themselves are not there, or cannot be true.
    pub fn salvage(bytes: Arc<dyn Bytes>) -> Result<Self> {
        match derived::mended(&bytes, |bytes| Self::read(bytes, Cut::Padded).ok()) {
            Some((mut file, problems)) => {
                file.problems.extend(problems);
                Ok(file)
            }
            None => Self::read(bytes, Cut::Padded),
        }
    }

    fn read(bytes: Arc<dyn Bytes>, cut: Cut) -> Result<Self> {
        let raw = read_some(&*bytes, "main header", 0, HEADER_MAX)?;
        if (raw.len() as u64) < HEADER_MIN {
            return Err(cut_short(&*bytes, "main header", 0, HEADER_MIN));
        }
        let layout = detect::main_header(&raw);
        let Some(mut header) = Header::decode(&raw, layout) else {
            return Err(cut_short(&*bytes, "main header", 0, HEADER_MAX));
        };
        let file = bytes.name().to_owned();
        let bad = |field, value: i64, rule: String| bad_header(&file, layout.abi, field, value, rule);
        if raw.get(..SIGNATURE.len()) != Some(SIGNATURE) {
            return Err(FormatError::BadField {
                file,
                field: "signature",
                offset: 0,
                value: format!("{:02x?}", raw.get(..SIGNATURE.len()).unwrap_or_default()),
                rule: "a kdump-compressed file begins with \"KDUMP   \"".to_owned(),
                next: FETCH_AGAIN,
            });
        }
        if header.header_version > u32::from(u8::MAX) {
            let rule = format!("versions 0 to {MAX_VERSION} exist");
            return Err(bad("header_version", i64::from(header.header_version as i32), rule));
        }
        let Some(page) = PageSize::new(header.block_size.into()) else {
            let rule = "a page has 4096 to 262144 bytes, a power of two".to_owned();
            return Err(bad("block_size", i64::from(header.block_size as i32), rule));
        };
        if !(1..=i32::MAX as u32).contains(&header.sub_hdr_size) {
            let rule = "the sub header has at least one block".to_owned();
            return Err(bad("sub_hdr_size", i64::from(header.sub_hdr_size as i32), rule));
        }
        let mut problems = Vec::new();
        if cut == Cut::Padded {
            problems.extend(limit_blocks(&*bytes, &mut header, layout, page)?);
        }
        // Block counts and block size are below 2^32 and 2^19: none of this overflows.
        let block = page.bytes() as u64;
        let bitmaps = (1 + u64::from(header.sub_hdr_size)) * block;
        let descriptors = bitmaps + u64::from(header.bitmap_blocks) * block;
        for (what, start, end) in
            [("sub header and notes (sub_hdr_size)", block, bitmaps), ("bitmaps (bitmap_blocks)", bitmaps, descriptors)]
        {
            if end > bytes.len() {
                let error = cut_short(&*bytes, what, start, end);
                match cut {
                    Cut::Refused => return Err(error),
                    Cut::Padded => problems.push(error),
                }
            }
        }
        let sub_end = block.saturating_add(SubHeader::size(header.header_version, layout.abi) as u64);
        if sub_end > bytes.len() {
            return Err(cut_short(&*bytes, "sub header", block, sub_end));
        }
        if descriptors > bytes.len().saturating_add(MAX_PADDING) {
            let rule = format!("the file has {} bytes, and no machine has so much memory", bytes.len());
            return Err(bad("bitmap_blocks", header.bitmap_blocks.into(), rule));
        }
        let bytes: Arc<dyn Bytes> =
            if descriptors > bytes.len() { Arc::new(Padded { bytes, len: descriptors }) } else { bytes };
        let raw = read_exact(&*bytes, "sub header", block, SUB_HEADER_MAX.min(bitmaps - block))?;
        let layout = detect::sub_header(&raw, &header, layout, bitmaps);
        let Some(mut sub) = SubHeader::decode(&raw, header.header_version, layout) else {
            return Err(cut_short(&*bytes, "sub header", block, block + SUB_HEADER_MAX));
        };
        let version = header.header_version;
        if cut == Cut::Padded
            && let Some(problem) = limit_pages(&file, layout.abi, page, &mut header, &mut sub)
        {
            problems.push(problem);
        }
        let places = Places { file: &file, layout, header: &header, sub: &sub, page, bitmaps, descriptors };
        let maps = places.bitmaps()?;
        let max_pfn = Pfn(maps.base.saturating_add(maps.pages));
        let (ram, stored) = maps.read(&*bytes)?;
        problems.extend(places.problems(bytes.len()));
        let raw = read_some(&*bytes, "part identity", PartIdentity::OFFSET, PartIdentity::SIZE as u64)?;
        let identity = PartIdentity::decode(&raw, layout.endian);
        let header = Header { header_version: version, ..header };
        let doubt = PageSet::default();
        Ok(Self {
            bytes,
            layout,
            header,
            sub,
            page,
            maps,
            ram,
            stored,
            descriptors,
            max_pfn,
            identity,
            doubt,
            problems,
        })
    }

    /// The same file with the 2nd bitmap as its pages tell it.
    ///
    /// # Errors
    /// As [`Self::salvage`].
    pub(crate) fn realigned(&self, with: Realigned) -> Result<Self> {
        let patched = Patched::new(Arc::clone(&self.bytes), with.bytes);
        Ok(Self { doubt: with.doubt, ..Self::read(Arc::new(patched), Cut::Padded)? })
    }

    /// File offset of the first byte behind the page descriptors.
    #[must_use]
    pub fn first_data(&self) -> u64 {
        self.descriptor_at(self.stored.len())
    }

    /// The main header as it is in the file.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The sub header as it is in the file.
    #[must_use]
    pub const fn sub_header(&self) -> &SubHeader {
        &self.sub
    }

    /// ABI and byte order of the headers.
    #[must_use]
    pub const fn layout(&self) -> HeaderLayout {
        self.layout
    }

    /// File offset of the first page descriptor.
    #[must_use]
    pub const fn descriptors(&self) -> u64 {
        self.descriptors
    }

    /// File offset of the 1st bitmap.
    #[must_use]
    pub const fn bitmaps_at(&self) -> u64 {
        self.maps.first
    }

    /// Whether the sub header puts `region` inside the file, or does not name one.
    #[must_use]
    pub fn has_region(&self, region: Region) -> bool {
        region.check(&self.sub, self.bytes.len()).is_ok()
    }

    /// The page range of a part of a split set; `None` for a whole file.
    #[must_use]
    pub fn part(&self) -> Option<Range<Pfn>> {
        let (start, end) = part_of(&self.header, &self.sub)?;
        Some(Pfn(start)..Pfn(end))
    }

    /// The file's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.bytes.name()
    }

    /// The page frames this file has to have, as [`PhysicalMemory`] counts them: those of a part, or all. A part whose writer ended before
    /// it came to a range has an empty one, at the end.
    #[must_use]
    pub fn range(&self) -> Range<Pfn> {
        let end = self.max_pfn;
        match (part_of(&self.header, &self.sub), self.identity) {
            (Some(_), _) => Pfn(self.maps.part.start).min(end)..Pfn(self.maps.part.end).min(end),
            (None, Some(_)) => end..end,
            (None, None) => Pfn(0)..end,
        }
    }

    /// All pages of the 2nd bitmap, which in a part of a split set are those of the whole set.
    ///
    /// # Errors
    /// The operating system's.
    pub fn stored_in_set(&self) -> Result<PageSet> {
        let whole = Bitmaps { part: 0..u64::MAX, ..self.maps.clone() };
        Ok(whole.read(&*self.bytes)?.1)
    }

    /// Descriptors number `rank` to `rank + count`, or as many of them as the file has.
    ///
    /// # Errors
    /// The operating system's.
    pub fn read_descriptors(&self, rank: u64, count: u64) -> Result<Vec<PageDesc>> {
        let len = count.saturating_mul(PageDesc::SIZE as u64);
        let raw = read_some(&*self.bytes, "page descriptors", self.descriptor_at(rank), len)?;
        Ok(raw.chunks_exact(PageDesc::SIZE).filter_map(|raw| PageDesc::decode(raw, self.layout.endian)).collect())
    }

    /// Which part of which split set the file is, where its writer says so.
    #[must_use]
    pub const fn identity(&self) -> Option<PartIdentity> {
        self.identity
    }

    /// Whether the writer marked the file as ended early.
    #[must_use]
    pub const fn incomplete(&self) -> bool {
        self.header.status & STATUS_INCOMPLETE != 0
    }

    /// The bytes of the file; zeros follow where [`Self::salvage`] had to add some.
    #[must_use]
    pub fn bytes(&self) -> &dyn Bytes {
        &*self.bytes
    }

    /// Fields that are wrong, but that the pages do not depend on.
    #[must_use]
    pub fn problems(&self) -> &[FormatError] {
        &self.problems
    }

    pub(crate) fn take_problems(&mut self) -> Vec<FormatError> {
        std::mem::take(&mut self.problems)
    }

    /// The bytes of a region the sub header names, empty where it names none or one outside the file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn region(&self, region: Region) -> Result<Vec<u8>> {
        let (offset, size) = region.place(&self.sub);
        match region.check(&self.sub, self.bytes.len()) {
            Ok(()) => read_some(&*self.bytes, region.name(), offset, size),
            Err(_) => Ok(Vec::new()),
        }
    }
}

/// Everything the places of the bitmaps depend on.
struct Places<'a> {
    file: &'a str,
    layout: HeaderLayout,
    header: &'a Header,
    sub: &'a SubHeader,
    page: PageSize,
    bitmaps: u64,
    descriptors: u64,
}

impl Places<'_> {
    fn bitmaps(&self) -> Result<Bitmaps> {
        let wide = self.header.header_version >= 6 && self.sub.max_mapnr_64 != 0;
        let pages = if wide { self.sub.max_mapnr_64 } else { self.header.max_mapnr.into() };
        let blocks = self.page.pages_for(pages.div_ceil(8));
        let both = u64::from(self.header.bitmap_blocks);
        if blocks > both {
            let rule = format!("bitmap_blocks {both} has room for {} pages", both * self.page.bytes() as u64 * 8);
            return Err(if wide {
                self.bad_sub("max_mapnr_64", pages, rule, FETCH_AGAIN)
            } else {
                bad_header(self.file, self.layout.abi, "max_mapnr", pages as i64, rule)
            });
        }
        // Files with one bitmap for both are as old as full dumps of diskdump.
        let second = if both >= 2 * blocks { self.bitmaps + both / 2 * self.page.bytes() as u64 } else { self.bitmaps };
        let base = self.first_pfn();
        check_base(Pfn(base), || {
            let rule = "RAM of a 32-bit ARM machine begins at a multiple of 64 pages".to_owned();
            self.bad_sub("phys_base", self.sub.phys_base, rule, FETCH_AGAIN)
        })?;
        let part = part_of(self.header, self.sub).unwrap_or((0, u64::MAX));
        let part = base.saturating_add(part.0)..base.saturating_add(part.1);
        debug_assert!(second < self.descriptors || pages == 0);
        Ok(Bitmaps { first: self.bitmaps, second, pages, base, part })
    }

    /// The page of bit 0. 32-bit ARM counts pages from the start of RAM (makedumpfile, crash, QEMU).
    fn first_pfn(&self) -> u64 {
        let arm = self.layout.abi.bits() == Bits::B32 && self.header.machine().starts_with(b"arm");
        if arm { self.sub.phys_base >> self.page.shift() } else { 0 }
    }

    fn problems(&self, len: u64) -> Vec<FormatError> {
        let mut problems = Vec::new();
        if self.header.nr_cpus < 0 {
            let rule = "a machine has no negative number of CPUs".to_owned();
            problems.push(bad_header(self.file, self.layout.abi, "nr_cpus", self.header.nr_cpus.into(), rule));
        }
        for region in [Region::Vmcoreinfo, Region::Notes, Region::Eraseinfo] {
            if let Err((field, value)) = region.check(self.sub, len) {
                problems.push(self.bad_sub(field, value, format!("the file has {len} bytes"), REST_IS_USABLE));
            }
        }
        problems
    }

    fn bad_sub(&self, field: &'static str, value: u64, rule: String, next: &'static str) -> FormatError {
        let offset = self.page.bytes() as u64 + SubHeader::offset_of(field, self.layout.abi);
        FormatError::BadField { file: self.file.to_owned(), field, offset, value: value.to_string(), rule, next }
    }
}

/// Bitmaps beyond the end of a file that was cut short: those of 8 PiB of memory.
const MAX_PADDING: u64 = 1 << 39;

fn bad_header(file: &str, abi: Abi, field: &'static str, value: i64, rule: String) -> FormatError {
    let offset = Header::offset_of(field, abi);
    FormatError::BadField { file: file.to_owned(), field, offset, value: value.to_string(), rule, next: FETCH_AGAIN }
}

fn cut_short(bytes: &dyn Bytes, what: &'static str, offset: u64, end: u64) -> FormatError {
    FormatError::CutShort { file: bytes.name().to_owned(), what, offset, end, len: bytes.len() }
}

/// The page range of a part of a split set, by the widest fields the version has.
fn part_of(header: &Header, sub: &SubHeader) -> Option<(u64, u64)> {
    match (sub.split, header.header_version) {
        (0, _) => None,
        (_, 6..) => Some((sub.start_pfn_64, sub.end_pfn_64)),
        _ => Some((sub.start_pfn, sub.end_pfn)),
    }
}

impl PhysicalMemory for KdumpFile {
    fn page_size(&self) -> PageSize {
        self.page
    }

    fn ram(&self) -> &PageSet {
        &self.ram
    }

    fn stored(&self) -> &PageSet {
        &self.stored
    }

    fn max_pfn(&self) -> Pfn {
        self.max_pfn
    }

    fn view(&self) -> Box<dyn MemoryView + '_> {
        Box::new(super::read::KdumpView::new(self))
    }
}

impl KdumpFile {
    /// The byte of the 2nd bitmap that a page's bit is in, by its offset in the file, and the bit.
    pub(super) const fn bit_of(&self, pfn: Pfn) -> (u64, u8) {
        let bit = pfn.0.saturating_sub(self.maps.base);
        (self.maps.second.saturating_add(bit / 8), 1 << (bit % 8))
    }

    /// File offset of the descriptor of the stored page number `rank`; for the number of stored pages, where the data begin at the
    /// earliest.
    #[must_use]
    pub const fn descriptor_at(&self, rank: u64) -> u64 {
        self.descriptors.saturating_add(rank.saturating_mul(PageDesc::SIZE as u64))
    }
}
