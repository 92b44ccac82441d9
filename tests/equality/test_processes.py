"""The drawn trainings again, as real workers with real kills: SIGKILL at any moment, or a drain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.equality.driver import unbroken, unchanged_process
from tests.equality.programs.spec import Program
from tests.equality.test_programs import explored
from tests.integration.worker.kills import hop, moments
from tests.support.sessions import ROOT, Bench, decode, kill_left_over

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CASES = 24
STEPS = 16
CODE = {
    str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.glob("tests/equality/programs/*.py"))
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_session_outlives_its_test() -> Any:
    yield
    kill_left_over()


def drawn(case: int) -> Program:
    """One program for each case; those of the other suite are others."""
    found: list[Program] = []
    explored(10_000 + case, found.append)
    return replace(found[-1], steps=STEPS, every=2)


@pytest.mark.parametrize("case", range(CASES))
def test_a_run_of_killed_processes_equals_the_unbroken_one(tmp_path: Path, case: int) -> None:
    program = drawn(case)
    with unchanged_process():
        want = unbroken(program)
    bench = Bench(
        tmp_path, CODE, run="python -m tests.equality.programs.training", target_steps=STEPS, every_steps=2, keep=2
    )
    story = hop(bench, moments(case, 2, 7), {"PROGRAM": program.to_json(), "PAUSE": "0.02"})
    rows = decode.metrics(bench.store, bench.job)
    assert [row["step"] for row in rows] == list(range(STEPS)), (story, program)
    for row in rows:
        step = row.pop("step")
        assert row == json.loads(json.dumps(want[step])), (step, story, program)
    for token in range(1, bench.token + 1):
        assert b"downgraded" not in bench.log(token), bench.log(token)
