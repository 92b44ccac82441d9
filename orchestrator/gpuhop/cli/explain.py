"""gpuhop explain JOB"""

from __future__ import annotations

import click

from gpuhop.cli import output


@click.command()
@click.argument("job")
def command(job: str) -> None:
    """Why JOB is where it is, what stands in its way on each platform, and what to type next."""
    from gpuhop.db import jobs, sessions
    from gpuhop.engine import driver, observe
    from gpuhop.services.explaining import explain

    with output.opened_app() as app:
        with app.db.read() as c:
            row = jobs.find(c, job)
            rows = sessions.of_job(c, row.id)
            world = observe.world(app.parts, c)
        output.say("\n".join(explain(row, rows, world, driver.current(app.settings.database))))
