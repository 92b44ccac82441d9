"""gpuhop prune JOB"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuhop.cli import output

if TYPE_CHECKING:
    from gpuhop.services.storage import Storage


@click.command()
@click.argument("job")
@click.option("--keep", type=click.IntRange(min=1), help="Newest checkpoints to keep (default: the job's own).")
@click.option("--dry-run", is_flag=True, help="Show what would go, when and why.")
def command(job: str, keep: int | None, dry_run: bool) -> None:
    """Remove JOB's old checkpoints and leftovers of dead sessions from the store: at once, or, while a session of it
    lives, what has been unneeded for an hour. Pinned, spaced and best ones stay as job.yaml says."""

    from dataclasses import replace

    from gpuhop.domain.states import LIVE_SESSIONS
    from gpuhop.services import storage
    from gpuhop.spec import codec

    with output.opened_app() as app:
        row, rows = output.job_and_sessions(app, job)
        rule = codec.loads(row.spec).checkpoint.keep
        rule = rule if keep is None else replace(rule, last=keep)
        alive = any(one.state in LIVE_SESSIONS for one in rows)
        if dry_run:
            _show(storage.look(app.store_parts, row.id, rule), alive)
            return
        swept, tidied = storage.prune(app.store_parts, row.id, rule)
    gone = [*swept.removed, *tidied.removed]
    for mark in gone:
        output.say(f"removed {mark.key}  {output.size(mark.size)}  {mark.why}")
    output.say(f"{len(gone)} objects, {output.size(sum(mark.size for mark in gone))}")
    waiting = [*swept.waiting, *tidied.waiting]
    if waiting:
        size, first = sum(mark.size for mark, _ in waiting), min(at for _, at in waiting)
        output.say(f"{output.size(size)} wait; the first may go on {output.moment(first)}")
    if swept.overtaken:
        output.say(f"a session of {row.id} began or ended meanwhile: nothing was marked\n  next: gpuhop prune {row.id}")


def _show(found: Storage, alive: bool) -> None:
    from gpuhop.domain.retention import UNFINISHED

    for one in found.going:
        waits = alive or one.why == UNFINISHED
        when = "now" if not waits else "an hour after the next look" if one.at is None else output.moment(one.at)
        output.say(f"would remove {one.key}  {output.size(one.size)}  {one.why}, {when}")
    output.say(f"{len(found.going)} objects, {output.size(sum(one.size for one in found.going))}")
