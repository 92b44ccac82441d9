"""How far something long has come, for people."""

from __future__ import annotations

import threading


class Meter:
    """Bytes done of a whole. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what = ""
        self._done = 0
        self._whole = 0

    def begin(self, what: str, whole: int) -> None:
        with self._lock:
            self._what, self._done, self._whole = what, 0, whole

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count

    def end(self) -> None:
        with self._lock:
            self._what = ""

    @property
    def text(self) -> str:
        """As "shipping step 40, 62 of 306 MB"; empty between two of them."""
        with self._lock:
            if not self._what:
                return ""
            return f"{self._what}, {min(self._done, self._whole) / 1e6:.0f} of {self._whole / 1e6:.0f} MB"
