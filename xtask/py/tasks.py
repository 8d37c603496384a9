"""tasks.py CORE VMLINUX: the tasks of a dump as drgn sees them, and where in the kernel each one is, a line each."""

import itertools
import sys

import drgn
from drgn.helpers.linux.pid import for_each_task
from drgn.helpers.linux.sched import task_cpu, task_state_to_char

KERNEL = 1 << 63
"""Kernel addresses begin here; frames below are user memory, which a dump need not have."""


def main(core, vmlinux):
    program = drgn.Program()
    program.set_core_dump(core)
    program.load_debug_info([vmlinux])
    for task in for_each_task(program):
        try:
            trace = itertools.takewhile(lambda frame: frame.pc >= KERNEL, program.stack_trace(task))
            frames = " ".join(frame.name or hex(frame.pc) for frame in trace)
        except (ValueError, LookupError, drgn.FaultError) as error:
            frames = f"no stack trace: {error}"
        comm = task.comm.string_().decode(errors="replace")
        print(task.pid.value_(), comm, task_state_to_char(task), f"cpu {task_cpu(task)}", frames, sep="\t")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
