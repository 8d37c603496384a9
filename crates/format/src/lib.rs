//! What a crash dump file holds: containers, page sets and page codecs. Knows no Linux.
//!
//! ```text
//! file or /proc/vmcore ─ bytes, window ─ detect ─> elf | kdump | flattened(kdump | elf)
//!                                                    └─ input ─> PhysicalMemory { ram, stored, view } + notes
//! pages ─ codec ─> stored pages ─ kdump::layout ─> header, sub header, bitmaps, descriptors, data
//! ```

mod bytes;
mod chunk;
pub mod codec;
mod detect;
mod elf;
mod elf_claims;
mod elf_class;
mod elf_contradiction;
mod elf_holes;
mod elf_memory;
mod elf_origin;
mod elf_sets;
mod elf_write;
mod endian;
mod error;
mod extents;
mod flattened;
mod input;
pub mod kdump;
mod machine;
mod memory;
mod notes;
mod pageset;
mod patched;
mod units;
mod window;

pub use bytes::{Bytes, FileBytes};
pub use chunk::{CHUNK_PAGES, CHUNK_SHIFT, ChunkBits};
pub use elf::{ElfHeaders, Segment};
pub use elf_claims::Claims;
pub use elf_memory::ElfCore;
pub use elf_origin::ElfOrigin;
pub use elf_write::{ELF_INCOMPLETE, ElfKind, ElfLayout};
pub use endian::{Bits, Endian, Field};
pub use error::{FormatError, Result};
pub use flattened::{
    Cut, CutKind, FLAT_END, FLAT_HEADER_LEN, FLAT_SIGNATURE, FlatBlock, FlattenedBytes, Frame, MARK_WITHIN, MOST_NAMED,
    Misplaced, Misplacement, Rearranged, Written, check_flat_head, flat_block, flat_header, mark_incomplete,
};
pub use input::{Container, Input, erase_info};
pub use machine::Machine;
pub use memory::{MemoryView, PhysicalMemory, ReadError};
pub use notes::{Note, Notes};
pub use pageset::{PageSet, PageSetBuilder};
pub use units::{ByteOffset, PageSize, Pfn, PhysAddr};
pub use window::{Window, faults_taken, guard_faults};
