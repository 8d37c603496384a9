//! Why the kernel in a dump cannot be understood.

use crate::VirtAddr;
use coresift_format::ReadError;

/// What is missing or contradicts itself in the crashed kernel's own description.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KernelError {
    /// The dump has no VMCOREINFO and none was found in its memory.
    #[error(
        "{file} contains no VMCOREINFO, and {search}; without it only dump levels 0 and 1 are possible: \
         use -d 1, or take the dump with the vmcoreinfo device (QEMU: -device vmcoreinfo)"
    )]
    NoVmcoreInfo {
        /// The input file.
        file: String,
        /// Why there is none in its memory either.
        search: &'static str,
    },
    /// A VMCOREINFO value is not what its kind must be.
    #[error("VMCOREINFO: {key}={value} is not {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A VMCOREINFO key, symbol or type that is needed is not there.
    #[error("the dump lacks {key}, which {purpose} needs")]
    MissingKey {
        /// Its name.
        key: String,
        /// What it is needed for.
        purpose: &'static str,
    },
    /// The machine's architecture is not known yet.
    #[error("page filtering for {machine} is not supported yet; dump levels 0 and 1 are")]
    Architecture {
        /// What the dump calls itself.
        machine: String,
    },
    /// A page-table walk met an entry that is not present.
    #[error("no translation for {addr}: the {level} entry at {entry_at:#x} is {entry:#x}")]
    NotMapped {
        /// The virtual address.
        addr: VirtAddr,
        /// The level of the walk.
        level: &'static str,
        /// Physical address of the entry.
        entry_at: u64,
        /// Its value.
        entry: u64,
    },
    /// Memory that should be there could not be read.
    #[error("{purpose} at {addr} cannot be read: {source}")]
    Read {
        /// What was read.
        purpose: &'static str,
        /// The virtual address.
        addr: VirtAddr,
        /// Why not.
        source: ReadError,
    },
    /// Memory holds something that cannot be.
    #[error("{what} at {addr} is {value:#x}, which it cannot be{hint}")]
    Implausible {
        /// The kernel object.
        what: &'static str,
        /// Its virtual address.
        addr: VirtAddr,
        /// Its value.
        value: u64,
        /// What to conclude, beginning with a separator.
        hint: &'static str,
    },
    /// The kernel's memory model is not known.
    #[error("the memory model cannot be told from VMCOREINFO: {why}")]
    MemoryModel {
        /// What is missing or contradicts itself.
        why: String,
    },
    /// The kernel's own symbol tables make no sense.
    #[error("the kernel's symbol tables (kallsyms) cannot be used: {why}")]
    Kallsyms {
        /// What contradicts itself.
        why: String,
    },
    /// The kernel's own type descriptions make no sense.
    #[error("the kernel's type descriptions (BTF) cannot be used: {what} at byte {offset}")]
    Btf {
        /// What is wrong.
        what: &'static str,
        /// Where, in bytes from their start.
        offset: u64,
    },
    /// A file of debug information cannot be used.
    #[error("{file}: {what}; {next}")]
    DebugInfo {
        /// The file.
        file: String,
        /// What is wrong with it.
        what: String,
        /// What to do next.
        next: &'static str,
    },
    /// The debug information is that of another kernel.
    #[error("{0}")]
    OtherKernel(Box<Mismatch>),
}

/// Debug information and a dump that are not of the same kernel.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{file} and {dump} don't match: the {what} of {file} is {ours}, that of {dump} is {theirs}; \
     give the debug information of the kernel that crashed"
)]
pub struct Mismatch {
    /// The file of debug information.
    pub file: String,
    /// The dump.
    pub dump: String,
    /// What was compared: `build id` or `release`.
    pub what: &'static str,
    /// That of the file.
    pub ours: String,
    /// That of the dump.
    pub theirs: String,
}

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, KernelError>;
