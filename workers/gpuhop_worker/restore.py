"""From the store to this machine's disk: the newest checkpoint that verifies, and the reasons for those that do not."""

from __future__ import annotations

import os
from typing import Callable, List, Optional

from gpuhop_worker import checkpoint, files, wire
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.wire import Manifest


class NothingVerifies(Exception):
    """There are checkpoints, and none of them is whole: going on from zero would throw the work away."""


def fetch_newest(
    parents: List[str], job: str, store: GrantStore, folder: str, say: Callable[[str], None]
) -> Optional[Manifest]:
    """Download and verify; falls back to the next older one, saying so (R32). None when the job has none yet.

    Raises NothingVerifies, and StoreFailure when the store itself is away (which proves nothing).
    """
    for key in parents:
        try:
            return _fetch(key, job, store, folder)
        except (checkpoint.Damaged, wire.WireError) as error:
            say(f"checkpoint {_short(key)} cannot be used: {error}; falling back to the one before")
        except StoreFailure as failure:
            if not failure.missing:
                raise
            say(f"checkpoint {_short(key)} is incomplete: {failure}; falling back to the one before")
    if parents:
        raise NothingVerifies(f"none of the job's {len(parents)} checkpoints verifies")
    return None


def _fetch(key: str, job: str, store: GrantStore, folder: str) -> Manifest:
    manifest = Manifest.from_bytes(store.get(key))
    if manifest.job != job or wire.manifest_place(key) != (manifest.token, manifest.seq):
        raise wire.WireError(f"it belongs to another place (job {manifest.job} t{manifest.token:04d})")
    checkpoint.check_shape(manifest)
    for pack in manifest.packs:
        path = os.path.join(folder, checkpoint.local_name(pack["key"]))
        if not (os.path.exists(path) and os.path.getsize(path) == pack["size"]):
            files.write_atomic(path, store.get(pack["key"]))
    checkpoint.verify(manifest, folder)
    return manifest


def _short(key: str) -> str:
    return "/".join(key.split("/")[-2:])
