"""Why a job is where it is, and where it goes next, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpuhop.db.records import JobRow, SessionRow
from gpuhop.domain.plan import Launch, bars, plan
from gpuhop.domain.states import LIVE_SESSIONS, WORDS, JobState, SessionState, Wish
from gpuhop.domain.world import World
from gpuhop.engine.observe import job_view
from gpuhop.spec import codec


def explain(job: JobRow, rows: Sequence[SessionRow], world: World, driver: str | None) -> list[str]:
    """Lines of plain text. `driver`: who runs the loop, None for nobody."""
    lines = [_where(job, rows)]
    if job.wish is not Wish.RUN and job.state in (JobState.RUNNING, JobState.QUEUED):
        lines.append(f"{job.wish.value} requested: the session leaves at its next step boundary, then it is confirmed.")
    if job.state is JobState.QUEUED:
        lines += _next(job, world)
    if job.reason is not None:
        words, next_step = WORDS[job.reason]
        lines.append(f"Because {words}." + (f" ({job.detail})" if job.detail else ""))
        lines.append(f"  next: {next_step.format(job=job.id)}")
    if driver is None and job.state in (JobState.QUEUED, JobState.RUNNING):
        lines.append("Nobody drives the queue now.")
        lines.append("  next: gpuhop serve")
    return lines


def _where(job: JobRow, rows: Sequence[SessionRow]) -> str:
    target = codec.loads(job.spec).target.steps
    place = f"step {job.step}" + (f" of {target}" if target else "")
    live = next((row for row in rows if row.state in LIVE_SESSIONS), None)
    if live is None:
        return f"{job.id} is {job.state.value}, {place}, after {len(rows)} session(s)."
    if live.state is SessionState.AWAITING:
        return f"{job.id} waits for a person: open {live.link} and run it ({live.platform}, token {live.token})."
    return f"{job.id} is {job.state.value} on {live.platform} (token {live.token}, {live.state.value}), {place}."


def _next(job: JobRow, world: World) -> list[str]:
    chosen = [a for a in plan(world) if isinstance(a, Launch) and a.job == job.id]
    lines = []
    if chosen:
        lines.append(f"Next: {chosen[0].platform}, a chunk of {chosen[0].budget_s / 3600.0:.1f} h.")
    else:
        lines.append("It waits. On each platform this stands in the way:")
    for bar in bars(job_view(job), world):
        lifts = f"; lifts {when(bar.lifts_at, world.now)}" if bar.lifts_at else ""
        lines.append(f"  {bar.platform}: {bar.text}{lifts}")
    return lines


def when(moment: datetime, now: datetime) -> str:
    """'in 2 d 4 h (Saturday 21:00)', in local time."""
    seconds = max(0.0, (moment - now).total_seconds())
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    parts = [f"{days} d"] * (days > 0) + [f"{hours} h"] * (hours > 0) + [f"{rest // 60} min"] * (days == 0)
    return f"in {' '.join(parts)} ({moment.astimezone():%A %H:%M})"
