//! The kernel log, read by what VMCOREINFO says of it: neither memory map, symbols nor types are needed, nor a page table where
//! the log is in the kernel image.
//!
//! ```text
//! VmcoreInfo ─> AddressSpace ─ Pages ─┬─ text     characters            until 3.4
//!                                     ├─ records  one behind the other  3.5 to 5.9
//!                                     └─ ring     descriptors and text  since 5.10
//!                                               └─> Record, and what is wrong
//! ```
//!
//! A crash may stop a CPU in the middle of a message, and a dump may lack pages: what can be read is given, and what is wrong is
//! told once for each kind. The walk is bounded by the size of the log's own buffer, whatever the buffer says.

mod line;
mod memory;
mod problem;
mod record;
mod records;
mod ring;

mod text;

pub use problem::{LogProblem, Wrong};
pub use record::{Caller, Message, Record};

use crate::debuginfo::{self, DebugFile};
use crate::error::{KernelError, Result};
use crate::kernel::read_utsname;
use crate::space::AddressSpace;
use crate::virt::{VirtAddr, VirtualMemory};
use crate::vmcoreinfo::VmcoreInfo;
use coresift_format::{Input, PhysicalMemory};
use memory::Pages;
use problem::Problems;
use std::ops::ControlFlow;

/// What needs the keys that are missing.
const PURPOSE: &str = "the kernel log";
/// The largest log buffer: `LOG_BUF_LEN_MAX` of kernel/printk/printk.c, 2 GiB.
const MOST_BYTES: u64 = 1 << 31;

/// Which records are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// All that are there.
    #[default]
    Boot,
    /// Those since the log was last cleared (`dmesg -C`, syslog(2)).
    Clear,
}

/// How a kernel keeps its log.
#[derive(Clone, Debug)]
enum Form {
    Text(text::Text),
    Records(records::Records),
    Ring(ring::Ring),
}

impl Form {
    /// The form that the keys tell: those of the newest first, as a kernel has only one. Where its symbol is missing, the size of its
    /// structures tells it still, so that the symbol is named and not the keys of another form.
    fn open(info: &VmcoreInfo, memory: &mut Pages<'_>) -> Result<Self> {
        if info.symbol("prb")?.is_some() || info.size("printk_ringbuffer")?.is_some() {
            return ring::Ring::open(info, memory).map(Self::Ring);
        }
        if info.symbol("log_buf")?.is_none() {
            return Err(KernelError::MissingKey { key: "SYMBOL(prb) or SYMBOL(log_buf)".to_owned(), purpose: PURPOSE });
        }
        if info.symbol("log_end")?.is_some() {
            return text::Text::open(info, memory).map(Self::Text);
        }
        records::Records::open(info, memory).map(Self::Records)
    }
}

/// The log of a dump, found.
pub struct KernelLog<'a> {
    memory: &'a dyn PhysicalMemory,
    info: VmcoreInfo,
    space: AddressSpace,
    form: Form,
}

impl<'a> KernelLog<'a> {
    /// Finds the log of the kernel in `input`, by its VMCOREINFO and by what `debug` adds to it.
    ///
    /// The first things read are the log's own head and, where the dump has it, the utsname: both must make sense.
    ///
    /// # Errors
    /// A key is missing, or what it leads to cannot be read or is no log; `debug` is of another kernel.
    pub fn open(input: &'a Input, debug: Option<&DebugFile>) -> Result<Self> {
        let (info, found) = debuginfo::describe(input, debug)?;
        let memory = input.memory();
        let (mut space, form) = AddressSpace::find(input, &info, |space| {
            let mut pages = Pages::new(memory, space);
            match read_utsname(&mut pages, &info) {
                // An incomplete dump may have the log and not the utsname, and what is not known cannot contradict.
                Ok(_)
                | Err(KernelError::Read { .. } | KernelError::NotMapped { .. } | KernelError::MissingKey { .. }) => {}
                Err(other) => return Err(other),
            }
            Form::open(&info, &mut pages)
        })?;
        space.notes.splice(0..0, found.notes);
        Ok(Self { memory, info, space, form })
    }

    /// Things a user should know about how the log was found.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.space.notes
    }

    /// Gives the records, the oldest first, until `each` breaks; returns what is wrong with the log, each kind once.
    pub fn read(&self, since: Since, each: &mut dyn FnMut(&Record) -> ControlFlow<()>) -> Vec<LogProblem> {
        let mut out = Out { each, problems: Problems::default() };
        let mut pages = Pages::new(self.memory, &self.space);
        // A break is the caller's own; what was wrong until then is told.
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = match &self.form {
            Form::Text(text) => text.walk(&mut pages, since, &mut out),
            Form::Records(records) => records.walk(&self.info, &mut pages, since, &mut out),
            Form::Ring(ring) => ring.walk(&self.info, &mut pages, since, &mut out),
        };
        out.problems.into_list()
    }
}

/// Where the records go, and what is wrong.
struct Out<'o> {
    each: &'o mut dyn FnMut(&Record) -> ControlFlow<()>,
    problems: Problems,
}

impl Out<'_> {
    fn record(&mut self, record: &Record) -> ControlFlow<()> {
        (self.each)(record)
    }
}

/// `SYMBOL(name)`, which must be there.
fn symbol(info: &VmcoreInfo, name: &str) -> Result<VirtAddr> {
    VmcoreInfo::require(info.symbol(name)?, &format!("SYMBOL({name})"), PURPOSE)
}

/// `SIZE(name)`, which must be there.
fn size(info: &VmcoreInfo, name: &str) -> Result<u64> {
    VmcoreInfo::require(info.size(name)?, &format!("SIZE({name})"), PURPOSE)
}

/// `OFFSET(member)`, which must be there.
fn offset(info: &VmcoreInfo, member: &str) -> Result<u64> {
    VmcoreInfo::require(info.offset(member)?, &format!("OFFSET({member})"), PURPOSE)
}

/// The pointer at `at`, which must be to kernel memory.
fn pointer(pages: &mut Pages<'_>, what: &'static str, at: VirtAddr) -> Result<VirtAddr> {
    let value = pages.read_u64(at)?;
    if value < pages.base().0 {
        let hint = "; it should be an address in the kernel's half of the address space";
        return Err(KernelError::Implausible { what, addr: at, value, hint });
    }
    Ok(VirtAddr(value))
}

/// The length in bytes of a buffer of the log: a power of two, no more than the machine has memory.
fn length(pages: &Pages<'_>, what: &'static str, addr: VirtAddr, value: u64) -> Result<u64> {
    if !value.is_power_of_two()
        || value > MOST_BYTES.min(pages.ram_bytes().checked_next_power_of_two().unwrap_or(u64::MAX))
    {
        let hint = "; it should be a power of two, and no more than 2 GiB or than the machine has memory";
        return Err(KernelError::Implausible { what, addr, value, hint });
    }
    Ok(value)
}
