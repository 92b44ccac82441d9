"""The live objects that the engine works with, handed in by gpuhop.app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuhop.clock import Clock
from gpuhop.db.connect import Database
from gpuhop.domain.retention import GRACE_S
from gpuhop.errors import NotFound
from gpuhop.platforms.base import Platform
from gpuhop.stores.base import Store


@dataclass(frozen=True)
class Parts:
    """`bundle_path`: the worker zipapp on this machine; `time_scale`: seconds of `clock` per real second;
    `grace_s`: see domain.retention.GRACE_S."""

    db: Database
    store: Store
    platforms: Mapping[str, Platform]
    clock: Clock
    bundle_path: str
    bundle_key: str
    time_scale: float = 1.0
    grace_s: float = GRACE_S

    def platform(self, name: str) -> Platform:
        """Raises NotFound for a platform that was removed from the configuration."""
        if name not in self.platforms:
            raise NotFound(f"the platform {name} is not configured any more", "gpuhop doctor")
        return self.platforms[name]
