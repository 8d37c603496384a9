"""libkdumpfile by ctypes: the library that comes inside drgn's PyPI wheel, or the one the system has."""

import ctypes
import ctypes.util
import glob
import importlib.util
import os

OK, NODATA = 0, 3
KPHYSADDR, MACHPHYSADDR, KVADDR = 0, 1, 2
NUMBER, ADDRESS, STRING, BITMAP = 2, 3, 4, 5
MMAP_NEVER = 0
"""Values of kdump_status, kdump_addrspace_t, kdump_attr_type_t and kdump_mmap_policy_t in libkdumpfile/kdumpfile.h."""


class _Value(ctypes.Union):
    _fields_ = [("number", ctypes.c_uint64), ("string", ctypes.c_char_p), ("pointer", ctypes.c_void_p)]


class _Attr(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("value", _Value)]


def _library():
    spec = importlib.util.find_spec("drgn")
    bundled = []
    if spec and spec.origin:
        site = os.path.dirname(os.path.dirname(spec.origin))
        bundled = glob.glob(os.path.join(site, "drgn.libs", "libkdumpfile-*.so*"))
    name = bundled[0] if bundled else ctypes.util.find_library("kdumpfile")
    if not name:
        raise SystemExit("libkdumpfile is neither in drgn's wheel nor on this system; `cargo xtask peers` installs it")
    lib = ctypes.CDLL(name, use_errno=True)
    lib.kdump_new.restype = ctypes.c_void_p
    lib.kdump_get_err.restype = ctypes.c_char_p
    lib.kdump_get_err.argtypes = [ctypes.c_void_p]
    lib.kdump_clear_err.argtypes = [ctypes.c_void_p]
    lib.kdump_open_fdset.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.POINTER(ctypes.c_int)]
    lib.kdump_get_attr.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Attr)]
    lib.kdump_set_attr.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Attr)]
    lib.kdump_read.argtypes = [
        ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
    lib.kdump_vmcoreinfo_raw.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    for find in (lib.kdump_bmp_find_set, lib.kdump_bmp_find_clear):
        find.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]
    return lib


class KdumpError(Exception):
    """What the library says is wrong."""


class Dump:
    """An opened dump."""

    def __init__(self, path):
        self.path = path
        self.lib = _library()
        self.file = open(path, "rb")
        self.context = self.lib.kdump_new()
        # Never mapped: where a file ends before its data, a read fails and a mapping kills the process.
        self._set("file.mmap_policy", _Attr(type=NUMBER, value=_Value(number=MMAP_NEVER)))
        self._check(self.lib.kdump_open_fdset(self.context, 1, ctypes.byref(ctypes.c_int(self.file.fileno()))))
        self.page_size = self.attribute("arch.page_size") or 4096
        self._buffer = ctypes.create_string_buffer(self.page_size)

    def _check(self, status):
        if status != OK:
            text = (self.lib.kdump_get_err(self.context) or b"").decode()
            self.lib.kdump_clear_err(self.context)
            raise KdumpError(f"{self.path}: {text or status}")

    def attribute(self, key):
        """The value of an attribute, None where it is not set. A bitmap comes as its handle."""
        attr = _Attr()
        status = self.lib.kdump_get_attr(self.context, key.encode(), ctypes.byref(attr))
        self.lib.kdump_clear_err(self.context)
        if status != OK:
            return None
        if attr.type == STRING:
            return attr.value.string.decode(errors="replace")
        return attr.value.pointer if attr.type > STRING else attr.value.number

    def set_string(self, key, text):
        """Sets a string attribute."""
        self._set(key, _Attr(type=STRING, value=_Value(string=text.encode())))

    def _set(self, key, attr):
        self._check(self.lib.kdump_set_attr(self.context, key.encode(), ctypes.byref(attr)))

    def read(self, address, length, space=MACHPHYSADDR):
        """`length` bytes at `address`, which must not cross a page that is not stored."""
        buffer = ctypes.create_string_buffer(length)
        size = ctypes.c_size_t(length)
        self._check(self.lib.kdump_read(self.context, space, address, buffer, ctypes.byref(size)))
        return buffer.raw[: size.value]

    def page(self, pfn):
        """The bytes of a page, None where the file says it does not hold them."""
        size = ctypes.c_size_t(self.page_size)
        status = self.lib.kdump_read(
            self.context, MACHPHYSADDR, pfn * self.page_size, self._buffer, ctypes.byref(size))
        if status == NODATA:
            self.lib.kdump_clear_err(self.context)
            return None
        self._check(status)
        return self._buffer.raw

    def vmcoreinfo(self):
        """The VMCOREINFO text as a dictionary."""
        self.set_string("addrxlat.ostype", "linux")
        lines = ctypes.c_void_p()
        self._check(self.lib.kdump_vmcoreinfo_raw(self.context, ctypes.byref(lines)))
        text = ctypes.string_at(lines).decode(errors="replace")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def in_image(self, _pfn):
        """A kdump file does not tell."""
        return False

    def stored(self):
        """The page frames the file holds, as (first, end), ascending."""
        bitmap = self.attribute("file.pagemap")
        at = ctypes.c_uint64(0)
        while self.lib.kdump_bmp_find_set(bitmap, ctypes.byref(at)) == OK:
            first = at.value
            status = self.lib.kdump_bmp_find_clear(bitmap, ctypes.byref(at))
            end = at.value if status == OK else (self.attribute("max_pfn") or first)
            yield first, end
            if status != OK or end <= first:
                break
