"""gpuhop plan"""

from __future__ import annotations

import click

from gpuhop.cli import output


@click.command()
def command() -> None:
    """What the scheduler would do at this moment; nothing is done."""
    from gpuhop.domain.plan import Finish, Launch, Order, Withdraw, plan
    from gpuhop.engine import observe

    with output.opened_app() as app:
        with app.db.read() as c:
            world = observe.world(app.parts, c)
    actions = plan(world)
    for action in actions:
        match action:
            case Launch():
                output.say(f"start {action.job} on {action.platform}: trains {output.span(action.budget_s)}")
            case Order():
                output.say(f"tell t{action.token:04d} of {action.job} to {action.order}")
            case Withdraw():
                output.say(f"end t{action.token:04d} of {action.job}: {action.reason.value}")
            case Finish():
                output.say(f"{action.job} becomes {action.state.value}: {action.reason.value}")
    if not actions:
        output.say(f"nothing to do: {len(world.jobs)} unfinished job(s), {len(world.sessions)} live session(s)")
