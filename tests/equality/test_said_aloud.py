"""What cannot be exact is in the manifest, and is said before the first step; what can be set back is set back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.equality.driver import Job, OneSession, unchanged_process

from gpuhop_worker.wire import Manifest

pytestmark = pytest.mark.torch

WORDS = "gpuhop: exact resume downgraded to faithful: "
KINDS = {
    "torch": "1.0",
    "numpy": "0.1",
    "python": "2.7",
    "machine": "vax",
    "device": "cuda",
    "cpu_capability": "MMX",
    "cpu": "another model",
    "deterministic": None,
}


def train(running: OneSession, steps: int) -> list[int]:
    model = torch.nn.Linear(2, 2)
    running.session.track(model=model)
    made = list(running.session.steps(steps))
    running.end("drain")
    return made


def edit(running: OneSession, **changes: Any) -> None:
    """As if the checkpoint came from another machine."""
    path = running.folder / "manifest.json"
    manifest = Manifest.from_bytes(path.read_bytes())
    path.write_bytes(replace(manifest, fingerprint=dict(manifest.fingerprint, **changes)).to_bytes())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path)
    with unchanged_process(), made.session(every=1) as running:
        torch.set_num_threads(1)
        train(running, 2)
    return made


def test_an_equal_machine_says_nothing(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    with unchanged_process(), job.session(every=1) as running:
        torch.set_num_threads(1)
        train(running, 3)
    assert "downgraded" not in capfd.readouterr().err


@pytest.mark.parametrize("name", KINDS)
def test_a_difference_is_said_before_the_first_step(job: Job, capfd: pytest.CaptureFixture[str], name: str) -> None:
    with unchanged_process(), job.session(every=1) as running:
        torch.set_num_threads(1)
        edit(running, **{name: KINDS[name]})
        steps = running.session.steps(3)
        running.session.track(model=torch.nn.Linear(2, 2))
        assert next(steps) == 2
        assert f"{WORDS}{name} {KINDS[name]} -> " in capfd.readouterr().err
        steps.close()  # type: ignore[attr-defined]


def test_the_number_of_threads_is_set_back(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    with unchanged_process(), job.session(every=1) as running:
        torch.set_num_threads(2)
        train(running, 3)
        assert torch.get_num_threads() == 1
    assert "downgraded" not in capfd.readouterr().err


def test_the_manifest_holds_every_one_of_them(job: Job) -> None:
    manifest = Manifest.from_bytes((job.root / "store" / job.manifests[0]).read_bytes())
    assert set(KINDS) | {"threads"} == set(manifest.fingerprint)
    assert manifest.fingerprint["cpu"]
