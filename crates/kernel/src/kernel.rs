//! The crashed kernel: found in a dump, step by step, each step checked by what it makes readable.

use crate::error::{KernelError, Result};
use crate::memmap::MemMap;
use crate::page::PageRules;
use crate::paging::{Paging, X86_64_4, X86_64_5};
use crate::search::find_in_memory;
use crate::symbols::{Symbols, Wanted};
use crate::version::KernelVersion;
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use coresift_format::{Bits, Endian, Input, Machine, PageSize, PhysAddr, PhysicalMemory, Segment};
use std::ops::Range;

/// Where the kernel image is mapped: `__START_KERNEL_map` of x86-64.
pub const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// Lowest address of the kernel's half of the address space, with 4 and with 5 levels of page tables
/// (Documentation/arch/x86/x86_64/mm.rst).
const KERNEL_HALF_4: VirtAddr = VirtAddr(0xffff_8000_0000_0000);
const KERNEL_HALF_5: VirtAddr = VirtAddr(0xff00_0000_0000_0000);
/// Length of a `struct new_utsname`: six fields of 65 bytes.
const UTSNAME_LEN: usize = 6 * 65;
/// Offset of `name` in `struct uts_namespace` where VMCOREINFO does not give it (before Linux 5.11): behind one int.
const OLD_UTS_NAME: u64 = 4;

/// What a dump's kernel is, as far as filtering needs it.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its own description.
    pub info: VmcoreInfo,
    /// `struct new_utsname`: sysname, nodename, release, version, machine, domainname of 65 bytes each.
    pub utsname: Box<[u8; UTSNAME_LEN]>,
    /// The release, from utsname.
    pub release: String,
    /// The release as a number, where it begins with one.
    pub version: Option<KernelVersion>,
    /// The page tables.
    pub paging: Paging,
    /// What is added to an address of the kernel image, relative to its link address, to get the physical address.
    pub phys_base: u64,
    /// Lowest address that can be a kernel address.
    pub base: VirtAddr,
    /// Addresses of the kernel image, where a program header of the dump tells them (`_text` to `_end` in a /proc/vmcore).
    pub image: Option<Range<VirtAddr>>,
    /// The memory map.
    pub memmap: MemMap,
    /// The rules that tell page classes.
    pub rules: PageRules,
    /// The symbols asked for by name, or why there are none.
    pub symbols: Result<Symbols>,
    /// Things a user should know about how this was found.
    pub notes: Vec<String>,
}

/// A dump's VMCOREINFO and how it was come by.
#[derive(Clone, Debug)]
pub struct FoundInfo {
    /// The text, as in the note's descriptor.
    pub text: Vec<u8>,
    /// Where in memory, when it was not in the dump's notes.
    pub address: Option<PhysAddr>,
    /// How it was chosen, in words.
    pub notes: Vec<String>,
}

impl FoundInfo {
    /// The VMCOREINFO of `input`: from its notes, else the one found in its memory that describes the memory it was found in.
    ///
    /// # Errors
    /// There is none, or it is of another machine than x86-64 and would have to be searched for.
    pub fn of(input: &Input) -> Result<Self> {
        if let Some(text) = input.vmcoreinfo()
            && !VmcoreInfo::parse(text).is_empty()
        {
            return Ok(Self { text: text.to_vec(), address: None, notes: Vec::new() });
        }
        check_machine(input)?;
        let none = |search| KernelError::NoVmcoreInfo { file: input.name().to_owned(), search };
        // Nothing of a machine's own memory is read that is not known to be safe: this is for files.
        if input.is_memory() {
            return Err(none("the memory of a machine is not searched for it, because any page of it may be poisoned"));
        }
        let mut valid = Vec::new();
        let mut others = Vec::new();
        for candidate in find_in_memory(input.memory()) {
            let info = VmcoreInfo::parse(&candidate.text);
            let release = printable(info.text("OSRELEASE").unwrap_or("?"));
            match Boot::find(input, &info) {
                Ok(boot) if boot.release() == release => valid.push((candidate, release)),
                _ => others.push(format!("{} (release {release})", candidate.address)),
            }
        }
        let mut valid = valid.into_iter();
        let Some((chosen, release)) = valid.next() else {
            return Err(none("none was found in its memory"));
        };
        others.extend(valid.map(|(c, r)| format!("{} (release {r}, also valid)", c.address)));
        let mut notes = vec![format!(
            "the dump has no VMCOREINFO note; took the one found in memory at {}, whose release {release} is that of the \
             utsname it leads to",
            chosen.address
        )];
        if !others.is_empty() {
            notes.push(format!("passed over other VMCOREINFO texts in memory: {}", others.join(", ")));
        }
        Ok(Self { text: chosen.text, address: Some(chosen.address), notes })
    }
}

