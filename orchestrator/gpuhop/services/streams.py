"""A job's logs and metrics, stitched over its sessions (format.md section 6)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuhop.db.records import SessionRow
from gpuhop.engine.segments import text_of as text_of
from gpuhop.stores.base import Store
from gpuhop_worker import codec


@dataclass(frozen=True)
class Piece:
    """New text of one session's log; `first`: a hop happened just before it."""

    session: SessionRow
    text: str
    first: bool


class LogReader:
    """Reads a job's log on from where it left off. Give it the sessions anew each time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[int, int] = {}

    def more(self, rows: Sequence[SessionRow]) -> Iterator[Piece]:
        last = max((token for token in self._read), default=0)
        for row in sorted(rows, key=lambda r: r.token):
            if row.token < last:
                continue
            whole = text_of(self._store, row.job_id, row.token, "log").decode("utf-8", "replace")
            done = self._read.get(row.token, 0)
            if len(whole) > done:
                yield Piece(row, whole[done:], done == 0)
                self._read[row.token] = len(whole)


def metrics(store: Store, rows: Sequence[SessionRow]) -> list[dict[str, Any]]:
    """All logged values of a job in order of step, no step twice: a later session cuts at its first step (R50)."""
    lines: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda r: r.token):
        text = text_of(store, row.job_id, row.token, "metrics")
        own = [_line(line, row.token) for line in text.splitlines() if line.strip()]
        if own:
            # A session that fell back to an older checkpoint began before the step that the ledger expected.
            first = min(row.start_step, own[0]["step"])
            lines = [line for line in lines if line["step"] < first]
            lines += _cut(own)
    return lines


def _cut(own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One session's lines; what a crashed command had logged from the step of a mark on is dropped (R51)."""
    kept: list[dict[str, Any]] = []
    for line in own:
        if "~cut" in line:
            kept = [one for one in kept if one["step"] < line["step"]]
        else:
            kept.append(line)
    return kept


def _line(line: bytes, token: int) -> dict[str, Any]:
    found: dict[str, Any] = codec.decode(json.loads(line))
    found["~token"] = token
    return found
