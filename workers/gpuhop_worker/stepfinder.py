"""How far a script is that does not use the session API: the number that a pattern finds in what it prints."""

from __future__ import annotations

import re
import sys
from typing import Callable, Optional

LONGEST = 10000  # bytes of a line that are looked at


class StepFinder:
    """`step`: the last number found, None before the first."""

    def __init__(self, pattern: Optional[str], say: Callable[[str], None]) -> None:
        self.step: Optional[int] = None
        self._line = b""
        self._pattern: Optional[re.Pattern[str]] = None
        try:
            self._pattern = re.compile(pattern) if pattern is not None else None
        except re.error as error:  # newer Pythons know more than this one
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            say(f"progress: {pattern!r} is no pattern for Python {version}: {error}")

    def forget(self) -> None:
        """The command starts again: what it printed before counts no more."""
        self.step, self._line = None, b""

    def feed(self, piece: bytes) -> None:
        """A piece of output. Progress bars end their lines with a carriage return."""
        if self._pattern is None:
            return
        lines = re.split(b"[\r\n]", self._line + piece)
        self._line = lines.pop()[-LONGEST:]
        for line in lines:
            self._look(line)

    def end(self) -> None:
        """The output is over: the last line may have no end."""
        line, self._line = self._line, b""
        self._look(line)

    def _look(self, line: bytes) -> None:
        found = self._pattern.search(line[-LONGEST:].decode("utf-8", "replace")) if self._pattern else None
        try:
            self.step = int(found.group(1)) if found else self.step
        except (ValueError, TypeError, IndexError):
            pass
