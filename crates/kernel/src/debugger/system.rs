//! The kernel as a whole: what it is, its cpus, its memory, its log, its modules.

use super::walker::{Walker, Work};
use crate::anchors;
use crate::error::Result;
use crate::nodes as node_list;
use crate::symbols::Wanted;
use crate::virt::VirtAddr;

/// Single variables, and how many bytes of each are read. Those a kernel does not have are not read.
const VARIABLES: &[(&str, u64)] = &[
    ("page_offset_base", 8),
    ("vmalloc_base", 8),
    ("vmemmap_base", 8),
    ("phys_base", 8),
    ("jiffies_64", 8),
    ("shadow_timekeeper", 512),
    ("tk_core", 1024),
    ("timekeeper_data", 2048),
    ("avenrun", 24),
    ("nr_threads", 4),
    ("_totalram_pages", 8),
    ("high_memory", 8),
    ("cpu_khz", 4),
    ("tainted_mask", 8),
    ("taint_flags", 512),
    ("crashing_cpu", 4),
    ("panic_on_oops", 4),
    ("panic_cpu", 4),
    ("pv_info", 64),
    ("pv_ops", 8),
    ("idt_table", 4096),
    ("nr_irqs", 4),
    ("nr_cpu_ids", 4),
    ("xen_start_info", 8),
    ("klp_transition_patch", 8),
    ("task_state_array", 96),
    ("pageflag_names", 1024),
    ("mt_slots", 4),
    ("mt_pivots", 4),
    ("zero_pfn", 8),
    ("huge_zero_pfn", 8),
    ("nr_swapfiles", 4),
    ("arch_task_struct_size", 4),
    ("kmem_cache", 8),
    ("saved_command_line", 8),
    ("init_pid_ns", 256),
    ("init_css_set", 256),
    ("init_mm", 256),
    ("relocate_kernel", 48),
    ("log_buf", 8),
    ("crash_notes", 8),
    ("vmcoreinfo_data", 8),
    ("x86_hyper_type", 4),
    ("module_kset", 8),
    ("bus_kset", 8),
    // Functions whose first bytes tell crash whether there are frame pointers.
    ("__x64_sys_open", 8),
    ("__x64_sys_fork", 8),
    ("__x64_sys_read", 8),
    ("do_futex", 8),
    ("vfs_read", 8),
    // crash disassembles 5000 instructions from here to find where it switches stacks.
    ("__schedule", 24 << 10),
    ("orc_fp_entry", 6),
    ("memory_block_size_probed", 8),
    // Functions at the far end of stacks.
    ("common_startup_64", 512),
    ("secondary_startup_64", 512),
];

/// One bit a cpu, and how long the longest is (`NR_CPUS` of 8192).
const CPU_MASKS: [&str; 4] = ["__cpu_possible_mask", "__cpu_online_mask", "__cpu_present_mask", "__cpu_active_mask"];
const CPU_MASK_BYTES: u64 = 1024;
/// Cpus and modules that a torn dump can make us believe in.
const MAX_CPUS: u32 = 1 << 13;
const MAX_MODULES: usize = 1 << 13;
const MAX_CACHES: usize = 1 << 14;
const MAX_DEVICES: usize = 1 << 16;

pub(super) const WANTED: Wanted = Wanted {
    symbols: &[
        "linux_banner",
        "page_offset_base",
        "vmalloc_base",
        "vmemmap_base",
        "phys_base",
        "jiffies_64",
        "shadow_timekeeper",
        "tk_core",
        "timekeeper_data",
        "avenrun",
        "nr_threads",
        "_totalram_pages",
        "high_memory",
        "cpu_khz",
        "tainted_mask",
        "taint_flags",
        "crashing_cpu",
        "panic_on_oops",
        "panic_cpu",
        "pv_info",
        "pv_ops",
        "idt_table",
        "nr_irqs",
        "nr_cpu_ids",
        "xen_start_info",
        "klp_transition_patch",
        "task_state_array",
        "pageflag_names",
        "mt_slots",
        "mt_pivots",
        "zero_pfn",
        "huge_zero_pfn",
        "nr_swapfiles",
        "arch_task_struct_size",
        "kmem_cache",
        "saved_command_line",
        "init_pid_ns",
        "init_css_set",
        "init_mm",
        "relocate_kernel",
        "log_buf",
        "crash_notes",
        "vmcoreinfo_data",
        "x86_hyper_type",
        "module_kset",
        "bus_kset",
        "__x64_sys_open",
        "__x64_sys_fork",
        "__x64_sys_read",
        "do_futex",
        "vfs_read",
        "__schedule",
        "orc_fp_entry",
        "memory_block_size_probed",
        "common_startup_64",
        "secondary_startup_64",
        "mem_section",
        "__cpu_possible_mask",
        "__cpu_online_mask",
        "__cpu_present_mask",
        "__cpu_active_mask",
        "__per_cpu_offset",
        "modules",
        "slab_caches",
        "prb",
    ],
    members: &[
        ("zone", "name"),
        ("module", "list"),
        ("module", "mem"),
        ("module", "core_layout.base"),
        ("module", "core_layout.size"),
        ("module", "core_layout.text_size"),
        ("module", "sect_attrs"),
        ("module", "notes_attrs"),
        ("module_memory", "base"),
        ("module_memory", "size"),
        ("kmem_cache", "list"),
        ("kmem_cache", "name"),
        ("kset", "list"),
        ("kset", "kobj"),
        ("kobject", "entry"),
        ("kobject", "name"),
        ("subsys_private", "subsys.kobj"),
        ("subsys_private", "klist_devices.k_list"),
        ("device_private", "knode_bus.n_node"),
        ("device_private", "device"),
        ("memory_block", "dev"),
    ],
    sizes: &["module", "module_memory", "kmem_cache", "memory_block"],
    ..Wanted::NONE
};

