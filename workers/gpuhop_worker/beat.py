"""The heartbeat: a sign of life to the scheduler, and a look at its orders, on a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

from gpuhop_worker import wire
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.wire import Beat, Control


class Heart:
    """`make(seq)` builds the beat; `obey(control)` is called for every order that was read and verified.

    A failed beat or look is not an error: the laptop may sleep, the link may be down; training goes on.
    """

    def __init__(
        self,
        store: GrantStore,
        job: str,
        token: int,
        period_s: float,
        make: Callable[[int], Beat],
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
        self._last_look = time.monotonic()
        self._silent: Optional[str] = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=30.0)

    def once(self) -> None:
        self.look()
        self._seq += 1
        try:
            self._store.put(wire.beat_key(self._job, self._token), self._make(self._seq).to_bytes())
            self._silent = None
        except StoreFailure as failure:
            if self._silent is None:
                self._say(f"no heartbeat could be sent ({failure}); training goes on")
            self._silent = str(failure)

    def look(self) -> None:
        """Read control.json. A document that does not verify is no order."""
        try:
            control = Control.from_bytes(self._store.get(wire.control_key(self._job)))
        except (StoreFailure, wire.WireError):
            return
        self._last_look = time.monotonic()
        self._obey(control)

    def look_if_stale(self) -> None:
        """Before anything is shipped: a session that was frozen asks first whether it still holds the token."""
        if time.monotonic() - self._last_look > 2 * self._period_s:
            self.look()

    def _run(self) -> None:
        while not self._end.is_set():
            self.once()
            self._end.wait(self._period_s)
