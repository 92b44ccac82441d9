"""Every point where a crash can happen is tried: whatever is left, the next session goes on from a whole checkpoint
and the run ends equal to the unbroken one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.worker.http_store import HttpStore, serving
from tests.support import jobs
from tests.support.sessions import Bench, decode, finish, kill
from tests.support.waiting import until

from gpuhop.platforms import host

STEPS = 25
ENV = {"STEPS_TOTAL": str(STEPS), "PAUSE": "0.012"}
SETTINGS: dict[str, Any] = {"target_steps": STEPS, "every_steps": 5, "keep": 1, "log_s": 100.0}

# In the user's process: at the n-th time that it touches the session's disk, a SIGKILL to itself or to the runner.
BOMB = """
import json, os, resource, signal, sys

def plant():
    count = [0]
    if os.environ["GPUHOP_TOKEN"] != "1":
        return
    if "BYTES" in os.environ:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["BYTES"]),) * 2)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        return
    with open(os.environ["GPUHOP_SESSION"]) as source:
        victim = json.load(source)["runner"] if os.environ["WHO"] == "runner" else os.getpid()
    at = int(os.environ["CRASH_AT"])
    def hook(event, args):
        ours = event in ("open", "os.rename", "os.mkdir", "os.remove")
        if ours and ("/spool" in str(args[0]) or "/ctl" in str(args[0])):
            count[0] += 1
            if count[0] == at:
                os.kill(victim, signal.SIGKILL)
                signal.pause()
    sys.addaudithook(hook)

plant()
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bench = Bench(tmp_path_factory.mktemp("unbroken"), {"train.py": jobs.PACKED}, **SETTINGS)
    code, output = bench.run({**ENV, "PAUSE": "0"})
    assert code == 0, output
    return bench.outcome()


def check_store(bench: Bench) -> None:
    """What a crash left behind: the newest checkpoint, if there is one, is whole by itself."""
    if bench.manifests():
        manifest = decode.newest(bench.store, bench.job)
        assert [manifest["token"], manifest["seq"]] == [bench.latest().token, bench.latest().seq]
        steps = [row["step"] for row in decode.metrics(bench.store, bench.job)]
        assert steps[: manifest["step"]] == list(range(manifest["step"])), "metrics behind their checkpoint"


def finish_job(bench: Bench, unbroken: dict[str, Any], point: object) -> None:
    check_store(bench)
    newest = bench.latest().step if bench.manifests() else 0
    code, output = bench.run({**ENV, "PAUSE": "0"})
    assert code == 0, (point, output)
    if newest:
        assert f"at step {newest}\n" in output, (point, output)
    assert bench.outcome() == unbroken, point


# ---------------------------------------------------------------- the worker dies around each of its store writes


def killed_at_write(bench: Bench, store: HttpStore, number: int, when: str) -> bool:
    """One session that dies with all its processes at its n-th write. False: it ended before."""
    count = [0]

    def strike(method: str, key: str) -> bool:
        count[0] += not key.endswith("beat.json")
        if count[0] != number or key.endswith("beat.json"):
            return False
        host.kill_tree(process.pid)
        return True

    def ignore(method: str, key: str) -> bool:
        return False

    store.before = strike if when == "before" else ignore
    store.after = strike if when == "after" else ignore
    process = bench.start(bench.grant(), ENV)
    code, output = finish(process)
    until(lambda: store.busy == 0, what="the writes under way")
    store.before, store.after = ignore, ignore
    assert code in (0, -9), output
    return count[0] >= number


@pytest.mark.parametrize(
    "offset", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))], ids=lambda n: f"offset {n}"
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_each_store_write(tmp_path: Path, unbroken: dict[str, Any], when: str, offset: int) -> None:
    number = 1 + offset
    while True:
        root = tmp_path / str(number)
        with serving(root / "store") as store:
            bench = Bench(root, {"train.py": jobs.PACKED}, base_url=store.url, **SETTINGS)
            crashed = killed_at_write(bench, store, number, when)
            if crashed:
                finish_job(bench, unbroken, (when, number, store.writes[-30:]))
        if not crashed:
            break
        number += 3
    assert number > 12, "too few points were tried"


# ---------------------------------------------------------------- the user's process dies at each touch of the disk


def killed_at_touch(root: Path, number: int, who: str) -> tuple[Bench, bool]:
    bench = Bench(root, {"train.py": BOMB + jobs.PACKED}, **SETTINGS)
    code, output = bench.run({**ENV, "CRASH_AT": str(number), "WHO": who}, restarts=0)
    expected = {"self": 13, "runner": -9}[who]
    assert code in (0, expected), output
    return bench, code == expected


@pytest.mark.parametrize(
    "offset", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))], ids=lambda n: f"offset {n}"
)
@pytest.mark.parametrize("who", ["self", "runner"])
def test_killed_at_each_touch_of_the_disk(tmp_path: Path, unbroken: dict[str, Any], who: str, offset: int) -> None:
    number = 1 + offset
    while True:
        bench, crashed = killed_at_touch(tmp_path / str(number), number, who)
        if not crashed:
            break
        finish_job(bench, unbroken, (who, number))
        number += 4
    assert number > 24, "too few points were tried"


@pytest.mark.parametrize("size", [4500, 15000, 25000])
def test_killed_within_a_write(tmp_path: Path, unbroken: dict[str, Any], size: int) -> None:
    """The kernel kills the script when a file passes this size: a snapshot's slot, since metrics are smaller."""
    bench = Bench(tmp_path, {"train.py": BOMB + jobs.PACKED}, **SETTINGS)
    code, output = bench.run({**ENV, "BYTES": str(size)})
    assert (code, bench.result().reason, bench.result().exit_code) == (13, "script_killed", -25), output
    assert not list((bench.folder() / "spool").rglob("draft.json")), "no snapshot is whole"
    finish_job(bench, unbroken, size)


# ---------------------------------------------------------------- the second session dies while it begins


def _any_file(folder: Path) -> Callable[[], bool]:
    return lambda: folder.is_dir() and any(folder.iterdir())


@pytest.mark.parametrize("part", ["code", "ctl"])
def test_killed_while_it_begins(tmp_path: Path, unbroken: dict[str, Any], part: str) -> None:
    bench = Bench(tmp_path, {"train.py": jobs.PACKED}, **SETTINGS)
    first = bench.start(bench.grant(), ENV)
    until(lambda: len(bench.manifests()) > 0 and bench.latest().step >= 10, what="a checkpoint")
    kill(first)
    for _ in range(2):
        process = bench.start(bench.grant(), ENV)
        until(_any_file(bench.folder() / part), what=f"a file in {part}", pause_s=0.0)
        kill(process)
    finish_job(bench, unbroken, part)


def test_the_unbroken_run_logs_each_step_once(unbroken: dict[str, Any]) -> None:
    assert [row["step"] for row in json.loads(unbroken["metrics"])] == list(range(STEPS))
