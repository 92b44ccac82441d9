"""Kill it: the scheduler, the sessions, both; the job ends once and whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from typing import Any

import pytest
from tests.support.commands import User, expected_sum, wait

LAB = """
[lab]
hour_s = 0.5

[platforms.kaggle]
max_session_h = 12.0
window = { kind = "none" }
"""


def whole(user: User, job: str, total: int) -> None:
    """Done, every step once."""
    user.wait_for(job, "done", seconds=120)
    assert user.run("fetch", job, "out").returncode == 0
    assert (user.project / "out" / "sum.txt").read_text() == repr(expected_sum(total))


def session_pids(user: User) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"{user.home}/sessions"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def test_serve_killed_and_started_again_takes_the_session_up(user: User) -> None:
    total = 800
    job = user.submit(user.job(total=total, pause=0.02))
    with user.serving() as serve:
        user.wait_for(job, "running")
        wait(lambda: user.json("status", job)["step"] > 0)
        os.killpg(serve.pid, signal.SIGKILL)
        serve.wait()
    assert session_pids(user), "the session outlives its scheduler"
    with user.serving():
        whole(user, job, total)
    assert len(user.json("status", job)["history"]) == 1, "it was taken up, not started again"


def test_serve_ends_cleanly_on_sigterm_and_the_session_goes_on(user: User) -> None:
    total = 800
    job = user.submit(user.job(total=total, pause=0.02))
    with user.serving() as serve:
        user.wait_for(job, "running")
        serve.send_signal(signal.SIGTERM)
        out, _ = serve.communicate(timeout=30)
    assert serve.returncode == 0
    assert "running sessions go on" in out
    assert "Traceback" not in out
    assert session_pids(user)
    with user.serving():
        whole(user, job, total)


def test_sessions_killed_at_random(user: User) -> None:
    """Short lab sessions, each killed whole at a random moment, the scheduler killed now and then."""
    user.config(LAB)
    draw, total = random.Random(11), 1500
    job = user.submit(user.job(total=total))
    for _ in range(4):
        with user.serving():
            user.wait_for(job, "running", "done")
            start = user.json("status", job)["step"]
            ahead = start + draw.randrange(5, 60)
            wait(lambda ahead=ahead: user.json("status", job)["step"] >= ahead or user.state(job) == "done")  # type: ignore[misc]
            for pid in session_pids(user):
                kill(pid)
    with user.serving():
        whole(user, job, total)
    history: list[dict[str, Any]] = user.json("status", job)["history"]
    assert [row["token"] for row in history] == list(range(1, len(history) + 1))
    assert sum(row["state"] == "lost" for row in history) >= 3


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_logs_are_one_stream_with_marks(user: User) -> None:
    user.config(LAB)
    job = user.submit(user.job(total=1500, script="print('hello', flush=True)\n" + SCRIPT))
    with user.serving():
        wait(lambda: user.json("status", job)["saved_step"] >= 10 or user.json("status", job)["step"] > 30)
        for pid in session_pids(user):
            kill(pid)
        user.wait_for(job, "done", seconds=120)
    text = user.run("logs", job).stdout
    marks = [line for line in text.splitlines() if line.startswith("── t")]
    assert len(marks) == len(user.json("status", job)["history"]) >= 2
    assert text.count("hello\n") == len(marks)


SCRIPT = """
import gpuhop_worker, time
class S:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, s): self.n = s["n"]
s = S()
session = gpuhop_worker.session()
session.track(s=s)
for step in session.steps(1500):
    s.n += 1
    time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_the_demo(user: User) -> None:
    pytest.importorskip("torch")
    done = user.run("demo", "--dir", "demo", timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("identical, bit for bit") == 5
    assert "SIGKILL, silently" in done.stdout
    assert "hand-off: the demo opens" in done.stdout
    page = (user.project / "demo" / "report.html").read_text()
    assert "identical, bit for bit" in page
    assert "http" not in page.replace("http-equiv", ""), "the report asks no other host"
    again = user.run("demo", "--dir", ".")
    assert again.returncode == 2
    assert "is not an earlier demo" in again.stderr
