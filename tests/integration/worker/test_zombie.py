"""A session that was frozen and wakes after its successor has won: it is fenced, and it changes nothing of value."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import jobs
from tests.support.sessions import Bench, finish, freeze, thaw
from tests.support.waiting import until

from gpuhop.platforms import host
from gpuhop_worker import wire

STEPS = 60


def tree(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not p.name.startswith(".tmp-")
    }


def command_lines() -> list[bytes]:
    """Of every process here: the environment too, since a script's argv does not name its folder."""
    found = []
    for pid, _, _ in host.processes():
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/{name}").read_bytes())
    return found


def at_a_save(bench: Bench) -> bool:
    return bool(bench.manifests()) and bool(bench.snapshots())


def between_saves(bench: Bench) -> bool:
    return bool(bench.manifests()) and not bench.snapshots()


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("moment", [at_a_save, between_saves])
def test_a_zombie_wakes_and_is_fenced(tmp_path: Path, moment: Callable[[Bench], bool], keep: int) -> None:
    bench = Bench(tmp_path, {"train.py": jobs.PACKED}, target_steps=STEPS, every_steps=5, keep=keep)
    zombie = bench.start(bench.grant(), {"PAUSE": "0.03"})
    until(lambda: bench.steps_logged() > 12 and moment(bench), what="the moment", pause_s=0.0005)
    frozen = freeze(zombie)
    parents = {key: bench.path(key).read_bytes() for key in bench.manifests()}
    packs = {pack["key"] for key in parents for pack in bench.manifest(key).packs}

    grant = bench.grant()  # the scheduler gave the lease to somebody else
    bench.order("run", token=2)
    code, output = finish(bench.start(grant, {"PAUSE": "0"}))
    assert code == 0, output
    assert bench.result().status == "target"
    won = bench.outcome()
    before = tree(bench.store / wire.session_prefix("j", 2))
    newest = bench.manifests()[0]

    thaw(frozen)
    code, output = finish(zombie)
    assert code == 14, output
    assert tree(bench.store / wire.session_prefix("j", 2)) == before
    assert bench.manifests()[0] == newest
    assert bench.outcome() == won
    assert not bench.path(wire.result_key("j", 1)).exists()
    for key in [*parents, *packs]:
        assert bench.path(key).exists(), f"the zombie removed {key}, which its successor's grant names"


def test_a_zombie_that_cannot_ask_removes_nothing(tmp_path: Path) -> None:
    """control.json cannot be read: it may ship under its own token, where it harms nobody, but not prune."""
    bench = Bench(tmp_path, {"train.py": jobs.PACKED}, target_steps=STEPS, every_steps=5, keep=1, beat_s=1.0)
    control = bench.path(wire.control_key("j"))
    grant = bench.grant()
    zombie = bench.start(grant, {"PAUSE": "0.03"})
    until(lambda: bench.steps_logged() > 12 and between_saves(bench), what="a checkpoint")
    frozen = freeze(zombie)
    parents = bench.manifests()
    control.mkdir()  # a store that answers with an error
    asleep_at = time.monotonic()
    until(lambda: time.monotonic() - asleep_at > 2.5, what="its last look at control.json to be two beats old")
    thaw(frozen)
    code, output = finish(zombie)
    assert code == 0, output
    assert set(parents) <= set(bench.manifests())


def test_a_fenced_session_stops_training_and_kills_its_command(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"train.py": jobs.PACKED}, target_steps=100000, every_steps=5)
    process = bench.start(bench.grant(), {"STEPS_TOTAL": "100000"})
    until(bench.manifests, what="a checkpoint")
    bench.order("run", token=2)
    code, output = finish(process, 30.0)
    assert code == 14, output
    logged = bench.steps_logged()
    written = tree(bench.store)
    assert host.tree(process.pid) == [process.pid]
    assert not any(str(tmp_path).encode() in line for line in command_lines())
    assert (bench.steps_logged(), tree(bench.store)) == (logged, written)


def test_an_older_token_in_control_is_no_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"train.py": jobs.PACKED}, target_steps=STEPS, every_steps=5)
    bench.token = 6
    bench.order("cancel", token=5)
    code, _ = bench.run({"PAUSE": "0.01"})
    assert (code, bench.result().status) == (0, "target")


def test_a_session_runs_once(tmp_path: Path) -> None:
    """The same grant on the same machine, and on another one: the keys of a token have one writer."""
    bench = Bench(tmp_path, {"train.py": jobs.PACKED}, target_steps=STEPS, every_steps=5)
    grant = bench.grant()
    assert finish(bench.start(grant))[0] == 0
    before = tree(bench.store)
    code, output = finish(bench.start(grant))
    assert (code, "has run already" in output) == (14, True)
    bench.root = tmp_path / "another machine"
    code, output = finish(bench.start(grant))
    assert (code, "has run already" in output) == (14, True)
    assert tree(bench.store) == before
