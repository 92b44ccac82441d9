"""Second checkpoints of which little or nothing is new."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch
from benchmarks.checkpoint.engine import (
    Session,
    changed_bytes,
    folder_address,
    manifest_key,
    raw_size,
    read_manifest,
    work_folder,
)
from benchmarks.checkpoint.states import Training, trained
from benchmarks.checkpoint.table import Row, mb
from torch import nn


class Lora(nn.Module):
    """A frozen linear layer with a trained update of rank 8."""

    def __init__(self, inner: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) * 0.02)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.inner.weight + self.up @ self.down, self.inner.bias)


def rows(quick: bool) -> list[Row]:
    torch.set_num_threads(1)
    file = trained("fp32")[1]
    return [_nothing(file), _some(file, "LoRA, rank 8"), _some(file, "frozen layers (last block trains)")]


def _full(file: Path) -> Training:
    training = Training("10M")
    training.load(torch.load(file))
    return training


def _adapters(file: Path) -> Training:
    training = _full(file)
    training.model.requires_grad_(False)
    for block in training.model.blocks:
        block.qkv, block.out = Lora(block.qkv), Lora(block.out)  # type: ignore[arg-type]
    return _over_what_trains(training)


def _last_block(file: Path) -> Training:
    training = _full(file)
    training.model.requires_grad_(False)
    training.model.blocks[-1].requires_grad_(True)
    return _over_what_trains(training)


def _over_what_trains(training: Training) -> Training:
    training.optimizer = torch.optim.AdamW([p for p in training.model.parameters() if p.requires_grad], lr=1e-4)
    _steps(training, 2)
    return training


def _steps(training: Training, count: int) -> None:
    for _ in range(count):
        training.pass_()
        training.update()


class Pair:
    """Two checkpoints, gpuhop's and restic's, with some steps between."""

    def __init__(self, training: Training, steps: int) -> None:
        folder = work_folder()
        session = Session(folder / "session", folder_address(folder / "store"))
        saver, shipper = session.saver(), session.shipper(code=True)
        self.restic: list[int | None] = []
        manifests, sizes = [], []
        for number in (1, 2):
            if number == 2:
                _steps(training, steps)
            saver.save(training.tracked(), number, last=True)
            assert shipper.ship_newest()
            key = manifest_key(shipper)
            manifests.append(read_manifest(folder / "store", key))
            sizes.append((folder / "store" / key).stat().st_size)
            (folder / "files").mkdir(exist_ok=True)
            torch.save(training.state(), folder / "files" / "a.pt")
            self.full = (folder / "files" / "a.pt").stat().st_size
            self.restic.append(_restic(folder))
        self.raw = raw_size(manifests[1])
        self.packs, self.manifest = shipper.shipped_bytes, sizes[1]
        self.changed = changed_bytes(*manifests)
        session.close()
        shutil.rmtree(folder, ignore_errors=True)

    def row(self, what: str, target: str, steps: int) -> Row:
        shipped = self.packs + self.manifest
        row = Row(what, target, f"one pair, {steps} steps apart, {mb(self.raw)} raw")
        figures = f"{self.packs / 1e6:.3f} MB of packs + {self.manifest / 1e6:.3f} MB of manifest"
        row.add("gpuhop", figures, f"{shipped / self.raw:.5f} of raw")
        row.add("bytes of the tensors that changed", f"{self.changed / 1e6:.3f} MB")
        row.add("full upload of torch.save's file", mb(self.full), f"{self.full / self.raw:.3f} of raw")
        if self.restic[1] is None:
            row.missing("restic on torch.save's file")
        else:
            row.add("restic on torch.save's file", mb(self.restic[1]), f"{self.restic[1] / self.raw:.5f} of raw")
        return row


def _nothing(file: Path) -> Row:
    pair = Pair(_full(file), 0)
    row = pair.row("shipped bytes, nothing changed", "<= 0.1 % of raw", 0)
    row.judge("% of raw", (pair.packs + pair.manifest) / pair.raw * 100, 0.1, "{:.4f}")
    return row


def _some(file: Path, what: str) -> Row:
    training = _adapters(file) if what.startswith("LoRA") else _last_block(file)
    pair = Pair(training, 3)
    row = pair.row(f"shipped bytes, {what}", "<= the changed bytes + 1 %", 3)
    row.judge("x the changed bytes", (pair.packs + pair.manifest) / pair.changed, 1.01, "{:.3f}")
    return row


def _restic(folder: Path) -> int | None:
    """Bytes that this backup added to the repository, None where restic is not installed."""
    if shutil.which("restic") is None:
        return None
    repository = folder / "restic"
    environment = dict(os.environ, RESTIC_PASSWORD="bench", RESTIC_CACHE_DIR=str(folder / "restic-cache"))
    command = ["restic", "-r", str(repository), "-q"]
    if not repository.exists():
        subprocess.run([*command, "init"], env=environment, check=True, stdout=subprocess.DEVNULL)
    before = _size(repository)
    files = ["backup", "--force", str(folder / "files")]
    subprocess.run([*command, *files], env=environment, check=True, stdout=subprocess.DEVNULL)
    return _size(repository) - before


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
