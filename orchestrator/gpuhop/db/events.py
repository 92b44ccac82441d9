"""The journal: one line per thing that happened, append-only."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from gpuhop.db.records import EventRow
from gpuhop.db.tables import events


def add(c: sa.Connection, now: datetime, job_id: str | None, action: str, text: str) -> None:
    c.execute(events.insert().values(at=now, job_id=job_id, action=action, text=text))


def of_job(c: sa.Connection, job_id: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
    """In order; `after`: only events with a larger id."""
    query = sa.select(events).where(events.c.job_id == job_id, events.c.id > after).order_by(events.c.id).limit(limit)
    return [EventRow(**row._mapping) for row in c.execute(query)]


def recent(c: sa.Connection, *, after: int = 0, limit: int = 100) -> list[EventRow]:
    """The newest, oldest first."""
    query = sa.select(events).where(events.c.id > after).order_by(events.c.id.desc()).limit(limit)
    return [EventRow(**row._mapping) for row in c.execute(query)][::-1]
