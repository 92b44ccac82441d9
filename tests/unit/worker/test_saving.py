"""A snapshot is one step's state, never two halves: whatever happens to the live objects right after save()."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from gpuhop_worker import checkpoint, memory, saving, slots, torch_state, wire
from gpuhop_worker.codec import StateError
from gpuhop_worker.saving import Saver, interval
from gpuhop_worker.slots import Slot

pytestmark = pytest.mark.torch


class Notes:
    """State of the user's own."""

    def __init__(self) -> None:
        self.array = numpy.arange(2000.0)
        self.tensor = torch.arange(2000.0)
        self.seen: dict[str, list[int]] = {"ids": [1, 2]}

    def state_dict(self) -> dict[str, Any]:
        return self.__dict__

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Bench:
    """A model with everything that changes in training, and a saver without a session."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "spool").mkdir(parents=True)
        self.paths = {name: str(root / f"slot-{name}") for name in slots.NAMES}
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
            **{name: str(root / name) for name in ("spool", "metrics", "progress", "drain", "pace")},
        }
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 300), nn.BatchNorm1d(300), nn.Linear(300, 8))
        self.loose = nn.Linear(200, 200)  # takes gradients, belongs to no optimizer
        self.average = nn.Linear(64, 300).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.notes = Notes()
        self.tracked = {"m": self.model, "l": self.loose, "a": self.average, "o": self.optimizer, "n": self.notes}
        self.saver = Saver(config)
        self.saver.hook(self.tracked)
        self.train()

    def used(self) -> set[str]:
        """Slots that were given room."""
        self.saver.join()
        return {name for name, path in self.paths.items() if os.path.exists(path)}

    def train(self) -> None:
        self.model(torch.randn(16, 64)).pow(2).mean().backward()
        self.optimizer.step()

    def live(self) -> dict[str, Any]:
        body, found = torch_state.capture(self.tracked)
        return {
            "state": json.dumps(body),
            **{name: bytes(torch_state.bytes_of(value)) for name, value in found.tensors},
        }

    def waiting(self) -> list[str]:
        return os.listdir(self.root / "spool")

    def snapshot(self) -> dict[str, Any]:
        """The newest snapshot's state and bytes, as the runner would read them; it then counts as shipped."""
        self.saver.join()
        folder = self.root / "spool" / sorted(os.listdir(self.root / "spool"))[-1]
        draft = checkpoint.read_draft(str(folder))
        assert draft is not None, "the snapshot is not whole"
        slot = Slot(self.paths[draft["slot"]])
        slot.open()
        parts = [entry for entry in draft["tensors"] if "offset" in entry]
        shutil.rmtree(folder)
        found = {entry["name"]: bytes(slot.view(entry["offset"], entry["size"])) for entry in parts}
        return {"state": json.dumps(draft["state"]), **found}


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


def scramble(bench: Bench) -> None:
    """Change every bit of state that a script can reach."""
    with torch.no_grad():
        for module in (bench.model, bench.loose, bench.average):
            for value in [*module.parameters(), *module.buffers()]:
                value.copy_(torch.randn(value.shape).to(value.dtype))
        for state in bench.optimizer.state.values():
            for value in state.values():
                value.add_(3.0)
    for group in bench.optimizer.param_groups:
        group["lr"] *= 2
    bench.notes.array += 1
    bench.notes.tensor += 1
    bench.notes.seen["ids"].append(3)
    random.random(), numpy.random.rand(), torch.rand(1)


def test_a_last_save_holds_the_values_of_the_call_whatever_comes_after(bench: Bench) -> None:
    before = bench.live()
    bench.saver.save(bench.tracked, 1, last=True)
    scramble(bench)
    assert bench.snapshot() == before


