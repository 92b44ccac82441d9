"""gpuhop fetch JOB"""

from __future__ import annotations

from pathlib import Path

import click

from gpuhop.cli import output


@click.command()
@click.argument("job")
@click.argument("into", type=click.Path(path_type=Path), required=False)
def command(job: str, into: Path | None) -> None:
    """Bring the outputs of JOB into the folder INTO (default: ./<job>-outputs)."""
    from gpuhop.services.fetching import fetch

    with output.opened_app() as app:
        row, rows = output.job_and_sessions(app, job)
        for path in fetch(app.store, row, rows, into or Path(f"{row.id}-outputs")):
            output.say(f"{path}  {output.size(path.stat().st_size)}")
