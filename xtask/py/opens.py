"""opens.py DUMP: whether drgn opens it; prints the kernel's release."""

import sys

import drgn


def main(dump):
    program = drgn.Program()
    program.set_core_dump(dump)
    print(program["UTS_RELEASE"].string_().decode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
