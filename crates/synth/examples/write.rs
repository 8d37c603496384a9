//! Writes a base machine as an ELF core: `cargo run -p coresift-synth --example write -- 6.12 FILE [POPULATIONS]`.
//!
//! With a file of population lines the machine has 64 MiB of RAM from 16 MiB on instead of the base machine's 1 MiB.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a tool for whoever tests by hand")]

use coresift_synth::{KernelLayout, Machine};

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(layout), Some(file)) = (args.next(), args.next()) else {
        return println!("usage: write LAYOUT FILE [POPULATIONS]");
    };
    let layout = KernelLayout::get(&layout);
    let machine = match args.next() {
        Some(text) => {
            let text = std::fs::read_to_string(text).expect("the population file");
            Machine::new(layout).ram(0x1000..0x5000).pages(&text)
        }
        None => Machine::b0(layout),
    };
    let image = machine.build();
    std::fs::write(&file, image.elf().with_image().bytes()).expect("the output file");
    for (class, pages) in image.truth.counts() {
        println!("{pages:8} {class}");
    }
}
