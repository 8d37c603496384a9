//! What the bytes of a crash dump mean: VMCOREINFO, page tables, the memory map, page classes. Writes nothing.
//!
//! ```text
//! Input { notes, memory } ─ vmcoreinfo / search ─> VmcoreInfo
//!     ─ paging + phys_base ─> KernelReader (checked by the utsname it reads)
//!     ─ memmap ─> ranges of struct page ─ scan + page rules ─> class of each page frame
//!     ─ protected, nodes ─> what must stay; what the kernel itself counted
//! ```

pub mod anchors;
mod btf;
mod class;
mod counters;
mod cpus;
pub mod debugger;
pub mod debuginfo;
pub mod direct_map;
mod error;
pub mod frame;
pub mod inspect;
mod kallsyms;
mod kernel;
mod memmap;
pub mod modules;
pub mod nodes;
mod own_info;
pub mod own_place;
mod page;
mod paging;
pub mod printk;
pub mod protected;
mod scan;
mod search;
mod space;
mod symbols;
pub mod types;
pub mod unused_map;
mod version;
mod virt;
mod vmcoreinfo;

pub use btf::{Btf, BtfTypes};
pub use class::{ClassSet, DumpLevel, PageClass, UnknownClass};
pub use counters::Counters;
pub use cpus::{NoteCpus, saved_notes};
pub use error::{KernelError, Mismatch, Result};
pub use kallsyms::{Coding, Kallsyms, Symbol};
pub use kernel::{FoundInfo, Kernel, crash_time, field, printable};
pub use memmap::{MapRange, MemMap, MemoryModel};
pub use page::{Oddity, PageRules, RawPage, Verdict};
pub use paging::{Leaf, Level, Paging, X86_64_4, X86_64_5};
pub use scan::{ChunkScan, ClassSink, Scanner, is_poisoned, must_not_be_read};
pub use search::{Candidate, find_in_memory};
pub use space::{AddressSpace, START_KERNEL_MAP};
pub use symbols::{Symbols, Wanted};
pub use version::KernelVersion;
pub use virt::{KernelReader, VirtAddr, VirtualMemory};
pub use vmcoreinfo::VmcoreInfo;
