"""tasks.py CORE VMLINUX: the tasks of a dump as drgn sees them, and where each one is blocked, a line each."""

import sys

import drgn
from drgn.helpers.linux.pid import for_each_task
from drgn.helpers.linux.sched import task_cpu, task_state_to_char


def main(core, vmlinux):
    program = drgn.Program()
    program.set_core_dump(core)
    program.load_debug_info([vmlinux])
    for task in for_each_task(program):
        try:
            frames = " ".join(frame.name or hex(frame.pc) for frame in program.stack_trace(task))
        except (ValueError, LookupError, drgn.FaultError) as error:
            frames = f"no stack trace: {error}"
        comm = task.comm.string_().decode(errors="replace")
        print(task.pid.value_(), comm, task_state_to_char(task), f"cpu {task_cpu(task)}", frames, sep="\t")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
