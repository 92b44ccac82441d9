"""What the signs of one session mean. Pure. A heartbeat outweighs a probe; the platform's own "gone" outweighs a
time-out; one failed call changes nothing (DESIGN I7)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpuhop.domain.states import Reason, SessionState, session_move_allowed
from gpuhop.domain.world import Profile, SessionView
from gpuhop_worker.wire import Beat, Result


class Phase(StrEnum):
    """What a platform says of a session. UNKNOWN: the call failed, or it cannot tell."""

    AWAITING = "awaiting"
    QUEUED = "queued"
    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Seen:
    """What one look at a session gave. `store_answered`: the store was asked and answered, so that an absent
    beat or result is a fact and not a failure. `new_beat`: the beat's number grew since the last look. `mute_s`: for
    how long the platform has given no answer, over several calls in a row; 0 after a single failure. `trouble`: what
    the store said instead of answering. `back_at`: since when it answers again, after an outage in which the worker
    could not beat either."""

    store_answered: bool
    result: Result | None = None
    beat: Beat | None = None
    new_beat: bool = False
    phase: Phase = Phase.UNKNOWN
    started_at: datetime | None = None
    ended_at: datetime | None = None
    note: str = ""
    mute_s: float = 0.0
    trouble: str = ""
    back_at: datetime | None = None


@dataclass(frozen=True)
class Verdict:
    """`state`: what the session is now; `reason` only where it is over without a result."""

    state: SessionState
    reason: Reason | None = None


def judge(session: SessionView, seen: Seen, profile: Profile, now: datetime) -> Verdict:
    """The session's state after this look. `now` is a moment before the look began: a machine that sleeps between
    look and judgement must not count its sleep as the session's silence."""
    if seen.result is not None:
        return _with_result(session, seen, profile, now)
    if seen.new_beat:
        return Verdict(SessionState.RUNNING)
    if not seen.store_answered:
        return Verdict(session.state)
    heard_at = session.beat_at or session.launched_at
    silent = now - (heard_at if seen.back_at is None else max(heard_at, seen.back_at))
    if seen.phase is Phase.GONE and _quiet(session, seen, silent, profile):
        return Verdict(SessionState.LOST, Reason.LOST)
    started = session.state is SessionState.RUNNING or session.beat_at is not None
    if started and now >= session.limit_at + timedelta(seconds=profile.grace_s + profile.margin_s):
        return Verdict(SessionState.LOST, Reason.OVERRAN)
    if session.beat_at is not None:
        over = silent >= timedelta(seconds=profile.lease_s)
        return Verdict(SessionState.LOST, Reason.LOST) if over else Verdict(session.state)
    return _not_yet_alive(session, seen, silent, profile, now)


def _with_result(session: SessionView, seen: Seen, profile: Profile, now: datetime) -> Verdict:
    """The work is done; the slot and the meter are free only when the platform says so, or after the margin."""
    alive_at = session.beat_at or session.started_at
    if seen.phase is Phase.RUNNING and (alive_at is None or now - alive_at < timedelta(seconds=profile.margin_s)):
        return Verdict(SessionState.RUNNING)
    return Verdict(SessionState.ENDED)


def _quiet(session: SessionView, seen: Seen, silent: timedelta, profile: Profile) -> bool:
    """A beat may still be on its way from a session that has just gone: wait for one beat period."""
    return session.beat_at is None or silent >= timedelta(seconds=profile.beat_s)


def _not_yet_alive(session: SessionView, seen: Seen, silent: timedelta, profile: Profile, now: datetime) -> Verdict:
    """No beat was ever seen: the platform's word counts, and its silence only when it has lasted."""
    patience = timedelta(seconds=profile.start_s + profile.lease_s)
    unopened = session.state in (SessionState.LAUNCHING, SessionState.AWAITING)
    phase = seen.phase
    if phase is Phase.UNKNOWN and profile.attended and unopened:
        phase = Phase.AWAITING  # nobody can be asked whether a person came: only the beat tells
    if phase is Phase.AWAITING and unopened:
        over = silent >= timedelta(seconds=profile.open_s)
        return Verdict(SessionState.LOST, Reason.NOT_OPENED) if over else Verdict(SessionState.AWAITING)
    if phase is Phase.QUEUED:
        return _forward(session, SessionState.PENDING)
    if phase is Phase.RUNNING:
        began = seen.started_at or session.started_at
        waited = timedelta(0) if began is None else min(silent, now - began)
        return Verdict(SessionState.LOST, Reason.LOST) if waited >= patience else Verdict(SessionState.RUNNING)
    if phase is Phase.UNKNOWN and seen.mute_s >= patience.total_seconds():
        return Verdict(SessionState.LOST, Reason.LAUNCH_FAILED)
    return Verdict(session.state)


def _forward(session: SessionView, state: SessionState) -> Verdict:
    """A platform that speaks of an earlier state again changes nothing."""
    return Verdict(state if session_move_allowed(session.state, state) else session.state)
