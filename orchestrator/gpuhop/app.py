"""The composition root: Settings -> live objects. The only place that knows which class stands behind a port."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from gpuhop.clock import Clock, LabClock, SystemClock
from gpuhop.db.connect import Database
from gpuhop.domain.world import Profile
from gpuhop.engine.parts import Parts
from gpuhop.errors import InvalidInput
from gpuhop.platforms.base import Platform
from gpuhop.settings import LabSettings, Settings
from gpuhop.stores.base import Store

log = logging.getLogger("gpuhop")


@dataclass(frozen=True)
class App:
    """Opened piece by piece: a command that only reads the ledger loads no store and no platform."""

    settings: Settings
    db: Database
    clock: Clock

    @property
    def time_scale(self) -> float:
        return self.clock.scale if isinstance(self.clock, LabClock) else 1.0

    @cached_property
    def store(self) -> Store:
        from gpuhop.stores.registry import open_store

        return open_store(self.settings.store, self.settings.environ)

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """The catalog, with the lab's rows when it is on, under the user's own rows."""
        return profiles(self.settings)

    @cached_property
    def platforms(self) -> dict[str, Platform]:
        """Those that can be made; one bad row disables itself alone, and `doctor` names it."""
        found = {}
        for name, profile in self.profiles.items():
            try:
                found[name] = self._platform(profile)
            except InvalidInput as error:
                log.warning("%s", error.fact, extra={"action": "platform-broken"})
        return found

    def _platform(self, profile: Profile) -> Platform:
        module, _, name = profile.adapter.partition(":")
        try:
            adapter = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise InvalidInput(f"platform {profile.name}: no adapter {profile.adapter!r}", "gpuhop doctor") from error
        folder = self.settings.home / "sessions" / profile.name
        if self.settings.lab is not None and isinstance(self.clock, LabClock) and module.startswith("gpuhop.lab"):
            from gpuhop.lab.platform import Habits

            life = self.settings.lab.mean_life_h
            habits = Habits(None if life is None else life * 3600.0, self.settings.lab.seed)
            platform: Platform = adapter(profile, folder, self.settings.environ, self.clock, habits)
        else:
            platform = adapter(profile, folder, self.settings.environ)
        return platform

    @cached_property
    def parts(self) -> Parts:
        """Everything the engine needs. Writes the worker bundle to this machine and to the store."""
        from gpuhop.platforms.bundle import build
        from gpuhop_worker.wire import bundle_key

        bundle = build()
        key = bundle_key(bundle.sha256)
        path = self.settings.home / key
        if not path.exists():
            _write_whole(path, bundle.body)
        if not any(entry.size == len(bundle.body) for entry in self.store.list(key)):
            self.store.put(key, bundle.body)
        return Parts(self.db, self.store, self.platforms, self.clock, str(path), key, self.time_scale)

    @cached_property
    def store_parts(self) -> Parts:
        """For work on the store and the ledger alone: no platform is loaded, no worker bundle built."""
        return Parts(self.db, self.store, {}, self.clock, "", "", self.time_scale)

    @property
    def tick_s(self) -> float:
        """Real seconds between ticks."""
        if self.settings.tick_s is not None:
            return self.settings.tick_s
        return 0.25 if self.settings.lab is not None else 2.0


def _write_whole(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_suffix(".tmp")
    temp.write_bytes(body)
    temp.replace(path)


def profiles(settings: Settings) -> dict[str, Profile]:
    """Raises InvalidInput for a row that cannot be used."""
    from gpuhop.platforms import catalog

    known = catalog.shipped()
    if settings.lab is not None:
        from gpuhop.lab.platform import profiles as lab_profiles

        # In the lab only simulated platforms run: their clock is not the machine's.
        known = {name: _paced(profile, settings.lab) for name, profile in lab_profiles().items()}
    for name, row in settings.platforms.items():
        row = dict(row)
        if not row.pop("enabled", True):
            known.pop(name, None)
            continue
        known[name] = catalog.profile(name, row, str(settings.config), known.get(name))
    return known


def _paced(profile: Profile, lab: LabSettings) -> Profile:
    """Beats, graces and margins that make sense at the lab's speed: given as real seconds, turned into lab time."""
    scale = 3600.0 / lab.hour_s
    return replace(
        profile,
        start_s=2.5 * scale,
        grace_s=0.8 * scale,
        margin_s=0.5 * scale,
        min_chunk_s=1.0 * scale,
        beat_s=0.25 * scale,
        log_s=0.25 * scale,
        lease_s=4.0 * scale,
    )


def make_clock(settings: Settings) -> Clock:
    """The machine's clock, or the lab's: its beginning is kept in <home>/lab-clock, so that restarts agree."""
    if settings.lab is None:
        return SystemClock()
    path = settings.home / "lab-clock"
    if not path.exists():
        settings.home.mkdir(parents=True, exist_ok=True)
        path.write_text(repr(time.time()))
    real = float(path.read_text())
    return LabClock(3600.0 / settings.lab.hour_s, datetime.fromtimestamp(int(real), UTC), real)


@contextmanager
def opened(settings: Settings) -> Iterator[App]:
    """The application on an up-to-date database. Raises DatabaseError, InvalidInput."""
    from gpuhop.db.migrate import open_database

    db = open_database(settings.database)
    try:
        yield App(settings, db, make_clock(settings))
    finally:
        db.close()
