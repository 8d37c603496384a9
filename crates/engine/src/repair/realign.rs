//! Pages that are taken for others, put right by what they say of themselves: by a 2nd bitmap that does not fit the descriptors or the
//! 1st bitmap, or by a segment of an ELF core at an address of another.

use crate::error::EngineError;
use crate::verify::{misfit, misplaced, outside_ram};
use coresift_format::kdump::KdumpFile;
use coresift_format::{Input, Machine, Pfn, PhysicalMemory};
use coresift_kernel::own_place::{DirectMapStart, own_address};

/// Pages that are asked where the direct map begins.
const ASKED: u64 = 4096;

/// What was wrong, and what is done about it.
pub(super) type PutRight = Option<(String, &'static str)>;

/// `input` with its pages where they were, as far as they tell.
pub(super) fn realign(input: Input) -> Result<(Input, PutRight), EngineError> {
    if input.as_elf().is_some() { segment(input) } else { bitmap(input) }
}

/// `input` with the one segment that is not where the kernel maps it as its pages have it.
fn segment(input: Input) -> Result<(Input, PutRight), EngineError> {
    let Ok(kernel) = crate::verify::kernel(&input, None)? else { return Ok((input, None)) };
    let Some(Err(wrong)) = misplaced(&input, &kernel) else { return Ok((input, None)) };
    let Some(right) = wrong.right else { return Ok((input, None)) };
    let what = wrong.to_string();
    Ok((input.with_segment(&wrong.segment, right)?, Some((what, "a segment put where its pages say they were"))))
}

/// `input` with a 2nd bitmap that fits its descriptors; as it is where it fits, or nothing tells what is wrong.
fn bitmap(input: Input) -> Result<(Input, PutRight), EngineError> {
    let Some(file) = input.as_kdump().filter(|_| input.machine() == Machine::X86_64) else { return Ok((input, None)) };
    let outside = outside_ram(file.bitmap_faults()?);
    let Some(what) = misfit(file.look_at_table().fit).or(outside) else { return Ok((input, None)) };
    let Some(start) = direct_map_start(file) else { return Ok((input, None)) };
    let page = file.page_size();
    let tells = |bytes: &[u8]| Some(Pfn(own_address(bytes)?.checked_sub(start)? >> page.shift()));
    let Some(realigned) = file.realign(tells)? else { return Ok((input, None)) };
    let done = "bits of the 2nd bitmap set or cleared, as the pages tell where they were";
    Ok((input.realigned(realigned)?, Some((what, done))))
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
