"""gpuhop db"""

from __future__ import annotations

import click

from gpuhop.cli import output


@click.command()
def command() -> None:
    """Where the ledger lies, its revision, who drives it, and whether it is sound. Changes nothing."""
    from gpuhop.db import health
    from gpuhop.engine import driver
    from gpuhop.errors import DatabaseError
    from gpuhop.settings import load

    settings = load()
    output.say(f"file      {settings.database}")
    if not settings.database.exists():
        output.say("state     not made yet; the first command that needs it makes it")
        return
    output.say(f"size      {output.size(settings.database.stat().st_size)}")
    found = health.look(settings.database)
    output.say(f"revision  {found.current or 'none'} (this gpuhop: {found.head})")
    output.say(f"check     {found.integrity}")
    output.say(f"rows      {', '.join(f'{name} {count}' for name, count in found.rows)}")
    output.say(f"driver    {driver.current(settings.database) or 'nobody'}")
    if not found.known:
        raise DatabaseError("this database was made by a newer gpuhop", "pip install --upgrade gpuhop")
