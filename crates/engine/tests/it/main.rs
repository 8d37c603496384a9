//! Whole runs on machines made of text: an image of known pages in, a dump out, every page of it compared.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;
mod damage;
mod reader;
mod repair;

mod auto;
mod checks;
mod classes;
mod cut_short;
mod elf;
mod explain;
mod guard;
mod hostile;
mod limits;
mod random;
mod refilter;
mod shared;
mod split;
mod streams;
mod target;
mod threads;
mod unflatten;
mod unreadable;
mod unused_map;
mod vmcoreinfo;
