"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.engine import quick_folder


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder that does not exist yet, in memory where that is possible."""
    with quick_folder() as folder:
        yield folder / "home"
