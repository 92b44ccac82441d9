"""Faults inside the processes of a session: which call, the how manieth time, and what then happens."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.sessions import WORKERS, Bench

FOLDER = Path(__file__).parent / "injector"


@dataclass(frozen=True)
class Fault:
    """`point`: "<runner | command> <call> <what>", as the injector names it. `deed`: an errno's name (a write has done
    half of its work then); "lost" (it happened, and failed all the same); "kill" (-9, half way through a write),
    "kill runner", "kill command"; "stop" (SIGSTOP); "forward", "back" (the wall clock jumps by an hour); with "after "
    before it: once the call is done. `stays`: each later call fails too. `after`: calls count once there is this file
    in the session's folder."""

    point: str
    number: int
    deed: str
    stays: bool = False
    after: str = ""

    def __str__(self) -> str:
        return f"{self.point} {self.number}{'+' if self.stays else ''}: {self.deed}"


def env_of(bench: Bench, fault: Fault | None, trace: Path | None = None) -> dict[str, str]:
    """For the next session of the bench."""
    asked: dict[str, object] = {"mark": str(mark_of(bench)), "claim": str(bench.folder() / "ctl/metrics.jsonl.claim")}
    if fault is not None:
        asked.update(point=fault.point, number=fault.number, deed=fault.deed, stays=fault.stays)
        asked["after"] = str(bench.folder() / fault.after) if fault.after else ""
    if trace is not None:
        asked["trace"] = str(trace)
    return {"GPUHOP_FAULT": json.dumps(asked), "PYTHONPATH": os.pathsep.join([str(FOLDER), str(WORKERS)])}


def mark_of(bench: Bench) -> Path:
    """Is there once the fault has struck."""
    return bench.root / f"struck-{bench.token}"
