//! A dump whose VMCOREINFO lacks something, or is not there at all, with debug information from a file.
//!
//! A file knows link addresses. The kernel was loaded somewhere else in physical memory (always) and in virtual memory (KASLR), each by
//! a multiple of 2 MiB. VMCOREINFO tells both. Without it, physical memory is looked at where the kernel's utsname would be for each
//! load address, and the page tables found there are asked which virtual address leads to it.

use super::{Vmlinux, build_id_of, chain, vmcoreinfo};
use crate::error::{KernelError, Mismatch, Result};
use crate::kernel::{FoundInfo, Kernel, UTSNAME_LEN, field, utsname_at};
use crate::paging::{Paging, X86_64_4, X86_64_5};
use crate::search::find_in_memory;
use crate::space::{START_KERNEL_MAP, image_segment};
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use coresift_format::{Bytes, FileBytes, Input, Pfn, PhysAddr, PhysicalMemory};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// Debug information given by its file's name.
#[derive(Clone, Debug)]
pub enum DebugFile {
    /// A vmlinux: fills in what the dump's VMCOREINFO lacks.
    Vmlinux(Arc<Vmlinux>),
    /// A text as `makedumpfile -g` writes it: counts before the dump's VMCOREINFO, which fills in what the text lacks.
    Text {
        /// The file.
        name: String,
        /// What it says.
        info: VmcoreInfo,
    },
}

/// VMCOREINFO is a page; a text made from debug information a few KiB.
const MAX_TEXT: u64 = 1 << 20;
/// `CONFIG_PHYSICAL_ALIGN` of x86-64 is 2 MiB or a multiple of it, for the physical and the virtual address of the image.
const ALIGN: u64 = 2 << 20;
/// KASLR moves the image within this much virtual memory at most (`KERNEL_IMAGE_SIZE`).
const IMAGE_AREA: u64 = 1 << 30;

impl DebugFile {
    /// Opens the vmlinux at `path`.
    ///
    /// # Errors
    /// As [`Vmlinux::open`].
    pub fn vmlinux(path: &Path) -> Result<Self> {
        Vmlinux::open(path).map(|vmlinux| Self::Vmlinux(Arc::new(vmlinux)))
    }

    /// Reads the text at `path`.
    ///
    /// # Errors
    /// It cannot be read, or has no OSRELEASE or no PAGESIZE.
    pub fn text(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let failed =
            |what: String| KernelError::DebugInfo { file: name.clone(), what, next: "make it with -g FILE -x VMLINUX" };
        let file = FileBytes::open(path).map_err(|e| failed(chain(&e)))?;
        if file.len() > MAX_TEXT {
            return Err(failed(format!("{} bytes are no VMCOREINFO text", file.len())));
        }
        let mut text = vec![0; file.len() as usize];
        let have = file.read_at(0, &mut text).map_err(|e| failed(format!("cannot be read: {e}")))?;
        text.truncate(have);
        let info = VmcoreInfo::parse(&text);
        match ["OSRELEASE", "PAGESIZE"].into_iter().find(|key| info.text(key).is_none()) {
            Some(key) => Err(failed(format!("no VMCOREINFO text: it has no {key}"))),
            None => Ok(Self::Text { name, info }),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Vmlinux(vmlinux) => vmlinux.name(),
            Self::Text { name, .. } => name,
        }
    }

    fn build_id(&self) -> Option<String> {
        match self {
            Self::Vmlinux(vmlinux) => vmlinux.build_id(),
            Self::Text { info, .. } => info.text("BUILD-ID").map(str::to_owned),
        }
    }

    fn release(&self) -> Option<String> {
        match self {
            Self::Vmlinux(vmlinux) => vmlinux.release(),
            Self::Text { info, .. } => info.text("OSRELEASE").map(str::to_owned),
        }
    }

    /// What it says in VMCOREINFO's words, with link addresses (a text that was saved from a running kernel says how far they are moved).
    fn info(&self) -> Result<VmcoreInfo> {
        match self {
            Self::Vmlinux(vmlinux) => Ok(VmcoreInfo::parse(vmcoreinfo(vmlinux)?.as_bytes())),
            Self::Text { info, .. } => Ok(info.clone()),
        }
    }

    /// Refuses a dump whose build id or, where either has none, whose release is another one.
    fn check(&self, dump: &str, build_id: Option<&str>, release: Option<&str>) -> Result<()> {
        let differ = |what, ours: Option<String>, theirs: Option<&str>| match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(KernelError::OtherKernel(Box::new(Mismatch {
                file: self.name().to_owned(),
                dump: dump.to_owned(),
                what,
                ours,
                theirs: theirs.to_owned(),
            }))),
            (Some(_), Some(_)) => Ok(true),
            _ => Ok(false),
        };
        if !differ("build id", self.build_id(), build_id)? {
            differ("release", self.release(), release)?;
        }
        Ok(())
    }
}

