"""Peak memory of a save and of a restore, beyond the live training: each method in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.checkpoint.probes import PROBES, RESTORES
from benchmarks.checkpoint.states import Training
from benchmarks.checkpoint.table import Row, mb

MIB = 1024 * 1024


def _probe(name: str, shape: str) -> int | None:
    """Bytes; None when it does not run here."""
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--internal", "probe", name, shape]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        return None
    return int(json.loads(done.stdout.splitlines()[-1]))


def rows(quick: bool) -> list[Row]:
    shape = "10M" if quick else "25M"
    size = Training(shape).size()
    target = "<= 1 state + 256 MiB (first save), <= 2 states + 256 MiB (later ones, with the base of differences)"
    saves = Row(
        f"memory of a save, {mb(size)}", target, "peak of one run, polled each 5 ms, user's and runner's process"
    )
    loads = Row(f"memory of a restore, {mb(size)}", "<= 1 state + 64 MiB beyond the live state", saves.samples)
    found: dict[str, int] = {}
    for name in PROBES:
        row = loads if name in RESTORES else saves
        peak = _probe(name, shape)
        if peak is None:
            row.missing(name, "does not run here")
            continue
        found[name] = peak
        row.add(name, f"{mb(peak)} at the peak", f"{peak / size:.2f} states")
    for name, count in (("gpuhop, first save", 1), ("gpuhop, third save", 2)):
        if name in found:
            saves.judge(f"MB ({name})", found[name] / 1e6, (count * size + 256 * MIB) / 1e6, "{:.0f}")
    if "gpuhop restore" in found:
        loads.judge("MB", found["gpuhop restore"] / 1e6, (size + 64 * MIB) / 1e6, "{:.0f}")
    return [saves, loads]
