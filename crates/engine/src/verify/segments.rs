//! Segments of an ELF core, whose program headers tell of each where it was in memory and where the kernel mapped it.
//!
//! ```text
//! p_vaddr - p_paddr   the same of all RAM: the start of the direct map
//!                     the same of all views of the kernel's image: START_KERNEL_MAP - phys_base
//! ```
//!
//! One flipped bit moves all pages of a segment. The other segments tell that it does not fit, the pages themselves, or the other
//! segment that has the same memory, which of its two addresses is wrong.

use coresift_format::{ElfCore, Input, Machine, PhysicalMemory, Segment};
use coresift_kernel::VmcoreInfo;
use coresift_kernel::direct_map::{DIRECT_MAP_ALIGN, START_KERNEL_MAP};
use coresift_kernel::own_place::own_address;
use std::collections::HashMap;
use std::fmt;

/// Pages of a segment that are asked where they were, and that are compared with another segment's.
const ASKED: u64 = 1024;
const COMPARED: u64 = 64;
/// Segments whose pages are asked whether they were where they are mapped, and mappings that are tried.
const ASKED_SEGMENTS: usize = 16;
const HYPOTHESES: usize = 8;
/// Of this many segments one may be wrong, and one in any case. Cores of QEMU have a segment for each mapping of any kind.
const WRONG_ONE_OF: usize = 8;

/// A segment whose virtual and physical address do not belong together.
pub struct Misplaced {
    /// As its program header has it.
    pub segment: Segment,
    /// As the header should be; `None` where nothing tells which of the two is wrong.
    pub right: Option<Segment>,
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Segment { vaddr, paddr, .. } = self.segment;
        write!(f, "memory at the p_paddr {paddr:#x} of a PT_LOAD is not mapped at its p_vaddr {vaddr:#x}; ")?;
        match self.right {
            None => write!(f, "nothing tells which of them is wrong"),
            Some(right) if right.paddr != paddr => {
                write!(f, "its pages say that p_paddr is wrong, and should be {:#x}", right.paddr)
            }
            Some(right) => write!(f, "its pages say that p_vaddr is wrong, and should be {:#x}", right.vaddr),
        }
    }
}

/// What mappings add to a physical address.
#[derive(Clone, Copy)]
struct Offsets {
    direct: u64,
    image: Option<u64>,
}

/// The segments of `input` that do not fit the mappings that most do; `None` where nothing is known of these.
pub fn misplaced(input: &Input) -> Option<Vec<Misplaced>> {
    let core = input.as_elf().filter(|_| input.machine() == Machine::X86_64 && !input.is_memory())?;
    let info = input.vmcoreinfo().map(VmcoreInfo::parse);
    let phys_base = info.and_then(|info| info.number("phys_base").ok().flatten());
    let image = phys_base.map(|base| START_KERNEL_MAP.wrapping_sub(base.cast_unsigned()));
    let mut votes: HashMap<u64, usize> = HashMap::new();
    mapped(core).for_each(|segment| *votes.entry(added(segment)).or_default() += 1);
    votes.retain(|offset, _| Some(*offset) != image);
    let agreed = votes.len() == 1;
    let mut votes: Vec<(u64, usize)> =
        votes.into_iter().filter(|(offset, _)| offset.is_multiple_of(DIRECT_MAP_ALIGN)).collect();
    votes.sort_unstable_by_key(|(offset, count)| (std::cmp::Reverse(*count), *offset));
    let all = votes.iter().take(HYPOTHESES).map(|(direct, count)| (Offsets { direct: *direct, image }, *count));
    let mut held = all.filter_map(|(offsets, count)| Some((hypothesis(core, offsets, agreed)?, count)));
    match (held.next(), held.next()) {
        (Some((_, count)), Some((_, other))) if count == other => None,
        (Some((wrong, _)), _) => Some(wrong),
        (None, _) => {
            let offsets = moved_alone(core, image)?;
            hypothesis(core, offsets, false)
        }
    }
}

/// Segments that have both addresses. Writers that do not know the kernel leave p_vaddr empty.
fn mapped(core: &ElfCore) -> impl Iterator<Item = &Segment> {
    core.segments().iter().filter(|segment| segment.vaddr != 0 && segment.paddr != u64::MAX)
}