def test_so_does_any_other_once_an_optimizer_has_begun_its_step(bench: Bench) -> None:
    before = bench.live()
    bench.saver.save(bench.tracked, 1)
    bench.saver.join()  # as the optimizer's hook does it
    scramble(bench)
    assert bench.snapshot() == before


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Copies beside the training wait until this is set."""
    go, real = threading.Event(), slots.Slot.take

    def slow(slot: slots.Slot, *where: int) -> None:
        if threading.current_thread().name == "gpuhop-copy":
            assert go.wait(30)
        real(slot, *where)

    monkeypatch.setattr(slots.Slot, "take", slow)
    return go


def _swap_in_the_average(bench: Bench) -> None:
    with torch.no_grad():
        for name, value in bench.average.named_parameters():
            bench.model.get_parameter(f"0.{name}").copy_(value)


def _load(bench: Bench) -> None:
    bench.model.load_state_dict({k: torch.zeros_like(v) for k, v in bench.model.state_dict().items()})


def _first_phase(bench: Bench) -> None:
    """As sharpness-aware minimization does before its optimizer steps."""
    for parameter in bench.model.parameters():
        parameter.data.add_(0.05 * torch.randn(parameter.shape))


def _moments(bench: Bench) -> None:
    next(iter(bench.optimizer.state.values()))["exp_avg"].mul_(0.5)


def _one_element(bench: Bench) -> None:
    with torch.no_grad():
        bench.model.get_parameter("2.weight")[3, 33] = 0.25


EDITS = [_swap_in_the_average, _load, _first_phase, _moments, _one_element]


@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__.strip("_"))
def test_what_is_edited_in_the_window_makes_no_torn_snapshot(
    bench: Bench, held: threading.Event, capfd: pytest.CaptureFixture[str], edit: Callable[[Bench], None]
) -> None:
    bench.saver.save(bench.tracked, 1)
    edit(bench)
    held.set()
    bench.train()
    assert bench.waiting() == []
    assert bench.saver.saved_step == 0
    assert "gpuhop: the save at step 1 was skipped: the script changed " in capfd.readouterr().err
    before = bench.live()
    bench.saver.save(bench.tracked, 2)  # this script's saves are done at once from now on
    edit(bench)
    assert bench.snapshot() == before
    assert bench.saver.saved_step == 2


def test_an_edit_of_what_was_copied_already_is_not_taken_for_harmless(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edit comes between the copy of a tensor and the end of all copies: nobody can tell on which side it was."""
    real, weight = slots.Slot.take, bench.model.get_parameter("2.weight")

    def take(slot: slots.Slot, offset: int, address: int, size: int) -> None:
        real(slot, offset, address, size)
        if threading.current_thread().name == "gpuhop-copy" and address == weight.data_ptr():
            weight.data.mul_(2.0)

    monkeypatch.setattr(slots.Slot, "take", take)
    bench.saver.save(bench.tracked, 1)
    bench.saver.join()
    assert bench.waiting() == []


def test_memory_that_the_script_gives_up_in_the_window_is_still_there(bench: Bench, held: threading.Event) -> None:
    """A tracked parameter of no module is captured itself: its memory may be exchanged, and must not be freed."""
    free = nn.Parameter(torch.randn(1 << 20))
    was = free.detach().clone()
    optimizer = torch.optim.SGD([free], 0.1)
    tracked = {"f": free, "o": optimizer}
    bench.saver.hook(tracked)
    bench.saver.save(tracked, 1)
    free.data = torch.zeros(1 << 20)
    held.set()
    bench.saver.join()
    assert bench.snapshot()["f.value"] == was.numpy().tobytes()


def test_a_tensor_that_gets_another_shape_in_the_window_keeps_its_own_in_the_snapshot(
    bench: Bench, held: threading.Event
) -> None:
    free = nn.Parameter(torch.randn(1 << 16))
    was = free.detach().clone()
    tracked = {"f": free, "o": torch.optim.SGD([free], 0.1)}
    bench.saver.hook(tracked)
    bench.saver.save(tracked, 1)
    free.data = torch.zeros(3, 5, dtype=torch.float64)
    held.set()
    bench.saver.join()
    draft = checkpoint.read_draft(str(bench.root / "spool" / bench.waiting()[0]))
    assert draft is not None
    entry = draft["tensors"][0]
    assert (entry["dtype"], entry["shape"], entry["size"]) == ("float32", [1 << 16], 1 << 18)
    assert bench.snapshot()["f.value"] == was.numpy().tobytes()


def test_memory_that_is_freed_in_the_window_is_not_read(bench: Bench, held: threading.Event) -> None:
    """As sharded training frees what it gathered: the storage itself becomes smaller."""
    free = nn.Parameter(torch.randn(1 << 24))  # so large that its memory goes back to the system
    first = nn.Parameter(torch.randn(1 << 12))  # its copy is held up
    optimizer = torch.optim.SGD([first, free], 0.1)
    tracked = {"a": first, "f": free, "o": optimizer}
    bench.saver.hook(tracked)
    bench.saver.save(tracked, 1)
    free.data.untyped_storage().resize_(0)
    held.set()
    bench.saver.join()
    assert bench.waiting() == []


