"""A fresh user for each test; whatever sessions it left are ended with it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import User


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    yield User(tmp_path)
    subprocess.run(["pkill", "-9", "-f", str(tmp_path)], check=False)
