"""gpuhop pause JOB"""

from __future__ import annotations

import click

from gpuhop.cli import wishes
from gpuhop.domain.states import Wish


@click.command()
@click.argument("job")
def command(job: str) -> None:
    """Stop JOB at its next step; resume lets it go on from there."""
    wishes.wish(job, Wish.PAUSE)
