"""JobSpec <-> what JSON can hold, exactly; for the ledger and for spec.json in the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar, cast

from gpuhop.domain.job import Checkpoint, CheckpointMode, Every, JobSpec, Limits, Resources, Target
from gpuhop.errors import InvalidInput
from gpuhop_worker import retention

VERSION = 1


def encode(spec: JobSpec) -> dict[str, object]:
    """A dict of str, int, float, bool, None, lists and dicts. Equal specs give equal dicts.

    {"version": 1, "name", "code", "run", "setup", "target": {...}, "checkpoint": {..., "every": {...}, "keep": as
    gpuhop_worker.retention.as_json has it}, "resources": {...}, "platforms": [...], "limits": {"gpu_hours", "deadline":
    ISO in UTC}, "priority", "env": [[name, value], ...], "secrets": [...], "outputs": [...], "progress"}. Times and
    sizes are floats, whatever they were made from.
    """
    target, kept, needs, limits = spec.target, spec.checkpoint, spec.resources, spec.limits
    every = {"steps": kept.every.steps, "seconds": _float(kept.every.seconds), "auto": kept.every.auto}
    return {
        "version": VERSION,
        "name": spec.name,
        "code": spec.code,
        "setup": spec.setup,
        "run": spec.run,
        "target": {"steps": target.steps, "epochs": target.epochs, "until_exit": target.until_exit},
        "checkpoint": {
            "mode": kept.mode,
            "folder": kept.folder,
            "every": every,
            "keep": retention.as_json(kept.keep),
            **({"read_back": True} if kept.read_back else {}),  # specs of before had no such key
        },
        "resources": {
            "gpu": needs.gpu,
            "gpu_count": needs.gpu_count,
            "gpu_memory_gb": _float(needs.gpu_memory_gb),
            "disk_gb": _float(needs.disk_gb),
        },
        "platforms": list(spec.platforms),
        "limits": {
            "gpu_hours": _float(limits.gpu_hours),
            "deadline": None if limits.deadline is None else limits.deadline.astimezone(UTC).isoformat(),
        },
        "priority": spec.priority,
        "env": [[name, value] for name, value in spec.env],
        "secrets": list(spec.secrets),
        "outputs": list(spec.outputs),
        "progress": spec.progress,
    }


def decode(data: Mapping[str, object]) -> JobSpec:
    """The spec that `encode` was given. Raises InvalidInput: another version, a missing key, a wrong type."""
    if data.get("version") != VERSION:
        raise InvalidInput(
            f"this spec has version {data.get('version')!r}, and this gpuhop reads version {VERSION}",
            "pip install -U gpuhop",
        )
    try:
        return _decode(_Fields(data))
    except (KeyError, TypeError, ValueError) as wrong:
        raise InvalidInput(f"this stored spec is damaged: {wrong!r}", "gpuhop submit job.yaml") from None


def loads(text: str) -> JobSpec:
    """The spec from the ledger's text. Raises as decode, and ValueError for what is no JSON."""
    return decode(json.loads(text))


def spec_hash(spec: JobSpec) -> str:
    """SHA-256, in hex, of the encoded spec; equal specs have equal hashes, on every machine and Python."""
    text = json.dumps(encode(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


T = TypeVar("T")


def _is(value: object, kind: type[T]) -> T:
    # bool is an int in Python, and never one in a spec.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _mode(value: str) -> CheckpointMode:
    if value not in ("api", "folder"):
        raise ValueError(f"no checkpoint mode {value!r}")
    return cast(CheckpointMode, value)


class _Fields:
    """Typed access to a decoded JSON object. KeyError for what is missing, TypeError for what is of another type."""

    def __init__(self, data: object) -> None:
        if not isinstance(data, Mapping):
            raise TypeError(f"expected an object, got {data!r}")
        self._data = data

    def has(self, name: str) -> bool:
        return name in self._data

    def value(self, name: str) -> object:
        return self._data[name]

    def sub(self, name: str) -> _Fields:
        return _Fields(self._data[name])

    def text(self, name: str) -> str:
        return _is(self._data[name], str)

    def text_or_none(self, name: str) -> str | None:
        return None if self._data[name] is None else self.text(name)

    def boolean(self, name: str) -> bool:
        return _is(self._data[name], bool)

    def integer(self, name: str) -> int:
        return _is(self._data[name], int)

    def integer_or_none(self, name: str) -> int | None:
        return None if self._data[name] is None else self.integer(name)

    def float_or_none(self, name: str) -> float | None:
        return None if self._data[name] is None else _is(self._data[name], float)

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(_is(item, str) for item in _is(self._data[name], list))

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        rows = [_is(item, list) for item in _is(self._data[name], list)]
        return tuple((_is(left, str), _is(right, str)) for left, right in rows)


def _decode(top: _Fields) -> JobSpec:
    target, kept, needs, limits = (top.sub(n) for n in ("target", "checkpoint", "resources", "limits"))
    every, deadline = kept.sub("every"), limits.text_or_none("deadline")
    return JobSpec(
        name=top.text("name"),
        code=top.text("code"),
        setup=top.text_or_none("setup"),
        run=top.text("run"),
        target=Target(target.integer_or_none("steps"), target.integer_or_none("epochs"), target.boolean("until_exit")),
        checkpoint=Checkpoint(
            _mode(kept.text("mode")),
            kept.text_or_none("folder"),
            Every(every.integer_or_none("steps"), every.float_or_none("seconds"), every.boolean("auto")),
            retention.from_json(kept.value("keep")),
            kept.has("read_back") and kept.boolean("read_back"),
        ),
        resources=Resources(
            needs.boolean("gpu"),
            needs.integer("gpu_count"),
            needs.float_or_none("gpu_memory_gb"),
            needs.float_or_none("disk_gb"),
        ),
        platforms=top.texts("platforms"),
        limits=Limits(
            limits.float_or_none("gpu_hours"),
            None if deadline is None else datetime.fromisoformat(deadline).astimezone(UTC),
        ),
        priority=top.integer("priority"),
        env=top.pairs("env"),
        secrets=top.texts("secrets"),
        outputs=top.texts("outputs"),
        progress=top.text_or_none("progress"),
    )
