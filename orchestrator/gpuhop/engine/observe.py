"""Looking: the signs of a session, and the ledger as a World for the planner."""

from __future__ import annotations

import json
import logging

import sqlalchemy as sa

from gpuhop.db import jobs, quota, sessions
from gpuhop.db.records import JobRow, SessionRow
from gpuhop.domain import quota as windows
from gpuhop.domain.judge import Phase, Seen
from gpuhop.domain.states import SessionState
from gpuhop.domain.world import JobView, PlatformView, SessionView, World
from gpuhop.engine.parts import Parts
from gpuhop.errors import ObjectMissing, StoreError
from gpuhop.platforms.base import Handle, Platform, RunState
from gpuhop.spec import codec
from gpuhop.stores.base import Store
from gpuhop_worker import wire
from gpuhop_worker.wire import Beat, Result, WireError

log = logging.getLogger("gpuhop")


def look(parts: Parts, session: SessionRow) -> Seen:
    """One look at a live session. A failed call is a missing sign, never a verdict (DESIGN I7)."""
    answered, beat, result = _read_signs(parts.store, session)
    new_beat = beat is not None and beat.seq > session.beat_seq
    if new_beat and result is None and session.started_at is not None:
        return Seen(answered, None, beat, True, Phase.RUNNING)
    state = poll(parts.platforms.get(session.platform), session)
    return Seen(answered, result, beat, new_beat, state.phase, state.started_at, state.ended_at, state.note)


def _read_signs(store: Store, session: SessionRow) -> tuple[bool, Beat | None, Result | None]:
    """(the store answered, beat, result). The result is asked for only when it can be there: it saves requests."""
    beat: Beat | None = None
    result: Result | None = None
    try:
        try:
            beat = Beat.from_bytes(store.get(wire.beat_key(session.job_id, session.token)))
        except (ObjectMissing, WireError):
            beat = None
        if beat is None or beat.seq == session.beat_seq or beat.phase == "ship":
            try:
                result = Result.from_bytes(store.get(wire.result_key(session.job_id, session.token)))
            except (ObjectMissing, WireError):
                result = None
    except StoreError as error:
        log.warning("the store did not answer: %s", error.fact, extra={"action": "store-silent"})
        return False, None, None
    if result is not None and result.token != session.token:
        result = None
    return True, beat, result


def poll(platform: Platform | None, session: SessionRow) -> RunState:
    """The platform's word; UNKNOWN when it cannot be asked or the call fails in any way."""
    if platform is None or session.handle is None:
        return RunState(Phase.UNKNOWN)
    try:
        return platform.poll(Handle(session.handle, session.link))
    except Exception as error:  # an adapter's failure must not stop the others
        log.warning("poll of %s failed: %s", session.name, error, extra={"action": "poll-failed"})
        return RunState(Phase.UNKNOWN, note=str(error))


def session_view(session: SessionRow) -> SessionView:
    return SessionView(
        id=session.id,
        job=session.job_id,
        token=session.token,
        platform=session.platform,
        state=session.state,
        launched_at=session.launched_at,
        limit_at=session.limit_at,
        beat_at=session.beat_at,
        step=session.step,
    )


def job_view(job: JobRow) -> JobView:
    return JobView(
        id=job.id,
        spec=codec.decode(json.loads(job.spec)),
        state=job.state,
        wish=job.wish,
        step=job.step,
        used_s=job.used_s,
        created_at=job.created_at,
        waiting_since=job.waiting_since,
        wish_at=job.wish_at,
        last_platform=job.last_platform,
    )


def world(parts: Parts, c: sa.Connection) -> World:
    """The ledger as the planner sees it now."""
    now = parts.clock.now()
    live = sessions.live(c)
    cooling = sessions.cooling(c)
    views = []
    for name, platform in sorted(parts.platforms.items()):
        profile = platform.profile
        charges = quota.charges(c, name, profile.window, now)
        cool = cooling.get(name)
        views.append(
            PlatformView(
                profile=profile,
                balance=windows.balance(profile.window, charges, quota.held(c, name), now),
                live=sum(1 for session in live if session.platform == name),
                cool_until=cool.until if cool else None,
                cool_text=cool.text if cool else "",
            )
        )
    return World(
        now=now,
        jobs=tuple(job_view(job) for job in jobs.unfinished(c)),
        sessions=tuple(session_view(session) for session in live),
        platforms=tuple(views),
    )


def awaiting(rows: list[SessionRow]) -> list[SessionRow]:
    """Sessions that a person must open."""
    return [row for row in rows if row.state is SessionState.AWAITING]