/// What is wrong if the mappings are those of `offsets`; `None` where they cannot be. Where all are `agreed` on them, no pages are asked.
fn hypothesis(core: &ElfCore, offsets: Offsets, agreed: bool) -> Option<Vec<Misplaced>> {
    let wrong = || mapped(core).filter(|segment| !offsets.fits(segment));
    if wrong().count() > (mapped(core).count() / WRONG_ONE_OF).max(1) {
        return None;
    }
    let denies = |ram: &Segment| {
        let elsewhere = Segment { vaddr: ram.paddr, ..*ram };
        ballot(core, ram, &elsewhere).is_some_and(|(agree, _, deny)| deny > agree)
    };
    if !agreed && mapped(core).filter(|segment| offsets.fits_ram(segment)).take(ASKED_SEGMENTS).any(denies) {
        return None;
    }
    let wrong: Vec<Misplaced> = wrong().map(|segment| judge(core, *segment, offsets)).collect();
    // The image is RAM as well. Where one of two segments was moved, that tells which of them it was.
    let right =
        || wrong.iter().filter_map(|one| one.right.as_ref()).chain(mapped(core)).filter(|one| offsets.fits_ram(one));
    let mut views = mapped(core).filter(|segment| Some(added(segment)) == offsets.image && segment.file_size > 0);
    let in_ram = views.next().is_none_or(|view| right().any(|ram| covers(ram, view.paddr, view.file_size)));
    in_ram.then_some(wrong)
}

/// Where all RAM is one segment, and that is not where the image lies in RAM: the mapping by which it would be.
fn moved_alone(core: &ElfCore, image: Option<u64>) -> Option<Offsets> {
    let view = core.segments().iter().find(|segment| Some(added(segment)) == image && segment.file_size > 0)?;
    let mut ram = core.segments().iter().filter(|segment| *segment != view && segment.paddr != u64::MAX);
    let (Some(ram), None) = (ram.next(), ram.next()) else { return None };
    let flipped = (0..u64::BITS).map(|bit| Segment { paddr: ram.paddr ^ 1 << bit, ..*ram });
    let mut fitting = flipped.filter(|ram| {
        added(ram).is_multiple_of(DIRECT_MAP_ALIGN)
            && covers(ram, view.paddr, view.file_size)
            && same_content(core, view, ram, view.paddr)
    });
    let (Some(ram), None) = (fitting.next(), fitting.next()) else { return None };
    Some(Offsets { direct: added(&ram), image })
}

/// What the mapping of `segment` adds.
const fn added(segment: &Segment) -> u64 {
    segment.vaddr.wrapping_sub(segment.paddr)
}

/// Whether `segment` spans the `len` bytes at `paddr`.
const fn covers(segment: &Segment, paddr: u64, len: u64) -> bool {
    match paddr.checked_sub(segment.paddr) {
        Some(at) => at.saturating_add(len) <= segment.mem_size,
        None => false,
    }
}

impl Offsets {
    fn fits(self, segment: &Segment) -> bool {
        self.fits_ram(segment) || Some(added(segment)) == self.image
    }

    const fn fits_ram(self, segment: &Segment) -> bool {
        added(segment) == self.direct
    }
}

/// Which of the addresses of `segment` is right: by its pages, by the segment that has the same memory, or by the order of the others.
fn judge(core: &ElfCore, segment: Segment, offsets: Offsets) -> Misplaced {
    let by_paddr = Segment { vaddr: segment.paddr.wrapping_add(offsets.direct), ..segment };
    let by_vaddr = Segment { paddr: segment.vaddr.wrapping_sub(offsets.direct), ..segment };
    let view = |paddr: u64, image: u64| {
        let ram = core.segments().iter().filter(|ram| offsets.fits_ram(ram) && **ram != segment);
        let mut same = ram.filter(|ram| covers(ram, paddr, segment.file_size));
        same.any(|ram| same_content(core, &segment, ram, paddr)).then(|| Segment {
            paddr,
            vaddr: paddr.wrapping_add(image),
            ..segment
        })
    };
    let image = offsets
        .image
        .and_then(|image| view(segment.vaddr.wrapping_sub(image), image).or_else(|| view(segment.paddr, image)));
    let right = image
        .or_else(|| by_pages(core, &by_vaddr, &by_paddr))
        .or_else(|| by_order(core, offsets, &segment, by_vaddr, by_paddr));
    Misplaced { segment, right }
}

