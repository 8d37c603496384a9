"""check_census.py CORE VMLINUX TABLE [STEP]: every STEPth row (97) of TABLE, the page frames of CORE as JSON lines, against drgn. Exit 1 when one differs.

What drgn has helpers for is theirs; what it has none for (class, mapping counts, the cgroup of a page) is computed here from its types.
"""

import collections
import json
import sys

import drgn
from drgn import Object, cast
from drgn.helpers.linux.cgroup import cgroup_path
from drgn.helpers.linux.fs import inode_path
from drgn.helpers.linux.mm import (
    PageHead,
    PageHWPoison,
    PageLRU,
    PagePrivate,
    PageSlab,
    PageSwapBacked,
    PageTail,
    compound_head,
    compound_order,
    decode_page_flags_value,
    page_flags,
    page_index,
    page_to_pfn,
    pfn_to_page,
)

LARGEST_FREE = 10
"""Order of the largest free block."""
COLUMNS = "flags class refcount mapcount index mapping inode device path slab order head cgroup cgroup_path".split()


class Kernel:
    def __init__(self, program):
        self.program = program
        self.page = program.type("struct page")
        flags = program.type("enum pageflags").enumerators
        self.flags = {}
        for name, value in flags:
            # Those behind are other names of the same bits.
            if name == "__NR_PAGEFLAGS":
                break
            self.flags.setdefault(value, name.removeprefix("PG_"))
        self.all = dict(flags)

    def member(self, structure, name):
        try:
            return self.program.type(structure).has_member(name)
        except LookupError:
            return False

    def constant(self, name):
        try:
            return self.program.constant(name).value_()
        except LookupError:
            return None

    def flag(self, page, name):
        bit = self.all.get(name)
        return bit is not None and page_flags(page).value_() >> bit & 1 == 1

    def typed(self, page):
        return page._mapcount.counter.value_() < -1

    def is_type(self, page, new, old):
        """By the numbers of `enum pagetype` (Linux 6.12), or by a bit of `page_type` that is cleared."""
        value = page._mapcount.counter.value_() & 0xFFFFFFFF
        number = self.constant(new)
        if number is not None:
            return value >> 24 == number
        return value & 0xF0000000 == 0xF0000000 and value & old == 0

    def is_hugetlb(self, head):
        if not PageHead(head):
            return False
        if self.constant("PGTY_hugetlb") is not None:
            return self.is_type(head, "PGTY_hugetlb", 0)
        destructor = self.constant("HUGETLB_PAGE_DTOR")
        return head[1].compound_dtor.value_() == destructor

    def free_block(self, page, pfn):
        for order in range(LARGEST_FREE + 1):
            head = pfn >> order << order
            try:
                candidate = pfn_to_page(self.program, head)
                if self.is_type(candidate, "PGTY_buddy", 0x80) and candidate.private.value_() >= order:
                    return head, candidate.private.value_()
            except drgn.FaultError:
                pass
        return None

    def page_class(self, page, head, free):
        poisoned = PageHWPoison(page)
        if self.is_hugetlb(head):
            return "hwpoison" if PageHWPoison(head) else "hugetlb"
        if poisoned:
            return "hwpoison"
        if free:
            return "free"
        if PageSlab(head):
            return "slab"
        if self.is_type(head, "PGTY_offline", 0x100):
            return "offline"
        if self.typed(head):
            return "kernel"
        if head.mapping.value_() & 1:
            return "user"
        if PageLRU(head) or self.flag(head, "PG_swapcache") and PageSwapBacked(head):
            return "private-cache" if PagePrivate(head) else "cache"
        return "kernel"

    def entire(self, head):
        if self.member("struct folio", "_entire_mapcount"):
            return cast("struct folio *", head)._entire_mapcount.counter.value_() + 1
        double = self.all.get("PG_double_map")
        doubly = double is not None and page_flags(head[1]).value_() >> double & 1
        return head[1].compound_mapcount.counter.value_() + 1 - int(bool(doubly))

    def memcg(self, head):
        if self.member("struct page", "memcg_data"):
            data = head.memcg_data.value_()
            if data & 1 or data == 0:
                return None
            if data & 2 or self.member("struct obj_cgroup", "is_root"):
                return Object(self.program, "struct obj_cgroup *", data & ~7).memcg
            return Object(self.program, "struct mem_cgroup *", data & ~7)
        data = head.mem_cgroup.value_()
        return Object(self.program, "struct mem_cgroup *", data) if data and not data & 1 else None

    def cgroup(self, head):
        memcg = self.memcg(head)
        while memcg and not memcg.css.flags.value_() & 2:
            parent = memcg.css.parent
            memcg = drgn.container_of(parent, "struct mem_cgroup", "css") if parent else None
        if not memcg:
            return {}
        group = memcg.css.cgroup
        return {"cgroup": group.kn.id.value_(), "cgroup_path": cgroup_path(group).decode()}

    def first_name(self, inode):
        alias = "d_alias" if self.member("struct dentry", "d_alias") else "d_u.d_alias"
        return drgn.container_of(inode.i_dentry.first, "struct dentry", alias).d_name.name.string_()

    def file(self, address):
        host = Object(self.program, "struct address_space *", address).host
        if not host:
            return {}
        device = host.i_sb.s_dev.value_()
        path = inode_path(host)
        if path is not None:
            if path.strip(b"/") == b"":
                # drgn leaves the name of a dentry without parent out: "/" of a root, "secretmem" or "memfd:x" of a file in no directory.
                path = self.first_name(host)
            path = "/" + path.decode().lstrip("/") + (" (deleted)" if host.i_nlink.value_() == 0 else "")
        return {"inode": host.i_ino.value_(), "device": f"{device >> 20}:{device & 0xfffff}", "path": path}

    def row(self, pfn):
        page = pfn_to_page(self.program, pfn)
        head = compound_head(page)
        if self.is_hugetlb(head) and page_to_pfn(head).value_() + (1 << compound_order(head).value_()) <= pfn:
            head = page
        head_pfn = page_to_pfn(head).value_()
        flags = page_flags(page).value_()
        row = {
            "flags": "|".join(name for value, name in sorted(self.flags.items()) if flags >> value & 1),
            "refcount": page._refcount.counter.value_(),
        }
        free = self.free_block(page, pfn)
        kind = row["class"] = self.page_class(page, head, free)
        if free:
            return row | {"head": free[0], "order": free[1]}
        row |= {"head": head_pfn, "order": compound_order(head).value_()}
        compound = PageHead(head)
        if kind == "slab":
            slab = cast("struct slab *", head) if self.member("struct slab", "slab_cache") else head
            row["slab"] = slab.slab_cache.name.string_().decode()
        elif kind == "hugetlb":
            row["mapcount"] = self.entire(head)
        elif not self.typed(page):
            row["mapcount"] = page._mapcount.counter.value_() + 1 + (self.entire(head) if compound else 0)
        mapping = head.mapping.value_() if kind in ("user", "cache", "private-cache", "hugetlb", "hwpoison") else 0
        if kind == "kernel" and not self.typed(page) and page.mapping.value_() & 3 == 2:
            # zsmalloc before it had a page type of its own.
            row["mapping"] = "movable"
        if mapping:
            row["mapping"] = ("file", "anon", "movable", "ksm")[mapping & 3]
            if pfn == head_pfn or kind != "hugetlb":
                row["index"] = page_index(head).value_() + pfn - head_pfn
            if mapping & 3 == 0:
                row |= {name: value for name, value in self.file(mapping).items() if value is not None}
        return row | self.cgroup(head)


