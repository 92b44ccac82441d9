"""The outputs of a finished job, brought to a folder of the user's."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from gpuhop.db.records import JobRow, SessionRow
from gpuhop.errors import NotFound
from gpuhop.stores.base import Store
from gpuhop_worker import wire


def fetch(store: Store, job: JobRow, rows: Sequence[SessionRow], into: Path) -> list[Path]:
    """Files written. Raises NotFound when the job has left no outputs."""
    for row in sorted(rows, key=lambda r: -r.token):
        prefix = wire.session_prefix(job.id, row.token) + "output-"
        keys = [entry.key for entry in store.list(prefix)]
        if keys:
            return [path for key in keys for path in _unpack(store.get(key), into)]
    raise NotFound(
        f"job {job.id} has no outputs in the store",
        f"name them under `outputs:` in job.yaml; gpuhop status {job.id}   (they are kept when the target is reached)",
    )


def _unpack(body: bytes, into: Path) -> list[Path]:
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
        archive.extractall(into, filter="data")
        return [into / member.name for member in archive.getmembers() if member.isfile()]
