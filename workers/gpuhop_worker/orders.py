"""What a session was told: to stop, and why; or that another one holds the job now."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

from gpuhop_worker.verdict import Ended
from gpuhop_worker.wire import Control

_REASONS = {"drain": "drained", "pause": "paused", "cancel": "cancelled"}


class Fenced(Exception):
    """Another session holds the job now: stop and write nothing more."""


class Orders:
    """The first order to stop stays; a fence outweighs it. `when_fenced` is called at a fence, at least once."""

    def __init__(self, token: int, when_fenced: Callable[[], None]) -> None:
        self._token = token
        self._when_fenced = when_fenced
        self.stop: Optional[Tuple[str, str]] = None  # (status word for the result, reason)
        self.fenced = False

    def give(self, status: str, reason: str) -> None:
        if self.stop is None:
            self.stop = (status, reason)

    def obey(self, control: Control) -> None:
        """What control.json says."""
        if control.token > self._token:
            self.fenced = True
            self._when_fenced()
        elif control.token == self._token and control.order in _REASONS:
            self.give("drained", _REASONS[control.order])

    def raise_if_fenced(self) -> None:
        if self.fenced:
            raise Fenced

    def raise_if_told(self) -> None:
        """Raises Fenced or Ended."""
        self.raise_if_fenced()
        if self.stop is not None:
            raise Ended(*self.stop)
