"""The session's log: what the command printed and what the worker says, secrets masked, to the store and to stdout."""

from __future__ import annotations

import os
import threading
from typing import Iterable, List

from gpuhop_worker.streams import SegmentStream

STDOUT = 1
MIRROR = 1 << 20  # bytes that may wait for somebody to read stdout
CLOSE_S = 5.0  # that a session waits at its end for the same
SHORTEST = 4  # characters; a shorter secret would mask half the log


class Logbook:
    """Thread-safe. `secrets`: values that must never be seen; each long line of one counts too (private keys)."""

    def __init__(self, stream: SegmentStream, secrets: Iterable[str]) -> None:
        self._stream = stream
        self._secrets = _needles(secrets)
        self._held = b""  # the end of the output so far, where a secret may have begun
        self._lock = threading.Lock()
        self._mirror = _Mirror()

    def say(self, text: str) -> None:
        """A line of the worker's own."""
        with self._lock:
            self._write(self._masked(f"gpuhop: {text}\n".encode("utf-8", "replace")))

    def output(self, piece: bytes) -> None:
        """A piece of the command's output. A secret may be cut anywhere between two pieces."""
        with self._lock:
            text = self._masked(self._held + piece)
            keep = max((_overlap(text, secret) for secret in self._secrets), default=0)
            self._held = text[len(text) - keep :]
            self._write(text[: len(text) - keep])

    def output_ends(self) -> None:
        """The command is over: what was held back is no secret."""
        with self._lock:
            held, self._held = self._held, b""
            self._write(held)

    def close(self) -> None:
        """Let stdout take what it still takes; nothing goes there afterwards."""
        self._mirror.close()

    def flush(self) -> None:
        """Raises StoreFailure; the next flush ships it then."""
        self._stream.flush()

    def _masked(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, b"***")
        return data

    def _write(self, data: bytes) -> None:
        if not data:
            return
        self._stream.append(data)
        self._mirror.write(data)


class _Mirror:
    """Copies the log to stdout from a thread of its own: nobody may be reading there, and training must not wait."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._left_out = 0
        self._begun = self._busy = self._closed = False
        self._changed = threading.Condition()

    def write(self, data: bytes) -> None:
        with self._changed:
            if self._closed:
                return
            if not self._begun:
                self._begun = True
                threading.Thread(target=self._run, name="gpuhop-stdout", daemon=True).start()
            if len(self._waiting) > MIRROR:
                self._left_out += len(data)
                return
            if self._left_out:
                self._waiting += b"gpuhop: %d bytes are not shown here\n" % self._left_out
                self._left_out = 0
            self._waiting += data
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._waiting or self._busy), timeout=CLOSE_S)
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or bool(self._waiting))
                if self._closed:
                    return
                data, self._waiting, self._busy = self._waiting, bytearray(), True
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(STDOUT, view) :]
            except OSError:  # a closed pipe, a full disk: the stream goes on, and so does training
                with self._changed:
                    self._closed = True
                    self._changed.notify_all()
                return


def _needles(secrets: Iterable[str]) -> List[bytes]:
    values = [part for value in secrets for part in (value, *value.splitlines(), value.strip())]
    return sorted({v.encode("utf-8", "replace") for v in values if len(v) >= SHORTEST}, key=len, reverse=True)


def _overlap(text: bytes, secret: bytes) -> int:
    """Length of the longest end of text that is a beginning of secret, but not all of it."""
    for length in range(min(len(text), len(secret) - 1), 0, -1):
        if text.endswith(secret[:length]):
            return length
    return 0
