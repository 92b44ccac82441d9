"""Ending sessions: what they saved is sealed, their quota charged, their job moved on. One transaction each."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from gpuhop.db import jobs, sessions, storage
from gpuhop.db.connect import Connection
from gpuhop.db.records import SessionRow
from gpuhop.domain.judge import Phase, Seen, Verdict
from gpuhop.domain.outcome import after_session
from gpuhop.domain.states import OVER, JobState, Reason, SessionState
from gpuhop.domain.world import Profile
from gpuhop.engine import checkpoints, observe, retention
from gpuhop.engine.parts import Parts
from gpuhop.platforms.base import Handle
from gpuhop_worker import wire
from gpuhop_worker.wire import Beat, Control, Result

log = logging.getLogger("gpuhop")

SHORT_PAUSE_S = 60.0
"""Between two launches on a platform that has just said no, at the least."""

LACKING_PAUSE_S = 3600.0
"""Pause for a platform whose Python lacks what the job's checkpoint needs: time for the others, or for a person."""

BROKEN_PAUSE_S = 300.0
"""First pause for a platform that takes sessions which never begin."""


def note(parts: Parts, session: SessionRow, seen: Seen, verdict: Verdict) -> None:
    """Write down a look at a session that goes on."""
    now = parts.clock.now()
    beat = _beat_columns(seen.beat, now) if seen.new_beat and seen.beat is not None else {}
    if not beat and verdict.state is session.state:
        return
    started_at = seen.started_at
    if started_at is None and seen.beat is not None:
        # The platform does not tell, and this may be the first look for hours: the worker's own clock counts.
        started_at = max(session.launched_at, now - timedelta(seconds=seen.beat.train_s))
    with parts.db.write() as c:
        sessions.observe(c, session, verdict.state, started_at=started_at, beat=beat, now=now)
        if beat and session.beat_at is None:
            sessions.warm_up(c, session.platform)  # it works: its refusals are forgotten


def _beat_columns(beat: Beat, now: datetime) -> dict[str, object]:
    return {
        "beat_seq": beat.seq,
        "beat_at": now,
        "phase": beat.phase,
        "detail": beat.note,
        "speed": beat.speed,
        "device": beat.device,
        "step": beat.step,
        "saved_step": beat.saved_step,
    }


def settle(parts: Parts, session: SessionRow, seen: Seen, verdict: Verdict) -> None:
    """Close a session that is over, by its result or by its silence. Raises StoreError."""
    if verdict.state is not SessionState.ENDED:
        seen = observe.with_last_word(parts, session, seen)
    if seen.result is None and seen.new_beat:
        note(parts, session, seen, Verdict(SessionState.RUNNING))  # it lives after all
    elif seen.result is not None:
        result = seen.result
        close(parts, session, SessionState.ENDED, _reason(result), detail=result.message, seen=seen)
    else:
        close(parts, session, SessionState.LOST, verdict.reason or Reason.LOST, detail=seen.note, seen=seen)


def _reason(result: Result) -> Reason:
    """A newer worker may know reasons that we do not: then its status decides."""
    try:
        return Reason(result.reason)
    except ValueError:
        return {"target": Reason.TARGET_REACHED, "failed": Reason.SCRIPT_FAILED}.get(result.status, Reason.DRAINED)


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
    if state is not SessionState.ENDED or (seen is not None and seen.phase is Phase.RUNNING):
        seen = _stop(parts, session, seen)
    seq, step = checkpoints.newest_of(store, session.job_id, session.token)
    now = parts.clock.now()
    profile = observe.profile_of(parts, session)
    ended_at, charged_s = _time_used(session, seen, now, profile)
    with parts.db.write() as c:
        job = jobs.get(c, session.job_id)
        progressed = seq > 0 and (step > session.start_step or step == 0)
        ran = charged_s > 0 or session.started_at is not None
        fruitless = 0 if progressed or not ran else 1 + _fruitless(sessions.of_job(c, job.id), session, job.wish_at)
        if not ran and reason in (Reason.LOST, Reason.LAUNCH_FAILED):
            _rest(parts, c, session.platform, detail, now)
        if reason is Reason.WORKER_LACKS:
            sessions.cool_down(c, session.platform, now + timedelta(seconds=LACKING_PAUSE_S), detail, now)
        sessions.close(
            c,
            session,
            state,
            reason,
            detail=detail,
            ended_at=ended_at,
            charged_s=charged_s,
            gpus=profile.gpu_count,
            sealed_seq=seq,
            step=max(session.step, step, seen.result.step if seen and seen.result else 0),
            saved_step=step,
            now=now,
        )
        repeated = seen is not None and seen.result is not None and seen.result.repeated
        after, why = after_session(reason, progressed=progressed, wish=job.wish, fruitless=fruitless, repeated=repeated)
        jobs.move(c, job.id, after, why, detail if after is not JobState.QUEUED else "", now)
        storage.look_again(c, job.id, now)  # in the same transaction: a crash must not forget what it left
    log.info("closed %s: %s", session.name, reason.value, extra={"action": "closed"})
    retention.sweep_later(parts, session.job_id)
    if after in OVER:
        log.info("job %s is %s", session.job_id, after.value, extra={"action": f"job-{after.value}"})


