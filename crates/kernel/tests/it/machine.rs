//! A synthetic machine, opened.

use coresift_format::{Input, PageSet, PhysicalMemory};
use coresift_kernel::{Kernel, Result};
use coresift_synth::{Image, PAGE};
use std::sync::Arc;

/// An image, the dump of it, and its kernel.
pub struct Opened {
    pub image: Image,
    pub input: Input,
    pub kernel: Kernel,
}

impl Opened {
    pub fn new(image: Image) -> Self {
        let (input, kernel) = open(&image);
        Self { kernel: kernel.unwrap(), input, image }
    }

    pub fn memory(&self) -> &dyn PhysicalMemory {
        self.input.memory()
    }
}

/// Opens the machine as a capture kernel would show it, with the VMCOREINFO text the image has.
pub fn open(image: &Image) -> (Input, Result<Kernel>) {
    let input = Input::from_bytes(Arc::new(image.elf().with_image().bytes())).unwrap();
    let kernel = Kernel::open(&input, image.vmcoreinfo.as_bytes());
    (input, kernel)
}

/// The page frames of a set, one by one.
pub fn pfns(set: &PageSet) -> Vec<u64> {
    set.all_runs().flat_map(|(start, end)| start.0..end.0).collect()
}

/// Physical address behind a virtual one, by the tables in the image.
pub fn translate(image: &Image, virt: u64) -> u64 {
    let levels = if image.page_offset < 0xffff_0000_0000_0000 { 5 } else { 4 };
    let mut table = image.symbols["init_top_pgt"] - image.image_virt + image.image.start * PAGE;
    for level in (0..levels).rev() {
        let shift = 12 + 9 * level;
        let at = table + (virt >> shift & 511) * 8;
        let entry = u64::from_le_bytes(image.read(at, 8).try_into().unwrap());
        assert!(entry & 1 == 1, "{virt:#x} is not mapped");
        table = entry & 0x0007_ffff_ffff_f000;
        if level == 0 || entry & 0x80 != 0 {
            let mask = (1u64 << shift) - 1;
            return table & !mask | virt & mask;
        }
    }
    unreachable!()
}
