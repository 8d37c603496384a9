//! Real cores, where there are some: the folder is named by CORESIFT_LAB.

use coresift_format::{Container, Input, Machine, PhysAddr};
use std::path::{Path, PathBuf};

fn cores(name: &str) -> Vec<PathBuf> {
    let Some(lab) = std::env::var_os("CORESIFT_LAB") else {
        eprintln!("skipped: CORESIFT_LAB does not name a folder of real cores");
        return Vec::new();
    };
    let folders = std::fs::read_dir(lab).unwrap().map(|e| e.unwrap().path().join(name));
    folders.filter(|p| p.exists()).collect()
}

fn text(input: &Input) -> String {
    String::from_utf8(input.vmcoreinfo().unwrap().to_vec()).unwrap()
}

#[test]
fn real_cores_open_and_every_stored_page_is_readable() {
    for path in cores("vmcore") {
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
fn qemus_flattened_kdump_holds_what_its_elf_core_holds() {
    for path in cores("vmcore.qemu-zlib") {
        let flat = Input::open(&path).unwrap();
        let elf = Input::open(&Path::new(&path).with_file_name("vmcore")).unwrap();
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
