"""Migrations run by themselves, under a lock, when a command opens the database; `gpuhop db` shows the state."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from filelock import FileLock, Timeout

from gpuhop.db.connect import Database, connect, readable_errors
from gpuhop.errors import DatabaseError, DiskFull

if TYPE_CHECKING:
    from alembic.config import Config


@dataclass(frozen=True)
class Revision:
    """`current`: None for an empty database. `head`: what this gpuhop needs. `known`: current is one of ours."""

    current: str | None
    head: str
    known: bool


def script_location() -> Path:
    """The migrations: packaged in a wheel, or beside the sources in a checkout."""
    packaged = Path(__file__).resolve().parents[1] / "_alembic"
    checkout = Path(__file__).resolve().parents[3] / "alembic"
    return checkout if (checkout / "env.py").exists() else packaged


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    return config


def head() -> str:
    """The newest revision, read from the migrations' file names (NNNN_verb_noun.py): no need to load alembic."""
    names = sorted(p.name for p in (script_location() / "versions").glob("[0-9]*.py"))
    return names[-1][:4]


def current(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(sa.text("select version_num from alembic_version")).scalar()
    return found


def state(engine: sa.Engine) -> Revision:
    with readable_errors(), engine.connect() as connection:
        now = current(connection)
    known = now is None or any((script_location() / "versions").glob(f"{now}_*.py"))
    return Revision(now, head(), known)


def open_database(path: Path) -> Database:
    """Open, and bring up to date if needed. Raises DatabaseError for a newer or damaged database."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(
            f"{path.parent} cannot be made: {error.strerror}", "check GPUHOP_HOME, or: gpuhop doctor"
        ) from error
    engine = connect(f"sqlite:///{path}")
    if state(engine).current != head():
        _upgrade(engine, path)
    return Database(engine)


def _upgrade(engine: sa.Engine, path: Path) -> None:
    lock = FileLock(f"{path}.migrate.lock", timeout=60)
    try:
        with lock:
            found = state(engine)
            if not found.known:
                raise DatabaseError(
                    f"{path} was made by a newer gpuhop (revision {found.current}; this one knows {found.head})",
                    "pip install --upgrade gpuhop",
                )
            if found.current == found.head:
                return
            with readable_errors(), engine.connect() as connection:
                _run(connection.execution_options(gpuhop_begin="IMMEDIATE"))
    except Timeout as error:
        raise DatabaseError("another process has been migrating the database for a minute", "gpuhop db") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left for {path}; nothing was changed", f"df -h {path.parent}") from error
        raise DatabaseError(f"{path} cannot be migrated: {error.strerror}", f"ls -la {path.parent}") from error


def _run(connection: sa.Connection) -> None:
    import logging

    from alembic import command

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = _config()
    config.attributes["connection"] = connection
    with connection.begin():
        command.upgrade(config, "head")
