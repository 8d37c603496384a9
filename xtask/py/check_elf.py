"""check_elf.py CORE DUMP: every page that DUMP, an ELF core that may be cut short, brings to its end against CORE. Exit 1 when one differs.

What its program headers place beyond the end of the file it does not hold. libkdumpfile reads zeros there, so it is not asked.
"""

import sys

from source import ElfCore, open_source


def main(core, dump):
    source, made = open_source(core), ElfCore(dump)
    size, length = made.page_size, len(made.map)
    same, different = 0, []
    for first, last, offset in made.loads:
        for pfn in range((first + size - 1) // size, last // size):
            at = offset + pfn * size - first
            if at + size > length:
                continue
            if made.map[at : at + size] == source.page(pfn):
                same += 1
            else:
                different.append(pfn)
    print(f"{dump} against {core}: {same} same, {len(different)} different: {' '.join(map(hex, different[:20]))}")
    return 1 if different else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
