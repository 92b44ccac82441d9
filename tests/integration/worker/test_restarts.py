"""A command that crashes goes on in the same session, from what lies on its machine, and ends equal."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.worker.http_store import HttpStore, serving
from tests.support import jobs
from tests.support.sessions import Bench, finish
from tests.support.waiting import until

from gpuhop_worker.wire import session_prefix

STEPS = 60

# Dies by itself at some step, once; the marker lies outside of what a checkpoint holds.
CRASH = """
def crash(step):
    if step == int(os.environ["AT"]) and not os.path.exists("crashed"):
        open("crashed", "w").close()
        how = os.environ["HOW"]
        if how.startswith("SIG"):
            import resource, signal
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), getattr(signal, how))
            signal.pause()
        os._exit(int(how)) if how != "raise" else exec("raise ValueError('once')")

"""


def with_crash(script: str) -> str:
    """After the step was logged and before it was completed."""
    head, _, tail = script.partition("import gpuhop_worker\n")
    assert "    time.sleep(" in tail
    return head + "import gpuhop_worker\n" + CRASH + tail.replace("    time.sleep(", "    crash(step)\n    time.sleep(")


def bench_of(root: Path, script: str = jobs.PACKED, **more: Any) -> Bench:
    return Bench(root, {"train.py": with_crash(script)}, **{"target_steps": STEPS, "every_steps": 5, "keep": 2, **more})


def dying(at: int, how: str, pause: str = "0.02") -> dict[str, str]:
    """For the script: where and how it dies once; -1: nowhere."""
    return {"PAUSE": pause, "AT": str(at), "HOW": how}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bench = bench_of(tmp_path_factory.mktemp("unbroken"))
    code, output = bench.run(dying(-1, "0", "0"))
    assert code == 0, output
    return bench.outcome()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HttpStore]:
    with serving(tmp_path / "store") as found:
        yield found


def restart_of(output: str) -> list[tuple[str, int, int]]:
    """(how, step of the crash, step that it went on from) of each restart that the log tells of."""
    pattern = r"gpuhop: the command (.*) at step (\d+); started again from step (\d+) \(\d of 3\)"
    return [(how, int(at), int(start)) for how, at, start in re.findall(pattern, output)]


def check(bench: Bench, want: dict[str, Any]) -> None:
    got = bench.outcome()
    for part in want:
        assert got[part] == want[part], part


# ---------------------------------------------------------------- one crash, one session


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("SIGKILL", "was killed by SIGKILL"),
        ("SIGSEGV", "was killed by SIGSEGV"),
        ("SIGABRT", "was killed by SIGABRT"),
        ("3", "exited with 3"),
        ("raise", "exited with 1"),
    ],
)
def test_a_crash_costs_no_session_and_no_download(
    tmp_path: Path, store: HttpStore, unbroken: dict[str, Any], how: str, said: str
) -> None:
    bench = bench_of(tmp_path, base_url=store.url)
    code, output = bench.run(dying(33, how))
    assert code == 0, output
    [(told, at, start)] = restart_of(output)
    assert told == said and 25 <= start <= 30 <= at <= 33
    assert (bench.result().status, bench.result().restarts, bench.result().repeated) == ("target", 1, False)
    assert "downgraded" not in output
    assert [key for key in store.reads if "/pack-" in key or "/manifest-" in key] == []
    check(bench, unbroken)


@pytest.mark.torch
@pytest.mark.parametrize("how", ["SIGKILL", "3"])
def test_a_torch_training_goes_on_bit_for_bit(tmp_path: Path, how: str) -> None:
    env = {"AT": "-1", "HOW": how, "PAUSE": "0.02", "STEPS_TOTAL": "24"}
    script = jobs.TORCH.replace("time.sleep(", "crash(step)\n        time.sleep(", 1)
    script = script.replace("import gpuhop_worker\n", "import gpuhop_worker\n" + CRASH, 1)
    whole = Bench(tmp_path / "whole", {"train.py": script}, target_steps=24, every_steps=4)
    assert whole.run({**env, "PAUSE": "0"})[0] == 0
    bench = Bench(tmp_path / "crashed", {"train.py": script}, target_steps=24, every_steps=4)
    code, output = bench.run({**env, "AT": "18"})
    assert code == 0 and len(restart_of(output)) == 1, output
    check(bench, whole.outcome())


def test_a_crash_before_the_first_snapshot_begins_again_from_nothing(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    bench = bench_of(tmp_path, every_steps=1000)
    code, output = bench.run(dying(12, "SIGKILL"))
    assert code == 0, output
    [(_, _, start)] = restart_of(output)
    assert start == 0
    check(bench, unbroken)


def test_a_crash_after_a_restore_and_before_a_snapshot_reads_nothing_anew(
    tmp_path: Path, store: HttpStore, unbroken: dict[str, Any]
) -> None:
    bench = bench_of(tmp_path, base_url=store.url)
    code, _ = bench.run({"PAUSE": "0", "AT": "22", "HOW": "3"}, restarts=0)
    assert code == 13
    step = bench.latest().step
    # In session 2 the crash comes before it saves: all it has is what it restored.
    code, output = bench.run(dying(40, "SIGKILL"), every_steps=1000)
    assert code == 0, output
    [(_, _, start)] = restart_of(output)
    assert start == step
    packs = [key for key in store.reads if "/pack-" in key]
    assert len(packs) == len(set(packs)) > 0, "each pack once, by the restore"
    check(bench, unbroken)


def test_a_snapshot_that_still_waits_is_used_and_shipped(
    tmp_path: Path, store: HttpStore, unbroken: dict[str, Any]
) -> None:
    """The store takes no packs while the command crashes: what it goes on from is on this machine only."""
    bench = bench_of(tmp_path, base_url=store.url)
    process = bench.start(bench.grant(), dying(33, "SIGKILL"))
    until(bench.manifests, what="a checkpoint")
    shipped = bench.latest().step
    store.refuse = "/pack-"
    until((bench.folder() / "code" / "crashed").exists, what="the crash")
    until(lambda: b'"~cut":true' in (bench.folder() / "ctl" / "metrics.jsonl").read_bytes(), what="another start")
    store.refuse = ""
    code, output = finish(process)
    assert code == 0, output
    [(_, _, start)] = restart_of(output)
    assert start > shipped
    check(bench, unbroken)


# ---------------------------------------------------------------- every point of a save

BOMB = """
import os, signal, sys
def plant():
    count = [0]
    def hook(event, args):
        if event in ("open", "os.rename", "os.mkdir", "os.remove") and "/spool" in str(args[0]):
            count[0] += 1
            if count[0] == int(os.environ["CRASH_AT"]) and not os.path.exists("crashed"):
                open("crashed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()
    sys.addaudithook(hook)
plant()
"""


@pytest.mark.parametrize("number", [*range(1, 8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 24))])
def test_killed_at_each_touch_of_the_spool_once(tmp_path: Path, unbroken: dict[str, Any], number: int) -> None:
    """In the middle of a copy, before its draft, while the draft is written: a torn snapshot is never used."""
    bench = Bench(tmp_path, {"train.py": BOMB + jobs.PACKED}, target_steps=STEPS, every_steps=5, keep=2)
    code, output = bench.run({"CRASH_AT": str(number), "PAUSE": "0.005"})
    assert code == 0, output
    crashed = (bench.folder() / "code" / "crashed").exists()
    assert crashed or number > 7, "a slow link makes for fewer snapshots, and fewer points"
    assert len(restart_of(output)) == crashed
    check(bench, unbroken)


def test_a_crash_while_the_slot_is_half_written(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    """All but the draft is there, and half of the bytes: the state before it is gone on from, untouched."""
    script = "import gpuhop_worker.slots as slots\nreal = slots.copy\n" + with_crash(jobs.PACKED).replace(
        "random.seed(7)\n",
        "random.seed(7)\n"
        "calls = [0]\n"
        "def torn(target, source):\n"
        "    calls[0] += 1\n"
        "    if calls[0] == int(os.environ['COPIES']) and not os.path.exists('crashed'):\n"
        "        open('crashed', 'w').close()\n"
        "        real(target[: len(target) // 2], memoryview(source)[: len(target) // 2])\n"
        "        os.kill(os.getpid(), 9)\n"
        "    real(target, source)\n"
        "slots.copy = torn\n",
        1,
    )
    for copies in (1, 4, 7):
        bench = Bench(tmp_path / str(copies), {"train.py": script}, target_steps=STEPS, every_steps=5, keep=2)
        code, output = bench.run({"COPIES": str(copies), "PAUSE": "0.01", "AT": "-1", "HOW": "0"})
        assert code == 0 and len(restart_of(output)) == 1, output
        check(bench, unbroken)


def test_half_a_line_of_metrics_is_no_line(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    script = with_crash(jobs.PACKED).replace(
        "    crash(step)\n",
        "    if step == 33 and not os.path.exists('crashed'):\n"
        "        with open(session._config['metrics'], 'ab') as out: out.write(b'{\"step\":33,\"lo')\n"
        "    crash(step)\n",
    )
    bench = Bench(tmp_path, {"train.py": script}, target_steps=STEPS, every_steps=5, keep=2)
    code, output = bench.run(dying(33, "SIGKILL"))
    assert code == 0 and len(restart_of(output)) == 1, output
    check(bench, unbroken)


# ---------------------------------------------------------------- loops end


def starts(bench: Bench) -> int:
    return bench.log().count(b"a start\n")


@pytest.mark.parametrize(
    ("how", "lives", "reason", "said"),
    [
        ("os._exit(3)", 2, "script_failed", "the command exited with 3, twice from the same state"),
        ("raise ValueError('always')", 2, "script_failed", "the command exited with 1, twice from the same state"),
        ("os.kill(os.getpid(), 11)", 2, "script_killed", "the command was killed by signal 11"),
    ],
)
def test_a_crash_at_the_same_step_is_the_scripts_own(
    tmp_path: Path, how: str, lives: int, reason: str, said: str
) -> None:
    script = "print('a start', flush=True)\n" + jobs.PACKED.replace(
        "    time.sleep(", f"    if step == 33: {how}\n    time.sleep("
    )
    bench = Bench(tmp_path, {"train.py": script}, target_steps=STEPS, every_steps=15)
    code, output = bench.run({"PAUSE": "0.02"})
    result = bench.result()
    assert (code, result.reason, result.message) == (13, reason, said), output
    assert (starts(bench), result.restarts) == (lives, lives - 1)
    assert result.repeated is (reason == "script_failed")
    assert result.progressed and result.saved_step == bench.latest().step == 30


def test_a_failure_without_anything_saved_is_not_tried_again(tmp_path: Path) -> None:
    script = "print('a start', flush=True)\n" + jobs.PLAIN.replace(
        "    time.sleep(", "    if step == 8: raise ValueError('always')\n    time.sleep("
    )
    bench = Bench(tmp_path, {"train.py": script}, target_steps=STEPS, every_steps=15)
    code, output = bench.run()
    assert (code, starts(bench), bench.result().restarts) == (13, 1, 0), output


def test_a_command_that_crashes_on_and_on_is_started_four_times(tmp_path: Path) -> None:
    """Each life makes eight steps and a snapshot: without an end to it this would go on to the target."""
    script = jobs.PACKED.replace("for step in", "print('a start', flush=True)\nmade = 0\nfor step in").replace(
        "    time.sleep(", "    made += 1\n    if made == 8: os.kill(os.getpid(), 9)\n    time.sleep("
    )
    bench = Bench(tmp_path, {"train.py": script}, target_steps=STEPS, every_steps=5)
    code, output = bench.run({"PAUSE": "0.02"})
    assert (code, bench.result().reason, bench.result().exit_code) == (13, "script_killed", -9), output
    assert (starts(bench), bench.result().restarts) == (4, 3)
    steps = [start for _, _, start in restart_of(output)]
    assert steps == sorted(set(steps)), "each from a newer state"


def test_a_second_process_is_still_refused_after_a_restart(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.command = "python train.py && python train.py"
    code, output = bench.run(dying(33, "SIGKILL"))
    assert (code, bench.result().reason) == (11, "restore_refused"), output
    assert len(restart_of(output)) == 1 and "one process trains, once" in output


def test_a_process_that_left_the_commands_group_and_trains_on_forbids_another_start(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.command = "setsid python train.py >/dev/null 2>&1 & while [ ! -e go ]; do sleep 0.01; done; kill -KILL $$"
    process = bench.start(bench.grant(), dying(-1, "0", "0.3"))
    until(lambda: bench.steps_logged() > 12, what="steps")
    (bench.folder() / "code" / "go").touch()
    code, output = finish(process)
    assert (code, bench.result().reason, bench.result().restarts) == (13, "script_killed", 0), output


# ---------------------------------------------------------------- with orders, budgets and dying runners


def test_a_crash_while_it_is_drained_ends_the_session_as_drained(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    script = jobs.PACKED.replace(
        "random.seed(7)\n",
        "random.seed(7)\n"
        "from gpuhop_worker.saving import Saver\n"
        "def die(self, *more, **names): os.kill(os.getpid(), 9)\n"
        "asked = Saver.told_to_drain\n"
        "Saver.told_to_drain = lambda self: die(self) if asked(self) and 'DIES' in os.environ else asked(self)\n",
        1,
    )
    bench = Bench(tmp_path, {"train.py": script}, target_steps=STEPS, every_steps=5, keep=2)
    process = bench.start(bench.grant(), {"PAUSE": "0.02", "DIES": "1"})
    until(lambda: bench.steps_logged() > 12, what="steps")
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert (code, bench.result().status, bench.result().reason) == (0, "drained", "signal"), output
    assert (bench.result().restarts, bench.result().exit_code) == (0, -9)
    code, output = bench.run({"PAUSE": "0"})
    assert code == 0, output
    check(bench, unbroken)


def test_with_the_budget_used_up_nothing_is_started_again(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    script = with_crash(jobs.PACKED).replace(
        "def crash(step):\n", "def crash(step):\n    if step == 33: time.sleep(3)\n"
    )
    bench = Bench(tmp_path, {"train.py": script}, target_steps=STEPS, every_steps=5, keep=2)
    code, output = bench.run(dying(33, "SIGKILL", "0"), budget_s=2.0)
    assert (code, bench.result().reason, bench.result().restarts) == (0, "budget", 0), output
    assert bench.run(dying(-1, "0", "0"))[0] == 0
    check(bench, unbroken)


def test_a_runner_that_dies_after_a_restart_loses_nothing_that_was_shipped(
    tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    bench = bench_of(tmp_path)
    process = bench.start(bench.grant(), dying(22, "SIGSEGV"))
    until(lambda: bench.manifests() and bench.latest().step >= 35, what="a checkpoint of the second life")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    newest = bench.latest().step
    code, output = bench.run(dying(-1, "0", "0"))
    assert code == 0 and f"at step {newest}\n" in output, output
    check(bench, unbroken)


def test_two_sessions_that_both_crash_end_equal(tmp_path: Path, unbroken: dict[str, Any]) -> None:
    bench = bench_of(tmp_path)
    process = bench.start(bench.grant(), dying(17, "SIGKILL"))
    until(lambda: bench.manifests() and bench.latest().step >= 25, what="a checkpoint of the second life")
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 0 and len(restart_of(output)) == 1, output
    code, output = bench.run(dying(48, "3"))
    assert code == 0 and len(restart_of(output)) == 1, output
    marks = [path for path in bench.store.glob(session_prefix("j", 1) + "metrics-*")]
    assert marks and [row["step"] for row in json.loads(bench.outcome()["metrics"])] == list(range(STEPS))
    check(bench, unbroken)


# ---------------------------------------------------------------- folders

FOLDER: dict[str, Any] = {
    "mode": "folder",
    "folder": "out",
    "every_steps": None,
    "every_s": 0.1,
    "target_steps": STEPS,
    "progress": r"^step (\d+)",
}

TORN = """
    if step == int(os.environ.get("AT", "-1")) and not os.path.exists("crashed"):
        open("crashed", "w").close()
        with open(f"{OUT}/ckpt-{step}.json", "w") as out:
            out.write('{"half a')
        os.kill(os.getpid(), 9)
"""


def test_a_folder_goes_back_to_its_newest_whole_snapshot(tmp_path: Path) -> None:
    """The script dies while it writes a checkpoint: the torn file is not what it finds when it is started again."""
    pause = "    if step == 41 and not os.path.exists('crashed'): time.sleep(3)\n"  # so that 40 is surely saved
    script = jobs.FOLDER.replace("    time.sleep(float", TORN + "    time.sleep(float")
    script = script.replace('    print("step"', pause + '    print("step"')
    whole = Bench(tmp_path / "whole", {"train.py": script}, **FOLDER)
    assert whole.run({"PAUSE": "0"})[0] == 0
    bench = Bench(tmp_path / "crashed", {"train.py": script}, **FOLDER)
    code, output = bench.run({"PAUSE": "0", "AT": "44"})
    assert code == 0, output
    [(how, at, start)] = restart_of(output)
    assert (how, at) == ("was killed by SIGKILL", 45) and start >= 40  # it prints the number of steps made
    assert "resumed at 40\n" in output
    ends = [json.loads(one.outcome()["files"]["ckpt-60.json"][1]) for one in (whole, bench)]
    assert ends[0] == ends[1]


def test_a_folder_without_a_snapshot_is_not_started_again(tmp_path: Path) -> None:
    script = jobs.FOLDER.replace("    time.sleep(float", TORN + "    time.sleep(float")
    bench = Bench(tmp_path, {"train.py": script}, **FOLDER)
    code, output = bench.run({"PAUSE": "0", "AT": "7"})
    assert (code, bench.result().reason, bench.result().restarts) == (13, "script_killed", 0), output
