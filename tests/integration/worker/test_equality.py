"""The hopped run equals the unbroken one, bit for bit: tensors, state and metrics, read by an independent decoder."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.worker.kills import hop, moments
from tests.support import jobs
from tests.support.sessions import Bench

PLAIN_STEPS = 60
TORCH_STEPS = 40


def plain_bench(root: Path) -> Bench:
    return Bench(root, {"train.py": jobs.PLAIN}, target_steps=PLAIN_STEPS, every_steps=5, keep=2)


def torch_bench(root: Path) -> Bench:
    return Bench(root, {"train.py": jobs.TORCH}, target_steps=TORCH_STEPS, every_steps=4, keep=2)


def unbroken(bench: Bench, steps: int) -> dict[str, Any]:
    code, output = bench.run({"PAUSE": "0"})
    assert code == 0, output
    outcome = bench.outcome()
    assert outcome["step"] == steps
    assert [row["step"] for row in json.loads(outcome["metrics"])] == list(range(steps))
    return outcome


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return unbroken(plain_bench(tmp_path_factory.mktemp("plain")), PLAIN_STEPS)


@pytest.fixture(scope="module")
def torched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return unbroken(torch_bench(tmp_path_factory.mktemp("torch")), TORCH_STEPS)


def check(bench: Bench, want: dict[str, Any], story: list[str]) -> None:
    got = bench.outcome()
    for part in want:
        assert got[part] == want[part], (part, story)
    for token, name in itertools.product(range(1, bench.token + 1), ("downgraded", "Traceback")):
        assert name.encode() not in bench.log(token), bench.log(token)


def _schedules(quick: int, slow: int) -> list[Any]:
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, quick + slow))]


@pytest.mark.parametrize("seed", _schedules(12, 32))
def test_plain_training_hops(tmp_path: Path, plain: dict[str, Any], seed: int) -> None:
    bench = plain_bench(tmp_path)
    story = hop(bench, moments(seed, 6, 12))
    check(bench, plain, story)


@pytest.mark.torch
@pytest.mark.parametrize("seed", _schedules(5, 27))
def test_torch_training_hops(tmp_path: Path, torched: dict[str, Any], seed: int) -> None:
    bench = torch_bench(tmp_path)
    story = hop(bench, moments(1000 + seed, 2, 14), {"PAUSE": "0.01"})
    check(bench, torched, story)
