"""Simulated platforms: real processes with a session length, slots, a quota window, refusals and silent deaths.

The folder is the "service": its count of hours is independent of our ledger, so tests can compare the two. Refusal
texts for kaggle are those that its live API was seen to send (facts on Kaggle, section 6).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from gpuhop.clock import LabClock
from gpuhop.domain import quota
from gpuhop.domain.judge import Phase
from gpuhop.domain.world import Profile
from gpuhop.platforms import catalog, host
from gpuhop.platforms.base import Handle, LaunchRequest, RefusalKind, Refused, Rendered, RunState, Usage
from gpuhop.platforms.local import LocalPlatform, kill, start_host, state_of, stop

_SLOTS_TEXT = {"kaggle": "Maximum batch GPU session count of {slots} reached."}
_QUOTA_TEXT = {"kaggle": "Maximum weekly GPU quota of {hours:.2f} hours reached."}


def profiles() -> dict[str, Profile]:
    """The four shipped lab platforms, in lab seconds."""
    return catalog.load((Path(__file__).parent / "platforms.toml").read_text(), "lab/platforms.toml")


@dataclass(frozen=True)
class Habits:
    """How a simulated service misbehaves. `mean_life_s`: sessions die silently, exponentially, None: never."""

    mean_life_s: float | None = None
    seed: int = 0


class LabPlatform:
    """One simulated service in one folder. Times are lab time; its processes run in real time."""

    def __init__(
        self, profile: Profile, folder: Path, environ: Mapping[str, str], clock: LabClock, habits: Habits | None = None
    ) -> None:
        self._profile = profile
        self._folder = folder
        self._environ = environ
        self._clock = clock
        self._habits = habits or Habits()
        self._local = LocalPlatform(profile, folder, environ)

    @property
    def profile(self) -> Profile:
        return self._profile

    def render(self, request: LaunchRequest) -> Rendered:
        """The session's real limit is its lab limit by the clock's scale; a silent death is drawn from its name."""
        real_limit = request.limit_s / self._clock.scale
        rendered = self._local.render(replace(request, limit_s=real_limit))
        title = f"a simulated {self._profile.name} session, at most {request.limit_s / 3600:.1f} lab hours"
        return replace(rendered, title=title, fields={**rendered.fields, "kill_s": self._death(request.name)})

    def _death(self, name: str) -> float | None:
        if self._habits.mean_life_s is None:
            return None
        draw = random.Random(f"{self._habits.seed}/{name}")  # noqa: S311  chance, not secrecy
        return draw.expovariate(1.0 / self._habits.mean_life_s) / self._clock.scale

    def launch(self, rendered: Rendered) -> Handle:
        work = self._folder / rendered.name
        if not (work / "session.json").exists():
            self._admit()
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
            host.note(str(work), "session.json", dict(rendered.fields))
        if self._profile.attended:
            return Handle(rendered.name, f"lab://{self._profile.name}/{rendered.name}")
        if not (work / "claimed").exists():
            start_host(work, self._environ)
        return Handle(rendered.name)

    def press(self, name: str) -> None:
        """What a person does on an attended platform: open the notebook, run all."""
        work = self._folder / name
        if (work / "session.json").exists() and not (work / "claimed").exists():
            start_host(work, self._environ)

    def waiting(self) -> list[str]:
        """Names of sessions that nobody has opened yet."""
        return [work.name for work in self._works() if not (work / "claimed").exists()]

    def _works(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(work for work in self._folder.iterdir() if (work / "session.json").exists())

    def _admit(self) -> None:
        profile = self._profile
        running = [work for work in self._works() if self._state(work).phase in (Phase.RUNNING, Phase.QUEUED)]
        if len(running) >= profile.slots:
            text = _SLOTS_TEXT.get(profile.name, "all {slots} sessions of this account are in use")
            raise Refused(RefusalKind.SLOTS, text.format(slots=profile.slots))
        now = self._clock.now()
        charges = self.charges(now)
        amount = profile.window.amount_s
        if amount is not None and quota.used(profile.window, charges, now) >= amount:
            text = _QUOTA_TEXT.get(profile.name, "usage limit of {hours:.2f} hours reached")
            until = quota.refill_at(profile.window, charges, now)
            raise Refused(RefusalKind.EXHAUSTED, text.format(hours=amount / 3600), until)

    def charges(self, now: datetime) -> list[quota.Charge]:
        """The service's own books: one row per session that has run, to the moment it ended."""
        rows = []
        for work in self._works():
            state = self._state(work)
            if state.started_at is not None:
                end = state.ended_at or now
                rows.append(quota.Charge(state.started_at, end, (end - state.started_at) / timedelta(seconds=1)))
        return rows

    def _state(self, work: Path) -> RunState:
        found = state_of(work)
        if found.phase is Phase.GONE and found.started_at is not None and found.ended_at is None:
            # The machine vanished, its keeper with it: the service closes its books when it notices.
            host.note(str(work), "ended.json", {"at": time.time(), "code": None, "why": "vanished"})
            found = state_of(work)
        if found.phase is Phase.QUEUED and self._profile.attended and not (work / "claimed").exists():
            return replace(found, phase=Phase.AWAITING)
        return replace(found, started_at=self._lab(found.started_at), ended_at=self._lab(found.ended_at))

    def _lab(self, real: datetime | None) -> datetime | None:
        return None if real is None else self._clock.at(real.timestamp())

    def poll(self, handle: Handle) -> RunState:
        return self._state(self._folder / handle.id)

    def stop(self, handle: Handle) -> None:
        stop(self._folder / handle.id)

    def logs(self, handle: Handle) -> Iterator[str]:
        yield from self._local.logs(handle)

    def usage(self, now: datetime) -> Usage | None:
        return Usage(quota.used(self._profile.window, self.charges(now), now))

    def kill(self, name: str) -> bool:
        """A silent SIGKILL of everything in the session, as a vanishing machine does. False: it was not running."""
        return kill(self._folder / name)
