"""A ledger for a store whose checkpoints a test wrote by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.engine import JOB, START, Rig, quick_folder, spec

from gpuhop.clock import Clock, ManualClock
from gpuhop.db import jobs, sessions
from gpuhop.domain.job import Checkpoint, Every
from gpuhop.domain.states import JobState, Reason, SessionState
from gpuhop.stores.base import Store
from gpuhop_worker.retention import Keep


@contextmanager
def ledgered(
    store: Store,
    job: str = JOB,
    sealed: Mapping[int, int] | None = None,
    keep: Keep | int = 1,
    clock: Clock | None = None,
) -> Iterator[Rig]:
    """A job whose sessions are closed with these seals (token -> seq); tokens between them saved nothing."""
    with quick_folder() as home:
        rig = Rig(home / "home", {}, clock or ManualClock(START), store)
        rule = Keep(keep) if isinstance(keep, int) else keep
        rig.submit(spec(checkpoint=Checkpoint(every=Every(steps=20), keep=rule)), job_id=job)
        for token in range(1, max(sealed or {0: 0}) + 1):
            begin(rig, job)
            end(rig, job, (sealed or {}).get(token, 0))
        yield rig
        rig.drop()


def begin(rig: Rig, job: str = JOB, start_step: int = 0) -> int:
    """A live session; its token."""
    with rig.parts.db.write() as c:
        row = sessions.acquire(c, job, "lab", budget_s=10, hold_s=10, start_step=start_step, now=rig.clock.now())
    return row.token


def end(rig: Rig, job: str, sealed_seq: int) -> None:
    """Close the live session."""
    with rig.parts.db.write() as c:
        (row,) = [one for one in sessions.live(c) if one.job_id == job]
        sessions.close(
            c,
            row,
            SessionState.LOST,
            Reason.LOST,
            detail="",
            ended_at=rig.clock.now(),
            charged_s=0.0,
            gpus=1,
            sealed_seq=sealed_seq,
            step=0,
            saved_step=0,
            now=rig.clock.now(),
        )
        jobs.move(c, job, JobState.QUEUED, None, "", rig.clock.now())
