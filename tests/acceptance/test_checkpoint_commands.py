"""checkpoints, verify, export, prune, drill: on a real job, on a damaged store."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from tests.support.commands import COUNTING, User

from gpuhop.errors import Exit

TORCH = """
import random, numpy, torch, gpuhop_worker
torch.manual_seed(0); random.seed(0); numpy.random.seed(0)
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.AdamW(model.parameters())
session = gpuhop_worker.session()
session.track(model=model, optimizer=optimizer)
for step in session.steps(60):
    loss = model(torch.randn(4, 100)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    session.log(loss=loss)
"""


def packs(user: User) -> list[Path]:
    return sorted((user.home / "store").rglob("pack-*"))


def test_a_job_without_checkpoints(user: User) -> None:
    job = user.submit(user.job())
    assert user.run("checkpoints", job).stdout == f"{job} has no checkpoint yet\n"
    assert user.run("verify", job).stdout == f"{job} has no checkpoint yet\n"
    assert user.run("export", job).returncode == Exit.NOT_FOUND


@pytest.mark.torch
def test_list_verify_export_prune(user: User) -> None:
    torch = pytest.importorskip("torch")
    assert user.run("submit", "--follow", user.job(total=60, script=TORCH)).returncode == 0
    rows = user.json("checkpoints", "count")
    assert rows[0]["step"] == 60
    assert all(row["counts"] and row["raw"] > 120_000 for row in rows)
    done = user.run("verify", "--all", "count")
    assert done.returncode == 0
    assert done.stdout.count("ok  ") == len(rows)

    assert user.run("export", "count", "--to", "w.safetensors").returncode == 0
    assert user.run("export", "count", "--format", "torch", "--to", "w.pt").returncode == 0
    weights = torch.load(user.project / "w.pt", weights_only=True)
    body = (user.project / "w.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", body[:8])
    header = json.loads(body[8 : 8 + length])
    assert header["weight"]["shape"] == [100, 100]
    start, stop = header["weight"]["data_offsets"]
    assert body[8 + length + start : 8 + length + stop] == weights["weight"].numpy().tobytes()

    dry = user.run("prune", "--keep", "1", "--dry-run", "count").stdout
    before = packs(user)
    assert "would remove" in dry or len(rows) == 1
    assert packs(user) == before
    assert user.run("prune", "--keep", "1", "count").returncode == 0
    assert len(user.json("checkpoints", "count")) == 1
    assert user.run("verify", "count").returncode == 0


def test_pins_reasons_and_the_storage_line(user: User) -> None:
    keep = "{every: 10 steps, keep: {last: 2, every_steps: 20, best: {metric: loss, mode: max}}}"
    assert user.run("submit", "--follow", user.job(total=60, checkpoint=keep)).returncode == 0
    rows = user.json("checkpoints", "count")
    assert rows[0]["kept"][0] == "last" and "best" in rows[0]["kept"]
    old = rows[-1]
    name = f"t{old['token']:04d}/{old['seq']}"
    text = user.run("checkpoints", "count", "--pin", name).stdout
    assert "pinned" in text and " in the store" in text.splitlines()[-1]
    done = user.run("checkpoints", "count", "--pin", "t0099/1")
    assert done.returncode == Exit.NOT_FOUND and "has no readable checkpoint t0099/1" in done.stderr
    assert user.run("checkpoints", "count", "--pin", "x").returncode == Exit.INVALID
    assert user.run("prune", "count", "--keep", "1").returncode == 0
    assert name in user.run("checkpoints", "count").stdout
    assert user.run("checkpoints", "count", "--unpin", name).returncode == 0
    assert user.run("checkpoints", "count", "--unpin", name).returncode == Exit.NOT_FOUND


def test_a_dry_run_says_what_goes_when_and_why(user: User) -> None:
    assert user.run("submit", "--follow", user.job(total=60)).returncode == 0
    (folder,) = (user.home / "store" / "jobs").iterdir()
    (folder / "t0001" / "pack-000777").write_bytes(b"x" * 2000)
    (folder / "t0001" / ".tmp-dead").write_bytes(b"y" * 10)
    dry = user.run("prune", "count", "--dry-run").stdout
    assert "t0001/pack-000777  2.0 KB  leftover, now\n" in dry
    assert "t0001/.tmp-dead  10 B  unfinished, " in dry
    before = user.run("checkpoints", "count").stdout.splitlines()[-1]
    assert "go" in before
    pruned = user.run("prune", "count").stdout
    assert "pack-000777  2.0 KB  leftover" in pruned and "wait; the first may go on" in pruned
    assert (folder / "t0001" / ".tmp-dead").exists()
    assert "2.0 KB freed so far" in user.run("checkpoints", "count").stdout


@pytest.mark.torch
def test_verify_names_what_is_damaged(user: User) -> None:
    pytest.importorskip("torch")
    assert user.run("submit", "--follow", user.job(script=TORCH)).returncode == 0
    path = packs(user)[-1]
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(bytes(body))
    done = user.run("verify", "count")
    assert done.returncode == Exit.STORE
    assert "FAIL" in done.stdout
    assert path.name in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_drill_proves_a_sound_script_and_finds_an_unsound_one(user: User) -> None:
    sound = "import random\nrandom.seed(0)\n" + COUNTING
    done = user.run("drill", "--kills", "2", user.job(total=300, script=sound), timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL, silently" in done.stdout
    careless = sound.replace("sum_.value += step / 7", "sum_.value += __import__('random').SystemRandom().random()")
    done = user.run("drill", "--kills", "1", user.job(total=300, script=careless), timeout=200)
    assert done.returncode == Exit.FAILED
    assert "differ" in done.stdout


def test_a_drill_of_a_job_that_cannot_be_compared(user: User) -> None:
    done = user.run("drill", user.job(target="{until: exit}"))
    assert done.returncode == Exit.INVALID
    assert "a drill needs mode api and a target in steps" in done.stderr
