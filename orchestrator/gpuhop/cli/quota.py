"""gpuhop quota"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuhop.cli import output

if TYPE_CHECKING:
    from gpuhop.domain.world import PlatformView, World


@click.command()
@output.output_option
def command(form: str) -> None:
    """Hours used, held by running sessions and left, per platform, and when each allowance refills."""
    with output.opened_app() as app:
        from gpuhop.engine import observe

        with app.db.read() as c:
            world = observe.world(app.parts, c)
    if form == "json":
        output.as_json([_row_json(view) for view in world.platforms])
        return
    output.say("\n".join(lines(world)))


def lines(world: World, width: int = 20) -> list[str]:
    """The dashboard as text: one row per platform."""
    from gpuhop.services.explaining import when

    rows = []
    for view in world.platforms:
        profile, balance = view.profile, view.balance
        amount = profile.window.amount_s
        left = (
            "no limit" if balance.left_s is None else f"{output.hours(balance.left_s)} of {output.hours(amount or 0)}"
        )
        refill = when(balance.refill_at, world.now) if balance.refill_at else "-"
        cooling = view.cool_until is not None and view.cool_until > world.now
        told = f"{view.cool_text}; again {when(view.cool_until, world.now)}" if cooling and view.cool_until else ""
        slots = f"{view.live}/{profile.slots}"
        rows.append(
            [profile.name, meter(view, width), left, slots, output.hours(profile.max_session_s), told or refill]
        )
    head = ["PLATFORM", "USED █ HELD ▒", "LEFT", "SLOTS", "SESSION", "REFILLS"]
    return [*output.table(head, rows), "", "figures: gpuhop's own count of sessions that it started"]


def meter(view: PlatformView, width: int) -> str:
    amount = view.profile.window.amount_s
    if not amount:
        return "·" * width
    balance = view.balance
    return output.bar([(balance.used_s / amount, "█", "red"), (balance.held_s / amount, "▒", "yellow")], width)


def _row_json(view: PlatformView) -> dict[str, object]:
    return {
        "platform": view.profile.name,
        "used_s": view.balance.used_s,
        "held_s": view.balance.held_s,
        "left_s": view.balance.left_s,
        "amount_s": view.profile.window.amount_s,
        "refill_at": view.balance.refill_at,
        "sessions": view.live,
        "slots": view.profile.slots,
        "cooling_until": view.cool_until,
        "told": view.cool_text,
        "source": "own count",
    }
