"""What goes wrong in sessions: each ends in the right words and code, and nothing that was durable is lost."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.worker.http_store import serving
from tests.support import jobs
from tests.support.sessions import WORKERS, Bench, finish, kill
from tests.support.waiting import until

from gpuhop.platforms import host
from gpuhop_worker import wire

STEPS = 60


def bench_of(root: Path, script: str = jobs.PLAIN, **more: Any) -> Bench:
    return Bench(root, {"train.py": script}, **{"target_steps": STEPS, "every_steps": 5, **more})


def partly_trained(root: Path, checkpoints: int = 3) -> Bench:
    """A job whose first session vanished with so many checkpoints in the store."""
    bench = bench_of(root, keep=checkpoints)
    process = bench.start(bench.grant(), {"PAUSE": "0.02"})
    until(lambda: len(bench.manifests()) >= checkpoints, what="checkpoints")
    kill(process)
    return bench


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bench = bench_of(tmp_path_factory.mktemp("unbroken"))
    assert bench.run({"PAUSE": "0"})[0] == 0
    return bench.outcome()


# ---------------------------------------------------------------- damaged checkpoints


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(bytes(body))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def remove(path: Path) -> None:
    path.unlink()


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped bit": flip, "cut": cut, "zeroed": zero, "missing": remove}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("part", ["manifest", "pack"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, unbroken: dict[str, Any], part: str, damage: str
) -> None:
    bench = packed(tmp_path)
    newest, older = bench.manifests()[:2]
    step = bench.manifest(older).step
    grant = bench.grant()
    # Its own pack: it may name older ones too, that the checkpoint before it needs as well.
    own = max(pack["key"] for pack in bench.manifest(newest).packs)
    DAMAGE[damage](bench.path(newest if part == "manifest" else own))
    code, output = finish(bench.start(grant, {"PAUSE": "0"}))
    assert code == 0, output
    assert "falling back to the one before" in output
    assert newest.split("/", 2)[2] in output
    assert f"at step {step}\n" in output
    rows = [row["step"] for row in json.loads(bench.outcome()["metrics"])]
    assert rows == list(range(STEPS))


def packed(root: Path) -> Bench:
    """As partly_trained, with arrays, so that there are packs."""
    bench = bench_of(root, jobs.PACKED, keep=3)
    process = bench.start(bench.grant(), {"PAUSE": "0.02"})
    until(lambda: len(bench.manifests()) >= 3, what="checkpoints")
    kill(process)
    return bench


def test_a_pack_that_was_damaged_on_its_way_is_fetched_again(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store:
        bench = packed(tmp_path)
        bench.base_url = store.url
        path = bench.path(bench.latest().packs[0]["key"])
        good = path.read_bytes()
        step = bench.latest().step
        store.spoil[str(path.relative_to(bench.store))] = bytes(len(good))
        code, output = finish(bench.start(bench.grant(), {"PAUSE": "0"}))
        assert code == 0, output
        assert "falling back" not in output and f"at step {step}\n" in output


@pytest.mark.parametrize("damage", DAMAGE)
def test_when_all_are_damaged_nothing_starts_from_zero(tmp_path: Path, damage: str) -> None:
    bench = partly_trained(tmp_path)
    grant = bench.grant()
    for key in bench.manifests():
        DAMAGE[damage](bench.path(key))
    code, output = finish(bench.start(grant))
    assert (code, bench.result().reason, bench.result().status) == (11, "restore_failed", "failed"), output
    assert "none of the job's 3 checkpoints verifies" in bench.result().message
    assert "trained" not in output and bench.result().progressed is False
    assert bench.steps_logged() == 0


def test_a_machine_that_cannot_read_a_checkpoint_does_not_call_it_damaged(tmp_path: Path) -> None:
    """Python without the packages that the sessions before had: the state is whole, and another machine goes on."""
    bench = partly_trained(tmp_path)
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "blake3.py").write_text("raise ImportError\n")
    code, output = bench.run({"PYTHONPATH": f"{shadow}{os.pathsep}{WORKERS}"})
    assert (code, bench.result().reason) == (19, "worker_lacks"), output
    assert "needs the package blake3" in bench.result().message
    assert "trained" not in output
    code, output = bench.run({"PAUSE": "0"})
    assert code == 0, output


def test_a_manifest_of_another_job_or_place_is_refused(tmp_path: Path) -> None:
    bench = partly_trained(tmp_path)
    newest, older = bench.manifests()[:2]
    bench.path(newest).write_bytes(bench.path(older).read_bytes())  # whole, but it is another one
    code, output = bench.run({"PAUSE": "0"})
    assert code == 0 and "it belongs to another place" in output, output


# ---------------------------------------------------------------- the command's ends

ENDS: list[tuple[str, int, str, str]] = [
    # script, the session's exit code, reason, message
    ("import gpuhop_worker\nprint('bye')", 13, "ended_early", "the command exited 0 at step 0 of 60 steps"),
    ("raise SystemExit(1)", 13, "script_failed", "the command exited with 1"),
    ("raise ValueError('in the user\\'s code')", 13, "script_failed", "the command exited with 1"),
    ("import os\nos.kill(os.getpid(), 9)", 13, "script_killed", "the command was killed by signal 9"),
    ("import os\nos.kill(os.getpid(), 11)", 13, "script_killed", "the command was killed by signal 11"),
]


@pytest.mark.parametrize(("script", "code", "reason", "message"), ENDS, ids=lambda v: str(v)[:20])
@pytest.mark.parametrize("run", ["python train.py", "true; python train.py; true", "python train.py | cat"])
def test_ends_of_the_command(tmp_path: Path, run: str, script: str, code: int, reason: str, message: str) -> None:
    bench = bench_of(tmp_path, script)
    bench.command = run
    got, output = bench.run()
    assert (got, bench.result().reason, bench.result().message) == (code, reason, message), output
    assert bench.result().status == "failed" and not bench.result().progressed


def test_a_failure_after_progress_keeps_the_progress(tmp_path: Path) -> None:
    script = jobs.PLAIN.replace("    time.sleep(", "    if step == 33: raise ValueError('at 33')\n    time.sleep(")
    bench = bench_of(tmp_path, script)
    code, _ = bench.run({"PAUSE": "0.01"})
    result = bench.result()
    assert (code, result.reason, result.progressed) == (13, "script_failed", True)
    assert result.saved_step == bench.latest().step > 0
    assert b"ValueError: at 33" in bench.log()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("session.track(model=model, data=data)", "session.track(model=model)"), "the checkpoint holds 'data'"),
        (("session.track(model=model", "session.track(extra=data, model=model"), "'extra' is not in the checkpoint"),
        (("KeyedBatches(37", "KeyedBatches(38"), "data: ValueError: the data order was made with"),
        (('"big": 1 << 9000', '"big": object()'), "model.big is a builtins.object, which cannot be saved exactly"),
    ],
    ids=["missing", "extra", "other data", "unknown object"],
)
def test_a_script_that_does_not_fit_is_refused_before_its_first_step(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    bench = partly_trained(tmp_path)
    other = Bench(tmp_path, {"train.py": jobs.PLAIN.replace(*change)}, target_steps=STEPS)
    other.token = bench.token
    code, output = other.run()
    assert (code, other.result().reason) == (11, "restore_refused"), output
    assert said in output
    assert other.steps_logged() == 0


def test_state_that_turns_up_later_and_cannot_be_saved_is_named(tmp_path: Path) -> None:
    script = jobs.PLAIN.replace("    time.sleep(", "    if step == 12: model.odd = object()\n    time.sleep(")
    bench = bench_of(tmp_path, script)
    code, output = bench.run({"PAUSE": "0.005"})
    assert (code, bench.result().reason) == (11, "restore_refused"), output
    assert "gpuhop: model.odd is a builtins.object" in output
    assert bench.latest().step <= 12


def test_a_total_that_differs_from_the_target_is_an_error(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    code, output = bench.run({"STEPS_TOTAL": "70"})
    assert (code, bench.result().reason) == (13, "script_failed")
    assert "ValueError: job.yaml's target is 60 steps, the script asks for 70" in output


def test_a_second_process_or_a_second_loop_in_one_session_is_refused(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.command = "python train.py && python train.py"
    code, output = bench.run({"PAUSE": "0"})
    assert (code, bench.result().reason) == (11, "restore_refused"), output
    assert "one process trains, once" in output
    twice = bench_of(tmp_path / "b", jobs.PLAIN + "\nfor step in session.steps(60): pass\n")
    code, output = twice.run({"PAUSE": "0"})
    assert "RuntimeError: session.steps() runs once" in output


def test_the_script_runs_unchanged_without_gpuhop(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    bench = bench_of(tmp_path)
    (tmp_path / "train.py").write_text(jobs.PLAIN)
    env = {**os.environ, "PYTHONPATH": str(Path(wire.__file__).parents[1]), "PAUSE": "0"}
    done = subprocess.run(
        [*bench.worker[:1], "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained to 60\n", "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store", "train.py"]


# ---------------------------------------------------------------- before the command


def test_code_that_is_not_the_code_is_refused(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    flip(bench.path(wire.code_key("j", bench.sha)))
    code, _ = bench.run()
    assert (code, bench.result().reason) == (17, "code_damaged")


def test_a_missing_secret_is_named_and_nothing_runs(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, secrets=["HF_TOKEN", "OTHER_KEY"])
    code, output = bench.run({"HF_TOKEN": "x" * 20})
    assert (code, bench.result().reason) == (18, "secret_missing")
    assert bench.result().message == "not set here: OTHER_KEY"
    assert "trained" not in output


def test_a_secret_reaches_the_command_and_never_the_log(tmp_path: Path) -> None:
    secret = "hf_0123456789abcdefghij"
    script = (
        "import os, sys, time\ns = os.environ['HF_TOKEN']\nassert len(s) == 23\n"
        "print('whole', s)\nprint('twice', s + s)\n"
        "for c in s: sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.002)\n"
        "print()\nsys.stdout.write('x' * 65530 + s + '\\n')\nprint(s, file=sys.stderr)\nraise SystemExit(s)\n"
    )
    bench = bench_of(tmp_path, script, secrets=["HF_TOKEN"], setup="echo setting up with $HF_TOKEN")
    _, output = bench.run({"HF_TOKEN": secret})
    everything = b"".join(p.read_bytes() for p in bench.store.rglob("*") if p.is_file())
    for text in (output.encode(), bench.log(), everything):
        assert secret.encode() not in text and secret[5:15].encode() not in text
    assert bench.log().count(b"***") == 8


def test_a_failing_setup_ends_the_session(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, setup="echo preparing; false; echo not reached")
    code, output = bench.run()
    assert (code, bench.result().reason, bench.result().exit_code) == (12, "setup_failed", 1)
    assert b"preparing\n" in bench.log() and b"not reached" not in bench.log()
    assert "trained" not in output


def test_setup_runs_in_the_code_folder_before_the_command(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "print(open('made').read())", setup="echo by setup > made", target_steps=None)
    code, _ = bench.run()
    assert code == 0 and b"by setup" in bench.log()


@pytest.mark.parametrize("how", ["budget", "signal", "control"])
def test_an_order_during_setup_ends_it_and_its_children(tmp_path: Path, how: str) -> None:
    bench = bench_of(tmp_path, setup="touch begun; sleep 300 & sleep 300", budget_s=1.0 if how == "budget" else 3600.0)
    process = bench.start(bench.grant())
    until((bench.folder() / "code" / "begun").exists, what="setup")
    if how == "signal":
        process.send_signal(signal.SIGTERM)
    elif how == "control":
        bench.order("cancel")
    code, output = finish(process, 20.0)
    assert code == 0, output
    reason = {"budget": "budget", "signal": "signal", "control": "cancelled"}[how]
    assert (bench.result().status, bench.result().reason) == ("drained", reason)


@pytest.mark.parametrize("damage", [*DAMAGE, "other document"])
def test_a_damaged_grant_ends_with_10(tmp_path: Path, damage: str) -> None:
    bench = bench_of(tmp_path)
    bench.patience_s = 0.5
    key = wire.grant_key("j", 1)
    bench.write(key, bench.grant().to_gzip())
    path = bench.path(key)
    if damage == "other document":
        path.write_bytes(wire.Control(1).to_bytes())
    else:
        DAMAGE[damage](path)
    where = ["--grant", path.as_uri(), "--dir", str(bench.folder()), "--patience", "0.5"]
    env = {**os.environ, "PYTHONPATH": str(Path(wire.__file__).parents[1])}
    done = subprocess.run([*bench.worker, *where], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 10, done
    assert done.stderr.startswith("gpuhop: the grant cannot be read: ") and "Traceback" not in done.stderr


def test_a_worker_that_breaks_says_so_in_its_log(tmp_path: Path) -> None:
    """No address for the code: a bug of whoever made the grant. It must not vanish without a word."""
    bench = bench_of(tmp_path)
    grant = bench.grant()
    del grant.addresses[grant.code_key]
    code, _ = finish(bench.start(grant))
    assert code == 1
    assert b"a bug of gpuhop" in bench.log() and b"NotGranted" in bench.log()


# ---------------------------------------------------------------- orders while it trains


@pytest.mark.parametrize(
    ("order", "reason"), [("drain", "drained"), ("pause", "paused"), ("cancel", "cancelled"), ("TERM", "signal")]
)
def test_an_order_saves_and_ends_the_session(tmp_path: Path, unbroken: dict[str, Any], order: str, reason: str) -> None:
    bench = bench_of(tmp_path, every_steps=1000)
    process = bench.start(bench.grant(), {"PAUSE": "0.02"})
    until(lambda: bench.steps_logged() > 3, what="steps")
    if order == "TERM":
        process.send_signal(signal.SIGTERM)
    else:
        bench.order(order)
    code, output = finish(process)
    result = bench.result()
    assert (code, result.status, result.reason) == (0, "drained", reason), output
    assert result.saved_step == result.step == bench.latest().step > 3
    assert bench.steps_logged() == result.step
    bench.order("run", token=2)
    assert bench.run({"PAUSE": "0"})[0] == 0
    assert bench.outcome() == unbroken


def test_a_sigterm_to_the_whole_group_still_saves(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    """As a platform does it that signals every process: the shell dies at once, the training must not."""
    bench = bench_of(tmp_path, every_steps=1000)
    bench.command = "echo begin; python train.py; echo not reached"
    process = bench.start(bench.grant(), {"PAUSE": "0.02"})
    until(lambda: bench.steps_logged() > 3, what="steps")
    for pid in reversed(host.tree(process.pid)):
        os.kill(pid, signal.SIGTERM)
    code, output = finish(process)
    assert (code, bench.result().reason) == (0, "signal"), output
    assert bench.latest().step == bench.steps_logged() > 3
    assert bench.run({"PAUSE": "0"})[0] == 0
    assert bench.outcome() == unbroken


def test_a_used_up_budget_saves_before_the_end(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    bench = bench_of(tmp_path, every_steps=1000)
    code, output = bench.run({"PAUSE": "0.05"}, budget_s=1.2)
    result = bench.result()
    assert (code, result.status, result.reason) == (0, "drained", "budget"), output
    assert 0 < result.saved_step == bench.latest().step < STEPS
    assert bench.run({"PAUSE": "0"})[0] == 0
    assert bench.outcome() == unbroken


def test_a_budget_that_ends_during_restore_starts_no_command(tmp_path: Path) -> None:
    bench = partly_trained(tmp_path)
    code, output = bench.run(budget_s=0.0)
    assert (code, bench.result().reason, bench.result().saved_seq) == (0, "budget", 0), output
    assert bench.steps_logged() == 0


def test_checkpoints_by_seconds_of_the_sessions_clock(tmp_path: Path) -> None:
    clock: dict[str, Any] = {"time_scale": 10000.0, "beat_s": 1000.0, "log_s": 1000.0, "budget_s": 1e9}
    bench = bench_of(tmp_path, every_steps=None, every_s=1000.0, keep=100, **clock)
    code, _ = bench.run({"PAUSE": "0.02"})
    assert code == 0
    steps = sorted(bench.manifest(key).step for key in bench.manifests())
    assert len(steps) >= 4 and steps[-1] == STEPS
    assert all(b - a >= 4 for a, b in itertools.pairwise(steps[:-1])), steps


def test_checkpoints_by_steps(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, every_steps=20, keep=100)
    assert bench.run({"PAUSE": "0.02"})[0] == 0
    assert sorted(bench.manifest(key).step for key in bench.manifests()) == [20, 40, 60]


def test_old_checkpoints_are_removed_and_their_packs_too(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, jobs.PACKED, keep=2)
    assert bench.run({"PAUSE": "0.01"})[0] == 0
    assert len(bench.manifests()) == 2
    named = {pack["key"] for key in bench.manifests() for pack in bench.manifest(key).packs}
    assert {str(p.relative_to(bench.store)) for p in bench.store.rglob("pack-*")} == named


def test_a_grant_that_is_used_up_ends_the_session_with_a_checkpoint(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, jobs.PACKED, target_steps=None)
    grant = bench.grant(target_steps=None)
    for number in range(3, 201):  # with more than two they would be spread over the session's budget
        grant.addresses.pop(wire.numbered_key("j", 1, "manifest", number))
    code, output = finish(bench.start(grant, {"PAUSE": "0.02", "STEPS_TOTAL": "2000"}))
    result = bench.result()
    assert (code, result.status, result.reason) == (0, "drained", "budget"), output
    assert result.saved_seq == 2 and result.saved_step == result.step == bench.latest().step


# ---------------------------------------------------------------- floods, deaf commands, orphans


def test_a_flood_of_output_is_bounded_and_blocks_nothing(tmp_path: Path) -> None:
    script = "line = 'x' * 99\nfor i in range(1_000_000): print(line)\nprint('the end')\n"
    bench = bench_of(tmp_path, script, target_steps=None)
    grant = bench.grant(target_steps=None)
    process = bench.start(grant)
    assert process.stdout is not None
    peak = 0
    while True:
        piece = process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
        if not piece:
            break
        peak = max(peak, _rss(process.pid))
    assert process.wait(60) == 0
    assert len(bench.log()) < 8 * 512 * 1024 + 3 * 512 * 1024
    assert bench.log().endswith(b"gpuhop: session ends: the command exited 0\n")
    assert b"bytes of log were dropped here" in bench.log() and b"the end" in bench.log()
    assert 0 < peak < 150 * 1024 * 1024
    assert bench.result().status == "target"


def test_a_stdout_that_nobody_reads_holds_up_nothing(tmp_path: Path) -> None:
    script = "for i in range(100_000): print('x' * 99)\nprint('the end')\n"
    bench = bench_of(tmp_path, script, target_steps=None)
    process = bench.start(bench.grant(target_steps=None))
    assert process.wait(60) == 0
    assert bench.result().reason == "exited_0" and b"the end" in bench.log()
    process.communicate()


def test_a_pool_of_helpers_can_be_ended(tmp_path: Path) -> None:
    """Forked helpers inherit the handler of SIGTERM, and must die of it all the same, however early it comes."""
    script = jobs.PLAIN.replace(
        "    batch = data.batch(step)\n",
        "    if step % 2:\n        import multiprocessing\n"
        "        with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(abs, [-1]) == [1]\n"
        "    batch = data.batch(step)\n",
    )
    code, output = bench_of(tmp_path, script).run({"PAUSE": "0"}, timeout=60.0)
    assert code == 0, output


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (FileNotFoundError, IndexError, ProcessLookupError):
        return 0


def test_a_command_that_does_not_leave_is_killed_after_the_grace(tmp_path: Path) -> None:
    script = jobs.PLAIN.replace("    batch = data", "    time.sleep(600 if step == 12 else 0)\n    batch = data")
    bench = bench_of(tmp_path, script)
    process = bench.start(bench.grant(grace_s=1.0), {"PAUSE": "0.01"})
    until(lambda: bench.steps_logged() == 12 and not bench.snapshots(), what="the sleeping step")
    process.send_signal(signal.SIGTERM)
    code, output = finish(process, 20.0)
    assert (code, bench.result().status, bench.result().reason) == (0, "drained", "signal"), output
    assert "did not leave within 1 s of being asked: killing it" in output
    assert bench.result().saved_step == bench.latest().step >= 5


def test_what_the_command_leaves_running_is_killed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "import subprocess\nsubprocess.Popen(['sleep', '300'])\n", target_steps=None)
    code, _ = bench.run(timeout=20.0)
    assert (code, bench.result().reason) == (0, "exited_0")
    assert _processes_in(tmp_path) == []


@pytest.mark.parametrize("command", ["python train.py", "cd . && python train.py && true"])
def test_a_command_whose_worker_was_killed_does_not_train_on(tmp_path: Path, command: str) -> None:
    bench = bench_of(tmp_path, target_steps=100_000)
    bench.command = command
    process = bench.start(bench.grant(), {"PAUSE": "0.02", "STEPS_TOTAL": "100000"})
    until(lambda: bench.steps_logged() > 3, what="steps")
    os.kill(process.pid, signal.SIGKILL)  # not reaped: for the command its worker is a zombie from now on
    until(lambda: _processes_in(tmp_path) == [], 10.0, "the end of the command")
    process.communicate()


def _processes_in(folder: Path) -> list[int]:
    """Pids of processes that work in a folder below this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/cwd").startswith(str(folder)):
                    found.append(int(name))
            except OSError:
                continue
    return found


