"""gpuhop's engine by hand: the user's side (Saver) and the runner's side (Shipper, restore)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuhop_worker import restore, wire
from gpuhop_worker.saving import Saver
from gpuhop_worker.shipper import Shipper
from gpuhop_worker.slots import SlotKeeper
from gpuhop_worker.store import GrantStore
from gpuhop_worker.wire import Grant, Manifest

JOB = "bench"
Address = Callable[[str, str], str]  # (key, verb) -> URL


class FixedShipper(Shipper):
    """`code`: True codes always, False never, None decides by the link as the product does."""

    code: bool | None = None

    def ship_newest(self) -> bool:
        if self.code is not None:
            self._link = 0.0 if self.code else 1e12
        return super().ship_newest()


class Session:
    """One session: slots and spool in `folder`, addresses made by `address`."""

    def __init__(self, folder: Path, address: Address | None = None, token: int = 1) -> None:
        self.folder = folder
        (folder / "spool").mkdir(parents=True, exist_ok=True)
        self.address = address or folder_address(folder / "store")
        self.token = token
        self.keeper = SlotKeeper(str(folder), memory=True)

    def config(self, restored: restore.Restored | None = None) -> dict[str, Any]:
        """The session file that the runner writes for the user's process."""
        manifest = self.folder / "manifest.json"
        if restored is not None:
            manifest.write_bytes(restored.manifest.to_bytes())
        ends = {"every_steps": 1, "every_s": None, "every_auto": False, "mean_life_s": 14400.0}
        return {
            "restore": None if restored is None else str(manifest),
            "restored_slot": None if restored is None else "a",
            "offsets": {} if restored is None else restored.offsets,
            "slots": self.keeper.paths,
            "spool": str(self.folder / "spool"),
            "metrics": str(self.folder / "metrics.jsonl"),
            "progress": str(self.folder / "progress.json"),
            "drain": str(self.folder / "drain"),
            "pace": str(self.folder / "pace"),
            "target_steps": None,
            "target_epochs": None,
            "time_scale": 1.0,
            "runner": os.getpid(),
            **ends,
        }

    def store(self, verbs: str = "put get delete", count: int = 120) -> GrantStore:
        names = [wire.numbered_key(JOB, self.token, w, n) for w in ("pack", "manifest") for n in range(1, count + 1)]
        return GrantStore({key: {verb: self.address(key, verb) for verb in verbs.split()} for key in names})

    def shipper(self, code: bool | None = None) -> FixedShipper:
        grant = Grant(
            job=JOB, token=self.token, session="s", platform="bench", run="", code_key="", code_sha256="", budget_s=1e9
        )
        spool = str(self.folder / "spool")
        made = FixedShipper(grant, self.store(), spool, self.keeper, lambda: 0, lambda: True)
        made.code = code
        return made

    def saver(self, restored: restore.Restored | None = None) -> Saver:
        return Saver(self.config(restored))

    def fetch(self, key: str) -> restore.Restored:
        """As the runner does it: newest manifest, packs, verified into slot a."""
        found = restore.fetch_newest([key], JOB, self.store("get"), self.keeper.slot("a"), print)
        assert found is not None
        return found

    def clear(self) -> None:
        """Forget what waits to be shipped."""
        for path in (self.folder / "spool").iterdir():
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        self.keeper.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def folder_address(root: Path) -> Address:
    return lambda key, verb: (root / key).as_uri()


def manifest_key(shipper: Shipper, token: int = 1) -> str:
    return wire.numbered_key(JOB, token, "manifest", shipper.saved_seq)


def read_manifest(root: Path, key: str) -> Manifest:
    return Manifest.from_bytes((root / key).read_bytes())


def raw_size(manifest: Manifest) -> int:
    return sum(size for _, _, size in restore.part_sizes(manifest))


def changed_bytes(before: Manifest, after: Manifest) -> int:
    """Raw bytes of the tensors whose content differs between two checkpoints."""
    old = {name: _hashes(before, part) for name, part, _ in restore.part_sizes(before)}
    return sum(size for name, part, size in restore.part_sizes(after) if old.get(name) != _hashes(after, part))


def _hashes(manifest: Manifest, part: dict[str, Any]) -> list[str]:
    return [row[5] for row in manifest.blocks[part["first"] : part["last"]]]


def work_folder(*, memory: bool = False) -> Path:
    """A fresh folder on the disk, or in memory."""
    return Path(tempfile.mkdtemp(prefix="gpuhop-bench-", dir="/dev/shm" if memory else None))
