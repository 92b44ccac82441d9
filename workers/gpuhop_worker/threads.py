"""Work that is repeated on a thread of its own, until it is told to end."""

from __future__ import annotations

import threading
from typing import Callable


def every(period_s: float, act: Callable[[], None], say: Callable[[str], None]) -> Callable[[], None]:
    """Call `act` every so many seconds. Returns what ends it: waits up to a minute for the call under way."""
    end = threading.Event()

    def loop() -> None:
        while not end.wait(max(0.05, period_s)):
            try:
                act()
            except Exception as error:  # this thread must not end before it is told to
                say(f"an error, tried again later: {error!r}")
                end.wait(5.0)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()

    def stop() -> None:
        end.set()
        thread.join(timeout=60.0)

    return stop
