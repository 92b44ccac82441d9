"""How a command is made to stop: asked first, given its grace, then killed."""

from __future__ import annotations

import signal
from typing import Callable, Optional

from gpuhop_worker import files
from gpuhop_worker.folder import FolderWatch
from gpuhop_worker.process import Command, exit_code
from gpuhop_worker.wire import Grant

CLOSE_S = 3.0  # of the grace, for a checkpoint that is being written when the command must stop


class Stopping:
    """`elapsed`: seconds of the session's clock; `drain`: the file whose presence asks the session API to stop."""

    def __init__(self, grant: Grant, drain: str, elapsed: Callable[[], float], say: Callable[[str], None]) -> None:
        self._grant = grant
        self._drain = drain
        self._elapsed = elapsed
        self._say = say
        self._told_at: Optional[float] = None
        self._pressed = False  # the command was asked
        self._killed = False
        self._lingered = False  # the shell died of a SIGTERM, the training went on

    def press(self, command: Command, watch: Optional[FolderWatch], why: str) -> None:
        """Once in each turn, as long as the command runs and must stop."""
        now = self._elapsed()
        if self._told_at is None:
            self._told_at = now
            self._say(f"stopping: {why}")
            if watch is not None:
                watch.look_soon()
            return
        waited = now - self._told_at
        if not self._pressed:
            # A signal may end the script at once: first let it close the files that it is just writing.
            patience = min(CLOSE_S * self._grant.time_scale, self._grant.grace_s / 4)
            if watch is None or watch.settled() or waited > patience:
                self._pressed = True
                self._ask(command)
        elif waited > self._grant.grace_s and not self._killed:
            self._killed = True
            self._say(f"the command did not leave within {self._grant.grace_s:.0f} s of being asked: killing it")
            command.signal(signal.SIGKILL)

    def _ask(self, command: Command) -> None:
        if self._grant.mode == "folder":
            command.signal(signal.SIGTERM)
            return
        try:
            files.write_atomic(self._drain, b"")
        except OSError:
            command.signal(signal.SIGTERM)  # a full disk: the session API listens to this too

    def lingers(self, command: Command, raw: int) -> bool:
        """After the command ended with this status: True while only its shell has died, of a SIGTERM to all."""
        if exit_code(raw) != -signal.SIGTERM or self._killed or not command.has_survivors():
            return False
        if not self._lingered:
            self._lingered = self._pressed = True
            if self._grant.mode != "folder":
                self._ask(command)
        return True

    def own_will(self, raw: int) -> bool:
        """True when the command left by itself, so that what it wrote is as it meant it to be."""
        return not self._killed and (raw == 0 or (self._pressed and (raw > 0 or self._lingered)))
