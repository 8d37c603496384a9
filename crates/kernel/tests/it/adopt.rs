//! Dumps without a VMCOREINFO, with a text that tells link addresses.

use coresift_format::Input;
use coresift_kernel::debuginfo::{DebugFile, open_kernel};
use coresift_kernel::{START_KERNEL_MAP, VmcoreInfo};
use coresift_synth::{Image, KernelLayout, Machine};
use std::sync::Arc;

/// Lines of a VMCOREINFO that tell where the kernel runs, which no vmlinux knows.
const PLACE: [&str; 5] =
    ["KERNELOFFSET", "NUMBER(phys_base)", "NUMBER(pgtable_l5_enabled)", "NUMBER(sme_mask)", "CRASHTIME"];

/// As `makedumpfile -g` writes it: link addresses, and nothing of the place.
fn linked(image: &Image) -> DebugFile {
    let shift = image.vmcoreinfo.lines().find_map(|line| line.strip_prefix("KERNELOFFSET="));
    let shift = shift.map_or(0, |shift| u64::from_str_radix(shift, 16).unwrap());
    let line = |line: &str| {
        let (key, value) = line.split_once('=').unwrap();
        let symbol = key.starts_with("SYMBOL(").then(|| u64::from_str_radix(value, 16).unwrap());
        match symbol {
            Some(at) if at >= START_KERNEL_MAP => format!("{key}={:x}\n", at - shift),
            _ => format!("{line}\n"),
        }
    };
    let kept = image.vmcoreinfo.lines().filter(|line| !PLACE.contains(&line.split('=').next().unwrap()));
    let text: String = kept.map(line).collect();
    DebugFile::Text { name: "text".to_owned(), info: VmcoreInfo::parse(text.as_bytes()) }
}

fn machine() -> Machine {
    Machine::new(KernelLayout::get("6.1"))
        .ram(0xe00..0x1200)
        .ram(0x1a00..0x1c00)
        .ram(0x2000..0x2200)
        .ram(0x8000..0x8200)
}

#[test]
fn a_kernel_is_found_by_link_addresses_wherever_it_is_loaded() {
    for (name, machine) in [
        ("as linked", machine()),
        ("KASLR", machine().kaslr(0x1e0_0000)),
        ("KASLR, loaded elsewhere", machine().kaslr(0x600_0000).phys_base(0x100_0000)),
        ("below its link address", machine().phys_base(-0x20_0000)),
        ("five levels", machine().five_levels().kaslr(0x40_0000)),
    ] {
        let image = machine.build();
        let whole = image.elf();
        let told = Input::from_bytes(Arc::new(whole.clone().with_image().bytes())).unwrap();
        let (expected, _) = open_kernel(&told, None).unwrap();
        let mut core = whole;
        core.notes.clear();
        // With a program header of the image its place is told, without it is searched.
        for core in [core.clone(), core.with_image()] {
            let input = Input::from_bytes(Arc::new(core.bytes())).unwrap();
            let (kernel, found) = open_kernel(&input, Some(&linked(&image))).unwrap();
            assert_eq!((kernel.paging.root, kernel.phys_base), (expected.paging.root, expected.phys_base), "{name}");
            assert_eq!(kernel.paging.levels.len(), expected.paging.levels.len(), "{name}");
            assert_eq!(kernel.release, expected.release, "{name}");
            assert!(found.notes[0].contains("the dump has no VMCOREINFO"), "{name}: {:?}", found.notes);
        }
    }
}

/// 2^60 bytes of memory that the file has not: a look at every place of them would not end.
#[test]
fn memory_that_is_claimed_without_data_is_not_searched() {
    let image = machine().build();
    let mut core = image.elf();
    core.notes.clear();
    for segment in &mut core.segments {
        segment.filesz = 0;
    }
    core.segments.last_mut().unwrap().memsz = 1 << 60;
    let input = Input::from_bytes(Arc::new(core.bytes())).unwrap();
    let error = open_kernel(&input, Some(&linked(&image))).unwrap_err().to_string();
    assert!(error.contains("nor is a kernel of release"), "{error}");
}
