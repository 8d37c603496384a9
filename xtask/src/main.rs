//! Everything that is done to the project, by a person or by CI: one row a command.
//!
//! ```text
//! cargo xtask test ──> fmt, clippy, doc, tests, licences, fixtures, peers, one real kernel crashed in QEMU
//! cargo xtask check ─> our dump and a peer's, or a peer's view of our dump and of its source, side by side
//! cargo xtask bench ─> our program and makedumpfile on one core, in turn
//! ```

mod audit;
mod bench;
mod debian;
mod demo;
mod fixture;
mod instructions;
mod lab;
mod peers;
mod sections;
mod shell;
mod synthetic;
mod test;

use anyhow::{Result, bail};
use std::process::ExitCode;

/// One command of `cargo xtask`.
struct Command {
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<ExitCode>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "demo",
        arguments: "[--live [KERNEL]]",
        about: "dump a real crash and check every page of the dump; needs no network",
        run: demo::run,
    },
    Command {
        name: "test",
        arguments: "[--list | STEP...]",
        about: "everything that must hold, one real kernel crashed in QEMU among it",
        run: test::run,
    },
    Command {
        name: "lab",
        arguments: "KERNEL ...",
        about: "boot a kernel under QEMU, crash it, dump it with our program in its capture kernel",
        run: lab::run,
    },
    Command {
        name: "check",
        arguments: "pages|sets|crash|drgn|cut|kill|lines ...",
        about: "compare a dump with its source, or with makedumpfile's, through a peer's eyes",
        run: peers::check::run,
    },
    Command {
        name: "bench",
        arguments: "CORE... [--quick|--memory]",
        about: "our program and makedumpfile on the same cores in turn: time, memory, stages; dated record",
        run: bench::run,
    },
    Command {
        name: "machine",
        arguments: "LAYOUT:GIB:MIX",
        about: "make the core of a synthetic machine, of up to 32 TiB, in target/synth",
        run: synthetic::run,
    },
    Command {
        name: "instructions",
        arguments: "[--record]",
        about: "instruction counts of a few dumps under valgrind, against xtask/instructions.txt",
        run: |arguments| match instructions::run(arguments) {
            Err(error) => debian::exit_code(Err(error)),
            code => code,
        },
    },
    Command {
        name: "sections",
        arguments: "[CORE...]",
        about: "page classes of real memory sections, for the real page mix of synthetic machines",
        run: sections::run,
    },
    Command {
        name: "peers",
        arguments: "",
        about: "install crash, makedumpfile, libkdumpfile and drgn into target/peers",
        run: peers::install::run,
    },
    Command {
        name: "audit",
        arguments: "",
        about: "licences of all dependencies against deny.toml; cargo-deny too where installed",
        run: audit::run,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<ExitCode> {
    let Some((name, rest)) = arguments.split_first() else { return Ok(usage()) };
    if matches!(name.as_str(), "-h" | "--help" | "help") {
        return Ok(usage());
    }
    match COMMANDS.iter().find(|c| c.name == name) {
        Some(command) => (command.run)(rest),
        None => bail!("no command {name:?}; `cargo xtask help` lists them"),
    }
}

fn usage() -> ExitCode {
    println!("cargo xtask COMMAND\n");
    for c in COMMANDS {
        println!("  {:<36} {}", format!("{} {}", c.name, c.arguments), c.about);
    }
    ExitCode::SUCCESS
}
