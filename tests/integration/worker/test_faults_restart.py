"""The command crashes, and a second fault comes while it is started again on its machine (ADR 0012). (Columns:
test_faults.py.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.worker.faulty import PAUSE, SCRIPT, STEPS, World, check_and_finish, make_world, session
from tests.support.engine import quick_folder
from tests.support.injection import Fault, env_of
from tests.support.sessions import finish

CRASHED = "code/crashed"
DYING = SCRIPT.replace(
    "    batch = data",
    "    if step == 18 and os.environ['GPUHOP_TOKEN'] == '2' and not os.path.exists('crashed'):\n"
    "        open('crashed', 'w').close()\n"
    "        os.kill(os.getpid(), 9)\n"
    "    batch = data",
    1,
)

# What the runner touches between the crash and the first step of the second life, and the command at its beginning.
POINTS = [
    "runner fopen lines",
    "runner fopen draft",
    "runner listdir spool",
    "runner fopen claim",
    "runner read claim",
    "runner unlink claim",
    "runner write lines",
    "runner unlink progress",
    "runner open slot",
    "runner create state",
    "runner write state",
    "runner replace state",
    "runner create session",
    "runner write session",
    "runner replace session",
    "command fopen session",
    "command read session",
    "command open claim",
    "command write claim",
    "command read state",
    "command mmap slot",
]


def cases() -> list[Any]:
    found = []
    for point in POINTS:
        for deed, stays in (("EIO", False), ("ENOSPC", True), ("kill", False)):
            fault = Fault(point, 1, deed, stays, CRASHED)
            marks = [] if (point, deed) in FAST else [pytest.mark.slow]
            found.append(pytest.param(fault, marks=marks, id=str(fault)))
    return found


FAST = {("runner create session", "ENOSPC"), ("runner write lines", "kill"), ("command mmap slot", "EIO")}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with quick_folder() as root:
        yield make_world(root, DYING)


def test_the_table_holds_points_of_a_restart(world: World) -> None:
    with quick_folder() as root:
        bench = world.bench(root)
        trace = root / "trace"
        fault = Fault("none", 1, "EIO", after=CRASHED)
        grant = bench.grant()
        env = {"STEPS_TOTAL": str(STEPS), "PAUSE": PAUSE, **env_of(bench, fault, trace)}
        code, output = finish(bench.start(grant, env))
        assert code == 0 and "started again from step" in output, output
        # Nothing is fetched for it: the store is written to, never read but for orders.
        seen = set(trace.read_text().splitlines())
        assert set(POINTS) <= seen
        assert not {"runner fopen pack", "runner fopen manifest"} & seen


@pytest.mark.parametrize("fault", cases())
def test_a_fault_while_it_is_started_again(world: World, fault: Fault) -> None:
    with quick_folder() as root:
        bench = world.bench(root)
        told = session(bench, fault)
        assert told.struck, told.output
        check_and_finish(bench, world, told, fault, may=(13,))
        if told.code == 13:
            assert "cannot be started again here" in told.output or told.struck, told.output
