"""The loop in real life: it ends cleanly, and what fails for a while is told and survived."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.engine import START, Rig, check_books, check_training, profile, scripted, spec
from tests.support.faults import HookedStore
from tests.support.scripted import Script
from tests.support.scripted import Service as Remote

from gpuhop.db import events
from gpuhop.domain.states import JobState
from gpuhop.engine.service import Service
from gpuhop.engine.tick import Loop, Report
from gpuhop.errors import DatabaseError, DiskFull, StoreError


class Drive:
    """A service over a scripted world, in which each report lets five seconds pass."""

    def __init__(self, rig: Rig, remote: Remote, loop: Loop | None = None) -> None:
        self.rig, self.remote = rig, remote
        self.reports: list[Report] = []
        self.service = Service(loop or Loop(rig.parts), 0.01, self.heard, self.over)

    def heard(self, report: Report) -> None:
        self.reports.append(report)
        self.rig.clock.sleep(5.0)
        self.remote.advance()

    def over(self) -> bool:
        return self.rig.job().state is JobState.DONE

    @property
    def troubles(self) -> list[str]:
        return [error.fact for report in self.reports for error in report.troubles]


@pytest.fixture
def drive(home: Path) -> Drive:
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit(spec(200))
    return Drive(rig, services["lab"])


def test_it_runs_until_the_job_is_done(drive: Drive) -> None:
    drive.service.run()
    check_training(drive.rig, 200)
    assert drive.troubles == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_between_ticks_and_the_session_goes_on(drive: Drive, number: int) -> None:
    before = signal.getsignal(number)
    plain = drive.heard

    def heard(report: Report) -> None:
        plain(report)
        if len(drive.reports) == 5:
            os.kill(os.getpid(), number)

    drive.service = Service(Loop(drive.rig.parts), 0.01, heard, drive.over)
    drive.service.run()
    assert len(drive.reports) in (5, 6)  # the tick that was running ends whole
    assert signal.getsignal(number) is before
    assert len(drive.remote.live()) == 1 and drive.rig.rows()[0].ended_at is None
    # Another process takes over where it was left.
    drive.rig.drop()
    again = Drive(drive.rig, drive.remote)
    again.service.run()
    assert [row.token for row in drive.rig.rows()] == list(range(1, len(drive.remote.sessions) + 1))
    check_training(drive.rig, 200)
    check_books(drive.rig, {"lab": drive.remote})


def test_stop_from_another_thread(drive: Drive) -> None:
    threading.Timer(0.2, drive.service.stop).start()
    drive.over = lambda: False  # type: ignore[method-assign]
    drive.service = Service(Loop(drive.rig.parts), 0.01, drive.heard)
    threading.Timer(0.2, drive.service.stop).start()
    began = time.monotonic()
    drive.service.run()
    assert time.monotonic() - began < 5.0


def test_a_store_that_is_away_is_told_and_survived(drive: Drive) -> None:
    def hook(verb: str, key: str, moment: str) -> None:
        if 5 <= len(drive.reports) < 15:
            raise StoreError("the store cannot be reached", "wait")

    store = HookedStore(drive.rig.store, hook)
    drive.rig.drop()
    drive.rig.store = store
    drive.service = Service(Loop(drive.rig.parts), 0.01, drive.heard, drive.over)
    drive.service.run()
    assert drive.troubles.count("the store cannot be reached") == 10
    check_training(drive.rig, 200)


def test_a_locked_database_is_told_and_survived(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuhop.db.connect.BUSY_TIMEOUT_MS", 20)
    drive.rig.drop()
    other = sqlite3.connect(drive.rig.database, isolation_level=None, check_same_thread=False)
    plain = drive.heard

    def heard(report: Report) -> None:
        plain(report)
        if len(drive.reports) == 5:
            other.execute("begin immediate")
        if len(drive.reports) == 12:
            other.execute("rollback")

    drive.service = Service(Loop(drive.rig.parts), 0.01, heard, drive.over)
    drive.service.run()
    other.close()
    assert any("another process held the database" in text for text in drive.troubles)
    check_training(drive.rig, 200)
    check_books(drive.rig, {"lab": drive.remote})


def test_a_full_disk_is_told_and_survived(home: Path) -> None:
    """SQLite's own limit on pages stands for the disk: the error is the same."""
    rig, services = scripted(home, (profile(), Script(speed=2.0)))
    rig.submit(spec(200))
    drive = Drive(rig, services["lab"])
    allowed = [1]  # at most what the file has already

    def limit(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"pragma max_page_count={allowed[0]}")

    sa.event.listen(drive.rig.parts.db.engine, "begin", limit)
    with pytest.raises(DiskFull):
        for _ in range(1000):
            with rig.parts.db.write() as c:
                events.add(c, START, None, "ballast", "x" * 500)
    full: list[str] = []

    def heard(report: Report) -> None:
        drive.reports.append(report)
        if any(isinstance(error, DiskFull) for error in report.troubles):
            full.append("full")
            allowed[0] = 1 if len(full) < 3 else 1_000_000
        drive.rig.clock.sleep(5.0)
        drive.remote.advance()

    drive.service = Service(Loop(drive.rig.parts), 0.01, heard, drive.over)
    drive.service.run()
    assert len(full) == 3, "the disk was never full"
    check_training(drive.rig, 200)
    check_books(drive.rig, {"lab": drive.remote})


def test_a_bug_ends_it_aloud(drive: Drive) -> None:
    class Broken(Loop):
        def tick(self) -> Report:
            if len(drive.reports) == 3:
                raise ZeroDivisionError("a bug")
            return super().tick()

    drive.service = Service(Broken(drive.rig.parts), 0.01, drive.heard, drive.over)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        drive.service.run()


def test_a_listener_that_fails_ends_it_aloud(drive: Drive) -> None:
    """Whoever listens may fail on any report, also on one that tells of trouble."""

    class Away(Loop):
        def tick(self) -> Report:
            raise DatabaseError("the database is away", "wait")

    def heard(report: Report) -> None:
        drive.reports.append(report)
        if len(drive.reports) == 3:
            raise BrokenPipeError("nobody reads any more")

    drive.service = Service(Away(drive.rig.parts), 0.01, heard, lambda: len(drive.reports) > 50)
    threading.Timer(10.0, drive.service.stop).start()
    with pytest.raises(BrokenPipeError):
        drive.service.run()
    assert len(drive.reports) == 3
