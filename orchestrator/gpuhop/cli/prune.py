"""gpuhop prune JOB"""

from __future__ import annotations

import click

from gpuhop.cli import output


@click.command()
@click.argument("job")
@click.option("--keep", type=click.IntRange(min=1), help="Newest checkpoints to keep (default: the job's own).")
@click.option("--dry-run", is_flag=True, help="Show what would go.")
def command(job: str, keep: int | None, dry_run: bool) -> None:
    """Remove JOB's old checkpoints and leftovers of dead sessions from the store. Not while a session of it lives."""

    from gpuhop.domain.states import LIVE_SESSIONS
    from gpuhop.engine import checkpoints
    from gpuhop.errors import InvalidInput
    from gpuhop.spec import codec

    with output.opened_app() as app:
        row, rows = output.job_and_sessions(app, job)
        if any(one.state in LIVE_SESSIONS for one in rows):
            raise InvalidInput(f"a session of {row.id} lives and may read what would go", f"gpuhop pause {row.id}")
        sealed = checkpoints.sealed_by(rows)
        kept = keep or codec.loads(row.spec).checkpoint.keep
        going = checkpoints.doomed(app.store, row.id, sealed, kept)
        if not dry_run:
            for entry in going:
                app.store.delete(entry.key)
    for entry in going:
        output.say(f"{'would remove' if dry_run else 'removed'} {entry.key}  {output.size(entry.size)}")
    output.say(f"{len(going)} objects, {output.size(sum(entry.size for entry in going))}")
