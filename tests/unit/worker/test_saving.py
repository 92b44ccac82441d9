"""A snapshot is one step's state, never two halves: whatever happens to the live objects right after save()."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpuhop_worker import checkpoint, torch_state
from gpuhop_worker.saving import Saver, interval
from gpuhop_worker.slots import Slot

pytestmark = pytest.mark.torch


class Bench:
    """A model with everything that changes in training, and a saver without a session."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "spool").mkdir()
        self.paths = {name: str(root / f"slot-{name}") for name in "abc"}
        config: dict[str, Any] = {
            "restore": None,
            "restored_slot": None,
            "offsets": {},
            "slots": self.paths,
            "every_steps": 1,
            "every_s": None,
            "every_auto": False,
            "mean_life_s": 1e4,
            "time_scale": 1.0,
            "runner": os.getpid(),
            **{name: str(root / name) for name in ("spool", "metrics", "progress", "drain")},
        }
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 300), nn.BatchNorm1d(300), nn.Linear(300, 8))
        self.loose = nn.Linear(200, 200)  # takes gradients, belongs to no optimizer
        self.average = nn.Linear(64, 300).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.tracked = {"m": self.model, "l": self.loose, "a": self.average, "o": self.optimizer}
        self.saver = Saver(config)
        self.saver.hook(self.tracked)
        self.train()

    def train(self) -> None:
        self.model(torch.randn(16, 64)).pow(2).mean().backward()
        self.optimizer.step()

    def live(self) -> dict[str, bytes]:
        _, found = torch_state.capture(self.tracked)
        return {name: bytes(torch_state.bytes_of(value)) for name, value in found.tensors}

    def snapshot(self) -> dict[str, bytes]:
        """The newest snapshot's bytes, as the runner would read them; it then counts as shipped."""
        folder = self.root / "spool" / sorted(os.listdir(self.root / "spool"))[-1]
        draft = checkpoint.read_draft(str(folder))
        assert draft is not None, "the snapshot is not whole"
        slot = Slot(self.paths[draft["slot"]])
        slot.open()
        parts = [entry for entry in draft["tensors"] if "offset" in entry]
        shutil.rmtree(folder)
        return {entry["name"]: bytes(slot.view(entry["offset"], entry["size"])) for entry in parts}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_changes_in_a_forward_pass_is_copied_before_save_returns(bench: Bench) -> None:
    before = bench.live()
    bench.saver.save(bench.tracked, 1)
    with torch.no_grad():
        bench.model.get_buffer("1.running_mean").add_(7.0)  # as BatchNorm does
        bench.loose.weight.zero_()
        bench.average.weight.mul_(3.0)  # as an average of weights does
    torch.rand(100)
    bench.saver.join()
    assert bench.snapshot() == before


def test_an_optimizer_waits_for_the_copy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is held up until the step has begun; the step's first act is to join it."""
    import threading

    from gpuhop_worker import slots

    before, go, real = bench.live(), threading.Event(), slots.copy

    def slow(target: memoryview, source: Any) -> None:
        if threading.current_thread().name == "gpuhop-copy":
            assert go.wait(30)
        real(target, source)

    monkeypatch.setattr(slots, "copy", slow)
    bench.saver.save(bench.tracked, 1)
    bench.model(torch.randn(16, 64)).pow(2).mean().backward()
    threading.Timer(0.2, go.set).start()
    bench.optimizer.step()
    assert bench.snapshot() == before
    assert bench.live() != before


def test_saves_in_a_row_are_each_of_their_moment(bench: Bench) -> None:
    for step in range(1, 7):
        before = bench.live()
        bench.saver.save(bench.tracked, step, last=step == 6)
        bench.train()
        bench.saver.join()
        assert bench.snapshot() == before


def test_a_save_that_a_full_disk_stops_late_frees_no_older_state(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is done beside the training, and then its draft does not fit: the state before it is still the base
    that the runner takes differences against, so the next snapshot may not land on it."""
    bench.saver.save(bench.tracked, 1)
    bench.saver.join()
    kept = slot_of_newest(bench)
    before = bench.snapshot()  # it has left

    def full(folder: str, body: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_snapshot", full)
        bench.train()
        bench.saver.save(bench.tracked, 2)
        bench.saver.join()
    assert os.listdir(bench.root / "spool") == []
    bench.train()
    bench.saver.save(bench.tracked, 3)
    bench.saver.join()
    assert slot_of_newest(bench) != kept and bench.snapshot() != before


def slot_of_newest(bench: Bench) -> str:
    draft = checkpoint.read_draft(str(bench.root / "spool" / sorted(os.listdir(bench.root / "spool"))[-1]))
    assert draft is not None
    return str(draft["slot"])


def test_only_what_an_optimizer_changes_is_copied_late(bench: Bench) -> None:
    still = torch_state.still(bench.tracked)
    late = {p.data_ptr() for p in bench.model.parameters()}
    late |= {v.data_ptr() for state in bench.optimizer.state.values() for v in state.values()}
    assert still == late


def test_frozen_parts_of_a_module_that_trains_may_wait() -> None:
    model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    assert torch_state.still({"m": model, "o": optimizer}) == {p.data_ptr() for p in model.parameters()}


@pytest.mark.parametrize(
    ("stall", "ship", "life", "least", "most"),
    [(0.18, 0.0, 4 * 3600, 71, 73), (0.18, 600, 4 * 3600, 600, 600), (0.0, 0.0, 10, 1, 1), (2, 5, 1e6, 1999, 2001)],
)
def test_the_interval_follows_cost_link_and_life(
    stall: float, ship: float, life: float, least: float, most: float
) -> None:
    assert least <= interval(stall, ship, life) <= most
