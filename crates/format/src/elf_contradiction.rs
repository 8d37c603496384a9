//! Program headers that contradict each other: an ELF core has no checksum, and one flipped bit gives pages the bytes of others.
//!
//! Writers put the data of segments one behind the other. Of two segments that claim the same bytes of the file for different addresses
//! one is wrong: not the one that begins where another ends and ends where another begins. Not seen is a first segment that was moved
//! onto the notes, or a last one that was moved beyond the end of the file, as a cut leaves it.

use crate::FormatError;
use crate::elf::{ElfHeaders, Segment};
use crate::error::FETCH_AGAIN;
use std::collections::{HashMap, HashSet};

/// Physical addresses (start and end, ascending) whose data may be those of others, in a file of `len` bytes.
pub fn contested(headers: &ElfHeaders, len: u64) -> Vec<(u64, u64)> {
    let mut data: Vec<Segment> =
        headers.segments.iter().filter(|s| s.file_size > 0 && s.has_paddr(headers.bits)).copied().collect();
    data.sort_unstable_by_key(|segment| (segment.file_offset, segment.file_size));
    let starts: HashSet<u64> = data.iter().map(|segment| segment.file_offset).chain([len]).collect();
    let ends: HashSet<u64> = data.iter().map(end).collect();
    let fits = |one: &Segment| u8::from(ends.contains(&one.file_offset)) + u8::from(starts.contains(&end(one)));
    let mut claimed: HashMap<(u64, u64), usize> = HashMap::new();
    data.iter().for_each(|one| *claimed.entry((one.file_offset, one.file_size)).or_default() += 1);
    let mut lost = Vec::new();
    // The one that reaches furthest.
    let mut far: Option<Segment> = None;
    for segment in data {
        // No data lie on the headers.
        if segment.file_offset < headers.table.end && headers.table.start < end(&segment) {
            lost.push((segment.paddr, segment.paddr.saturating_add(segment.file_size)));
        }
        if let Some(before) = far.filter(|before| segment.file_offset < end(before))
            // Two views of the same memory may share its bytes.
            && shift(&before) != shift(&segment)
            // No flipped bit makes three of a kind: a writer that shares data on purpose.
            && claimed.get(&(segment.file_offset, segment.file_size)).is_none_or(|count| *count < 3)
        {
            for (one, other) in [(before, segment), (segment, before)] {
                let right = fits(&one) == 2 && fits(&other) < 2 || end(&one) <= len && end(&other) > len;
                if !right {
                    lost.push((one.paddr, one.paddr.saturating_add(one.file_size)));
                }
            }
        }
        if far.is_none_or(|before| end(&segment) > end(&before)) {
            far = Some(segment);
        }
    }
    lost.retain(|(start, end)| start < end);
    lost.sort_unstable();
    lost.dedup_by(|next, last| {
        let joined = next.0 <= last.1;
        if joined {
            last.1 = last.1.max(next.1);
        }
        joined
    });
    lost
}

/// Where the data of `segment` end in the file.
const fn end(segment: &Segment) -> u64 {
    segment.file_offset.saturating_add(segment.file_size)
}

/// What has to be added to an offset of its data for the physical address.
const fn shift(segment: &Segment) -> u64 {
    segment.paddr.wrapping_sub(segment.file_offset)
}

/// What is wrong with the headers of `file` where they contradict each other; `contested` is what [`contested`] gave.
pub fn problems(file: &str, headers: &ElfHeaders, contested: &[(u64, u64)]) -> Vec<FormatError> {
    let problem = |field, offset, value: u64, rule: String| FormatError::BadField {
        file: file.to_owned(),
        field,
        offset,
        value: format!("{value:#x}"),
        rule,
        next: FETCH_AGAIN,
    };
    let overlapping = contested.first().map(|(start, _)| {
        let bytes = contested.iter().fold(0u64, |sum, (start, end)| sum.saturating_add(end - start));
        let rule = format!("other segments claim the same bytes of the file; {bytes} bytes of memory are lost by that");
        problem("PT_LOAD (p_offset, p_filesz) at p_paddr", headers.table.start, *start, rule)
    });
    let smaller = headers.segments.iter().find(|segment| segment.mem_size < segment.file_size).map(|segment| {
        let rule = format!(
            "the PT_LOAD at p_paddr {1:#x} has a p_filesz of {0:#x}, which is never more",
            segment.file_size, segment.paddr
        );
        problem("p_memsz", headers.table.start, segment.mem_size, rule)
    });
    overlapping.into_iter().chain(smaller).collect()
}