/// The banner, and what `uname` says.
pub(super) fn version(w: &mut Walker<'_>) -> Work {
    if let Ok(at) = w.symbol("linux_banner") {
        w.need("linux_banner", at, 256);
    }
    let at = w.symbol("init_uts_ns")?;
    w.need("init_uts_ns", at, 400);
    Ok(())
}

/// Variables that stand by themselves, and the texts some of them point at.
pub(super) fn variables(w: &mut Walker<'_>) -> Work {
    w.kernel.symbols.as_ref().map_err(Clone::clone)?;
    for (name, len) in VARIABLES {
        if let Ok(at) = w.symbol(name) {
            w.need(name, at, *len);
        }
    }
    if let Ok(at) = w.symbol("pv_info") {
        // Behind a code segment where there is CONFIG_PARAVIRT_XXL.
        for offset in [0, 8] {
            let name = w.pointer("pv_info.name", at.plus(offset))?;
            w.text("pv_info.name", name);
        }
    }
    // An array of names, up to a null pointer.
    if let Ok(at) = w.symbol("task_state_array") {
        for i in 0..12 {
            let name = w.pointer("task_state_array", at.plus(i * 8))?;
            if !w.is_kernel(name) {
                break;
            }
            w.text("task_state_array", name);
        }
    }
    // `struct trace_print_flags { unsigned long mask; const char *name; }`, up to one without a name.
    if let Ok(at) = w.symbol("pageflag_names") {
        for i in 0..64 {
            let name = w.pointer("pageflag_names", at.plus(i * 16 + 8))?;
            if !w.is_kernel(name) {
                break;
            }
            w.text("pageflag_names", name);
        }
    }
    Ok(())
}

/// Which cpus there are, and where the per-cpu variables of each lie.
pub(super) fn cpus(w: &mut Walker<'_>) -> Work {
    for mask in CPU_MASKS {
        if let Ok(at) = w.symbol(mask) {
            w.need(mask, at, CPU_MASK_BYTES);
        }
    }
    let at = w.symbol("pcpu_nr_units")?;
    let cpus = w.number32("pcpu_nr_units", at)?.min(MAX_CPUS);
    let offsets = w.symbol("__per_cpu_offset")?;
    // crash reads as many as its vmlinux says there can be.
    w.need("__per_cpu_offset", offsets, u64::from(MAX_CPUS) * 8);
    for cpu in 0..u64::from(cpus) {
        let offset = w.number("__per_cpu_offset", offsets.plus(cpu * 8))?;
        w.per_cpu.push(offset);
        w.count();
    }
    Ok(())
}

/// NUMA nodes with their zones, and the zones' names.
pub(super) fn nodes(w: &mut Walker<'_>) -> Work {
    let len = w.size("pglist_data")?;
    let zones = (w.offset("pglist_data", "node_zones"), w.offset("pglist_data", "nr_zones"));
    let zone = (w.size("zone"), w.offset("zone", "name"));
    for node in node_list::addresses(w.kernel, w.reader())? {
        w.count();
        w.need("pglist_data", node, len);
        if let ((Ok(zones), Ok(count)), (Ok(zone), Ok(name))) = (&zones, &zone) {
            for i in 0..u64::from(w.number32("pglist_data.nr_zones", node.plus(*count))?.min(16)) {
                let text = w.pointer("zone.name", node.plus(zones + i * zone + name))?;
                w.text("zone.name", text);
            }
        }
    }
    Ok(())
}

