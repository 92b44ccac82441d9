"""One driver per database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.engine import START

from gpuhop.engine.driver import DriverLock, current
from gpuhop.errors import DriverLocked, Exit

HOLD = (
    "import sys, time\nfrom datetime import UTC, datetime\nfrom pathlib import Path\n"
    "from gpuhop.engine.driver import DriverLock\n"
    "with DriverLock(Path(sys.argv[1]), 'gpuhop serve', datetime.now(UTC)):\n"
    "    print('held', flush=True)\n    time.sleep(60)\n"
)


def holder(database: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(database)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_the_second_is_refused_and_told_who_it_is(tmp_path: Path) -> None:
    database = tmp_path / "ledger.sqlite"
    with holder(database) as first:
        try:
            with pytest.raises(DriverLocked) as caught, DriverLock(database, "gpuhop submit", START):
                pass
            assert caught.value.exit_code is Exit.LOCKED
            assert caught.value.owner.startswith(f"process {first.pid} on ")
            assert "`gpuhop serve`, since 20" in caught.value.owner
            assert current(database) == caught.value.owner
        finally:
            first.kill()


def test_a_dead_owners_lock_is_free_at_once(tmp_path: Path) -> None:
    database = tmp_path / "ledger.sqlite"
    with holder(database) as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        began = time.monotonic()
        assert current(database) is None
        with DriverLock(database, "gpuhop serve", START):
            assert time.monotonic() - began < 0.5
            assert str(os.getpid()) in (tmp_path / "ledger.sqlite.driver.json").read_text()


def test_the_note_goes_with_the_lock(tmp_path: Path) -> None:
    database = tmp_path / "ledger.sqlite"
    with pytest.raises(ZeroDivisionError), DriverLock(database, "gpuhop serve", START):
        raise ZeroDivisionError
    assert current(database) is None
    assert not (tmp_path / "ledger.sqlite.driver.json").exists()
    with DriverLock(database, "gpuhop serve", START):
        pass


def test_looking_never_gets_in_the_way(tmp_path: Path) -> None:
    """`gpuhop status --watch` looks all the time; `gpuhop serve` must start none the less."""
    database, end = tmp_path / "ledger.sqlite", threading.Event()
    code = (
        "import sys\nfrom pathlib import Path\nfrom gpuhop.engine.driver import current\n"
        "print('looks', flush=True)\nwhile True: current(Path(sys.argv[1]))\n"
    )
    lookers = [
        subprocess.Popen([sys.executable, "-c", code, str(database)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for looker in lookers:
            assert looker.stdout is not None
            looker.stdout.readline()
        for _ in range(20):
            with DriverLock(database, "gpuhop serve", START):
                assert current(database) is not None
    finally:
        end.set()
        for looker in lookers:
            looker.kill()
            looker.wait()
            assert looker.stdout is not None
            looker.stdout.close()


def test_a_slow_look_does_not_refuse_the_driver(tmp_path: Path) -> None:
    database = tmp_path / "ledger.sqlite"
    code = (
        "import sys, time\nfrom filelock import FileLock\n"
        "with FileLock(sys.argv[1] + '.driver.lock'):\n    print('looks', flush=True)\n    time.sleep(0.3)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(database)], stdout=subprocess.PIPE, text=True) as looker:
        assert looker.stdout is not None and looker.stdout.readline() == "looks\n"
        with DriverLock(database, "gpuhop serve", START):
            assert current(database) is not None


def test_a_damaged_note_is_no_reason_to_fail(tmp_path: Path) -> None:
    database = tmp_path / "ledger.sqlite"
    with holder(database) as first:
        try:
            for text in ("", "{}", "null", "[1]", "\xff"):
                (tmp_path / "ledger.sqlite.driver.json").write_bytes(text.encode("latin-1"))
                assert current(database) == "a process that has not said its name yet"
        finally:
            first.kill()
