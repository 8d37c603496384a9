//! Tasks, their stacks, and the stacks the cpus have for interrupts.

use super::walker::{Walker, Work};
use crate::error::Result;
use crate::symbols::Wanted;
use crate::virt::VirtAddr;

/// The symbols between which the first task's stack lies (include/asm-generic/vmlinux.lds.h), before and since Linux 6.10.
const STACK_SYMBOLS: [(&str, &str); 2] =
    [("__start_init_stack", "__end_init_stack"), ("__start_init_task", "__end_init_task")];
/// `THREAD_SIZE` and `EXCEPTION_STKSZ` of x86-64; with KASAN both are twice that.
const STACK: u64 = 16 << 10;
const EXCEPTION_STACK: u64 = 8 << 10;
/// Stacks of the interrupt stack table (`struct x86_hw_tss`) that every machine has: double fault, NMI, debug, machine check. Those of
/// #VC, which come next, are mapped only in an SEV-ES guest.
const IST_STACKS: u64 = 4;
/// Slots of an xarray node (`XA_CHUNK_SIZE`), and levels that 64 bits of index make.
const XA_SLOTS: u64 = 64;
const XA_LEVELS: u32 = 11;
/// Tasks that are walked. At 3 to 4 µs each (5,842 of a 6.12 core in the page cache took 20 ms) they take a quarter of a second, of a
/// machine whose dump takes minutes.
const MAX_TASKS: usize = 1 << 16;
/// With all registers of a cpu with AMX it is about 20 KiB.
const MAX_TASK_BYTES: u64 = 64 << 10;
/// `NR_MM_COUNTERS`.
const MM_COUNTERS: u64 = 4;

pub(super) const WANTED: Wanted = Wanted {
    symbols: &[
        "init_task",
        "init_pid_ns",
        "runqueues",
        "cpu_tss_rw",
        "hardirq_stack_ptr",
        "pcpu_hot",
        "__start_init_stack",
        "__end_init_stack",
        "__start_init_task",
        "__end_init_task",
    ],
    members: &[
        ("rq", "curr"),
        ("rq", "idle"),
        ("tss_struct", "x86_tss.ist"),
        ("pcpu_hot", "hardirq_stack_ptr"),
        ("task_struct", "stack"),
        ("task_struct", "mm"),
        ("task_struct", "active_mm"),
        ("task_struct", "signal"),
        ("task_struct", "pid_links"),
        ("task_struct", "thread.sp"),
        ("task_struct", "nsproxy"),
        ("task_struct", "thread_pid"),
        ("pid_namespace", "idr.idr_rt.xa_head"),
        ("xa_node", "slots"),
        ("xa_node", "shift"),
        ("pid", "tasks"),
        ("mm_struct", "rss_stat.counters"),
    ],
    sizes: &["task_struct", "mm_struct", "signal_struct", "xa_node", "pid", "rq", "percpu_counter", "nsproxy"],
    ..Wanted::NONE
};

