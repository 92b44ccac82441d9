"""What is wrong with a job.yaml, at which place: all of it at once, as text and as JSON."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from gpuhop.errors import InvalidInput

WIDTH = 96
"""Longest source line shown; a longer one is cut around the caret."""

_MARGIN = 30


@dataclass(frozen=True)
class SpecError:
    """One fault. `line` and `col` count from 1; `path` is dotted (`platforms[1]`, "" for the whole file).

    `excerpt` is the source line, already safe to print, and below it a line with the caret.
    """

    line: int
    col: int
    path: str
    message: str
    excerpt: str
    nearest: str | None = None
    example: str | None = None

    def render(self, filename: str) -> str:
        """The block that a person reads: `FILE:LINE:COL: message`, source, nearest key, example."""
        gutter = f"{self.line:>5} | "
        source, _, caret = self.excerpt.partition("\n")
        lines = [
            f"{filename}:{self.line}:{self.col}: {self.message}",
            (gutter + source).rstrip(),
            " " * (len(gutter) - 2) + "| " + caret,
        ]
        if self.nearest is not None:
            lines.append(f"  did you mean: {self.nearest}")
        if self.example is not None:
            lines.append(f"  example: {self.example}")
        return "\n".join(lines)


class SpecErrors(InvalidInput):
    """A job.yaml cannot be used. `errors` holds every fault that was found, in the order of the file."""

    def __init__(self, filename: str, errors: Iterable[SpecError]) -> None:
        self.filename = filename
        self.errors = tuple(sorted(errors, key=lambda e: (e.line, e.col)))
        count = "1 error" if len(self.errors) == 1 else f"{len(self.errors)} errors"
        super().__init__(
            "\n".join(error.render(filename) for error in self.errors),
            f"correct the {count}, then: gpuhop submit {shlex.quote(filename)}",
        )

    def to_json(self) -> dict[str, object]:
        """{"file": str, "errors": [{line, col, path, message, excerpt, nearest, example}, ...]}."""
        return {"file": self.filename, "errors": [asdict(error) for error in self.errors]}


def printable(text: str) -> str:
    """As many characters, with each one replaced that could move the cursor or colour a terminal."""
    return "".join(c if c.isprintable() else (" " if c == "\t" else "?") for c in text)


def quote(value: str, limit: int = 40) -> str:
    """A user's value for a message: one line, safe to print, cut to `limit`."""
    flat = printable(re.sub(r"\s+", " ", value))
    return '"' + (flat if len(flat) <= limit else flat[: limit - 3] + "...") + '"'


def excerpt(line: str, col: int) -> str:
    """The source line and a caret under column `col` (from 1), both cut to WIDTH around the caret."""
    shown = printable(line)
    at = min(max(col, 1) - 1, len(shown))
    if len(shown) > WIDTH:
        start = max(0, min(at - _MARGIN, len(shown) - WIDTH))
        head, tail = "..." if start else "", "..." if start + WIDTH < len(shown) else ""
        shown, at = head + shown[start : start + WIDTH] + tail, at - start + len(head)
    return f"{shown}\n{' ' * at}^"
