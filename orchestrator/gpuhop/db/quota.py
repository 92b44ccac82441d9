"""Quota entries: appended, never changed. Reading turns them into gpuhop.domain.quota values."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from gpuhop.db.tables import quota_entries
from gpuhop.domain.quota import Charge, Window, WindowKind


def append(
    c: sa.Connection,
    *,
    platform: str,
    kind: str,
    seconds: float,
    start: datetime,
    at: datetime,
    session_id: int | None = None,
    note: str = "",
) -> None:
    """kind: hold | release | charge (one of each per session, by a unique constraint) | adjust."""
    c.execute(
        quota_entries.insert().values(
            platform=platform, kind=kind, seconds=seconds, start=start, at=at, session_id=session_id, note=note
        )
    )


def charges(c: sa.Connection, platform: str, window: Window, now: datetime) -> list[Charge]:
    """What may still count at `now`: for windows with a period, two periods back (a session may cross the edge);
    for an anchored one everything, because where a period begins depends on all that came before."""
    query = sa.select(quota_entries.c.start, quota_entries.c.at, quota_entries.c.seconds).where(
        quota_entries.c.platform == platform, quota_entries.c.kind.in_(["charge", "adjust"])
    )
    if window.kind in (WindowKind.WEEKLY, WindowKind.ROLLING):
        query = query.where(quota_entries.c.at >= now - timedelta(seconds=2 * window.period_s))
    elif window.kind is WindowKind.MONTHLY:
        query = query.where(quota_entries.c.at >= now - timedelta(days=62))
    return [Charge(row.start, row.at, row.seconds) for row in c.execute(query.order_by(quota_entries.c.id))]


def held(c: sa.Connection, platform: str) -> float:
    """Seconds reserved by sessions that are not closed."""
    released = sa.select(quota_entries.c.session_id).where(quota_entries.c.kind == "release")
    query = sa.select(sa.func.coalesce(sa.func.sum(quota_entries.c.seconds), 0.0)).where(
        quota_entries.c.platform == platform,
        quota_entries.c.kind == "hold",
        quota_entries.c.session_id.not_in(released),
    )
    return float(c.execute(query).scalar_one())
