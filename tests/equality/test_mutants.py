"""The suite would notice: an engine that leaves out any one piece of state fails it.

tests/integration/worker/test_mutation.py spoils restored objects; here the engine itself is changed, on its way out or
on its way in, and a training that was hopped through the store must then differ from the unbroken one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.equality.driver import Rows, hopped, unbroken, unchanged_process
from tests.equality.programs.models import MODELS, Convolution, Hidden, Tied, mlp
from tests.equality.programs.spec import Kill, Program

from gpuhop_worker import gradients, plain_state, torch_state
from gpuhop_worker.replaying import Replay
from gpuhop_worker.saving import Saver

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Patch = pytest.MonkeyPatch


class Everything(torch.nn.Module):
    """All models at once: BatchNorm, tied weights, hidden buffers, extra state, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList([Convolution(), Tied(), Hidden(), mlp(drop=0.3)])

    def forward(self, x: torch.Tensor) -> Any:
        return sum(part(x) for part in self.parts)


MODELS["everything"] = Everything
ALL = Program(
    seed=3,
    model="everything",
    optimizer="adamw",
    schedule="cosine",
    loader="shuffled",
    groups=2,
    clip=True,
    scaler=True,
    ema="averaged",
    draws=("numpy", "own", "python", "torch"),
    augment=True,
    frozen=True,
    steps=8,
    every=2,
    kills=(Kill(5, "drain"),),
)
PROGRAMS = {
    "all": ALL,
    "micro": replace(ALL, micro=3, scaler=False),
    "zeros": replace(ALL, zero="after"),
    "dict": replace(ALL, ema="dict"),
    "keyed": replace(ALL, loader="keyed"),
}


def ends(program: Program, folder: Path) -> Rows:
    with unchanged_process():
        return hopped(program, folder)[0]


