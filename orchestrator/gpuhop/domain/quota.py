"""Quota windows as pure functions over append-only entries. All times aware UTC, all amounts in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum


class WindowKind(StrEnum):
    NONE = "none"  # unlimited
    WEEKLY = "weekly"  # refills at a fixed weekday and hour, UTC
    ROLLING = "rolling"  # the last `period_s` seconds count
    ANCHORED = "anchored"  # a period begins at the first use after the last one ended
    MONTHLY = "monthly"  # refills on the first of the month, UTC


@dataclass(frozen=True)
class Window:
    """A platform's allowance. `amount_s` is None for unlimited; `weekday` 0 = Monday."""

    kind: WindowKind = WindowKind.NONE
    amount_s: float | None = None
    period_s: float = 7 * 86400.0
    weekday: int = 5
    hour: int = 0


UNLIMITED = Window()


@dataclass(frozen=True)
class Charge:
    """Quota used: the session's time from `start` to `end`; `seconds` may differ from it (an adjustment)."""

    start: datetime
    end: datetime
    seconds: float


@dataclass(frozen=True)
class Balance:
    """What a platform has now. `left_s` is None for unlimited; `refill_at` is None where nothing refills."""

    used_s: float
    held_s: float
    left_s: float | None
    refill_at: datetime | None


def window_start(window: Window, charges: Sequence[Charge], now: datetime) -> datetime:
    """The moment from which use counts against the allowance at `now`."""
    now = _utc(now)
    if window.kind is WindowKind.WEEKLY:
        day = now.replace(hour=window.hour, minute=0, second=0, microsecond=0)
        start = day - timedelta(days=(day.weekday() - window.weekday) % 7)
        return start if start <= now else start - timedelta(days=7)
    if window.kind is WindowKind.MONTHLY:
        return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if window.kind is WindowKind.ANCHORED:
        return _anchor(window, charges, now)
    return now - timedelta(seconds=window.period_s)


def _anchor(window: Window, charges: Sequence[Charge], now: datetime) -> datetime:
    period = timedelta(seconds=window.period_s)
    anchor: datetime | None = None
    for start in sorted(charge.start for charge in charges if charge.start <= now):
        if anchor is None or start >= anchor + period:
            anchor = start
    return anchor if anchor is not None and anchor + period > now else now


def used(window: Window, charges: Sequence[Charge], now: datetime) -> float:
    """Seconds used in the window that holds `now`; a session across the window's edge counts by its share."""
    if window.kind is WindowKind.NONE:
        return max(0.0, sum(charge.seconds for charge in charges))
    start = window_start(window, charges, now)
    return max(0.0, sum(_share(charge, start) for charge in charges))


def _share(charge: Charge, start: datetime) -> float:
    if charge.start >= start:
        return charge.seconds
    if charge.end <= start:
        return 0.0
    return charge.seconds * ((charge.end - start) / (charge.end - charge.start))


def refill_at(window: Window, charges: Sequence[Charge], now: datetime) -> datetime | None:
    """When the next part of the allowance comes back: for a rolling window, when the oldest use begins to leave."""
    if window.kind is WindowKind.NONE:
        return None
    start = window_start(window, charges, now)
    if window.kind is WindowKind.WEEKLY:
        return start + timedelta(days=7)
    if window.kind is WindowKind.MONTHLY:
        return (start + timedelta(days=32)).replace(day=1)
    period = timedelta(seconds=window.period_s)
    if window.kind is WindowKind.ANCHORED:
        return start + period if any(start <= charge.start <= now for charge in charges) else None
    inside = [max(charge.start, start) for charge in charges if charge.end > start]
    return min(inside) + period if inside else None


def balance(window: Window, charges: Sequence[Charge], holds_s: float, now: datetime) -> Balance:
    """Used, held and left at `now`."""
    gone = used(window, charges, now)
    left = None if window.amount_s is None else max(0.0, window.amount_s - gone - holds_s)
    return Balance(gone, holds_s, left, refill_at(window, charges, now))


def _utc(when: datetime) -> datetime:
    """Windows turn over at hours of UTC, whatever zone a time is written in."""
    if when.tzinfo is None:
        raise ValueError("naive time refused: every time in the ledger carries its zone")
    return when.astimezone(UTC)
