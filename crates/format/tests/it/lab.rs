//! Real cores.

use coresift_format::{Container, Input, Machine, PhysAddr};
use coresift_synth::lab;
use std::path::PathBuf;

/// The files called `name` of all cores that have one.
fn files(name: &str) -> Vec<PathBuf> {
    let files: Vec<PathBuf> =
        lab::folders().into_iter().map(|folder| folder.join(name)).filter(|p| p.exists()).collect();
    assert!(!files.is_empty(), "no core has a {name}");
    files
}

fn text(input: &Input) -> String {
    String::from_utf8(input.vmcoreinfo().unwrap().to_vec()).unwrap()
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_open_and_every_stored_page_is_readable() {
    for path in files("vmcore") {
        let input = Input::open(&path).unwrap();
        assert_eq!((input.container(), input.machine()), (Container::Elf, Machine::X86_64), "{}", path.display());
        assert!(input.problems().is_empty(), "{:?}", input.problems());
        assert!(text(&input).contains("PAGESIZE=4096"));
        assert!(input.cpus() >= 1);
        let memory = input.memory();
        let mut view = memory.view();
        let mut buf = vec![0; 1 << 20];
        for (start, end) in memory.stored().all_runs() {
            let mut at = start.0 * 4096;
            while at < end.0 * 4096 {
                let n = buf.len().min((end.0 * 4096 - at) as usize);
                view.read(PhysAddr(at), &mut buf[..n]).unwrap();
                assert!(view.slice(PhysAddr(at), n).unwrap() == &buf[..n], "{} at {at:#x}", path.display());
                at += n as u64;
            }
        }
    }
}

/// QEMU wrote both files of the same paused guest.
#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_that_qemu_flattened_hold_what_the_elf_cores_hold() {
    for path in files("vmcore.qemu-zlib") {
        let flat = Input::open(&path).unwrap();
        let elf = Input::open(&path.with_file_name("vmcore")).unwrap();
        assert_eq!((flat.container(), flat.flattened()), (Container::Kdump, true));
        assert!(flat.problems().is_empty(), "{:?}", flat.problems());
        assert_eq!((flat.machine(), text(&flat), flat.cpus()), (elf.machine(), text(&elf), elf.cpus()));
        let (mut ours, mut theirs) = (flat.memory().view(), elf.memory().view());
        let mut compared = 0;
        for (start, end) in flat.memory().stored().all_runs() {
            for pfn in start.0..end.0 {
                let addr = PhysAddr(pfn * 4096);
                assert!(ours.slice(addr, 4096).unwrap() == theirs.slice(addr, 4096).unwrap(), "pfn {pfn:#x}");
                compared += 1;
            }
        }
        assert_eq!(compared, elf.memory().stored().len(), "{}", path.display());
    }
}
