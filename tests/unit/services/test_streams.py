"""Stitching logs and metrics over sessions (format.md R50)."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.sessions import decode

from gpuhop.db.records import SessionRow
from gpuhop.domain.states import SessionState
from gpuhop.services.streams import LogReader, metrics, text_of
from gpuhop.stores.local import LocalStore
from gpuhop_worker import wire

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def session(token: int, start_step: int = 0) -> SessionRow:
    values: dict[str, Any] = dict.fromkeys(SessionRow.__annotations__)
    values.update(id=token, job_id="j", token=token, platform="local", name=f"j-t{token:04d}", state=SessionState.ENDED)
    values.update(start_step=start_step, step=0, saved_step=0, launched_at=NOW, limit_at=NOW)
    return SessionRow(**values)


def put(store: LocalStore, token: int, what: str, number: int, text: str) -> None:
    store.put(wire.numbered_key("j", token, what, number), gzip.compress(text.encode()))


def lines(*steps: int, loss: float = 1.0) -> str:
    return "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step in steps)


def test_a_later_session_cuts_at_its_first_step(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, 1, "metrics", 1, lines(*range(8), loss=1.0))
    put(store, 2, "metrics", 1, lines(*range(5, 12), loss=2.0))
    found = metrics(store, [session(2, start_step=5), session(1)])
    assert [row["step"] for row in found] == list(range(12))
    assert [row["loss"] for row in found] == [1.0] * 5 + [2.0] * 7
    assert [row["~token"] for row in found] == [1] * 5 + [2] * 7


CUT = json.dumps({"step": 5, "~cut": True}) + "\n"


def test_a_mark_drops_what_a_crashed_command_had_logged_before_it(tmp_path: Path) -> None:
    """R51; two calls of session.log() in one step, and a line that the second life does not log again."""
    store = LocalStore(tmp_path)
    put(store, 1, "metrics", 1, lines(*range(3, 8), loss=1.0))
    put(store, 2, "metrics", 1, lines(3, 4, 4, 5, 6, loss=2.0) + CUT)
    put(store, 2, "metrics", 2, lines(5, 5, 8, loss=3.0))
    rows = [session(1), session(2, start_step=3)]
    want = [(3, 2.0), (4, 2.0), (4, 2.0), (5, 3.0), (5, 3.0), (8, 3.0)]
    assert [(row["step"], row["loss"]) for row in metrics(store, rows)] == want
    assert [(row["step"], row["loss"]) for row in decode.metrics(tmp_path, "j")] == want


def test_a_later_session_cuts_after_the_marks_of_an_earlier_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, 1, "metrics", 1, lines(*range(8), loss=1.0) + CUT + lines(5, 6, loss=2.0))
    put(store, 2, "metrics", 1, lines(6, 7, loss=3.0))
    want = [1.0] * 5 + [2.0] + [3.0] * 2
    assert [row["loss"] for row in metrics(store, [session(1), session(2, start_step=6)])] == want
    assert [row["loss"] for row in decode.metrics(tmp_path, "j")] == want


def test_a_session_that_fell_back_cuts_where_it_really_began(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, 1, "metrics", 1, lines(*range(8), loss=1.0))
    put(store, 2, "metrics", 1, lines(*range(3, 10), loss=2.0))
    assert [row["step"] for row in metrics(store, [session(1), session(2, start_step=6)])] == list(range(10))


def test_a_session_that_logged_nothing_cuts_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, 1, "metrics", 1, lines(0, 1, 2))
    assert [row["step"] for row in metrics(store, [session(1), session(2, start_step=0)])] == [0, 1, 2]


def test_values_that_json_cannot_say_come_back(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, 1, "metrics", 1, '{"step":0,"loss":{"~":"f","v":"nan"}}\n{"step":1,"loss":0.1}\n')
    first, second = metrics(store, [session(1)])
    assert first["loss"] != first["loss"]
    assert second["loss"] == 0.1


def test_segments_are_read_in_order_of_number(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for number in (2, 1, 10):
        put(store, 1, "log", number, f"part {number}\n")
    assert text_of(store, "j", 1, "log") == b"part 1\npart 2\npart 10\n"


def test_a_damaged_segment_is_left_out(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, 1, "log", 1, "one\n")
    store.put(wire.numbered_key("j", 1, "log", 2), b"not gzip")
    assert text_of(store, "j", 1, "log") == b"one\n"


def test_the_log_reader_goes_on_where_it_left_off(tmp_path: Path) -> None:
    store, rows = LocalStore(tmp_path), [session(1)]
    reader = LogReader(store)
    put(store, 1, "log", 1, "a\n")
    assert [(piece.text, piece.first) for piece in reader.more(rows)] == [("a\n", True)]
    assert list(reader.more(rows)) == []
    put(store, 1, "log", 1, "a\nb\n")
    put(store, 2, "log", 1, "c\n")
    rows.append(session(2))
    assert [(p.session.token, p.text, p.first) for p in reader.more(rows)] == [(1, "b\n", False), (2, "c\n", True)]
