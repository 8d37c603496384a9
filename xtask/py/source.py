"""The memory a dump was made from: an ELF core read by its program headers, anything else through libkdumpfile.

Written against the ELF specification alone and sharing nothing with coresift, so that the two cannot be wrong together.
"""

import mmap
import struct

from kdumpfile import Dump

PT_LOAD, PT_NOTE, PN_XNUM = 1, 4, 0xFFFF
KERNEL_IMAGE = 0xFFFFFFFF80000000
"""x86-64: __START_KERNEL_map. /proc/vmcore has the kernel image in a segment of its own; QEMU's cores do not."""


class ElfCore:
    """A 64-bit little-endian ELF core. Where segments overlap, the first one in the file has the word."""

    page_size = 4096

    def __init__(self, path):
        self.file = open(path, "rb")
        self.map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        phoff, shoff = struct.unpack_from("<QQ", self.map, 32)
        size, count = struct.unpack_from("<HH", self.map, 54)
        if count == PN_XNUM:
            count = struct.unpack_from("<I", self.map, shoff + 44)[0]
        self.loads, self.notes, self.image = [], [], []
        for i in range(count):
            kind, _, offset, vaddr, paddr, filesz, _, _ = struct.unpack_from("<IIQQQQQQ", self.map, phoff + i * size)
            if kind == PT_LOAD and paddr != 2**64 - 1:
                self.loads.append((paddr, paddr + filesz, offset))
                if vaddr >= KERNEL_IMAGE:
                    self.image.append((paddr, paddr + filesz))
            elif kind == PT_NOTE:
                self.notes.append((offset, filesz))

    def page(self, pfn):
        """The bytes of a page, zeros where a segment covers it in part; None where no segment has file data of it."""
        start = pfn * self.page_size
        end = start + self.page_size
        for first, last, offset in self.loads:
            if first <= start and end <= last:
                return self.map[offset + start - first : offset + end - first]
        page, found = bytearray(self.page_size), False
        for first, last, offset in reversed(self.loads):
            low, high = max(first, start), min(last, end)
            if low < high:
                page[low - start : high - start] = self.map[offset + low - first : offset + high - first]
                found = True
        return bytes(page) if found else None

    def in_image(self, pfn):
        """Whether a page frame is part of the kernel image, as far as the segments tell."""
        return any(first <= pfn * self.page_size < last for first, last in self.image)

    def read(self, address, length):
        """`length` bytes of physical memory."""
        out = bytearray()
        while len(out) < length:
            at = address + len(out)
            page = self.page(at // self.page_size)
            if page is None:
                raise OSError(f"no file data at physical address {at:#x}")
            inside = at % self.page_size
            out += page[inside : inside + length - len(out)]
        return bytes(out)

    def vmcoreinfo(self):
        """The VMCOREINFO note as a dictionary of texts."""
        for offset, size in self.notes:
            at, end = offset, offset + size
            while at + 12 <= end:
                namesz, descsz, _ = struct.unpack_from("<III", self.map, at)
                name = self.map[at + 12 : at + 12 + namesz].rstrip(b"\0")
                start = at + 12 + (namesz + 3) // 4 * 4
                if name == b"VMCOREINFO":
                    text = self.map[start : start + descsz].decode(errors="replace")
                    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
                at = start + (descsz + 3) // 4 * 4
        return {}


def open_source(path):
    """Whatever `path` is, with a method page(pfn)."""
    with open(path, "rb") as file:
        magic = file.read(4)
    return ElfCore(path) if magic == b"\x7fELF" else Dump(path)
