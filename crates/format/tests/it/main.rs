//! Opening dumps made by hand, byte by byte, in every way a dump can be odd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::print_stderr)]

mod elf;
mod examine;
mod flattened;
mod kdump;
mod lab;
mod make;