# ---------------------------------------------------------------- the store goes away


def test_an_outage_in_training_stops_nothing(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    with serving(tmp_path / "store") as store:
        bench = bench_of(tmp_path, base_url=store.url)
        process = bench.start(bench.grant(), {"PAUSE": "0.03"})
        until(bench.manifests, what="a checkpoint")
        store.down = True
        at = bench.steps_logged()
        until(lambda: bench.steps_logged() > at + 20, what="training through the outage")
        store.down = False
        code, output = finish(process)
    assert code == 0, output
    assert bench.outcome() == unbroken


def test_a_store_that_is_gone_at_the_end_is_code_15_in_bounded_time(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    with serving(tmp_path / "store") as store:
        bench = bench_of(tmp_path, base_url=store.url)
        bench.patience_s = 2.0
        process = bench.start(bench.grant(), {"PAUSE": "0.02"})
        until(bench.manifests, what="a checkpoint")
        store.down = True
        code, output = finish(process, 60.0)
        assert code == 15, output
        assert "the result could not be written" in output
        store.down = False
        assert bench.run({"PAUSE": "0"})[0] == 0
    assert bench.outcome() == unbroken


def test_a_store_that_refuses_is_not_flooded(tmp_path: Path) -> None:
    """A final refusal (an address that ran out) is tried again with growing pauses, not twenty times a second."""
    with serving(tmp_path / "store") as store:
        bench = bench_of(tmp_path, jobs.PACKED, base_url=store.url)
        store.refuse = "pack-"
        code, output = bench.run({"PAUSE": "0.05"})
        assert code == 15, output
        assert "HTTP 403" in output
        assert store.refused < 12


def test_a_store_that_refuses_to_delete_costs_no_checkpoint(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store:
        bench = bench_of(tmp_path, base_url=store.url, keep=1)
        bench.patience_s = 0.5
        store.refuse_delete = True
        code, output = bench.run({"PAUSE": "0.01"})
        assert (code, bench.result().status, bench.latest().step) == (0, "target", STEPS), output
        assert "waits" not in output


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.getuid() != 0:
        pytest.skip("mounting a small file system needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def on_disk(bench: Bench, disk: Path) -> None:
    disk_folder = disk / "session-1"
    disk_folder.mkdir()
    bench.folder().symlink_to(disk_folder)


def test_a_disk_that_is_full_for_a_while_costs_nothing(
    tmp_path: Path, small_disk: Path, unbroken: dict[str, Any]
) -> None:
    bench = bench_of(tmp_path)
    grant = bench.grant()
    on_disk(bench, small_disk)
    process = bench.start(grant, {"PAUSE": "0.03"})
    until(bench.manifests, what="a checkpoint")
    filler = small_disk / "filler"
    filler.write_bytes(b"")
    _fill(filler)
    at = bench.steps_logged()
    beat = bench.path(wire.beat_key("j", 1))
    until(lambda: wire.Beat.from_bytes(beat.read_bytes()).seq > 8, what="time on the full disk")
    assert process.poll() is None and at > 0
    filler.unlink()
    code, output = finish(process)
    assert code == 0, output
    assert "was skipped: No space left on device" in output
    assert bench.outcome() == unbroken


def _fill(path: Path) -> None:
    with path.open("ab", buffering=0) as out:
        for size in (1 << 16, 1 << 12, 1 << 8, 1):
            try:
                while True:
                    out.write(bytes(size))
            except OSError:
                continue


def test_a_disk_that_stays_full_ends_in_words_and_loses_no_checkpoint(
    tmp_path: Path, small_disk: Path, unbroken: dict[str, Any]
) -> None:
    bench = bench_of(tmp_path)
    grant = bench.grant()
    on_disk(bench, small_disk)
    process = bench.start(grant, {"PAUSE": "0.02"})
    until(lambda: bench.manifests() and not bench.snapshots(), what="a checkpoint")
    _fill(small_disk / "filler")
    code, output = finish(process)
    assert (code, bench.result().reason) == (16, "disk_full"), output
    assert bench.result().saved_step == bench.latest().step >= 5
    assert bench.run({"PAUSE": "0"})[0] == 0
    assert bench.outcome() == unbroken
