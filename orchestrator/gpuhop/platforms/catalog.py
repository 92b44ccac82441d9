"""Platforms' allowances as data: TOML tables -> Profile. Hours in the file, seconds in the program."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gpuhop.domain.quota import Window, WindowKind
from gpuhop.domain.world import Profile
from gpuhop.errors import InvalidInput

_HOURS = {"max_session_h": "max_session_s", "open_h": "open_s"}
_WINDOW = {"kind", "amount_h", "period_h", "weekday", "hour"}
_PLAIN = {field.name for field in fields(Profile)} - {"name", "window", "max_session_s", "open_s"}


def shipped() -> dict[str, Profile]:
    """The catalog that comes with gpuhop."""
    return load((Path(__file__).parent / "catalog.toml").read_text(), "catalog.toml")


def load(text: str, filename: str) -> dict[str, Profile]:
    """All tables of one file. Raises InvalidInput naming the file and the key."""
    return {name: profile(name, row, filename) for name, row in tomllib.loads(text).items()}


def profile(name: str, row: Mapping[str, Any], filename: str, base: Profile | None = None) -> Profile:
    """One platform; `base`: the row that is overridden, None for a new one."""
    values: dict[str, Any] = {}
    for key, value in row.items():
        if key in _HOURS:
            values[_HOURS[key]] = _number(name, key, value, filename) * 3600.0
        elif key == "window":
            values["window"] = _window(name, value, filename)
        elif key in _PLAIN:
            values[key] = value
        else:
            known = ", ".join(sorted([*_HOURS, *_PLAIN, "window"]))
            raise InvalidInput(f"{filename}: [{name}] has the unknown key {key!r}", f"use one of: {known}")
    if base is not None:
        return replace(base, **values)
    missing = [key for key in ("adapter", "max_session_s") if key not in values]
    if missing:
        raise InvalidInput(f"{filename}: [{name}] lacks {', '.join(missing)}", "see docs/platforms.md")
    return Profile(name=name, **values)


def _window(name: str, row: Mapping[str, Any], filename: str) -> Window:
    unknown = set(row) - _WINDOW
    if unknown or row.get("kind") not in [kind.value for kind in WindowKind]:
        kinds = ", ".join(kind.value for kind in WindowKind)
        raise InvalidInput(f"{filename}: [{name}] window is not understood: {dict(row)}", f"kind = one of {kinds}")
    amount = row.get("amount_h")
    return Window(
        kind=WindowKind(row["kind"]),
        amount_s=None if amount is None else _number(name, "amount_h", amount, filename) * 3600.0,
        period_s=_number(name, "period_h", row.get("period_h", 168.0), filename) * 3600.0,
        weekday=int(row.get("weekday", 5)),
        hour=int(row.get("hour", 0)),
    )


def _number(name: str, key: str, value: Any, filename: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidInput(f"{filename}: [{name}] {key} must be a number of hours, not {value!r}", "for example: 12.0")
    return float(value)
