//! Headers and notes as they should be, as far as the rest of the file tells.

use super::Job;
use crate::verify::kernel_texts;
use coresift_format::kdump::{Header, KdumpFile, Region, SubHeader};
use coresift_format::{Field, Input, Notes};

/// What was changed where [`own_vmcoreinfo`] was put in.
pub(super) const OWN_VMCOREINFO: &str = "VMCOREINFO taken from the kernel's memory";

/// Takes out of the headers what cannot be true, and puts in what the rest of the file tells.
pub(super) fn headers(
    job: &Job<'_>,
    file: &KdumpFile,
    header: &mut Header,
    sub: &mut SubHeader,
    changed: &mut Vec<String>,
) {
    let input = job.input;
    for region in [Region::Vmcoreinfo, Region::Notes, Region::Eraseinfo] {
        if !file.has_region(region) {
            region.set(sub, 0, 0);
            changed.push(format!("{} that lay outside the file taken out of the sub header", region.name()));
        }
    }
    // Of two numbers of pages, no page is behind the end of the larger one, if the bitmaps have room for it.
    let (one, other) = (u64::from(header.max_mapnr), sub.max_mapnr_64);
    if header.header_version >= 6 && one < u64::from(u32::MAX) && one != other {
        let room = u64::from(header.bitmap_blocks) * u64::from(header.block_size) * 4;
        let pages = [one, other].into_iter().filter(|pages| *pages <= room).max().unwrap_or(room);
        (header.max_mapnr, sub.max_mapnr_64) = (u32::try_from(pages).unwrap_or(u32::MAX), pages);
        changed.push(format!("max_mapnr and max_mapnr_64, which were {one} and {other}, set to {pages}"));
    }
    let ranges = [&mut sub.start_pfn, &mut sub.end_pfn, &mut sub.start_pfn_64, &mut sub.end_pfn_64];
    if sub.split == 0 && ranges.iter().any(|pfn| **pfn != 0) {
        ranges.into_iter().for_each(|pfn| *pfn = 0);
        changed.push("the range of a part, which the file is none of, set to zero".to_owned());
    }
    let notes = Notes::new(input.notes(), input.byte_order());
    let place = notes.vmcoreinfo().map(|text| (sub.offset_note.saturating_add(text.start as u64), text.len() as u64));
    match place {
        Some((at, len)) if (sub.offset_vmcoreinfo, sub.size_vmcoreinfo) != (at, len) => {
            Region::Vmcoreinfo.set(sub, at, len);
            changed.push("the place of VMCOREINFO taken from the notes".to_owned());
        }
        // Where only the head of its note is damaged, the text is still of use.
        None if sub.size_vmcoreinfo > 0 && input.vmcoreinfo().is_none_or(|text| !text.starts_with(b"OSRELEASE=")) => {
            Region::Vmcoreinfo.set(sub, 0, 0);
            changed.push("VMCOREINFO that is lost taken out of the sub header".to_owned());
        }
        _ => {}
    }
    let cpus = notes.cpus();
    if cpus > 0 && u32::try_from(header.nr_cpus) != Ok(cpus) {
        header.nr_cpus = i32::try_from(cpus).unwrap_or(i32::MAX);
        changed.push(format!("nr_cpus set to {cpus}, the number of register notes"));
    }
    let unnamed = job.found.table.map_or(0, |table| table.codecs & !header.status);
    if unnamed != 0 {
        header.status |= unnamed;
        changed.push("codecs that pages are compressed with named in status".to_owned());
    }
    of_kernel(job, header, sub, changed);
}

/// Puts in what the kernel's memory tells of itself, unless the writer did not know the kernel.
fn of_kernel(job: &Job<'_>, header: &mut Header, sub: &mut SubHeader, changed: &mut Vec<String>) {
    let Some(kernel) = job.kernel.filter(|_| crate::verify::knew_kernel(header)) else { return };
    if header.utsname.as_flattened() != &kernel.utsname[..] {
        for (to, from) in header.utsname.iter_mut().zip(kernel.utsname.as_chunks::<65>().0) {
            *to = *from;
        }
        changed.push("utsname taken from the kernel's memory".to_owned());
    }
    if header.machine().starts_with(b"x86_64") && sub.phys_base != kernel.phys_base {
        sub.phys_base = kernel.phys_base;
        changed.push("phys_base taken from the page tables".to_owned());
    }
}

/// VMCOREINFO as the kernel's memory has it, and where in the notes it belongs; `None` where it is there, or its length is another, as
/// where a vmlinux told more.
pub(super) fn own_vmcoreinfo(job: &Job<'_>) -> Option<(usize, Vec<u8>)> {
    let notes = job.input.notes();
    let place = Notes::new(notes, job.input.byte_order()).vmcoreinfo()?;
    let text = notes.get(place.clone())?;
    let fits = |own: &Vec<u8>| text.get(own.len()..).is_some_and(|padding| padding.iter().all(|byte| *byte == 0));
    let mut own = kernel_texts(job.input, job.kernel?, job.effort).into_iter().filter(fits);
    // Where several may be it, nothing tells which.
    let (Some(own), None) = (own.next(), own.next()) else { return None };
    (!text.starts_with(&own)).then_some((place.start, own))
}

/// The notes of `input`; one that was cut is made as short as what is left of it.
pub(super) fn whole_notes(input: &Input) -> Vec<u8> {
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
