"""What every platform must do, whatever stands behind it."""

from __future__ import annotations

import json
import time

import pytest
from tests.conformance.platforms.harness import CANARY, ENVIRON, Harness, wait_dead

from gpuhop.domain.judge import Phase
from gpuhop.lab.platform import LabPlatform
from gpuhop.platforms.base import Handle, RefusalKind, Refused


def test_launch_run_and_stop(harness: Harness) -> None:
    request = harness.request()
    handle = harness.launch(request)
    running = harness.wait(handle, Phase.RUNNING)
    pids = harness.pids()
    harness.platform.stop(handle)
    gone = harness.wait(handle, Phase.GONE)
    wait_dead(pids)
    assert gone.started_at is not None and gone.ended_at is not None and gone.ended_at >= gone.started_at
    assert running.started_at in (None, gone.started_at)
    harness.wait_empty(request.name)


def test_launching_the_same_name_again_starts_nothing(harness: Harness) -> None:
    request = harness.request()
    first = harness.launch(request)
    harness.wait(first, Phase.RUNNING)
    pids = harness.pids()
    for _ in range(3):
        platform = harness.platform  # as after a restart
        assert platform.launch(platform.render(request)) == first
    time.sleep(0.3 if harness.service is None else 0.0)
    assert harness.pids() == pids
    assert harness.platform.poll(first).phase is Phase.RUNNING
    harness.platform.stop(first)
    harness.wait(first, Phase.GONE)
    platform = harness.platform
    assert platform.launch(platform.render(request)) == first
    assert platform.poll(first).phase is Phase.GONE  # a name that has ended stays ended


def test_unknown_handles(harness: Harness) -> None:
    for handle in (Handle("never-heard-of"), Handle("x-t0001", "link")):
        assert harness.platform.poll(handle).phase is Phase.GONE
        harness.platform.stop(handle)
        harness.platform.stop(handle)
        assert "".join(harness.platform.logs(handle)).strip()
        assert harness.platform.poll(handle).phase is Phase.GONE


def test_stop_is_silent_about_what_is_over(harness: Harness) -> None:
    handle = harness.launch(harness.request())
    harness.wait(handle, Phase.RUNNING)
    for _ in range(3):
        harness.platform.stop(handle)
    first = harness.wait(handle, Phase.GONE)
    harness.platform.stop(handle)
    assert harness.platform.poll(handle) == first


def test_stopped_before_it_began_it_never_begins(harness: Harness) -> None:
    request = harness.request()
    platform = harness.platform
    handle = platform.launch(platform.render(request))
    platform.stop(handle)
    harness.press(request.name)
    harness.pass_time(1.0)
    state = harness.wait(handle, Phase.GONE)
    harness.wait_empty(request.name)
    used = (
        0.0
        if state.started_at is None or state.ended_at is None
        else (state.ended_at - state.started_at).total_seconds()
    )
    assert used <= 1.0 * harness.scale


def test_the_limit_ends_it_silently_with_everything_in_it(harness: Harness) -> None:
    request = harness.request(limit_s=1.5)
    handle = harness.launch(request)
    harness.wait(handle, Phase.RUNNING)
    pids = harness.pids()
    state = harness.wait(handle, Phase.GONE)
    wait_dead(pids)
    assert state.started_at is not None and state.ended_at is not None
    lasted = (state.ended_at - state.started_at).total_seconds() / harness.scale
    assert 1.5 <= lasted < 3.0
    harness.wait_empty(request.name)


def test_it_ends_by_itself(harness: Harness) -> None:
    handle = harness.launch(harness.request(run="python quick.py", budget_s=5.0))
    state = harness.wait(handle, Phase.GONE)
    assert state.started_at is not None and state.ended_at is not None
    assert "".join(harness.platform.logs(handle)).strip()


def test_render_is_pure_printable_and_holds_no_secret(harness: Harness) -> None:
    request = harness.request(secrets=["MY_SECRET"])
    first, second = harness.platform.render(request), harness.platform.render(request)
    assert first == second
    assert first.name == request.name and first.title and first.body
    assert CANARY not in json.dumps([first.name, first.title, first.body, dict(first.fields)], default=str)
    assert not (harness.bench.root / "sessions").exists()  # nothing was written


def test_no_credential_reaches_the_session_or_the_disk(harness: Harness) -> None:
    if harness.service is not None:
        pytest.skip("a scripted session has no environment")
    handle = harness.launch(harness.request(run="python env.py", secrets=["MY_SECRET"]))
    harness.wait(handle, Phase.GONE)
    inside = json.loads((harness.bench.root / "s-t0001.pids").read_text())
    leaked = {name for name in inside if name.startswith(("AWS_", "KAGGLE_", "GPUHOP_HOME", "GPUHOP_STORE"))}
    assert leaked == set()
    assert inside["PATH"].endswith(ENVIRON["PATH"])
    assert inside["MY_SECRET"] == CANARY  # asked for by name
    written = [path for path in (harness.bench.root / "sessions").rglob("*") if path.is_file()]
    assert written and not [path for path in written if CANARY.encode() in path.read_bytes()]


def test_all_slots_taken(harness: Harness) -> None:
    if harness.name == "local":
        pytest.skip("this machine refuses nobody: the planner keeps to its slots")
    slots = harness.platform.profile.slots
    for index in range(slots):
        harness.wait(harness.launch(harness.request(f"s-t{index:04d}", limit_s=20.0)), Phase.RUNNING)
    platform = harness.platform
    with pytest.raises(Refused) as caught:
        platform.launch(platform.render(harness.request("s-t9999")))
    assert caught.value.kind is RefusalKind.SLOTS
    if harness.name == "kaggle":
        assert caught.value.text == "Maximum batch GPU session count of 2 reached."
    assert str(slots) in caught.value.text
    assert platform.poll(Handle("s-t9999")).phase is Phase.GONE
    # Once one has ended there is room.
    harness.platform.stop(Handle("s-t0000"))
    harness.wait(Handle("s-t0000"), Phase.GONE)
    harness.launch(harness.request("s-t9999"))


def test_an_attended_session_waits_for_a_person(harness: Harness) -> None:
    platform = harness.platform
    if not platform.profile.attended:
        pytest.skip("nobody needs to open these")
    request = harness.request()
    handle = platform.launch(platform.render(request))
    assert handle.link and request.name in handle.link
    harness.pass_time(0.5)
    assert platform.poll(handle).phase is Phase.AWAITING
    harness.press(request.name)
    harness.press(request.name)  # a second click starts no second session
    harness.wait(handle, Phase.RUNNING)
    harness.platform.stop(handle)
    harness.wait(handle, Phase.GONE)


def test_usage_is_the_services_own_count(harness: Harness) -> None:
    platform = harness.platform
    if not isinstance(platform, LabPlatform):
        pytest.skip("no service that counts stands behind this one")
    lasted = []
    for index in range(2):
        handle = harness.launch(harness.request(f"s-t{index:04d}", limit_s=0.8))
        state = harness.wait(handle, Phase.GONE)
        assert state.started_at is not None and state.ended_at is not None
        lasted.append((state.ended_at - state.started_at).total_seconds())
    usage = platform.usage(platform._clock.now())
    assert usage is not None and usage.used_s == pytest.approx(sum(lasted), abs=1.0)
    assert sorted(row.seconds for row in platform.charges(platform._clock.now())) == pytest.approx(sorted(lasted))
