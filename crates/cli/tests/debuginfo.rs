//! Debug information: `coresift info --symbol` and `--struct`, and logs that only -x, -i or --vmlinux can describe.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use common::{Ended, PROGRAM, Place};
use coresift_synth::{Image, KernelLayout, Machine, PAGE, lab};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// A 6.12 machine with the kernel's symbols and types in its memory.
fn with_symbols() -> Image {
    Machine::b0(KernelLayout::get("6.12")).image_pages(40).symbols().build()
}

#[test]
fn symbols_and_types_read_as_reviewed() {
    let place = Place::empty();
    let image = with_symbols();
    place.put("vmcore", &image.elf().bytes());
    let inside = format!("{:x}", image.symbols["vm_node_stat"] + 5);
    let asked = format!(
        "--symbol vm_node_stat --symbol {inside} --struct pcpu_chunk --struct hstate.nr_huge_pages \
         --struct node_stat_item"
    );
    let ended = place.run(&format!("info {asked} vmcore"));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    insta::assert_snapshot!("ask", ended.out);
    let ended = place.run(&format!("info --json {asked} vmcore"));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    insta::assert_snapshot!("ask-json", ended.out);
    // The same of a filtered dump.
    assert_eq!(place.run("dump vmcore kdump").code, Some(0));
    assert_eq!(place.run(&format!("info --json {asked} kdump")), ended);
}

#[test]
fn what_is_not_there_is_named_and_the_rest_answered_with_code_1() {
    let place = Place::empty();
    place.put("vmcore", &with_symbols().elf().bytes());
    let asked = "--symbol jiffies --symbol linux_banner --struct page --struct hstate.absent --struct hstate.order";
    let ended = place.run(&format!("info {asked} vmcore"));
    assert_eq!(ended.code, Some(1));
    for missing in ["no symbol jiffies", "no type page", "no member absent in hstate"] {
        assert!(ended.err.contains(&format!("coresift: {missing} in vmcore\n")), "{}", ended.err);
    }
    assert!(ended.out.contains(" linux_banner\n") && ended.out.contains("unsigned int order;"), "{}", ended.out);
    let ended = place.run(&format!("info --json {asked} vmcore"));
    let answer: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(answer["missing"].as_array().unwrap().len(), 3);

    // A kernel whose VMCOREINFO does not lead to its symbols.
    place.put("old", &Machine::b0(KernelLayout::get("5.10")).build().elf().bytes());
    for empty in ["info --symbol= vmcore", "info --struct= vmcore"] {
        assert_eq!(place.run(empty).code, Some(64), "{empty}");
    }
    let ended = place.run("info --symbol jiffies old");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert!(ended.err.contains("before Linux 6.0") && ended.err.contains("--vmlinux"), "{}", ended.err);
}

/// `keys` renamed, so that the dump lacks them.
fn without(text: &str, keys: &[&str]) -> String {
    keys.iter().fold(text.to_owned(), |text, key| {
        assert!(text.contains(key), "{key}");
        text.replace(key, &key.replace('(', "(un"))
    })
}

#[test]
fn c28_keys_of_the_log_that_the_dump_lacks_are_taken_from_the_text_of_i() {
    for (release, keys, named) in [
        ("2.6.32", &["SYMBOL(log_end)"][..], "SYMBOL(log_end)"),
        ("3.10", &["SIZE(log)", "OFFSET(log.len)"], "SIZE(printk_log), SIZE(log) or SYMBOL(log_end)"),
        ("6.12", &["OFFSET(printk_info.ts_nsec)"], "OFFSET(printk_info.ts_nsec)"),
        ("6.12", &["SYMBOL(prb)", "SIZE(printk_info)"], "SYMBOL(prb)"),
    ] {
        let place = Place::empty();
        let mut image = Machine::b0(KernelLayout::get(release)).build();
        place.put("whole", &image.elf().bytes());
        let expected = place.run("log whole");
        assert_eq!(expected.code, Some(0), "{release}: {}", expected.err);
        place.put("text", image.vmcoreinfo.as_bytes());
        image.vmcoreinfo = without(&image.vmcoreinfo, keys);
        place.put("lacks", &image.elf().bytes());

        let ended = place.makedumpfile("--dump-dmesg lacks out");
        assert_eq!(ended.code, Some(1), "{release}");
        assert!(ended.err.contains(named), "{release}: {}", ended.err);
        let ended = place.makedumpfile("--dump-dmesg -i text lacks out");
        assert_eq!(ended.code, Some(0), "{release}: {}", ended.err);
        assert_eq!(place.get("out"), expected.out.as_bytes(), "{release}");

        let other = String::from_utf8(place.get("text")).unwrap();
        let other = other.replace("OSRELEASE=", "OSRELEASE=not-").replace("BUILD-ID=", "BUILD-ID=00");
        place.put("other", other.as_bytes());
        let ended = place.makedumpfile("--dump-dmesg -f -i other lacks out");
        assert!(ended.err.contains("other and lacks don't match."), "{release}: {}", ended.err);
        assert_eq!(ended.code, Some(2), "{release}");
    }
}

