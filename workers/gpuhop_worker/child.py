"""What the user's command is given: its environment and the file that the session API reads."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, Mapping, Optional

from gpuhop_worker import files
from gpuhop_worker.localstate import Start
from gpuhop_worker.places import Places
from gpuhop_worker.wire import Grant


def environment(
    grant: Grant, environ: Mapping[str, str], bundle: str, extra: Optional[Mapping[str, str]] = None
) -> Dict[str, str]:
    """`bundle`: what makes gpuhop_worker importable; `extra`: what the worker itself tells the command."""
    env = dict(environ)
    env.update(grant.env)
    env.update(extra or {})
    env["PATH"] = os.path.dirname(sys.executable) + os.pathsep + env.get("PATH", os.defpath)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (bundle, env.get("PYTHONPATH", "")) if p)
    env["PYTHONUNBUFFERED"] = "1"
    # Without a fixed seed the order of sets differs from process to process, and with it the training.
    env.setdefault("PYTHONHASHSEED", "0")
    # cuBLAS is deterministic only with a fixed workspace (NVIDIA cuBLAS manual, "Results reproducibility").
    env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return env


def of_the_worker(grant: Grant, places: Places) -> Dict[str, str]:
    """Variables that tell the command where it runs."""
    extra = {"GPUHOP_JOB": grant.job, "GPUHOP_TOKEN": str(grant.token)}
    if grant.mode != "folder":
        extra["GPUHOP_SESSION"] = places.session
    return extra


def write_session_file(
    grant: Grant, places: Places, slots: Dict[str, str], start: Optional[Start], snapshots: int
) -> None:
    """For gpuhop_worker.training, in the user's process. `slots`: name -> path; `snapshots`: the last number that a
    process which crashed has used. Raises OSError."""
    config: Dict[str, Any] = {
        "restore": places.manifest if start is not None else None,
        "restored_slot": start.slot if start is not None else None,
        "base_slot": start.base if start is not None else None,
        "offsets": start.offsets if start is not None else {},
        "snapshots": snapshots,
        "slots": slots,
        "spool": places.spool,
        "metrics": places.metrics,
        "progress": places.progress,
        "drain": places.drain,
        "pace": places.pace,
        "every_steps": grant.every_steps,
        "every_s": grant.every_s,
        "every_auto": grant.every_auto,
        "mean_life_s": grant.mean_life_s,
        "target_steps": grant.target_steps,
        "target_epochs": grant.target_epochs,
        "time_scale": grant.time_scale,
        "runner": os.getpid(),
    }
    files.write_atomic(places.session, json.dumps(config).encode("ascii"))
