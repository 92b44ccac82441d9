"""What each end of a command means."""

from __future__ import annotations

from typing import Any

import pytest

from gpuhop_worker import wire
from gpuhop_worker.process import exit_code
from gpuhop_worker.verdict import Ended, session_code, verdict
from gpuhop_worker.wire import Grant


def grant(**fields: Any) -> Grant:
    return Grant("j", 1, "s", "p", "run", "code", "sha", 1.0, **fields)


API = grant(target_steps=10)
EPOCHS = grant(target_epochs=2)
UNTIL_EXIT = grant()
FOLDER = grant(mode="folder", target_steps=10)
FOLDER_EXIT = grant(mode="folder")
BUDGET = ("drained", "budget")
CANCEL = ("drained", "cancelled")

TABLE: list[tuple[Grant, int, int, bool, Any, tuple[str, str, int]]] = [
    # grant, exit status, step, done, order -> status, reason, the session's exit code
    (API, 0, 10, True, None, ("target", "target_reached", 0)),
    (API, 0, 10, True, BUDGET, ("target", "target_reached", 0)),
    (API, 0, 9, False, None, ("failed", "ended_early", 13)),
    (API, 0, 10, False, None, ("failed", "ended_early", 13)),
    (EPOCHS, 0, 10, False, None, ("failed", "ended_early", 13)),
    (API, 0, 5, False, BUDGET, ("drained", "budget", 0)),
    (API, 75, 5, False, BUDGET, ("drained", "budget", 0)),
    (API, 75, 5, False, CANCEL, ("drained", "cancelled", 0)),
    (API, 75, 5, False, None, ("drained", "signal", 0)),
    (API, 76, 0, False, None, ("failed", "restore_refused", 11)),
    (API, 76, 0, False, BUDGET, ("failed", "restore_refused", 11)),
    (API, 78, 5, False, BUDGET, ("failed", "disk_full", 16)),
    (API, 1, 5, False, None, ("failed", "script_failed", 13)),
    (API, 1, 10, True, None, ("failed", "script_failed", 13)),
    (API, -9, 5, False, None, ("failed", "script_killed", 13)),
    (API, -9, 5, False, BUDGET, ("drained", "budget", 0)),
    (UNTIL_EXIT, 0, 5, False, None, ("target", "exited_0", 0)),
    (UNTIL_EXIT, 0, 5, False, BUDGET, ("drained", "budget", 0)),
    (UNTIL_EXIT, 2, 5, False, None, ("failed", "script_failed", 13)),
    (FOLDER, 0, 10, False, None, ("target", "target_reached", 0)),
    (FOLDER, 0, 11, False, BUDGET, ("target", "target_reached", 0)),
    (FOLDER, 0, 9, False, None, ("failed", "ended_early", 13)),
    (FOLDER, 0, 9, False, BUDGET, ("drained", "budget", 0)),
    (FOLDER, 3, 10, False, BUDGET, ("drained", "budget", 0)),
    (FOLDER, 75, 5, False, None, ("failed", "script_failed", 13)),
    (FOLDER, 76, 5, False, None, ("failed", "script_failed", 13)),
    (FOLDER, -15, 5, False, BUDGET, ("drained", "budget", 0)),
    (FOLDER_EXIT, 0, 0, False, None, ("target", "exited_0", 0)),
    (FOLDER_EXIT, -11, 0, False, None, ("failed", "script_killed", 13)),
]


@pytest.mark.parametrize(("given", "status", "step", "done", "order", "want"), TABLE)
def test_table(given: Grant, status: int, step: int, done: bool, order: Any, want: tuple[str, str, int]) -> None:
    end = verdict(given, status, step, done, order)
    assert (end.status, end.reason, session_code(end)) == want
    assert end.reason in wire.REASONS
    assert end.code == status


def test_a_shells_word_for_a_killed_child_is_a_signal() -> None:
    assert [exit_code(s) for s in (0, 1, 75, 128, 137, 143, 192, 193, 255, -9)] == [
        *(0, 1, 75, 128, -9, -15, -64, 193, 255),
        -9,
    ]


def test_an_end_speaks_for_itself() -> None:
    assert str(Ended("drained", "budget")) == wire.REASONS["budget"]
    assert str(Ended("failed", "setup_failed", "setup exited with 3")) == "setup exited with 3"
