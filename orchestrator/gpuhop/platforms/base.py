"""The port to a platform: what every adapter does, in six methods. An adapter is one file.

Adapters are synchronous and hold no state that matters. The engine calls them one after the other, so each call sets
its own time-outs and is over within a minute; what it raises beyond Refused is taken for a failed call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from gpuhop.domain.judge import Phase
from gpuhop.domain.world import Profile


class RefusalKind(StrEnum):
    """Why a platform did not take a session, and what to do: the engine's whole policy hangs on this."""

    SLOTS = "slots"  # all slots taken: wait for one
    EXHAUSTED = "exhausted"  # the quota is used up until `until`
    CAPACITY = "capacity"  # no machine free: cool down, growing pauses
    NOT_ENTITLED = "not-entitled"  # this account may not have it
    BLOCKED = "blocked"  # the account is blocked: stop and tell
    CREDENTIALS = "credentials"  # broken or expired: stop and tell
    BROKEN = "broken"  # the service itself fails


class Refused(Exception):
    """The platform said no, in `text`. No session exists."""

    def __init__(self, kind: RefusalKind, text: str, until: datetime | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.until = until


@dataclass(frozen=True)
class LaunchRequest:
    """What a session is to run. `grant_url` gives the grant, `bundle` is the worker zipapp's path on this machine,
    `bundle_url` its address in the store. `secrets`: names only. `limit_s`: the session's own limit."""

    name: str
    grant_url: str
    bundle: str
    bundle_url: str
    limit_s: float
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rendered:
    """Exactly what would be sent, printable: no secret's value is ever in it. `body`: the adapter's own text."""

    name: str
    title: str
    body: str
    fields: Mapping[str, object]


@dataclass(frozen=True)
class Handle:
    """The platform's own name for a session. `link`: what a person must open (attended platforms)."""

    id: str
    link: str | None = None


@dataclass(frozen=True)
class RunState:
    """What the platform says now. It never guesses: what it does not know is None or UNKNOWN."""

    phase: Phase
    started_at: datetime | None = None
    ended_at: datetime | None = None
    note: str = ""


@dataclass(frozen=True)
class Usage:
    """The platform's own figure: seconds used in the current window."""

    used_s: float


class Platform(Protocol):
    """A place that grants sessions."""

    @property
    def profile(self) -> Profile: ...

    def render(self, request: LaunchRequest) -> Rendered:
        """Pure and printable."""
        ...

    def launch(self, rendered: Rendered) -> Handle:
        """Start it. Idempotent by `rendered.name`: a second call for a name that was taken gives the same handle and
        starts nothing, so a lost answer or a crash is repaired by calling again. Raises Refused."""
        ...

    def poll(self, handle: Handle) -> RunState:
        """The state now. An unknown handle is GONE; a failed call is UNKNOWN."""
        ...

    def stop(self, handle: Handle) -> None:
        """End it now, without a warning. Silent for an unknown handle; returns at once."""
        ...

    def logs(self, handle: Handle) -> Iterator[str]:
        """What the platform itself kept of the session's output, or one line that says it keeps none."""
        ...

    def usage(self, now: datetime) -> Usage | None:
        """The platform's own count, None where it publishes none."""
        ...