def test_memory_that_is_exchanged_in_the_window_is_no_edit(bench: Bench, held: threading.Event) -> None:
    before = bench.live()
    bench.saver.save(bench.tracked, 1)
    for parameter in bench.model.parameters():
        parameter.data = torch.zeros_like(parameter)
    held.set()
    bench.saver.join()
    assert bench.snapshot() == before


def test_an_optimizer_waits_for_the_copy(bench: Bench, held: threading.Event) -> None:
    """The copy is held up until the step has begun; the step's first act is to join it."""
    before = bench.live()
    bench.saver.save(bench.tracked, 1)
    bench.model(torch.randn(16, 64)).pow(2).mean().backward()
    threading.Timer(0.2, held.set).start()
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


def test_a_copy_that_fails_for_any_reason_is_dropped_and_stops_no_later_save(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_memory(folder: str, body: dict[str, Any]) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_snapshot", no_memory)
        bench.saver.save(bench.tracked, 1)
        bench.saver.join()
    assert (bench.waiting(), bench.saver.saved_step) == ([], 0)
    assert "the save at step 1 was skipped: Cannot allocate memory" in capfd.readouterr().err
    before = bench.live()
    bench.saver.save(bench.tracked, 2)
    bench.saver.join()
    assert bench.snapshot() == before


def test_a_state_that_no_reader_would_take_is_refused_when_it_is_saved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest would be written, and count as damaged in every session after this one."""
    bench.saver.rehearse(bench.tracked)
    monkeypatch.setattr(wire, "MAX_DOCUMENT", 1 << 17)
    bench.notes.seen["ids"] = list(range(20_000))
    with pytest.raises(StateError, match="is 0 MB of JSON"):
        bench.saver.rehearse(bench.tracked)
    for step in (1, 2):  # the first is copied beside the training, and dropped
        try:
            bench.saver.save(bench.tracked, step)
            bench.saver.join()
        except StateError:
            break
    assert step == 2 and bench.waiting() == [] and bench.saver.saved_step == 0


def slot_of_newest(bench: Bench) -> str:
    draft = checkpoint.read_draft(str(bench.root / "spool" / sorted(os.listdir(bench.root / "spool"))[-1]))
    assert draft is not None
    return str(draft["slot"])


def test_only_what_an_optimizer_changes_is_copied_late(bench: Bench) -> None:
    still = torch_state.capture(bench.tracked)[1].still
    late = {p.data_ptr() for p in bench.model.parameters()}
    late |= {v.data_ptr() for state in bench.optimizer.state.values() for v in state.values()}
    assert still == late


def test_frozen_parts_of_a_module_that_trains_may_wait() -> None:
    model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    assert torch_state.capture({"m": model, "o": optimizer})[1].still == {p.data_ptr() for p in model.parameters()}


@pytest.mark.parametrize(
    ("stall", "ship", "life", "least", "most"),
    [(0.18, 0.0, 4 * 3600, 71, 73), (0.18, 600, 4 * 3600, 600, 600), (0.0, 0.0, 10, 1, 1), (2, 5, 1e6, 1999, 2001)],
)
def test_the_interval_follows_cost_link_and_life(
    stall: float, ship: float, life: float, least: float, most: float
) -> None:
    assert least <= interval(stall, ship, life) <= most


def test_snapshots_go_to_the_disk_where_memory_is_short(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.saver.prepare(bench.tracked)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(saving, "TOLD", 100_000)
    bench.saver.prepare(bench.tracked)
    assert "a state of 1 MB; two snapshots of it lie in this machine's memory" in capfd.readouterr().err
    bench.saver.join()
    assert bench.used() == {"a", "b"}
    monkeypatch.setattr(memory, "available", lambda: 1000)
    bench.saver.prepare(bench.tracked)
    assert bench.used() == {"a", "b"}, "nothing more is needed"
    other = Bench(bench.root / "other")
    other.saver.prepare(other.tracked)
    assert "in this machine's disk: 0 MB of memory are left" in capfd.readouterr().err
    for step in range(1, 4):
        before = other.live()
        other.saver.save(other.tracked, step)
        other.train()
        other.saver.join()
        assert other.snapshot() == before
    assert other.used() == {"c", "d"}
