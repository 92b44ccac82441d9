"""Which checkpoints stay: one rule for the scheduler (over a whole job) and for a session (over its own).

`chosen` picks the best of groups by fixed orders. So what it picks of all checkpoints it also picks of any part of them
that holds it: a session that keeps what `chosen` says of its own never removes what the scheduler would keep, and
removing in many small turns ends where removing once would.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import math
from typing import Any, Dict, Iterable, List, Optional, Tuple

from gpuhop_worker.wire import Grant

Place = Tuple[int, int]  # token, seq

LAST = "last"
EVERY = "every"
BEST = "best"


@dataclasses.dataclass(frozen=True)
class Best:
    """The `count` checkpoints with the least (`min`) or greatest (`max`) value of a logged metric."""

    metric: str
    mode: str = "min"
    count: int = 1


@dataclasses.dataclass(frozen=True)
class Keep:
    """The newest `last`; the first at or after each multiple of `every_steps` steps; the best by a metric."""

    last: int = 3
    every_steps: Optional[int] = None
    best: Optional[Best] = None


@dataclasses.dataclass(frozen=True)
class Saved:
    """One readable checkpoint. `measured`: (step, value) of the newest logged value of the metric at or before it."""

    place: Place
    step: int
    measured: Optional[Tuple[int, float]] = None


def of_grant(grant: Grant) -> Keep:
    best = grant.keep_best
    return Keep(
        grant.keep, grant.keep_every, None if best is None else Best(best["metric"], best["mode"], best["count"])
    )


def chosen(found: Iterable[Saved], keep: Keep) -> Dict[Place, List[str]]:
    """place -> why it stays (LAST, EVERY, BEST), for those that stay."""
    newest_first = sorted(found, key=lambda one: one.place, reverse=True)
    why: Dict[Place, List[str]] = {}
    for word, picked in (
        (LAST, newest_first[: keep.last]),
        (EVERY, _spaced(newest_first, keep.every_steps)),
        (BEST, _best(newest_first, keep.best)),
    ):
        for one in picked:
            why.setdefault(one.place, []).append(word)
    return why


def _spaced(newest_first: List[Saved], every: Optional[int]) -> List[Saved]:
    """Saves seldom fall on a multiple itself: the first one at or after it stands for it. Of equal steps (a session
    began again further back) the newest."""
    first: Dict[int, Saved] = {}
    for one in newest_first if every else ():
        assert every is not None
        window = one.step // every
        if window and (window not in first or one.step < first[window].step):
            first[window] = one
    return list(first.values())


def _best(newest_first: List[Saved], best: Optional[Best]) -> List[Saved]:
    """A value belongs to the first checkpoint at or after it: later ones were not measured yet. Of equal values the
    earlier one."""
    first: Dict[Tuple[int, float], Saved] = {}
    for one in newest_first if best is not None else ():
        value = one.measured
        if value is not None and math.isfinite(value[1]) and (value not in first or one.step < first[value].step):
            first[value] = one
    if best is None:
        return []
    sign = -1.0 if best.mode == "max" else 1.0
    ranked = sorted(first, key=lambda value: (sign * value[1], value[0]))
    return [first[value] for value in ranked[: best.count]]


# ---------------------------------------------------------------- what was measured


class Measurements:
    """The values of one metric, by step. Lines of a metrics stream are added in their order."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._name = json.dumps(metric).encode("ascii")
        self._steps: List[int] = []
        self._values: List[float] = []

    def add(self, line: bytes) -> None:
        """A line of JSON; one without the metric, or without a number for it, adds nothing. A cut (R51) cuts."""
        is_cut = b'"~cut"' in line
        if not is_cut and self._name not in line:
            return
        try:
            row = json.loads(line)
            if is_cut:
                self.cut(row["step"])
                return
            step, value = row["step"], row[self._metric]
            if not isinstance(step, int) or isinstance(value, bool) or not isinstance(value, (int, float)):
                return
            number = float(value)
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        self.cut(step)  # the same step logged twice: the last word counts
        self._steps.append(step)
        self._values.append(number)

    def cut(self, step: int) -> None:
        """Forget what was measured at `step` and later: another session trains these steps (format.md R50)."""
        at = bisect.bisect_left(self._steps, step)
        del self._steps[at:], self._values[at:]

    def before(self, step: int) -> Optional[Tuple[int, float]]:
        """The newest value of a state in which `step` steps are completed: lines carry the index of their step."""
        at = bisect.bisect_left(self._steps, step)
        return (self._steps[at - 1], self._values[at - 1]) if at else None


class MeasuredFile:
    """Measurements of a metrics file that grows."""

    def __init__(self, path: str, metric: str) -> None:
        self._path = path
        self._read = 0
        self._found = Measurements(metric)

    def before(self, step: int) -> Optional[Tuple[int, float]]:
        """As Measurements.before, of all whole lines that are written so far."""
        try:
            with open(self._path, "rb") as source:
                source.seek(self._read)
                data = source.read()
        except FileNotFoundError:
            return None
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        for line in data.splitlines():
            self._found.add(line)
        return self._found.before(step)


# ---------------------------------------------------------------- as JSON


def as_json(keep: Keep) -> Any:
    """A whole number where only `last` is set, as job.yaml has it; else an object."""
    return keep.last if keep == Keep(keep.last) else dataclasses.asdict(keep)


def from_json(data: Any) -> Keep:
    """Raises TypeError, ValueError or KeyError for what as_json never makes."""
    if isinstance(data, int) and not isinstance(data, bool):
        return Keep(data)
    if not isinstance(data, dict):
        raise TypeError(f"expected a number or an object for keep, got {data!r}")
    best = data["best"]
    if best is not None and best["mode"] not in ("min", "max"):
        raise ValueError("no mode {!r} of the best checkpoints".format(best["mode"]))
    found = Keep(
        data["last"],
        data["every_steps"],
        None if best is None else Best(str(best["metric"]), best["mode"], best["count"]),
    )
    numbers = [found.last, found.every_steps, found.best.count if found.best else None]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 1 for one in numbers if one is not None):
        raise TypeError(f"expected whole numbers in keep, got {data!r}")
    return found
