"""A script that knows nothing of gpuhop, hopping: it writes files, resumes from the newest, and ends equal."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.support import jobs
from tests.support.sessions import Bench, finish, kill
from tests.support.waiting import until

STEPS = 60
SETTINGS: dict[str, Any] = {
    "mode": "folder",
    "folder": "out",
    "every_steps": None,
    "every_s": 0.1,
    "target_steps": STEPS,
    "progress": r"^step (\d+)",
}


def bench_of(root: Path, script: str = jobs.FOLDER, **more: Any) -> Bench:
    return Bench(root, {"train.py": script}, **{**SETTINGS, **more})


def final(bench: Bench) -> Any:
    """The last checkpoint that the script wrote, and which file it says is the newest."""
    files = bench.outcome()["files"]
    assert files[".latest"][1] == b"out/ckpt-60.json"
    return json.loads(files["ckpt-60.json"][1])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    bench = bench_of(tmp_path_factory.mktemp("unbroken"))
    code, output = bench.run({"PAUSE": "0"})
    assert code == 0, output
    return final(bench)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 10))])
def test_killed_and_drained_it_ends_equal(tmp_path: Path, unbroken: Any, seed: int) -> None:
    draw = random.Random(seed)
    bench = bench_of(tmp_path)
    for _ in range(3):
        process = bench.start(bench.grant(), {"PAUSE": "0.06"})
        tenth = draw.randrange(5, 25)
        until(lambda: process.poll() is not None or _step(bench) >= tenth, what="progress", pause_s=0.001)  # noqa: B023
        if draw.random() < 0.4:
            process.send_signal(signal.SIGTERM)
            code, output = finish(process)
            assert code == 0, output
        else:
            kill(process)
    code, output = bench.run({"PAUSE": "0"})
    assert (code, bench.result().status) == (0, "target"), output
    assert final(bench) == unbroken


def _step(bench: Bench) -> int:
    """Steps that the session's script has made since it began, by its own files."""
    out = bench.folder() / "code" / "out"
    try:
        return max((int(n[5:-5]) for n in os.listdir(out) if n.endswith(".json")), default=0)
    except FileNotFoundError:
        return 0


def test_a_drain_lets_the_script_save_and_carries_it(tmp_path: Path, unbroken: Any) -> None:
    bench = bench_of(tmp_path, every_s=1e6, grace_s=3.0)
    process = bench.start(bench.grant(), {"PAUSE": "0.03"})
    until(lambda: _step(bench) >= 5, what="a checkpoint file")
    bench.order("drain")
    code, output = finish(process)
    assert (code, bench.result().reason, bench.result().exit_code) == (0, "drained", 3), output
    saved = bench.outcome()["files"][".latest"][1].decode()
    assert saved == f"out/ckpt-{bench.result().step}.json"
    bench.order("run", token=2)
    code, output = bench.run({"PAUSE": "0"})
    assert f"resumed at {saved[9:-5]}\n" in output
    assert final(bench) == unbroken


@pytest.mark.parametrize("run", ["cd . && python train.py", "python train.py | cat", "echo; python train.py; echo"])
def test_a_script_below_a_shell_gets_its_grace(tmp_path: Path, unbroken: Any, run: str) -> None:
    """The shell dies of the SIGTERM at once; the script needs half a second to save."""
    script = jobs.FOLDER.replace("    if stop:\n        sys.exit(3)", "    if stop:\n        sys.exit(0)").replace(
        "def save(state, step):\n", "def save(state, step):\n    time.sleep(0.5 if stop else 0)\n"
    )
    bench = bench_of(tmp_path, script, every_s=1e6, grace_s=3.0)
    bench.command = run
    process = bench.start(bench.grant(), {"PAUSE": "0.03"})
    until(lambda: _step(bench) >= 5, what="a checkpoint file")
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert (code, bench.result().status) == (0, "drained"), output
    assert bench.outcome()["files"][".latest"][1].decode() == f"out/ckpt-{bench.result().step}.json", output
    assert bench.run({"PAUSE": "0"})[0] == 0
    assert final(bench) == unbroken


def test_a_deaf_script_is_killed_and_its_last_whole_snapshot_is_kept(tmp_path: Path, unbroken: Any) -> None:
    bench = bench_of(tmp_path)
    process = bench.start(bench.grant(grace_s=2.0), {"PAUSE": "0.3", "IGNORE_TERM": "1"})
    until(bench.manifests, what="a snapshot")
    process.send_signal(signal.SIGTERM)
    code, output = finish(process, 30.0)
    assert (code, bench.result().reason) == (0, "signal"), output
    assert "did not leave within 2 s" in output
    code, output = bench.run({"PAUSE": "0"})
    assert code == 0 and "resumed at 0\n" not in output, output
    assert final(bench) == unbroken


