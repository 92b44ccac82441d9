"""Whole states of the training on this machine: what a command begins with, at first and after a crash.

The newest one is a snapshot that waits to be shipped, else the one that was shipped last, else what the session
restored. A snapshot without a draft was being copied when its process died: it is never used.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from gpuhop_worker import checkpoint
from gpuhop_worker.checkpoint import BLOCK
from gpuhop_worker.restore import Restored
from gpuhop_worker.shipper import Shipper
from gpuhop_worker.wire import Grant, Manifest

FIRST_SLOT = "a"  # what a restored state is put into


@dataclass(frozen=True)
class Start:
    """A state to begin with: its raw bytes lie in `slot`, each part's at `offsets[name or path]`. `number`: that of
    the snapshot, 0 for what was restored. `base`: the slot that the shipper still reads beside this one."""

    manifest: Manifest
    slot: str
    offsets: Dict[str, int]
    number: int = 0
    base: Optional[str] = None

    @property
    def step(self) -> int:
        return self.manifest.step


def of_restored(restored: Restored) -> Start:
    return Start(restored.manifest, FIRST_SLOT, restored.offsets)


def newest(grant: Grant, spool: str, shipper: Shipper, restored: Optional[Start]) -> Optional[Start]:
    """The newest whole state; `restored`: what the session began with. None: there is none, it began from nothing."""
    found = waiting(spool)
    last = shipper.last  # asked after the spool: what has left it meanwhile is the last one now
    if last is not None:
        found = [one for one in found if one[0] > last[0]]
    if found:
        name, draft = found[-1]
        under = last[1]["slot"] if last is not None else restored.slot if restored is not None else None
        return _of_draft(grant, name, draft, under)
    if last is not None:
        return _of_draft(grant, *last, None)
    return restored


def waiting(spool: str) -> List[Tuple[str, Dict[str, Any]]]:
    """(name, draft) of each whole snapshot that waits to be shipped, oldest first."""
    return checkpoint.whole_snapshots(spool)


def number_of(name: str) -> int:
    """The number of a snapshot, 0 for another name."""
    found = checkpoint.SNAPSHOT.match(name)
    return int(found.group(1)) if found else 0


def drop_torn(spool: str) -> int:
    """Remove what a dead process had only begun. Returns the highest number seen."""
    names = os.listdir(spool)
    for name in names:
        folder = os.path.join(spool, name)
        if checkpoint.read_draft(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
    return max(map(number_of, names), default=0)


def _of_draft(grant: Grant, name: str, draft: Dict[str, Any], base: Optional[str]) -> Start:
    """A manifest that was never in the store: its rows say how long the parts are, and name no pack."""
    rows: List[List[Any]] = []
    offsets: Dict[str, int] = {}

    def placed(part: Dict[str, Any]) -> Dict[str, Any]:
        if "alias" in part:
            return part
        if "link" in part:
            return dict(part, first=0, last=0)
        offsets[checkpoint.part_name(part)] = part["offset"]
        first = len(rows)
        for start in range(0, part["size"], BLOCK):
            rows.append([0, 0, 0, min(BLOCK, part["size"] - start), 0, "", -1])
        return dict(part, first=first, last=len(rows))

    tensors = [placed(part) for part in draft.get("tensors", [])]
    found = [placed(part) for part in draft.get("files", [])]
    manifest = Manifest(
        job=grant.job,
        token=grant.token,
        seq=0,
        step=draft["step"],
        mode=grant.mode,
        packs=[{"key": "", "size": 0}],
        blocks=rows,
        tensors=tensors,
        files=found,
        state=draft.get("state"),
        fingerprint=draft["fingerprint"],
    )
    return Start(manifest, draft["slot"], offsets, number_of(name), base)