/// What leads from a page frame to its `struct page`.
pub(super) fn sections(w: &mut Walker<'_>) -> Work {
    // VMCOREINFO's address of this name is the array's; the kernel's own is that of the pointer to it.
    if let Ok(at) = w.kernel.symbols.as_ref().map_err(Clone::clone).and_then(|s| s.get("mem_section", "")) {
        w.need("mem_section", at, 8);
    }
    let page = w.page_size();
    let pieces = anchors::sections(w.kernel, w.reader(), page)?;
    for (at, len) in pieces {
        w.need("mem_section", at, len);
    }
    Ok(())
}

/// The record ring of the kernel log, of Linux 5.10 on (kernel/printk/printk_ringbuffer.h), or the buffer of before.
pub(super) fn log(w: &mut Walker<'_>) -> Work {
    if let Ok(prb) = w.symbol("prb") {
        let prb = w.pointer("prb", prb)?;
        let size = w.size("printk_ringbuffer")?;
        w.need("printk_ringbuffer", prb, size);
        let ring = prb.plus(w.offset("printk_ringbuffer", "desc_ring")?);
        let bits = w.number32("prb_desc_ring.count_bits", ring.plus(w.offset("prb_desc_ring", "count_bits")?))?;
        let count = 1u64.checked_shl(bits).unwrap_or(0);
        let descs = w.pointer("prb_desc_ring.descs", ring.plus(w.offset("prb_desc_ring", "descs")?))?;
        w.need("prb_desc_ring.descs", descs, count.saturating_mul(w.size("prb_desc")?));
        let infos = w.pointer("prb_desc_ring.infos", ring.plus(w.offset("prb_desc_ring", "infos")?))?;
        w.need("prb_desc_ring.infos", infos, count.saturating_mul(w.size("printk_info")?));
        let text = prb.plus(w.offset("printk_ringbuffer", "text_data_ring")?);
        let bits = w.number32("prb_data_ring.size_bits", text.plus(w.offset("prb_data_ring", "size_bits")?))?;
        let data = w.pointer("prb_data_ring.data", text.plus(w.offset("prb_data_ring", "data")?))?;
        w.need("prb_data_ring.data", data, 1u64.checked_shl(bits).unwrap_or(0));
        return Ok(());
    }
    let (at, len) = (w.symbol("log_buf")?, w.symbol("log_buf_len")?);
    let (buffer, len) = (w.pointer("log_buf", at)?, w.number32("log_buf_len", len)?);
    w.need("log_buf", buffer, len.into());
    Ok(())
}

/// All modules but their code: `struct module`, symbol tables, exported symbols, sections and notes.
pub(super) fn modules(w: &mut Walker<'_>) -> Work {
    let size = w.size("module")?;
    each_module(w, |w, module| {
        w.count();
        w.need("struct module", module, size);
        let data = module_parts(w, module)?.into_iter().filter(|part| !part.code);
        data.for_each(|part| w.need("a module's data", part.start, part.bytes));
        module_sections(w, module)
    })
}

/// The code of all modules. Before Linux 6.4 crash reads it with the symbol tables, for both are in one area.
pub(super) fn module_code(w: &mut Walker<'_>) -> Work {
    each_module(w, |w, module| {
        let code = module_parts(w, module)?.into_iter().filter(|part| part.code);
        code.for_each(|part| w.need("a module's code", part.start, part.bytes));
        Ok(())
    })
}

fn each_module(w: &mut Walker<'_>, each: impl Fn(&mut Walker<'_>, VirtAddr) -> Work) -> Work {
    let (head, list) = (w.symbol("modules")?, w.offset("module", "list")?);
    w.list("modules", head, MAX_MODULES, |w, entry| {
        if let Err(error) = each(w, VirtAddr(entry.0.wrapping_sub(list))) {
            w.missed(error);
        }
    })
}

struct ModulePart {
    code: bool,
    start: VirtAddr,
    bytes: u64,
}

