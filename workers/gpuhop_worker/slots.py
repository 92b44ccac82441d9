"""Memory that the user's process and the runner share: the newest state, raw, and the one before it.

Two slots take turns; a third, a file, takes a session's last snapshot when the one before it has not left yet. Where
the memory does not reach for two, three files take turns instead.
On Linux the two are anonymous memory files of the runner (memfd): copying into them runs at the speed of memory,
nothing is written back to a disk, and they vanish with the runner, however it dies. Elsewhere they are files in the
session's folder. A command that crashes leaves its last whole snapshot in a slot.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any, Iterable, List, Optional, Tuple

from gpuhop_worker import files

ALIGN = 64  # bytes; every tensor begins on a cache line
MEMORY = ("a", "b", "c")  # the last one is a file: it is wanted seldom
DISK = ("c", "d", "e")  # where memory is short
NAMES = ("a", "b", "c", "d", "e")


def layout(sizes: List[int]) -> Tuple[List[int], int]:
    """(offset of each part, whole size)."""
    offsets, place = [], 0
    for size in sizes:
        offsets.append(place)
        place += -(-size // ALIGN) * ALIGN
    return offsets, place


class Slot:
    """One of the two, mapped. `path` may be a plain file or /proc/<runner>/fd/<number>."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._map: Optional[mmap.mmap] = None
        self._address = 0  # of the mapping

    @property
    def size(self) -> int:
        """Bytes that are there, mapped or not."""
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes, really: raises OSError (ENOSPC) now rather than a bus error while copying."""
        if self._map is not None and len(self._map) >= size:
            return
        self.close()
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _fill_up(handle, max(size, mmap.PAGESIZE))
            self._mapped(mmap.mmap(handle, max(size, mmap.PAGESIZE)))
        finally:
            os.close(handle)
        assert self._map is not None
        _touch(self._map)

    def write(self, parts: Iterable[Tuple[int, Any]], size: int) -> None:
        """Put (offset, bytes) into a slot that need not have been reserved, of `size` bytes in all. Raises OSError.

        Memory that is written through the system before it is mapped costs half of what a page fault for every 4 KiB
        costs (125 against 240 ms for 320 MB here)."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size < max(size, mmap.PAGESIZE):
                os.ftruncate(handle, max(size, mmap.PAGESIZE))
                if hasattr(os, "posix_fallocate") and not self._path.startswith("/proc/"):
                    os.posix_fallocate(handle, 0, max(size, 1))  # holes would be bus errors on a full disk
            for offset, data in parts:
                _write_all(handle, data, offset)
        finally:
            os.close(handle)

    def view(self, offset: int, size: int) -> memoryview:
        """Writable bytes of a reserved slot."""
        assert self._map is not None
        return memoryview(self._map)[offset : offset + size]

    def take(self, offset: int, address: int, size: int) -> None:
        """Copy `size` bytes from an address of this process, with the interpreter lock released."""
        assert self._map is not None and offset >= 0 and offset + size <= len(self._map)
        ctypes.memmove(self._address + offset, address, size)

    def _mapped(self, made: mmap.mmap) -> None:
        self._map = made
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(made))

    def open(self) -> None:
        """Map what is there, to read it."""
        handle = os.open(self._path, os.O_RDWR)
        try:
            size = os.fstat(handle).st_size
            if self._map is not None and len(self._map) == size:
                return
            self.close()
            self._mapped(mmap.mmap(handle, size))
        finally:
            os.close(handle)

    def close(self) -> None:
        """Silent while somebody still holds a view: the mapping then lives as long as the view does."""
        mapped, self._map = self._map, None
        if mapped is not None:
            try:
                mapped.close()
            except BufferError:
                pass


def _fill_up(handle: int, size: int) -> None:
    """Zeros up to `size`: the space is then there, and its pages need no fault each. Where it does not suffice, nothing
    of it stays taken: the training needs the disk too."""
    zeros = memoryview(bytes(1 << 20))
    place = before = os.fstat(handle).st_size
    try:
        while place < size:
            place += os.pwrite(handle, zeros[: size - place], place)
    except OSError:
        os.ftruncate(handle, before)
        raise


def _write_all(handle: int, data: Any, offset: int) -> None:
    rest = memoryview(data)
    while len(rest):
        done = os.pwrite(handle, rest, offset)
        rest, offset = rest[done:], offset + done


def _touch(mapped: mmap.mmap) -> None:
    """Read a byte here and there: the system maps the pages around each, so that the first copy finds them mapped."""
    view = memoryview(mapped)
    for start in range(0, len(view), 16 << 20):  # in pieces: other threads get their turn in between
        max(view[start : start + (16 << 20) : 16 * mmap.PAGESIZE])


class Picker:
    """Which slot the next snapshot may use: never the last committed one (the base of differences), never one that is
    on its way. `restored`: the slot that holds the state this process began with; `base`: that of the last committed
    one, where the restored one has not left yet."""

    def __init__(self, restored: Optional[str] = None, base: Optional[str] = None) -> None:
        self._taken: List[str] = [name for name in (base, restored) if name]
        self._names = MEMORY

    def pick(self, waiting: bool) -> str:
        """`waiting`: the snapshot before has not left yet."""
        busy = self._taken[-2:] if waiting else self._taken[-1:]
        return next(name for name in self._names if name not in busy)

    def use_disk(self) -> None:
        """From now on files only."""
        self._names = DISK

    def next_two(self) -> List[str]:
        """The slots that the next two snapshots will use, when each leaves before the next."""
        first = self.pick(waiting=False)
        return [first, next(name for name in self._names if name != first)]

    def took(self, name: str) -> None:
        self._taken.append(name)

    def dropped(self, name: str) -> None:
        """What was taken last never became whole: the one before it is still the newest."""
        if self._taken and self._taken[-1] == name:
            self._taken.pop()


class SlotKeeper:
    """The runner's side: makes the slots and tells their paths. `folder`: for those that are files."""

    def __init__(self, folder: str, *, memory: bool) -> None:
        self._handles: List[int] = []
        self._memory = memory
        self.paths = {name: self._make(folder, name) for name in NAMES}
        self._slots = {name: Slot(path) for name, path in self.paths.items()}

    def _make(self, folder: str, name: str) -> str:
        if self._memory and name not in DISK and hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            try:
                handle = os.memfd_create(f"gpuhop-{name}")
                self._handles.append(handle)
                return f"/proc/{os.getpid()}/fd/{handle}"
            except OSError:
                pass  # a sandbox that forbids it: a file does the same, slower
        path = os.path.join(folder, f"slot-{name}")
        files.remove(path)
        return path

    def slot(self, name: str) -> Slot:
        return self._slots[name]

    def opened(self, name: str) -> Slot:
        """With what another process wrote into it."""
        self._slots[name].open()
        return self._slots[name]

    def close(self) -> None:
        for slot in self._slots.values():
            slot.close()
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()


def copy(target: memoryview, source: Any) -> None:
    """Bytes to bytes, with the interpreter lock released where NumPy is there (memoryview assignment holds it). It is
    not imported for that: its generator would become a part of the state in the middle of a training."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        target[:] = source
        return
    numpy.copyto(numpy.frombuffer(target, numpy.uint8), numpy.frombuffer(source, numpy.uint8))