/// Whether the dump is of an x86-64, or can be: a kdump file whose utsname was not known when it was written (makedumpfile -d 1
/// without VMCOREINFO) does not say. Whether the memory is that of one is checked by the utsname in it.
fn check_machine(input: &Input) -> Result<()> {
    let nameless = input.kdump_header().is_some_and(|(header, _)| header.machine().is_empty());
    let alike = input.bits() == Bits::B64 && input.byte_order() == Endian::Little;
    if input.machine() == Machine::X86_64 || nameless && alike {
        return Ok(());
    }
    Err(KernelError::Architecture { machine: input.machine().to_string() })
}

/// The first things found: page tables that lead to a utsname.
struct Boot {
    paging: Paging,
    phys_base: u64,
    utsname: Box<[u8; UTSNAME_LEN]>,
    base: VirtAddr,
    notes: Vec<String>,
}

impl Kernel {
    /// Understands the kernel in `input`, described by the VMCOREINFO `text`.
    ///
    /// # Errors
    /// What is missing, malformed or contradicts itself.
    pub fn open(input: &Input, text: &[u8]) -> Result<Self> {
        let info = VmcoreInfo::parse(text);
        let boot = Boot::find(input, &info)?;
        let mut notes = boot.notes.clone();
        let release = boot.release();
        let version = KernelVersion::parse(&release);
        if !version.is_some_and(KernelVersion::is_known) {
            notes.push(format!("release {release} is outside the range this program was tested with"));
        }
        if !info.duplicates().is_empty() {
            notes.push(format!(
                "VMCOREINFO has keys twice, of which the first counts: {}",
                info.duplicates().join(", ")
            ));
        }
        if let Some(key) = info.cut() {
            notes.push(format!(
                "VMCOREINFO ends in the middle of a line; {key} is not used, nor what may have followed"
            ));
        }
        let memory = input.memory();
        let memmap = {
            let mut reader = KernelReader::new(memory, &boot.paging);
            MemMap::find(&info, &mut reader, memory, boot.base)?
        };
        let rules = PageRules::compile(&info, version)?;
        let symbols = Symbols::open(&info, &mut KernelReader::new(memory, &boot.paging));
        Ok(Self {
            utsname: boot.utsname,
            release,
            version,
            paging: boot.paging,
            phys_base: boot.phys_base,
            base: boot.base,
            image: image_segment(input).map(|s| VirtAddr(s.vaddr)..VirtAddr(s.vaddr).plus(s.mem_size)),
            memmap,
            rules,
            symbols,
            notes,
            info,
        })
    }

    /// Looks up more than was found when the kernel was opened: all that is `wanted` (see [`Symbols::find`]).
    ///
    /// # Errors
    /// As [`Symbols::find`].
    pub fn lookup(&self, memory: &dyn PhysicalMemory, wanted: &[&Wanted]) -> Result<Symbols> {
        Symbols::find(&self.info, &mut self.reader(memory), wanted)
    }

    /// A reader of the kernel's virtual memory in `memory`.
    #[must_use]
    pub fn reader<'a>(&'a self, memory: &'a dyn PhysicalMemory) -> KernelReader<'a> {
        KernelReader::new(memory, &self.paging)
    }
}

