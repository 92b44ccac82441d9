"""Looking: the signs of a session, and the ledger as a World for the planner."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

from gpuhop.db import jobs, quota, sessions
from gpuhop.db.connect import Connection
from gpuhop.db.records import JobRow, SessionRow
from gpuhop.domain import quota as windows
from gpuhop.domain.judge import Phase, Seen
from gpuhop.domain.world import JobView, PlatformView, Profile, SessionView, World
from gpuhop.engine.parts import Parts
from gpuhop.errors import DiskFull, GpuhopError, InvalidInput, ObjectMissing, StoreError
from gpuhop.platforms.base import Handle, Platform, RunState
from gpuhop.spec import codec
from gpuhop.stores.base import Store
from gpuhop_worker import wire
from gpuhop_worker.wire import Beat, Result, WireError

log = logging.getLogger("gpuhop")


def look(parts: Parts, session: SessionRow) -> Seen:
    """One look at a live session. A failed call is a missing sign, never a verdict (DESIGN I7)."""
    try:
        beat, result = _read_signs(parts.store, session)
        trouble = ""
    except (StoreError, DiskFull) as error:
        beat = result = None
        trouble = error.fact
    answered = not trouble
    new_beat = beat is not None and beat.seq > session.beat_seq
    if result is None and session.started_at is not None and (new_beat or _beats(parts, session)):
        return Seen(answered, None, beat, new_beat, Phase.RUNNING)
    state = poll(parts.platforms.get(session.platform), session)
    return Seen(
        answered, result, beat, new_beat, state.phase, state.started_at, state.ended_at, state.note, trouble=trouble
    )


def _beats(parts: Parts, session: SessionRow) -> bool:
    """A beat outweighs a probe, so while beats are fresh the platform is not asked: its calls are counted, too."""
    if session.beat_at is None:
        return False
    return parts.clock.now() - session.beat_at < timedelta(seconds=profile_of(parts, session).beat_s)


def profile_of(parts: Parts, session: SessionRow) -> Profile:
    """The platform's profile; a plain one for a platform that was removed from the configuration meanwhile: its
    sessions still beat, end and must be settled."""
    platform = parts.platforms.get(session.platform)
    return platform.profile if platform else Profile(session.platform, "", session.hold_s, gpu_count=1)


def with_last_word(parts: Parts, session: SessionRow, seen: Seen) -> Seen:
    """Before a session is closed as lost: what it wrote between the look and now still counts. Raises StoreError."""
    beat, result = _read_signs(parts.store, session, last=True)
    known = max(session.beat_seq, seen.beat.seq if seen.beat else 0)
    return replace(seen, result=result, beat=beat or seen.beat, new_beat=beat is not None and beat.seq > known)


def _read_signs(store: Store, session: SessionRow, *, last: bool = False) -> tuple[Beat | None, Result | None]:
    """The result is asked for only when it can be there: it saves requests. `last`: in any case. Raises StoreError."""
    beat: Beat | None = None
    result: Result | None = None
    try:
        beat = Beat.from_bytes(store.get(wire.beat_key(session.job_id, session.token)))
    except (ObjectMissing, WireError):
        pass
    if last or beat is None or beat.seq == session.beat_seq or beat.phase == "ship":
        try:
            result = Result.from_bytes(store.get(wire.result_key(session.job_id, session.token)))
        except (ObjectMissing, WireError):
            pass
    if result is not None and result.token != session.token:
        result = None
    return beat, result


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
        started_at=session.started_at,
    )


def job_view(job: JobRow) -> JobView:
    return JobView(
        id=job.id,
        spec=codec.loads(job.spec),
        state=job.state,
        wish=job.wish,
        step=job.step,
        used_s=job.used_s,
        created_at=job.created_at,
        waiting_since=job.waiting_since,
        wish_at=job.wish_at,
        last_platform=job.last_platform,
    )


def job_views(c: Connection) -> tuple[tuple[JobView, ...], list[GpuhopError]]:
    """The unfinished jobs. One whose spec cannot be read is left out and told of: the others go on."""
    views: list[JobView] = []
    troubles: list[GpuhopError] = []
    for job in jobs.unfinished(c):
        try:
            views.append(job_view(job))
        except (GpuhopError, ValueError, TypeError, AttributeError) as error:
            fact = error.fact if isinstance(error, GpuhopError) else str(error)
            troubles.append(
                InvalidInput(f"job {job.id} cannot be planned: its stored spec is unreadable ({fact})", "gpuhop db")
            )
    return tuple(views), troubles


def world(parts: Parts, c: Connection) -> World:
    """The ledger as the planner sees it now."""
    return world_and_troubles(parts, c)[0]


def world_and_troubles(parts: Parts, c: Connection) -> tuple[World, list[GpuhopError]]:
    """The world, and what had to be left out of it."""
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
    waiting, troubles = job_views(c)
    seen = tuple(session_view(session) for session in live)
    return World(now=now, jobs=waiting, sessions=seen, platforms=tuple(views)), troubles
