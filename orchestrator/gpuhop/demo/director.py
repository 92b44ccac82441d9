"""Stages the demo: settings, the job, the kills and the one click. Everything else is the real product."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from gpuhop import settings
from gpuhop.app import App, opened
from gpuhop.db import jobs, sessions
from gpuhop.db.records import JobRow, SessionRow
from gpuhop.domain.states import OVER, SessionState
from gpuhop.engine import checkpoints
from gpuhop.engine.tick import Loop
from gpuhop.errors import GpuhopError, MissingExtra
from gpuhop.lab.platform import LabPlatform
from gpuhop.services import streams, submitting
from gpuhop.spec.freeze import freeze
from gpuhop.spec.parse import parse_file
from gpuhop_worker.wire import Manifest

TRAIN_H = 9.0
"""Lab hours of pure training that the demo's job is cut to: about twice what the unattended platforms give, so that the
attended one is needed on a machine that is quicker or slower than it was when it was measured."""

LAB_NAMES = ("kaggle", "colab", "studiolab", "oracle")

KILL_AT = (0.22, 0.6)
"""Silent SIGKILLs: at these shares of the target, whatever session runs then."""

PRESS_AFTER_S = 1.5
"""The demo lets a hand-off wait this long before it presses it, so that one can read it."""

HOPPED = """
[lab]
hour_s = {hour_s}

[platforms.kaggle]
max_session_h = 4.0
window = {{ kind = "weekly", amount_h = 5.0 }}

[platforms.studiolab]
max_session_h = 3.5
window = {{ kind = "rolling", amount_h = 3.5, period_h = 24.0 }}

[platforms.oracle]
max_session_h = 3.5
window = {{ kind = "monthly", amount_h = 3.5 }}

[platforms.colab]
max_session_h = 5.0
window = {{ kind = "rolling", amount_h = 20.0, period_h = 24.0 }}
"""
"""config.toml of the first act: four platforms with little quota each."""

UNBROKEN = """
[lab]
hour_s = {hour_s}

[platforms.kaggle]
max_session_h = 100000.0
window = {{ kind = "none" }}

[platforms.studiolab]
enabled = false

[platforms.oracle]
enabled = false

[platforms.colab]
enabled = false
"""
"""config.toml of the second act: one platform that never ends a session."""


@dataclass(frozen=True)
class Measured:
    """This machine: milliseconds per step, seconds to start the script."""

    step_ms: float
    start_s: float

    @property
    def steps(self) -> int:
        return max(200, min(5000, int(TRAIN_H * self.hour_s * 1000 / self.step_ms) // 50 * 50))

    @property
    def hour_s(self) -> float:
        """Real seconds for a lab hour: a slow start must not eat a session."""
        return max(2.0, 0.8 * self.start_s)


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    job: JobRow
    rows: list[SessionRow]
    manifest: Manifest
    metrics: list[dict[str, Any]]


def job_source() -> Path:
    return Path(__file__).parent / "job"


def measure() -> Measured:
    """Raises MissingExtra without torch."""
    import gpuhop_worker

    env = {**os.environ, "PYTHONPATH": str(Path(gpuhop_worker.__file__).parents[1])}
    began = time.monotonic()
    script = str(job_source() / "train.py")
    run = subprocess.run([sys.executable, script, "--measure"], capture_output=True, text=True, env=env, check=False)
    if run.returncode != 0:
        if "No module named 'torch'" in run.stderr:
            raise MissingExtra("torch", "torch")
        raise GpuhopError(f"the demo's script failed: {run.stderr.strip().splitlines()[-1]}", "gpuhop doctor")
    step_ms = float(run.stdout.split()[-1])
    return Measured(step_ms, max(1.0, time.monotonic() - began - 41 * step_ms / 1000))


def write_job(folder: Path, steps: int) -> Path:
    """The demo's job folder, as a user would have it. Returns its job.yaml."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(job_source(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "job.yaml"
    path.write_text(
        "name: demo\n"
        f"run: python train.py {steps}\n"
        "target:\n"
        f"  steps: {steps}\n"
        "checkpoint:\n"
        f"  every: {max(10, steps // 30)} steps\n"
    )
    return path


class Stage:
    """One run of the demo's job on one set of lab platforms."""

    def __init__(self, app: App, job_file: Path, *, kills: tuple[float, ...]) -> None:
        spec = parse_file(job_file, known_platforms=sorted(app.profiles))
        code = freeze(Path(spec.code), into=app.settings.home / "frozen")
        self.app = app
        self.target = spec.target.steps or 1
        self.job_id = submitting.submit(app.parts, replace(spec, platforms=()), code, job_file, "demo").id
        self._loop = Loop(app.parts)
        self._kills = list(kills)
        self._offered: dict[str, float] = {}

    def turn(self, say: Callable[[str], None]) -> bool:
        """One tick and whatever the director does then. False when the job is over."""
        for error in self._loop.tick().troubles:
            say(error.fact)
        self._press(say)
        self._kill(say)
        return self.job().state not in OVER

    def job(self) -> JobRow:
        with self.app.db.read() as c:
            return jobs.get(c, self.job_id)

    def rows(self) -> list[SessionRow]:
        with self.app.db.read() as c:
            return sessions.of_job(c, self.job_id)

    def _lab(self, name: str) -> LabPlatform:
        return cast(LabPlatform, self.app.platforms[name])

    def _press(self, say: Callable[[str], None]) -> None:
        for name in [n for n, p in self.app.platforms.items() if p.profile.attended]:
            for waiting in self._lab(name).waiting():
                if time.monotonic() - self._offered.setdefault(waiting, time.monotonic()) >= PRESS_AFTER_S:
                    self._lab(name).press(waiting)
                    say(f"hand-off: the demo opens {waiting} on {name} for you")

    def _kill(self, say: Callable[[str], None]) -> None:
        live = next((row for row in self.rows() if row.state is SessionState.RUNNING), None)
        if not self._kills or live is None or live.step < self._kills[0] * self.target:
            return
        if live.step > live.saved_step and self._lab(live.platform).kill(live.name):
            self._kills.pop(0)
            say(f"SIGKILL, silently: {live.name} on {live.platform} at step {live.step} (saved: {live.saved_step})")

    def outcome(self) -> Outcome:
        """Raises GpuhopError when the job did not reach its target."""
        job, rows = self.job(), self.rows()
        sealed = checkpoints.sealed_by(rows)
        saved = checkpoints.counting(self.app.store, job.id, sealed, 1)
        if job.state.value != "done" or not saved or saved[0].manifest is None:
            hint = f"GPUHOP_HOME={self.app.settings.home} gpuhop logs demo"
            raise GpuhopError(f"the demo's job ended as {job.state.value} ({job.detail})", hint)
        return Outcome(job, rows, saved[0].manifest, streams.metrics(self.app.store, rows))


@contextmanager
def stage(home: Path, config: str, job_file: Path, *, kills: tuple[float, ...] = ()) -> Iterator[Stage]:
    """A fresh home with this config.toml, so that the other commands can look at it afterwards."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / "config.toml").write_text(config)
    with opened(settings.load({**os.environ, "GPUHOP_HOME": str(home), "GPUHOP_STORE": ""})) as app:
        yield Stage(app, job_file, kills=kills)
