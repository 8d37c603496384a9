//! How crash gets from one stack frame to the next: ORC entries of the code on the stacks (arch/x86/kernel/unwind_orc.c), and a look at
//! the code itself.

use super::walker::{Walker, Work};
use crate::symbols::Wanted;
use crate::virt::VirtAddr;

/// Code that one entry of `orc_lookup` stands for (`LOOKUP_BLOCK_SIZE`).
const BLOCK: u64 = 256;
/// `struct orc_entry`, packed, where BTF does not have it.
const ENTRY: u64 = 6;
/// Code before a place in a function that may be the function's: where it begins is not known, and the largest functions there are.
const UNKNOWN_START: u64 = 4 << 10;
const MAX_FUNCTION: u64 = 64 << 10;
/// Bytes of an instruction of x86-64: over a function 4 to 5, at the most 15.
const INSTRUCTION: u64 = 6;
const PAGE: u64 = 4096;
/// Blocks looked up: as much code as the largest stacks of any machine run through.
const MAX_BLOCKS: usize = 1 << 16;

/// Stacks that are looked through for code.
pub(super) const MAX_STACKS: usize = 1 << 10;

pub(super) const WANTED: Wanted = Wanted {
    symbols: &["_stext", "_etext", "orc_lookup", "lookup_num_blocks", "__start_orc_unwind_ip", "__start_orc_unwind"],
    sizes: &["orc_entry"],
    ..Wanted::NONE
};

/// Notes the addresses of kernel code among the `len` bytes of stack at `sp`. Most stacks of many are of tasks that wait in the same places.
pub(super) fn note_code(w: &mut Walker<'_>, sp: VirtAddr, len: u64) {
    let (Ok(start), Ok(end)) = (w.symbol("_stext"), w.symbol("_etext")) else { return };
    let Some(left) = w.stacks.checked_sub(1) else { return };
    w.stacks = left;
    let mut bytes = vec![0; len as usize];
    if w.read("a kernel stack", sp, &mut bytes).is_err() {
        // Told when the stack was asked for.
        return;
    }
    for word in bytes.as_chunks::<8>().0 {
        let code = VirtAddr(u64::from_le_bytes(*word));
        if (start..end).contains(&code) && w.code.len() < MAX_BLOCKS {
            let block = (code.0 - start.0) / BLOCK;
            if !w.looked_up.contains(&block) {
                w.code.insert(block);
            }
        }
    }
}

/// The entries for all code noted.
pub(super) fn of_stacks(w: &mut Walker<'_>) -> Work {
    let mut blocks: Vec<u64> = w.code.drain().collect();
    blocks.sort_unstable();
    w.looked_up.extend(&blocks);
    let (lookup, ips, entries) =
        (w.symbol("orc_lookup")?, w.symbol("__start_orc_unwind_ip")?, w.symbol("__start_orc_unwind")?);
    let at = w.symbol("lookup_num_blocks")?;
    let count = u64::from(w.number32("lookup_num_blocks", at)?);
    let text = w.symbol("_stext")?;
    let size = w.size("orc_entry").unwrap_or(ENTRY);
    for block in blocks {
        let code = text.plus(block * BLOCK);
        w.need("code on a stack", code, BLOCK);
        let start = w.function_start(code).unwrap_or(VirtAddr(code.0.wrapping_sub(UNKNOWN_START)));
        let start = VirtAddr(start.0.max(text.0).max(code.0.saturating_sub(MAX_FUNCTION)));
        // Without ORC crash has gdb disassemble from where the function begins, as many instructions as there are bytes to the place.
        let disassembled = code.0.saturating_sub(start.0).saturating_add(BLOCK) * INSTRUCTION;
        (0..=disassembled / PAGE).for_each(|page| w.may_need(start.plus(page * PAGE)));
        w.may_need(start.plus(disassembled));
        if block + 1 >= count {
            continue;
        }
        let first = u64::from(w.number32("orc_lookup", lookup.plus(block * 4))?);
        let last = u64::from(w.number32("orc_lookup", lookup.plus(block * 4 + 4))?);
        let len = last.saturating_sub(first).min(BLOCK) + 1;
        w.need("orc_unwind_ip", ips.plus(first * 4), len * 4);
        w.need("orc_unwind", entries.plus(first * size), len * size);
    }
    Ok(())
}
