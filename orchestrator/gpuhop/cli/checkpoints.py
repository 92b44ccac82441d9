"""gpuhop checkpoints JOB"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gpuhop.cli import output

if TYPE_CHECKING:
    from gpuhop.services.checkpoints import Line
    from gpuhop.services.storage import Storage


@click.command()
@click.argument("job")
@click.option("--pin", "pins", multiple=True, metavar="T/SEQ", help="Keep this one, whatever the rules say (t0007/3).")
@click.option("--unpin", "unpins", multiple=True, metavar="T/SEQ", help="Let the rules decide about it again.")
@output.output_option
def command(job: str, pins: tuple[str, ...], unpins: tuple[str, ...], form: str) -> None:
    """The checkpoints of JOB in the store, the newest first: step, sizes, which session, from which it grew, why it is
    kept or when it goes. --pin and --unpin change that."""
    from gpuhop.services import storage
    from gpuhop.services.checkpoints import listing

    with output.opened_app() as app:
        row, rows = output.job_and_sessions(app, job)
        wanted = [(storage.pin, storage.place_of(text)) for text in pins]
        wanted += [(storage.unpin, storage.place_of(text)) for text in unpins]
        for act, place in wanted:
            act(app.store_parts, row.id, place)
        found = storage.look(app.store_parts, row.id)
        lines = storage.explained(listing(app.store, row.id, rows), found)
    if form == "json":
        output.as_json([asdict(line) for line in lines])
        return
    if not lines:
        output.say(f"{row.id} has no checkpoint yet")
        return
    output.say("\n".join(_table(lines)))
    output.say(summary(found))


def _table(lines: Sequence[Line]) -> list[str]:
    table = []
    for line in lines:
        parent = f"t{line.parent[0]:04d}/{line.parent[1]}" if line.parent else "-"
        step = "-" if line.step is None else str(line.step)
        place = f"t{line.token:04d}/{line.seq}"
        goes = "goes later" if line.goes_at is None else f"goes {output.moment(line.goes_at)}"
        kept = ", ".join(line.kept) or goes
        sizes = [output.size(line.raw), output.size(line.named)]
        table.append([place, step, line.platform, *sizes, parent, kept, line.note])
    return output.table(["CHECKPOINT", "STEP", "PLATFORM", "STATE", "IN PACKS", "GREW FROM", "KEPT", ""], table)


def summary(found: Storage) -> str:
    """ "1.2 GB in the store; 300.0 MB go on 30 Nov 14:05; 2.1 GB freed so far"."""
    text = f"{output.size(found.bytes)} in the store"
    times = [one.at for one in found.going if one.at is not None]
    if found.going:
        when = f"from {output.moment(min(times))} on" if times else "later (gpuhop serve, or gpuhop prune)"
        text += f"; {output.size(sum(one.size for one in found.going))} go {when}"
    if found.freed:
        text += f"; {output.size(sum(one.bytes for one in found.freed))} freed so far"
    return text
