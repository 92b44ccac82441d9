"""What a job becomes when one of its sessions is over."""

from __future__ import annotations

import pytest

from gpuhop.domain.outcome import FRUITLESS_LIMIT, after_session
from gpuhop.domain.states import JOB_TRANSITIONS, JobState, Reason, Wish

Q, D, F, P, C = JobState.QUEUED, JobState.DONE, JobState.FAILED, JobState.PAUSED, JobState.CANCELLED
AGAIN = [
    Reason.BUDGET,
    Reason.SIGNAL,
    Reason.DRAINED,
    Reason.PAUSED,
    Reason.CANCELLED,
    Reason.STORE_FAILED,
    Reason.MACHINE_FAILED,
    Reason.LOST,
    Reason.OVERRAN,
    Reason.REFUSED,
    Reason.LAUNCH_FAILED,
    Reason.NOT_OPENED,
    Reason.DEADLINE_PASSED,
    Reason.WORKER_LACKS,
]
FINAL = [
    Reason.ENDED_EARLY,
    Reason.SETUP_FAILED,
    Reason.RESTORE_FAILED,
    Reason.RESTORE_REFUSED,
    Reason.CODE_DAMAGED,
    Reason.SECRET_MISSING,
]
IF_PROGRESS = [Reason.SCRIPT_FAILED, Reason.SCRIPT_KILLED, Reason.DISK_FULL]


@pytest.mark.parametrize("reason", [Reason.TARGET_REACHED, Reason.EXITED_0])
@pytest.mark.parametrize("wish", list(Wish))
def test_a_reached_target_wins_over_every_wish(reason: Reason, wish: Wish) -> None:
    assert after_session(reason, progressed=False, wish=wish, fruitless=99) == (D, reason)


@pytest.mark.parametrize("reason", AGAIN)
def test_goes_on(reason: Reason) -> None:
    assert after_session(reason, progressed=True, wish=Wish.RUN, fruitless=0) == (Q, None)
    assert after_session(reason, progressed=True, wish=Wish.PAUSE, fruitless=0) == (P, Reason.PAUSED)
    assert after_session(reason, progressed=False, wish=Wish.CANCEL, fruitless=0) == (C, Reason.CANCELLED)


@pytest.mark.parametrize("reason", FINAL)
def test_final_whatever_was_saved(reason: Reason) -> None:
    assert after_session(reason, progressed=True, wish=Wish.RUN, fruitless=0) == (F, reason)
    assert after_session(reason, progressed=True, wish=Wish.PAUSE, fruitless=0) == (F, reason)
    assert after_session(reason, progressed=True, wish=Wish.CANCEL, fruitless=0) == (C, Reason.CANCELLED)


@pytest.mark.parametrize("reason", IF_PROGRESS)
def test_tried_again_only_after_progress(reason: Reason) -> None:
    assert after_session(reason, progressed=True, wish=Wish.RUN, fruitless=0) == (Q, None)
    assert after_session(reason, progressed=False, wish=Wish.RUN, fruitless=1) == (F, reason)


@pytest.mark.parametrize("reason", IF_PROGRESS)
def test_what_the_session_itself_tried_again_in_vain_is_final(reason: Reason) -> None:
    assert after_session(reason, progressed=True, wish=Wish.RUN, fruitless=0, repeated=True) == (F, reason)
    assert after_session(reason, progressed=True, wish=Wish.CANCEL, fruitless=0, repeated=True) == (C, Reason.CANCELLED)


@pytest.mark.parametrize("reason", AGAIN)
def test_a_repeated_failure_before_another_end_changes_nothing(reason: Reason) -> None:
    assert after_session(reason, progressed=True, wish=Wish.RUN, fruitless=0, repeated=True) == (Q, None)


def test_ten_fruitless_sessions_end_the_job() -> None:
    nine, ten = FRUITLESS_LIMIT - 1, FRUITLESS_LIMIT
    assert after_session(Reason.LOST, progressed=False, wish=Wish.RUN, fruitless=nine) == (Q, None)
    assert after_session(Reason.LOST, progressed=False, wish=Wish.RUN, fruitless=ten) == (F, Reason.NO_PROGRESS)


def test_every_reason_of_a_session_was_thought_of() -> None:
    jobs_only = {Reason.NO_PROGRESS, Reason.GPU_HOURS_USED}
    assert {*AGAIN, *FINAL, *IF_PROGRESS, Reason.TARGET_REACHED, Reason.EXITED_0} | jobs_only == set(Reason)


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("wish", list(Wish))
@pytest.mark.parametrize("progressed", [True, False])
@pytest.mark.parametrize("fruitless", [0, 1, 10])
def test_a_running_job_may_become_what_it_becomes(reason: Reason, wish: Wish, progressed: bool, fruitless: int) -> None:
    state, why = after_session(reason, progressed=progressed, wish=wish, fruitless=fruitless)
    assert state in JOB_TRANSITIONS[JobState.RUNNING]
    assert (why is None) == (state is JobState.QUEUED)
