"""Where a session keeps things on its machine's disk."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Places:
    """`root`: the session's own folder."""

    root: str

    def at(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def make(self) -> None:
        """All folders. Raises OSError."""
        for folder in (self.spool, self.at("ctl"), self.code):
            os.makedirs(folder, exist_ok=True)

    @property
    def claimed(self) -> str:
        """Made by the first session that runs here; it runs once."""
        return self.at("claimed")

    @property
    def lib(self) -> str:
        """Packages that the worker installed for itself."""
        return self.at("lib")

    @property
    def code(self) -> str:
        return self.at("code")

    @property
    def spool(self) -> str:
        """Snapshots that wait to be shipped."""
        return self.at("spool")

    @property
    def session(self) -> str:
        """What the session API reads when the command begins."""
        return self.at("ctl", "session.json")

    @property
    def manifest(self) -> str:
        """Of the state that the command begins with."""
        return self.at("ctl", "manifest.json")

    @property
    def metrics(self) -> str:
        return self.at("ctl", "metrics.jsonl")

    @property
    def claim(self) -> str:
        """Which process of the command trains."""
        return self.metrics + ".claim"

    @property
    def progress(self) -> str:
        return self.at("ctl", "progress.json")

    @property
    def pace(self) -> str:
        """Before when the session API takes no snapshot."""
        return self.at("ctl", "pace")

    @property
    def drain(self) -> str:
        """Its presence asks the session API to save and leave."""
        return self.at("ctl", "drain")
