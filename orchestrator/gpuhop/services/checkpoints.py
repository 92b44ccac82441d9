"""A job's checkpoints as a person sees them: list, verify every byte, take one home."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuhop.db.records import SessionRow
from gpuhop.domain.states import LIVE_SESSIONS
from gpuhop.engine.checkpoints import Saved, counting, places, read, sealed_by
from gpuhop.errors import MissingExtra, NotFound, ObjectMissing, StoreError
from gpuhop.stores.base import Store
from gpuhop_worker import checkpoint, codecs, restore, wire
from gpuhop_worker.wire import Manifest


@dataclass(frozen=True)
class Line:
    """One checkpoint. `raw`: bytes of the state; `own`: bytes of packs that its session shipped for it or before;
    `counts`: False for what a session wrote after it was closed. `kept`: why it stays (domain.retention), empty when it
    does not; it goes at `goes_at`, if a time is known."""

    token: int
    seq: int
    step: int | None
    platform: str
    raw: int
    named: int
    parent: tuple[int, int] | None
    counts: bool
    note: str
    kept: tuple[str, ...] = ()
    goes_at: datetime | None = None


def sealed(rows: Sequence[SessionRow]) -> dict[int, int]:
    """token -> last seq that counts; a live session's are all good so far."""
    found = sealed_by(rows)
    found.update({row.token: 10**9 for row in rows if row.state in LIVE_SESSIONS})
    return found


def listing(store: Store, job: str, rows: Sequence[SessionRow]) -> list[Line]:
    """Newest first."""
    platform = {row.token: row.platform for row in rows}
    good = sealed(rows)
    lines = []
    for token, seq, key in places(store, wire.job_prefix(job)):
        manifest = read(store, key)
        counts = seq <= good.get(token, -1)
        where = platform.get(token, "?")
        if manifest is None:
            lines.append(Line(token, seq, None, where, 0, 0, None, counts, "damaged: a restore passes over it"))
            continue
        raw = sum(size for _, _, size in restore.part_sizes(manifest))
        named = sum(int(pack["size"]) for pack in manifest.packs)
        parent = (manifest.parent[0], manifest.parent[1]) if manifest.parent else None
        note = "" if counts else "written after its session was closed: does not count"
        lines.append(Line(token, seq, manifest.step, where, raw, named, parent, counts, note))
    return lines


def newest(store: Store, job: str, rows: Sequence[SessionRow]) -> Saved:
    """The newest readable checkpoint that counts. Raises NotFound."""
    for one in counting(store, job, sealed(rows), 10):
        if one.manifest is not None:
            return one
    raise NotFound(f"job {job} has no readable checkpoint", f"gpuhop checkpoints {job}")


class Segments:
    """The scheduler's store as restore.BlockReader wants it: ranges, from whole objects of which a few are kept."""

    def __init__(self, store: Store, kept: int = 3) -> None:
        self._store = store
        self._kept = kept
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        if key not in self._bodies:
            self._bodies[key] = self._store.get(key)
            while len(self._bodies) > self._kept:
                self._bodies.popitem(last=False)
        self._bodies.move_to_end(key)
        return self._bodies[key][start:stop]


def verify(store: Store, manifest: Manifest) -> list[str]:
    """Everything that is wrong with a checkpoint, each block read, decoded and hashed; empty: it can be restored.
    Raises MissingExtra, StoreError."""
    try:
        checkpoint.check_shape(manifest)
    except checkpoint.Damaged as error:
        return [str(error)]
    found = []
    with _readable():
        reader = restore.BlockReader(manifest, Segments(store))
        for row in sorted(manifest.blocks, key=lambda row: (row[0], row[1])):
            try:
                reader.block(row)
            except checkpoint.Damaged as error:
                found.append(str(error))
            except ObjectMissing as error:
                found.append(error.fact)
    return sorted(set(found))


@contextmanager
def _readable() -> Iterator[None]:
    """What this Python cannot read is no damage. Raises MissingExtra, StoreError."""
    try:
        yield
    except codecs.Lacking as error:
        if error.packages:
            raise MissingExtra(error.packages, "torch") from error
        raise StoreError(str(error), "pip install --upgrade gpuhop") from error


def tensors(store: Store, manifest: Manifest) -> Iterator[tuple[dict[str, Any], bytes]]:
    """(entry, verified bytes) of each tensor; aliases come with the bytes of what they name. Raises MissingExtra,
    StoreError."""
    with _readable():
        reader = restore.BlockReader(manifest, Segments(store))
    by_name = {entry["name"]: entry for entry in manifest.tensors}
    for entry in manifest.tensors:
        source = by_name[entry["alias"]] if "alias" in entry else entry
        rows = manifest.blocks[source["first"] : source["last"]]
        try:
            with _readable():
                data = b"".join(reader.block(row) for row in rows)
        except checkpoint.Damaged as error:
            raise StoreError(str(error), f"gpuhop verify {manifest.job} --all") from error
        yield {**source, "name": entry["name"]}, data
