//! Tests of the public interface, on machines made of text and, where there are some, on real cores.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::print_stderr)]

mod adopt;
mod debugger;
mod find;
mod machine;
mod memmap;
mod nodes;
mod printk;
mod scan;
mod symbols;
