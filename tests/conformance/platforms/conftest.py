"""One harness per implementation; whatever is still running at the end is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.platforms.harness import ENVIRON, HARNESSES, Harness

from gpuhop.platforms.base import Handle


@pytest.fixture(params=list(HARNESSES))
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = HARNESSES[request.param](tmp_path, ENVIRON)
    yield made
    folder = tmp_path / "sessions"
    for work in folder.iterdir() if folder.is_dir() else ():
        made.platform.stop(Handle(work.name))
