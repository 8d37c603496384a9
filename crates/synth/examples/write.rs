//! Writes a synthetic machine as an ELF core, or as a kdump file (`FILE.kdump`) or flattened (`FILE.flat`): `cargo run -p coresift-synth --example write -- 6.12 FILE [WHAT]`.
//!
//! WHAT is nothing (the base machine, 1 MiB), a file of population lines (64 MiB of RAM from 16 MiB on), or `huge:GIB:MIX` with one of the
//! mixes of [`coresift_synth::huge::MIXES`].
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a tool for whoever tests by hand")]

use coresift_synth::flat::Flatten;
use coresift_synth::huge::{MIXES, named};
use coresift_synth::{Image, KernelLayout, Machine};

fn image(layout: KernelLayout, what: Option<String>) -> Image {
    let Some(what) = what else { return Machine::b0(layout).build() };
    let Some(spec) = what.strip_prefix("huge:") else {
        let text = std::fs::read_to_string(what).expect("the population file");
        return Machine::new(layout).ram(0x1000..0x5000).pages(&text).build();
    };
    let (gib, mix) = spec.split_once(':').expect("huge:GIB:MIX");
    let gib = gib.parse().expect("a number of GiB");
    named(layout, gib, mix).unwrap_or_else(|| panic!("no mix is called {mix}; there are {MIXES}"))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(layout), Some(file)) = (args.next(), args.next()) else {
        return println!("usage: write LAYOUT FILE [POPULATIONS | huge:GIB:MIX]");
    };
    let image = image(KernelLayout::get(&layout), args.next());
    let written = match file.rsplit_once('.') {
        Some((_, "kdump")) => image.kdump().file().save(&file),
        Some((_, "flat")) => std::fs::write(&file, Flatten::default().wrap(&image.kdump().bytes()).bytes),
        _ => image.elf().with_image().file().save(&file),
    };
    written.expect("the output file");
    for (class, pages) in image.truth.counts() {
        println!("{pages:12} {class}");
    }
}
