"""I7: what the signs of a session mean, over all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from gpuhop.domain.judge import Phase, Seen, Verdict, judge
from gpuhop.domain.states import Reason, SessionState, session_move_allowed
from gpuhop.domain.world import Profile, SessionView
from gpuhop_worker.wire import Beat, Result

NOW = datetime(2026, 10, 20, 12, tzinfo=UTC)
PROFILE = Profile(
    "p", "a", 3600.0, start_s=60, grace_s=60, margin_s=60, open_s=3600, beat_s=30, lease_s=300, attended=False
)
ATTENDED = replace(PROFILE, attended=True)
RESULT = Result(1, "drained", "budget", 10, 10, 1, 100.0)
BEAT = Beat(1, 5, "train", 10)
LOST = Verdict(SessionState.LOST, Reason.LOST)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def session(
    state: SessionState = SessionState.RUNNING,
    *,
    launched: float = 1000.0,
    beat: float | None = None,
    started: float | None = None,
    limit: float = 2000.0,
) -> SessionView:
    """Times in seconds before now; `limit`: seconds from now."""
    return SessionView(
        1,
        "j",
        1,
        "p",
        state,
        ago(launched),
        NOW + timedelta(seconds=limit),
        None if beat is None else ago(beat),
        started_at=None if started is None else ago(started),
    )


def seen(phase: Phase = Phase.UNKNOWN, *, answered: bool = True, new: bool = False, **more: object) -> Seen:
    return replace(Seen(answered, beat=BEAT if new else None, new_beat=new, phase=phase), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("limit", [2000.0, -9999.0])
@pytest.mark.parametrize("state", [SessionState.LAUNCHING, SessionState.AWAITING, SessionState.RUNNING])
def test_a_fresh_beat_outweighs_everything(phase: Phase, answered: bool, limit: float, state: SessionState) -> None:
    look = seen(phase, answered=answered, new=True, mute_s=9e9)
    assert judge(session(state, beat=9e6, limit=limit), look, PROFILE, NOW) == Verdict(SessionState.RUNNING)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("beat", [None, 1.0, 9e6])
@pytest.mark.parametrize("limit", [2000.0, -9999.0])
@pytest.mark.parametrize("state", [SessionState.LAUNCHING, SessionState.AWAITING, SessionState.RUNNING])
def test_a_store_that_does_not_answer_changes_nothing(
    phase: Phase, beat: float | None, limit: float, state: SessionState
) -> None:
    view = session(state, beat=beat, limit=limit)
    assert judge(view, seen(phase, answered=False), PROFILE, NOW) == Verdict(state)


@pytest.mark.parametrize(
    ("state", "launched"),
    [
        (SessionState.LAUNCHING, 5.0),
        (SessionState.PENDING, 50_000.0),
        (SessionState.AWAITING, 3000.0),
        (SessionState.RUNNING, 100.0),
    ],
)
@pytest.mark.parametrize("profile", [PROFILE, ATTENDED])
def test_one_failed_poll_changes_nothing(state: SessionState, launched: float, profile: Profile) -> None:
    verdict = judge(session(state, launched=launched, started=50.0), seen(Phase.UNKNOWN), profile, NOW)
    assert verdict.reason is None
    assert verdict.state is state or (profile.attended and verdict.state is SessionState.AWAITING)


def test_a_platform_that_is_mute_for_long_loses_a_session_that_never_beat() -> None:
    view = session(SessionState.PENDING)
    assert judge(view, seen(mute_s=359.0), PROFILE, NOW) == Verdict(SessionState.PENDING)
    assert judge(view, seen(mute_s=360.0), PROFILE, NOW) == Verdict(SessionState.LOST, Reason.LAUNCH_FAILED)
    # A beating one is judged by its beats alone.
    assert judge(session(beat=100.0), seen(mute_s=9e9), PROFILE, NOW) == Verdict(SessionState.RUNNING)


def test_gone_outweighs_a_time_out_but_waits_one_beat() -> None:
    assert judge(session(beat=29.0), seen(Phase.GONE), PROFILE, NOW) == Verdict(SessionState.RUNNING)
    assert judge(session(beat=30.0), seen(Phase.GONE), PROFILE, NOW) == LOST
    # Gone and beyond its limit: it is told as lost, the platform's own word, not as overrun.
    assert judge(session(beat=30.0, limit=-9999.0), seen(Phase.GONE), PROFILE, NOW) == LOST
    assert judge(session(SessionState.PENDING), seen(Phase.GONE), PROFILE, NOW) == LOST


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.UNKNOWN, Phase.QUEUED])
def test_silence_for_a_lease_loses_it(phase: Phase) -> None:
    assert judge(session(beat=299.0), seen(phase), PROFILE, NOW) == Verdict(SessionState.RUNNING)
    assert judge(session(beat=300.0), seen(phase), PROFILE, NOW) == LOST


def test_silence_counts_from_when_the_store_is_back() -> None:
    """In an outage of the store the worker could not beat either."""
    view = session(beat=9000.0)
    assert judge(view, seen(Phase.UNKNOWN, back_at=ago(299.0)), PROFILE, NOW) == Verdict(SessionState.RUNNING)
    assert judge(view, seen(Phase.UNKNOWN, back_at=ago(300.0)), PROFILE, NOW) == LOST
    assert judge(view, seen(Phase.GONE, back_at=ago(29.0)), PROFILE, NOW) == Verdict(SessionState.RUNNING)
    assert judge(view, seen(Phase.GONE, back_at=ago(30.0)), PROFILE, NOW) == LOST


def test_beyond_its_limit_it_overran() -> None:
    view = session(beat=100.0, limit=-119.0)
    assert judge(view, seen(Phase.UNKNOWN), PROFILE, NOW) == Verdict(SessionState.RUNNING)
    over = Verdict(SessionState.LOST, Reason.OVERRAN)
    assert judge(session(beat=100.0, limit=-120.0), seen(Phase.RUNNING), PROFILE, NOW) == over
    assert judge(session(started=3700.0, limit=-120.0), seen(Phase.RUNNING), PROFILE, NOW) == over


@pytest.mark.parametrize("state", [SessionState.LAUNCHING, SessionState.AWAITING, SessionState.PENDING])
def test_waiting_for_a_person_or_a_queue_is_never_overrunning(state: SessionState) -> None:
    view = session(state, launched=3500.0, limit=-3000.0)
    phase = Phase.QUEUED if state is SessionState.PENDING else Phase.AWAITING
    assert judge(view, seen(phase), ATTENDED, NOW).reason is None


def test_nobody_came() -> None:
    waiting = session(SessionState.AWAITING, launched=3599.0, limit=-5000.0)
    assert judge(waiting, seen(Phase.AWAITING), ATTENDED, NOW) == Verdict(SessionState.AWAITING)
    waiting = replace(waiting, launched_at=ago(3600.0))
    assert judge(waiting, seen(Phase.AWAITING), ATTENDED, NOW) == Verdict(SessionState.LOST, Reason.NOT_OPENED)
    # A platform that nobody can ask: its silence is the same as waiting.
    assert judge(waiting, seen(Phase.UNKNOWN), ATTENDED, NOW) == Verdict(SessionState.LOST, Reason.NOT_OPENED)


def test_opened_late_it_has_all_its_time_to_start() -> None:
    """The platform says running, without a time, half an hour after the offer."""
    waiting = session(SessionState.AWAITING, launched=1800.0)
    assert judge(waiting, seen(Phase.RUNNING), ATTENDED, NOW) == Verdict(SessionState.RUNNING)
    running = session(SessionState.RUNNING, launched=1800.0, started=359.0)
    assert judge(running, seen(Phase.RUNNING), ATTENDED, NOW) == Verdict(SessionState.RUNNING)
    assert judge(replace(running, started_at=ago(360.0)), seen(Phase.RUNNING), ATTENDED, NOW) == LOST


def test_running_by_the_platforms_word_but_never_a_beat() -> None:
    view = session(SessionState.PENDING, launched=5000.0)
    look = seen(Phase.RUNNING, started_at=ago(359.0))
    assert judge(view, look, PROFILE, NOW) == Verdict(SessionState.RUNNING)
    assert judge(view, replace(look, started_at=ago(360.0)), PROFILE, NOW) == LOST


def test_the_laptop_wakes_after_eight_hours() -> None:
    slept = session(beat=8 * 3600.0, limit=3600.0)
    assert judge(slept, seen(new=True), PROFILE, NOW) == Verdict(SessionState.RUNNING)
    assert judge(slept, seen(Phase.UNKNOWN), PROFILE, NOW) == LOST
    assert judge(slept, seen(Phase.UNKNOWN, answered=False), PROFILE, NOW) == Verdict(SessionState.RUNNING)
    assert judge(slept, seen(result=RESULT), PROFILE, NOW) == Verdict(SessionState.ENDED)


def test_with_its_result_it_is_over_when_the_platform_says_so_or_after_the_margin() -> None:
    ended, running = Verdict(SessionState.ENDED), Verdict(SessionState.RUNNING)
    assert judge(session(beat=5.0), seen(Phase.RUNNING, result=RESULT), PROFILE, NOW) == running
    assert judge(session(beat=60.0), seen(Phase.RUNNING, result=RESULT), PROFILE, NOW) == ended
    assert judge(session(beat=5.0), seen(Phase.GONE, result=RESULT), PROFILE, NOW) == ended
    assert judge(session(beat=5.0), seen(Phase.UNKNOWN, result=RESULT), PROFILE, NOW) == ended
    # It was so quick that no beat was ever seen.
    pending = session(SessionState.PENDING)
    assert judge(pending, seen(Phase.RUNNING, result=RESULT), PROFILE, NOW) == running
    assert judge(session(started=60.0), seen(Phase.RUNNING, result=RESULT), PROFILE, NOW) == ended


def test_a_clock_that_jumps_back_loses_nobody() -> None:
    assert judge(session(beat=-86400.0), seen(Phase.UNKNOWN), PROFILE, NOW) == Verdict(SessionState.RUNNING)


@pytest.mark.parametrize("profile", [PROFILE, ATTENDED])
def test_every_verdict_is_a_legal_move(profile: Profile) -> None:
    states = [SessionState.LAUNCHING, SessionState.AWAITING, SessionState.PENDING, SessionState.RUNNING]
    for state, phase, answered, new, result, beat, started, launched, mute in product(
        states,
        Phase,
        [True, False],
        [True, False],
        [None, RESULT],
        [None, 1.0, 9e5],
        [None, 10.0],
        [1.0, 9e5],
        [0.0, 9e5],
    ):
        view = session(state, beat=beat, started=started, launched=launched)
        look = seen(phase, answered=answered, new=new, result=result, mute_s=mute)
        verdict = judge(view, look, profile, NOW)
        assert verdict.state is state or session_move_allowed(state, verdict.state), (view, look)
        assert (verdict.reason is not None) == (verdict.state is SessionState.LOST), (view, look)
