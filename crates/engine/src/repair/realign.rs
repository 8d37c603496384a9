//! A 2nd bitmap that does not fit the descriptors of the file or its 1st bitmap, mended by what the pages say of themselves.

use crate::error::EngineError;
use crate::verify::{misfit, outside_ram};
use coresift_format::kdump::KdumpFile;
use coresift_format::{Input, Machine, Pfn, PhysicalMemory};
use coresift_kernel::own_place::{DirectMapStart, own_address};

/// Pages that are asked where the direct map begins.
const ASKED: u64 = 4096;

/// `input` with a 2nd bitmap that fits its descriptors, and how it did not; as it is where it fits, or nothing tells what is wrong.
pub(super) fn realign(input: Input) -> Result<(Input, Option<String>), EngineError> {
    let Some(file) = input.as_kdump().filter(|_| input.machine() == Machine::X86_64) else { return Ok((input, None)) };
    let outside = outside_ram(file.bitmap_faults()?);
    let Some(what) = misfit(file.look_at_table().fit).or(outside) else { return Ok((input, None)) };
    let Some(start) = direct_map_start(file) else { return Ok((input, None)) };
    let page = file.page_size();
    let tells = |bytes: &[u8]| Some(Pfn(own_address(bytes)?.checked_sub(start)? >> page.shift()));
    let Some(realigned) = file.realign(tells)? else { return Ok((input, None)) };
    Ok((input.realigned(realigned)?, Some(what)))
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
