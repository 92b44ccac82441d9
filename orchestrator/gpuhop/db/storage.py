"""The storage ledger: pins, marks of what is to go, what a job holds in the store, and what was freed when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import sqlalchemy as sa

from gpuhop.db.records import Freed, Pin, Stock
from gpuhop.db.tables import freed, looks, marks, pins, stock
from gpuhop.domain.retention import UNFINISHED, Mark

USER = "user"

# ---------------------------------------------------------------- pins


def pin(c: sa.Connection, job_id: str, place: tuple[int, int], now: datetime, holder: str = USER) -> None:
    """Keep a checkpoint until `holder` unpins it; a fork pins what it starts from. Again is as good as once."""
    row = {"job_id": job_id, "token": place[0], "seq": place[1], "holder": holder}
    if c.execute(sa.select(pins.c.token).filter_by(**row)).first() is None:
        c.execute(pins.insert().values(**row, at=now))


def unpin(c: sa.Connection, job_id: str, place: tuple[int, int], holder: str = USER) -> bool:
    """False when it was not pinned."""
    done = c.execute(
        pins.delete().where(
            pins.c.job_id == job_id, pins.c.token == place[0], pins.c.seq == place[1], pins.c.holder == holder
        )
    )
    return done.rowcount > 0


def pins_of(c: sa.Connection, job_id: str) -> tuple[Pin, ...]:
    query = sa.select(pins).where(pins.c.job_id == job_id).order_by(pins.c.token, pins.c.seq, pins.c.holder)
    return tuple(Pin((row.token, row.seq), row.holder, row.at) for row in c.execute(query))


# ---------------------------------------------------------------- marks


def marks_of(c: sa.Connection, job_id: str) -> dict[str, Mark]:
    """By key: checkpoints and packs of a job."""
    return _marks(c, sa.and_(marks.c.job_id == job_id, marks.c.why != UNFINISHED))


def unfinished_marks(c: sa.Connection, prefix: str) -> dict[str, Mark]:
    """By key: leftovers under a prefix, of whatever job."""
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return _marks(c, sa.and_(marks.c.why == UNFINISHED, marks.c.key.like(escaped + "%", escape="\\")))


def _marks(c: sa.Connection, which: sa.ColumnElement[bool]) -> dict[str, Mark]:
    rows = c.execute(sa.select(marks).where(which).order_by(marks.c.key))
    return {row.key: Mark(row.key, row.size, row.why, row.at, row.going) for row in rows}


def mark(c: sa.Connection, job_id: str | None, mark: Mark) -> None:
    c.execute(marks.delete().where(marks.c.key == mark.key))
    c.execute(
        marks.insert().values(key=mark.key, job_id=job_id, size=mark.size, why=mark.why, at=mark.at, going=mark.going)
    )


def unmark(c: sa.Connection, keys: Iterable[str]) -> None:
    for key in keys:
        c.execute(marks.delete().where(marks.c.key == key))


def begin_removal(c: sa.Connection, keys: Iterable[str]) -> None:
    """From here on nobody may pin them or start from them; a later look may spare them again."""
    for key in keys:
        c.execute(marks.update().where(marks.c.key == key).values(going=True))


def going(c: sa.Connection, job_id: str) -> frozenset[str]:
    """Keys whose removal was begun."""
    query = sa.select(marks.c.key).where(marks.c.job_id == job_id, marks.c.going)
    return frozenset(c.execute(query).scalars())


def removed(c: sa.Connection, keys: Iterable[str], now: datetime) -> None:
    """They are gone: marks become rows of `freed`, each mark once, whoever sees it first."""
    sums: dict[tuple[str | None, str], tuple[int, int]] = {}
    for key in keys:
        row = c.execute(marks.delete().where(marks.c.key == key).returning(marks)).first()
        if row is not None:
            objects, size = sums.get((row.job_id, row.why), (0, 0))
            sums[(row.job_id, row.why)] = (objects + 1, size + row.size)
    for (job_id, why), (objects, size) in sums.items():
        c.execute(freed.insert().values(at=now, job_id=job_id, why=why, objects=objects, bytes=size))


# ---------------------------------------------------------------- what is held, what was freed


def set_stock(c: sa.Connection, job_id: str, sums: Mapping[str, tuple[int, int]], now: datetime) -> None:
    """`sums`: kind -> (objects, bytes), as a look at the store found them."""
    c.execute(stock.delete().where(stock.c.job_id == job_id))
    for kind, (objects, size) in sums.items():
        c.execute(stock.insert().values(job_id=job_id, kind=kind, objects=objects, bytes=size, at=now))


def stock_of(c: sa.Connection, job_id: str) -> list[Stock]:
    query = sa.select(stock).where(stock.c.job_id == job_id).order_by(stock.c.kind)
    return [Stock(row.kind, row.objects, row.bytes, row.at) for row in c.execute(query)]


def freed_of(c: sa.Connection, job_id: str | None) -> list[Freed]:
    """In order of time. None: of jobs that the ledger does not know."""
    query = sa.select(freed).where(freed.c.job_id == job_id).order_by(freed.c.id)
    return [Freed(row.at, row.why, row.objects, row.bytes) for row in c.execute(query)]


# ---------------------------------------------------------------- when to look


def look_again(c: sa.Connection, job_id: str, at: datetime | None) -> None:
    """When the job's objects are to be looked at next; None: not before something happens."""
    c.execute(looks.delete().where(looks.c.job_id == job_id))
    c.execute(looks.insert().values(job_id=job_id, next_at=at))


def jobs_to_look_at(c: sa.Connection, now: datetime) -> list[str]:
    query = sa.select(looks.c.job_id).where(looks.c.next_at <= now).order_by(looks.c.next_at)
    return list(c.execute(query).scalars())
