"""A small training program as data: what a case of the equality suite runs. Standard library only: it travels into
the sessions' code archive."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Kill:
    """The end of a session after so many of its steps. vanish: only what is in the store counts; crash: the runner
    lives and ships the last whole snapshot; drain: the session is told to save and to leave."""

    after: int
    kind: str


@dataclass(frozen=True)
class Program:
    """`workers`: of the loader, session by session (the last one goes on); they differ for keyed loaders only."""

    seed: int
    model: str
    optimizer: str
    schedule: str
    loader: str
    impl: str = ""  # foreach | fused | forloop | "" (torch chooses)
    groups: int = 1
    maximize: bool = False
    clip: bool = False
    accumulate: int = 1  # batches per step, inside a step
    micro: int = 1  # steps per optimizer step: the window of accumulation spans session steps
    zero: str = "before"  # when gradients are cleared, and how: before | after | zeros
    scaler: bool = False
    overflow: bool = False  # some gradients are infinite: the scaler leaves out the optimizer's step
    ema: str = ""  # averaged | dict | ""
    draws: tuple[str, ...] = ()  # generators that the step draws from: python, numpy, torch, own
    augment: bool = False
    frozen: bool = False
    steps: int = 9
    every: int = 2
    kills: tuple[Kill, ...] = ()
    workers: tuple[int, ...] = (0,)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def from_json(text: str) -> Program:
    fields = json.loads(text)
    fields["kills"] = tuple(Kill(**kill) for kill in fields["kills"])
    fields |= {name: tuple(fields[name]) for name in ("draws", "workers")}
    return Program(**fields)
