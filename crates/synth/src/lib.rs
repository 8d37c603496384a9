//! Kernels made of text: builds small or huge crash dumps for tests and benches.
//!
//! ```text
//! KernelLayout (a row a version) ─┐
//! RAM ranges, model, tables ──────┼─ Machine ── build ──┐
//! "@0x1100 32 buddy order=5" ─────┘                     ├─> Image { memory, VMCOREINFO, truth table }
//! huge(layout, bytes, mix) ── templates of sections ────┘     ├─ elf() ────> Elf { notes, segments } ─────> bytes, file
//!                                                             └─ kdump() ──> Kdump { version, abi, pages } > bytes, file ─> Flatten
//! ```
//!
//! ```
//! use coresift_synth::{KernelLayout, Machine};
//!
//! let image = Machine::b0(KernelLayout::get("6.12")).build();
//! let core: Vec<u8> = image.elf().bytes();
//! assert_eq!(&core[..4], b"\x7fELF");
//! assert_eq!(image.truth.class(0x1128), "cache");
//! assert_eq!(image.truth.count("free"), 40);
//!
//! // Two CPUs, KASLR, memory encryption, a slab page that looks anonymous (the one word of `struct page` that tells them apart).
//! let odd = Machine::new(KernelLayout::get("6.10"))
//!     .ram(0x1000..0x2000)
//!     .cpus(2)
//!     .kaslr(0x1a80_0000)
//!     .sme_bit(47)
//!     .pages("@0x1800 8 slab order=3 mapping-odd")
//!     .build();
//! assert_eq!(odd.truth.count("slab"), 8);
//! ```
//!
//! Shares neither code nor constants with the readers, so that a wrong layout cannot agree with itself. Everything is a function of its
//! input: the same machine gives the same bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: a machine that cannot be built is a mistake in the test, and a panic says so at the right line"
)]

pub mod elf;
pub mod flat;
pub mod huge;
mod image;
pub mod kdump;
mod kernel_image;
pub mod lab;
pub mod layout;
mod machine;
mod memmap;
mod node;
mod pages;
mod paging;
mod population;
mod printk;
mod ram;
pub mod real;
mod sparse;
mod symbols;
mod vmcoreinfo;
mod zlib;

pub use image::{Image, Truth};
pub use kernel_image::BUILD_ID;
pub use layout::{KernelLayout, LAYOUTS};
pub use machine::Machine;
pub use memmap::{Model, SECTION_PAGES, SECTION_SIZE_BITS};
pub use paging::{Leaf, START_KERNEL_MAP};
pub use population::CLASSES;
pub use printk::{Log, LogRecord, Message};
pub use ram::Page;
pub use sparse::SparseFile;
pub use vmcoreinfo::MAX_PHYSMEM_BITS;
pub use zlib::{zlib, zlib_stored};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Orders of free blocks: `LENGTH(zone.free_area)`, 0 to 10.
pub const ORDERS: u32 = 11;
