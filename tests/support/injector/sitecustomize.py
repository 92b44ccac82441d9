"""Faults at counted calls, inside a real worker or its command: Python runs this file at its start when the folder is
on its path. See tests/support/injection.py for what can be asked, by the variable GPUHOP_FAULT.

Only calls count that touch the session's own files, its memory slots, or the folder store. What a call touches is told
by kind ("draft", "slot", "pack"), so that a point keeps its name from run to run: `<who> <call> <what>`.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import io
import json
import mmap
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

REAL_OPEN, REAL_WRITE, REAL_LINK = os.open, os.write, os.readlink
REAL_FILE, REAL_TIME = builtins.open, time.time

KINDS: list[tuple[str, str]] = [
    (r"memfd:gpuhop-|/slot-[abc]$", "slot"),
    (r"/spool/snap-\d+$", "snap"),
    (r"/spool$", "spool"),
    (r"/draft\.json", "draft"),
    (r"/ctl/metrics\.jsonl\.claim$", "claim"),
    (r"/ctl/metrics\.jsonl$", "lines"),
    (r"/ctl/progress\.json", "progress"),
    (r"/ctl/manifest\.json", "state"),
    (r"/ctl/session\.json", "session"),
    (r"/ctl/drain", "drain"),
    (r"/session-\d+/claimed$", "claimed"),
    (r"/session-\d+(/ctl)?$", "home"),
    (r"/session-\d+/code(/.*)?$", "code"),
    (r"/store/.*/\.tmp-", "temp"),
    (r"/store/.*/pack-", "pack"),
    (r"/store/.*/manifest-", "manifest"),
    (r"/store/.*/(metrics|log)-", "segment"),
    (r"/store/.*/(beat|control)\.json$", "beat"),
    (r"/store/.*/result\.json$", "result"),
    (r"/store/.*/(code-|grant)", "code"),
    (r"/store/jobs/[^/]+(/t\d+)?$", "shelf"),
]
PATTERNS = [(re.compile(pattern), kind) for pattern, kind in KINDS]


def place_of(where: Any, folder: int | None = None) -> str:
    """The path behind a path, a handle, or a path below a handle."""
    try:
        if isinstance(where, int):
            return REAL_LINK(f"/proc/self/fd/{where}")
        text = os.fsdecode(where)
        if text.startswith("/proc/") and "/fd/" in text:
            return REAL_LINK(text)
        if folder is not None:
            text = os.path.join(REAL_LINK(f"/proc/self/fd/{folder}"), text)
        return os.path.abspath(text)
    except (OSError, TypeError, ValueError):
        return ""


def kind_of(path: str) -> str | None:
    return next((kind for pattern, kind in PATTERNS if pattern.search(path)), None)


class Injector:
    """Counts the calls of each point; at the chosen one it does its deed."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.who = "command" if "GPUHOP_TOKEN" in os.environ else "runner"
        self.asked = asked
        self.count: dict[str, int] = {}
        self.lock = threading.Lock()
        self.skew_s = 0.0
        self.owed: dict[str, int] = {}  # by path: what a write that was cut short raises at the next try

    def meet(self, call: str, path: str) -> str | None:
        """The deed that is due at this call, None for none."""
        if self.asked.get("after") and not os.path.exists(self.asked["after"]):
            return None
        kind = kind_of(path)
        if kind is None or (kind == "code" and self.who == "command"):
            return None
        point = f"{self.who} {call} {kind}"
        with self.lock:
            self.count[point] = count = self.count.get(point, 0) + 1
        if "trace" in self.asked:
            self._note(self.asked["trace"], point)
        if point != self.asked.get("point"):
            return None
        due = count == self.asked["number"] or (self.asked["stays"] and count > self.asked["number"])
        if not due or (not self._mark() and not self.asked["stays"]):
            return None
        return str(self.asked["deed"])

    def _note(self, path: str, line: str) -> None:
        handle = REAL_OPEN(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        REAL_WRITE(handle, line.encode() + b"\n")
        os.close(handle)

    def _mark(self) -> bool:
        """True once: a command that is started again, and the other process, are spared."""
        try:
            os.close(REAL_OPEN(self.asked["mark"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def call(self, name: str, path: str, real: Callable[[], Any], half: Callable[[], int] = lambda: 0) -> Any:
        """The call, with its fault if it is the one. `half`: a part of it; a write that fails half way tells how far
        it came, and fails at the next try, as the system does it."""
        if path in self.owed and name in ("write", "pwrite"):
            raise _error(self.owed.pop(path))
        deed = self.meet(name, path)
        if deed is None:
            return real()
        late, _, deed = deed.rpartition("after ")
        if hasattr(errno, deed):
            number, done = getattr(errno, deed), half()
            if not done:
                raise _error(number)
            self.owed[path] = number
            return done
        if deed == "lost":  # it happened, and nobody is told
            real()
            raise _error(errno.EIO)
        if late:
            done = real()
            self._strike(deed)
            return done
        if deed == "kill":
            half()
        self._strike(deed)
        return real()

    def _strike(self, deed: str) -> None:
        if deed in ("forward", "back"):
            self.skew_s += 3600.0 if deed == "forward" else -3600.0
        elif deed == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            pid = {"kill": os.getpid, "kill runner": self._runner, "kill command": self._command}[deed]()
            if pid:
                os.kill(pid, signal.SIGKILL)
            if deed != "kill command":
                signal.pause()

    def _runner(self) -> int:
        with REAL_FILE(os.environ["GPUHOP_SESSION"]) as source:
            return int(json.load(source)["runner"])

    def _command(self) -> int:
        try:
            with REAL_FILE(self.asked["claim"]) as source:
                return int(source.read().split()[0])
        except (OSError, IndexError):
            return 0


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def install(one: Injector) -> None:
    def by_path(name: str, call: str, at: int = 0) -> None:
        real = getattr(os, name)

        def hooked(*args: Any, **more: Any) -> Any:
            folder = more.get("dir_fd")
            path = place_of(args[at], folder) if len(args) > at else ""
            return one.call(call, path, lambda: real(*args, **more))

        setattr(os, name, hooked)

    for name in ("open", "mkdir", "rmdir", "unlink", "listdir", "fsync", "ftruncate"):
        by_path(name, name)
    by_path("replace", "replace", 1)
    by_path("rename", "replace", 1)
    by_path("link", "link", 1)
    real_write, real_pwrite = os.write, os.pwrite

    def write(handle: int, data: Any) -> int:
        part = memoryview(data)[: len(data) // 2]
        real: Callable[[], int] = lambda: real_write(handle, data)  # noqa: E731
        return int(one.call("write", place_of(handle), real, lambda: real_write(handle, part)))

    def pwrite(handle: int, data: Any, offset: int) -> int:
        part = memoryview(data)[: len(data) // 2]
        real: Callable[[], int] = lambda: real_pwrite(handle, data, offset)  # noqa: E731
        return int(one.call("pwrite", place_of(handle), real, lambda: real_pwrite(handle, part, offset)))

    os.write, os.pwrite = write, pwrite
    _install_files(one)
    _install_memory(one)
    time.time = lambda: REAL_TIME() + one.skew_s


def _install_files(one: Injector) -> None:
    class Raw(io.FileIO):
        def write(self, data: Any) -> Any:
            view = memoryview(data).cast("B")
            part = view[: len(view) // 2]
            real: Callable[[], Any] = lambda: io.FileIO.write(self, view)  # noqa: E731
            return one.call("write", place_of(self.fileno()), real, lambda: io.FileIO.write(self, part))

        def readall(self) -> bytes:
            return bytes(one.call("read", place_of(self.fileno()), lambda: io.FileIO.readall(self)))

        def readinto(self, target: Any) -> Any:
            return one.call("read", place_of(self.fileno()), lambda: io.FileIO.readinto(self, target))

    def hooked(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **more: Any) -> Any:
        path = place_of(file) if not isinstance(file, int) else ""
        if "b" not in mode or args or more or kind_of(path) is None:
            return REAL_FILE(file, mode, buffering, *args, **more)
        plain = mode.replace("b", "")
        raw = one.call("create" if plain in ("w", "a", "x") else "fopen", path, lambda: Raw(file, plain))
        if buffering == 0:
            return raw
        return io.BufferedReader(raw) if plain == "r" else io.BufferedWriter(raw)

    builtins.open = hooked


def _install_memory(one: Injector) -> None:
    real_map, real_move = mmap.mmap, ctypes.memmove

    class Map(real_map):  # type: ignore[misc,valid-type]
        def __new__(cls, handle: int, *args: Any, **more: Any) -> Any:
            return one.call("mmap", place_of(handle), lambda: real_map.__new__(cls, handle, *args, **more))

    def memmove(target: Any, source: Any, count: int) -> Any:
        real: Callable[[], Any] = lambda: real_move(target, source, count)  # noqa: E731
        return one.call("copy", "memfd:gpuhop-", real, lambda: real_move(target, source, count // 2) and 0)

    mmap.mmap = Map  # type: ignore[assignment,misc]
    ctypes.memmove = memmove  # type: ignore[assignment]
    if hasattr(os, "memfd_create"):
        real_create = os.memfd_create
        os.memfd_create = lambda *args: one.call("memfd", "memfd:gpuhop-", lambda: real_create(*args))


if "GPUHOP_FAULT" in os.environ:
    install(Injector(json.loads(os.environ["GPUHOP_FAULT"])))
