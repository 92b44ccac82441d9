"""Platforms whose sessions are processes here: the keeper killed at each stage, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.conformance.platforms.harness import ENVIRON, HARNESSES, Harness, mentioning, wait_dead
from tests.support.engine import START

from gpuhop.clock import LabClock
from gpuhop.domain.judge import Phase
from gpuhop.domain.quota import refill_at
from gpuhop.lab.platform import Habits, LabPlatform, profiles
from gpuhop.platforms import host
from gpuhop.platforms.base import Handle, RefusalKind, Refused

NAME = "s-t0001"


@pytest.fixture(params=["local", "lab-kaggle", "lab-colab"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = HARNESSES[request.param](tmp_path, ENVIRON)
    yield made
    made.platform.stop(Handle(NAME))


def work(harness: Harness) -> Path:
    return harness.bench.root / "sessions" / NAME


def note(harness: Harness, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((work(harness) / name).read_text())
    return found


def test_the_scheduler_dies_between_the_folder_and_the_keeper(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launching again by the same name makes up for it."""

    class Killed(BaseException):
        pass

    def die(*args: object, **more: object) -> None:
        raise Killed

    request = harness.request()
    for target in ("gpuhop.platforms.local.start_host", "gpuhop.lab.platform.start_host"):
        monkeypatch.setattr(target, die)
    with pytest.raises(Killed):
        harness.launch(request)
    assert harness.platform.poll(Handle(NAME)).phase in (Phase.QUEUED, Phase.AWAITING)
    monkeypatch.undo()
    handle = harness.launch(request)
    harness.wait(handle, Phase.RUNNING)
    assert len(harness.pids()) == 2


def test_a_keeper_that_dies_before_it_claims_is_gone(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    handle = harness.launch(harness.request())
    harness.wait(handle, Phase.GONE, timeout_s=5.0)


def test_a_keeper_that_dies_between_claim_and_start_is_gone(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(host.__file__).parent)!r}); import host; host.claim(sys.argv[-1])"
    fake = harness.bench.root / "fake-python"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    handle = harness.launch(harness.request())
    state = harness.wait(handle, Phase.GONE, timeout_s=5.0)
    assert state.started_at is None
    assert (work(harness) / "claimed").exists() and not (work(harness) / "started.json").exists()


def test_a_keeper_that_is_killed_takes_everything_with_it(harness: Harness) -> None:
    handle = harness.launch(harness.request(run="exec python train.py"))
    harness.wait(handle, Phase.RUNNING)
    command, _orphan = harness.pids()
    keeper, worker = note(harness, "started.json")["host"], note(harness, "started.json")["pid"]
    assert isinstance(keeper, int) and isinstance(worker, int)
    os.kill(keeper, signal.SIGKILL)
    state = harness.wait(handle, Phase.GONE, timeout_s=5.0)
    assert state.started_at is not None
    wait_dead([worker, command])
    os.kill(_orphan, signal.SIGKILL)  # the script's own daemon: nobody is left to know it
    if isinstance(harness.platform, LabPlatform):  # the service closes its books, once
        first = harness.platform.charges(harness.platform._clock.now())
        time.sleep(0.1)
        assert harness.platform.charges(harness.platform._clock.now()) == first


def test_a_worker_that_is_killed_leaves_no_orphan(harness: Harness) -> None:
    handle = harness.launch(harness.request())
    harness.wait(handle, Phase.RUNNING)
    pids = harness.pids()
    worker = note(harness, "started.json")["pid"]
    assert isinstance(worker, int)
    os.kill(worker, signal.SIGKILL)
    harness.wait(handle, Phase.GONE)
    wait_dead([worker, *pids])
    assert note(harness, "ended.json")["code"] == -9


def test_a_number_that_was_given_to_somebody_else_is_not_killed(harness: Harness) -> None:
    """After a restart of the machine another process has the worker's number."""
    handle = harness.launch(harness.request())
    harness.wait(handle, Phase.RUNNING)
    started = note(harness, "started.json")
    keeper = started["host"]
    assert isinstance(keeper, int)
    os.kill(keeper, signal.SIGKILL)
    harness.wait(handle, Phase.GONE)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "host.py"]) as stranger:
        try:
            (work(harness) / "ended.json").unlink(missing_ok=True)
            host.note(str(work(harness)), "started.json", {**started, "pid": stranger.pid})
            claimed = note(harness, "claimed")
            host.note(str(work(harness)), "claimed", {**claimed, "pid": stranger.pid})
            assert harness.platform.poll(handle).phase is Phase.GONE
            harness.platform.stop(handle)
            time.sleep(0.1)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_two_keepers_race_and_one_wins(harness: Harness) -> None:
    request = harness.request()
    handle = harness.launch(request)
    others = [subprocess.Popen([sys.executable, "-I", host.__file__, str(work(harness))]) for _ in range(3)]
    harness.wait(handle, Phase.RUNNING)
    harness.pids()
    worker = note(harness, "started.json")["pid"]
    assert isinstance(worker, int)
    workers = set(mentioning(harness.folder(NAME) + "/work"))
    assert worker in workers and workers <= set(host.tree(worker))  # a fork of the worker's looks like it for a moment
    harness.platform.stop(handle)
    for other in others:
        other.wait(10)


def test_a_stop_during_the_start_always_wins(harness: Harness) -> None:
    """Stopped after 0, 10, 20 ... ms: whatever the keeper was just doing, nothing of it lives on."""
    for index in range(12):
        name = f"s-t{index:04d}"
        handle = harness.launch(harness.request(name))
        time.sleep(index * 0.01)
        harness.platform.stop(handle)
        assert harness.wait(handle, Phase.GONE, timeout_s=5.0).phase is Phase.GONE
        wait_dead(mentioning(harness.folder(name)))


def test_silent_deaths_come_by_chance_and_the_same_each_time(tmp_path: Path) -> None:

    made = HARNESSES["lab-oracle"](tmp_path, ENVIRON)
    clock = LabClock(100.0, START, time.time())
    habits = Habits(mean_life_s=20.0, seed=3)
    platform = LabPlatform(profiles()["oracle"], tmp_path / "sessions", ENVIRON, clock, habits)
    made = replace(made, again=lambda: platform)
    request = made.request(limit_s=30.0)
    assert platform.render(request).fields["kill_s"] == platform.render(request).fields["kill_s"]
    handle = made.launch(request)
    made.wait(handle, Phase.GONE)
    assert json.loads((tmp_path / "sessions" / NAME / "ended.json").read_text())["why"] == "killed"


def test_the_quota_of_a_lab_platform_is_refused_with_its_refill(tmp_path: Path) -> None:

    clock = LabClock(100.0, START, time.time())
    for name in ("kaggle", "studiolab"):
        made = HARNESSES["lab-oracle"](tmp_path / name, ENVIRON)
        row = profiles()[name]
        row = replace(row, window=replace(row.window, amount_s=100.0))
        platform = LabPlatform(row, tmp_path / name / "sessions", ENVIRON, clock)
        made = replace(made, again=partial(copy, platform))
        made.wait(made.launch(made.request(limit_s=1.2)), Phase.GONE)
        with pytest.raises(Refused) as caught:
            made.launch(made.request("s-t0002"))
        assert caught.value.kind is RefusalKind.EXHAUSTED
        words = {
            "kaggle": "Maximum weekly GPU quota of 0.03 hours reached.",
            "studiolab": "usage limit of 0.03 hours reached",
        }
        assert caught.value.text == words[name]
        assert caught.value.until == refill_at(row.window, platform.charges(clock.now()), clock.now())
        assert caught.value.until is not None and caught.value.until > clock.now()
