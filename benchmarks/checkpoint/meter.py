"""Clocks. Wall time beside CPU time: on a shared machine only the second one can be trusted alone."""

from __future__ import annotations

import gc
import importlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """Seconds: wall, CPU of the calling thread, CPU of the whole process."""

    wall: float
    thread: float
    process: float


class Clock:
    """`with Clock() as c: ...; c.sample`"""

    sample: Sample

    def __enter__(self) -> Clock:
        self._process, self._thread, self._wall = time.process_time(), time.thread_time(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        wall = time.perf_counter() - self._wall
        self.sample = Sample(wall, time.thread_time() - self._thread, time.process_time() - self._process)


class Series:
    """Samples by method, taken in turns so that a change of load meets all of them."""

    def __init__(self) -> None:
        self.of: dict[str, list[Sample]] = defaultdict(list)

    def take(self, name: str, act: Callable[[], object]) -> None:
        gc.collect()
        with Clock() as clock:
            act()
        self.of[name].append(clock.sample)

    def wall(self, name: str) -> float:
        return median(s.wall for s in self.of[name])

    def cpu(self, name: str) -> float:
        return median(s.process for s in self.of[name])

    def thread(self, name: str) -> float:
        return median(s.thread for s in self.of[name])

    def __contains__(self, name: str) -> bool:
        return bool(self.of.get(name))


def median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else float("nan")


def optional(name: str) -> Any:
    """A package, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
