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
    import json

    from gpuhop.db import jobs, sessions
    from gpuhop.domain.states import LIVE_SESSIONS
    from gpuhop.engine import checkpoints
    from gpuhop.errors import InvalidInput
    from gpuhop.spec import codec

    with output.opened_app() as app:
        with app.db.read() as c:
            row = jobs.find(c, job)
            rows = sessions.of_job(c, row.id)
        if any(one.state in LIVE_SESSIONS for one in rows):
            raise InvalidInput(f"a session of {row.id} lives and may read what would go", f"gpuhop pause {row.id}")
        sealed = {one.token: one.sealed_seq for one in rows if one.sealed_seq is not None}
        kept = keep or codec.decode(json.loads(row.spec)).checkpoint.keep
        going = checkpoints.doomed(app.store, row.id, sealed, kept)
        if not dry_run:
            for entry in going:
                app.store.delete(entry.key)
    for entry in going:
        output.say(f"{'would remove' if dry_run else 'removed'} {entry.key}  {output.size(entry.size)}")
    output.say(f"{len(going)} objects, {output.size(sum(entry.size for entry in going))}")
