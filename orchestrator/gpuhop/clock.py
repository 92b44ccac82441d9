"""Time as a value that is passed in. Only engine, cli and lab hold a Clock; domain and db get `now`."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of aware UTC time; `sleep` waits for seconds of this clock."""

    def now(self) -> datetime: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class LabClock:
    """Faster than the machine's clock: one real second is `scale` seconds here, counted from `start`.

    `real_start` is the machine's time (seconds since the epoch) at which this clock read `start`, so that two
    processes that are given the same three values agree.
    """

    def __init__(self, scale: float, start: datetime, real_start: float) -> None:
        self.scale = scale
        self._start = start
        self._real_start = real_start

    def at(self, real: float) -> datetime:
        """What this clock reads at a moment of the machine's clock."""
        return self._start + timedelta(seconds=(real - self._real_start) * self.scale)

    def now(self) -> datetime:
        return self.at(time.time())

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds) / self.scale)


class ManualClock:
    """Stands still until told to move. For tests and the simulator."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
