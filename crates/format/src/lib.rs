//! What a crash dump file holds: containers, page sets and page codecs. Knows no Linux.
//!
//! ```text
//! file or /proc/vmcore ─ source ─> bytes ─ detect ─> elf | kdump | flattened(kdump | elf)
//!                                                       └──> PhysicalMemory { ram, stored, view } + notes
//! pages ─ codec ─> stored pages ─ kdump::layout ─> header, sub header, bitmaps, descriptors, data
//! ```

pub mod codec;
mod memory;
mod pageset;
mod units;

pub use memory::{MemoryView, PhysicalMemory, ReadError};
pub use pageset::{CHUNK_PAGES, CHUNK_SHIFT, ChunkBits, PageSet, PageSetBuilder};
pub use units::{ByteOffset, PageSize, Pfn, PhysAddr};
