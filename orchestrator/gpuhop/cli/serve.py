"""gpuhop serve"""

from __future__ import annotations

import click

from gpuhop.cli import output


@click.command()
@click.option("--tick", type=float, help="Seconds between two turns of the loop.")
def command(tick: float | None) -> None:
    """Run the scheduler until SIGTERM or Ctrl-C. Sessions that run go on; the next serve takes them up again."""
    from gpuhop.cli.following import troubles
    from gpuhop.engine.driver import DriverLock
    from gpuhop.engine.service import Service
    from gpuhop.engine.tick import Loop

    with output.opened_app(log=True) as app, DriverLock(app.settings.database, "gpuhop serve", app.clock.now()):
        output.note(f"serving {len(app.platforms)} platform(s): {', '.join(sorted(app.platforms))}; Ctrl-C stops")
        Service(Loop(app.parts), tick or app.tick_s, heard=troubles()).run()
        output.note("stopped; running sessions go on and are taken up by the next serve")
