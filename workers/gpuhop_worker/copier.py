"""One thread that copies beside the training. It stays: starting one for each save would cost the training more than
handing it work."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import traceback
from typing import Callable


class Copier:
    """One piece of work at a time. A forked process (a loader's worker, a pool's) has no copy thread and none of its
    work: it never waits for either. A process that exits in the middle of a piece ends it first."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._owner = 0  # pid of the process that has the thread

    def start(self, work: Callable[[], None]) -> None:
        """Waits for the work before it. What `work` raises is told on stderr, and stops nothing."""
        self.join()
        if self._owner != os.getpid():
            self._work, self._idle = queue.SimpleQueue(), threading.Event()
            threading.Thread(target=self._run, name="gpuhop-copy", daemon=True).start()
            self._owner = os.getpid()
            atexit.register(self.join)  # the thread ends with the interpreter, wherever it is
        self._idle.clear()
        self._work.put(work)

    def join(self) -> float:
        """Wait until the work is done; returns for how many seconds."""
        if self._idle.is_set() or self._owner != os.getpid():
            return 0.0
        began = time.monotonic()
        self._idle.wait()
        return time.monotonic() - began

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:  # without this thread the next join would wait for ever
                traceback.print_exc()
            finally:
                self._idle.set()