/// The kernel in `input`, and the VMCOREINFO it was found by: the dump's own, with what `debug` adds to it.
///
/// # Errors
/// Neither leads to the kernel, or `debug` is of another kernel.
pub fn open_kernel(input: &Input, debug: Option<&DebugFile>) -> Result<(Kernel, FoundInfo)> {
    let (info, found) = describe(input, debug)?;
    let mut kernel = Kernel::open_info(input, info)?;
    if let Some(debug) = debug {
        debug.check(input.name(), build_id_in_memory(&kernel, input, debug).as_deref(), Some(&kernel.release))?;
        if let DebugFile::Vmlinux(vmlinux) = debug {
            kernel.use_vmlinux(Arc::clone(vmlinux), input.memory());
        }
    }
    Ok((kernel, found))
}

/// The kernel in `input` by a VMCOREINFO text in its memory, for a dump whose own is damaged: of several that lead to the kernel they are
/// of, by the one with the most lines of the dump's own.
#[must_use]
pub fn open_kernel_by_memory(input: &Input) -> Option<Kernel> {
    // Nothing of a machine's own memory is read that is not known to be safe.
    if input.is_memory() {
        return None;
    }
    let lines = |text: &[u8]| text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<HashSet<_>>();
    let own = lines(input.vmcoreinfo().unwrap_or_default());
    let mut texts: Vec<Vec<u8>> = find_in_memory(input.memory()).into_iter().map(|found| found.text).collect();
    texts.sort_by_cached_key(|text| Reverse(lines(text).intersection(&own).count()));
    texts.iter().find_map(|text| {
        let kernel = Kernel::open(input, text).ok()?;
        (kernel.info.text("OSRELEASE") == Some(&kernel.release)).then_some(kernel)
    })
}

/// What is known of the kernel in `input` in VMCOREINFO's words: by the dump's own, which is given too, and by what `debug` adds.
///
/// # Errors
/// As [`open_kernel`], as far as the dump's own VMCOREINFO tells.
pub(crate) fn describe(input: &Input, debug: Option<&DebugFile>) -> Result<(VmcoreInfo, FoundInfo)> {
    let found = FoundInfo::of(input);
    let Some(debug) = debug else {
        return found.map(|found| (VmcoreInfo::parse(&found.text), found));
    };
    match found {
        Ok(found) => {
            let note = VmcoreInfo::parse(&found.text);
            debug.check(input.name(), note.text("BUILD-ID"), note.text("OSRELEASE"))?;
            Ok((together(debug, note)?, found))
        }
        Err(error @ KernelError::NoVmcoreInfo { .. }) => {
            let info = debug.info()?;
            let place = Place::find(input, &info, debug).ok_or_else(|| KernelError::DebugInfo {
                file: debug.name().to_owned(),
                what: format!("{error}; nor is a kernel of release {} in it", info.text("OSRELEASE").unwrap_or("?")),
                next: "give the debug information of the kernel that crashed",
            })?;
            let text = place.text(info, input);
            let notes = vec![format!(
                "the dump has no VMCOREINFO; took that of {}, and found the kernel at physical address {:#x}, moved by {:#x} (KASLR)",
                debug.name(),
                START_KERNEL_TEXT.wrapping_sub(START_KERNEL_MAP).wrapping_add(place.load),
                place.shift
            )];
            let found = FoundInfo { text: text.into_bytes(), address: None, notes };
            Ok((VmcoreInfo::parse(&found.text), found))
        }
        Err(error) => Err(error),
    }
}

/// The link address of the kernel's text.
const START_KERNEL_TEXT: u64 = START_KERNEL_MAP + (16 << 20);

/// Where it is a pointer to the array (SPARSEMEM_EXTREME since Linux 4.15), VMCOREINFO tells the array and a symbol table the pointer.
const SECTIONS: &str = "SYMBOL(mem_section)";

/// What the dump's `note` and `debug` say together. A vmlinux fills in what the note lacks; a text counts first, as in makedumpfile.
fn together(debug: &DebugFile, note: VmcoreInfo) -> Result<VmcoreInfo> {
    let mut more = debug.info()?;
    // A text that was saved from /sys/kernel/vmcoreinfo has the addresses of a running kernel.
    if more.text("KERNELOFFSET").is_none() {
        more.relocate(shift(&note, &more)?);
        if let Some(array) = note.text(SECTIONS) {
            more.set(SECTIONS, array.to_owned());
        }
    }
    let (mut first, second) = if let DebugFile::Text { .. } = debug { (more, note) } else { (note, more) };
    first.fill(second);
    Ok(first)
}

