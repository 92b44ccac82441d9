"""Sessions end with their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.sessions import kill_left_over


@pytest.fixture(autouse=True)
def _no_session_outlives_its_test() -> Iterator[None]:
    yield
    kill_left_over()
