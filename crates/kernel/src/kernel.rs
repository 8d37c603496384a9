//! The crashed kernel: found in a dump, step by step, each step checked by what it makes readable.

use crate::debuginfo::Vmlinux;
use crate::error::{KernelError, Result};
use crate::memmap::MemMap;
use crate::page::PageRules;
use crate::paging::Paging;
use crate::search::find_in_memory;
use crate::space::{AddressSpace, check_machine, image_range};
use crate::symbols::{self, Symbols, Wanted};
use crate::version::KernelVersion;
use crate::virt::{KernelReader, VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use coresift_format::{Input, PhysAddr, PhysicalMemory};
use std::ops::Range;
use std::sync::Arc;

/// Length of a `struct new_utsname`: six fields of 65 bytes.
pub(crate) const UTSNAME_LEN: usize = 6 * 65;
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
    /// The kernel's vmlinux, where one was given.
    pub vmlinux: Option<Arc<Vmlinux>>,
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

/// The first things found: page tables that lead to a utsname.
struct Boot {
    space: AddressSpace,
    utsname: Box<[u8; UTSNAME_LEN]>,
}

impl Kernel {
    /// Understands the kernel in `input`, described by the VMCOREINFO `text`.
    ///
    /// # Errors
    /// What is missing, malformed or contradicts itself.
    pub fn open(input: &Input, text: &[u8]) -> Result<Self> {
        Self::open_info(input, VmcoreInfo::parse(text))
    }

    /// As [`Self::open`].
    pub(crate) fn open_info(input: &Input, info: VmcoreInfo) -> Result<Self> {
        let boot = Boot::find(input, &info)?;
        let mut notes = boot.space.notes.clone();
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
            let mut reader = boot.space.reader(memory);
            MemMap::find(&info, &mut reader, memory, boot.space.base)?
        };
        let rules = PageRules::compile(&info, version)?;
        let symbols = Symbols::open(&info, &mut boot.space.reader(memory));
        Ok(Self {
            utsname: boot.utsname,
            release,
            version,
            paging: boot.space.paging,
            phys_base: boot.space.phys_base,
            base: boot.space.base,
            image: image_range(input),
            memmap,
            rules,
            symbols,
            vmlinux: None,
            notes,
            info,
        })
    }

    /// Looks for symbols and types in `vmlinux` where `memory` does not have its own.
    pub(crate) fn use_vmlinux(&mut self, vmlinux: Arc<Vmlinux>, memory: &dyn PhysicalMemory) {
        self.vmlinux = Some(vmlinux);
        if self.symbols.as_ref().map_or(true, Symbols::lacks_types) {
            self.symbols = self.lookup(memory, &symbols::wanted_at_once());
        }
    }

    /// How far KASLR moved the kernel image from its link address, in bytes.
    #[must_use]
    pub fn shift(&self) -> u64 {
        self.info.plain_hex("KERNELOFFSET").ok().flatten().unwrap_or(0)
    }

    /// Looks up more than was found when the kernel was opened: all that is `wanted` (see [`Symbols::find`]), in the vmlinux given where the
    /// dump itself does not tell.
    ///
    /// # Errors
    /// As [`Symbols::find`], or of the vmlinux.
    pub fn lookup(&self, memory: &dyn PhysicalMemory, wanted: &[&Wanted]) -> Result<Symbols> {
        match (Symbols::find(&self.info, &mut self.reader(memory), wanted), &self.vmlinux) {
            (Ok(symbols), Some(vmlinux)) if symbols.lacks_types() => symbols.with_types_of(vmlinux, wanted),
            (Err(_), Some(vmlinux)) => Symbols::of_vmlinux(vmlinux, self.shift(), wanted),
            (found, _) => found,
        }
    }

    /// A reader of the kernel's virtual memory in `memory`.
    #[must_use]
    pub fn reader<'a>(&'a self, memory: &'a dyn PhysicalMemory) -> KernelReader<'a> {
        KernelReader::new(memory, &self.paging)
    }
}

impl Boot {
    fn find(input: &Input, info: &VmcoreInfo) -> Result<Self> {
        let memory = input.memory();
        let (space, utsname) = AddressSpace::find(input, info, |space| read_utsname(&mut space.reader(memory), info))?;
        Ok(Self { space, utsname })
    }

    fn release(&self) -> String {
        field(&self.utsname[..], 2)
    }
}

/// When the machine crashed, in microseconds since 1970: by the dump's header, else by VMCOREINFO, in full seconds.
#[must_use]
pub fn crash_time(input: &Input, info: &VmcoreInfo) -> Option<i64> {
    let header = input.kdump_header().map(|(header, _)| (header.tv_sec, header.tv_usec));
    let header = header.filter(|(seconds, _)| *seconds > 0);
    let (seconds, micros) = match header {
        Some(time) => time,
        None => (info.text("CRASHTIME").and_then(|value| value.parse().ok())?, 0),
    };
    seconds.checked_mul(1_000_000)?.checked_add(micros)
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

/// Where `info` says that the utsname is.
pub(crate) fn utsname_at(info: &VmcoreInfo) -> Result<VirtAddr> {
    match (info.symbol("init_uts_ns")?, info.symbol("system_utsname")?) {
        (Some(ns), _) => Ok(ns.plus(info.offset("uts_namespace.name")?.unwrap_or(OLD_UTS_NAME))),
        (None, Some(name)) => Ok(name),
        (None, None) => Err(KernelError::MissingKey {
            key: "SYMBOL(init_uts_ns)".to_owned(),
            purpose: "checking the address translation",
        }),
    }
}

/// The utsname that VMCOREINFO points at, checked to be one.
pub(crate) fn read_utsname(kernel: &mut dyn VirtualMemory, info: &VmcoreInfo) -> Result<Box<[u8; UTSNAME_LEN]>> {
    let at = utsname_at(info)?;
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
