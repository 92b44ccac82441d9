"""The user's command from its start to its end, and what its end means."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, Dict, Optional

from gpuhop_worker import wire
from gpuhop_worker.logbook import Logbook
from gpuhop_worker.orders import Orders
from gpuhop_worker.process import POLL_S, Command, exit_code
from gpuhop_worker.progress import Progress
from gpuhop_worker.stopping import Stopping
from gpuhop_worker.watching import Watching
from gpuhop_worker.wire import Grant

GONE_S = 2.0  # that killed processes may take to be gone


@dataclass(frozen=True)
class End:
    """How a command ended. `status`: exit code, negative for a signal; `cut_off_at`: the wall clock's time of an end
    that it did not choose, None for one that it did; `survived`: some of its processes could not be ended."""

    status: int
    cut_off_at: Optional[float]
    survived: bool = False


class Commanding:
    """`look`: reads budget and progress, once per turn; it may give an order."""

    def __init__(
        self,
        grant: Grant,
        folder: str,
        log: Logbook,
        orders: Orders,
        progress: Progress,
        stopping: Stopping,
        look: Callable[[], None],
    ) -> None:
        self._grant = grant
        self._folder = folder
        self._log = log
        self._orders = orders
        self._progress = progress
        self._stopping = stopping
        self._look = look

    def run(self, env: Dict[str, str], watching: Optional[Watching]) -> End:
        """Until the command has ended, with all that it started. Raises Fenced, and then it is dead too."""
        self._progress.phase = "train"
        command = Command(self._grant.run, self._folder, env, self._output)
        try:
            while not self._over(command):
                self._turn(command, watching)
                time.sleep(POLL_S)
            raw, ended_at = command.finish(), time.time()
        finally:
            command.kill()
            self._output_ends()
        self._orders.raise_if_fenced()
        self._look()
        return End(exit_code(raw), None if self._stopping.own_will(raw) else ended_at, not command.gone(GONE_S))

    def _turn(self, command: Command, watching: Optional[Watching]) -> None:
        self._look()
        self._orders.raise_if_fenced()
        told = self._orders.stop
        if watching is not None:
            watching.turn(command.pid, told is not None)
        if told is not None:
            self._progress.phase = "drain"
            watch = watching.watch if watching is not None else None
            self._stopping.press(command, watch, wire.REASONS[told[1]])

    def _over(self, command: Command) -> bool:
        """True when the command and, where only its shell died of a SIGTERM, its training have ended."""
        raw = command.poll()
        if raw is None:
            return False
        if self._stopping.lingers(command, raw):
            self._orders.give("drained", "signal")
            return False
        return True

    def _output(self, piece: bytes) -> None:
        self._log.output(piece)
        self._progress.output(piece)

    def _output_ends(self) -> None:
        self._log.output_ends()
        self._progress.output_ends()


def lead_s(grant: Grant, ship_s: float) -> float:
    """How long before the end of its budget a session saves for the last time, so that it lands: as long as the last
    checkpoint took to ship (`ship_s`, real seconds) and half again, but never most of the session."""
    return min(1.5 * ship_s * grant.time_scale, 0.3 * grant.budget_s)
