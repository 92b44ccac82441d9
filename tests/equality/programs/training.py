"""The training that a Program describes, as a user would write it. `main` is a session's command."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from tests.equality.programs import data, models, optimizers
from tests.equality.programs.facts import facts
from tests.equality.programs.spec import Program, from_json

import gpuhop_worker

Row = dict[str, Any]


@dataclass
class Parts:
    """The live objects of one session."""

    model: Any
    optimizer: Any
    schedule: Any
    scaler: Any
    average: Any
    own: torch.Generator
    notes: Notes
    source: data.Source


class Notes:
    """State of the user's own: Python values, an array and a tensor under two names each."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.sums = numpy.zeros(3, dtype=numpy.float32)
        self.total = self.sums
        self.best: tuple[float, int] = (float("inf"), -1)
        self.trace = torch.zeros(4)
        self.again = self.trace

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def build(program: Program, session: Any, start: int, workers: int) -> Parts:
    """`start`: what the script seeds its generators with; a resumed session may take another: all is restored."""
    torch.manual_seed(start)
    random.seed(start)
    numpy.random.seed(start)
    model = models.MODELS[program.model]()
    if program.frozen:
        next(iter(model.parameters())).requires_grad_(False)
    optimizer = optimizers.make_optimizer(program, model)
    schedule = optimizers.SCHEDULES[program.schedule](optimizer, program.steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=3) if program.scaler else None
    average = optimizers.make_average(program, model)
    own, notes = torch.Generator().manual_seed(start), Notes()
    named = {"schedule": schedule, "scaler": scaler, "average": average}
    session.track(model=model, optimizer=optimizer, own=own, notes=notes)
    session.track(**{name: thing for name, thing in named.items() if thing is not None})
    source = data.LOADERS[program.loader](program, session, workers)
    return Parts(model, optimizer, schedule, scaler, average, own, notes, source)


def _drawn(program: Program, parts: Parts) -> float:
    draw: dict[str, Callable[[], float]] = {
        "python": random.random,
        "numpy": numpy.random.rand,
        "torch": lambda: torch.rand(()).item(),
        "own": lambda: torch.rand((), generator=parts.own).item(),
    }
    return sum(float(draw[name]()) for name in program.draws)


def _loss(program: Program, parts: Parts, x: torch.Tensor) -> torch.Tensor:
    dtype = next(parts.model.parameters()).dtype
    x = x.to(dtype) * (1.0 + 0.1 * _drawn(program, parts))
    out = parts.model(x).float()
    loss: torch.Tensor = (out - x[:, : models.OUT].float()).square().mean() / program.accumulate / program.micro
    return -loss if program.maximize else loss


def one(program: Program, parts: Parts, step: int) -> Row:
    """One session step. With `micro` > 1 the optimizer acts at every micro-th only."""
    optimizer, scaler = parts.optimizer, parts.scaler
    opens, closes = step % program.micro == 0, step % program.micro == program.micro - 1
    if opens and program.zero != "after":
        optimizer.zero_grad(set_to_none=program.zero != "zeros")
    losses: list[float] = []
    ids: list[int] = []
    for numbers, x in parts.source(step):
        loss = _loss(program, parts, x)
        much = 3e38 if program.overflow and step % 4 == 1 else 1.0
        (loss if scaler is None else scaler.scale(loss * much)).backward()
        losses.append(loss.item())
        ids += numbers.tolist()
    if closes:
        _update(program, parts, losses[-1])
    _note(parts, step, ids, losses)
    return {
        "loss": [loss.hex() for loss in losses],
        "ids": ids,
        "lr": [float(group["lr"]) for group in optimizer.param_groups],
    }


def _update(program: Program, parts: Parts, loss: float) -> None:
    optimizer, scaler = parts.optimizer, parts.scaler
    if program.clip:
        if scaler is not None:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parts.model.parameters(), 0.5)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    if program.zero == "after":
        optimizer.zero_grad(set_to_none=False)
    if parts.schedule is not None:
        parts.schedule.step(*([loss] if program.schedule == "plateau" else []))
    if parts.average is not None:
        parts.average.update_parameters(parts.model)


def _note(parts: Parts, step: int, ids: list[int], losses: list[float]) -> None:
    notes = parts.notes
    for number in ids:
        notes.seen[number] = notes.seen.get(number, 0) + 1
    notes.sums += numpy.float32(losses[0])
    notes.best = min(notes.best, (losses[0], step))
    notes.trace[step % 4] += losses[0]
    notes.again[0] += 1
    notes.total[1] += 1


def settings() -> None:
    """What decides about bits beside the program."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def main() -> None:
    """A session's command."""
    settings()
    program = from_json(os.environ["PROGRAM"])
    number = int(os.environ.get("GPUHOP_TOKEN", "1")) - 1
    session = gpuhop_worker.session()
    parts = build(program, session, program.seed, program.workers[min(number, len(program.workers) - 1)])
    for step in session.steps(program.steps):
        session.log(**one(program, parts, step), facts=facts(parts))
        time.sleep(float(os.environ.get("PAUSE", "0")))


if __name__ == "__main__":
    main()
