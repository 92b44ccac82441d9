"""`python -I worker.pyz --grant ADDRESS --dir FOLDER`: run one chunk in this session."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time
from typing import Any, List, Optional

from gpuhop_worker import packages, store, wire
from gpuhop_worker.places import Places
from gpuhop_worker.verdict import GRANT_UNREADABLE
from gpuhop_worker.wire import Grant


def bundle_path() -> str:
    """What the command's PYTHONPATH must name: the zipapp, or the folder that holds this package."""
    package = os.path.dirname(os.path.abspath(__file__))
    return os.path.dirname(package)


def keep_freed_memory() -> None:
    """Tell glibc not to give blocks of a few MiB back to the system after each use: fetching them again costs a page
    fault for every 4 KiB, more than the work on them. Elsewhere nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(-3, 32 * 1024 * 1024)  # M_MMAP_THRESHOLD
    mallopt(-1, 256 * 1024 * 1024)  # M_TRIM_THRESHOLD


class Told:
    """Set by SIGTERM and SIGINT, from the first moment on; handed to the runner once there is one."""

    def __init__(self) -> None:
        self.stop = False
        self._runner: Optional[Any] = None

    def handle(self, number: int, frame: Any) -> None:
        self.stop = True
        if self._runner is not None:
            self._runner.stop_by_signal()

    def hand_to(self, runner: Any) -> None:
        self._runner = runner
        if self.stop:
            runner.stop_by_signal()


def equip(grant: Grant, places: Places, told: Told) -> List[str]:
    """Packages for the worker, where the grant asks for some. Returns lines for the log."""
    if not grant.packages or os.path.exists(places.claimed):
        return []
    environ = {name: value for name, value in os.environ.items() if name not in grant.secrets}
    return packages.ensure(grant.packages, places.lib, environ, lambda: told.stop)


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="gpuhop-worker")
    parser.add_argument("--grant", required=True, help="address of the session's grant")
    parser.add_argument("--dir", required=True, help="folder of this session, made if missing")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to go on trying a store that is away")
    options = parser.parse_args(argv)
    keep_freed_memory()
    try:
        grant = Grant.from_gzip(store.fetch(options.grant, options.patience))
    except (store.StoreFailure, wire.WireError) as error:
        print(f"gpuhop: the grant cannot be read: {error}", file=sys.stderr)
        return GRANT_UNREADABLE
    places = Places(os.path.abspath(options.dir))
    try:
        os.makedirs(places.root, exist_ok=True)
    except OSError:
        pass  # the runner makes folders too, and tells of what fails in the session's result
    told = Told()
    signal.signal(signal.SIGTERM, told.handle)
    signal.signal(signal.SIGINT, told.handle)
    began = time.monotonic()
    notes = equip(grant, places, told)
    spent_s = time.monotonic() - began
    # Only now: the codecs look for their packages when they are imported.
    from gpuhop_worker.runner import Runner

    runner = Runner(grant, places, bundle_path(), dict(os.environ), options.patience, spent_s, notes)
    told.hand_to(runner)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
