"""The tables of transitions, and the words for every reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhop.domain.states import (
    JOB_TRANSITIONS,
    LIVE_SESSIONS,
    OVER,
    SESSION_TRANSITIONS,
    WORDS,
    JobState,
    Reason,
    SessionState,
    job_move_allowed,
    session_move_allowed,
)
from gpuhop_worker import wire

JOB_WALKS = st.lists(st.sampled_from(JobState), min_size=1, max_size=12)
SESSION_WALKS = st.lists(st.sampled_from(SessionState), min_size=1, max_size=12)


def reachable_jobs(start: JobState) -> set[JobState]:
    found, queue = {start}, [start]
    while queue:
        for after in JOB_TRANSITIONS[queue.pop()] - found:
            found.add(after)
            queue.append(after)
    return found


def test_tables_are_complete() -> None:
    assert set(JOB_TRANSITIONS) == set(JobState)
    assert set(SESSION_TRANSITIONS) == set(SessionState)


@given(JOB_WALKS)
def test_no_walk_leaves_done_or_cancelled(walk: list[JobState]) -> None:
    here = JobState.QUEUED
    for wanted in walk:
        if job_move_allowed(here, wanted):
            assert here not in (JobState.DONE, JobState.CANCELLED)
            here = wanted


@given(SESSION_WALKS)
def test_a_session_ends_once(walk: list[SessionState]) -> None:
    here, ends = SessionState.LAUNCHING, 0
    for wanted in walk:
        if session_move_allowed(here, wanted):
            here = wanted
            ends += here not in LIVE_SESSIONS
    assert ends <= 1


@given(SESSION_WALKS)
def test_a_session_never_goes_back(walk: list[SessionState]) -> None:
    order = [SessionState.LAUNCHING, SessionState.AWAITING, SessionState.PENDING, SessionState.RUNNING]
    here = SessionState.LAUNCHING
    for wanted in walk:
        if session_move_allowed(here, wanted):
            assert wanted not in order or order.index(wanted) > order.index(here)
            here = wanted


def test_live_and_over_agree_with_the_tables() -> None:
    assert {
        SessionState.LAUNCHING,
        SessionState.AWAITING,
        SessionState.PENDING,
        SessionState.RUNNING,
    } == LIVE_SESSIONS
    assert {JobState.DONE, JobState.FAILED, JobState.CANCELLED} == OVER
    for state in JobState:
        assert (state in (JobState.DONE, JobState.CANCELLED)) == (not JOB_TRANSITIONS[state])


def test_every_state_that_is_not_final_can_still_end_well() -> None:
    for state in JobState:
        if state not in (JobState.DONE, JobState.CANCELLED):
            assert JobState.DONE in reachable_jobs(state), state


def test_every_live_session_can_end_and_be_lost() -> None:
    for state in LIVE_SESSIONS:
        assert session_move_allowed(state, SessionState.LOST)
        assert session_move_allowed(state, SessionState.ENDED)
        assert session_move_allowed(state, SessionState.REFUSED) == (state is SessionState.LAUNCHING)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words_and_a_next_step(reason: Reason) -> None:
    words, step = WORDS[reason]
    assert words and not words.endswith(".")
    assert step.format(job="j") and "{" not in step.format(job="j")


def test_every_word_of_the_worker_is_a_reason() -> None:
    assert set(wire.REASONS) <= {reason.value for reason in Reason}
    assert set(WORDS) == set(Reason)
