"""What cancel, pause and resume share: a wish goes into the ledger; the loop carries it out and confirms it."""

from __future__ import annotations

from gpuhop.cli import output
from gpuhop.domain.states import Wish

_REQUESTED = {
    Wish.CANCEL: "cancel requested",
    Wish.PAUSE: "pause requested",
    Wish.RUN: "queued again",
}


def wish(ref: str, wanted: Wish) -> None:
    from gpuhop.db import jobs
    from gpuhop.domain.states import JobState
    from gpuhop.engine import driver

    with output.opened_app() as app:
        with app.db.write() as c:
            row = jobs.find(c, ref)
            jobs.set_wish(c, row, wanted, app.clock.now())
        output.say(f"{row.id}: {_REQUESTED[wanted]}")
        if row.state is JobState.RUNNING and wanted is not Wish.RUN:
            output.say("  its session saves and leaves at the next step; status says when that is confirmed")
        if driver.current(app.settings.database) is None:
            output.say("  nobody drives the queue now; next: gpuhop serve")