/// The memory of a module.
fn module_parts(w: &mut Walker<'_>, module: VirtAddr) -> Result<Vec<ModulePart>> {
    /// `enum mod_mem_type`: code, data, read-only data, and what was written once; then the init parts, which are gone.
    const KINDS: u64 = 4;
    let mut parts = Vec::new();
    if let Ok(mem) = w.offset("module", "mem") {
        let (size, base, len) =
            (w.size("module_memory")?, w.offset("module_memory", "base")?, w.offset("module_memory", "size")?);
        for kind in 0..KINDS {
            let part = module.plus(mem + kind * size);
            let start = w.pointer("module.mem.base", part.plus(base))?;
            let bytes = w.number32("module.mem.size", part.plus(len))?.into();
            parts.push(ModulePart { code: kind == 0, start, bytes });
        }
    } else {
        // Before Linux 6.4: one area, the code first.
        let start = w.pointer("module.core_layout", module.plus(w.offset("module", "core_layout.base")?))?;
        let size = w.number32("module.core_layout", module.plus(w.offset("module", "core_layout.size")?))?;
        let code = w.number32("module.core_layout", module.plus(w.offset("module", "core_layout.text_size")?))?;
        let (code, data) = (u64::from(code), u64::from(size.saturating_sub(code)));
        parts.push(ModulePart { code: true, start, bytes: code });
        parts.push(ModulePart { code: false, start: start.plus(code), bytes: data });
    }
    parts.retain(|part| w.is_kernel(part.start));
    Ok(parts)
}

/// The names of a module's sections and notes.
fn module_sections(w: &mut Walker<'_>, module: VirtAddr) -> Work {
    for member in ["sect_attrs", "notes_attrs"] {
        if let Ok(offset) = w.offset("module", member) {
            let at = w.pointer("a module's sections", module.plus(offset))?;
            if w.is_kernel(at) {
                w.need("a module's sections", at, 64);
                names_of(w, at);
            }
        }
    }
    Ok(())
}

/// What the attributes at `at` (`struct module_sect_attrs`, `struct module_notes_attrs`) point at, names of sections among it. They changed
/// with almost every other kernel, so that each word that leads somewhere counts.
fn names_of(w: &mut Walker<'_>, at: VirtAddr) {
    /// An attribute of 80 bytes at the most for each of some 40 sections.
    const BYTES: usize = 4096;
    let mut bytes = [0; BYTES];
    if w.read("a module's sections", at, &mut bytes).is_err() {
        // It was shorter, and is the last in its memory; what it needs was asked for.
        return;
    }
    for word in bytes.as_chunks::<8>().0 {
        let name = VirtAddr(u64::from_le_bytes(*word));
        if w.is_kernel(name) {
            w.may_need(name);
        }
    }
}

/// Memory blocks of memory hotplug, which crash finds as devices of the bus called `memory`.
pub(super) fn memory_blocks(w: &mut Walker<'_>) -> Work {
    let kset = w.symbol("bus_kset")?;
    let kset = w.pointer("bus_kset", kset)?;
    let (list, entry, name) = (w.offset("kset", "list")?, w.offset("kobject", "entry")?, w.offset("kobject", "name")?);
    let (kobj, devices) =
        (w.offset("subsys_private", "subsys.kobj")?, w.offset("subsys_private", "klist_devices.k_list")?);
    let (node, device) = (w.offset("device_private", "knode_bus.n_node")?, w.offset("device_private", "device")?);
    let (dev, size) = (w.offset("memory_block", "dev")?, w.size("memory_block")?);
    w.list("bus_kset", kset.plus(list), MAX_DEVICES, |w, at| {
        let bus = VirtAddr(at.0.wrapping_sub(entry));
        let called = w.pointer("kobject.name", bus.plus(name)).and_then(|text| {
            w.text("kobject.name", text);
            let mut bytes = [0; 7];
            w.read("kobject.name", text, &mut bytes).map(|()| bytes)
        });
        let found = called.and_then(|called| {
            if &called != b"memory\0" {
                return Ok(());
            }
            let head = VirtAddr(bus.0.wrapping_sub(kobj)).plus(devices);
            w.list("klist_devices", head, MAX_DEVICES, |w, at| {
                let block = w.pointer("device_private.device", VirtAddr(at.0.wrapping_sub(node)).plus(device));
                match block {
                    Ok(block) => w.need("memory_block", VirtAddr(block.0.wrapping_sub(dev)), size),
                    Err(error) => w.missed(error),
                }
            })
        });
        if let Err(error) = found {
            w.missed(error);
        }
    })
}

/// The slab caches by name.
pub(super) fn slab_caches(w: &mut Walker<'_>) -> Work {
    let head = w.symbol("slab_caches")?;
    let (list, name, size) = (w.offset("kmem_cache", "list")?, w.offset("kmem_cache", "name")?, w.size("kmem_cache")?);
    w.list("slab_caches", head, MAX_CACHES, |w, entry| {
        let cache = VirtAddr(entry.0.wrapping_sub(list));
        w.need("kmem_cache", cache, size);
        match w.pointer("kmem_cache.name", cache.plus(name)) {
            Ok(text) => w.text("kmem_cache.name", text),
            Err(error) => w.missed(error),
        }
    })
}
