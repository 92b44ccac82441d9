"""Migrations: equal to the tables, run once, refuse what they do not know; disks that are full or read-only."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import site
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import alembic
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from tests.support.engine import START

from gpuhop.db import events, migrate
from gpuhop.db.connect import Database, connect
from gpuhop.db.migrate import open_database
from gpuhop.db.tables import metadata
from gpuhop.errors import DatabaseError, DiskFull, Exit


def test_alembic_is_the_library_and_not_our_folder() -> None:
    where = Path(alembic.__file__).resolve()
    places = [Path(p).resolve() for p in [*site.getsitepackages(), sysconfig.get_paths()["purelib"]]]
    assert any(where.is_relative_to(place) for place in places), where


def test_the_migrations_make_what_the_tables_say(db: Database) -> None:
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        migrated = _shape(connection)
    fresh = connect("sqlite://")
    with fresh.connect() as connection:
        metadata.create_all(connection)
        assert _shape(connection) == migrated
    fresh.dispose()


def _shape(connection: sa.Connection) -> dict[str, list[object]]:
    """Columns, types, defaults, keys and indexes as SQLite itself tells them."""
    found: dict[str, list[object]] = {}
    for table in sorted(metadata.tables):
        rows = [tuple(row)[1:] for row in connection.exec_driver_sql(f"pragma table_info({table})")]
        keys = [tuple(row)[2:] for row in connection.exec_driver_sql(f"pragma foreign_key_list({table})")]
        indexes = [tuple(row)[1:] for row in connection.exec_driver_sql(f"pragma index_list({table})")]
        found[table] = [rows, sorted(keys), sorted(indexes)]
    return found


def test_alembic_check_finds_nothing_to_do(db: Database) -> None:
    from alembic import command

    config = migrate._config()
    with db.engine.connect() as connection:
        config.attributes["connection"] = connection
        command.check(config)


def test_downgrade_leaves_nothing(db: Database) -> None:
    from alembic import command

    config = migrate._config()
    with db.engine.connect() as connection:
        config.attributes["connection"] = connection
        with connection.begin():
            command.downgrade(config, "base")
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]


def test_head_is_alembics_own_head() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(migrate._config()).get_current_head() == migrate.head()


def test_opening_again_loads_no_alembic(db: Database, path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom gpuhop.db.migrate import open_database\n"
        f"open_database(Path({str(path)!r})).close()\nassert 'alembic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


ROUNDS = 8
"""The switch to WAL fails in about one of five races unless it is repeated."""


def _open_and_write(folder: str, barrier: Any, answers: Any) -> None:
    said = []
    for index in range(ROUNDS):
        barrier.wait()
        try:
            database = open_database(Path(folder) / f"{index}.sqlite")
            with database.write() as c:
                events.add(c, START, None, "opened", str(os.getpid()))
            database.close()
        except BaseException as error:
            said.append(repr(error))
    answers.put(said)


def test_four_processes_open_a_new_database_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_open_and_write, args=(str(tmp_path), barrier, answers)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert [answers.get(timeout=60) for _ in workers] == [[]] * 4
    for worker in workers:
        worker.join(60)
    for index in range(ROUNDS):
        raw = sqlite3.connect(tmp_path / f"{index}.sqlite")
        assert raw.execute("select version_num from alembic_version").fetchall() == [(migrate.head(),)]
        assert raw.execute("select count(*) from events").fetchone() == (4,)
        raw.close()


def test_a_newer_database_is_refused_and_left_alone(db: Database, path: Path) -> None:
    db.close()
    raw = sqlite3.connect(path)
    raw.execute("update alembic_version set version_num = '9999'")
    raw.commit()
    raw.close()
    with pytest.raises(DatabaseError) as caught:
        open_database(path)
    assert caught.value.exit_code is Exit.DATABASE and int(Exit.DATABASE) == 4
    assert caught.value.fact == f"{path} was made by a newer gpuhop (revision 9999; this one knows {migrate.head()})"
    assert caught.value.hint == "pip install --upgrade gpuhop"
    raw = sqlite3.connect(path)
    assert raw.execute("select version_num from alembic_version").fetchall() == [("9999",)]
    raw.close()


@pytest.mark.parametrize("damage", ["rubbish", "header", "middle"])
def test_a_damaged_file_is_named(db: Database, path: Path, damage: str) -> None:
    db.close()
    body = bytearray(path.read_bytes())
    if damage == "rubbish":
        body = bytearray(b"not a database, but long enough to be looked at" * 100)
    elif damage == "header":
        body[:100] = bytes(100)
    else:
        body[100:20_000] = os.urandom(19_900)
    path.write_bytes(bytes(body))
    with pytest.raises(DatabaseError) as caught:
        database = open_database(path)
        with database.read() as c:
            events.recent(c)
    assert caught.value.exit_code is Exit.DATABASE
    assert "gpuhop db" in caught.value.hint
    assert bytes(body) == path.read_bytes()


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(DatabaseError) as caught:
        open_database(tmp_path / "home" / "ledger.sqlite")
    assert str(tmp_path / "home") in caught.value.fact


# ---------------------------------------------------------------- disks


def _mount(folder: Path, *options: str) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs here (needs root): {done.stderr.decode().strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 KB."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("a small disk of its own needs root and `mount`")
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount(folder, "size=600k")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            pass


def test_a_full_disk_loses_nothing_and_says_so(disk: Path) -> None:
    database = open_database(disk / "ledger.sqlite")
    with database.write() as c:
        events.add(c, START, None, "kept", "before")
    _fill(disk)
    with pytest.raises(DiskFull) as caught:
        for _ in range(100):
            with database.write() as c:
                events.add(c, START, None, "lost", "x" * 10_000)
    assert caught.value.exit_code is Exit.DISK_FULL
    with database.read() as c:
        told = [event.action for event in events.recent(c)]
    assert told[0] == "kept"
    (disk / "ballast").unlink()
    with database.write() as c:
        events.add(c, START, None, "kept", "after")
    database.close()
    database = open_database(disk / "ledger.sqlite")
    with database.read() as c:
        again = [event.action for event in events.recent(c)]
        assert c.exec_driver_sql("pragma integrity_check").scalar() == "ok"
    assert again == [*told, "kept"]
    database.close()


def test_a_disk_too_full_for_a_new_database(disk: Path) -> None:
    _fill(disk)
    with pytest.raises(DiskFull):
        open_database(disk / "ledger.sqlite")
    (disk / "ballast").unlink()
    open_database(disk / "ledger.sqlite").close()


@pytest.mark.parametrize("there", [True, False])
def test_a_read_only_folder(disk: Path, there: bool) -> None:
    if there:
        open_database(disk / "ledger.sqlite").close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(DatabaseError) as caught:
        database = open_database(disk / "ledger.sqlite")
        with database.write() as c:
            events.add(c, START, None, "x", "y")
    assert caught.value.exit_code is Exit.DATABASE


# ---------------------------------------------------------------- connections


def test_every_connection_is_durable_and_strict(db: Database) -> None:
    with db.read() as c:
        found = {name: c.exec_driver_sql(f"pragma {name}").scalar() for name in ("journal_mode", "foreign_keys")}
        assert found == {"journal_mode": "wal", "foreign_keys": 1}
        assert c.exec_driver_sql("pragma synchronous").scalar() == 2  # FULL


def test_another_process_that_holds_the_lock_too_long_is_named(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuhop.db.connect.BUSY_TIMEOUT_MS", 50)
    other = Database(connect(f"sqlite:///{path}"))
    with db.write() as c:
        events.add(c, START, None, "a", "b")
        with pytest.raises(DatabaseError, match="another process held the database"), other.write():
            pass
        with other.read() as reading:  # readers never wait
            assert events.recent(reading) == []
    other.close()


def test_a_ledger_of_the_first_release_is_brought_up_with_all_that_it_holds(db: Database, path: Path) -> None:
    from alembic import command

    config = migrate._config()
    with db.engine.connect() as connection:
        config.attributes["connection"] = connection
        with connection.begin():
            command.downgrade(config, "0001")
            assert "pins" not in sa.inspect(connection).get_table_names()
            events.add(connection, START, None, "old", "kept")
    db.close()
    again = open_database(path)
    with again.read() as c:
        assert [event.text for event in events.recent(c)] == ["kept"]
        assert migrate.current(c) == migrate.head()
        assert {"pins", "marks", "stock", "freed", "looks"} <= set(sa.inspect(c).get_table_names())
    again.close()


def test_what_was_freed_is_never_rewritten(db: Database) -> None:
    from gpuhop.db import storage
    from gpuhop.domain.retention import Mark

    with db.write() as c:
        storage.mark(c, None, Mark("k", 5, "unfinished", START))
        storage.removed(c, ["k", "k"], START)
        assert [(row.objects, row.bytes) for row in storage.freed_of(c, None)] == [(1, 5)]
    for verb in ("update freed set bytes = 0", "delete from freed"):
        with pytest.raises(sa.exc.IntegrityError, match="append-only"), db.write() as c:
            c.exec_driver_sql(verb)
