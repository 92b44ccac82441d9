"""A machine that falls asleep at each point, is succeeded, and wakes: it is fenced, and changes nothing that counts.
(Stages and columns: test_faults.py.)"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.worker.faulty import (
    PAUSE,
    STEPS,
    World,
    check_leftovers,
    make_world,
)
from tests.support.engine import quick_folder
from tests.support.injection import Fault, env_of, mark_of
from tests.support.sessions import Bench, finish, freeze, thaw
from tests.support.waiting import until

from gpuhop_worker import wire

# (point, how often it comes before it strikes); the first of each stage is in the fast suite.
STAGES: dict[str, list[tuple[str, int]]] = {
    "begin": [("runner create code", 1), ("runner mkdir spool", 1)],
    "restore": [("runner pwrite slot", 1), ("runner fopen manifest", 1), ("runner mmap slot", 1)],
    "hand over": [("command read state", 1), ("runner replace session", 1), ("command open claim", 1)],
    "save": [("command pwrite slot", 1), ("command write draft", 2), ("command replace draft", 1)],
    "ship": [
        ("runner link pack", 2),
        ("runner write temp", 3),
        ("runner replace segment", 1),
        ("runner read draft", 1),
    ],
    "commit": [("runner link manifest", 2), ("runner link manifest", 1), ("runner rmdir snap", 1)],
    "prune": [("runner unlink manifest", 1), ("runner unlink pack", 1), ("runner unlink pack", 2)],
    "tell": [("runner replace beat", 2), ("runner link result", 1)],
}


def cases() -> Iterator[Any]:
    for points in STAGES.values():
        for at, (point, number) in enumerate(points):
            for deed in ("stop", "after stop"):
                marks = [] if at == 0 and deed == "stop" else [pytest.mark.slow]
                yield pytest.param(Fault(point, number, deed), marks=marks, id=f"{point} {number} {deed}")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with quick_folder() as root:
        yield make_world(root)


def bytes_of(bench: Bench, token: int) -> dict[str, str]:
    folder = bench.store / wire.session_prefix(bench.job, token)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("fault", list(cases()))
def test_asleep_past_its_lease(world: World, fault: Fault) -> None:
    with quick_folder() as root:
        bench = world.bench(root)
        grant = bench.grant()
        mark = mark_of(bench)
        env = {"STEPS_TOTAL": str(STEPS), "PAUSE": PAUSE, **env_of(bench, fault)}
        zombie = bench.start(grant, env)
        until(lambda: mark.exists() or zombie.poll() is not None, what=f"{fault}")
        asleep = freeze(zombie)
        saved = {key: bench.path(key).read_bytes() for key in bench.manifests()}
        packs = {pack["key"] for pack in bench.latest().packs}

        bench.order("run", token=3)  # the scheduler gave the lease to somebody else
        code, output = bench.run({"STEPS_TOTAL": str(STEPS), "PAUSE": "0"})
        assert (code, bench.result().status) == (0, "target"), output
        won, theirs, newest = bench.outcome(), bytes_of(bench, 3), bench.manifests()[0]

        thaw(asleep)
        code, output = finish(zombie, 60.0)
        assert code == 14 or (code == 0 and fault.point == "runner link result"), output
        assert "Traceback" not in output and "bug of gpuhop" not in output, output
        assert bytes_of(bench, 3) == theirs
        assert bench.manifests()[0] == newest and bench.outcome() == won == world.unbroken
        for key in packs | {max(saved)}:
            assert bench.path(key).exists(), f"the zombie removed {key}, which its successor went on from"
        for key, body in saved.items():
            assert not bench.path(key).exists() or bench.path(key).read_bytes() == body
        check_leftovers(bench, fault)
