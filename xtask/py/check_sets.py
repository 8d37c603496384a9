"""check_sets.py CORE < RUNS: what the kernel says of page frames that two programs disagree on, in groups of equal evidence.

RUNS: a line each, WHO FIRST END (page frame numbers; WHO: the side that keeps them). With `--vmlinux FILE` the names of
all page flags come from it, else those of VMCOREINFO. The struct pages are found by mem_section (SPARSEMEM) and read
through the page tables by libkdumpfile; the pages' own bytes say whether they are zero.
"""

import argparse
import collections
import re
import struct
import sys

from kdumpfile import KVADDR, Dump, KdumpError
from source import open_source

SECTION_SHIFT, PAGE_SHIFT = 27, 12
"""x86-64: SECTION_SIZE_BITS, PAGE_SHIFT."""
TYPES = {0xF0: "buddy", 0xF1: "offline", 0xF2: "table", 0xF3: "guard", 0xF4: "hugetlb", 0xF5: "slab", 0xF6: "zsmalloc",
         0xF7: "unaccepted", 0xF8: "large kmalloc"}
"""Upper byte of page_type from 6.12 on (include/linux/page-flags.h, enum pagetype)."""


class Memmap:
    """The struct pages of a dump, by page frame number."""

    def __init__(self, path, info):
        self.info = info
        self.dump = Dump(path)
        self.dump.set_string("addrxlat.ostype", "linux")
        self.size = self.number("SIZE(page)")
        self.offset = {
            m[1]: int(v) for k, v in self.info.items() if (m := re.fullmatch(r"OFFSET\(page\.([\w.]+)\)", k))}
        self.sections = {}

    def number(self, key):
        """A number of VMCOREINFO; symbols are hexadecimal."""
        return int(self.info[key], 16 if key.startswith("SYMBOL") else 0)

    def word(self, address):
        return struct.unpack("<Q", self.dump.read(address, 8, KVADDR))[0]

    def section(self, number):
        """The address of the (imagined) struct page 0 of a section, None where it has no memory map."""
        if number not in self.sections:
            each, length = self.number("SIZE(mem_section)"), self.number("LENGTH(mem_section)")
            root = 4096 // each
            # The table of roots itself: VMCOREINFO_SYMBOL_ARRAY gives the value where mem_section is a pointer (from 4.15 on).
            table = self.number("SYMBOL(mem_section)")
            try:
                if number // root >= length:
                    raise KdumpError("beyond the last root")
                block = self.word(table + number // root * 8)
                at = block + number % root * each + int(self.info.get("OFFSET(mem_section.section_mem_map)", 0))
                value = self.word(at) if block else 0
            except KdumpError:
                value = 0
            self.sections[number] = value & ~0x3F if value & 2 else None
        return self.sections[number]

    def page(self, pfn):
        """The bytes of the struct page, None where there is none."""
        base = self.section(pfn >> (SECTION_SHIFT - PAGE_SHIFT))
        if base is None:
            return None
        try:
            return self.dump.read(base + pfn * self.size, self.size, KVADDR)
        except KdumpError:
            return None

    def fields(self, page):
        """The fields of a struct page that filtering looks at. OFFSET(page._count) was _refcount's name before 4.6."""
        at = self.offset
        return {
            "flags": struct.unpack_from("<Q", page, at.get("flags", 0))[0],
            "mapping": struct.unpack_from("<Q", page, at.get("mapping", 24))[0],
            "_mapcount": struct.unpack_from("<I", page, at.get("_mapcount", 48))[0],
            "_refcount": struct.unpack_from("<i", page, at.get("_refcount", at.get("_count", 52)))[0],
            "compound_head": struct.unpack_from("<Q", page, at.get("compound_head", 8))[0],
        }

    def head(self, pfn, state):
        """The page frame of the head of the tail page `pfn`, None where it is no tail."""
        value = state["compound_head"]
        if not value & 1:
            return None
        base = self.section(pfn >> (SECTION_SHIFT - PAGE_SHIFT))
        address = base + pfn * self.size
        # 7.1: a mask for the address of the struct page in place of the head's address, where that size is a power of two.
        head = address & (value - 1) if value >> 32 == 0xFFFFFFFF else value - 1
        return (head - base) // self.size


def flag_names(memmap, core, vmlinux):
    """Bit number to name."""
    names = {int(v, 0): k[10:-1] for k, v in memmap.info.items() if re.fullmatch(r"NUMBER\(PG_[a-z]+\)", k)}
    if vmlinux:
        import drgn

        program = drgn.Program()
        program.set_core_dump(core)
        program.load_debug_info([vmlinux])
        skip = {"__NR_PAGEFLAGS", "PG_readahead", "PG_anon_exclusive"}
        for enumerator in program.type("enum pageflags").enumerators:
            if enumerator.name not in skip:
                names.setdefault(enumerator.value, enumerator.name[3:])
    return names


def mapping_kind(value):
    """What page.mapping says, by its two low bits (include/linux/page-flags.h, PAGE_MAPPING_*)."""
    return "null" if value == 0 else ("address_space", "anon", "movable", "ksm")[value & 3]


def mapcount_kind(value):
    """What page._mapcount says: a count, or a page type above it."""
    if value == 0xFFFFFFFF:
        return "-1"
    if value < 0x80000000:
        return ">=0"
    return f"type {value:#x}" + (f" ({TYPES[value >> 24]})" if value >> 24 in TYPES else "")


def describe(memmap, pfn, source):
    """The evidence of one page frame, equal for pages of one group."""
    content = source.page(pfn)
    zero = "no data in the source" if content is None else "zero" if not any(content) else "not zero"
    page = memmap.page(pfn)
    if page is None:
        return f"no struct page | {zero}", ""
    names = memmap.flag_names
    state = memmap.fields(page)
    set_names = [n for bit, n in sorted(names.items()) if state["flags"] >> bit & 1]
    head = memmap.head(pfn, state)
    if head is not None and (of := memmap.page(head)):
        # Fields of a tail mean other things (folio counters, list ends); only its own hwpoison counts.
        parts, state = ["tail, hwpoison, of" if "hwpoison" in set_names else "tail of"], memmap.fields(of)
        set_names = [n for bit, n in sorted(names.items()) if state["flags"] >> bit & 1]
    else:
        parts = ["head" if "head" in set_names else "single"]
    parts += [
        f"flags {','.join(set_names) or '-'}", f"mapping {mapping_kind(state['mapping'])}",
        f"_mapcount {mapcount_kind(state['_mapcount'])}", f"_refcount {'>0' if state['_refcount'] > 0 else '0'}"]
    if source.in_image(pfn):
        parts.append("in the kernel image")
    return " | ".join([*parts, zero]), " ".join(f"{k} {v:#x}" for k, v in state.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("core")
    parser.add_argument("--vmlinux")
    options = parser.parse_args()
    source = open_source(options.core)
    memmap = Memmap(options.core, source.vmcoreinfo())
    memmap.flag_names = flag_names(memmap, options.core, options.vmlinux)
    groups = collections.defaultdict(list)
    for line in sys.stdin:
        who, first, end = line.split()
        for pfn in range(int(first), int(end)):
            key, raw = describe(memmap, pfn, source)
            groups[who, key].append((pfn, raw))
    for (who, key), pages in sorted(groups.items(), key=lambda g: -len(g[1])):
        print(f"    {len(pages):>7} kept by {who} only | {key}")
        for pfn, raw in pages[:2]:
            print(f"              pfn {pfn:#x} {raw}")


if __name__ == "__main__":
    main()
