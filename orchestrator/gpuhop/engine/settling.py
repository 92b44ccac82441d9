"""Ending sessions: what they saved is sealed, their quota charged, their job moved on. One transaction each."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timedelta

from gpuhop.db import jobs, sessions
from gpuhop.db.records import SessionRow
from gpuhop.domain.judge import Seen, Verdict
from gpuhop.domain.outcome import after_session
from gpuhop.domain.states import OVER, JobState, Reason, SessionState
from gpuhop.engine import checkpoints
from gpuhop.engine.parts import Parts
from gpuhop.errors import LeaseLost, StoreError
from gpuhop.platforms.base import Handle
from gpuhop.spec import codec
from gpuhop_worker import wire
from gpuhop_worker.wire import Beat, Control

log = logging.getLogger("gpuhop")


def note(parts: Parts, session: SessionRow, seen: Seen, verdict: Verdict) -> None:
    """Write down a look at a session that goes on."""
    beat = _beat_columns(seen.beat, parts.clock.now()) if seen.new_beat and seen.beat is not None else {}
    if not beat and verdict.state is session.state:
        return
    with parts.db.write() as c:
        sessions.observe(c, session, verdict.state, started_at=seen.started_at, beat=beat, now=parts.clock.now())


def _beat_columns(beat: Beat, now: datetime) -> dict[str, object]:
    return {
        "beat_seq": beat.seq,
        "beat_at": now,
        "phase": beat.phase,
        "speed": beat.speed,
        "device": beat.device,
        "step": beat.step,
        "saved_step": beat.saved_step,
    }


def settle(parts: Parts, session: SessionRow, seen: Seen, verdict: Verdict) -> None:
    """Close a session that is over, by its result or by its silence."""
    if verdict.state is SessionState.ENDED and seen.result is not None:
        result = seen.result
        close(parts, session, SessionState.ENDED, Reason(result.reason), detail=result.message, seen=seen)
    else:
        close(parts, session, SessionState.LOST, verdict.reason or Reason.LOST, detail=seen.note, seen=seen)


def close(
    parts: Parts,
    session: SessionRow,
    state: SessionState,
    reason: Reason,
    *,
    detail: str = "",
    seen: Seen | None = None,
) -> None:
    """Fence, end, seal, charge, and move the job on. Raises StoreError: then nothing was closed, and it is retried.

    The fence is written first, so that a worker that still lives leaves at its next step; what it has committed up to
    the listing counts, what it commits later does not (format.md R33).
    """
    store = parts.store
    if state is not SessionState.ENDED:
        store.put(wire.control_key(session.job_id), Control(token=session.token + 1).to_bytes())
        _stop(parts, session)
    seq, step = checkpoints.newest_of(store, session.job_id, session.token)
    now = parts.clock.now()
    ended_at, charged_s = _time_used(session, seen, now)
    platform = parts.platforms.get(session.platform)
    gpus = platform.profile.gpu_count if platform else 1
    with parts.db.write() as c:
        job = jobs.get(c, session.job_id)
        progressed = seq > 0 and (step > session.start_step or step == 0)
        ran = charged_s > 0 or session.started_at is not None
        fruitless = 0 if progressed or not ran else 1 + _fruitless(sessions.of_job(c, job.id), session.token)
        sessions.close(
            c,
            session,
            state,
            reason,
            detail=detail,
            ended_at=ended_at,
            charged_s=charged_s,
            gpus=gpus,
            sealed_seq=seq,
            step=max(session.step, step, seen.result.step if seen and seen.result else 0),
            saved_step=step,
            now=now,
        )
        after, why = after_session(reason, progressed=progressed, wish=job.wish, fruitless=fruitless)
        jobs.move(c, job.id, after, why, detail if after is not JobState.QUEUED else "", now)
    log.info("closed %s: %s", session.name, reason.value, extra={"action": "closed"})
    _tidy(parts, session.job_id, after)


def _stop(parts: Parts, session: SessionRow) -> None:
    platform = parts.platforms.get(session.platform)
    if platform is None:
        return
    try:
        # Without a handle the launch may still have happened: its name is the best guess, and stop is silent.
        platform.stop(Handle(session.handle or session.name, session.link))
    except Exception as error:  # the fence holds anyway
        log.warning("stop of %s failed: %s", session.name, error, extra={"action": "stop-failed"})


def _time_used(session: SessionRow, seen: Seen | None, now: datetime) -> tuple[datetime, float]:
    """(end, seconds to charge): the platform's own times where it told them, else ours; nothing if it never began."""
    began = (seen.started_at if seen else None) or session.started_at
    if began is None and session.beat_at is not None:
        began = session.launched_at
    if began is None:
        return now, 0.0
    ended = (seen.ended_at if seen else None) or min(now, max(session.limit_at, session.beat_at or now))
    return ended, max(0.0, (ended - began) / timedelta(seconds=1))


def _fruitless(rows: list[SessionRow], before: int) -> int:
    """Sessions in a row just before this token that ran and saved nothing new."""
    count = 0
    for row in sorted(rows, key=lambda r: -r.token):
        if row.token >= before or row.started_at is None:
            continue
        if row.saved_step > row.start_step:
            break
        count += 1
    return count


def _tidy(parts: Parts, job_id: str, after: JobState) -> None:
    """Retention, while nobody works on the job. What fails is done the next time."""
    try:
        with parts.db.read() as c:
            rows = sessions.of_job(c, job_id)
            keep = codec.decode(json.loads(jobs.get(c, job_id).spec)).checkpoint.keep
        sealed = {row.token: row.sealed_seq for row in rows if row.sealed_seq is not None}
        checkpoints.sweep(parts.store, job_id, sealed, keep)
    except (StoreError, LeaseLost) as error:
        log.warning("retention of %s waits: %s", job_id, error.fact, extra={"action": "sweep-failed"})
    if after in OVER:
        log.info("job %s is %s", job_id, after.value, extra={"action": f"job-{after.value}"})