/// How far KASLR moved the kernel: as its note says, or by a symbol of both.
fn shift(note: &VmcoreInfo, linked: &VmcoreInfo) -> Result<u64> {
    if let Some(shift) = note.plain_hex("KERNELOFFSET")? {
        return Ok(shift);
    }
    let both = (note.symbol("_stext")?, linked.symbol("_stext")?);
    Ok(if let (Some(moved), Some(linked)) = both { moved.0.wrapping_sub(linked.0) } else { 0 })
}

/// The build id among the notes of the kernel image in the dump, for kernels whose VMCOREINFO lacks it (before Linux 5.9).
fn build_id_in_memory(kernel: &Kernel, input: &Input, debug: &DebugFile) -> Option<String> {
    if let Some(id) = kernel.info.text("BUILD-ID") {
        return Some(id.to_owned());
    }
    let DebugFile::Vmlinux(vmlinux) = debug else { return None };
    let (link, in_file) = vmlinux.notes()?;
    let shift = kernel.info.plain_hex("KERNELOFFSET").ok().flatten().unwrap_or(0);
    let mut notes = vec![0; in_file.len()];
    kernel.reader(input.memory()).read_virt(link.plus(shift), &mut notes).ok()?;
    let id = build_id_of(&notes)?;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Where a kernel is, relative to its link addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Physical address = link address - START_KERNEL_MAP + this.
    load: u64,
    /// Virtual address = link address + this.
    shift: u64,
    five_levels: bool,
    encryption: u64,
}

impl Place {
    /// The place of the kernel that `info` describes by link addresses.
    fn find(input: &Input, info: &VmcoreInfo, debug: &DebugFile) -> Option<Self> {
        let release = info.text("OSRELEASE")?;
        let uts = utsname_at(info).ok()?;
        let memory = input.memory();
        let mut view = memory.view();
        let physical = |link: VirtAddr, load: u64| PhysAddr(link.0.wrapping_sub(START_KERNEL_MAP).wrapping_add(load));
        let mut is_here = |load: u64| {
            let mut raw = [0; UTSNAME_LEN];
            let at = physical(uts, load);
            memory.ram().contains(at.pfn(memory.page_size()))
                && view.read(at, &mut raw).is_ok()
                && raw.starts_with(b"Linux\0")
                && field(&raw, 2) == release
        };
        let told = image_segment(input).and_then(|segment| {
            let text = match debug {
                DebugFile::Vmlinux(vmlinux) => vmlinux.symbol("_text").ok().flatten()?.address,
                DebugFile::Text { info, .. } => info.symbol("_stext").ok().flatten()?.0,
            };
            Some(segment.paddr.wrapping_sub(text.wrapping_sub(START_KERNEL_MAP)))
        });
        // Of a machine's own memory only what a program header tells is looked at.
        let searched = (!input.is_memory()).then(|| loads(memory, physical(uts, 0))).into_iter().flatten();
        for load in told.into_iter().chain(searched) {
            if !is_here(load) {
                continue;
            }
            let encryption = match debug {
                DebugFile::Vmlinux(vmlinux) => {
                    let at = vmlinux.symbol("sme_me_mask").ok().flatten().map(|s| physical(VirtAddr(s.address), load));
                    at.and_then(|at| {
                        let mut raw = [0; 8];
                        memory.view().read(at, &mut raw).ok().map(|()| u64::from_le_bytes(raw))
                    })
                }
                DebugFile::Text { .. } => None,
            };
            if let Some(place) = Self::by_tables(input, info, load, encryption.unwrap_or(0)) {
                return Some(place);
            }
        }
        None
    }

    /// The place, when the image is loaded at `load` and its page tables agree.
    fn by_tables(input: &Input, info: &VmcoreInfo, load: u64, encryption: u64) -> Option<Self> {
        let symbol = |name: &str| info.symbol(name).ok().flatten();
        let root = ["init_top_pgt", "init_level4_pgt", "swapper_pg_dir"].into_iter().find_map(symbol)?;
        let physical = |link: VirtAddr| PhysAddr(link.0.wrapping_sub(START_KERNEL_MAP).wrapping_add(load));
        let witnesses: Vec<VirtAddr> =
            ["_stext", "init_uts_ns", "mem_section"].into_iter().filter_map(symbol).collect();
        for five_levels in [false, true] {
            let levels = if five_levels { X86_64_5 } else { X86_64_4 };
            let paging = Paging { levels, root: physical(root), encryption };
            let mut reader = KernelReader::new(input.memory(), &paging);
            let shift = (0..IMAGE_AREA / ALIGN).map(|i| i * ALIGN).find(|shift| {
                witnesses.iter().all(|w| reader.translate(w.plus(*shift)).is_ok_and(|(at, _)| at == physical(*w)))
            });
            if let Some(shift) = shift {
                return Some(Self { load, shift, five_levels, encryption });
            }
        }
        None
    }

