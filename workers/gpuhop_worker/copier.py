"""One thread that copies beside the training. It stays: starting one for each save would cost the training more than
handing it work."""

from __future__ import annotations

import queue
import threading
import time
from typing import Callable, Optional


class Copier:
    """One piece of work at a time."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: Optional[threading.Thread] = None

    def start(self, work: Callable[[], None]) -> None:
        """`work` must not raise. Waits for the work before it."""
        self.join()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpuhop-copy", daemon=True)
            self._thread.start()
        self._idle.clear()
        self._work.put(work)

    def join(self) -> float:
        """Wait until the work is done; returns for how many seconds."""
        if self._idle.is_set():
            return 0.0
        began = time.monotonic()
        self._idle.wait()
        return time.monotonic() - began

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            finally:
                self._idle.set()
