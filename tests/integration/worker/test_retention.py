"""A session prunes its own checkpoints by the whole rule: the newest, every so many steps, the best by its metric."""

from __future__ import annotations

from pathlib import Path

from tests.support import jobs
from tests.support.sessions import Bench

SCRIPT = jobs.PACKED.replace("session.log(loss=", "session.log(dip=abs(step - 24), loss=")
"""`dip` is least after step 24: in the checkpoint of step 25."""


def test_a_session_keeps_by_the_whole_rule(tmp_path: Path) -> None:
    best = {"metric": "dip", "mode": "min", "count": 1}
    bench = Bench(tmp_path, {"train.py": SCRIPT}, target_steps=60, every_steps=5, keep=1, keep_every=20, keep_best=best)
    code, output = bench.run({"PAUSE": "0.05"})
    assert code == 0, output
    assert "dip" in bench.outcome()["metrics"]
    # Saves that a slow disk left out may be missing; what is there follows the rule.
    taken = sorted(int(word.split("saved step ")[1].split()[0]) for word in output.splitlines() if "saved step" in word)
    spaced = {next(step for step in taken if step >= n) for n in (20, 40, 60)}
    nearest = min(taken, key=lambda step: (abs(step - 25), step))
    assert {bench.manifest(key).step for key in bench.manifests()} == {60, nearest} | spaced
    named = {pack["key"] for key in bench.manifests() for pack in bench.manifest(key).packs}
    assert {str(path.relative_to(bench.store)) for path in bench.store.rglob("pack-*")} == named


def test_with_all_of_it_in_a_second_session(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"train.py": SCRIPT}, target_steps=60, every_steps=5, keep=1, keep_every=20)
    assert bench.run({"PAUSE": "0.05", "STEPS_TOTAL": "30"}, target_steps=30)[0] == 0
    first = bench.manifests()
    assert bench.run({"PAUSE": "0.05"})[0] == 0
    assert set(first) <= set(bench.manifests())  # not its own: they are the scheduler's to remove
    assert {bench.manifest(key).step for key in bench.manifests()} >= {20, 30, 40, 60}
