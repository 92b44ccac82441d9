"""gpuhop store check"""

from __future__ import annotations

import click

from gpuhop.cli import output


@click.group()
def command() -> None:
    """The object store that carries the training state."""


@command.command()
def check() -> None:
    """Do the real operations once (write, list, read, presigned addresses, create-once) and say what holds."""
    from datetime import UTC, datetime

    from gpuhop.errors import Exit
    from gpuhop.stores.check import check as run

    with output.opened_app() as app:
        findings = run(app.store, lambda: datetime.now(UTC))
    for found in findings:
        mark = (
            click.style("ok  ", fg="green")
            if found.ok
            else click.style("FAIL" if found.required else "note", fg="red" if found.required else "yellow")
        )
        output.say(f"{mark} {found.name}: {found.detail}")
        if found.hint and not found.ok:
            output.say(f"       next: {found.hint}")
    if any(found.required and not found.ok for found in findings):
        raise click.exceptions.Exit(Exit.STORE)
