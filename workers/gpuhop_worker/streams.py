"""Logs and metrics on their way to the store: numbered gzip segments, each rewritten by its one writer until full."""

from __future__ import annotations

import errno
import gzip
import os
import threading
from io import FileIO
from typing import List

from gpuhop_worker.store import GrantStore

SEGMENT = 512 * 1024  # raw bytes; small enough that rewriting one every few seconds costs little


class SegmentStream:
    """Thread-safe append and flush; without keys nothing is shipped. When the granted keys run out, the last segment
    either grows without end (metrics: nothing may be lost) or keeps the newest bytes and says how much was dropped."""

    def __init__(self, store: GrantStore, keys: List[str], *, may_drop: bool, segment: int = SEGMENT) -> None:
        self._store = store
        self._keys = keys
        self._may_drop = may_drop
        self._segment = segment
        self._done: List[bytes] = []  # full segments not shipped yet
        self._current = bytearray()
        self._number = 0  # index into keys of the first unshipped segment
        self._dirty = False
        self._dropped = 0
        self._lock = threading.Lock()  # guards the buffers
        self._flushing = threading.Lock()  # one flush at a time, so segments land in order

    def append(self, data: bytes) -> None:
        with self._lock:
            self._current += data
            self._dirty = True
            while len(self._current) >= self._segment and self._number + len(self._done) + 1 < len(self._keys):
                cut = self._current.rfind(b"\n", 0, self._segment) + 1 or self._segment
                self._done.append(bytes(self._current[:cut]))
                del self._current[:cut]
            if self._may_drop and len(self._current) > 2 * self._segment:
                cut = len(self._current) - self._segment
                cut = self._current.find(b"\n", cut) + 1 or cut
                self._dropped += cut
                del self._current[:cut]

    def flush(self) -> None:
        """Ship what is new. Raises StoreFailure; nothing is forgotten, the next flush ships it."""
        with self._flushing:
            while self._keys:
                with self._lock:
                    full = self._done[0] if self._done else None
                    body = bytes(self._current) if full is None else full
                    key = self._keys[self._number]
                    if full is None and not self._dirty:
                        return
                    self._dirty = self._dirty and full is not None
                    dropped = self._dropped
                try:
                    self._put(key, body, dropped if full is None else 0)
                except BaseException:
                    with self._lock:
                        self._dirty = True
                    raise
                if full is None:
                    return
                with self._lock:
                    self._done.pop(0)
                    self._number += 1

    def _put(self, key: str, body: bytes, dropped: int) -> None:
        note = b"gpuhop: %d bytes of log were dropped here\n" % dropped if dropped else b""
        self._store.put(key, gzip.compress(note + body, compresslevel=3, mtime=0))


class MetricsFile:
    """The lines that the command logs into a file, on their way to the store. Thread-safe."""

    def __init__(self, path: str, stream: SegmentStream) -> None:
        self._path = path
        self._stream = stream
        self._read = 0
        self._lines = 0
        self._lock = threading.Lock()

    def durable(self) -> int:
        """All whole lines written so far are in the store when this returns; their number. Raises StoreFailure."""
        with self._lock:
            try:
                with open(self._path, "rb") as source:
                    source.seek(self._read)
                    data = source.read()
            except FileNotFoundError:
                return 0
            data = data[: data.rfind(b"\n") + 1]
            self._read += len(data)
            self._lines += data.count(b"\n")
            if data:
                self._stream.append(data)
            self._stream.flush()
            return self._lines

    def cut(self, step: int) -> None:
        """The command crashed and will log again from this step on: a mark says so to readers (format.md R51). A line
        that it had only begun is removed. Raises OSError; the file is then as it was, without the torn line."""
        with self._lock:
            try:
                with open(self._path, "r+b", buffering=0) as file:
                    file.seek(self._read)
                    end = self._read + file.read().rfind(b"\n") + 1
                    file.truncate(end)
                    if end:
                        file.seek(end)
                        _whole_line(file, b'{"step":%d,"~cut":true}\n' % step, end)
            except FileNotFoundError:
                return


def _whole_line(file: FileIO, line: bytes, end: int) -> None:
    """The line at `end` of the file, or nothing of it. Raises OSError."""
    try:
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(end)
        raise
