"""gpuhop cancel JOB"""

from __future__ import annotations

import click

from gpuhop.cli import wishes
from gpuhop.domain.states import Wish


@click.command()
@click.argument("job")
def command(job: str) -> None:
    """Stop JOB for good. Its checkpoints stay in the store."""
    wishes.wish(job, Wish.CANCEL)
