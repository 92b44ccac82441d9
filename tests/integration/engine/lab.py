"""Lab platforms, real worker processes, a plain-Python script, and an App as the CLI opens it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuhop.app import App, opened
from gpuhop.db import jobs, sessions
from gpuhop.db.records import JobRow, SessionRow
from gpuhop.domain.job import Checkpoint, Every, JobSpec, Target
from gpuhop.domain.quota import Charge
from gpuhop.domain.states import LIVE_SESSIONS, OVER
from gpuhop.engine import checkpoints
from gpuhop.engine.tick import Loop, Report
from gpuhop.lab.platform import LabPlatform
from gpuhop.platforms.base import Handle
from gpuhop.services import streams, submitting
from gpuhop.settings import LabSettings, Settings
from gpuhop.spec.freeze import freeze
from gpuhop_worker.retention import Keep

JOB = "job-1"
HOUR_S = 36.0
"""A lab hour in real seconds: a lab clock 100 times as fast as the real one."""

TRAIN = """
import json, os, time
import gpuhop_worker

class Model:
    def __init__(self):
        self.x = 0
    def state_dict(self):
        return {"x": self.x}
    def load_state_dict(self, state):
        self.x = state["x"]

model, session = Model(), gpuhop_worker.session()
session.track(model=model)
if os.environ.get("PROBE"):
    with open(os.environ["PROBE"], "a") as out:
        out.write(json.dumps(dict(os.environ)) + "\\n")
for step in session.steps():
    model.x = (model.x * 1103515245 + step + 12345) % 2**31
    session.log(x=model.x)
    time.sleep(0.01)
"""


def unbroken(steps: int) -> int:
    x = 0
    for step in range(steps):
        x = (x * 1103515245 + step + 12345) % 2**31
    return x


def row(session_s: float = 2.0, **changes: Any) -> dict[str, Any]:
    """A lab platform's habits for tests; `session_s` in real seconds."""
    scale = 3600.0 / HOUR_S
    found: dict[str, Any] = {"max_session_h": session_s * scale / 3600.0}
    real = {
        "start_s": 0.3,
        "grace_s": 0.6,
        "margin_s": 0.3,
        "min_chunk_s": 0.2,
        "beat_s": 0.1,
        "log_s": 0.2,
        "lease_s": 3.0,
    }
    return {**found, **{name: value * scale for name, value in real.items()}, **changes}


def settings(home: Path, platforms: Mapping[str, Mapping[str, Any]], **changes: Any) -> Settings:
    """Only the named lab platforms are on."""
    rows: dict[str, Mapping[str, Any]] = {
        name: {"enabled": False} for name in ("kaggle", "colab", "studiolab", "oracle")
    }
    rows.update(platforms)
    values: dict[str, Any] = {"store": str(home / "store"), "environ": {"PATH": "/usr/bin:/bin"}, **changes}
    return Settings(home=home, platforms=rows, lab=LabSettings(hour_s=HOUR_S), **values)