@pytest.fixture(scope="module")
def wanted() -> dict[str, Rows]:
    with unchanged_process():
        return {name: unbroken(program) for name, program in PROGRAMS.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_engine_as_it_is_passes(tmp_path: Path, wanted: dict[str, Rows], name: str) -> None:
    assert ends(PROGRAMS[name], tmp_path) == wanted[name]


# ---------------------------------------------------------------- mutants: what is left out


def _when(kind: type, change: Callable[[Any, Any], Any]) -> Callable[[Patch], None]:
    """Change the state of one kind of tracked object as it is captured: change(state, live object)."""

    def patch(monkeypatch: Patch) -> None:
        real = torch_state._state_of

        def state_of(thing: Any, names: Any) -> Any:
            state = real(thing, names)
            return change(state, thing) if isinstance(thing, kind) else state

        monkeypatch.setattr(torch_state, "_state_of", state_of)

    return patch


def _kept_as_built(title: str) -> Callable[[Patch], None]:
    """A tracked object that is not restored: it stays as the script built it."""

    def patch(monkeypatch: Patch) -> None:
        real = torch_state._put_back

        def put_back(name: str, thing: Any, state: Any, names: Any) -> None:
            if name != title:
                real(name, thing, state, names)

        monkeypatch.setattr(torch_state, "_put_back", put_back)

    return patch


def _without(part: str, names: Callable[[str], bool]) -> Callable[[Any, Any], Any]:
    """The module's entries that `names` picks are saved as zeros."""

    def change(state: Any, thing: Any) -> Any:
        zeroed = {k: torch.zeros_like(v) if names(k) else v for k, v in state[part].items()}
        return dict(state, **{part: zeroed})

    return change


def _option(name: str, value: Any) -> Callable[[Any, Any], Any]:
    return lambda state, thing: dict(state, groups=[dict(group, **{name: value}) for group in state["groups"]])


def _moment(name: str) -> Callable[[Any, Any], Any]:
    def change(state: Any, thing: Any) -> Any:
        return dict(state, state={p: dict(s, **{name: torch.zeros_like(s[name])}) for p, s in state["state"].items()})

    return change


def _no_moments(state: Any, thing: Any) -> Any:
    return dict(state, state={})


def _swapped_moments(state: Any, thing: Any) -> Any:
    names = list(state["state"])
    if not names:  # before the first step
        return state
    shapes = [state["state"][name]["exp_avg"].shape for name in names]
    a, b = next((a, b) for i, a in enumerate(names) for j, b in enumerate(names) if i < j and shapes[i] == shapes[j])
    return dict(state, state=dict(state["state"], **{a: state["state"][b], b: state["state"][a]}))


def _extra(state: Any, thing: Any) -> Any:
    entries = {k: 0 if k.endswith("_extra_state") else v for k, v in state["state_dict"].items()}
    return dict(state, state_dict=entries)


def _training_mode(state: Any, thing: Any) -> Any:
    return dict(state, training=[])


def _nothing_frozen(state: Any, thing: Any) -> Any:
    return dict(state, frozen=[])


def _generator(name: str) -> Callable[[Patch], None]:
    """One of the process's generators is not put back."""
    setters: dict[str, tuple[Any, str]] = {
        "python": (random, "setstate"),
        "numpy": (numpy.random, "set_state"),
        "torch": (torch, "set_rng_state"),
    }

    def patch(monkeypatch: Patch) -> None:
        real = torch_state.set_rng_state
        module, setter = setters[name]

        def set_rng_state(state: Any) -> None:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(module, setter, lambda value: None)
                real(state)

        monkeypatch.setattr(torch_state, "set_rng_state", set_rng_state)

    return patch


def _loader(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    def patch(monkeypatch: Patch) -> None:
        real = Replay.load_state_dict
        monkeypatch.setattr(Replay, "load_state_dict", lambda self, state: real(self, change(state)))

    return patch


def _step(monkeypatch: Patch) -> None:
    real = Saver.restore
    monkeypatch.setattr(Saver, "restore", lambda self, tracked: max(0, real(self, tracked) - 1))


def _aliases(monkeypatch: Patch) -> None:
    """Tensors that share memory are saved as two."""
    monkeypatch.setattr(torch_state, "_storage_key", lambda tensor: None)
    monkeypatch.setattr(torch_state, "_tie_differences", lambda *arguments: [])


def _hidden(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch_state, "_hidden_buffers", lambda module: iter(()))


def _gradients(fresh: bool, used: bool) -> Callable[[Patch], None]:
    def patch(monkeypatch: Patch) -> None:
        real = gradients.capture

        def capture(tracked: Any, names: Any) -> Any:
            found = real(tracked, names)
            return {"fresh": found.get("fresh", {}) if fresh else {}, "used": found.get("used", []) if used else []}

        monkeypatch.setattr(gradients, "capture", capture)

    return patch


def _user_value(name: str, value: Any) -> Callable[[Patch], None]:
    def patch(monkeypatch: Patch) -> None:
        real = plain_state.load

        def load(title: str, thing: Any, state: Any) -> None:
            real(title, thing, dict(state, **{name: value}) if title == "notes" else state)

        monkeypatch.setattr(plain_state, "load", load)

    return patch


def _one_bit(monkeypatch: Patch) -> None:
    real = torch_state.tensor_from

    def tensor_from(data: Any, entry: Any, *more: Any) -> Any:
        value = real(data, entry, *more)
        if entry["name"] == "model.state_dict.parts.3.0.weight":
            flat = value.view(-1)[:1].view(torch.int32)
            flat ^= 1
        return value

    monkeypatch.setattr(torch_state, "tensor_from", tensor_from)


def _schedulers_after_optimizers(monkeypatch: Patch) -> None:
    """What goes wrong most often elsewhere: groups are restored, then a scheduler of its own start writes over them."""
    real = torch_state._put_back

    def put_back(name: str, thing: Any, state: Any, names: Any) -> None:
        real(name, thing, state, names)
        if name == "optimizer":
            for group in thing.param_groups:
                group["lr"] = group["initial_lr"]

    monkeypatch.setattr(torch_state, "_put_back", put_back)


MODULE, OPTIMIZER = Everything, torch.optim.Optimizer
MUTANTS: dict[str, tuple[str, Callable[[Patch], None]]] = {
    "parameters": ("all", _when(MODULE, _without("state_dict", lambda n: n == "parts.3.0.weight"))),
    "one bit of one parameter": ("all", _one_bit),
    "batch norm's mean": ("all", _when(MODULE, _without("state_dict", lambda n: n.endswith("running_mean")))),
    "batch norm's count": ("all", _when(MODULE, _without("state_dict", lambda n: n.endswith("num_batches_tracked")))),
    "hidden buffers": ("all", _hidden),
    "one hidden buffer": ("all", _when(MODULE, _without("hidden", lambda n: n.endswith("calls")))),
    "extra state": ("all", _when(MODULE, _extra)),
    "train and eval": ("all", _when(MODULE, _training_mode)),
    "frozen parameters": ("all", _when(MODULE, _nothing_frozen)),
    "a whole model": ("all", _kept_as_built("model")),
    "a whole optimizer": ("all", _kept_as_built("optimizer")),
    "all moments": ("all", _when(OPTIMIZER, _no_moments)),
    "first moments": ("all", _when(OPTIMIZER, _moment("exp_avg"))),
    "second moments": ("all", _when(OPTIMIZER, _moment("exp_avg_sq"))),
    "counters of steps": ("all", _when(OPTIMIZER, _moment("step"))),
    "whose moments": ("all", _when(OPTIMIZER, _swapped_moments)),
    "learning rates": ("all", _when(OPTIMIZER, _option("lr", 0.002))),
    "initial learning rates": ("all", _when(OPTIMIZER, _option("initial_lr", 0.002))),
    "weight decay": ("all", _when(OPTIMIZER, _option("weight_decay", 0.3))),
    "betas": ("all", _when(OPTIMIZER, _option("betas", (0.8, 0.9)))),
    "learning rates, by a late scheduler": ("all", _schedulers_after_optimizers),
    "the scheduler": ("all", _kept_as_built("schedule")),
    "the scaler": ("all", _kept_as_built("scaler")),
    "the averaged model": ("all", _kept_as_built("average")),
    "the average by hand": ("dict", _kept_as_built("average")),
    "the script's own generator": ("all", _kept_as_built("own")),
    "the script's own state": ("all", _kept_as_built("notes")),
    "one value of the script's own": ("all", _user_value("seen", {})),
    "Python's generator": ("all", _generator("python")),
    "NumPy's generator": ("all", _generator("numpy")),
    "torch's generator": ("all", _generator("torch")),
    "the loader": ("all", _kept_as_built("loader1")),
    "the loader's epoch": ("all", _loader(lambda state: dict(state, epoch=0))),
    "the loader's place in the epoch": ("all", _loader(lambda state: dict(state, offset=state["offset"] - 1))),
    "the step": ("keyed", _step),
    "what is shared": ("all", _aliases),
    "gradients being accumulated": ("micro", _gradients(fresh=False, used=True)),
    "that there are gradients": ("zeros", _gradients(fresh=False, used=False)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_piece_that_is_left_out_is_noticed(
    tmp_path: Path, wanted: dict[str, Rows], monkeypatch: Patch, name: str
) -> None:
    program, patch = MUTANTS[name]
    patch(monkeypatch)
    assert ends(PROGRAMS[program], tmp_path) != wanted[program]