TORN = """
import os, time
os.makedirs("out", exist_ok=True)
if os.path.exists("out/state"):
    text = open("out/state").read()
    print("resumed with", len(text), flush=True)
    assert len(text) == 1000 and set(text) == {"a"}, "a torn file was carried"
    raise SystemExit(0)
with open("out/state", "w") as out:
    out.write("a" * 1000)
time.sleep(2.5)  # still for long enough to be taken
with open("out/state", "w") as out:
    out.write("b" * 500)
    out.flush()
    open("torn", "w").close()
    {END}
"""


@pytest.mark.parametrize(
    ("end", "strike"),
    [("time.sleep(60)", signal.SIGTERM), ("os.kill(os.getpid(), 9)", None), ("raise SystemExit(1)", None)],
    ids=["told to stop", "killed", "failed"],
)
def test_a_file_torn_by_a_sudden_end_is_not_carried(tmp_path: Path, end: str, strike: signal.Signals | None) -> None:
    bench = bench_of(tmp_path, TORN.replace("{END}", end), target_steps=None, progress=None)
    process = bench.start(bench.grant(grace_s=4.0, restarts=0))
    until((bench.folder() / "code" / "torn").exists, what="the torn file")
    if strike is not None:
        process.send_signal(strike)
    code, output = finish(process, 30.0)
    assert code == (0 if strike else 13), output
    code, output = bench.run()
    assert code == 0 and "resumed with 1000" in output, output


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "raise SystemExit(1)"], ids=["killed", "failed"])
def test_a_torn_file_is_put_back_when_the_command_is_started_again(tmp_path: Path, end: str) -> None:
    bench = bench_of(tmp_path, TORN.replace("{END}", end), target_steps=None, progress=None)
    code, output = bench.run()
    assert code == 0 and "resumed with 1000" in output and "(1 of 3)" in output, output


def test_a_snapshot_that_waits_for_the_store_is_not_thrown_away_at_the_end(tmp_path: Path, unbroken: Any) -> None:
    """The last state was taken while the store was away; nothing new comes after it."""
    bench = bench_of(tmp_path)
    bench.patience_s = 30.0
    process = bench.start(bench.grant(), {"PAUSE": "0.01"})
    prefix = bench.store / "jobs" / "j" / "t0001"
    until(lambda: _step(bench) >= 5, what="a checkpoint file")
    away = tmp_path / "away"
    prefix.rename(away)
    prefix.write_bytes(b"no folder: every write fails")
    try:
        until(lambda: _step(bench) == STEPS, what="the last checkpoint file")
        until(lambda: _draft(bench), what="its snapshot", timeout_s=10.0)
    finally:
        prefix.unlink()
        away.rename(prefix)
    code, output = finish(process)
    assert (code, bench.result().status) == (0, "target"), output
    assert final(bench) == unbroken


def _draft(bench: Bench) -> bool:
    return any((bench.folder() / "spool" / name / "draft.json").exists() for name in bench.snapshots())


def test_a_target_is_reached_by_the_number_in_the_log(tmp_path: Path) -> None:
    script = (
        "import os\nos.makedirs('out', exist_ok=True)\nopen('out/a', 'w').write('x')\nprint('step 9\\rstep 10', end='')"
    )
    bench = bench_of(tmp_path, script, target_steps=10, progress=r"step (\d+)")
    code, output = bench.run()
    assert (code, bench.result().reason, bench.result().step) == (0, "target_reached", 10), output
    bench = bench_of(tmp_path / "b", script, target_steps=11, progress=r"step (\d+)")
    assert bench.run()[0] == 13
    assert bench.result().reason == "ended_early"


def test_a_pattern_that_this_python_does_not_know_is_said_and_stops_nothing(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "print('step 1')", target_steps=None, progress="(")
    code, output = bench.run()
    assert code == 0 and "is no pattern for Python" in output, output


def test_outputs_are_shipped_at_the_target_and_a_missing_one_is_said(tmp_path: Path) -> None:

    script = (
        "import os\nos.makedirs('o/p')\nopen('o/p/r.txt', 'w').write('result')\nos.symlink('/etc/passwd', 'o/link')\n"
    )
    bench = bench_of(tmp_path, script, target_steps=None, outputs=["o/**", "none-*"])
    code, output = bench.run()
    assert code == 0 and "no output matches 'none-*'" in output, output
    body = bench.path(bench.result().outputs[0]).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert tar.getnames() == ["o/p/r.txt"]
