"""gpuhop verify JOB"""

from __future__ import annotations

import click

from gpuhop.cli import output


@click.command()
@click.argument("job")
@click.option("--all", "every", is_flag=True, help="All checkpoints, not only the newest.")
def command(job: str, every: bool) -> None:
    """Read, decode and hash every byte of JOB's newest checkpoint. Exit 3 when one cannot be restored."""
    from gpuhop.engine.checkpoints import counting
    from gpuhop.errors import Exit
    from gpuhop.services.checkpoints import sealed, verify

    with output.opened_app() as app:
        row, rows = output.job_and_sessions(app, job)
        saved = counting(app.store, row.id, sealed(rows), 1000 if every else 1)
        bad = 0
        for one in saved:
            problems = ["the manifest is damaged"] if one.manifest is None else verify(app.store, one.manifest)
            bad += bool(problems)
            word = click.style("FAIL", fg="red") if problems else click.style("ok  ", fg="green")
            step = one.manifest.step if one.manifest else "?"
            output.say(f"{word} t{one.token:04d}/{one.seq} step {step}")
            for problem in problems[:20]:
                output.say(f"       {problem}")
    if not saved:
        output.say(f"{row.id} has no checkpoint yet")
    if bad:
        output.say(f"  next: gpuhop resume {row.id}   (a restore falls back to the newest good one)")
        raise click.exceptions.Exit(Exit.STORE)
