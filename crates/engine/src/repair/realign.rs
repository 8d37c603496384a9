//! Pages that are taken for others, put right by what they say of themselves: by a 2nd bitmap that does not fit the descriptors or the
//! 1st bitmap, or by a segment of an ELF core at an address of another.

use crate::error::EngineError;
use crate::verify::{misfit, misplaced, outside_ram};
use coresift_format::kdump::KdumpFile;
use coresift_format::{Input, Machine, Pfn, PhysicalMemory, Segment};
use coresift_kernel::own_place::{DirectMapStart, own_address};

/// Pages that are asked where the direct map begins.
const ASKED: u64 = 4096;

/// What was wrong, and what is done about it.
pub(super) type PutRight = Vec<(String, String)>;

/// `input` with its pages where they were, as far as they tell. Of those that may be elsewhere it has none.
pub(super) fn realign(input: Input) -> Result<(Input, PutRight), EngineError> {
    if input.as_elf().is_some() { segments(input) } else { bitmap(input) }
}

/// `input` with the segments that are not where they are mapped put right, and those of which nothing tells where they belong left out.
fn segments(input: Input) -> Result<(Input, PutRight), EngineError> {
    let (mut all, mut put, mut aside) = (Vec::new(), Vec::new(), Vec::new());
    for wrong in misplaced(&input).unwrap_or_default() {
        let done = match wrong.right {
            Some(right) => {
                put.push((wrong.segment, right));
                "a segment put where its pages say they were".to_owned()
            }
            None => {
                let Segment { paddr, file_size, .. } = wrong.segment;
                aside.push((paddr, paddr.saturating_add(file_size)));
                format!("{file_size} bytes at p_paddr {paddr:#x} left out, which may be elsewhere")
            }
        };
        all.push((wrong.to_string(), done));
    }
    if all.is_empty() {
        return Ok((input, all));
    }
    let mut input = input.with_segments(&put)?;
    input.set_aside(aside);
    Ok((input, all))
}

/// `input` with a 2nd bitmap that fits its descriptors; as it is where it fits, or nothing tells what is wrong.
fn bitmap(input: Input) -> Result<(Input, PutRight), EngineError> {
    let Some(file) = input.as_kdump().filter(|_| input.machine() == Machine::X86_64) else {
        return Ok((input, PutRight::new()));
    };
    let outside = outside_ram(file.bitmap_faults()?);
    let Some(what) = misfit(file.look_at_table().fit).or(outside) else { return Ok((input, PutRight::new())) };
    let Some(start) = direct_map_start(file) else { return Ok((input, PutRight::new())) };
    let page = file.page_size();
    let tells = |bytes: &[u8]| Some(Pfn(own_address(bytes)?.checked_sub(start)? >> page.shift()));
    let Some(realigned) = file.realign(tells)? else { return Ok((input, PutRight::new())) };
    let done = "bits of the 2nd bitmap set or cleared, as the pages tell where they were";
    Ok((input.realigned(realigned)?, vec![(what, done.to_owned())]))
}

/// Where the direct map begins, by the first pages that tell.
fn direct_map_start(file: &KdumpFile) -> Option<u64> {
    let (page, mut view) = (file.page_size(), file.view());
    let (mut start, mut bytes) = (DirectMapStart::default(), vec![0; page.bytes()]);
    for (from, to) in file.stored().all_runs() {
        for pfn in (from.0..to.0).map(Pfn) {
            if view.read(pfn.addr(page), &mut bytes).is_ok()
                && let Some(address) = own_address(&bytes)
            {
                start.hear(address, pfn, page);
                if start.heard >= ASKED {
                    return start.start();
                }
            }
        }
    }
    start.start()
}
