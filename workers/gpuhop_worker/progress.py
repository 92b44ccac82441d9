"""How far the command is: what the session API notes on the disk, or what a pattern finds in the output."""

from __future__ import annotations

import json
from typing import Callable, Optional, Tuple

from gpuhop_worker import files
from gpuhop_worker.stepfinder import StepFinder


class Progress:
    """`path`: the session API's note; `elapsed`: seconds of the session's clock. `phase` is what the beat says."""

    def __init__(self, path: str, finder: StepFinder, elapsed: Callable[[], float]) -> None:
        self._path = path
        self._finder = finder
        self._elapsed = elapsed
        self._train_from: Optional[Tuple[float, int]] = None
        self.phase = "setup"
        self.step = 0
        self.done = False
        self.unread: Optional[OSError] = None  # why the last look saw nothing

    def look(self) -> None:
        """Read the session API's note, where there is one."""
        try:
            noted = json.loads(files.read(self._path))
        except FileNotFoundError:
            return
        except OSError as error:  # perhaps it can be read at the next look; at the end it must be
            self.unread = error
            return
        self.unread = None
        if self._train_from is None and self.phase == "train":
            self._train_from = (self._elapsed(), noted["step"])
        self.step, self.done = noted["step"], noted["done"]

    def start_again(self, step: int) -> None:
        """The command begins anew at this step; what it noted before it crashed counts no more."""
        files.remove(self._path)
        self._finder.forget()
        self._train_from = None
        self.step, self.done = step, False

    def speed(self) -> float:
        """Steps per second of the session's clock; 0 while it is not known."""
        if self._train_from is None:
            return 0.0
        began, first = self._train_from
        return (self.step - first) / max(1e-6, self._elapsed() - began)

    def output(self, piece: bytes) -> None:
        """A piece of what the command prints."""
        self._finder.feed(piece)
        self._found()

    def output_ends(self) -> None:
        self._finder.end()
        self._found()

    def _found(self) -> None:
        if self._finder.step is not None:
            self.step = self._finder.step
