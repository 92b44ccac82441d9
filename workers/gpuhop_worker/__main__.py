"""`python -I worker.pyz --grant ADDRESS --dir FOLDER`: run one chunk in this session."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from typing import List, Optional

from gpuhop_worker import store, wire
from gpuhop_worker.runner import Runner
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
    os.makedirs(options.dir, exist_ok=True)
    runner = Runner(grant, os.path.abspath(options.dir), bundle_path(), dict(os.environ), options.patience)
    signal.signal(signal.SIGTERM, lambda number, frame: runner.stop_by_signal())
    signal.signal(signal.SIGINT, lambda number, frame: runner.stop_by_signal())
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
