//! Headers as they should be, as far as the rest of the file tells.

use crate::verify::known_status;
use coresift_format::kdump::{Header, KdumpFile, Region, SubHeader, TableLook};
use coresift_format::{Bits, Input, Notes};
use coresift_kernel::Kernel;

/// What tells how headers should be.
pub(super) struct Witnesses<'a> {
    pub input: &'a Input,
    /// The notes as they should be.
    pub notes: &'a [u8],
    pub kernel: Option<&'a Kernel>,
    pub table: Option<TableLook>,
}

/// Takes out of the headers what cannot be true, and puts in what the rest of the file tells.
pub(super) fn headers(
    by: &Witnesses<'_>,
    file: &KdumpFile,
    header: &mut Header,
    sub: &mut SubHeader,
    changed: &mut Vec<String>,
) {
    let input = by.input;
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
    let narrow = |pfn: u64| if file.layout().abi.bits() == Bits::B64 { pfn } else { pfn & 0xffff_ffff };
    let range = (narrow(sub.start_pfn_64), narrow(sub.end_pfn_64));
    if sub.split == 1 && header.header_version >= 6 && (sub.start_pfn, sub.end_pfn) != range {
        (sub.start_pfn, sub.end_pfn) = range;
        changed.push("start_pfn and end_pfn taken from start_pfn_64 and end_pfn_64".to_owned());
    }
    if header.status & !known_status() != 0 {
        header.status &= known_status();
        changed.push("bits of status that nothing is known to mean cleared".to_owned());
    }
    let notes = Notes::new(by.notes, input.byte_order());
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
    let unnamed = by.table.map_or(0, |table| table.codecs & !header.status);
    if unnamed != 0 {
        header.status |= unnamed;
        changed.push("codecs that pages are compressed with named in status".to_owned());
    }
    of_kernel(by.kernel, header, sub, changed);
}

/// Puts in what the kernel's memory tells of itself, unless the writer did not know the kernel.
fn of_kernel(kernel: Option<&Kernel>, header: &mut Header, sub: &mut SubHeader, changed: &mut Vec<String>) {
    let Some(kernel) = kernel.filter(|_| crate::verify::knew_kernel(header)) else { return };
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
