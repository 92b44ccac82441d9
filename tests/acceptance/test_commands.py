"""Each command on an empty and on a small ledger: what it prints, its exit code, never a traceback."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest
from tests.support.commands import User, expected_sum, wait

from gpuhop.errors import Exit


def test_help_names_every_command(user: User) -> None:
    from gpuhop.cli import COMMANDS

    done = user.run("--help")
    assert done.returncode == 0
    assert all(re.search(rf"^  {name}\s", done.stdout, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("name", ["submit", "status", "logs", "quota", "serve", "store", "doctor", "db", "demo"])
def test_each_command_has_help(user: User, name: str) -> None:
    done = user.run(name, "--help")
    assert done.returncode == 0
    assert "Usage: gpuhop" in done.stdout


def test_unknown_command_offers_the_nearest(user: User) -> None:
    done = user.run("stauts")
    assert done.returncode == Exit.INVALID
    assert "Did you mean 'status'?" in done.stderr


def test_exit_codes_page_is_complete() -> None:
    page = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE))
    assert rows == {str(int(code)): code.name for code in Exit}


def test_empty_ledger(user: User) -> None:
    assert user.run("status").stdout == "no jobs yet\n  next: gpuhop submit job.yaml   (or gpuhop demo)\n"
    assert user.json("status") == []
    assert "local" in user.run("quota").stdout
    assert user.run("plan").stdout == "nothing to do: 0 unfinished job(s), 0 live session(s)\n"
    for command in (["logs", "x"], ["cancel", "x"], ["explain", "x"], ["status", "x"], ["fetch", "x"]):
        done = user.run(*command)
        assert done.returncode == Exit.NOT_FOUND, done
        assert done.stderr == "error: there is no job 'x'\n  next: gpuhop status   (lists all jobs)\n"


def test_broken_spec_shows_all_errors_at_once(user: User) -> None:
    path = user.project / "job.yaml"
    path.write_text("nam: x\nrun: 5\ntarget: {steps: -1}\n")
    done = user.run("submit", path)
    assert done.returncode == Exit.INVALID
    assert re.findall(r"job\.yaml:(\d+:\d+):", done.stderr) == ["1:1", "2:6", "3:17"]
    assert "did you mean: name" in done.stderr
    assert "Traceback" not in done.stderr
    as_json = user.run("submit", "-o", "json", path)
    assert as_json.returncode == Exit.INVALID
    assert len(json.loads(as_json.stdout)["errors"]) == 3


def test_missing_file_and_empty_code(user: User) -> None:
    done = user.run("submit", "nowhere.yaml")
    assert done.returncode == Exit.NOT_FOUND
    assert "next:" in done.stderr
    path = user.job(code="src")
    (user.project / "src").mkdir()
    done = user.run("submit", path)
    assert done.returncode == Exit.INVALID
    assert "next:" in done.stderr


def test_dry_run_queues_nothing_and_shows_no_secret(user: User) -> None:
    user.env["API_KEY"] = "canary-7f3a"
    path = user.job(secrets="[API_KEY]")
    done = user.run("submit", "--dry-run", "--show-launch", path)
    assert done.returncode == 0
    assert "would start now on local" in done.stdout
    assert "secret API_KEY" in done.stdout
    assert "canary-7f3a" not in done.stdout + done.stderr
    assert user.json("status") == []


def test_a_job_from_submit_to_fetch(user: User) -> None:
    path = user.job(total=40)
    done = user.run("submit", "--follow", path)
    assert done.returncode == 0, done.stderr
    assert "── t0001 on local, from step 0 ──" in done.stdout
    assert "the target is reached" in done.stdout
    (row,) = user.json("status")
    assert (row["state"], row["step"], row["reason"]) == ("done", 40, "target_reached")
    assert user.run("fetch", "count", "out").returncode == 0
    assert (user.project / "out" / "sum.txt").read_text() == repr(expected_sum(40))
    for command in ("status", "explain", "logs"):
        assert user.run(command, row["id"]).returncode == 0
    assert "submitted from" in user.run("logs", "--events", "count").stdout


def test_same_file_twice_asks_or_takes_new(user: User) -> None:
    path = user.job()
    first = user.submit(path)
    done = user.run("submit", path)
    assert done.returncode == Exit.INVALID
    assert first in done.stderr
    assert "--new" in done.stderr
    assert user.submit(path, "--new") != first


def test_a_script_that_fails(user: User) -> None:
    path = user.job(script="print('about to fail')\nraise SystemExit(3)\n")
    done = user.run("submit", "--follow", path)
    assert done.returncode == Exit.JOB_FAILED
    assert "about to fail" in done.stdout
    assert "the command exited with 3" in done.stdout
    assert "next: gpuhop logs" in done.stdout


def test_a_script_that_ends_before_its_target(user: User) -> None:
    path = user.job(script="print('done already')\n")
    done = user.run("submit", "--follow", path)
    assert done.returncode == Exit.JOB_FAILED
    assert "exited 0 at step 0 of 60 steps" in done.stdout


def test_a_secret_that_is_not_set(user: User) -> None:
    done = user.run("submit", "--follow", user.job(secrets="[API_KEY]"))
    assert done.returncode == Exit.JOB_FAILED
    assert "not set here: API_KEY" in done.stdout


def test_a_secret_reaches_the_script_and_nothing_else(user: User) -> None:
    user.env.update(API_KEY="canary-7f3a", AWS_SECRET_ACCESS_KEY="canary-aws")
    script = (
        "import os\nprint('key is', os.environ['API_KEY'], "
        "'aws' if os.environ.get('AWS_SECRET_ACCESS_KEY') else 'none')\n"
    )
    done = user.run("submit", "--follow", user.job(script=script, secrets="[API_KEY]", target="{until: exit}"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "key is *** none" in done.stdout
    for path in user.home.rglob("*"):
        if path.is_file():
            body = path.read_bytes()
            assert b"canary" not in body, path


def test_deadline_that_has_passed(user: User) -> None:
    done = user.run("submit", user.job(limits="{deadline: 2020-01-01T00:00:00Z}"))
    assert done.returncode == Exit.INVALID
    assert "has passed already" in done.stderr


def test_cancel_pause_resume_without_a_driver(user: User) -> None:
    job = user.submit(user.job(total=100000))
    done = user.run("pause", job)
    assert done.returncode == 0
    assert "nobody drives the queue now; next: gpuhop serve" in done.stdout
    with user.serving():
        user.wait_for(job, "paused")
        assert user.run("resume", job).returncode == 0
        user.wait_for(job, "running")
        assert user.run("cancel", job).returncode == 0
        user.wait_for(job, "cancelled")
    done = user.run("cancel", job)
    assert done.returncode == Exit.INVALID
    assert "already cancelled" in done.stderr


def test_a_cancelled_job_ends_follow_with_its_code(user: User) -> None:
    follower = user.start("submit", "--follow", str(user.job(total=100000)))
    wait(lambda: any(row["state"] == "running" for row in user.json("status")))
    (row,) = user.json("status")
    user.run("cancel", row["id"])
    out, _ = follower.communicate(timeout=60)
    assert follower.returncode == Exit.JOB_CANCELLED, out


def test_a_second_driver_is_refused_and_named(user: User) -> None:
    with user.serving() as serve:
        done = user.run("serve")
        assert done.returncode == Exit.LOCKED
        assert f"process {serve.pid}" in done.stderr
        done = user.run("submit", "--follow", user.job(total=20))
        assert done.returncode == 0, done.stderr
        assert "the loop is driven by process" in done.stderr


def test_a_database_from_a_newer_version(user: User) -> None:
    user.run("status")
    with sqlite3.connect(user.home / "ledger.sqlite") as db:
        db.execute("update alembic_version set version_num = '9999'")
    db.close()
    for command in ("status", "db"):
        done = user.run(command)
        assert done.returncode == Exit.DATABASE
        assert "newer gpuhop" in done.stderr
        assert "pip install --upgrade gpuhop" in done.stderr


def test_a_file_that_is_no_database(user: User) -> None:
    user.home.mkdir()
    (user.home / "ledger.sqlite").write_bytes(b"this is not SQLite" * 100)
    for command in ("status", "db"):
        done = user.run(command)
        assert done.returncode == Exit.DATABASE, done.stderr
        assert "Traceback" not in done.stderr
    assert "FAIL database" in user.run("doctor").stdout


def test_an_unreachable_store(user: User) -> None:
    user.env.update(
        GPUHOP_STORE="s3://bucket/p?endpoint=http://127.0.0.1:9", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b" * 20
    )
    done = user.run("submit", user.job())
    assert done.returncode == Exit.STORE, done.stderr
    assert "127.0.0.1:9" in done.stderr
    assert "next:" in done.stderr
    assert user.json("status") == []
    assert user.run("store", "check").returncode == Exit.STORE
    doctor = user.run("doctor")
    assert doctor.returncode == Exit.FAILED
    assert "FAIL store" in doctor.stdout


def test_a_broken_config(user: User) -> None:
    user.config("store = [")
    done = user.run("status")
    assert done.returncode == Exit.INVALID
    assert "not valid TOML" in done.stderr
    user.config("stor = 'x'\n")
    assert "unknown key 'stor'" in user.run("status").stderr
    user.config("[platforms.local]\nslotz = 2\n")
    assert "unknown key 'slotz'" in user.run("quota").stderr


def test_doctor_and_db_on_a_healthy_home(user: User) -> None:
    user.run("status")
    done = user.run("doctor")
    assert done.returncode == 0, done.stdout
    assert "FAIL" not in done.stdout
    shown = user.run("db").stdout
    assert "check     ok" in shown
    assert "driver    nobody" in shown
    assert user.run("store", "check").returncode == 0
