"""Drawn trainings, killed at drawn moments, equal the unbroken run bit for bit after every single step.

The cases are the same on every machine. To look further: `EQUALITY_SEED=<any number> EQUALITY_CASES=<count> pytest
tests/equality/test_programs.py -m ""`; a case that fails is shrunk and printed as a Program to paste into a test.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.equality.driver import hopped, unbroken, unchanged_process
from tests.equality.programs.data import LOADERS
from tests.equality.programs.models import NAMES
from tests.equality.programs.optimizers import OPTIMIZERS, SCHEDULES
from tests.equality.programs.spec import Program
from tests.equality.strategies import DRAWS, IMPLS, KINDS, programs

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

CASES = int(os.environ.get("EQUALITY_CASES", "20"))  # of each part
SEED = int(os.environ.get("EQUALITY_SEED", "0"))
QUICK, SLOW = 3, 9
PARTS = [*range(QUICK), *(pytest.param(part, marks=pytest.mark.slow) for part in range(QUICK, QUICK + SLOW))]


def check(program: Program) -> None:
    with unchanged_process(), tempfile.TemporaryDirectory() as folder:
        want = unbroken(program)
        rows, story = hopped(program, Path(folder))
    for step in want:
        assert rows[step] == want[step], (step, story)
    assert len(rows) == len(want), story


def explored(part: int, act: Callable[[Program], None]) -> None:
    """Act on each program of a part."""

    @seed(1000 * SEED + part)
    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(programs())
    def explore(program: Program) -> None:
        act(program)

    explore()


@pytest.mark.parametrize("part", PARTS)
def test_a_hopped_run_equals_the_unbroken_one(part: int) -> None:
    explored(part, check)


def test_the_cases_reach_every_kind() -> None:
    """Of what is drawn, quick and slow cases together leave nothing out."""
    drawn: list[Program] = []
    for part in range(QUICK + SLOW):
        explored(part, drawn.append)
    kinds_of: dict[str, Iterable[Any]] = {
        "model": NAMES,
        "optimizer": OPTIMIZERS,
        "schedule": SCHEDULES,
        "loader": LOADERS,
        "impl": IMPLS,
        "ema": ("", "averaged", "dict"),
        "zero": ("before", "after", "zeros"),
        "micro": (1, 2, 3),
        "accumulate": (1, 2, 3),
        "scaler": (False, True),
        "maximize": (False, True),
        "frozen": (False, True),
    }
    for field, kinds in kinds_of.items():
        assert {getattr(program, field) for program in drawn} == set(kinds), field
    assert {kill.kind for program in drawn for kill in program.kills} == set(KINDS)
    assert {name for program in drawn for name in program.draws} == set(DRAWS)
    assert {count for program in drawn for count in program.workers} == {0, 1, 2, 3}
    assert any(len(set(program.workers)) > 1 for program in drawn), "the workers change between sessions"
