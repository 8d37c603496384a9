//! What kernels since 6.0 let a reader find by name: the parts of the image, the first chunk of per-cpu memory, counters, and the
//! types of what they point at (BTF).

use crate::PAGE;
use crate::elf::{Note, Order};
use crate::kernel_image::KernelImage;
use crate::population::{Kind, Population};
use crate::ram::Ram;

/// Pages at the end of the image that are given back at boot: init sections, then the brk area.
const INIT_PAGES: u64 = 3;
const BRK_PAGES: u64 = 1;

/// Where in its area a CPU saves its registers.
const NOTES_AT: u64 = 0x800;

/// `struct pcpu_chunk`: size, and offsets of `base_addr` and `nr_pages`.
const CHUNK: (u32, u32, u32) = (96, 40, 88);
/// `struct hstate`: size, and offsets of `order` and `nr_huge_pages`.
const HSTATE: (u32, u32, u32) = (128, 16, 40);
/// `enum node_stat_item`: some of its values.
const ITEMS: [(&str, u32); 3] = [("NR_LRU_BASE", 0), ("NR_SLAB_RECLAIMABLE_B", 5), ("NR_SLAB_UNRECLAIMABLE_B", 6)];
/// Items of `vm_node_stat`.
const ITEM_COUNT: u64 = 48;

/// The pointer to the text that the VMCOREINFO note is made of.
pub(crate) const VMCOREINFO_DATA: &str = "vmcoreinfo_data";

/// Places all of it in the image, whose other objects are there already.
pub(crate) fn place(ram: &mut Ram, image: &mut KernelImage, page_offset: u64, cpus: u32, populations: &[Population]) {
    parts(image);
    per_cpu(ram, image, cpus);
    counters(ram, image, populations);
    register_notes(ram, image, page_offset, cpus);
    let btf = btf();
    let at = image.object(ram, "__start_BTF", btf.len() as u64, 8);
    image.write(ram, at, &btf);
    image.alias("__stop_BTF", at + btf.len() as u64);
    image.object(ram, VMCOREINFO_DATA, 8, 8);
}

/// Text, read-only data and data without gaps; then what is given back.
fn parts(image: &mut KernelImage) {
    let text = image.symbols["_text"];
    let end = image.end();
    for (name, at) in [
        ("__start_rodata", text + PAGE),
        ("__end_rodata", text + PAGE),
        ("_sdata", text + PAGE),
        ("__init_begin", end - (BRK_PAGES + INIT_PAGES) * PAGE),
        ("__init_end", end - BRK_PAGES * PAGE),
        ("__brk_base", end - BRK_PAGES * PAGE),
    ] {
        image.alias(name, at);
    }
    image.leave((BRK_PAGES + INIT_PAGES) * PAGE);
}

/// `struct pcpu_chunk` of the first chunk, whose units are the CPUs' pages.
fn per_cpu(ram: &mut Ram, image: &mut KernelImage, cpus: u32) {
    let start = image.symbols["__per_cpu_start"];
    let offsets = image.symbols["__per_cpu_offset"];
    let units: Vec<u64> =
        (0..u64::from(cpus)).map(|cpu| ram.read_u64(image.phys(offsets + cpu * 8)).wrapping_add(start)).collect();
    let base = units[0];
    let mut word = |image: &mut KernelImage, name: &str, value: u64, size: usize| {
        let at = image.object(ram, name, 8, 8);
        image.write(ram, at, &value.to_le_bytes()[..size]);
    };
    word(image, "pcpu_base_addr", base, 8);
    word(image, "pcpu_nr_units", cpus.into(), 4);
    let array = image.object(ram, "pcpu_unit_offsets_array", u64::from(cpus) * 8, 8);
    for (cpu, unit) in (0..).zip(&units) {
        image.write(ram, array + cpu * 8, &unit.wrapping_sub(base).to_le_bytes());
    }
    let chunk = image.object(ram, "pcpu_chunk_of_boot", CHUNK.0.into(), 8);
    image.write(ram, chunk + u64::from(CHUNK.1), &base.to_le_bytes());
    image.write(ram, chunk + u64::from(CHUNK.2), &1u32.to_le_bytes());
    for (name, value) in [("pcpu_unit_offsets", array), ("pcpu_first_chunk", chunk)] {
        let at = image.object(ram, name, 8, 8);
        image.write(ram, at, &value.to_le_bytes());
    }
}