/// Whether pages of `view`, taken to be at `paddr`, are those of `ram`.
fn same_content(core: &ElfCore, view: &Segment, ram: &Segment, paddr: u64) -> bool {
    let (mut one, mut other) = (vec![0; core.page_size().bytes()], vec![0; core.page_size().bytes()]);
    let mut there = false;
    for at in steps(view, one.len() as u64, COMPARED) {
        let in_ram = paddr.wrapping_sub(ram.paddr).wrapping_add(at);
        if !read(core, view, at, &mut one) || !read(core, ram, in_ram, &mut other) || one != other {
            return false;
        }
        there |= one.iter().any(|byte| *byte != 0);
    }
    there
}

/// What of the two its pages say, by the addresses of themselves that they hold.
fn by_pages(core: &ElfCore, by_vaddr: &Segment, by_paddr: &Segment) -> Option<Segment> {
    let (for_vaddr, for_paddr, _) = ballot(core, by_vaddr, by_paddr)?;
    match for_vaddr.cmp(&for_paddr) {
        std::cmp::Ordering::Greater => Some(*by_vaddr),
        std::cmp::Ordering::Less => Some(*by_paddr),
        std::cmp::Ordering::Equal => None,
    }
}

/// How many pages of `one`, whose data `other` has too, say that they were at its p_vaddr, at that of `other`, or elsewhere; `None`
/// where none says anything.
fn ballot(core: &ElfCore, one: &Segment, other: &Segment) -> Option<(u64, u64, u64)> {
    let mut page = vec![0; core.page_size().bytes()];
    let mut votes = (0u64, 0u64, 0u64);
    for at in steps(one, page.len() as u64, ASKED) {
        if read(core, one, at, &mut page)
            && let Some(own) = own_address(&page)
        {
            let (here, there) = (own == one.vaddr.wrapping_add(at), own == other.vaddr.wrapping_add(at));
            votes.0 += u64::from(here);
            votes.1 += u64::from(there);
            votes.2 += u64::from(!here && !there);
        }
    }
    (votes != (0, 0, 0)).then_some(votes)
}

/// What of the two stands in the order of addresses among the neighbours of `segment` in the table, if the other does not.
fn by_order(
    core: &ElfCore,
    offsets: Offsets,
    segment: &Segment,
    by_vaddr: Segment,
    by_paddr: Segment,
) -> Option<Segment> {
    let (before, behind) = core.segments().split_at(core.segments().iter().position(|one| one == segment)?);
    let before = before.iter().rev().find(|ram| offsets.fits_ram(ram));
    let behind = behind.iter().find(|ram| offsets.fits_ram(ram));
    let end = |segment: &Segment| segment.paddr.saturating_add(segment.mem_size);
    let stands = |segment: &Segment| {
        before.is_some_and(|before| end(before) <= segment.paddr)
            && behind.is_some_and(|behind| end(segment) <= behind.paddr)
    };
    match (stands(&by_vaddr), stands(&by_paddr)) {
        (true, false) => Some(by_vaddr),
        (false, true) => Some(by_paddr),
        _ => None,
    }
}

/// Offsets of at most about `most` pages all over `segment`.
fn steps(segment: &Segment, page: u64, most: u64) -> impl Iterator<Item = u64> {
    let pages = segment.file_size / page;
    (0..pages).step_by((pages / most + 1) as usize).map(move |index| index * page)
}

/// Fills `page` with the data `at` bytes into `segment`; false where the file has none.
fn read(core: &ElfCore, segment: &Segment, at: u64, page: &mut [u8]) -> bool {
    let inside = at.checked_add(page.len() as u64).is_some_and(|end| end <= segment.file_size);
    let offset = segment.file_offset.saturating_add(at);
    inside && core.bytes().read_at(offset, page).is_ok_and(|read| read == page.len())
}
