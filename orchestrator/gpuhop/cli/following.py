"""Staying with a job until it ends: its log on stdout, driving the loop when nobody else does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from gpuhop.cli import output
from gpuhop.errors import DriverLocked, Exit

if TYPE_CHECKING:
    from gpuhop.app import App
    from gpuhop.engine.tick import Report

POLL_S = 0.5


def follow(app: App, job_id: str) -> None:
    """Returns when the job is done; exits 7 when it failed, 8 when it was cancelled."""
    from gpuhop.engine.driver import DriverLock

    try:
        with DriverLock(app.settings.database, "gpuhop submit --follow", app.clock.now()):
            _drive(app, job_id)
    except DriverLocked as locked:
        output.note(f"following; the loop is driven by {locked.owner}")
        stream(app, job_id, threading.Event())
    finish(app, job_id)


def _drive(app: App, job_id: str) -> None:
    from gpuhop.engine.service import Service
    from gpuhop.engine.tick import Loop

    end = threading.Event()
    reader = threading.Thread(target=stream, args=(app, job_id, end), daemon=True)
    service = Service(Loop(app.parts), app.tick_s, heard=_Troubles(), until=lambda: over(app, job_id))
    reader.start()
    try:
        service.run()
    finally:
        end.set()
        reader.join(timeout=30)
    if not over(app, job_id):
        output.note("stopped driving; the session goes on to the end of its budget")
        output.note(f"  next: gpuhop serve   (or gpuhop cancel {job_id})")
        raise click.exceptions.Exit(Exit.INTERRUPTED)


class _Troubles:
    """Tells each trouble once, until it is over."""

    def __init__(self) -> None:
        self._last: set[str] = set()

    def __call__(self, report: Report) -> None:
        now = {str(error) for error in report.troubles}
        for text in sorted(now - self._last):
            output.note(f"trouble: {text}")
        self._last = now


troubles = _Troubles


def over(app: App, job_id: str) -> bool:
    from gpuhop.db import jobs
    from gpuhop.domain.states import OVER, JobState

    with app.db.read() as c:
        return jobs.get(c, job_id).state in OVER | {JobState.PAUSED}


def stream(app: App, job_id: str, end: threading.Event) -> None:
    """The log as it comes, with a mark at each hop, until the job is over and all was shown."""
    from gpuhop.errors import StoreError
    from gpuhop.services.streams import LogReader

    reader = LogReader(app.store)
    last = False
    while True:
        try:
            show_more(app, job_id, reader)
        except StoreError:
            pass  # the loop tells it; the log is read on when the store is back
        if last:
            return
        last = over(app, job_id) or end.wait(POLL_S)


def show_more(app: App, job_id: str, reader: object) -> None:
    from gpuhop.db import sessions
    from gpuhop.services.streams import LogReader

    assert isinstance(reader, LogReader)
    with app.db.read() as c:
        rows = sessions.of_job(c, job_id)
    for piece in reader.more(rows):
        if piece.first:
            row = piece.session
            click.secho(f"── t{row.token:04d} on {row.platform}, from step {row.start_step} ──", fg="cyan")
        click.echo(piece.text, nl=False)


def finish(app: App, job_id: str) -> None:
    """The last line, and the exit code that tells how it ended."""
    from gpuhop.db import jobs, sessions
    from gpuhop.domain.states import WORDS, JobState

    with app.db.read() as c:
        job, rows = jobs.get(c, job_id), sessions.of_job(c, job_id)
    words, next_step = WORDS[job.reason] if job.reason else ("", "")
    because = f": {words}" + (f" ({job.detail})" if job.detail else "")
    output.say(f"{output.state(job.state.value)} {job.id} at step {job.step} after {len(rows)} session(s){because}")
    output.say(f"  next: {next_step.format(job=job.id)}")
    if job.state is JobState.FAILED:
        raise click.exceptions.Exit(Exit.JOB_FAILED)
    if job.state is JobState.CANCELLED:
        raise click.exceptions.Exit(Exit.JOB_CANCELLED)
