"""One fault at each point of a session: what was committed is there, nothing is doubled, the words are clear, the end
is equal to the unbroken run bit for bit, and what lies about is what the retention sweep finds.

Rows are points, in stages; columns are faults. Points are counted calls inside the real processes (tests/support/
injector), not moments. Where each cell is tried:

| stage                      | kill -9    | asleep | EIO, ENOSPC | refused | cut  | clock | no memory |
|----------------------------|------------|--------|-------------|---------|------|-------|-----------|
| begin: code, grant         | here       | A      | here, B     | L       | L    |       | here      |
| restore: packs, slot       | here, C    | A      | here        | L       | L    | here  | here      |
| hand over to the command   | here, C    | A      | here        |         |      | here  | here      |
| save: slot, draft          | here, C, R | A, Z   | here, B     |         |      | here  | here, M   |
| save: late copy            | T, C       |        | T           |         |      |       | T         |
| ship: slot, pack, metrics  | here, C    | A, Z   | here, B     | L, B    | L, B | here  | here      |
| commit                     | here, C    | A      | here        | L       | L    | here  |           |
| prune: each removal        | here, C    | A, Z   | here        | L, B    | L    | here  |           |
| tell: beat, orders, result | here       | A, Z   | here        | L, B    | L    | here  |           |
| local restart              | P, R       |        | P           |         |      |       |           |

A test_faults_asleep, B test_bad_luck, C test_crash_points, L test_faults_link, M below, P test_faults_restart,
R test_restarts, T test_faults_torch, Z test_zombie. "Asleep" is SIGSTOP past the lease, then SIGCONT; "refused" the
store's 403, 503 and 400, and a slow 200. An answer that is lost: "lost" here, "cut before" in L. Clock jumps in folder
mode: unit tests of the folder. A store killed in the middle: tests/integration/engine/test_s3.py. Damaged bytes:
tests/corruption.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.worker.faulty import PAUSE, SCRIPT, STEPS, World, check_and_finish, make_world, session
from tests.support.engine import quick_folder
from tests.support.injection import Fault, env_of

# What a session does to its machine and to a folder store, by stage. A session that touches anything else fails
# `test_the_table_names_every_point`.
POINTS: dict[str, list[str]] = {
    "begin": [
        "runner open claimed",
        "runner memfd slot",
        "runner mkdir home",
        "runner mkdir spool",
        "runner mkdir code",
        "runner fopen code",
        "runner read code",
        "runner create code",
        "runner write code",
    ],
    "restore": [
        "runner fopen manifest",
        "runner read manifest",
        "runner open slot",
        "runner ftruncate slot",
        "runner mmap slot",
        "runner fopen pack",
        "runner read pack",
        "runner pwrite slot",
        "runner create state",
        "runner write state",
        "runner replace state",
    ],
    "hand over": [
        "runner create session",
        "runner write session",
        "runner replace session",
        "command fopen session",
        "command read session",
        "command open claim",
        "command write claim",
        "command fopen state",
        "command read state",
        "command mmap slot",
    ],
    "save": [
        "command open lines",
        "command write lines",
        "command listdir spool",
        "command mkdir snap",
        "command open slot",
        "command pwrite slot",
        "command create draft",
        "command write draft",
        "command replace draft",
        "command create progress",
        "command write progress",
        "command replace progress",
    ],
    "ship": [
        "runner listdir spool",
        "runner fopen draft",
        "runner read draft",
        "runner mkdir shelf",
        "runner create temp",
        "runner write temp",
        "runner fsync temp",
        "runner link pack",
        "runner open shelf",
        "runner fsync shelf",
        "runner unlink temp",
        "runner fopen lines",
        "runner read lines",
        "runner replace segment",
    ],
    "commit": ["runner link manifest", "runner unlink draft", "runner rmdir snap"],
    "prune": ["runner unlink manifest", "runner unlink pack"],
    "tell": [
        "runner fopen progress",
        "runner read progress",
        "runner fopen beat",
        "runner read beat",
        "runner replace beat",
        "runner link result",
    ],
}
STAGE = {point: stage for stage, points in POINTS.items() for point in points}
MAKES = ("create", "write", "pwrite", "mkdir", "ftruncate", "link", "open")
CHANGES = ("mkdir", "link", "replace", "unlink", "rmdir", "fsync", "ftruncate")
ALONE = {"runner fopen result", "runner unlink slot"}  # of the claim and of what an earlier session left: no fault


def deeds(point: str) -> Iterator[tuple[str, bool]]:
    """(deed, stays) that can befall a point."""
    who, call, what = point.split(" ", 2)
    yield "EIO", False
    yield ("ENOSPC" if call in MAKES else "EIO"), True
    if what == "slot" and call in ("mmap", "memfd", "pwrite", "ftruncate"):
        yield "ENOMEM", False
        yield "ENOMEM", True
    if call in CHANGES:
        yield "lost", False
        yield "after kill", False
    yield "kill", False
    if who == "command":
        yield "kill runner", False
    elif STAGE[point] in ("ship", "commit", "prune", "tell"):
        yield "kill command", False
    if call in ("replace", "link", "unlink", "mmap"):
        yield ("forward" if len(point) % 2 else "back"), False


def every_case() -> list[Fault]:
    return [
        Fault(point, number, deed, stays)
        for point in STAGE
        for deed, stays in deeds(point)
        for number in (1, 2)
        if number == 1 or (STAGE[point] in ("ship", "commit", "prune") and ("kill" in deed or deed == "lost"))
    ]


FAST = 12
"""So many of them, a spread, are in the fast suite."""


def cases() -> list[Any]:
    found = every_case()
    quick = {len(found) * place // FAST for place in range(FAST)}
    return [pytest.param(one, marks=[] if at in quick else [pytest.mark.slow]) for at, one in enumerate(found)]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with quick_folder() as root:
        yield make_world(root)


@pytest.fixture
def place() -> Iterator[Path]:
    with quick_folder() as root:
        yield root


def test_the_table_names_every_point(world: World, place: Path) -> None:
    bench = world.bench(place)
    code, output = bench.run({"STEPS_TOTAL": str(STEPS), "PAUSE": PAUSE, **env_of(bench, None, place / "trace")})
    assert code == 0, output
    assert set((place / "trace").read_text().splitlines()) - ALONE == set(STAGE)


@pytest.mark.parametrize("fault", cases(), ids=str)
def test_each_point(world: World, place: Path, fault: Fault) -> None:
    bench = world.bench(place)
    told = session(bench, fault)
    # A command that dies before it has made a step is not started again (ADR 0012).
    check_and_finish(bench, world, told, fault, may=(13,) if fault.deed.endswith(("kill", "command")) else ())
    assert told.struck, told.output


def test_a_save_that_finds_no_memory_is_skipped(world: World, place: Path) -> None:
    """No call fails here: Python itself has no memory left while the state is gathered."""
    script = SCRIPT.replace(
        '    def state_dict(self):\n        return {"w"',
        '    def state_dict(self):\n        if session.step == 16: raise MemoryError\n        return {"w"',
        1,
    )
    assert script != SCRIPT
    other = World(world.root, world.unbroken, script)
    bench = other.bench(place)
    told = session(bench, Fault("none", 1, "EIO"))
    assert told.code == 0 and "the save at step 16 was skipped: Cannot allocate memory" in told.output, told.output
    check_and_finish(bench, other, told, "no memory")
