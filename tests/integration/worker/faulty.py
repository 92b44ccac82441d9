"""One session with one fault, in the middle of a job; then what must hold whatever the fault was."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import jobs
from tests.support.injection import Fault, env_of, mark_of
from tests.support.sessions import Bench, decode, finish

from gpuhop.domain import retention
from gpuhop.domain.retention import Checkpoint, Use
from gpuhop.stores.local import LocalStore
from gpuhop_worker import wire
from gpuhop_worker.retention import Keep

STEPS = 25
BEGUN = 9
"""Steps that the first session makes."""

PAUSE = "0.012"
SETTINGS: dict[str, Any] = {"target_steps": STEPS, "every_steps": 4, "keep": 1, "log_s": 0.3}
# The training waits until its first saves have left, so that each session makes the same ones: after steps 12, 16, 20,
# then 24 and 25 as they come.
SCRIPT = jobs.PACKED.replace(
    "    batch = data",
    "    ends = time.monotonic() + 1.5\n"
    "    while session.active and step in (12, 16, 20) and time.monotonic() < ends:\n"
    "        if not any(os.scandir(session._config['spool'])): break\n"
    "        time.sleep(0.002)\n"
    "    batch = data",
    1,
)
UNCLEAR = ("Traceback", "bug of gpuhop", "an error, tried again later", "Fatal", "heartbeat failed")


@dataclass(frozen=True)
class World:
    """A job after its first session, to be copied, and how its unbroken twin ends."""

    root: Path
    unbroken: dict[str, Any]
    script: str

    def bench(self, root: Path, **more: Any) -> Bench:
        """A copy: its next session is the second."""
        root.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.root / "store", root / "store")
        bench = Bench(root, {"train.py": self.script}, **{**SETTINGS, **more})
        bench.token = 1
        bench.patience_s = 1.5
        return bench


def make_world(root: Path, script: str = SCRIPT) -> World:
    whole = Bench(root / "unbroken", {"train.py": script}, **SETTINGS)
    code, output = whole.run({"STEPS_TOTAL": str(STEPS), "PAUSE": "0"})
    assert code == 0, output
    bench = Bench(root / "begun", {"train.py": script}, **SETTINGS)
    code, output = bench.run({"STEPS_TOTAL": str(BEGUN), "PAUSE": "0"}, target_steps=BEGUN)
    assert code == 0, output
    bench.order("run", token=2)
    return World(bench.root, whole.outcome(), script)


@dataclass(frozen=True)
class Told:
    """How the session with the fault ended. `struck`: the fault has come."""

    code: int
    output: str
    struck: bool


def session(bench: Bench, fault: Fault, **changes: Any) -> Told:
    grant = bench.grant(**changes)
    env = {"STEPS_TOTAL": str(STEPS), "PAUSE": PAUSE, **env_of(bench, fault)}
    code, output = finish(bench.start(grant, env), 60.0)
    return Told(code, output, mark_of(bench).exists())


def check_and_finish(bench: Bench, world: World, told: Told, why: object, may: tuple[int, ...] = ()) -> None:
    """Nothing that was committed is lost, nothing is doubled, the words are clear, the end is equal to the unbroken
    one, and what lies about is what the retention sweep finds. `may`: codes that it may end with beside the usual."""
    check_words(told, why, may)
    check_committed(bench, told, why)
    check_leftovers(bench, why)
    if not (told.code == 0 and bench.result().status == "target"):
        newest = bench.latest().step
        code, output = bench.run({"STEPS_TOTAL": str(STEPS), "PAUSE": "0"})
        assert code == 0, (why, told.output, output)
        assert f"at step {newest}\n" in output and "falling back" not in output, (why, told.output, output)
    got = bench.outcome()
    for part in world.unbroken:
        assert got[part] == world.unbroken[part], (why, part, told.output)
    check_leftovers(bench, why)


def check_words(told: Told, why: object, may: tuple[int, ...] = ()) -> None:
    for word in UNCLEAR:
        assert word not in told.output, (why, told.output)
    assert told.code in (0, 10, 11, *may, 14, 15, 16, 20, -9), (why, told.code, told.output)
    if told.code > 0 and told.code != 14:
        last = [line for line in told.output.splitlines() if line.startswith("gpuhop: ")][-1]
        assert re.search(r"session ends: |the result could not be written: |cannot be read: ", last), (why, told.output)


def check_committed(bench: Bench, told: Told, why: object) -> None:
    """The newest checkpoint is whole by itself, and none that the session spoke of is missing."""
    manifest = decode.newest(bench.store, bench.job)
    assert (manifest["token"], manifest["seq"]) == (bench.latest().token, bench.latest().seq), (why, told.output)
    said = [int(step) for step in re.findall(r"gpuhop: saved step (\d+) ", told.output)]
    assert manifest["step"] >= max([BEGUN, *said]), (why, told.output)
    assert len(said) == len(set(said)), (why, "a state was committed twice", told.output)
    steps = [row["step"] for row in decode.metrics(bench.store, bench.job)]
    assert steps[: manifest["step"]] == list(range(manifest["step"])), (why, "metrics", told.output)


def check_leftovers(bench: Bench, why: object) -> None:
    """Every file in the store is an object or a leftover; what the sweep would leave is needed."""
    store = LocalStore(bench.store)
    keys = {entry.key for entry in store.list("")}
    there = {path.relative_to(bench.store).as_posix() for path in bench.store.rglob("*") if path.is_file()}
    assert there == keys | {one.key for one in store.leftovers("")}, why
    places = {key: place for key in keys if (place := wire.manifest_place(key)) is not None}
    found = []
    for key, place in places.items():
        manifest = bench.manifest(key)
        found.append(Checkpoint(place, manifest.step, frozenset(pack["key"] for pack in manifest.packs)))
    decision = retention.decide(found, Keep(1), Use())
    left = keys - set(retention.unneeded(keys, frozenset(places.values()), decision, Use()))
    state = {key for key in left if wire.manifest_place(key) is not None or retention.is_pack(key)}
    (kept,) = [key for key, place in places.items() if place in decision.why]
    assert state == {kept, *decision.packs}, why
