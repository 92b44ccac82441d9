"""CPU seconds of `gpuhop --help`, beside `python -c "import click"`, medians of a few runs. Target: at most 0.25."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = 9
TARGET_S = 0.25
BIN = Path(sys.executable).parent


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one run of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rows = {
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "gpuhop --help": [str(BIN / "gpuhop"), "--help"],
        "gpuhop status --help": [str(BIN / "gpuhop"), "status", "--help"],
    }
    figures = {name: statistics.median(cpu_seconds(command) for _ in range(RUNS)) for name, command in rows.items()}
    base = figures["python -c 'import click'"]
    for name, seconds in figures.items():
        print(f"{name:28} {seconds:6.3f} CPU s   {seconds / base:4.1f} x")
    word = "ok" if figures["gpuhop --help"] <= TARGET_S else "MISSED"
    print(f"target: gpuhop --help <= {TARGET_S} CPU s   {word}")


if __name__ == "__main__":
    main()
