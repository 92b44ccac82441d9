"""The `gpuhop` command as a user runs it: a real process with a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GPUHOP = Path(sys.executable).parent / "gpuhop"

COUNTING = """
import sys, time
import gpuhop_worker

class Sum:
    value = 0.0
    def state_dict(self): return {"value": self.value}
    def load_state_dict(self, state): self.value = state["value"]

total, pause = int(sys.argv[1]), float(sys.argv[2])
sum_ = Sum()
session = gpuhop_worker.session()
session.track(sum=sum_)
for step in session.steps(total):
    sum_.value += step / 7
    session.log(loss=sum_.value)
    time.sleep(pause)
open("sum.txt", "w").write(repr(sum_.value))
"""
"""A script that counts: quick to start, and its end tells whether any step was lost or doubled."""


def expected_sum(total: int) -> float:
    value = 0.0
    for step in range(total):
        value += step / 7
    return value


class User:
    """A person with a home folder and a project folder."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = root / "project"
        self.project.mkdir(parents=True)
        keep = ("PATH", "LANG", "TMPDIR", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
        self.env = {k: v for k, v in os.environ.items() if k in keep}
        self.env.update(HOME=str(root), GPUHOP_HOME=str(self.home), NO_COLOR="1", COLUMNS="100", TZ="UTC")

    def config(self, text: str) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(text)

    def job(self, total: int = 60, pause: float = 0.01, script: str = COUNTING, **lines: str) -> Path:
        """job.yaml and its script; `lines` are more top-level keys."""
        (self.project / "train.py").write_text(script)
        keys = {
            "name": "count",
            "run": f"python train.py {total} {pause}",
            "target": f"{{steps: {total}}}",
            "checkpoint": "{every: 10 steps}",
            "outputs": '["*.txt"]',
            **lines,
        }
        path = self.project / "job.yaml"
        path.write_text("".join(f"{key}: {value}\n" for key, value in keys.items() if value))
        return path

    def run(self, *args: str | Path, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
        argv = [str(GPUHOP), *map(str, args)]
        return subprocess.run(
            argv, env=self.env, cwd=self.project, capture_output=True, text=True, timeout=timeout, check=False
        )

    def json(self, *args: str) -> Any:
        done = self.run(*args, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, path: Path, *options: str) -> str:
        """The new job's id."""
        found = self.run("submit", *options, "-o", "json", path)
        assert found.returncode == 0, found.stderr
        return str(json.loads(found.stdout)["id"])

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(GPUHOP), *args],
            env=self.env,
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[str]]:
        """`gpuhop serve` while the block runs; killed at its end if it still lives."""
        process = self.start("serve", "--tick", "0.2")
        try:
            wait(lambda: "serve" in self.run("status").stdout or process.poll() is not None)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def state(self, job: str) -> str:
        return str(self.json("status", job)["state"])

    def wait_for(self, job: str, *states: str, seconds: float = 60.0) -> dict[str, Any]:
        """Poll until the job is in one of the states."""
        found: dict[str, Any] = {}

        def there() -> bool:
            found.update(self.json("status", job))
            return found["state"] in states

        wait(there, seconds, lambda: f"{job} is {found.get('state')}, not {states}: {found}")
        return found


def wait(until: Callable[[], bool], seconds: float = 60.0, tell: Callable[[], str] = lambda: "waited in vain") -> None:
    """Poll a condition; fails with `tell()` after the time. The bound is there to end a hang, not to measure."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, tell()
        time.sleep(0.1)