def main(core, vmlinux, table, step):
    program = drgn.Program()
    program.set_core_dump(core)
    program.load_debug_info([vmlinux])
    kernel = Kernel(program)
    looked, different, told = 0, collections.Counter(), collections.Counter()
    examples = []
    with open(table) as rows:
        for number, line in enumerate(rows):
            if number % step:
                continue
            ours = json.loads(line)
            try:
                theirs = kernel.row(ours["pfn"])
            except (drgn.FaultError, LookupError, ValueError) as error:
                different["not read by drgn"] += 1
                examples.append(f"  pfn {ours['pfn']:#x}: drgn: {error}")
                continue
            looked += 1
            for column in COLUMNS:
                a, b = ours.get(column), theirs.get(column)
                if b is not None:
                    told[column] += 1
                if a != b:
                    different[column] += 1
                    if different[column] <= 4:
                        examples.append(f"  pfn {ours['pfn']:#x} ({ours['class']}): {column} is {a!r}, by drgn {b!r}")
    print(f"{core}: {looked} frames compared with drgn {drgn.__version__}")
    for column in COLUMNS:
        print(f"  {column:<12} {told[column]:>7} told by drgn {different[column]:>6} different")
    print("\n".join(examples), end="\n" if examples else "")
    return 1 if different or not looked else 0


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:4], int(sys.argv[4]) if len(sys.argv) == 5 else 97))
