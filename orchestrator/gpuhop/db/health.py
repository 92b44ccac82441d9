"""A look at the database file that changes nothing: revision, integrity, sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from gpuhop.db import migrate
from gpuhop.db.connect import connect, readable_errors
from gpuhop.db.tables import metadata


@dataclass(frozen=True)
class Health:
    """`integrity`: SQLite's own words, "ok" when sound. `rows`: (table, count)."""

    current: str | None
    head: str
    known: bool
    integrity: str
    rows: tuple[tuple[str, int], ...]


def look(path: Path) -> Health:
    """Raises DatabaseError for a file that cannot be read as a database."""
    engine = connect(f"sqlite:///{path}")
    try:
        revision = migrate.state(engine)
        with readable_errors(), engine.connect() as c:
            integrity = str(c.exec_driver_sql("PRAGMA quick_check(1)").scalar())
            names = set(sa.inspect(c).get_table_names())
            counts = [
                (table.name, int(c.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()))
                for table in metadata.sorted_tables
                if table.name in names
            ]
    finally:
        engine.dispose()
    return Health(revision.current, revision.head, revision.known, integrity, tuple(counts))
