"""gpuhop doctor"""

from __future__ import annotations

import click

from gpuhop.cli import output


@click.command()
def command() -> None:
    """One line per finding, one fix each. Works with every part broken or absent."""
    from gpuhop.doctor import examine
    from gpuhop.errors import Exit

    findings = examine()
    for found in findings:
        mark = {
            True: click.style("ok  ", fg="green"),
            False: click.style("FAIL", fg="red"),
            None: click.style("note", fg="yellow"),
        }
        output.say(f"{mark[found.ok]} {found.what}: {found.detail}")
        if found.fix and not found.ok:
            output.say(f"       fix: {found.fix}")
    if any(found.ok is False for found in findings):
        raise click.exceptions.Exit(Exit.FAILED)