def pause_s(parts: Parts, platform: str, first_s: float, c: Connection | None = None) -> float:
    """The pause after a refusal: it doubles with each one in a row, up to a day or the first pause if that is more."""
    if c is None:
        with parts.db.read() as own:
            return pause_s(parts, platform, first_s, own)
    before = sessions.cooling(c).get(platform)
    return max(first_s, min(86400.0, first_s * 2.0 ** min(10, before.times if before else 0)))


def _rest(parts: Parts, c: Connection, platform: str, detail: str, now: datetime) -> None:
    """Without a pause a platform whose sessions die before they begin would be asked again at each tick."""
    until = now + timedelta(seconds=pause_s(parts, platform, BROKEN_PAUSE_S, c))
    text = f"its last session did not begin ({detail})" if detail else "its last session did not begin"
    sessions.cool_down(c, platform, until, text, now)


def _stop(parts: Parts, session: SessionRow, seen: Seen | None) -> Seen | None:
    """End it on its platform, and hear from there when it began and ended."""
    platform = parts.platforms.get(session.platform)
    if platform is None:
        return seen
    # Without a handle the launch may still have happened: its name is the best guess, and stop is silent.
    handle = Handle(session.handle or session.name, session.link)
    try:
        platform.stop(handle)
    except Exception as error:  # the fence holds anyway
        log.warning("stop of %s failed: %s", session.name, error, extra={"action": "stop-failed"})
        return seen
    state = observe.poll(platform, replace(session, handle=handle.id))
    if state.started_at is None and state.ended_at is None:
        return seen
    seen = seen or Seen(store_answered=True)
    return replace(seen, phase=state.phase, started_at=state.started_at or seen.started_at, ended_at=state.ended_at)


def _time_used(session: SessionRow, seen: Seen | None, now: datetime, profile: Profile) -> tuple[datetime, float]:
    """(end, seconds to charge): the platform's own times where it told them, else ours; nothing if it never began."""
    began = (seen.started_at if seen else None) or session.started_at
    if began is None and (session.beat_at is not None or (seen is not None and seen.beat is not None)):
        began = session.launched_at
    if began is None:
        return now, 0.0
    ended = (seen.ended_at if seen else None) or min(now, max(session.limit_at, session.beat_at or now))
    if seen is not None and seen.ended_at is None and (seen.result is not None or seen.phase is Phase.GONE):
        # It is over since some moment that nobody saw, perhaps hours ago: the worker's own clock says about when.
        worked = max(seen.result.train_s if seen.result else 0.0, seen.beat.train_s if seen.beat else 0.0)
        slack = profile.start_s + (profile.margin_s if seen.result else profile.lease_s)
        ended = min(ended, began + timedelta(seconds=worked + slack))
    return ended, max(0.0, (ended - began) / timedelta(seconds=1))


def _fruitless(rows: list[SessionRow], session: SessionRow, since: datetime) -> int:
    """Sessions in a row just before this one that ran and saved nothing new, since the user last spoke."""
    count = 0
    for row in sorted(rows, key=lambda r: -r.token):
        if row.token >= session.token or row.started_at is None:
            continue
        if row.launched_at < since or (row.sealed_seq and (row.saved_step > row.start_step or row.saved_step == 0)):
            break
        count += 1
    return count
