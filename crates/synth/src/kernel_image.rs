//! The kernel image in memory: text, read-only data, the objects VMCOREINFO points at, kallsyms.

use crate::PAGE;
use crate::layout::KernelLayout;
use crate::ram::{Filler, Page, Ram, fill};
use std::collections::BTreeMap;

/// The build id in `BUILD-ID` and in the image's `.notes`.
pub const BUILD_ID: &str = "5eed5eed0123456789abcdef0123456789abcdef";
const COMM: &str = "swapper/0";

/// Objects placed one after the other, and their symbols.
pub(crate) struct KernelImage {
    virt: u64,
    phys: u64,
    pages: u64,
    next: u64,
    left: u64,
    pub symbols: BTreeMap<String, u64>,
}

impl KernelImage {
    /// Fills the image with what looks like code and data, and begins it with a page of text.
    pub fn new(ram: &mut Ram, virt: u64, phys: u64, pages: u64) -> Self {
        let mut page: Page = [0; PAGE as usize];
        for i in 0..pages {
            fill(phys / PAGE + i, if i == 0 { Filler::Noise } else { Filler::Words }, &mut page);
            ram.write(phys + i * PAGE, &page);
        }
        let mut image = Self { virt, phys, pages, next: virt, left: 0, symbols: BTreeMap::new() };
        for (name, at) in
            [("_text", 0), ("_stext", 0), ("free_huge_page", 0x400), ("free_compound_page", 0x500), ("_etext", PAGE)]
        {
            image.alias(name, virt + at);
        }
        image.next = virt + PAGE;
        image
    }

    /// The physical address of an image address.
    pub fn phys(&self, virt: u64) -> u64 {
        virt - self.virt + self.phys
    }

    /// Places `len` zero bytes under a name; the virtual address.
    pub fn object(&mut self, ram: &mut Ram, name: &str, len: u64, align: u64) -> u64 {
        let at = self.next.next_multiple_of(align);
        self.next = at + len;
        assert!(self.next <= self.end() - self.left, "the kernel image is too small for `{name}`: give it more pages");
        self.write(ram, at, &vec![0; len as usize]);
        self.alias(name, at);
        at
    }

    /// The virtual address behind the image.
    pub fn end(&self) -> u64 {
        self.virt + self.pages * PAGE
    }

    /// Leaves the last bytes of the image to nothing in particular: objects end before them.
    pub fn leave(&mut self, bytes: u64) {
        self.left = bytes;
    }

    /// Names an address.
    pub fn alias(&mut self, name: &str, at: u64) {
        self.symbols.insert(name.into(), at);
    }

    pub fn write(&self, ram: &mut Ram, virt: u64, bytes: &[u8]) {
        ram.write(self.phys(virt), bytes);
    }

    /// The variables every kernel has.
    pub fn kernel_data(&mut self, ram: &mut Ram, layout: &KernelLayout, cpus: u32, page_offset: u64) {
        let banner = format!("Linux version {} (synth@example) #1 SMP\n\0", layout.release);
        let at = self.object(ram, "linux_banner", banner.len() as u64, 16);
        self.write(ram, at, banner.as_bytes());
        let id: Vec<u8> = (0..20).map(|i| u8::from_str_radix(&BUILD_ID[2 * i..2 * i + 2], 16).unwrap()).collect();
        let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &id].concat();
        let at = self.object(ram, "__start_notes", note.len() as u64, 4);
        self.write(ram, at, &note);
        self.alias("__stop_notes", at + note.len() as u64);

