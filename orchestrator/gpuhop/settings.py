"""The one reader of the environment and of config.toml. Everything else gets a frozen Settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuhop.errors import InvalidInput

_KEYS = {"store", "platforms", "lab", "tick_s"}
_LAB_KEYS = {"hour_s", "mean_life_h", "seed"}


@dataclass(frozen=True)
class LabSettings:
    """Turns the simulated platforms on. `hour_s`: real seconds that a lab hour takes."""

    hour_s: float
    mean_life_h: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Settings:
    """`home`: gpuhop's own folder. `store`: a URL or folder. `platforms`: rows of config.toml over the catalog.
    `environ`: passed to stores and platforms that need credentials; its values are never shown."""

    home: Path
    store: str
    platforms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lab: LabSettings | None = None
    tick_s: float | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def database(self) -> Path:
        return self.home / "ledger.sqlite"

    @property
    def config(self) -> Path:
        return self.home / "config.toml"


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """GPUHOP_HOME (default ~/.gpuhop), GPUHOP_STORE, and <home>/config.toml. Raises InvalidInput."""
    env = dict(os.environ if environ is None else environ)
    home = Path(env.get("GPUHOP_HOME") or Path.home() / ".gpuhop").absolute()
    table = _read(home / "config.toml")
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise InvalidInput(
            f"{home / 'config.toml'} has the unknown key {unknown[0]!r}", f"known: {', '.join(sorted(_KEYS))}"
        )
    return Settings(
        home=home,
        store=env.get("GPUHOP_STORE") or str(table.get("store") or home / "store"),
        platforms=table.get("platforms", {}),
        lab=_lab(table.get("lab"), home),
        tick_s=table.get("tick_s"),
        environ=env,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}", f"edit {path}") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", f"ls -l {path}") from error


def _lab(row: Mapping[str, Any] | None, home: Path) -> LabSettings | None:
    if row is None:
        return None
    unknown = set(row) - _LAB_KEYS
    hour = row.get("hour_s", 2.0)
    if unknown or not isinstance(hour, int | float) or hour <= 0:
        raise InvalidInput(f"{home / 'config.toml'}: [lab] is not understood: {dict(row)}", "[lab]\nhour_s = 2.0")
    return LabSettings(float(hour), row.get("mean_life_h"), int(row.get("seed", 0)))