@dataclass
class Lab:
    """An opened App and its loop; `reopen` is a restart of the scheduler."""

    settings: Settings
    app: App
    loop: Loop

    def submit(self, steps: int = 150, *, every: int = 10, code: str = TRAIN, **changes: Any) -> str:
        folder = self.settings.home.parent / "code"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(code)
        spec = JobSpec(
            "job",
            str(folder),
            "python train.py",
            changes.pop("target", Target(steps=steps)),
            checkpoint=Checkpoint(every=Every(steps=every), keep=Keep(2)),
            **changes,
        )
        code_archive = freeze(folder, into=self.settings.home / "frozen")
        return submitting.submit(self.app.parts, spec, code_archive, folder / "job.yaml", JOB).id

    def job(self) -> JobRow:
        with self.app.db.read() as c:
            return jobs.get(c, JOB)

    def rows(self) -> list[SessionRow]:
        with self.app.db.read() as c:
            return sessions.of_job(c, JOB)

    def platform(self, name: str) -> LabPlatform:
        return cast(LabPlatform, self.app.platforms[name])

    def tick(self) -> Report:
        return self.loop.tick()

    def press_all(self) -> None:
        for name, platform in self.app.platforms.items():
            if platform.profile.attended:
                for waiting in self.platform(name).waiting():
                    self.platform(name).press(waiting)

    def run(
        self,
        until: Callable[[], bool] | None = None,
        *,
        between: Callable[[], None] = lambda: None,
        timeout_s: float = 60.0,
    ) -> None:
        """Tick every 50 ms, opening every hand-off, until the job is over."""
        done = until or (lambda: self.job().state in OVER)
        give_up = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < give_up, (self.job(), self.rows())
            self.tick()
            self.press_all()
            between()
            time.sleep(0.05)

    def wait_step(self, step: int) -> None:
        self.run(lambda: bool(self.rows()) and self.rows()[-1].step >= step)

    # ------------------------------------------------------------ what must hold

    def service_charges(self) -> dict[str, list[Charge]]:
        return {name: self.platform(name).charges(self.app.clock.now()) for name in self.app.platforms}

    def check(self, steps: int) -> None:
        self.check_books()
        rows = self.rows()
        assert [row.token for row in rows] == list(range(1, len(rows) + 1))
        sealed = {row.token: row.sealed_seq or 0 for row in rows}
        newest = checkpoints.counting(self.app.store, JOB, sealed, 1)[0].manifest
        assert newest is not None and newest.step == steps
        assert newest.state["model"]["x"] == unbroken(steps)
        lines = streams.metrics(self.app.store, rows)
        assert [line["step"] for line in lines] == list(range(steps))
        assert lines[-1]["x"] == unbroken(steps)

    def check_books(self) -> None:
        """Each session's charge is the service's own count, to one second of the lab; no hold and no lease is left."""
        from gpuhop.db.tables import leases, quota_entries

        with self.app.db.read() as c:
            entries = c.execute(quota_entries.select()).all()
            assert c.execute(leases.select()).all() == []
        assert not [row for row in self.rows() if row.state in LIVE_SESSIONS]
        kinds = [entry.kind for entry in entries]
        assert kinds.count("hold") == kinds.count("release") == len(self.rows())
        for name, theirs in self.service_charges().items():
            ours = sorted(entry.seconds for entry in entries if entry.kind == "charge" and entry.platform == name)
            counted = sorted(charge.seconds for charge in theirs)
            assert len(ours) == len(counted), (name, ours, counted)
            assert all(abs(a - b) <= 1.0 for a, b in zip(ours, counted, strict=True)), (name, ours, counted)


@contextmanager
def lab(found: Settings) -> Iterator[Lab]:
    """Opened; whatever still runs at the end is stopped."""
    with opened(found) as app:
        made = Lab(found, app, Loop(app.parts))
        try:
            yield made
        finally:
            for name in app.platforms:
                folder = found.home / "sessions" / name
                for work in folder.iterdir() if folder.is_dir() else ():
                    made.platform(name).stop(Handle(work.name))


SCHEDULER = """
import json, sys, threading, time
from pathlib import Path
from gpuhop.app import opened
from gpuhop.db import jobs
from gpuhop.domain.states import OVER
from gpuhop.engine.driver import DriverLock
from gpuhop.engine.service import Service
from gpuhop.engine.tick import Loop
from tests.integration.engine.lab import settings

found = json.loads(sys.argv[1])
with opened(settings(Path(found["home"]), found["platforms"], **found["more"])) as app:
    with DriverLock(app.settings.database, "tests", app.clock.now()):
        def over():
            with app.db.read() as c:
                return jobs.get(c, "job-1").state in OVER
        print("drives", flush=True)
        Service(Loop(app.parts), 0.05, until=over).run()
        print("over" if over() else "drained", flush=True)
"""


def scheduler(home: Path, platforms: Mapping[str, Mapping[str, Any]], **more: Any) -> subprocess.Popen[str]:
    """A real scheduler process, as `gpuhop serve` is one."""
    argument = json.dumps({"home": str(home), "platforms": platforms, "more": more})
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen([sys.executable, "-c", SCHEDULER, argument], stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None and process.stdout.readline() == "drives\n"
    return process
