"""check_pages.py CORE DUMP [--unfinished]: every page that DUMP holds, read through libkdumpfile, against CORE. Exit 1 when one differs.

With --unfinished, pages whose descriptors were never written, or only half, are not held.
"""

import sys

from kdumpfile import Dump, KdumpError
from source import open_source


UNWRITTEN = ("Wrong page size: 0", "Wrong page size: 4294967295")
"""What libkdumpfile says of a descriptor that is all zeros, and of one that was being written."""


def main(core, dump, unfinished):
    source, made = open_source(core), Dump(dump)
    counts = dict.fromkeys(("same", "different", "not in the source", "unreadable in the dump"), 0)
    examples = []
    unwritten = 0
    for first, end in made.stored():
        for pfn in range(first, end):
            want = source.page(pfn)
            try:
                got = made.page(pfn)
                error = "its bitmap says stored, its descriptor not" if got is None else None
            except KdumpError as failure:
                got, error = None, str(failure)
            if unfinished and error and error.endswith(UNWRITTEN):
                unwritten += 1
                continue
            if error:
                kind = "unreadable in the dump"
            elif want is None:
                kind, error = "not in the source", "no segment has file data of it"
            elif got != want:
                at = next(i for i in range(len(want)) if got[i] != want[i])
                kind, error = "different", f"from byte {at} on: {got[at : at + 8].hex()}, source {want[at : at + 8].hex()}"
            else:
                kind = "same"
            counts[kind] += 1
            if error and len(examples) < 20:
                examples.append(f"  pfn {pfn:#x}: {kind}: {error}")
    print(f"{dump} against {core}, through libkdumpfile ({made.attribute('file.format')}, {made.page_size} byte pages):")
    for kind, count in counts.items():
        print(f"  {count:>10} {kind}")
    if unfinished:
        print(f"  {unwritten:>10} never written")
    print("\n".join(examples), end="\n" if examples else "")
    return 0 if (counts["same"] or unfinished) and counts["same"] == sum(counts.values()) else 1


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--unfinished"]
    if len(arguments) != 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(*arguments, "--unfinished" in sys.argv))
    except KdumpError as failure:
        sys.exit(f"libkdumpfile does not open it: {failure}")
