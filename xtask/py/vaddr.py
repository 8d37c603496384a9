"""vaddr.py CORE: a kernel virtual address that is mapped: that of init_uts_ns, from VMCOREINFO."""

import sys

from source import open_source

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("0x" + open_source(sys.argv[1]).vmcoreinfo()["SYMBOL(init_uts_ns)"])