/// A real kernel: its vmlinux, and a core of it as it runs.
struct Real {
    vmlinux: PathBuf,
    core: PathBuf,
}

/// The kernels of the cores that QEMU made, the other ones of which say the same.
fn real() -> impl Iterator<Item = Real> {
    let small = lab::folders().into_iter().filter(|folder| folder.to_string_lossy().ends_with("-small"));
    small.map(|folder| Real { vmlinux: folder.join("vmlinux"), core: folder.join("vmcore") })
}

fn run(place: &Place, words: &[&str], paths: &[&Path]) -> Ended {
    place.command(PROGRAM).args(words).args(paths).output().unwrap().into()
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn c28_keys_of_the_log_that_real_cores_lack_are_taken_from_their_vmlinux() {
    // One is enough, for it is half a GiB to copy.
    for Real { vmlinux, core } in real().take(1) {
        let place = Place::empty();
        let expected = run(&place, &["log"], &[&core]);
        let lacks = place.path("lacks");
        std::fs::copy(&core, &lacks).unwrap();
        let file = File::options().read(true).write(true).open(&lacks).unwrap();
        // The note; what the memory holds of it is not looked at where there is one.
        let mut head = vec![0; 1 << 20];
        file.read_exact_at(&mut head, 0).unwrap();
        for key in ["OFFSET(printk_info.text_len)", "SIZE(prb_desc)", "SYMBOL(prb)"] {
            let at = head.windows(key.len()).position(|bytes| bytes == key.as_bytes()).unwrap();
            file.write_all_at(b"X", at as u64).unwrap();
        }
        let ended = place.run("log lacks");
        assert_eq!(ended.code, Some(1), "{}", core.display());
        assert!(ended.err.contains("--vmlinux"), "{}", ended.err);
        assert_eq!(run(&place, &["log", "--vmlinux"], &[&vmlinux, &lacks]), expected, "{}", core.display());
        let ended = run(&place, &["makedumpfile", "--dump-dmesg", "-x"], &[&vmlinux, &lacks, Path::new("out")]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", core.display());
        assert_eq!(place.get("out"), expected.out.as_bytes(), "{}", core.display());
    }
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB"]
fn real_cores_with_the_vmlinux_of_another_kernel_end_every_command_with_2_and_both_build_ids() {
    let real: Vec<Real> = real().collect();
    let [Real { core, .. }, .., Real { vmlinux, .. }] = real.as_slice() else { return };
    let place = Place::empty();
    symlink(core, place.path("core")).unwrap();
    symlink(vmlinux, place.path("other")).unwrap();
    for line in [
        "info --vmlinux other --symbol jiffies core",
        "log --vmlinux other core",
        "dump --vmlinux other core out",
        "verify --vmlinux other core",
        "makedumpfile -x other -d 31 core out",
        "makedumpfile --dump-dmesg -x other core out",
    ] {
        let ended = place.run(line);
        assert_eq!(ended.code, Some(2), "{line}: {}", ended.err);
        let ids = ended.err.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 40).count();
        assert_eq!(ids, 2, "{line}: {}", ended.err);
        assert!(!place.has("out"), "{line}");
    }
}

/// The lines of the walk to `virt` that makedumpfile prints, and where it leads, by the tables in the image.
fn walk(image: &Image, levels: &[(&str, u32)], virt: u64) -> (String, Option<u64>) {
    let phys = |symbol: &str| image.symbols[symbol] - image.image_virt + image.image.start * PAGE;
    let (mut table, mut lines) = (phys("init_top_pgt"), String::new());
    for (name, shift) in levels {
        let at = table + (virt >> shift & 511) * 8;
        let entry = u64::from_le_bytes(image.read(at, 8).try_into().unwrap());
        lines += &format!("  {name} : {at:>16x} => {entry:>16x}\n");
        if entry & 1 == 0 {
            return (lines, None);
        }
        table = entry & 0x000f_ffff_ffff_f000;
        if *name == "PTE" || entry & 0x80 != 0 {
            let inside = (1 << shift) - 1;
            return (lines, Some(table & !inside | virt & inside));
        }
    }
    panic!("a walk without end");
}

/// What --vtop prints of an address of a machine.
struct Vtop {
    place: Place,
    virt: u64,
    text: String,
    mapped: bool,
    levels: usize,
    /// Tables that were read.
    read: usize,
}

/// Addresses of machines with four and five levels: mapped by leaves of every size, and not at all.
fn walks() -> Vec<Vtop> {
    let five = [("PGD", 48), ("P4D", 39), ("PUD", 30), ("PMD", 21), ("PTE", 12)];
    let four = [("PGD", 39), ("PUD", 30), ("PMD", 21), ("PTE", 12)];
    let mut all = Vec::new();
    for (machine, levels) in [
        (Machine::b0(KernelLayout::get("6.12")), &four[..]),
        (Machine::b0(KernelLayout::get("6.12")).five_levels(), &five[..]),
        (Machine::b0(KernelLayout::get("6.12")).five_levels().kaslr(0x400_0000), &five[..]),
    ] {
        let image = machine.build();
        let linear = image.page_offset + image.image.start * PAGE + 0x123;
        let memmap = image.symbols["vmemmap"] + image.image.start * 64 + 8;
        let nowhere = image.page_offset - (1 << 39);
        for virt in [image.symbols["init_uts_ns"], linear, memmap, nowhere, 0x1000] {
            let place = Place::empty();
            place.put("vmcore", &image.elf().bytes());
            let (lines, end) = walk(&image, levels, virt);
            let text = format!(
                "\nTranslating virtual address {virt:x} to physical address.\n{lines}\
                 VIRTUAL           PHYSICAL\n{virt:16x}  {:x}\n\n",
                end.unwrap_or(u64::MAX)
            );
            let read = lines.lines().count();
            all.push(Vtop { place, virt, text, mapped: end.is_some(), levels: levels.len(), read });
        }
    }
    all
}

#[test]
fn vtop_prints_every_level_of_tables_of_four_and_of_five() {
    let walks = walks();
    for Vtop { place, virt, text, mapped, .. } in &walks {
        let ended = place.makedumpfile(&format!("--vtop {virt:#x} -d 31 vmcore out"));
        assert_eq!(ended.code, Some(0), "{virt:#x}: {}", ended.err);
        assert!(ended.out.starts_with(text), "{virt:#x}: {}instead of {text}", ended.out);
        assert_eq!(ended.err.contains("no translation for "), !mapped, "{virt:#x}: {}", ended.err);
    }
    for levels in [4, 5] {
        let read: Vec<usize> = walks.iter().filter(|walk| walk.levels == levels).map(|walk| walk.read).collect();
        assert!(read.contains(&levels) && read.contains(&1), "to the last level and to the first: {read:?}");
    }
}

/// From the line that tells the address to the empty one behind the result.
fn translation(out: &str) -> &str {
    let text = out.find("Translating").map_or("", |at| &out[at..]);
    &text[..text.find("\n\n").unwrap_or(text.len())]
}

#[test]
#[ignore = "needs real cores: CORESIFT_LAB; and makedumpfile: CORESIFT_PEERS"]
fn walks_of_real_cores_and_of_machines_with_five_levels_are_those_of_makedumpfile() {
    let makedumpfile = Path::new(&std::env::var_os("CORESIFT_PEERS").unwrap()).join("bin/makedumpfile");
    for Vtop { place, virt, text, .. } in walks() {
        let mut command = place.command(&makedumpfile);
        let line = ["-d", "1", "--vtop", &format!("{virt:#x}"), "vmcore", "out"];
        let ended: Ended = command.args(line).output().unwrap().into();
        assert!(ended.out.contains(&text), "{virt:#x}: {} instead of {text}", ended.out);
    }
    for name in ["6.1-kdump", "7.2-kdump"] {
        let place = Place::empty();
        symlink(lab::folder(name).join("vmcore"), place.path("vmcore")).unwrap();
        let ended = place.run("info --symbol init_task vmcore");
        let init_task = format!("0x{}", ended.out.split(' ').next().unwrap());
        // The cpu entry area is mapped by pages; nothing is mapped in a hole and in user space.
        for virt in [init_task.as_str(), "0xfffffe0000001000", "0xffffe8ffffc00000", "0x7fff00000000", "0xdeadbeef"] {
            let line = ["--dry-run", "--message-level", "6", "-d", "1", "--vtop", virt, "vmcore", "out"];
            let theirs: Ended = place.command(&makedumpfile).args(line).output().unwrap().into();
            let ours = place.makedumpfile(&line.join(" "));
            assert!(translation(&ours.out).lines().count() >= 4, "{name} {virt}: {}", ours.out);
            assert_eq!(translation(&ours.out), translation(&theirs.out), "{name} {virt}");
        }
    }
}