/// What is asked of every task, looked up once.
struct Layout {
    size: u64,
    stack: u64,
    sp: u64,
    stack_bytes: u64,
    /// What else of a task is read, as far as the kernel's types tell: what it is called, the offset of the pointer to it, its size.
    belongings: Vec<(&'static str, u64, u64)>,
    /// Where the first counter of an `mm_struct` has its pointer, and the distance to the next, since Linux 6.2.
    counters: Option<(u64, u64)>,
}

/// Pointers of a task that are followed: what to, the member, the structure.
const BELONGINGS: [(&str, &str, &str); 5] = [
    (MM, "mm", "mm_struct"),
    (MM, "active_mm", "mm_struct"),
    ("signal_struct", "signal", "signal_struct"),
    ("nsproxy", "nsproxy", "nsproxy"),
    ("struct pid", "thread_pid", "pid"),
];
const MM: &str = "mm_struct";

impl Layout {
    fn of(w: &mut Walker<'_>) -> Result<Self> {
        // Where it ends with what the cpu saves of its registers, whose size depends on the cpu, a variable tells (since Linux 4.2).
        let size = w.size("task_struct")?;
        let arch = w.symbol("arch_task_struct_size").and_then(|at| w.number32("arch_task_struct_size", at));
        let between = |(start, end): &(&'static str, &'static str)| {
            let bytes = w.symbol(end).ok()?.0.checked_sub(w.symbol(start).ok()?.0)?;
            (bytes.is_power_of_two() && (STACK..=STACK << 3).contains(&bytes)).then_some(bytes)
        };
        Ok(Self {
            size: arch.map_or(size, |bytes| size.max(u64::from(bytes).min(MAX_TASK_BYTES))),
            stack: w.offset("task_struct", "stack")?,
            sp: w.offset("task_struct", "thread.sp")?,
            stack_bytes: STACK_SYMBOLS.iter().find_map(between).unwrap_or(STACK),
            belongings: BELONGINGS
                .iter()
                .filter_map(|(what, member, of)| Some((*what, w.offset("task_struct", member).ok()?, w.size(of).ok()?)))
                .collect(),
            counters: w.offset("mm_struct", "rss_stat.counters").ok().zip(w.size("percpu_counter").ok()),
        })
    }
}

/// The stacks of each cpu that are no task's.
pub(super) fn interrupt_stacks(w: &mut Walker<'_>) -> Work {
    let tss = w.symbol("cpu_tss_rw")?.plus(w.offset("tss_struct", "x86_tss.ist")?);
    let irq = match w.symbol("hardirq_stack_ptr") {
        Ok(at) => at,
        // Linux 6.2 to 6.14 have it among other hot variables.
        Err(_) => w.symbol("pcpu_hot")?.plus(w.offset("pcpu_hot", "hardirq_stack_ptr")?),
    };
    for cpu in w.per_cpu.clone() {
        for stack in 0..IST_STACKS {
            let top = w.pointer("tss_struct.ist", tss.plus(cpu).plus(stack * 8))?;
            stack_below(w, "an exception stack", top, EXCEPTION_STACK);
        }
        // The pointer is to the last word but one, of an area of its own.
        let top = w.pointer("hardirq_stack_ptr", irq.plus(cpu))?;
        stack_below(w, "an interrupt stack", VirtAddr(top.0.next_multiple_of(4096)), STACK);
    }
    Ok(())
}

fn stack_below(w: &mut Walker<'_>, what: &'static str, top: VirtAddr, len: u64) {
    if w.is_kernel(top) {
        let base = VirtAddr(top.0.wrapping_sub(len));
        w.need(what, base, len);
        super::unwind::note_code(w, base, len);
    }
}

/// What each cpu runs, and its idle task; the first task.
pub(super) fn running(w: &mut Walker<'_>) -> Work {
    let layout = Layout::of(w)?;
    let first = w.symbol("init_task")?;
    task(w, &layout, first, true);
    let queue = w.symbol("runqueues")?;
    let (curr, idle) = (w.offset("rq", "curr")?, w.offset("rq", "idle")?);
    for cpu in w.per_cpu.clone() {
        let queue = queue.plus(cpu);
        let size = w.size("rq")?;
        w.need("a run queue", queue, size);
        for member in [curr, idle] {
            let at = w.pointer("a run queue", queue.plus(member))?;
            task(w, &layout, at, true);
        }
    }
    w.found = Some(w.tasks.len() as u64);
    Ok(())
}

/// All tasks: those that have a process id in the first namespace.
pub(super) fn all(w: &mut Walker<'_>) -> Work {
    let layout = Layout::of(w)?;
    let pid =
        Pid { tasks: w.offset("pid", "tasks")?, links: w.offset("task_struct", "pid_links")?, size: w.size("pid")? };
    let head = w.symbol("init_pid_ns")?.plus(w.offset("pid_namespace", "idr.idr_rt.xa_head")?);
    let root = w.pointer("init_pid_ns.idr", head)?;
    let node = Node { slots: w.offset("xa_node", "slots")?, size: w.size("xa_node")? };
    xarray(w, node, root, XA_LEVELS, &mut |w, at| {
        w.need("struct pid", at, pid.size);
        match w.pointer("pid.tasks", at.plus(pid.tasks)) {
            Ok(link) if w.is_kernel(link) => task(w, &layout, VirtAddr(link.0.wrapping_sub(pid.links)), false),
            Ok(_) => {}
            Err(error) => w.missed(error),
        }
    });
    w.found = Some(w.tasks.len() as u64);
    Ok(())
}

struct Pid {
    tasks: u64,
    links: u64,
    size: u64,
}

#[derive(Clone, Copy)]
struct Node {
    slots: u64,
    size: u64,
}

/// Calls `each` with what an xarray holds (include/linux/xarray.h): an entry that ends in the bits 10 is a node, one that ends in 00 a
/// pointer.
fn xarray(
    w: &mut Walker<'_>,
    node: Node,
    entry: VirtAddr,
    levels: u32,
    each: &mut dyn FnMut(&mut Walker<'_>, VirtAddr),
) {
    if !w.is_kernel(entry) || w.tasks.len() >= MAX_TASKS {
        return;
    }
    match entry.0 & 3 {
        0 => each(w, entry),
        2 if levels > 0 && w.visit() => {
            let at = VirtAddr(entry.0 - 2);
            w.need("xa_node", at, node.size);
            let mut slots = [0; XA_SLOTS as usize * 8];
            if let Err(error) = w.read("xa_node.slots", at.plus(node.slots), &mut slots) {
                w.missed(error);
                return;
            }
            for slot in slots.as_chunks::<8>().0 {
                xarray(w, node, VirtAddr(u64::from_le_bytes(*slot)), levels - 1, each);
            }
        }
        _ => {}
    }
}

/// A task, which may be on a cpu: itself, its stack, its memory's and its process's description.
fn task(w: &mut Walker<'_>, layout: &Layout, at: VirtAddr, runs: bool) {
    if !w.is_kernel(at) || w.tasks.len() >= MAX_TASKS || !w.tasks.insert(at) {
        return;
    }
    w.need("task_struct", at, layout.size);
    // All pointers in one piece, for there may be many tasks: a read takes longer than it takes to copy what is between.
    let last = layout.belongings.iter().map(|row| row.1).fold(layout.stack, u64::max);
    let mut bytes = vec![0; (last + 8).min(layout.size) as usize];
    let read = w.read("task_struct", at, &mut bytes);
    if let Err(error) =
        read.and_then(|()| stack(w, layout, at, &bytes, runs)).and_then(|()| belongings(w, layout, &bytes))
    {
        w.missed(error);
    }
}

/// The pointer at `offset` of `bytes`; 0, which leads nowhere, where they end before.
fn pointer(bytes: &[u8], offset: u64) -> VirtAddr {
    let word = bytes.get(offset as usize..).and_then(|rest| rest.first_chunk());
    VirtAddr(word.map_or(0, |word| u64::from_le_bytes(*word)))
}

/// The stack of the task at `at`, which begins with `bytes`. One that has ended has none.
fn stack(w: &mut Walker<'_>, layout: &Layout, at: VirtAddr, bytes: &[u8], runs: bool) -> Work {
    let base = pointer(bytes, layout.stack);
    if !w.is_kernel(base) {
        return Ok(());
    }
    w.need("a kernel stack", base, layout.stack_bytes);
    // gdb's unwinder looks one word beyond; behind all stacks but the first task's nothing is mapped.
    w.may_need(base.plus(layout.stack_bytes));
    if w.stacks == 0 {
        return Ok(());
    }
    // What it has in use. Of a task that runs nothing tells: all of it is looked through.
    let sp = w.pointer("task_struct.thread.sp", at.plus(layout.sp))?;
    let used = base.plus(layout.stack_bytes).0.wrapping_sub(sp.0);
    if runs {
        super::unwind::note_code(w, base, layout.stack_bytes);
    } else if used <= layout.stack_bytes {
        super::unwind::note_code(w, sp, used);
    }
    Ok(())
}

/// What the task that begins with `bytes` points at; what others pointed at as well was looked at already.
fn belongings(w: &mut Walker<'_>, layout: &Layout, bytes: &[u8]) -> Work {
    for (what, offset, size) in &layout.belongings {
        let object = pointer(bytes, *offset);
        if !w.is_kernel(object) || !w.objects.insert(object) {
            continue;
        }
        w.need(what, object, *size);
        if let (MM, Some(counters)) = (*what, layout.counters) {
            per_cpu_counters(w, object, counters)?;
        }
    }
    Ok(())
}

/// The counters of an `mm_struct` that lie per cpu. Those of many lie in one page of each cpu.
fn per_cpu_counters(w: &mut Walker<'_>, mm: VirtAddr, (first, size): (u64, u64)) -> Work {
    let mut bytes = vec![0; (MM_COUNTERS * size).min(MAX_TASK_BYTES) as usize];
    // `counters` is the first counter's pointer; the bytes from there on hold those of all.
    w.read("mm_struct.rss_stat", mm.plus(first), &mut bytes)?;
    for counter in 0..MM_COUNTERS {
        let at = pointer(&bytes, counter * size);
        if w.objects.insert(VirtAddr(at.0 & !0xfff)) {
            for cpu in 0..w.per_cpu.len() {
                let offset = w.per_cpu.get(cpu).copied().unwrap_or_default();
                w.need("mm_struct.rss_stat", at.plus(offset), 4);
            }
        }
    }
    Ok(())
}
