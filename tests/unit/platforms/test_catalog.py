"""Allowances as data: what is shipped is whole, and what a user writes is checked where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from gpuhop.domain.quota import Window, WindowKind
from gpuhop.errors import InvalidInput
from gpuhop.lab.platform import profiles
from gpuhop.platforms import catalog


@pytest.mark.parametrize("rows", [catalog.shipped(), profiles()], ids=["shipped", "lab"])
def test_what_is_shipped_can_be_used(rows: dict[str, Any]) -> None:
    for name, row in rows.items():
        assert row.name == name and ":" in row.adapter
        assert row.max_session_s > row.start_s + row.grace_s + row.margin_s + row.min_chunk_s
        assert row.posture and row.beat_s * 3 <= row.lease_s
        assert row.gpu == (row.gpu_count > 0)


def test_hours_become_seconds_and_the_rest_is_kept() -> None:
    row = catalog.profile(
        "p",
        {
            "adapter": "m:C",
            "max_session_h": 1.5,
            "open_h": 2,
            "slots": 3,
            "gpu": True,
            "speed": 2,
            "window": {"kind": "weekly", "amount_h": 30, "weekday": 6, "hour": 23},
        },
        "f",
    )
    assert (row.max_session_s, row.open_s, row.slots, row.gpu, row.speed) == (5400.0, 7200.0, 3, True, 2.0)
    assert row.window == Window(WindowKind.WEEKLY, 108_000.0, 7 * 86400.0, 6, 23)


def test_a_row_over_another_changes_only_what_it_says() -> None:
    base = catalog.shipped()["local"]
    row = catalog.profile("local", {"slots": 2}, "config.toml", base)
    assert row.slots == 2 and row.max_session_s == base.max_session_s


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"sloths": 2}, "has the unknown key 'sloths'"),
        ({"adapter": "m:C"}, "lacks max_session_s"),
        ({"max_session_h": 1}, "lacks adapter"),
        ({"max_session_h": "12"}, "max_session_h must be a number of hours, not '12'"),
        ({"max_session_h": True}, "max_session_h must be a number of hours, not True"),
        ({"max_session_h": -1}, "max_session_h must be a number"),
        ({"max_session_h": float("nan")}, "max_session_h must be a number"),
        ({"max_session_h": float("inf")}, "max_session_h must be a number"),
        ({"slots": "2"}, "slots cannot be '2'"),
        ({"slots": 1.5}, "slots cannot be 1.5"),
        ({"slots": True}, "slots cannot be True"),
        ({"slots": -1}, "slots cannot be -1"),
        ({"gpu": 1}, "gpu cannot be 1"),
        ({"speed": "fast"}, "speed cannot be 'fast'"),
        ({"beat_s": float("nan")}, "beat_s cannot be nan"),
        ({"posture": 3}, "posture cannot be 3"),
        ({"name": "x"}, "has the unknown key 'name'"),
        ({"window": "weekly"}, "window must be a table, not 'weekly'"),
        ({"window": {"kind": "yearly"}}, "window is not understood"),
        ({"window": {}}, "window is not understood"),
        ({"window": {"kind": "weekly", "amount": 3}}, "window is not understood"),
        ({"window": {"kind": "weekly", "weekday": 7}}, "weekday cannot be 7"),
        ({"window": {"kind": "weekly", "hour": 24}}, "hour cannot be 24"),
        ({"window": {"kind": "weekly", "hour": "0"}}, "hour cannot be '0'"),
        ({"window": {"kind": "weekly", "amount_h": "30"}}, "amount_h must be a number"),
    ],
)
def test_what_cannot_be_used_is_named(row: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        catalog.profile("p", row, "config.toml")
    assert caught.value.fact.startswith("config.toml: [p] ") and told in caught.value.fact
    assert caught.value.hint


def test_nothing_is_installed_on_the_users_own_machine_or_in_the_lab() -> None:
    assert not any(row.installs for row in [catalog.shipped()["local"], *profiles().values()])


def test_a_platform_where_the_worker_may_install_says_so() -> None:
    row = {"adapter": "m:C", "max_session_h": 1}
    assert catalog.profile("p", {**row, "installs": True}, "f").installs
    assert not catalog.profile("p", row, "f").installs
    with pytest.raises(InvalidInput, match="installs cannot be 'yes'"):
        catalog.profile("p", {**row, "installs": "yes"}, "f")
