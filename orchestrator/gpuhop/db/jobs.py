"""All that is written to and read from `jobs`. Every function takes an open connection and the time."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from gpuhop.db import events
from gpuhop.db.records import JobRow, job_row
from gpuhop.db.tables import jobs
from gpuhop.domain.states import OVER, JobState, Reason, SessionState, Wish, job_move_allowed
from gpuhop.errors import GpuhopError, InvalidInput, NotFound

_OVER = [state.value for state in OVER]


class IllegalMove(GpuhopError):
    """A state change that the table of transitions does not have. A bug, or two writers."""

    def __init__(self, name: str, before: JobState | SessionState, after: JobState | SessionState) -> None:
        super().__init__(f"{name} is {before.value} and cannot become {after.value}", "gpuhop status")
        self.before = before
        self.after = after


def insert(
    c: sa.Connection,
    *,
    id: str,
    name: str,
    spec: str,
    spec_hash: str,
    source: str,
    code_sha256: str,
    code_size: int,
    priority: int,
    now: datetime,
) -> None:
    """A new job, QUEUED, with token 0: no session ever had it."""
    c.execute(
        jobs.insert().values(
            id=id,
            name=name,
            spec=spec,
            spec_hash=spec_hash,
            source=source,
            code_sha256=code_sha256,
            code_size=code_size,
            priority=priority,
            state=JobState.QUEUED.value,
            wish=Wish.RUN.value,
            wish_at=now,
            token=0,
            step=0,
            used_s=0.0,
            created_at=now,
            waiting_since=now,
        )
    )
    events.add(c, now, id, "submitted", f"submitted from {source}")


def get(c: sa.Connection, job_id: str) -> JobRow:
    row = c.execute(sa.select(jobs).where(jobs.c.id == job_id)).first()
    if row is None:
        raise NotFound(f"there is no job {job_id}", "gpuhop status")
    return job_row(row)


def find(c: sa.Connection, ref: str) -> JobRow:
    """By id, by a prefix of the id, or by name (the newest of that name). Raises NotFound, InvalidInput."""
    exact = c.execute(sa.select(jobs).where(jobs.c.id == ref)).first()
    if exact is not None:
        return job_row(exact)
    named = c.execute(sa.select(jobs).where(jobs.c.name == ref).order_by(jobs.c.created_at.desc()).limit(1)).first()
    if named is not None:
        return job_row(named)
    escaped = ref.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    found = c.execute(sa.select(jobs).where(jobs.c.id.like(escaped + "%", escape="\\")).limit(6)).all()
    if not found:
        raise NotFound(f"there is no job {ref!r}", "gpuhop status   (lists all jobs)")
    if len(found) > 1:
        names = ", ".join(sorted(row.id for row in found))
        raise InvalidInput(f"{ref!r} is the beginning of several jobs: {names}", "type more of the name")
    return job_row(found[0])


def unfinished(c: sa.Connection) -> list[JobRow]:
    query = sa.select(jobs).where(jobs.c.state.not_in(_OVER)).order_by(jobs.c.created_at, jobs.c.id)
    return [job_row(row) for row in c.execute(query)]


def newest(c: sa.Connection, limit: int) -> list[JobRow]:
    query = sa.select(jobs).order_by(jobs.c.created_at.desc(), jobs.c.id).limit(limit)
    return [job_row(row) for row in c.execute(query)]


def same_file(c: sa.Connection, source: str) -> list[JobRow]:
    """Unfinished jobs that were submitted from this very file."""
    query = sa.select(jobs).where(jobs.c.source == source, jobs.c.state.not_in(_OVER))
    return [job_row(row) for row in c.execute(query.order_by(jobs.c.created_at.desc()))]


def set_wish(c: sa.Connection, job: JobRow, wish: Wish, now: datetime) -> None:
    """What the user wants. Raises InvalidInput when the job is over."""
    job = get(c, job.id)  # as it is under this transaction's lock: the caller may have read it long ago
    if job.state in (JobState.DONE, JobState.CANCELLED) or (job.state is JobState.FAILED and wish is Wish.PAUSE):
        raise InvalidInput(f"job {job.id} is already {job.state.value}", f"gpuhop status {job.id}")
    c.execute(jobs.update().where(jobs.c.id == job.id).values(wish=wish.value, wish_at=now))
    events.add(
        c, now, job.id, "wish", {"run": "resume", "pause": "pause", "cancel": "cancel"}[wish.value] + " requested"
    )
    if wish is Wish.RUN and job.state in (JobState.PAUSED, JobState.FAILED):
        move(c, job.id, JobState.QUEUED, None, "", now)
    if wish is Wish.CANCEL and job.state is JobState.FAILED:  # the scheduler does not look at it any more
        move(c, job.id, JobState.CANCELLED, Reason.CANCELLED, "", now)


def move(c: sa.Connection, job_id: str, after: JobState, reason: Reason | None, detail: str, now: datetime) -> None:
    """Change the state by the table of transitions. Raises IllegalMove."""
    before = get(c, job_id).state
    if not job_move_allowed(before, after):
        raise IllegalMove(job_id, before, after)
    values: dict[str, object] = {"state": after.value, "reason": reason.value if reason else None, "detail": detail}
    if after is JobState.QUEUED:
        values.update(waiting_since=now, ended_at=None)
    if after in OVER:
        values["ended_at"] = now
    changed = c.execute(jobs.update().where(jobs.c.id == job_id, jobs.c.state == before.value).values(**values))
    if changed.rowcount != 1:
        raise IllegalMove(job_id, before, after)
    because = f": {reason.value}" if reason else ""
    events.add(
        c,
        now,
        job_id,
        f"job-{after.value}",
        f"{before.value} -> {after.value}{because}" + (f" ({detail})" if detail else ""),
    )
