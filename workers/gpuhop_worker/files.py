"""Files that are whole or absent: the one place where the worker writes to its own disk."""

from __future__ import annotations

import errno
import os
from typing import Optional, Union

Data = Union[bytes, bytearray, memoryview]
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # what a full disk says, and a full quota


def write_atomic(path: str, data: Data, *, durable: bool = False) -> None:
    """Readers see the old file or the new one. `durable`: also after a power cut (fsync of file and folder)."""
    temp = f"{path}.tmp-{os.getpid()}"
    try:
        with open(temp, "wb") as out:
            out.write(data)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        os.replace(temp, path)
    except BaseException:
        remove(temp)
        raise
    if durable:
        sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    handle = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: str) -> None:
    """Silent when there is nothing."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def read(path: str) -> bytes:
    with open(path, "rb") as source:
        return source.read()


def inside(root: str, relative: str) -> str:
    """The absolute path of `relative` under root. Raises ValueError for one that would leave it."""
    if os.path.isabs(relative) or "\x00" in relative:
        raise ValueError(f"{relative!r} is not a relative path")
    path = os.path.normpath(os.path.join(root, relative))
    if path != root and not path.startswith(root.rstrip(os.sep) + os.sep):
        raise ValueError(f"{relative!r} leaves its folder")
    return path


def process_birth(pid: int) -> Optional[str]:
    """What tells this process from a later one with the same pid; None when it has ended (also as a zombie)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            fields = source.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
    except (FileNotFoundError, ProcessLookupError):  # the second: it ends just while it is read
        if os.path.isdir("/proc/self"):
            return None
    try:  # no /proc here (macOS): the pid has to do
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"
