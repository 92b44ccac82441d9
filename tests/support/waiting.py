"""Waiting for a condition, bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(
    condition: Callable[[], T], timeout_s: float = 30.0, what: str = "the condition", pause_s: float = 0.002
) -> T:
    """The first true value of the condition. Raises AssertionError when it stays false."""
    end = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"{what} did not come true within {timeout_s} s"
        time.sleep(pause_s)
