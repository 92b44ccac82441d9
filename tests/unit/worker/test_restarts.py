"""Which ends of a command are followed by another start in the same session."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhop_worker import training
from gpuhop_worker.restarts import Life, crashed, how, repeated, start_again

KILLED = -signal.SIGKILL
STATUSES = [0, 1, 3, 75, 76, 78, -9, -11, -6, -15, -2, -1]


def life(status: int, began: int = 0, newest: int = 0, moved: bool = True) -> Life:
    return Life(status, began, newest, moved)


@pytest.mark.parametrize("status", [0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP])
@pytest.mark.parametrize("mode", ["api", "folder"])
def test_an_end_that_somebody_wanted_is_no_crash(mode: str, status: int) -> None:
    assert not crashed(mode, status)


@pytest.mark.parametrize("status", [training.DRAINED, training.REFUSED, training.DISK_FULL])
def test_the_session_apis_own_codes_are_no_crash_where_it_is_used(status: int) -> None:
    assert not crashed("api", status) and crashed("folder", status)


LIVES: list[tuple[str, list[Life], bool]] = [
    # a signal: progress is enough the first time, then a newer state is needed
    ("api", [life(KILLED)], True),
    ("api", [life(KILLED, moved=False)], False),
    ("api", [life(KILLED, newest=2)], True),
    ("api", [life(KILLED), life(KILLED)], False),
    ("api", [life(KILLED), life(KILLED, 0, 1)], True),
    ("api", [life(KILLED, 0, 2), life(KILLED, 2, 2)], False),
    ("api", [life(KILLED, 0, 2), life(KILLED, 2, 3), life(KILLED, 3, 4)], True),
    ("api", [life(KILLED, 0, 2), life(KILLED, 2, 3), life(KILLED, 3, 4), life(KILLED, 4, 5)], False),
    # an exit code: once, from a newer state only
    ("api", [life(1)], False),
    ("api", [life(1, 0, 1)], True),
    ("api", [life(1, 0, 1), life(1, 1, 2)], False),
    ("api", [life(KILLED, 0, 1), life(1, 1, 2)], True),
    ("api", [life(1, 0, 1), life(KILLED, 1, 2)], True),
    # a folder: only what was whole can be gone back to
    ("folder", [life(KILLED)], False),
    ("folder", [life(KILLED, 0, 1)], True),
    ("folder", [life(1, 0, 1)], True),
    ("folder", [life(1, 0, 1), life(1, 1, 1)], False),
]


@pytest.mark.parametrize(("mode", "lives", "again"), LIVES)
def test_started_again(mode: str, lives: list[Life], again: bool) -> None:
    assert start_again(mode, lives, 3) is again
    assert start_again(mode, lives, 0) is False


@given(st.lists(st.tuples(st.sampled_from(STATUSES), st.integers(0, 2), st.booleans()), min_size=1, max_size=12))
def test_it_ends_always_and_no_state_is_begun_with_a_third_time(ends: list[tuple[int, int, bool]]) -> None:
    lives: list[Life] = []
    begun, number = [0], 0
    for status, saved, moved in ends:
        lives.append(Life(status, number, number + saved, moved))
        number += saved
        if not start_again("api", lives, 3):
            break
        begun.append(number)
    assert len(begun) <= 4
    assert all(begun.count(one) <= (2 if one == 0 else 1) for one in begun)


def test_repeated_is_the_same_exit_code_from_the_same_state() -> None:
    assert repeated([life(1, 0, 2), life(1, 2, 2)])
    assert not repeated([life(1, 0, 2), life(1, 2, 3)])
    assert not repeated([life(1, 0, 2), life(2, 2, 2)])
    assert not repeated([life(KILLED, 0, 2), life(KILLED, 2, 2)])
    assert not repeated([life(1, 0, 2)])
    assert not repeated([])


def test_the_end_in_words() -> None:
    assert how(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert how(-signal.SIGRTMAX - 9) == f"was killed by signal {signal.SIGRTMAX + 9}"
    assert how(3) == "exited with 3"
