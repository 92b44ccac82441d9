"""Training beside saves that never stop: the runner's process ships to a folder as fast as it can, one core is free."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import torch
from benchmarks.checkpoint.engine import work_folder
from benchmarks.checkpoint.meter import Clock, Sample, median
from benchmarks.checkpoint.runner_side import Runner
from benchmarks.checkpoint.states import Training
from benchmarks.checkpoint.table import Row, ms

from gpuhop_worker.saving import Saver

PLAIN, CODED, RAW = "steps without a save", "saving all the time, coded", "saving all the time, raw"


class Loop:
    """The user's loop as training.py has it, in blocks of steps."""

    def __init__(self, training: Training, folder: Path, steps: int) -> None:
        self.training = training
        self.steps = steps
        self.runners = {CODED: Runner(folder / "coded", "on"), RAW: Runner(folder / "raw", "off")}
        self.savers = {name: Saver(runner.config) for name, runner in self.runners.items()}
        for saver in self.savers.values():
            saver.hook(training.tracked())
        self.number = 0
        self.saves = dict.fromkeys(self.runners, 0)

    def block(self, name: str) -> Sample:
        """Mean of one step, after what was on its way has gone."""
        saver = self.savers.get(name)
        with Clock() as clock:
            for _ in range(self.steps):
                self.training.pass_()
                self.training.update()
                self.number += 1
                if saver is not None and saver.due(self.number):
                    saver.save(self.training.tracked(), self.number)
                    self.saves[name] += 1
        if saver is not None:
            saver.join()
            while any(Path(self.runners[name].config["spool"]).iterdir()):
                time.sleep(0.02)
        sample = clock.sample
        return Sample(sample.wall / self.steps, sample.thread / self.steps, sample.process / self.steps)


def rows(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    shape, steps, rounds = ("3M", 6, 2) if quick else ("25M", 10, 5)
    folder = work_folder()
    loop = Loop(Training(shape), folder, steps)
    for name in (PLAIN, CODED, RAW, CODED, RAW):  # both slots of each
        loop.block(name)
    loop.saves = dict.fromkeys(loop.runners, 0)
    found: dict[str, list[Sample]] = {PLAIN: [], CODED: [], RAW: []}
    order = [PLAIN, CODED, RAW]
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            found[name].append(loop.block(name))
    told = {name: runner.close() for name, runner in loop.runners.items()}
    row = Row(
        f"slow-down while saving all the time, {loop.training.size() / 1e9:.2f} GB",
        "<= 3 %",
        f"{rounds} blocks of {steps} steps each, in turns; 1 compute thread, runner on the other core",
    )
    base, base_cpu = median(s.wall for s in found[PLAIN]), median(s.thread for s in found[PLAIN])
    for name, samples in found.items():
        wall, thread = median(s.wall for s in samples), median(s.thread for s in samples)
        figures = f"step {ms(wall)} wall, {ms(thread)} CPU of the training thread"
        if name in told:
            done = loop.saves[name]
            cost = told[name]["cpu"] / max(1, told[name]["raw"]) * 1e9
            figures += f"; {done} saves in {rounds * steps} steps; runner {cost:.2f} CPU s/GB"
        row.add(name, figures, f"wall {wall / base:.3f} x, CPU {thread / base_cpu:.3f} x")
    for name in (CODED, RAW):
        pairs = [saving.wall / plain.wall - 1 for saving, plain in zip(found[name], found[PLAIN], strict=True)]
        row.judge(f"% slower ({name.rpartition(' ')[2]})", median(pairs) * 100, 3.0, "{:.1f}")
    shutil.rmtree(folder, ignore_errors=True)
    return [row]
