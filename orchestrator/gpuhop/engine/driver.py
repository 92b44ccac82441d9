"""One driver per database: an operating-system lock that dies with its owner, and a note that says who it is."""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from gpuhop.errors import DriverLocked


class DriverLock:
    """Held from enter to exit. A dead owner's lock is free at once: the system gives it back."""

    def __init__(self, database: Path, command: str, now: datetime) -> None:
        self._lock = FileLock(f"{database}.driver.lock", thread_local=False)
        self._note = Path(f"{database}.driver.json")
        self._owner = {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": now.isoformat()}

    def __enter__(self) -> DriverLock:
        """Raises DriverLocked, naming the owner. It tries for a second: somebody may only be looking (`current`)."""
        try:
            self._lock.acquire(timeout=1.0, poll_interval=0.05)
        except Timeout as error:
            raise DriverLocked(owner(self._note)) from error
        temp = self._note.with_suffix(".tmp")
        temp.write_text(json.dumps(self._owner))
        temp.replace(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._note.unlink(missing_ok=True)
        self._lock.release()


def owner(note: Path) -> str:
    """The holder in words."""
    try:
        found = json.loads(note.read_text())
        return f"process {found['pid']} on {found['host']} (`{found['command']}`, since {found['since'][:19]})"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has not said its name yet"


def current(database: Path) -> str | None:
    """Who drives this database now, None for nobody. Only looks; takes nothing for longer than a moment."""
    lock = FileLock(f"{database}.driver.lock", blocking=False)
    try:
        with lock:
            return None
    except Timeout:
        return owner(Path(f"{database}.driver.json"))
