"""Small texts that people read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from gpuhop.cli import output
from gpuhop.services.explaining import when
from gpuhop.services.submitting import new_id


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3600, "1 h 00 min"), (90061, "1 d 1 h")],
)
def test_spans(seconds: float | None, text: str) -> None:
    assert output.span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 B"), (1000, "1.0 KB"), (2_500_000, "2.5 MB"), (7e12, "7000.0 GB")]
)
def test_sizes(count: float, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "in 0 min"), (59 * 60, "in 59 min"), (3600, "in 1 h 0 min"), (187200, "in 2 d 4 h")]
)
def test_when_in_words(seconds: float, text: str) -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    assert when(now + timedelta(seconds=seconds), now).startswith(text + " (")


def test_bar_never_overflows() -> None:
    assert output.bar([(0.5, "#", "red"), (0.9, "+", "red")], 10).count("+") == 5
    assert len(click.unstyle(output.bar([(0.34, "#", "red"), (0.33, "+", "red")], 20))) == 20


def test_table_aligns_by_visible_width() -> None:
    lines = output.table(["A", "B"], [[output.state("done"), "x"], ["longer", "y"]])
    plain = [click.unstyle(line) for line in lines]
    assert plain == ["A       B", "done    x", "longer  y"]


@pytest.mark.parametrize(("name", "base"), [("My Run", "my-run"), ("...", "job"), ("a" * 64, "a" * 40)])
def test_job_ids(name: str, base: str) -> None:
    assert new_id(name, lambda: "0f3a") == f"{base}-0f3a"
