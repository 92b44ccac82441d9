"""From the store to this machine's disk: the newest checkpoint that verifies, and the reasons for those that do not."""

from __future__ import annotations

import os
from typing import Callable, List, Optional

from gpuhop_worker import checkpoint, files, wire
from gpuhop_worker.store import GrantStore, NotGranted, StoreFailure
from gpuhop_worker.wire import Manifest


class NothingVerifies(Exception):
    """There are checkpoints, and none of them is whole: going on from zero would throw the work away."""


def fetch_newest(
    parents: List[str],
    job: str,
    store: GrantStore,
    folder: str,
    say: Callable[[str], None],
    between: Callable[[], None] = lambda: None,
) -> Optional[Manifest]:
    """Download and verify; falls back to the next older one, saying so (R32). None when the job has none yet.

    `between` is called before each download; what it raises ends the restore. Raises NothingVerifies, and
    StoreFailure when the store itself is away (which proves nothing).
    """
    for key in parents:
        try:
            return _fetch(key, job, store, folder, between)
        except (checkpoint.Damaged, wire.WireError, NotGranted) as error:
            say(f"checkpoint {_short(key)} cannot be used: {error}; falling back to the one before")
        except StoreFailure as failure:
            if not failure.missing:
                raise
            say(f"checkpoint {_short(key)} is incomplete: {failure}; falling back to the one before")
    if parents:
        raise NothingVerifies(f"none of the job's {len(parents)} checkpoints verifies")
    return None


def _fetch(key: str, job: str, store: GrantStore, folder: str, between: Callable[[], None]) -> Manifest:
    between()
    manifest = Manifest.from_bytes(store.get(key))
    if manifest.job != job or wire.manifest_place(key) != (manifest.token, manifest.seq):
        raise wire.WireError(f"it belongs to another place (job {manifest.job} t{manifest.token:04d})")
    checkpoint.check_shape(manifest)
    try:
        _download(manifest, store, folder, between)
    except checkpoint.Damaged:
        _download(manifest, store, folder, between)  # once more: it may have been damaged on its way
    return manifest


def _download(manifest: Manifest, store: GrantStore, folder: str, between: Callable[[], None]) -> None:
    """Raises checkpoint.Damaged, and leaves no pack behind then."""
    paths = [os.path.join(folder, checkpoint.local_name(pack["key"])) for pack in manifest.packs]
    try:
        for pack, path in zip(manifest.packs, paths):
            between()
            body = store.get(pack["key"])
            if len(body) != pack["size"]:
                raise checkpoint.Damaged(pack["key"], f"it has {len(body)} bytes, not {pack['size']}")
            files.write_atomic(path, body)
        checkpoint.verify(manifest, folder)
    except BaseException:
        for path in paths:
            files.remove(path)
        raise


def _short(key: str) -> str:
    return "/".join(key.split("/")[-2:])
