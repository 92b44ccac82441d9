"""The loop in real life: APScheduler drives the tick; SIGTERM and SIGINT end it cleanly, sessions go on."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from gpuhop.engine.tick import Loop, Report
from gpuhop.errors import DatabaseError, GpuhopError

log = logging.getLogger("gpuhop")


class Service:
    """`every_s`: real seconds between ticks. `heard`: called after each tick with its report, on the tick's thread.

    Ticks are coalesced and never overlap. A database or disk failure is told through `heard` and the loop goes on:
    the next tick finds the same world. `until` ends the service from inside.
    """

    def __init__(
        self,
        loop: Loop,
        every_s: float,
        heard: Callable[[Report], None] = lambda report: None,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._every_s = every_s
        self._heard = heard
        self._until = until
        self._end = threading.Event()
        self._failure: Exception | None = None

    def stop(self) -> None:
        self._end.set()

    def run(self) -> None:
        """Blocks until stop(), a signal (main thread only), or `until`. A bug in a tick is raised here."""
        from apscheduler.schedulers.background import BackgroundScheduler

        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        scheduler = BackgroundScheduler(timezone="UTC")
        scheduler.add_job(
            self._turn, "interval", seconds=self._every_s, coalesce=True, max_instances=1, misfire_grace_time=None
        )
        restore = self._catch_signals()
        self._turn()
        scheduler.start()
        try:
            while not self._end.wait(0.2):
                pass
        finally:
            scheduler.shutdown(wait=True)  # the running tick ends whole
            restore()
        if self._failure is not None:
            raise self._failure

    def _turn(self) -> None:
        if self._end.is_set():
            return
        try:
            self._heard(self._tick())
            if self._until():
                self._end.set()
        except DatabaseError as error:  # `until` could not read
            log.warning("%s", error.fact, extra={"action": "trouble"})
        except Exception as error:
            log.exception("the tick failed", extra={"action": "tick-failed"})
            self._failure = error
            self._end.set()

    def _tick(self) -> Report:
        try:
            return self._loop.tick()
        except GpuhopError as error:
            log.warning("%s", error.fact, extra={"action": "trouble"})
            return Report(troubles=[error])

    def _catch_signals(self) -> Callable[[], None]:
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def ask(number: int, frame: FrameType | None) -> None:
            self._end.set()

        for number in before:
            signal.signal(number, ask)

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore
