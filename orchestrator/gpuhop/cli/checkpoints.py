"""gpuhop checkpoints JOB"""

from __future__ import annotations

from dataclasses import asdict

import click

from gpuhop.cli import output


@click.command()
@click.argument("job")
@output.output_option
def command(job: str, form: str) -> None:
    """The checkpoints of JOB in the store, the newest first: step, sizes, which session, from which it grew."""
    from gpuhop.services.checkpoints import listing

    with output.opened_app() as app:
        row, rows = output.job_and_sessions(app, job)
        lines = listing(app.store, row.id, rows)
    if form == "json":
        output.as_json([asdict(line) for line in lines])
        return
    if not lines:
        output.say(f"{row.id} has no checkpoint yet")
        return
    table = []
    for line in lines:
        parent = f"t{line.parent[0]:04d}/{line.parent[1]}" if line.parent else "-"
        step = "-" if line.step is None else str(line.step)
        place = f"t{line.token:04d}/{line.seq}"
        table.append([place, step, line.platform, output.size(line.raw), output.size(line.named), parent, line.note])
    head = ["CHECKPOINT", "STEP", "PLATFORM", "STATE", "IN PACKS", "GREW FROM", ""]
    output.say("\n".join(output.table(head, table)))
