//! Memory that the program headers of an ELF core describe and have no data for (`p_filesz` below `p_memsz`): zeros, as the gABI says of
//! what a file does not bring, unless the file shows that it is something else.

use crate::bytes::Bytes;
use crate::elf::{ElfHeaders, Segment};
use crate::elf_origin::ElfOrigin;
use crate::error::FETCH_AGAIN;
use crate::{FormatError, PageSize};

/// Bytes of zeros that are believed for each byte of the file. A machine of 16 TiB that makedumpfile filtered into 1 GB claims 16,384; a
/// damaged `p_memsz` of a small file would make terabytes of page descriptors.
const ZEROS_A_BYTE: u64 = 1 << 20;

/// The physical addresses (start and end) that the headers of a core have no data for.
#[derive(Debug, Default)]
pub struct Holes {
    /// Zeros, as far as no other header has data there.
    pub zeros: Vec<(u64, u64)>,
    /// Memory whose data are in the file where no header has them any more: a damaged `p_filesz`.
    pub damaged: Vec<(u64, u64)>,
    /// What is wrong.
    pub problems: Vec<FormatError>,
}

impl Holes {
    /// The holes of `headers`, which `bytes` begins with; of a core of this program with what its `origin` tells. Takes time for the
    /// headers, whatever they span.
    pub fn find(bytes: &dyn Bytes, headers: &ElfHeaders, page: PageSize, origin: Option<&ElfOrigin>) -> Self {
        let data = merged(headers.segments.iter().filter(|s| s.file_size > 0).map(in_file).collect());
        let mut starts: Vec<u64> = headers.segments.iter().map(|s| s.file_offset).collect();
        starts.sort_unstable();
        let mut holes = Self::default();
        let (mut zeros, mut first) = (Vec::new(), None);
        let own = origin.map(|origin| Own::new(headers, origin));
        let mut beyond = None;
        let segments = headers.segments.iter().filter(|s| s.has_paddr(headers.bits) && s.file_size < s.mem_size);
        for segment in segments {
            let (start, end) =
                (segment.paddr.saturating_add(segment.file_size), segment.paddr.saturating_add(segment.mem_size));
            let at = in_file(segment).1;
            // What begins where another header says that its data begin is that one's.
            let others = segment.file_size > 0 && starts.binary_search(&at).is_ok();
            let orphans = if others { 0 } else { unclaimed(&data, at, bytes.len()) };
            let zeros_from = if orphans < page.bytes() as u64 {
                start
            } else {
                first.get_or_insert(segment);
                let behind = start.saturating_add(orphans).min(end);
                holes.damaged.push((start, behind));
                behind
            };
            if zeros_from >= end {
                continue;
            }
            if own.as_ref().is_some_and(|own| !own.can_have(segment)) {
                beyond.get_or_insert(segment);
                continue;
            }
            zeros.push((zeros_from, end));
        }
        holes.problems.extend(beyond.map(|segment| too_long(bytes, segment)));
        holes.problems.extend(first.map(|segment| damaged(bytes, segment, &holes.damaged)));
        holes.believe(bytes, zeros);
        holes
    }

    /// Takes those of `zeros` that the file is long enough for, the shortest first: of one that is damaged, the others stay.
    fn believe(&mut self, bytes: &dyn Bytes, mut zeros: Vec<(u64, u64)>) {
        let mut room = bytes.backed().saturating_mul(ZEROS_A_BYTE);
        zeros.sort_unstable_by_key(|(start, end)| (end - start, *start));
        let believed = zeros.iter().take_while(|(start, end)| {
            let left = room.checked_sub(end - start);
            room = left.unwrap_or(0);
            left.is_some()
        });
        let others = zeros.split_off(believed.count());
        self.zeros = zeros;
        let longest = others.last().map(|(start, end)| end - start);
        self.problems.extend(longest.map(|longest| FormatError::BadField {
            file: bytes.name().to_owned(),
            field: "p_memsz of PT_LOAD",
            offset: 0,
            value: format!("{longest} bytes longer than p_filesz"),
            rule: format!(
                "a file of {} bytes does not stand for so many zeros; they are not taken for memory",
                bytes.len()
            ),
            next: FETCH_AGAIN,
        }));
    }
}

/// What a core of this program has zeros in: headers of their own, within memory, where no header has data.
struct Own {
    /// Physical addresses with data, merged.
    data: Vec<(u64, u64)>,
    /// Memory, merged; `None` where the core does not tell all of it.
    ram: Option<Vec<(u64, u64)>>,
}

impl Own {
    fn new(headers: &ElfHeaders, origin: &ElfOrigin) -> Self {
        let segments = headers.segments.iter().filter(|s| s.has_paddr(headers.bits) && s.file_size > 0);
        let data = merged(segments.map(|s| (s.paddr, s.paddr.saturating_add(s.file_size))).collect());
        let ram = (!origin.partial).then(|| merged(origin.ram.clone()));
        Self { data, ram }
    }

    fn can_have(&self, zeros: &Segment) -> bool {
        let (start, end) = (zeros.paddr, zeros.paddr.saturating_add(zeros.mem_size));
        let at = |ranges: &[(u64, u64)]| ranges.get(ranges.partition_point(|range| range.1 <= start)).copied();
        let in_ram = self.ram.as_ref().is_none_or(|ram| at(ram).is_some_and(|(from, to)| from <= start && end <= to));
        zeros.file_size == 0 && in_ram && at(&self.data).is_none_or(|(from, _)| from >= end)
    }
}

/// The bytes of the file that a header names.
fn in_file(segment: &Segment) -> (u64, u64) {
    (segment.file_offset, segment.file_offset.saturating_add(segment.file_size))
}

/// The same bytes as ascending ranges that do not touch.
fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touch = next.0 <= last.1;
        last.1 = if touch { last.1.max(next.1) } else { last.1 };
        touch
    });
    ranges
}

/// The bytes from `at` on that are in a file of `len` bytes, and in none of the merged ranges `data`.
fn unclaimed(data: &[(u64, u64)], at: u64, len: u64) -> u64 {
    let behind = data.partition_point(|(start, _)| *start <= at);
    let before = behind.checked_sub(1).and_then(|last| data.get(last));
    // A header without any data need not say where they are: makedumpfile has 0 there.
    if at == 0 || before.is_some_and(|(_, end)| *end > at) {
        return 0;
    }
    data.get(behind).map_or(len, |next| next.0.min(len)).saturating_sub(at)
}

fn too_long(bytes: &dyn Bytes, segment: &Segment) -> FormatError {
    FormatError::BadField {
        file: bytes.name().to_owned(),
        field: "p_memsz of PT_LOAD",
        offset: segment.file_offset,
        value: segment.mem_size.to_string(),
        rule: format!(
            "the segment at physical address {:#x} reaches over data of others or beyond memory (note CORESIFT), or has both data and zeros; \
             what it has no data for is not taken for memory",
            segment.paddr
        ),
        next: FETCH_AGAIN,
    }
}

fn damaged(bytes: &dyn Bytes, segment: &Segment, all: &[(u64, u64)]) -> FormatError {
    let lost: u64 = all.iter().fold(0, |sum, (start, end)| sum.saturating_add(end - start));
    FormatError::BadField {
        file: bytes.name().to_owned(),
        field: "p_filesz of PT_LOAD",
        offset: segment.file_offset,
        value: segment.file_size.to_string(),
        rule: format!(
            "the bytes behind a segment's data belong to another or are the end of the file; {lost} bytes of memory are lost"
        ),
        next: FETCH_AGAIN,
    }
}
