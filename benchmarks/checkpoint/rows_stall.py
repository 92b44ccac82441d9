"""What the training thread loses per save, with a window (forward and backward) and without one."""

from __future__ import annotations

import gc
import shutil
from collections import defaultdict

import torch
from benchmarks.checkpoint import methods
from benchmarks.checkpoint.engine import work_folder
from benchmarks.checkpoint.meter import Clock, Sample, median
from benchmarks.checkpoint.methods import Method
from benchmarks.checkpoint.states import Training
from benchmarks.checkpoint.table import Row, ms

FREQUENT = (methods.Gpuhop, methods.GpuhopNow, methods.Copy)  # cheap: several samples in every round


class Stall:
    """Samples of one state, methods in turns. Per save: the call, the join before the optimizer, and a whole step."""

    def __init__(self, shape: str, kinds: list[type[Method]]) -> None:
        self.training = Training(shape)
        self.folder = work_folder()
        self.methods, self.missing = methods.make(kinds, self.training, self.folder, shape)
        self.calls: dict[str, list[Sample]] = defaultdict(list)
        self.joins: dict[str, list[Sample]] = defaultdict(list)
        self.steps: list[float] = []

    def plain_step(self) -> None:
        with Clock() as clock:
            self.training.pass_()
            self.training.update()
        self.steps.append(clock.sample.wall)

    def one(self, method: Method, keep: bool) -> None:
        self.plain_step()
        gc.collect()
        with Clock() as call:
            method.save()
        self.training.pass_()
        with Clock() as join:
            method.join()
        self.training.update()
        method.drain()
        if keep:
            self.calls[method.name].append(call.sample)
            self.joins[method.name].append(join.sample)

    def run(self, rounds: int, often: int) -> None:
        for method in self.methods:
            for _ in range(2):  # both slots, cached buffers
                self.one(method, keep=False)
        for _ in range(rounds):
            for method in self.methods:
                for _ in range(often if isinstance(method, FREQUENT) else 1):
                    self.one(method, keep=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def wall(self, name: str) -> float:
        return median(a.wall + b.wall for a, b in zip(self.calls[name], self.joins[name], strict=True))

    def thread(self, name: str) -> float:
        return median(a.thread + b.thread for a, b in zip(self.calls[name], self.joins[name], strict=True))


def rows(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    plan = [("3M", 2, 3)] if quick else [("25M", 5, 3), ("125M", 3, 3)]
    found: list[Row] = []
    for shape, rounds, often in plan:
        stall = Stall(shape, methods.ALL)
        stall.run(rounds, often)
        samples = f"{rounds * often} of gpuhop and of the copy, {rounds} of the others; 1 compute thread"
        found += [_overlapped(stall, samples), _no_window(stall, samples)]
        del stall
        gc.collect()
    return found


def _lines(row: Row, stall: Stall, base: str) -> None:
    for method in stall.methods:
        name = method.name
        call, join = stall.calls[name], stall.joins[name]
        figures = (
            f"wall {ms(stall.wall(name))} (call {ms(median(s.wall for s in call))}, "
            f"join {ms(median(s.wall for s in join))}), thread CPU {ms(stall.thread(name))}"
        )
        row.add(name, figures, f"{stall.wall(name) / stall.wall(base):.2f} x")
    for line in stall.missing:
        name, _, why = line.partition(": ")
        row.missing(name, why)


def _overlapped(stall: Stall, samples: str) -> Row:
    size = stall.training.size()
    row = Row(
        f"stall, overlapped, {size / 1e9:.2f} GB",
        "<= 1 % of a step and <= 5 ms; >= 20 x less than DCP async_save's default",
        samples,
    )
    name, step = methods.Gpuhop.name, median(stall.steps)
    row.add("a step without a save", f"wall {ms(step)}")
    _lines(row, stall, name)
    row.judge("ms", stall.wall(name) * 1e3, 5.0)
    row.judge("% of a step", stall.wall(name) / step * 100, 1.0)
    if methods.DcpAsync.name in stall.calls:
        row.judge("x less than DCP", stall.wall(methods.DcpAsync.name) / stall.wall(name), 20.0, at_least=True)
    return row


def _no_window(stall: Stall, samples: str) -> Row:
    size = stall.training.size()
    row = Row(f"stall, no window, {size / 1e9:.2f} GB", "<= 1.15 x one numpy copy into warm buffers", samples)
    _lines(row, stall, methods.Copy.name)
    mine, copy = methods.GpuhopNow.name, methods.Copy.name
    row.judge("x a copy (wall)", stall.wall(mine) / stall.wall(copy), 1.15)
    row.add("thread CPU, gpuhop against the copy", "", f"{stall.thread(mine) / stall.thread(copy):.2f} x")
    return row
