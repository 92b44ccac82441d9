"""Folder mode, turn by turn: when the checkpoint folder is taken while the command runs, and when it has ended."""

from __future__ import annotations

import os
import time
from typing import Callable, Optional

from gpuhop_worker import plain_state
from gpuhop_worker.folder import FolderWatch
from gpuhop_worker.progress import Progress
from gpuhop_worker.shipping import Shipping
from gpuhop_worker.wire import Grant

SETTLE_S = 1.0  # a checkpoint folder must have been still for this long
PAUSE_S = 30.0  # after a copy that failed


class Watching:
    """`elapsed`: seconds of the session's clock."""

    def __init__(
        self,
        watch: FolderWatch,
        grant: Grant,
        spool: str,
        progress: Progress,
        elapsed: Callable[[], float],
        say: Callable[[str], None],
        shipping: Shipping,
    ) -> None:
        self.watch = watch
        self._grant = grant
        self._spool = spool
        self._progress = progress
        self._elapsed = elapsed
        self._say = say
        self._shipping = shipping
        self._copy_after = 0.0
        self.failed: Optional[OSError] = None  # why the last try took nothing

    def turn(self, group: int, told: bool) -> None:
        """While the command (a process group) runs: a snapshot when it is due, or when the command was told to stop."""
        now = time.monotonic()
        watch, grant, step = self.watch, self._grant, self._progress.step
        try:
            watch.look(now, group)
            due = watch.due(self._elapsed(), grant.every_s, step, grant.every_steps)
            due = due and now >= self._shipping.not_before
            if (due or told) and watch.ready(now) and now >= self._copy_after and not os.listdir(self._spool):
                self._take()
        except OSError as error:
            if now >= self._copy_after:
                self._say(f"the checkpoint folder could not be copied, tried again later: {error.strerror}")
                self._copy_after = now + PAUSE_S

    def take_last(self, died_at: Optional[float]) -> bool:
        """What the command left in its folder, beside a snapshot that may still wait. False: no space for it, or
        another reason that `failed` holds.
        `died_at`: as in FolderWatch.ready_at_end."""
        for _ in range(2):
            try:
                if self.watch.ready_at_end(died_at):
                    self._take()
                return True
            except OSError as error:
                self.failed = error
                self._say(f"the checkpoint folder could not be copied: {error.strerror}")
                self._shipping.last()
        return False

    def _take(self) -> None:
        self.watch.take(self._progress.step, plain_state.fingerprint(), self._elapsed())