    /// `info` with run-time addresses and what else VMCOREINFO tells of the place, as a text.
    fn text(self, mut info: VmcoreInfo, input: &Input) -> String {
        let link = info.symbol("mem_section").ok().flatten();
        info.relocate(self.shift);
        // What -g calls an array is one.
        if let Some(link) = link.filter(|_| info.text("LENGTH(mem_section)").is_none()) {
            let mut raw = [0; 8];
            let at = PhysAddr(link.0.wrapping_sub(START_KERNEL_MAP).wrapping_add(self.load));
            if input.memory().view().read(at, &mut raw).is_ok() {
                info.set(SECTIONS, format!("{:x}", u64::from_le_bytes(raw)));
            }
        }
        let phys_base = self.load.wrapping_sub(self.shift).cast_signed();
        format!(
            "{}KERNELOFFSET={:x}\nNUMBER(phys_base)={phys_base}\nNUMBER(pgtable_l5_enabled)={}\nNUMBER(sme_mask)={}\n",
            info.to_text(),
            self.shift,
            u8::from(self.five_levels),
            self.encryption.cast_signed()
        )
    }
}

/// The loads (see [`Place::load`]) by which what is at `link` without any is in the memory that the file holds: as many as it has
/// 2 MiB, whatever addresses it claims.
fn loads(memory: &dyn PhysicalMemory, link: PhysAddr) -> impl Iterator<Item = u64> {
    let page = memory.page_size().bytes() as u64;
    let within = move |(start, end): (Pfn, Pfn)| {
        let load_to = |pfn: Pfn| i64::try_from(pfn.0.checked_mul(page)?).ok()?.checked_sub_unsigned(link.0);
        let before = load_to(start)?.max(-LOWEST).checked_sub(1)?.div_euclid(ALIGN.cast_signed());
        let first = before.checked_add(1)?.checked_mul(ALIGN.cast_signed())?;
        Some((first..load_to(end)?).step_by(ALIGN as usize).map(i64::cast_unsigned))
    };
    let runs: Vec<(Pfn, Pfn)> = memory.data().all_runs().collect();
    runs.into_iter().filter_map(within).flatten()
}

/// The image is not loaded below its link address by more than that leaves of physical memory.
const LOWEST: i64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use coresift_synth::lab;

    #[test]
    #[ignore = "needs real cores: CORESIFT_LAB"]
    fn real_cores_tell_the_place_of_their_kernel_without_vmcoreinfo() {
        for folder in ["5.10-small", "6.12-kdump", "7.2-small"].map(lab::folder) {
            let input = Input::open(&folder.join("vmcore")).unwrap();
            let note = VmcoreInfo::parse(input.vmcoreinfo().unwrap());
            let debug = DebugFile::vmlinux(&folder.join("vmlinux")).unwrap();
            assert_eq!(debug.build_id().as_deref(), note.text("BUILD-ID"));
            assert_eq!(debug.release().as_deref(), note.text("OSRELEASE"));
            let place = Place::find(&input, &debug.info().unwrap(), &debug).unwrap();
            let shift = note.plain_hex("KERNELOFFSET").unwrap().unwrap();
            let phys_base = note.number("phys_base").unwrap().unwrap().cast_unsigned();
            assert_eq!((place.shift, place.load.wrapping_sub(place.shift)), (shift, phys_base));
            assert_eq!((place.five_levels, place.encryption), (false, 0));
        }
    }

    #[test]
    fn debug_information_of_another_kernel_is_refused_by_build_id_else_by_release() {
        let of = |text: &str| DebugFile::Text { name: "file".to_owned(), info: VmcoreInfo::parse(text.as_bytes()) };
        let both = of("OSRELEASE=6.1\nBUILD-ID=aa\n");
        assert!(both.check("dump", Some("aa"), Some("6.1")).is_ok());
        let refused = both.check("dump", Some("bb"), Some("6.1")).unwrap_err().to_string();
        assert!(refused.contains("aa") && refused.contains("bb"), "{refused}");
        let release = of("OSRELEASE=6.1\n");
        assert!(release.check("dump", Some("bb"), Some("6.1")).is_ok());
        assert!(release.check("dump", Some("bb"), Some("6.2")).is_err());
        assert!(release.check("dump", None, None).is_ok());
    }
}
