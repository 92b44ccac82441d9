"""Leases, tokens and sessions: the only place that gives out a token, and the only one that accepts a result."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from gpuhop.db import events, jobs, quota
from gpuhop.db.records import Cooldown, SessionRow, session_row
from gpuhop.db.tables import cooldowns, leases, sessions
from gpuhop.db.tables import jobs as jobs_table
from gpuhop.domain.states import LIVE_SESSIONS, JobState, Reason, SessionState, session_move_allowed
from gpuhop.errors import LeaseLost

_LIVE = [state.value for state in sorted(LIVE_SESSIONS)]


def acquire(
    c: sa.Connection, job_id: str, platform: str, *, budget_s: float, hold_s: float, start_step: int, now: datetime
) -> SessionRow:
    """The next token, a lease, a hold and a LAUNCHING session, or nothing. Raises IllegalMove, LeaseLost."""
    holder = c.execute(sa.select(leases.c.token).where(leases.c.job_id == job_id)).scalar()
    if holder is not None:
        raise LeaseLost(job_id, holder + 1)
    token = c.execute(
        jobs_table.update()
        .where(jobs_table.c.id == job_id)
        .values(token=jobs_table.c.token + 1, last_platform=platform)
        .returning(jobs_table.c.token)
    ).scalar_one()
    name = f"{job_id}-t{token:04d}"
    row = c.execute(
        sessions.insert()
        .values(
            job_id=job_id,
            token=token,
            platform=platform,
            name=name,
            state=SessionState.LAUNCHING.value,
            budget_s=budget_s,
            hold_s=hold_s,
            launched_at=now,
            limit_at=now + timedelta(seconds=hold_s),
            start_step=start_step,
            step=start_step,
        )
        .returning(sessions)
    ).one()
    c.execute(leases.insert().values(job_id=job_id, token=token, session_id=row.id, acquired_at=now))
    quota.append(c, platform=platform, kind="hold", seconds=hold_s, start=now, at=now, session_id=row.id)
    jobs.move(c, job_id, JobState.RUNNING, None, f"t{token:04d} on {platform}", now)
    return session_row(row)


def launched(c: sa.Connection, session: SessionRow, handle: str, link: str | None) -> None:
    """The platform has taken it."""
    _guard(c, session)
    c.execute(sessions.update().where(sessions.c.id == session.id).values(handle=handle, link=link))


def observe(
    c: sa.Connection,
    session: SessionRow,
    state: SessionState,
    *,
    started_at: datetime | None,
    beat: dict[str, object],
    now: datetime,
) -> None:
    """What a look at a live session gave. `beat`: columns of a new beat, empty for none. Raises LeaseLost,
    IllegalMove."""
    _guard(c, session)
    values: dict[str, object] = dict(beat)
    if state is not session.state:
        if not session_move_allowed(session.state, state):
            raise jobs.IllegalMove(session.name, session.state, state)
        values["state"] = state.value
        events.add(
            c, now, session.job_id, f"session-{state.value}", f"{session.name} on {session.platform}: {state.value}"
        )
    if state is SessionState.RUNNING and session.started_at is None:
        began = started_at or now
        values.update(started_at=began, limit_at=began + timedelta(seconds=session.hold_s))
    if values:
        c.execute(sessions.update().where(sessions.c.id == session.id).values(**values))


def close(
    c: sa.Connection,
    session: SessionRow,
    state: SessionState,
    reason: Reason,
    *,
    detail: str,
    ended_at: datetime,
    charged_s: float,
    gpus: int,
    sealed_seq: int,
    step: int,
    saved_step: int,
    now: datetime,
) -> None:
    """End a session: charge its quota, release its hold, give up its lease, seal its checkpoints. One transaction
    with whatever the caller decides about the job. Raises LeaseLost when the token is no longer the current one."""
    _guard(c, session)
    if not session_move_allowed(session.state, state):
        raise jobs.IllegalMove(session.name, session.state, state)
    c.execute(
        sessions.update()
        .where(sessions.c.id == session.id)
        .values(
            state=state.value,
            reason=reason.value,
            detail=detail,
            ended_at=ended_at,
            sealed_seq=sealed_seq,
            step=step,
            saved_step=saved_step,
        )
    )
    c.execute(leases.delete().where(leases.c.job_id == session.job_id, leases.c.token == session.token))
    quota.append(
        c, platform=session.platform, kind="release", seconds=session.hold_s, start=now, at=now, session_id=session.id
    )
    began = ended_at - timedelta(seconds=charged_s)
    if charged_s > 0:
        quota.append(
            c,
            platform=session.platform,
            kind="charge",
            seconds=charged_s,
            start=began,
            at=ended_at,
            session_id=session.id,
        )
    c.execute(
        jobs_table.update()
        .where(jobs_table.c.id == session.job_id)
        .values(
            used_s=jobs_table.c.used_s + charged_s * max(1, gpus),
            step=sa.case((jobs_table.c.step > saved_step, jobs_table.c.step), else_=saved_step),
        )
    )
    text = f"{session.name} on {session.platform}: {state.value}, {reason.value}, step {saved_step}"
    events.add(c, now, session.job_id, f"session-{state.value}", text + (f" ({detail})" if detail else ""))


def _guard(c: sa.Connection, session: SessionRow) -> None:
    """Proof of ownership before any write about a session (DESIGN I3)."""
    current = c.execute(sa.select(leases.c.token).where(leases.c.job_id == session.job_id)).scalar()
    if current != session.token:
        raise LeaseLost(session.job_id, session.token)


def live(c: sa.Connection) -> list[SessionRow]:
    query = sa.select(sessions).where(sessions.c.state.in_(_LIVE)).order_by(sessions.c.id)
    return [session_row(row) for row in c.execute(query)]


def of_job(c: sa.Connection, job_id: str) -> list[SessionRow]:
    """All of them, in order of token."""
    query = sa.select(sessions).where(sessions.c.job_id == job_id).order_by(sessions.c.token)
    return [session_row(row) for row in c.execute(query)]


def of_platform(c: sa.Connection, platform: str, newest: int) -> list[SessionRow]:
    """The newest so many, the newest first."""
    query = sa.select(sessions).where(sessions.c.platform == platform).order_by(sessions.c.id.desc()).limit(newest)
    return [session_row(row) for row in c.execute(query)]


def cool_down(c: sa.Connection, platform: str, until: datetime, text: str, now: datetime) -> None:
    """No launches before `until`; counts refusals in a row."""
    before = c.execute(sa.select(cooldowns.c.times).where(cooldowns.c.platform == platform)).scalar()
    c.execute(cooldowns.delete().where(cooldowns.c.platform == platform))
    c.execute(cooldowns.insert().values(platform=platform, until=until, text=text, times=(before or 0) + 1))
    events.add(c, now, None, "platform-refused", f"{platform}: {text}")


def warm_up(c: sa.Connection, platform: str) -> None:
    """The platform took a session: its refusals are forgotten."""
    c.execute(cooldowns.delete().where(cooldowns.c.platform == platform))


def cooling(c: sa.Connection) -> dict[str, Cooldown]:
    return {row.platform: Cooldown(**row._mapping) for row in c.execute(sa.select(cooldowns))}
