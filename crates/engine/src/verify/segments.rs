//! Segments of an ELF core, held against where the kernel maps its memory.

use coresift_format::{ElfCore, Input, Machine, PhysicalMemory, Segment};
use coresift_kernel::Kernel;
use coresift_kernel::direct_map;
use coresift_kernel::own_place::own_address;
use std::fmt;

/// Pages of a segment that are asked where they were.
const ASKED: u64 = 4096;

/// A segment whose virtual and physical address do not belong together.
pub struct Misplaced {
    /// As its program header has it.
    pub segment: Segment,
    /// As the header should be; `None` where its pages do not tell which of the two is wrong.
    pub right: Option<Segment>,
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Segment { vaddr, paddr, .. } = self.segment;
        write!(f, "the kernel does not map the PT_LOAD with p_paddr {paddr:#x} at its p_vaddr {vaddr:#x}; ")?;
        match self.right {
            None => write!(f, "one of them is wrong"),
            Some(right) if right.paddr != paddr => {
                write!(f, "its pages say that p_paddr is wrong, and should be {:#x}", right.paddr)
            }
            Some(right) => write!(f, "its pages say that p_vaddr is wrong, and should be {:#x}", right.vaddr),
        }
    }
}

/// The segment of `input` that alone does not fit the kernel's mappings. Where several do not, as in cores of QEMU, which have a segment
/// for each mapping of any kind, none is held to be wrong; `None` also where nothing is known.
pub fn misplaced(input: &Input, kernel: &Kernel) -> Option<Result<(), Misplaced>> {
    let core = input.as_elf().filter(|_| input.machine() == Machine::X86_64)?;
    let offset = direct_map::offset(kernel, input.memory())?;
    let image = direct_map::image_offset(kernel);
    let fits = |segment: &&Segment| [offset, image].contains(&segment.vaddr.wrapping_sub(segment.paddr));
    // Writers that do not know the kernel leave p_vaddr empty.
    let known = || input.segments().iter().filter(|segment| segment.vaddr != 0 && segment.paddr != u64::MAX);
    if !known().any(|segment| fits(&segment)) {
        return None;
    }
    let mut wrong = known().filter(|segment| !fits(segment));
    match (wrong.next(), wrong.next()) {
        (None, _) => Some(Ok(())),
        (Some(_), Some(_)) => None,
        (Some(segment), None) => Some(Err(judge(core, *segment, offset))),
    }
}

/// Which of the addresses of `segment` its pages agree with, where the direct map adds `offset`.
fn judge(core: &ElfCore, segment: Segment, offset: u64) -> Misplaced {
    let by_vaddr = Segment { paddr: segment.vaddr.wrapping_sub(offset), ..segment };
    let by_paddr = Segment { vaddr: segment.paddr.wrapping_add(offset), ..segment };
    let mut page = vec![0; core.page_size().bytes()];
    let bytes = page.len() as u64;
    let pages = segment.file_size / bytes;
    let (mut for_vaddr, mut for_paddr) = (0, 0);
    for at in (0..pages).step_by((pages / ASKED + 1) as usize).map(|page| page * bytes) {
        let read = core.bytes().read_at(segment.file_offset.saturating_add(at), &mut page);
        if read.is_ok_and(|read| read == page.len())
            && let Some(own) = own_address(&page)
        {
            for_vaddr += u64::from(own == segment.vaddr.wrapping_add(at));
            for_paddr += u64::from(own == by_paddr.vaddr.wrapping_add(at));
        }
    }
    let right = match for_vaddr.cmp(&for_paddr) {
        std::cmp::Ordering::Greater => Some(by_vaddr),
        std::cmp::Ordering::Less => Some(by_paddr),
        std::cmp::Ordering::Equal => None,
    };
    Misplaced { segment, right }
}
