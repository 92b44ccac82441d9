"""gpuhop resume JOB"""

from __future__ import annotations

import click

from gpuhop.cli import wishes
from gpuhop.domain.states import Wish


@click.command()
@click.argument("job")
def command(job: str) -> None:
    """Let a paused or failed JOB go on from its last checkpoint."""
    wishes.wish(job, Wish.RUN)
