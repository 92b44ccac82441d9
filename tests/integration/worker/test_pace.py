"""A grant's checkpoints last to the end of its session."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import jobs
from tests.support.sessions import Bench, finish

from gpuhop_worker import pace, wire
from gpuhop_worker.wire import Grant

KEYS = 16


def small(bench: Bench, **changes: object) -> Grant:
    """A grant with addresses for a few checkpoints only."""
    grant = bench.grant(**changes)
    names = [
        wire.numbered_key(bench.job, bench.token, w, n) for w in ("pack", "manifest") for n in range(KEYS + 1, 201)
    ]
    return dataclasses.replace(grant, addresses={k: v for k, v in grant.addresses.items() if k not in names})


def test_a_session_that_could_save_at_each_step_gets_to_its_target(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"train.py": jobs.PLAIN}, target_steps=60, every_steps=1, keep=100, budget_s=30.0)
    code, output = finish(bench.start(small(bench), {"PAUSE": "0.1"}), 120.0)
    assert code == 0, output
    assert bench.result().reason == "target_reached"
    saved = [line for line in output.splitlines() if "saved step" in line]
    assert KEYS // 2 < len(saved) <= KEYS
    assert bench.latest().step == 60


def test_so_does_one_that_is_carried_by_its_folder(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        {"train.py": jobs.FOLDER},
        mode="folder",
        folder="ckpt",
        every_steps=None,
        every_s=0.1,
        keep=100,
        budget_s=30.0,
        progress=r"step (\d+)",
    )
    code, output = finish(bench.start(small(bench), {"PAUSE": "0.1"}), 120.0)
    assert code == 0, output
    assert bench.result().reason in ("exited_0", "target_reached")


@given(st.integers(2, 400), st.floats(0.01, 5.0), st.floats(10.0, 40_000.0))
def test_whatever_the_interval_the_checkpoints_are_enough(whole: int, every: float, budget: float) -> None:
    left, now = whole, 0.0
    while now < budget and left > 0:
        left -= 1
        pause = pace.pause_s(left - 1, whole, budget - now)
        assert pause >= 0.0
        now += max(every, pause)
    assert now >= budget or left == 0
    if left == 0:
        assert now >= budget * 0.6, "the last one is for the end"


@pytest.mark.parametrize("text", [b"", b"x", b"\xff"])
def test_what_cannot_be_read_holds_nothing_up(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "pace"
    assert pace.told(str(path)) == 0.0
    path.write_bytes(text)
    assert pace.told(str(path)) == 0.0
    pace.tell(str(path), 12.5)
    assert pace.told(str(path)) == 12.5
