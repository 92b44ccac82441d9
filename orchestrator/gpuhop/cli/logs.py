"""gpuhop logs JOB"""

from __future__ import annotations

import threading

import click

from gpuhop.cli import output


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Stay and show what comes, until the job is over.")
@click.option("--events", is_flag=True, help="The scheduler's journal of this job instead of its output.")
def command(job: str, follow: bool, events: bool) -> None:
    """The output of JOB as one stream over all its sessions, with a mark at each hop."""
    from gpuhop.cli import following
    from gpuhop.db import events as journal
    from gpuhop.db import jobs
    from gpuhop.services.streams import LogReader

    with output.opened_app() as app:
        with app.db.read() as c:
            row = jobs.find(c, job)
            lines = journal.of_job(c, row.id, limit=10000) if events else []
        if events:
            for line in lines:
                output.say(f"{line.at.astimezone():%Y-%m-%d %H:%M:%S}  {line.action:<18} {line.text}")
        elif follow:
            following.stream(app, row.id, threading.Event())
        else:
            following.show_more(app, row.id, LogReader(app.store))
