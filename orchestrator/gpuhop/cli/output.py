"""How commands talk: tables and lines on stdout, notes on stderr, JSON when asked. Colour only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gpuhop.app import App
    from gpuhop.db.records import JobRow, SessionRow

STATE_COLOURS = {
    "running": "green",
    "done": "green",
    "queued": "yellow",
    "awaiting-person": "magenta",
    "pending": "yellow",
    "launching": "yellow",
    "paused": "blue",
    "failed": "red",
    "lost": "red",
    "refused": "red",
    "cancelled": "bright_black",
}

output_option = click.option(
    "-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output."
)


@contextmanager
def opened_app(*, log: bool = False) -> Iterator[App]:
    """The application with the user's settings; `log`: show the engine's log on stderr."""
    import logging

    from gpuhop.app import opened
    from gpuhop.settings import load

    if log:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
        logging.getLogger("alembic").setLevel(logging.WARNING)
    with opened(load()) as app:
        yield app


def job_and_sessions(app: App, ref: str) -> tuple[JobRow, list[SessionRow]]:
    """The job that the user means, and all its sessions. Raises NotFound, InvalidInput."""
    from gpuhop.db import jobs, sessions

    with app.db.read() as c:
        job = jobs.find(c, ref)
        return job, sessions.of_job(c, job.id)


def say(text: str = "") -> None:
    click.echo(text)


def note(text: str) -> None:
    """For the person, not for the pipe."""
    click.secho(text, err=True, dim=True)


def as_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines. Widths follow the content without its colour codes; the last column is not padded."""
    plain = [[click.unstyle(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in plain) for i in range(len(head))]
    lines = []
    for n, row in enumerate([[click.style(cell, bold=True) for cell in head], *rows]):
        cells = [cell + " " * (widths[i] - len(plain[n][i])) for i, cell in enumerate(row[:-1])]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines


def state(word: str) -> str:
    return click.style(word, fg=STATE_COLOURS.get(word, "white"))


def bar(parts: Sequence[tuple[float, str, str]], width: int) -> str:
    """A bar of `width` cells; parts are (share of 1, character, colour), the rest stays empty."""
    cells, done = "", 0.0
    for share, char, colour in parts:
        before = round(done * width)
        done = min(1.0, done + max(0.0, share))
        cells += click.style(char * (round(done * width) - before), fg=colour)
    return cells + "·" * (width - round(done * width))


def hours(seconds: float) -> str:
    return f"{seconds / 3600.0:.1f} h"


def span(seconds: float | None) -> str:
    """'3 d 4 h', '2 h 05 min', '40 s'."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hour, rest = divmod(rest, 3600)
    if days:
        return f"{days} d {hour} h"
    if hour:
        return f"{hour} h {rest // 60:02d} min"
    return f"{rest // 60} min {rest % 60:02d} s" if rest >= 60 else f"{rest} s"


def moment(at: datetime) -> str:
    """'30 Nov 14:05', in this machine's zone."""
    local = at.astimezone()
    return f"{local.day} {local:%b %H:%M}"


def size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def on_terminal() -> bool:
    return sys.stdout.isatty()
