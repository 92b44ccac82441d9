"""The checkpoint engine beside what people use today: one line per row and method, every target row `ok` or `MISSED`.

    python benchmarks/checkpoint/run.py [--quick] [--only ROW] [--write docs/bench-checkpoint.md]

Needs benchmarks/requirements.txt; a method that is not installed is printed as such. Never fails because of a time.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start() -> int:
    """Measure this tree, whatever the environment has installed."""
    sys.path[:0] = [str(ROOT), str(ROOT / "workers")]
    from benchmarks.checkpoint.cli import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())
