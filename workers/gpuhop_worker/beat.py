"""The heartbeat: a sign of life to the scheduler, and a look at its orders, on a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

from gpuhop_worker import wire
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.wire import Beat, Control


def awake() -> float:
    """Seconds that also pass while the machine is suspended, where the system counts them."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Heart:
    """`make(seq)` builds the beat, None: send none; `obey(control)` is called for every order that was read and
    verified.

    A failed beat or look is not an error: the laptop may sleep, the link may be down; training goes on.
    """

    def __init__(
        self,
        store: GrantStore,
        job: str,
        token: int,
        period_s: float,
        make: Callable[[int], Optional[Beat]],
        obey: Callable[[Control], None],
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._job = job
        self._token = token
        self._period_s = period_s
        self._make = make
        self._obey = obey
        self._say = say
        self._seq = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuhop-beat", daemon=True)
        self._last_look = awake()
        self._silent: Optional[str] = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=30.0)

    def once(self) -> None:
        self.look()
        beat = self._make(self._seq + 1)
        if beat is None:
            return
        self._seq += 1
        try:
            self._store.put(wire.beat_key(self._job, self._token), beat.to_bytes())
            self._silent = None
        except StoreFailure as failure:
            if self._silent is None:
                self._say(f"no heartbeat could be sent ({failure}); training goes on")
            self._silent = str(failure)

    def look(self) -> None:
        """Read control.json. A document that does not verify is no order; one that is not there orders nothing."""
        asked = awake()
        try:
            control = Control.from_bytes(self._store.get(wire.control_key(self._job)))
        except StoreFailure as failure:
            self._last_look = asked if failure.missing else self._last_look
            return
        except wire.WireError:
            return
        self._last_look = asked
        self._obey(control)

    def fresh(self) -> bool:
        """Before anything is shipped or removed: a session that was frozen asks first whether it still holds the
        token. False when the store does not tell."""
        if awake() - self._last_look > 2 * self._period_s:
            self.look()
        return awake() - self._last_look <= 2 * self._period_s

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self.once()
            except Exception as error:  # this thread must not end before the session does
                self._say(f"the heartbeat failed: {error!r}")
            self._end.wait(self._period_s)
