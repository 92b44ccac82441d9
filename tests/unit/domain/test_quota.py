"""Quota windows: edges, shares, zones, and what can never happen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuhop.domain.quota import (
    UNLIMITED,
    Charge,
    Window,
    WindowKind,
    balance,
    refill_at,
    used,
    window_start,
)

H = 3600.0
WEEKLY = Window(WindowKind.WEEKLY, 30 * H, weekday=5, hour=0)
ROLLING = Window(WindowKind.ROLLING, 8 * H, period_s=24 * H)
ANCHORED = Window(WindowKind.ANCHORED, 4 * H, period_s=24 * H)
MONTHLY = Window(WindowKind.MONTHLY, 750 * H)

NOWS = st.datetimes(datetime(2023, 1, 1), datetime(2029, 1, 1), timezones=st.just(UTC))
ZONES = st.sampled_from(
    [UTC, timezone(timedelta(hours=5, minutes=45)), ZoneInfo("America/New_York"), ZoneInfo("Pacific/Kiritimati")]
)
WINDOWS = st.builds(
    Window,
    kind=st.sampled_from(WindowKind),
    amount_s=st.none() | st.floats(0, 1e6),
    period_s=st.floats(60, 1e6),
    weekday=st.integers(0, 6),
    hour=st.integers(0, 23),
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def charge(start: str, hours: float) -> Charge:
    return Charge(at(start), at(start) + timedelta(hours=hours), hours * H)


@st.composite
def histories(draw: st.DrawFn) -> tuple[datetime, list[Charge]]:
    """Charges that lie before now."""
    now = draw(NOWS)
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        end = now - timedelta(seconds=draw(st.floats(0, 3e6)))
        length = draw(st.floats(0, 50_000))
        rows.append(Charge(end - timedelta(seconds=length), end, length))
    return now, rows


@pytest.mark.parametrize(
    ("now", "start"),
    [
        ("2026-10-24T00:00:00", "2026-10-24T00:00:00"),  # Saturday, the very moment
        ("2026-10-23T23:59:59.999999", "2026-10-17T00:00:00"),
        ("2026-10-26T12:00:00", "2026-10-24T00:00:00"),
        ("2024-03-01T00:00:00", "2024-02-24T00:00:00"),  # over a leap day
        ("2027-01-01T05:00:00", "2026-12-26T00:00:00"),  # over a year's end
    ],
)
def test_weekly_window_starts(now: str, start: str) -> None:
    assert window_start(WEEKLY, [], at(now)) == at(start)
    assert refill_at(WEEKLY, [], at(now)) == at(start) + timedelta(days=7)


def test_weekly_window_with_an_hour_turns_over_at_that_hour() -> None:
    window = Window(WindowKind.WEEKLY, H, weekday=5, hour=7)
    assert window_start(window, [], at("2026-10-24T06:59:59")) == at("2026-10-17T07:00:00")
    assert window_start(window, [], at("2026-10-24T07:00:00")) == at("2026-10-24T07:00:00")


@given(WINDOWS, NOWS, ZONES)
def test_the_zone_in_which_a_time_is_written_changes_nothing(window: Window, now: datetime, zone: timezone) -> None:
    there = now.astimezone(zone)
    assert window_start(window, [], there) == window_start(window, [], now)
    assert refill_at(window, [], there) == refill_at(window, [], now)


@given(st.integers(0, 6), st.integers(0, 23), NOWS)
def test_weekly_window_holds_now(weekday: int, hour: int, now: datetime) -> None:
    start = window_start(Window(WindowKind.WEEKLY, H, weekday=weekday, hour=hour), [], now)
    assert start <= now < start + timedelta(days=7)
    assert (start.weekday(), start.hour, start.minute, start.second) == (weekday, hour, 0, 0)


def test_a_session_over_the_edge_counts_by_its_share() -> None:
    row = charge("2026-10-23T20:00:00", 10)
    assert used(WEEKLY, [row], at("2026-10-24T06:00:00")) == pytest.approx(6 * H)
    assert used(WEEKLY, [row], at("2026-10-23T23:00:00")) == pytest.approx(10 * H)
    assert used(WEEKLY, [row], at("2026-10-31T00:00:00")) == 0.0


def test_rolling_window_lets_go_bit_by_bit() -> None:
    row = charge("2026-10-23T00:00:00", 4)
    assert used(ROLLING, [row], at("2026-10-24T00:00:00")) == pytest.approx(4 * H)
    assert used(ROLLING, [row], at("2026-10-24T01:00:00")) == pytest.approx(3 * H)
    assert used(ROLLING, [row], at("2026-10-24T04:00:00")) == 0.0
    assert refill_at(ROLLING, [row], at("2026-10-23T10:00:00")) == at("2026-10-24T00:00:00")
    assert refill_at(ROLLING, [], at("2026-10-23T10:00:00")) is None


def test_anchored_period_begins_with_its_first_use() -> None:
    rows = [charge("2026-10-20T09:00:00", 1), charge("2026-10-21T08:00:00", 1), charge("2026-10-21T10:00:00", 1)]
    assert window_start(ANCHORED, rows, at("2026-10-21T08:30:00")) == at("2026-10-20T09:00:00")
    assert window_start(ANCHORED, rows, at("2026-10-21T12:00:00")) == at("2026-10-21T10:00:00")
    assert used(ANCHORED, rows[:2], at("2026-10-21T09:00:00") - timedelta(seconds=1)) == pytest.approx(2 * H)
    assert refill_at(ANCHORED, rows, at("2026-10-21T12:00:00")) == at("2026-10-22T10:00:00")
    assert used(ANCHORED, rows, at("2026-10-25T00:00:00")) == 0.0
    assert refill_at(ANCHORED, rows, at("2026-10-25T00:00:00")) is None
    # At the very moment of the first use the period has begun.
    assert refill_at(ANCHORED, rows[:1], at("2026-10-20T09:00:00")) == at("2026-10-21T09:00:00")


@pytest.mark.parametrize(
    ("now", "refill"),
    [
        ("2024-02-29T23:59:59", "2024-03-01T00:00:00"),
        ("2023-02-01T00:00:00", "2023-03-01T00:00:00"),
        ("2026-12-31T12:00:00", "2027-01-01T00:00:00"),
        ("2026-01-31T12:00:00", "2026-02-01T00:00:00"),
    ],
)
def test_monthly_window(now: str, refill: str) -> None:
    assert window_start(MONTHLY, [], at(now)) == at(now[:8] + "01T00:00:00")
    assert refill_at(MONTHLY, [], at(now)) == at(refill)


@given(NOWS)
def test_monthly_window_holds_now_and_ends_on_a_first(now: datetime) -> None:
    start, end = window_start(MONTHLY, [], now), refill_at(MONTHLY, [], now)
    assert end is not None and start <= now < end
    assert (end.day, end.hour, end.minute) == (1, 0, 0)
    assert timedelta(days=28) <= end - start <= timedelta(days=31)


@given(WINDOWS, histories(), st.floats(0, 1e6))
def test_nothing_is_ever_negative_or_above_the_allowance(
    window: Window, history: tuple[datetime, list[Charge]], held: float
) -> None:
    now, rows = history
    found = balance(window, rows, held, now)
    assert found.used_s >= 0.0
    assert found.used_s <= sum(row.seconds for row in rows) + 1e-6
    if window.amount_s is None:
        assert found.left_s is None
    else:
        assert found.left_s is not None and 0.0 <= found.left_s <= window.amount_s
    if found.refill_at is not None:
        assert found.refill_at >= now


@given(histories(), st.floats(1, 1e6))
def test_rolling_use_only_falls_while_nothing_runs(history: tuple[datetime, list[Charge]], later: float) -> None:
    now, rows = history
    before = used(ROLLING, rows, now)
    assert used(ROLLING, rows, now + timedelta(seconds=later)) <= before + 1e-6


@given(st.sampled_from([WEEKLY, ROLLING, ANCHORED, MONTHLY]), histories())
def test_at_the_refill_something_has_come_back(window: Window, history: tuple[datetime, list[Charge]]) -> None:
    now, rows = history
    refill = refill_at(window, rows, now)
    if refill is not None:
        assert used(window, rows, refill + timedelta(seconds=1)) <= used(window, rows, now) + 1e-6


def test_an_adjustment_downwards_never_gives_more_than_the_allowance() -> None:
    now = at("2026-10-21T12:00:00")
    rows = [Charge(now - timedelta(hours=1), now - timedelta(hours=1), -5 * H)]
    assert balance(WEEKLY, rows, 0.0, now).left_s == 30 * H
    assert balance(UNLIMITED, rows, 0.0, now).used_s == 0.0


@pytest.mark.parametrize("window", [WEEKLY, ROLLING, ANCHORED, MONTHLY])
def test_naive_time_is_refused(window: Window) -> None:
    with pytest.raises(ValueError, match="naive"):
        window_start(window, [], datetime(2026, 10, 21))


@given(st.integers(0, 23), NOWS)
def test_clocks_going_back_or_forward_somewhere_change_nothing(hour: int, now: datetime) -> None:
    """Both readings of the doubled hour are different moments, and lie in the right window."""
    zone = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=0)
    second = datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=1)
    window = Window(WindowKind.WEEKLY, H, weekday=6, hour=1)
    assert window_start(window, [], first) == at("2026-10-18T01:00:00")
    assert window_start(window, [], second) == at("2026-10-25T01:00:00")
