"""A job's sessions one after the other in this process: the real Session and Saver on the user's side, the real slots,
Shipper and fetch_newest on the runner's, and a folder as the store."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch
from tests.equality.programs.facts import facts
from tests.equality.programs.spec import Kill, Program
from tests.equality.programs.training import Parts, Row, build, one, settings

from gpuhop_worker import restore, wire
from gpuhop_worker.shipper import Shipper
from gpuhop_worker.slots import SlotKeeper
from gpuhop_worker.store import GrantStore
from gpuhop_worker.training import DRAINED, Session

JOB = "j"
Rows = dict[int, Row]


class Job:
    """The store and what one session after the other does to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.token = 0
        self.manifests: list[str] = []  # keys, newest first

    def store(self) -> GrantStore:
        keys = [
            wire.numbered_key(JOB, token, what, number)
            for token in range(1, self.token + 1)
            for what in ("pack", "manifest")
            for number in range(1, 41)
        ]
        return GrantStore(
            {key: dict.fromkeys(("get", "put", "delete"), (self.root / "store" / key).as_uri()) for key in keys}
        )

    def grant(self) -> wire.Grant:
        return wire.Grant(JOB, self.token, "s", "bench", "", "", "", 1e9, keep=2)

    @contextmanager
    def session(self, every: int) -> Iterator[OneSession]:
        self.token += 1
        made = OneSession(self, self.root / f"session-{self.token}", every)
        try:
            yield made
        finally:
            made.close()
            found = (self.root / "store").glob(f"jobs/{JOB}/t*/manifest-*.json")
            keys = [str(path.relative_to(self.root / "store")) for path in found]
            self.manifests = sorted(keys, key=lambda key: wire.manifest_place(key) or (0, 0), reverse=True)


class OneSession:
    """One session: the runner's half, and the Session object that the script talks to."""

    def __init__(self, job: Job, folder: Path, every: int) -> None:
        self.spool = folder / "spool"
        self.spool.mkdir(parents=True)
        self.drain = folder / "drain"
        self.folder = folder
        self.keeper = SlotKeeper(str(folder), memory=True)
        store = job.store()
        said: list[str] = []
        restored = restore.fetch_newest(job.manifests, JOB, store, self.keeper.slot("a"), said.append)
        assert not said, said
        self.shipper = Shipper(job.grant(), store, str(self.spool), self.keeper, lambda: 0, lambda: True, lambda: 0.0)
        if restored is not None:
            self.shipper.set_parent(restored)
            (folder / "manifest.json").write_bytes(restored.manifest.to_bytes())
        self.session = Session(self._config(restored, every))

    def _config(self, restored: restore.Restored | None, every: int) -> dict[str, Any]:
        names = ("spool", "progress", "drain", "pace")
        return {
            "restore": None if restored is None else str(self.folder / "manifest.json"),
            "restored_slot": None if restored is None else "a",
            "offsets": {} if restored is None else restored.offsets,
            "slots": self.keeper.paths,
            **{name: str(self.folder / name) for name in names},
            "metrics": str(self.folder / "metrics.jsonl"),
            "every_steps": every,
            "every_s": None,
            "every_auto": False,
            "mean_life_s": 1e4,
            "target_steps": None,
            "target_epochs": None,
            "time_scale": 1.0,
            "runner": os.getpid(),
        }

    def end(self, kind: str) -> None:
        """What is left of the session, after its command is gone."""
        saver = self.session._saver
        assert saver is not None
        saver.join()
        if kind == "vanish":
            shutil.rmtree(self.spool)
        else:
            self.shipper.ship_newest()

    def close(self) -> None:
        saver = self.session._saver
        assert saver is not None
        saver.join()
        self.keeper.close()


def scramble(number: int) -> None:
    """Generators as a new process has them: nothing of the session before is left in them."""
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Settings, generators and the handler of SIGTERM are as before afterwards."""
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])


Touch = Callable[[Parts], None]


def unbroken(program: Program) -> Rows:
    """Step -> its row, of a run without gpuhop around it."""
    settings()
    session = Session()
    rows: Rows = {}
    parts = build(program, session, program.seed, program.workers[0])
    for step in session.steps(program.steps):
        rows[step] = dict(one(program, parts, step), facts=facts(parts))
    return rows


def hopped(program: Program, root: Path) -> tuple[Rows, list[str]]:
    """The rows of a run that is killed as the program says, and its story. A step that is made again counts anew."""
    settings()
    job, rows, story = Job(root), dict[int, Row](), list[str]()
    for number, kill in enumerate([*program.kills, None]):
        workers = program.workers[min(number, len(program.workers) - 1)]
        scramble(77 + number)
        with job.session(program.every) as running:
            parts = build(program, running.session, program.seed + 100 * number * bool(job.manifests), workers)
            first, last = _train(program, running, parts, kill, rows)
            story.append(f"t{job.token}: steps {first}..{last}, {kill.kind if kill else 'end'}")
        if last == program.steps:
            break
    return rows, story


def _train(program: Program, running: OneSession, parts: Parts, kill: Kill | None, rows: Rows) -> tuple[int, int]:
    """Steps made by one session, until it is killed or done: (first, one past the last)."""
    first = made = -1
    kind = kill.kind if kill is not None else "drain"
    try:
        for step in running.session.steps(program.steps):
            first = step if first < 0 else first
            if kill is not None and step - first == kill.after and kind != "drain":
                made = step
                break
            rows[step] = dict(one(program, parts, step), facts=facts(parts))
            running.shipper.ship_newest()
            if kill is not None and step - first + 1 == kill.after and kind == "drain":
                running.drain.touch()
        else:
            made, kind = program.steps, "drain"
    except SystemExit as left:
        assert left.code == DRAINED, left.code
        made = running.session.step
    running.end(kind)
    return first, made
