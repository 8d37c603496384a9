"""same_pages.py OURS THEIRS [GUARDED]: whether two dumps of one core hold the same pages with the same bytes. Exit 1 when they do not.

Of kdump-compressed files pages are what their bitmap says; of ELF files what has file data, and a page of zeros is as good as none.
Up to GUARDED pages may be in OURS alone: those that it keeps although their class is left out."""

import sys

from kdumpfile import KdumpError
from source import ElfCore, open_source


def pages(dump):
    """The page frames of a dump."""
    if not isinstance(dump, ElfCore):
        return {pfn for first, end in dump.stored() for pfn in range(first, end)}
    size = dump.page_size
    return {pfn for start, end, _ in dump.loads for pfn in range(start // size, -(-end // size))}


def content(dump, pfn):
    """The bytes of a page, None for a lost one."""
    try:
        return dump.page(pfn)
    except KdumpError:
        return None


def main(ours, theirs, guarded=0):
    a, b = open_source(ours), open_source(theirs)
    if isinstance(a, ElfCore) != isinstance(b, ElfCore):
        print("one is an ELF file, the other is not")
        return 1
    in_a, in_b = pages(a), pages(b)
    zeros = bytes(a.page_size)
    counts = dict.fromkeys(("same", "only ours", "only theirs", "different", "lost in ours", "lost in theirs"), 0)
    examples = {}

    def count(kind, pfn):
        counts[kind] += 1
        examples.setdefault(kind, pfn)

    for pfn in sorted(in_a | in_b):
        x = content(a, pfn) if pfn in in_a else None
        y = content(b, pfn) if pfn in in_b else None
        if x == y and x is not None:
            count("same", pfn)
        elif isinstance(a, ElfCore) and (x or zeros) == (y or zeros):
            count("same", pfn)
        elif pfn not in in_b:
            count("only ours", pfn)
        elif pfn not in in_a:
            count("only theirs", pfn)
        elif x is None and y is None:
            count("same", pfn)
        elif x is None or y is None:
            count("lost in ours" if x is None else "lost in theirs", pfn)
        else:
            count("different", pfn)
    print(", ".join(f"{n} {kind}" + (f" (first: pfn {examples[kind]:#x})" if kind != "same" else "")
                    for kind, n in counts.items() if n))
    wrong = sum(counts.values()) - counts["same"] - min(counts["only ours"], guarded)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        sys.exit(main(sys.argv[1], sys.argv[2], int((sys.argv + [0])[3]) if len(sys.argv) == 4 else 0))
    except KdumpError as failure:
        print(f"libkdumpfile does not open it: {failure}")
        sys.exit(1)
