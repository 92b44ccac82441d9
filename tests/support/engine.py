"""Support for tests of the engine: a job and its parts opened from disk, rigs on scripted services, final checks."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.scripted import Script, ScriptedPlatform, Service, trace_at
from tests.support.sessions import archive

from gpuhop.clock import Clock, ManualClock
from gpuhop.db import jobs, sessions
from gpuhop.db.migrate import open_database
from gpuhop.db.records import JobRow, SessionRow
from gpuhop.domain.job import Checkpoint, Every, JobSpec, Target
from gpuhop.domain.quota import Charge
from gpuhop.domain.retention import GRACE_S
from gpuhop.domain.states import OVER, Wish
from gpuhop.domain.world import Profile
from gpuhop.engine import checkpoints
from gpuhop.engine.parts import Parts
from gpuhop.engine.tick import Loop, Report
from gpuhop.platforms.base import (
    Platform,
)
from gpuhop.services import streams
from gpuhop.spec import codec
from gpuhop.stores.base import Store
from gpuhop.stores.local import LocalStore
from gpuhop_worker import wire
from gpuhop_worker.retention import Keep

START = datetime(2026, 10, 20, 12, tzinfo=UTC)
JOB = "job-1"


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of fsyncs are then cheap."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gpuhop-", dir=base) as name:
        yield Path(name)


def profile(name: str = "lab", **changes: Any) -> Profile:
    """Short sessions of 100 s, no quota."""
    base = Profile(
        name,
        "tests",
        100.0,
        gpu=True,
        gpu_count=1,
        start_s=2.0,
        grace_s=5.0,
        margin_s=5.0,
        open_s=200.0,
        min_chunk_s=5.0,
        beat_s=5.0,
        log_s=5.0,
        lease_s=20.0,
    )
    return replace(base, **changes)


def spec(steps: int = 300, *, every: int = 20, keep: int = 2, **changes: Any) -> JobSpec:
    base = JobSpec(
        "job",
        "/code",
        "python train.py",
        Target(steps=steps),
        checkpoint=Checkpoint(every=Every(steps=every), keep=Keep(keep)),
    )
    return replace(base, **changes)


# ---------------------------------------------------------------- the parts, opened from disk


@cache
def _empty_ledger() -> bytes:
    """An up-to-date database, made once: alembic takes a third of a second."""
    with quick_folder() as folder:
        open_database(folder / "l.sqlite").close()
        return (folder / "l.sqlite").read_bytes()


@dataclass
class Rig:
    """A home folder, and what is opened on it: `parts()` anew each time, as a restarted scheduler would."""

    home: Path
    platforms: Mapping[str, Platform]
    clock: Clock = field(default_factory=lambda: ManualClock(START))
    store: Store = None  # type: ignore[assignment]
    time_scale: float = 1.0
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        if self.store is None:
            self.store = LocalStore(self.home / "store")
        if not self.database.exists():
            self.database.write_bytes(_empty_ledger())
        self._parts: Parts | None = None
        self._loop: Loop | None = None

    @property
    def database(self) -> Path:
        return self.home / "ledger.sqlite"

    @property
    def parts(self) -> Parts:
        if self._parts is None:
            bundle = self.home / "worker.pyz"
            if not bundle.exists():
                bundle.write_bytes(b"not used")
            db = open_database(self.database)
            self._parts = Parts(
                db,
                self.store,
                self.platforms,
                self.clock,
                str(bundle),
                "worker/0000.pyz",
                self.time_scale,
                self.grace_s,
            )
        return self._parts

    def drop(self) -> None:
        """As a kill would: nothing of the process is left."""
        if self._parts is not None:
            self._parts.db.close()
        self._parts = self._loop = None

    def tick(self) -> Report:
        if self._loop is None:
            self._loop = Loop(self.parts)
        return self._loop.tick()

    def submit(self, job_spec: JobSpec | None = None, code: dict[str, str] | None = None, job_id: str = JOB) -> str:
        job_spec = job_spec or spec()
        body = archive(code or {"train.py": ""})
        sha = hashlib.sha256(body).hexdigest()
        self.store.put(wire.code_key(job_id, sha), body)
        with self.parts.db.write() as c:
            jobs.insert(
                c,
                id=job_id,
                name=job_spec.name,
                spec=json.dumps(codec.encode(job_spec)),
                spec_hash="0" * 64,
                source="/job.yaml",
                code_sha256=sha,
                code_size=len(body),
                priority=job_spec.priority,
                now=self.clock.now(),
            )
        return job_id

    def job(self, job_id: str = JOB) -> JobRow:
        with self.parts.db.read() as c:
            return jobs.get(c, job_id)

    def rows(self, job_id: str = JOB) -> list[SessionRow]:
        with self.parts.db.read() as c:
            return sessions.of_job(c, job_id)

    def wish(self, wish: Wish, job_id: str = JOB) -> None:
        with self.parts.db.write() as c:
            jobs.set_wish(c, jobs.get(c, job_id), wish, self.clock.now())

    def charged(self, platform: str) -> list[Charge]:
        return [Charge(start, at, s) for kind, start, at, s in self.entries(platform) if kind == "charge"]

    def entries(self, platform: str | None = None) -> list[tuple[str, datetime, datetime, float]]:
        from gpuhop.db.tables import quota_entries as q

        with self.parts.db.read() as c:
            rows = c.execute(q.select().order_by(q.c.id)).all()
        return [(row.kind, row.start, row.at, row.seconds) for row in rows if platform in (None, row.platform)]

    def run(
        self,
        between: Callable[[], None] = lambda: None,
        *,
        step_s: float = 5.0,
        most: int = 2000,
        until: Callable[[], bool] | None = None,
    ) -> None:
        """Tick and let time pass until the job is over (or `until` says so)."""
        for _ in range(most):
            self.tick()
            if until() if until is not None else self.job().state in OVER:
                return
            self.clock.sleep(step_s)
            between()
        raise AssertionError(f"not over after {most} ticks: {self.job()}")


# ----- rigs on scripted services


def scripted(rig_home: Path, *services: tuple[Profile, Script]) -> tuple[Rig, dict[str, Service]]:
    """A rig on scripted services, under one manual clock."""
    clock = ManualClock(START)
    made = {one.name: Service(one, clock, script) for one, script in services}
    return Rig(rig_home, {name: ScriptedPlatform(service) for name, service in made.items()}, clock), made


# ---------------------------------------------------------------- what must hold in the end


def check_books(rig: Rig, services: Mapping[str, Service]) -> None:
    """No hold is left, and each session's charge is what its service counted, to a second."""
    kinds = [kind for kind, *_ in rig.entries()]
    assert kinds.count("hold") == kinds.count("release") == len(rig.rows())
    for name, service in services.items():
        ours = sorted(row.seconds for row in rig.charged(name))
        theirs = sorted(row.seconds for row in service.charges() if row.seconds > 0)
        assert len(ours) == len(theirs), (ours, theirs)
        assert all(abs(a - b) <= 1.0 for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


def check_training(rig: Rig, steps: int, job_id: str = JOB) -> None:
    """The state that was carried is the unbroken run's, and each step's numbers are there once."""
    rows = rig.rows(job_id)
    assert [row.token for row in rows] == list(range(1, len(rows) + 1))
    sealed = {row.token: row.sealed_seq or 0 for row in rows}
    newest = checkpoints.counting(rig.store, job_id, sealed, 1)[0].manifest
    assert newest is not None
    assert (newest.step, newest.state["trace"]) == (steps, trace_at(steps))
    lines = streams.metrics(rig.store, rows)
    assert [line["step"] for line in lines] == list(range(steps))
    assert all(line["trace"] == trace_at(line["step"]) for line in lines[:: max(1, steps // 7)])
