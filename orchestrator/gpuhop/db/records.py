"""Rows as values: what gpuhop.db hands out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuhop.domain.states import JobState, Reason, SessionState, Wish


@dataclass(frozen=True)
class JobRow:
    """One job. `spec` is JSON text (gpuhop.spec.codec)."""

    id: str
    name: str
    spec: str
    spec_hash: str
    source: str
    code_sha256: str
    code_size: int
    state: JobState
    wish: Wish
    wish_at: datetime
    reason: Reason | None
    detail: str
    priority: int
    token: int
    step: int
    used_s: float
    created_at: datetime
    waiting_since: datetime
    ended_at: datetime | None
    last_platform: str | None


@dataclass(frozen=True)
class SessionRow:
    """One session, live or over."""

    id: int
    job_id: str
    token: int
    platform: str
    name: str
    state: SessionState
    handle: str | None
    link: str | None
    budget_s: float
    hold_s: float
    launched_at: datetime
    started_at: datetime | None
    limit_at: datetime
    ended_at: datetime | None
    beat_seq: int
    beat_at: datetime | None
    phase: str
    speed: float
    device: str
    start_step: int
    step: int
    sealed_seq: int | None
    saved_step: int
    reason: Reason | None
    detail: str


@dataclass(frozen=True)
class EventRow:
    """One line of a job's history."""

    id: int
    at: datetime
    job_id: str | None
    action: str
    text: str


@dataclass(frozen=True)
class Cooldown:
    """No launches on a platform before `until`."""

    platform: str
    until: datetime
    text: str
    times: int


@dataclass(frozen=True)
class Pin:
    """A checkpoint that stays: `place` is (token, seq), `holder` the user or a fork."""

    place: tuple[int, int]
    holder: str
    at: datetime


@dataclass(frozen=True)
class Stock:
    """What a job held in the store at a look: objects and bytes of one kind."""

    kind: str
    objects: int
    bytes: int
    at: datetime


@dataclass(frozen=True)
class Freed:
    """What a sweep removed."""

    at: datetime
    why: str
    objects: int
    bytes: int


def job_row(row: Any) -> JobRow:
    values = dict(row._mapping)
    values["state"] = JobState(values["state"])
    values["wish"] = Wish(values["wish"])
    values["reason"] = Reason(values["reason"]) if values["reason"] else None
    return JobRow(**values)


def session_row(row: Any) -> SessionRow:
    values = dict(row._mapping)
    values["state"] = SessionState(values["state"])
    values["reason"] = Reason(values["reason"]) if values["reason"] else None
    return SessionRow(**values)
