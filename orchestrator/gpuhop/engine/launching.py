"""Starting a session: token and hold first, then the grant, then the platform. Every step may be repeated."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from gpuhop.db import jobs, sessions, storage
from gpuhop.db.connect import Connection
from gpuhop.db.records import SessionRow
from gpuhop.domain.plan import Launch
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.engine import checkpoints, grants, settling
from gpuhop.engine.checkpoints import Saved
from gpuhop.engine.parts import Parts
from gpuhop.platforms.base import Handle, LaunchRequest, RefusalKind, Refused, Rendered
from gpuhop.spec import codec
from gpuhop_worker import wire
from gpuhop_worker.wire import Control

log = logging.getLogger("gpuhop")

FIRST_PAUSE_S = {
    RefusalKind.SLOTS: settling.SHORT_PAUSE_S,
    RefusalKind.EXHAUSTED: 3600.0,
    RefusalKind.CAPACITY: 300.0,
    RefusalKind.NOT_ENTITLED: 86400.0,
    RefusalKind.BLOCKED: 7 * 86400.0,
    RefusalKind.CREDENTIALS: 3600.0,
    RefusalKind.BROKEN: 300.0,
}
"""Pause after the first refusal of a row; it doubles with each further one, up to a day."""


def parents_of(parts: Parts, job_id: str, keep: int) -> list[Saved]:
    """The checkpoints to resume from, newest first."""
    with parts.db.read() as c:
        rows = sessions.of_job(c, job_id)
    sealed = checkpoints.sealed_by(rows)
    return checkpoints.counting(parts.store, job_id, sealed, max(keep, 1))


def launch(parts: Parts, action: Launch) -> None:
    """Carry out a Launch: acquire, then start. Raises StoreError (the session stays LAUNCHING and is repaired).
    Nothing happens where the job or the platform has changed since the plan was made."""
    now = parts.clock.now()
    with parts.db.read() as c:
        spec = codec.loads(jobs.get(c, action.job).spec)
    parents = parents_of(parts, action.job, spec.checkpoint.keep.last)
    start = next((one.manifest.step for one in parents if one.manifest is not None), 0)
    with parts.db.write() as c:
        if not _still_so(c, action, now):
            return
        session = sessions.acquire(
            c, action.job, action.platform, budget_s=action.budget_s, hold_s=action.hold_s, start_step=start, now=now
        )
    start_session(parts, session, parents)


def _still_so(c: Connection, action: Launch, now: datetime) -> bool:
    """Under the write lock: the user may have paused or cancelled since, the platform may just have refused another."""
    job = jobs.get(c, action.job)
    cool = sessions.cooling(c).get(action.platform)
    return job.state is JobState.QUEUED and job.wish is Wish.RUN and (cool is None or cool.until <= now)


def start_session(parts: Parts, session: SessionRow, parents: list[Saved] | None = None) -> None:
    """From LAUNCHING without a handle to one with it. Idempotent: also the repair of a crash in between."""
    with parts.db.read() as c:
        job = jobs.get(c, session.job_id)
    spec = codec.loads(job.spec)
    if parents is None:
        parents = parents_of(parts, session.job_id, spec.checkpoint.keep.last)
    with parts.db.read() as c:  # after the session became live: a sweep that had not begun by then spares them
        going = storage.going(c, job.id)
    parents = [one for one in parents if one.key not in going]
    platform = parts.platform(session.platform)
    grant = grants.make(
        store=parts.store,
        spec=spec,
        session=session,
        code_sha256=job.code_sha256,
        parents=parents,
        profile=platform.profile,
        mean_life_s=_mean_life(parts, session),
        time_scale=parts.time_scale,
    )
    parts.store.put(wire.control_key(job.id), Control(token=session.token).to_bytes())
    parts.store.put(wire.grant_key(job.id, session.token), grant.to_gzip())
    rendered = platform.render(request(parts, session, spec.secrets))
    try:
        handle = platform.launch(rendered)
    except Refused as refusal:
        _refused(parts, session, refusal)
        return
    _launched(parts, session, handle)


def _mean_life(parts: Parts, session: SessionRow) -> float:
    """How long sessions of this platform live, from the ledger's own history: time survived over deaths, with one
    imagined death after a whole session as the prior."""
    with parts.db.read() as c:
        rows = sessions.of_platform(c, session.platform, 50)
    lived = [(row.ended_at - row.started_at).total_seconds() for row in rows if row.ended_at and row.started_at]
    deaths = sum(row.state is SessionState.LOST and row.started_at is not None for row in rows)
    return (session.hold_s + sum(lived)) / (1 + deaths)


def request(parts: Parts, session: SessionRow, secrets: tuple[str, ...]) -> LaunchRequest:
    profile = parts.platform(session.platform).profile
    ttl_s = grants.life_s(session, profile, parts.time_scale)
    return LaunchRequest(
        name=session.name,
        grant_url=parts.store.presign("get", wire.grant_key(session.job_id, session.token), ttl_s),
        bundle=parts.bundle_path,
        bundle_url=parts.store.presign("get", parts.bundle_key, ttl_s),
        limit_s=session.hold_s,
        secrets=secrets,
    )


def preview(parts: Parts, action: Launch, secrets: tuple[str, ...]) -> Rendered:
    """What a launch would send; nothing is taken and nothing is written."""
    platform = parts.platform(action.platform)
    name = f"{action.job}-t0001"
    return platform.render(
        LaunchRequest(
            name, "<address of the grant>", parts.bundle_path, "<address of the bundle>", action.hold_s, secrets
        )
    )


def _launched(parts: Parts, session: SessionRow, handle: Handle) -> None:
    with parts.db.write() as c:
        sessions.launched(c, session, handle.id, handle.link)
    log.info("launched %s on %s", session.name, session.platform, extra={"action": "launched"})


def _refused(parts: Parts, session: SessionRow, refusal: Refused) -> None:
    """`until` may have passed already (a rolling window's refill "begins" now): even so there is a pause."""
    now = parts.clock.now()
    first = FIRST_PAUSE_S[refusal.kind]
    if refusal.until is not None:
        until = max(refusal.until, now + timedelta(seconds=settling.SHORT_PAUSE_S))
    else:
        until = now + timedelta(seconds=settling.pause_s(parts, session.platform, first))
    with parts.db.write() as c:
        sessions.cool_down(c, session.platform, until, refusal.text, now)
    settling.close(parts, session, SessionState.REFUSED, Reason.REFUSED, detail=refusal.text)