impl Boot {
    fn find(input: &Input, info: &VmcoreInfo) -> Result<Self> {
        check_machine(input)?;
        let page_size = info.plain_decimal("PAGESIZE")?;
        if page_size.is_some_and(|n| PageSize::new(n) != Some(PageSize::K4)) {
            return Err(KernelError::BadValue {
                key: "PAGESIZE".to_owned(),
                value: info.text("PAGESIZE").unwrap_or_default().to_owned(),
                expected: "the page size of x86-64, 4096",
            });
        }
        let five = info.number("pgtable_l5_enabled")?.is_some_and(|n| n != 0);
        let root =
            ["init_top_pgt", "init_level4_pgt", "swapper_pg_dir"].iter().find_map(|s| info.symbol(s).transpose());
        let root = VmcoreInfo::require(root.transpose()?, "SYMBOL(init_top_pgt)", "address translation")?;
        let encryption = info.number("sme_mask")?.unwrap_or(0).cast_unsigned();
        let memory = input.memory();
        let mut notes = Vec::new();
        let mut failure = None;
        for (source, phys_base) in Self::phys_bases(input, info)? {
            let paging = Paging {
                levels: if five { X86_64_5 } else { X86_64_4 },
                root: PhysAddr(root.0.wrapping_sub(START_KERNEL_MAP).wrapping_add(phys_base)),
                encryption,
            };
            let utsname = read_utsname(&mut KernelReader::new(memory, &paging), info);
            match utsname {
                Ok(utsname) => {
                    if source != PhysBase::Number {
                        notes.push(format!("phys_base {phys_base:#x} taken from {}", source.name()));
                    }
                    let base = if five { KERNEL_HALF_5 } else { KERNEL_HALF_4 };
                    return Ok(Self { paging, phys_base, utsname, base, notes });
                }
                Err(e) => {
                    notes.push(format!("phys_base {phys_base:#x} from {} leads nowhere: {e}", source.name()));
                    failure.get_or_insert(e);
                }
            }
        }
        Err(failure.unwrap_or_else(|| KernelError::MissingKey {
            key: "NUMBER(phys_base)".to_owned(),
            purpose: "address translation (no PT_LOAD of the kernel image gives it either)",
        }))
    }

    /// Values that phys_base may have, the best source first. VMCOREINFO's own number may be zero or negative; absent is
    /// something else.
    fn phys_bases(input: &Input, info: &VmcoreInfo) -> Result<Vec<(PhysBase, u64)>> {
        let mut found = Vec::new();
        if let Some(n) = info.number("phys_base")? {
            found.push((PhysBase::Number, n.cast_unsigned()));
        }
        if let Some(s) = image_segment(input) {
            found.push((PhysBase::Segment, s.paddr.wrapping_sub(s.vaddr - START_KERNEL_MAP)));
        }
        if let Some((_, sub)) = input.kdump_header() {
            found.push((PhysBase::SubHeader, sub.phys_base));
        }
        found.push((PhysBase::Zero, 0));
        Ok(found)
    }

    fn release(&self) -> String {
        field(&self.utsname[..], 2)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PhysBase {
    Number,
    Segment,
    SubHeader,
    Zero,
}

impl PhysBase {
    const fn name(self) -> &'static str {
        match self {
            Self::Number => "VMCOREINFO",
            Self::Segment => "the program header of the kernel image",
            Self::SubHeader => "the dump's sub header",
            Self::Zero => "nothing better than the kernel's link address",
        }
    }
}

/// The program header of the kernel image.
fn image_segment(input: &Input) -> Option<&Segment> {
    input.segments().iter().find(|s| s.vaddr >= START_KERNEL_MAP && s.paddr != u64::MAX)
}

/// Text of a dump without what would steer a terminal or forge a line of a report.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Field number `index` of a utsname, as printable text.
#[must_use]
pub fn field(utsname: &[u8], index: usize) -> String {
    let raw = utsname.chunks(65).nth(index).unwrap_or_default();
    printable(&String::from_utf8_lossy(raw.split(|b| *b == 0).next().unwrap_or_default()))
}

fn read_utsname(kernel: &mut KernelReader<'_>, info: &VmcoreInfo) -> Result<Box<[u8; UTSNAME_LEN]>> {
    let at = match (info.symbol("init_uts_ns")?, info.symbol("system_utsname")?) {
        (Some(ns), _) => ns.plus(info.offset("uts_namespace.name")?.unwrap_or(OLD_UTS_NAME)),
        (None, Some(name)) => name,
        (None, None) => {
            return Err(KernelError::MissingKey {
                key: "SYMBOL(init_uts_ns)".to_owned(),
                purpose: "checking the address translation",
            });
        }
    };
    let mut utsname = Box::new([0; UTSNAME_LEN]);
    kernel.read_virt(at, &mut utsname[..])?;
    if !utsname.starts_with(b"Linux\0") {
        let value = utsname.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        return Err(KernelError::Implausible {
            what: "utsname.sysname",
            addr: at,
            value,
            hint: "; it should read `Linux`, so the address translation is wrong",
        });
    }
    Ok(utsname)
}
