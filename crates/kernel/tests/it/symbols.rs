//! Symbols and types of real kernels.

use coresift_format::Input;
use coresift_kernel::{Btf, Coding, Kallsyms, Kernel, KernelError, VirtAddr};
use coresift_synth::lab;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn cores(release: &str) -> [PathBuf; 2] {
    ["small", "kdump"].map(|kind| lab::folder(&format!("{release}-{kind}")))
}

/// Symbols of `vmlinux` whose name occurs once, by name: type letter and link address.
fn nm(vmlinux: &Path) -> HashMap<String, (u8, u64)> {
    let out = Command::new("nm").arg(vmlinux).output().unwrap();
    let mut symbols: HashMap<String, Vec<(u8, u64)>> = HashMap::new();
    for line in String::from_utf8(out.stdout).unwrap().lines() {
        let mut words = line.split(' ');
        if let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            symbols.entry(name.to_owned()).or_default().push((kind.as_bytes()[0], address));
        }
    }
    symbols.into_iter().filter(|(_, all)| all.len() == 1).map(|(name, all)| (name, all[0])).collect()
}

fn every_symbol_and_offset_is_right(release: &str, coding: Coding) {
    for folder in cores(release) {
        let input = Input::open(&folder.join("vmcore")).unwrap();
        let kernel = Kernel::open(&input, input.vmcoreinfo().unwrap()).unwrap();
        let mut reader = kernel.reader(input.memory());
        let (symbols, btf) =
            Kallsyms::open(&kernel.info, &mut reader, &["__start_BTF", "__stop_BTF", "no such symbol"]).unwrap();
        assert_eq!(btf.len(), 2);
        assert_eq!(symbols.coding(), coding);

        let shift = kernel.info.plain_hex("KERNELOFFSET").unwrap().unwrap();
        let expected = nm(&folder.join("vmlinux"));
        let names: Vec<&str> = expected.keys().map(String::as_str).collect();
        let found = symbols.lookup(&mut reader, &names).unwrap();
        let mut checked = 0;
        for (name, symbol) in found.iter().filter(|(_, symbol)| symbol.copies == 1) {
            let (kind, link) = expected[*name];
            // Per-cpu symbols of kernels before 6.15 have small link addresses, which KASLR does not move.
            let want = if link < 1 << 32 { link } else { link + shift };
            assert_eq!(symbol.address, VirtAddr(want), "{name}");
            if symbol.kind != b'A' {
                assert_eq!(symbol.kind.is_ascii_uppercase(), kind.is_ascii_uppercase(), "{name} {kind}");
            }
            checked += 1;
        }
        assert!(checked * 10 > symbols.len() * 9, "{checked} of {}", symbols.len());
        for name in ["schedule", "init_task", "panic"] {
            let at = found[name].address;
            assert_eq!(symbols.symbol_at(&mut reader, at.plus(3)).unwrap(), Some((name.to_owned(), 3)));
        }

        let info = String::from_utf8_lossy(input.vmcoreinfo().unwrap());
        let mut names: Vec<&str> = info.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        names.extend(["NR_FREE_PAGES", "no such enumerator"]);
        let (start, stop) = (btf["__start_BTF"].address, btf["__stop_BTF"].address);
        let mut btf = Btf::read(&mut reader, start, stop, &names).unwrap();
        assert!(btf.problem().is_none());
        let (mut same, mut absent) = (0, Vec::new());
        for line in info.lines() {
            let Some((key, value)) = line.split_once(")=") else { continue };
            let found = if let Some(key) = key.strip_prefix("OFFSET(") {
                let (name, path) = key.split_once('.').unwrap();
                btf.offset_of(name, path)
            } else if let Some(name) = key.strip_prefix("SIZE(") {
                btf.size_of(name)
            } else {
                continue;
            };
            match found {
                Some(found) => {
                    assert_eq!(found.to_string(), value, "{line}");
                    same += 1;
                }
                None => absent.push(line.to_owned()),
            }
        }
        assert!(same > 40, "{same}");
        let values = ["PG_lru", "NR_FREE_PAGES", "no such enumerator"].map(|name| btf.enumerator(name));
        assert_eq!(values, [kernel.info.number("PG_lru").unwrap(), Some(0), None]);
        eprintln!(
            "{}: {checked} of {} symbols, {} types, {same} sizes and offsets as VMCOREINFO has them, not in BTF: {absent:?}",
            folder.display(),
            symbols.len(),
            btf.len(),
        );
    }
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_of_linux_6_1_are_read_with_absolute_percpu_offsets() {
    every_symbol_and_offset_is_right("6.1", Coding::AbsolutePercpu);
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_of_linux_6_12_are_read_with_absolute_percpu_offsets() {
    every_symbol_and_offset_is_right("6.12", Coding::AbsolutePercpu);
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_of_linux_7_2_are_read_with_place_relative_offsets() {
    every_symbol_and_offset_is_right("7.2", Coding::PlaceRelative);
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_of_linux_5_10_do_not_say_where_their_symbols_are() {
    for folder in cores("5.10") {
        let input = Input::open(&folder.join("vmcore")).unwrap();
        let kernel = Kernel::open(&input, input.vmcoreinfo().unwrap()).unwrap();
        let error = Kallsyms::open(&kernel.info, &mut kernel.reader(input.memory()), &[]).unwrap_err();
        assert!(matches!(error, KernelError::MissingKey { .. }), "{error}");
    }
}
