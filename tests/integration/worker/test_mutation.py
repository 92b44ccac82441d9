"""The comparison would notice: leave out any one piece of the saved state, and the resumed run ends elsewhere."""

from __future__ import annotations

import json
import random
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from tests.support import jobs

from gpuhop_worker import torch_state

pytestmark = pytest.mark.torch

HALF = 15
Parts = dict[str, Any]


def load_job() -> Any:
    """The torch training of the equality tests, as a module that was not started."""
    module = types.ModuleType("job")
    exec(compile(jobs.TORCH, "train.py", "exec"), module.__dict__)
    return module


@pytest.fixture(autouse=True)
def _same_settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


def snapshot(parts: Parts) -> tuple[Any, dict[str, Any]]:
    body, found = torch_state.capture(parts)
    rows = {n: (bytes(torch_state.bytes_of(v)), torch_state.entry_of(n, v)) for n, v in found.tensors}
    tensors = {n: torch_state.value_of(*row) for n, row in rows.items()}
    tensors.update({name: tensors[target] for name, target in found.aliases})
    return json.loads(json.dumps(body)), tensors


def outcome(parts: Parts) -> str:
    body, tensors = snapshot(parts)
    return json.dumps(body) + repr([(n, bytes(torch_state.bytes_of(t))) for n, t in tensors.items()])


def train(job: Any, parts: Parts, first: int, last: int) -> list[str]:
    return [
        repr({k: getattr(v, "item", lambda v=v: v)() for k, v in job.one(s, **parts).items()})
        for s in range(first, last)
    ]


def resumed(spoil: Callable[[Parts], None]) -> tuple[str, list[str]]:
    """(outcome, log of the second half) of a run that was saved and restored at the middle, then spoiled."""
    job = load_job()
    parts = job.build()
    train(job, parts, 0, HALF)
    body, tensors = snapshot(parts)
    job = load_job()  # seeds everything anew, as a new process does
    parts = job.build()
    kept = {title: thing for title, thing in parts.items() if title != getattr(spoil, "left_out", None)}
    body = {title: state for title, state in body.items() if title.startswith("~") or title in kept}
    body["~kinds"] = {title: kind for title, kind in body["~kinds"].items() if title in kept}
    torch_state.restore(kept, body, lambda name, own: tensors[name])
    spoil(parts)
    log = train(job, parts, HALF, 2 * HALF)
    return outcome(parts), log


@pytest.fixture(scope="module")
def whole() -> tuple[str, list[str]]:
    job = load_job()
    parts = job.build()
    log = train(job, parts, 0, 2 * HALF)
    return outcome(parts), log[HALF:]


def nothing(parts: Parts) -> None:
    pass


def without(title: str) -> Callable[[Parts], None]:
    def spoil(parts: Parts) -> None:
        pass

    spoil.__dict__["left_out"] = title
    return spoil


def without_moments(parts: Parts) -> None:
    parts["optimizer"].state.clear()


def swapped_moments(parts: Parts) -> None:
    state = parts["optimizer"].state
    a, b, *_ = [p for p in state if p.dim() == 1]
    state[a], state[b] = state[b], state[a]


def torch_generator(parts: Parts) -> None:
    torch.manual_seed(123)


def numpy_generator(parts: Parts) -> None:
    numpy.random.seed(123)


def python_generator(parts: Parts) -> None:
    random.seed(123)


def norm_statistics(parts: Parts) -> None:
    parts["model"].norm.reset_running_stats()


def hidden_buffer(parts: Parts) -> None:
    parts["model"].calls.zero_()


def one_bit(parts: Parts) -> None:
    flat = parts["model"].embed.weight.data.view(-1)[:1].view(torch.int32)
    flat ^= 1


def learning_rate(parts: Parts) -> None:
    parts["optimizer"].param_groups[0]["lr"] = 1e-2


def weight_decay(parts: Parts) -> None:
    parts["optimizer"].param_groups[0]["weight_decay"] = 0.0


def step_counter(parts: Parts) -> None:
    for state in parts["optimizer"].state.values():
        state["step"] = torch.tensor(0.0)


def fresh_weights(parts: Parts) -> None:
    with torch.random.fork_rng():
        parts["model"].embed.reset_parameters()


MUTATIONS = [
    *(without(title) for title in ("optimizer", "scheduler", "scaler", "ema", "noise")),
    *(
        without_moments,
        swapped_moments,
        step_counter,
        learning_rate,
        weight_decay,
        norm_statistics,
        hidden_buffer,
        one_bit,
        fresh_weights,
    ),
    *(torch_generator, numpy_generator, python_generator),
]


def test_with_everything_restored_the_runs_are_equal(whole: tuple[str, list[str]]) -> None:
    assert resumed(nothing) == whole


@pytest.mark.parametrize(
    "spoil", MUTATIONS, ids=lambda s: f"without {s.left_out}" if hasattr(s, "left_out") else s.__name__
)
def test_each_missing_piece_is_noticed(whole: tuple[str, list[str]], spoil: Callable[[Parts], None]) -> None:
    assert resumed(spoil)[0] != whole[0]
