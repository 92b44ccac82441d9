"""Opening the database: SQLite in WAL, foreign keys on, a busy timeout, durable commits; errors made readable."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from gpuhop.errors import DatabaseError, DiskFull, GpuhopError

BUSY_TIMEOUT_MS = 30_000

Connection = sa.Connection
"""For annotations outside gpuhop.db: nobody else names SQLAlchemy."""


def connect(url: str) -> sa.Engine:
    """An engine for the ledger. SQLite transactions are begun by us (BEGIN IMMEDIATE for writes)."""
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin by itself
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    _to_wal(cursor)
    cursor.execute("PRAGMA foreign_keys=ON")
    # FULL, not NORMAL: after a power cut NORMAL may forget the last commits, and a forgotten token would be
    # given out twice.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _to_wal(cursor: Any) -> None:
    """The switch to WAL needs the file alone for a moment, and SQLite does not wait for it: where several processes
    open a new database at once, all but one are told "locked" whatever the busy timeout."""
    give_up = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: sa.Connection) -> None:
    mode = connection.get_execution_options().get("gpuhop_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")


class Database:
    """A ledger that can be read and written. One write transaction at a time, over all processes."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        with readable_errors(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that holds the write lock from its start; committed when the block ends well."""
        with readable_errors(), self.engine.connect() as connection:
            connection = connection.execution_options(gpuhop_begin="IMMEDIATE")
            with connection.begin():
                yield connection

    def close(self) -> None:
        self.engine.dispose()


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn the driver's failures into ours: a fact and the next command."""
    try:
        yield
    except OperationalError as error:
        raise explain(error) from error
    except sa.exc.DatabaseError as error:
        if "malformed" in str(error.orig) or "not a database" in str(error.orig):
            raise DatabaseError(
                "the database file is damaged", "gpuhop db   (shows where it lies and its backups)"
            ) from error
        raise


def explain(error: OperationalError) -> GpuhopError:
    text = str(error.orig)
    if "full" in text:
        return DiskFull(
            "no space left for the database; nothing was changed", "df -h, free some space, and run it again"
        )
    if "locked" in text or "busy" in text:
        return DatabaseError(
            f"another process held the database for more than {BUSY_TIMEOUT_MS // 1000} s", "gpuhop db"
        )
    if "readonly" in text or "unable to open" in text:
        return DatabaseError(f"the database cannot be opened or written ({text})", "gpuhop db")
    return DatabaseError(f"the database failed: {text}", "gpuhop db")
