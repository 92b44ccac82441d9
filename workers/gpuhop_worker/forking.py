"""Forked helpers (a multiprocessing pool's, a loader's) must die of a SIGTERM, though the script has a handler for it.

A handler alone does not do: CPython forgets the signals that a new process has got before it is ready
(`_clear_pending_signals` in PyOS_AfterFork_Child), and a pool that ends its helpers at once waits for ever for one that
missed its SIGTERM. So the signal is held back during the fork, and meets the system's own action in the helper.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, List

_held = threading.local()  # .mask: the forking thread's signal mask from before
_handlers: List[Any] = []  # of SIGTERM, that forked processes must not have


def forget_sigterm(handler: Any) -> None:
    """From now on forked processes do not have this handler of SIGTERM, and lose no SIGTERM that comes early."""
    _handlers.append(handler)
    if len(_handlers) == 1 and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forget)


def _hold() -> None:
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _forget() -> None:
    if signal.getsignal(signal.SIGTERM) in _handlers:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release()
