"""The static report: complete, self-contained, and safe with hostile names."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from gpuhop.db.records import JobRow, SessionRow
from gpuhop.domain.states import JobState, Reason, SessionState, Wish
from gpuhop.services.comparing import Row
from gpuhop.services.reporting import Report, render

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def job() -> JobRow:
    values: dict[str, Any] = dict.fromkeys(JobRow.__annotations__)
    values.update(id="j-0001", name="j", state=JobState.DONE, wish=Wish.RUN, step=20, detail="")
    return JobRow(**values)


def session(token: int, platform: str, **more: Any) -> SessionRow:
    values: dict[str, Any] = dict.fromkeys(SessionRow.__annotations__)
    start = NOW + timedelta(hours=token)
    values.update(token=token, platform=platform, state=SessionState.ENDED, reason=Reason.BUDGET, launched_at=start)
    values.update(started_at=start, ended_at=start + timedelta(minutes=50), start_step=0, step=10, saved_step=10)
    return SessionRow(**{**values, **more})


class Tags(HTMLParser):
    """Collects tags and checks that they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def report(**changes: Any) -> Report:
    rows = [session(1, "kaggle"), session(2, "colab", start_step=10, step=20, saved_step=20)]
    values = [{"step": step, "loss": 1 / (step + 1), "~token": 1 if step < 10 else 2} for step in range(20)]
    return replace(Report(job(), rows, values), **changes)


def test_a_curve_piece_per_session_and_a_bar_per_session() -> None:
    tags = parsed(render(report()))
    assert tags.seen.count("polyline") == 2
    assert tags.seen.count("rect") == 2
    assert "script" not in tags.seen
    assert "link" not in tags.seen


def test_names_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    page = render(report(job=replace(job(), name=evil, id=evil), comparison=[Row(evil, 1, (evil,))]))
    assert evil not in page
    assert "script" not in parsed(page).seen


@pytest.mark.parametrize(
    "values",
    [
        [],
        [{"step": 0, "loss": 1.0, "~token": 1}],
        [{"step": s, "loss": float("nan"), "~token": 1} for s in range(3)],
        [{"step": s, "loss": 2.0, "~token": 1} for s in range(3)],
        [{"step": s, "note": "text", "~token": 1} for s in range(3)],
    ],
)
def test_odd_values_make_a_page_all_the_same(values: list[dict[str, Any]]) -> None:
    parsed(render(report(metrics=values)))


def test_no_sessions() -> None:
    parsed(render(report(sessions=[], metrics=[])))


def test_the_comparison_tells_both_outcomes() -> None:
    page = render(report(comparison=[Row("weights", 3, ()), Row("moments", 2, ("m1",))]))
    assert "identical, bit for bit" in page
    assert "1 differ: m1" in page