/// `crash_notes`: what each CPU saved when it stopped, in its per-cpu area, the same bytes as the core's notes have.
fn register_notes(ram: &mut Ram, image: &mut KernelImage, page_offset: u64, cpus: u32) {
    let offsets = image.symbols["__per_cpu_offset"];
    let notes = image.symbols["__per_cpu_start"] + NOTES_AT;
    for (name, value) in [("nr_cpu_ids", u64::from(cpus)), ("crash_notes", notes)] {
        let at = image.object(ram, name, 8, 8);
        image.write(ram, at, &value.to_le_bytes());
    }
    for cpu in 0..cpus {
        let offset = ram.read_u64(image.phys(offsets + u64::from(cpu) * 8));
        let at = notes.wrapping_add(offset) - page_offset;
        ram.write(at, &Note::saved(cpu, &image.symbols).bytes(Order::Little));
    }
}

/// `vm_node_stat`, and `hstates` with one size of huge page for each order there is.
fn counters(ram: &mut Ram, image: &mut KernelImage, populations: &[Population]) {
    let pages = |kind: Kind, order: Option<u32>| -> u64 {
        let all = populations.iter().filter(|p| p.kind == kind && order.is_none_or(|o| o == p.order));
        all.map(|p| p.pfns.end - p.pfns.start).sum()
    };
    let slab = pages(Kind::Slab, None);
    let table = image.object(ram, "vm_node_stat", ITEM_COUNT * 8, 8);
    for (item, count) in [(5, slab / 3), (6, slab - slab / 3), (7, 99)] {
        image.write(ram, table + item * 8, &count.to_le_bytes());
    }
    let mut orders: Vec<u32> = populations.iter().filter(|p| p.kind == Kind::Hugetlb).map(|p| p.order).collect();
    orders.sort_unstable();
    orders.dedup();
    let states = image.object(ram, "hstates", u64::from(HSTATE.0) * orders.len().max(1) as u64, 8);
    for (i, order) in (0..).zip(&orders) {
        let state = states + i * u64::from(HSTATE.0);
        image.write(ram, state + u64::from(HSTATE.1), &order.to_le_bytes());
        let count = pages(Kind::Hugetlb, Some(*order)) >> order;
        image.write(ram, state + u64::from(HSTATE.2), &count.to_le_bytes());
    }
    let number = image.object(ram, "hugetlb_max_hstate", 8, 8);
    image.write(ram, number, &(orders.len() as u32).to_le_bytes());
}

/// The types: integers, two structures, an enumeration (`include/uapi/linux/btf.h`).
fn btf() -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut name = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.bytes());
        strings.push(0);
        at
    };
    // Kinds: 1 integer, 4 structure, 6 enumeration.
    let mut words = vec![name("unsigned long"), 1 << 24, 8, 64];
    words.extend([name("unsigned int"), 1 << 24, 4, 32]);
    for (structure, size, members) in [
        ("pcpu_chunk", CHUNK.0, [("base_addr", 1, CHUNK.1), ("nr_pages", 2, CHUNK.2)]),
        ("hstate", HSTATE.0, [("order", 2, HSTATE.1), ("nr_huge_pages", 1, HSTATE.2)]),
    ] {
        words.extend([name(structure), 4 << 24 | 2, size]);
        words.extend(members.iter().flat_map(|(member, of, at)| [name(member), *of, at * 8]));
    }
    words.extend([name("node_stat_item"), 6 << 24 | ITEMS.len() as u32, 4]);
    words.extend(ITEMS.iter().flat_map(|(item, value)| [name(item), *value]));

    let types = words.len() as u32 * 4;
    let mut out = vec![0x9f, 0xeb, 1, 0];
    // Length of this header; types and strings behind it.
    for word in [24, 0, types, types, strings.len() as u32].iter().chain(&words) {
        out.extend(word.to_le_bytes());
    }
    out.extend(strings);
    out
}