        let name = crate::vmcoreinfo::uts_name(layout);
        let uts = self.object(ram, "init_uts_ns", 408, 64);
        for (i, text) in ["Linux", "synth", layout.release, "#1 SMP", "x86_64", "(none)"].iter().enumerate() {
            self.write(ram, uts + name + 65 * i as u64, text.as_bytes());
        }
        let online = self.object(ram, "node_online_map", 8, 8);
        self.write(ram, online, &[1]);
        let base = self.object(ram, "phys_base", 8, 8);
        self.write(ram, base, &self.phys.wrapping_sub(self.virt - crate::paging::START_KERNEL_MAP).to_le_bytes());
        for name in ["vmap_area_list", "vmlist"] {
            let at = self.object(ram, name, 16, 8);
            self.write(ram, at, &[at.to_le_bytes(), at.to_le_bytes()].concat());
        }
        let task = self.object(ram, "init_task", 512, 64);
        self.write(ram, task + 256, COMM.as_bytes());

        // One page of per-cpu memory a CPU, outside the image. Per-cpu symbols are offsets until 6.14, image addresses since.
        let start = if layout.since(6, 15, 0) { self.object(ram, "__per_cpu_start", 64, 64) } else { 0 };
        self.alias("__per_cpu_start", start);
        self.alias("__per_cpu_end", start + 64);
        let offsets = self.object(ram, "__per_cpu_offset", u64::from(cpus) * 8, 8);
        for cpu in 0..u64::from(cpus) {
            let pfn = ram.alloc(1, 1);
            let mut page: Page = [0; PAGE as usize];
            fill(pfn, Filler::Words, &mut page);
            ram.write(pfn * PAGE, &page);
            let offset = (page_offset + pfn * PAGE).wrapping_sub(start);
            self.write(ram, offsets + cpu * 8, &offset.to_le_bytes());
        }
        let idt = self.object(ram, "idt_table", 4096, 4096);
        self.write(ram, idt, &[0x5a; 4096]);
    }

    /// Writes kallsyms over what is known by now, and ends the image.
    pub fn finish(&mut self, ram: &mut Ram, layout: &KernelLayout) {
        self.alias("_end", self.virt + self.pages * PAGE);
        let mut list: Vec<(u64, String)> = self.symbols.iter().map(|(n, at)| (*at, n.clone())).collect();
        // Page-table aliases and allocated arrays are no symbols of their own name in every version; readers only need the rest.
        list.retain(|(at, _)| *at >= self.virt || *at < PAGE);
        list.sort();
        let mut names = Vec::new();
        for (_, name) in &list {
            names.push(name.len() as u8 + 1);
            names.push(b'D');
            names.extend(name.as_bytes());
        }
        // Each token is one character: nothing is compressed, but the form is kept.
        let tokens: Vec<u8> = (0..=255u8).flat_map(|c| [if c.is_ascii_graphic() { c } else { b'?' }, 0]).collect();
        let index: Vec<u8> = (0..256u16).flat_map(|i| (2 * i).to_le_bytes()).collect();

        let at = self.object(ram, "kallsyms_num_syms", 8, 8);
        self.write(ram, at, &(list.len() as u32).to_le_bytes());
        for (name, bytes) in
            [("kallsyms_names", &names), ("kallsyms_token_table", &tokens), ("kallsyms_token_index", &index)]
        {
            let at = self.object(ram, name, bytes.len() as u64, 8);
            self.write(ram, at, bytes);
        }
        let offsets = self.object(ram, "kallsyms_offsets", 4 * list.len() as u64, 8);
        let base = self.object(ram, "kallsyms_relative_base", 8, 8);
        self.write(ram, base, &self.virt.to_le_bytes());
        for (i, (at, _)) in list.iter().enumerate() {
            let place = offsets + 4 * i as u64;
            let offset = match layout {
                // 7.0: relative to the entry itself.
                l if l.since(7, 0, 0) => at.wrapping_sub(place) as i32,
                // 6.15: relative to the base.
                l if l.since(6, 15, 0) => at.wrapping_sub(self.virt) as i32,
                // Before: per-cpu symbols as they are, all others below zero from the base.
                _ if *at < PAGE => *at as i32,
                _ => (self.virt.wrapping_sub(1).wrapping_sub(*at)) as i32,
            };
            self.write(ram, place, &offset.to_le_bytes());
        }
    }
}
