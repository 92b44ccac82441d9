"""gpuhop status"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpuhop.cli import output

if TYPE_CHECKING:
    from gpuhop.app import App
    from gpuhop.db.records import JobRow, SessionRow


@click.command()
@click.argument("job", required=False)
@click.option("-w", "--watch", is_flag=True, help="Refresh in place until interrupted or all is over.")
@click.option("-n", "--limit", default=20, show_default=True, help="Newest jobs to show.")
@output.output_option
def command(job: str | None, watch: bool, limit: int, form: str) -> None:
    """All jobs, or one with its sessions."""
    with output.opened_app() as app:
        if form == "json":
            output.as_json(_one_json(app, job) if job else _all_json(app, limit))
        elif watch:
            _watch(lambda: _lines(app, job, limit), lambda: job is not None and _over(app, job))
        else:
            output.say("\n".join(_lines(app, job, limit)))


def _lines(app: App, job: str | None, limit: int) -> list[str]:
    return _one(app, job) if job else _all(app, limit)


def _watch(lines: Callable[[], list[str]], over: Callable[[], bool]) -> None:
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            live.update(Text.from_ansi("\n".join(lines())), refresh=True)
            if over():
                return
            time.sleep(1.0)


def _over(app: App, job: str) -> bool:
    from gpuhop.db import jobs
    from gpuhop.domain.states import OVER

    with app.db.read() as c:
        return jobs.find(c, job).state in OVER


def _live(rows: list[SessionRow]) -> SessionRow | None:
    from gpuhop.domain.states import LIVE_SESSIONS

    return next((row for row in rows if row.state in LIVE_SESSIONS), None)


def _progress(job: JobRow, step: int) -> str:
    target = json.loads(job.spec)["target"]["steps"]
    return f"{step}/{target} {100 * step // target}%" if target else str(step)


def _left(job: JobRow, rows: list[SessionRow], step: int) -> str:
    from gpuhop.services.estimating import left
    from gpuhop.spec import codec

    found = left(codec.loads(job.spec), step, rows)
    return output.span(found.train_s) if found.train_s is not None else "-"


def _all(app: App, limit: int) -> list[str]:
    from gpuhop.db import jobs, sessions
    from gpuhop.engine import driver

    with app.db.read() as c:
        found = jobs.newest(c, limit)
        by_job = {job.id: sessions.of_job(c, job.id) for job in found}
    who = driver.current(app.settings.database)
    if not found:
        empty = ["no jobs yet", "  next: gpuhop submit job.yaml   (or gpuhop demo)"]
        return [*empty, f"driven by {who}"] if who else empty
    rows = []
    for job in found:
        live = _live(by_job[job.id])
        step = max(job.step, live.step) if live else job.step
        word = live.state.value if live is not None and live.state.value != "running" else job.state.value
        where = live.platform if live else (job.reason.value if job.reason else "-")
        left = "-" if job.ended_at else _left(job, by_job[job.id], step)
        rows.append([job.id, output.state(word), _progress(job, step), where, str(len(by_job[job.id])), left])
    lines = output.table(["JOB", "STATE", "STEP", "WHERE", "SESSIONS", "TRAINING LEFT"], rows)
    lines.append("")
    lines.append(f"driven by {who}" if who else "nobody drives the queue   next: gpuhop serve")
    return lines


def _one(app: App, ref: str | None) -> list[str]:
    from gpuhop.db import jobs, sessions
    from gpuhop.domain.states import WORDS

    with app.db.read() as c:
        job = jobs.find(c, ref or "")
        rows = sessions.of_job(c, job.id)
    live = _live(rows)
    step = max(job.step, live.step) if live else job.step
    lines = [f"{click.style(job.id, bold=True)}  {output.state(job.state.value)}"]
    if job.wish.value != "run" and job.state.value in ("running", "queued"):
        lines[0] += f"  ({job.wish.value} requested, not confirmed yet)"
    lines.append(f"  step        {_progress(job, step)}   safe in the store: {job.step}")
    lines.append(f"  used        {output.hours(job.used_s)} of GPU time over {len(rows)} session(s)")
    lines.append(
        f"  left        {_left(job, rows, step)} of training"
        if not job.ended_at
        else f"  ended       {job.ended_at.astimezone():%Y-%m-%d %H:%M}"
    )
    lines.append(f"  code        {job.code_sha256[:12]} ({output.size(job.code_size)})")
    if job.reason is not None:
        words, next_step = WORDS[job.reason]
        lines += [
            f"  because     {words}" + (f" ({job.detail})" if job.detail else ""),
            f"  next        {next_step.format(job=job.id)}",
        ]
    if live is not None and live.link is not None and live.state.value == "awaiting-person":
        lines.append(click.style(f"  open this   {live.link}", fg="magenta"))
    if rows:
        lines += [
            "",
            *output.table(["SESSION", "PLATFORM", "STATE", "STEPS", "TIME", "WHY"], [_session(row) for row in rows]),
        ]
    return lines


def _session(row: SessionRow) -> list[str]:
    last = max(row.step, row.saved_step)
    lost = f" ({row.step - row.saved_step} lost)" if row.ended_at and row.step > row.saved_step > 0 else ""
    time = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
    why = row.detail or (row.reason.value if row.reason else row.phase)
    return [
        f"t{row.token:04d}",
        row.platform,
        output.state(row.state.value),
        f"{row.start_step}-{last}{lost}",
        output.span(time),
        why,
    ]


def _job_json(job: JobRow, rows: list[SessionRow]) -> dict[str, Any]:
    live = _live(rows)
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state.value,
        "wish": job.wish.value,
        "reason": job.reason.value if job.reason else None,
        "detail": job.detail,
        "step": max(job.step, live.step) if live else job.step,
        "saved_step": job.step,
        "target_steps": json.loads(job.spec)["target"]["steps"],
        "platform": live.platform if live else None,
        "sessions": len(rows),
        "used_s": job.used_s,
        "created_at": job.created_at,
        "ended_at": job.ended_at,
    }


def _all_json(app: App, limit: int) -> list[dict[str, Any]]:
    from gpuhop.db import jobs, sessions

    with app.db.read() as c:
        return [_job_json(job, sessions.of_job(c, job.id)) for job in jobs.newest(c, limit)]


def _one_json(app: App, ref: str) -> dict[str, Any]:

    job, rows = output.job_and_sessions(app, ref)
    keys = (
        "token",
        "platform",
        "state",
        "start_step",
        "step",
        "saved_step",
        "launched_at",
        "started_at",
        "ended_at",
        "reason",
        "detail",
    )
    return {**_job_json(job, rows), "history": [{key: getattr(row, key) for key in keys} for row in rows]}
