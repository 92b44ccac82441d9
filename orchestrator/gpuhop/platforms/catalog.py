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
_PLAIN = {field.name: str(field.type) for field in fields(Profile)}
for _own in ("name", "window", "max_session_s", "open_s"):
    del _PLAIN[_own]
_KINDS: dict[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "bool": (bool,), "str": (str,)}


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
            values[key] = _plain(name, key, value, filename)
        else:
            known = ", ".join(sorted([*_HOURS, *_PLAIN, "window"]))
            raise InvalidInput(f"{filename}: [{name}] has the unknown key {key!r}", f"use one of: {known}")
    if base is not None:
        return replace(base, **values)
    missing = [key for key in ("adapter", "max_session_s") if key not in values]
    if missing:
        raise InvalidInput(f"{filename}: [{name}] lacks {', '.join(missing)}", "see docs/platforms.md")
    return Profile(name=name, **values)


def _plain(name: str, key: str, value: Any, filename: str) -> Any:
    kind = _PLAIN[key]
    right = isinstance(value, _KINDS[kind]) and (isinstance(value, bool) is (kind == "bool"))
    if not right or (kind in ("int", "float") and not 0 <= value < float("inf")):
        words = {"float": "a number, 0 or more", "int": "a whole number, 0 or more", "bool": "true or false"}
        raise InvalidInput(f"{filename}: [{name}] {key} cannot be {value!r}", f"give {words.get(kind, 'text')}")
    return float(value) if kind == "float" else value


def _window(name: str, row: Any, filename: str) -> Window:
    if not isinstance(row, Mapping):
        raise InvalidInput(f"{filename}: [{name}] window must be a table, not {row!r}", 'window = { kind = "none" }')
    unknown = set(row) - _WINDOW
    if unknown or row.get("kind") not in [kind.value for kind in WindowKind]:
        kinds = ", ".join(kind.value for kind in WindowKind)
        raise InvalidInput(f"{filename}: [{name}] window is not understood: {dict(row)}", f"kind = one of {kinds}")
    amount = row.get("amount_h")
    return Window(
        kind=WindowKind(row["kind"]),
        amount_s=None if amount is None else _number(name, "amount_h", amount, filename) * 3600.0,
        period_s=_number(name, "period_h", row.get("period_h", 168.0), filename) * 3600.0,
        weekday=_below(name, "weekday", row.get("weekday", 5), 7, filename),
        hour=_below(name, "hour", row.get("hour", 0), 24, filename),
    )


def _below(name: str, key: str, value: Any, limit: int, filename: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise InvalidInput(f"{filename}: [{name}] {key} cannot be {value!r}", f"give 0 to {limit - 1}")
    return value


def _number(name: str, key: str, value: Any, filename: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InvalidInput(f"{filename}: [{name}] {key} must be a number of hours, not {value!r}", "for example: 12.0")
    return float(value)
