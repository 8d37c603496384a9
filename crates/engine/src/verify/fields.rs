//! Fields of a kdump-compressed file's headers that have to agree with each other and with the rest of the file.

use coresift_format::codec::Codec;
use coresift_format::kdump::{
    Header, KdumpFile, MAX_VERSION, Region, STATUS_EXCLUDED_VMEMMAP, STATUS_INCOMPLETE, SubHeader, TableLook,
};
use coresift_format::{FormatError, Input, Notes, PhysicalMemory};
use coresift_kernel::printable;

/// The highest dump level there is.
const MAX_LEVEL: i32 = 31;

/// What bits of `status` are known to mean.
pub fn known_status() -> u32 {
    Codec::ALL.iter().fold(STATUS_INCOMPLETE | STATUS_EXCLUDED_VMEMMAP, |all, codec| all | codec.flag())
}

/// What does not agree, a sentence each. Only what every writer does alike is held against a file.
pub fn disagreements(input: &Input, file: &KdumpFile, table: Option<TableLook>) -> Vec<String> {
    let mut wrong = Vec::new();
    let (header, sub) = (file.header(), file.sub_header());
    let version = header.header_version;
    let page = file.page_size();
    let block = page.bytes() as u64;
    if version > MAX_VERSION {
        wrong.push(format!("header_version is {version}, and versions up to {MAX_VERSION} are known"));
    }
    // QEMU leaves all but the machine empty.
    let sysname =
        header.utsname.first().map_or(&[][..], |member| member.split(|byte| *byte == 0).next().unwrap_or_default());
    if !(sysname.is_empty() || sysname == b"Linux") {
        wrong.push(format!(
            "utsname begins with `{}`, and not with Linux",
            printable(&String::from_utf8_lossy(sysname))
        ));
    }
    if header.machine().is_empty() {
        wrong.push("utsname does not tell the machine".to_owned());
    }
    let mut pages = u64::from(header.max_mapnr);
    if version >= 6 {
        pages = sub.max_mapnr_64;
        if pages.min(u32::MAX.into()) != u64::from(header.max_mapnr) {
            wrong.push(format!("max_mapnr is {}, and max_mapnr_64 {pages}", header.max_mapnr));
        }
    }
    // Old files of full dumps have one bitmap for both.
    let (one, blocks) = (page.pages_for(pages.div_ceil(8)), u64::from(header.bitmap_blocks));
    if blocks != 2 * one && blocks != one {
        wrong.push(format!("bitmap_blocks is {blocks}, and two bitmaps of {pages} pages take {}", 2 * one));
    }
    let sub_len = SubHeader::size(version, file.layout().abi) as u64;
    let behind = match version {
        4.. => (sub.offset_note, sub.size_note),
        3 => (sub.offset_vmcoreinfo, sub.size_vmcoreinfo),
        _ => (0, 0),
    };
    if behind.1 > 0 && behind.0 != block + sub_len {
        wrong.push(format!(
            "the notes begin at {}, and the sub header of version {version} ends at {}",
            behind.0,
            block + sub_len
        ));
    }
    let needed = page.pages_for(sub_len.saturating_add(behind.1));
    if u64::from(header.sub_hdr_size) != needed {
        wrong.push(format!("sub_hdr_size is {}, and sub header and notes take {needed} blocks", header.sub_hdr_size));
    }
    let ranges = [(sub.start_pfn, sub.end_pfn), (sub.start_pfn_64, sub.end_pfn_64)];
    let narrow =
        |wide: u64| if file.layout().abi.bits() == coresift_format::Bits::B64 { wide } else { wide & 0xffff_ffff };
    match (sub.split, ranges) {
        (0, ranges) if ranges != [(0, 0); 2] => {
            wrong.push(format!("split is 0, and the range of a part {:#x} to {:#x}", ranges[0].0, ranges[0].1));
        }
        (0, _) => {}
        (1, [_, (start, end)]) if version >= 6 && start > end => {
            wrong.push(format!("the range of the part is {start:#x} to {end:#x}"));
        }
        (1, [short, (start, end)]) if version >= 6 && short != (narrow(start), narrow(end)) => {
            wrong.push(format!(
                "start_pfn and end_pfn are {:#x} and {:#x}, and start_pfn_64 and end_pfn_64 {start:#x} and {end:#x}",
                short.0, short.1
            ));
        }
        (1, _) => {}
        (split, _) => wrong.push(format!("split is {split}, and 0 or 1 is all it can be")),
    }
    if !(0..=MAX_LEVEL).contains(&sub.dump_level) {
        wrong.push(format!("dump_level is {}, and levels are 0 to {MAX_LEVEL}", sub.dump_level));
    }
    let unknown = header.status & !known_status();
    if unknown != 0 {
        wrong.push(format!("status has {unknown:#x}, which nothing is known to mean"));
    }
    // crash prepares only the codecs that are named here. A stream has them last, and they may not have arrived.
    let status_at = Header::offset_of("status", file.layout().abi);
    let arrived = !file.bytes().lacks(status_at..status_at + 4);
    let unnamed = table.filter(|_| arrived).map_or(0, |table| table.codecs & !header.status);
    if unnamed != 0 {
        let names: Vec<&str> = Codec::ALL.iter().filter(|c| c.flag() & unnamed != 0).map(|c| c.name()).collect();
        wrong.push(format!("status does not name {}, which pages are compressed with", names.join(" and ")));
    }
    if !(0..1_000_000).contains(&header.tv_usec) || header.tv_sec < 0 {
        wrong.push(format!("the time is {} s and {} us", header.tv_sec, header.tv_usec));
    }
    // Of notes that were cut, it is no wonder.
    let cut = input.problems().iter().any(|problem| matches!(problem, FormatError::CutShort { .. }));
    if version >= 4 && !cut {
        let notes = Notes::new(input.notes(), input.byte_order());
        let cpus = notes.cpus();
        if header.nr_cpus >= 0 && u32::try_from(header.nr_cpus) != Ok(cpus) {
            wrong.push(format!("nr_cpus is {}, and the notes have registers of {cpus} cpus", header.nr_cpus));
        }
        let place =
            notes.vmcoreinfo().map(|text| (sub.offset_note.saturating_add(text.start as u64), text.len() as u64));
        let named = (sub.offset_vmcoreinfo, sub.size_vmcoreinfo);
        if sub.size_vmcoreinfo > 0 && place != Some(named) && file.has_region(Region::Vmcoreinfo) {
            let found = place.map_or("nowhere in them".to_owned(), |(at, len)| format!("{len} bytes at {at}"));
            let named = format!("{} bytes at {}", named.1, named.0);
            wrong.push(format!("VMCOREINFO is {named} by the sub header, and by the notes {found}"));
        }
    }
    wrong
}
