//! VMCOREINFO found in memory, for dumps whose notes lack it.

use coresift_format::{PhysAddr, PhysicalMemory};

/// A text in memory that looks like VMCOREINFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where the text begins.
    pub address: PhysAddr,
    /// The text.
    pub text: Vec<u8>,
}

/// The note is a page of its own (`vmcoreinfo_note`): the 12-byte header, the name padded to 12 bytes, the text.
const NOTE_NAME: &[u8] = b"VMCOREINFO\0";
const NOTE_NAME_AT: usize = 12;
const NOTE_TEXT_AT: usize = 24;
/// The text being collected (`vmcoreinfo_data`) is a page of its own too.
const TEXT_START: &[u8] = b"OSRELEASE=";
/// One page; VMCOREINFO_BYTES of all kernels.
const MAX_TEXT: usize = 4096;
/// More are not worth a look: each costs a few reads to judge.
const MAX_CANDIDATES: usize = 16;

/// Texts in `memory` that look like VMCOREINFO: at most 16, in ascending order, each different from those before.
#[must_use]
pub fn find_in_memory(memory: &dyn PhysicalMemory) -> Vec<Candidate> {
    let page = memory.page_size();
    let mut view = memory.view();
    let mut found: Vec<Candidate> = Vec::new();
    for (start, end) in memory.data().all_runs() {
        for pfn in start.0..end.0 {
            let at = PhysAddr(pfn << page.shift());
            let Ok(head) = view.slice(at, 64) else { continue };
            let skip = if head.starts_with(TEXT_START) {
                0
            } else if head.get(NOTE_NAME_AT..).is_some_and(|h| h.starts_with(NOTE_NAME))
                && head.get(NOTE_TEXT_AT..).is_some_and(|h| h.starts_with(TEXT_START))
            {
                NOTE_TEXT_AT
            } else {
                continue;
            };
            let mut text = vec![0; MAX_TEXT.min(page.bytes()) - skip];
            let address = at.plus(skip as u64);
            if view.read(address, &mut text).is_err() {
                continue;
            }
            let len = text.iter().position(|b| *b == 0).unwrap_or(text.len());
            text.truncate(len);
            if found.iter().all(|c| c.text != text) {
                found.push(Candidate { address, text });
            }
            if found.len() == MAX_CANDIDATES {
                return found;
            }
        }
    }
    found
}
