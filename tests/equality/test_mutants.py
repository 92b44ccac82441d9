"""The suite would notice: an engine that leaves out any one piece of state fails it.

tests/integration/worker/test_mutation.py spoils restored objects; here the engine itself loses something on the way in,
and a training that was hopped through the store must then differ from the unbroken one.
"""

from __future__ import annotations

import json
import random
import re
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

from gpuhop_worker import codec, torch_state
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

Body = dict[str, Any]
Mutant = Callable[[Patch], None]


def _body(change: Callable[[Body], Any]) -> Mutant:
    """What is restored is not what was saved: `change` edits the JSON part in place."""

    def patch(monkeypatch: Patch) -> None:
        real = torch_state.restore

        def restore(tracked: Any, body: Body, tensor: Any) -> None:
            changed = json.loads(json.dumps(body))
            change(changed)
            real(tracked, changed, tensor)

        monkeypatch.setattr(torch_state, "restore", restore)

    return patch


def _tensors(pattern: str, change: Callable[[Any], Any] = torch.zeros_like) -> Mutant:
    """Saved tensors and arrays whose whole name matches come back otherwise: as zeros."""

    def patch(monkeypatch: Patch) -> None:
        real = torch_state.restore

        def restore(tracked: Any, body: Body, tensor: Any) -> None:
            def source(name: str, *more: Any) -> Any:
                value = tensor(name, *more)
                return change(value) if re.fullmatch(pattern, name) else value

            real(tracked, body, source)

        monkeypatch.setattr(torch_state, "restore", restore)

    return patch


def _kept_as_built(title: str) -> Mutant:
    """A tracked object that is not restored: it stays as the script built it."""

    def patch(monkeypatch: Patch) -> None:
        real = torch_state._put_back
        monkeypatch.setattr(torch_state, "_put_back", lambda name, *more: None if name == title else real(name, *more))

    return patch


def _option(name: str, value: Any) -> Mutant:
    def change(body: Body) -> None:
        for group in body["optimizer"]["groups"]:
            group[name] = codec.encode(value)

    return _body(change)


def _swapped(body: Body) -> None:
    state, a, b = body["optimizer"]["state"], "model.parts.0.norm.weight", "model.parts.0.norm.bias"
    state[a], state[b] = state[b], state[a]


def _extra(body: Body) -> None:
    held = body["model"]["state_dict"]
    (name,) = [name for name in held if name.endswith("_extra_state")]
    held[name] = 0


def _python(body: Body) -> None:
    body["~rng"]["python"] = codec.encode(random.getstate())


def _one_bit(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    flat = value.view(-1)[:1].view(torch.int32)
    flat ^= 1
    return value


def _loader(change: Callable[[Any], Any]) -> Mutant:
    def patch(monkeypatch: Patch) -> None:
        real = Replay.load_state_dict
        monkeypatch.setattr(Replay, "load_state_dict", lambda self, state: real(self, change(state)))

    return patch


def _step(monkeypatch: Patch) -> None:
    real = Saver.restore
    monkeypatch.setattr(Saver, "restore", lambda self, tracked: max(0, real(self, tracked) - 1))


def _late_scheduler(monkeypatch: Patch) -> None:
    """What goes wrong most often elsewhere: groups are restored, then a scheduler's own start writes over them."""
    real = torch_state._put_back

    def put_back(name: str, thing: Any, *more: Any) -> None:
        real(name, thing, *more)
        if name == "optimizer":
            for group in thing.param_groups:
                group["lr"] = group["initial_lr"]

    monkeypatch.setattr(torch_state, "_put_back", put_back)


MODEL = r"model\.state_dict\..*"
MUTANTS: dict[str, tuple[str, Mutant]] = {
    "parameters": ("all", _tensors(r"model\.state_dict\.parts\.3\.0\.weight")),
    "one bit of one parameter": ("all", _tensors(r"model\.state_dict\.parts\.3\.0\.weight", _one_bit)),
    "batch norm's mean": ("all", _tensors(MODEL + "running_mean")),
    "batch norm's count": ("all", _tensors(MODEL + "num_batches_tracked")),
    "hidden buffers": ("all", _tensors(r"model\.hidden\..*")),
    "one hidden buffer": ("all", _tensors(r"model\.hidden\..*calls")),
    "extra state": ("all", _body(_extra)),
    "train and eval": ("all", _body(lambda body: body["model"].update(training=[]))),
    "frozen parameters": ("all", _body(lambda body: body["model"].update(frozen=[]))),
    "a whole model": ("all", _kept_as_built("model")),
    "a whole optimizer": ("all", _kept_as_built("optimizer")),
    "all moments": ("all", _body(lambda body: body["optimizer"].update(state={}))),
    "first moments": ("all", _tensors(r"optimizer\.state\..*exp_avg")),
    "second moments": ("all", _tensors(r"optimizer\.state\..*exp_avg_sq")),
    "counters of steps": ("all", _tensors(r"optimizer\.state\..*step")),
    "whose moments": ("all", _body(_swapped)),
    "learning rates": ("all", _option("lr", 0.002)),
    "initial learning rates": ("all", _option("initial_lr", 0.002)),
    "weight decay": ("all", _option("weight_decay", 0.3)),
    "betas": ("all", _option("betas", (0.8, 0.9))),
    "learning rates, by a late scheduler": ("all", _late_scheduler),
    "the scheduler": ("all", _kept_as_built("schedule")),
    "the scaler": ("all", _kept_as_built("scaler")),
    "the averaged model": ("all", _kept_as_built("average")),
    "the average by hand": ("dict", _kept_as_built("average")),
    "the script's own generator": ("all", _kept_as_built("own")),
    "the script's own state": ("all", _kept_as_built("notes")),
    "one value of the script's own": ("all", _body(lambda body: body["notes"].update(seen={}))),
    "Python's generator": ("all", _body(_python)),
    "NumPy's generator": ("all", _body(lambda body: body["~rng"].pop("numpy"))),
    "torch's generator": ("all", _body(lambda body: body["~rng"].pop("torch"))),
    "the loader": ("all", _kept_as_built("loader1")),
    "the loader's epoch": ("all", _loader(lambda state: dict(state, epoch=0))),
    "the loader's place in the epoch": ("all", _loader(lambda state: dict(state, offset=state["offset"] - 1))),
    "the step": ("keyed", _step),
    "what tensors are one": ("all", _tensors(r"notes\.(trace|again)", torch.clone)),
    "what arrays are one": ("all", _tensors(r"notes\.(sums|total)", numpy.copy)),
    "gradients being accumulated": ("micro", _body(lambda body: body["~grads"].pop("fresh"))),
    "that there are gradients": ("zeros", _body(lambda body: body.pop("~grads"))),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_piece_that_is_left_out_is_noticed(
    tmp_path: Path, wanted: dict[str, Rows], monkeypatch: Patch, name: str
) -> None:
    program, patch = MUTANTS[name]
    patch(monkeypatch)
    assert ends(PROGRAMS[program], tmp_path) != wanted[program]
