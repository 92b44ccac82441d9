"""A job's checkpoints as a person sees them: list, verify every byte, take one home."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuhop.db.records import SessionRow
from gpuhop.domain.states import LIVE_SESSIONS
from gpuhop.engine.checkpoints import Saved, counting, places, read, sealed_by
from gpuhop.errors import NotFound, ObjectMissing
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
    """Everything that is wrong with a checkpoint, each block read, decoded and hashed; empty: it can be restored."""
    try:
        checkpoint.check_shape(manifest)
    except checkpoint.Damaged as error:
        return [str(error)]
    reader = restore.BlockReader(manifest, Segments(store))
    found = []
    for row in sorted(manifest.blocks, key=lambda row: (row[0], row[1])):
        try:
            reader.block(row)
        except (checkpoint.Damaged, codecs.Lacking) as error:
            found.append(str(error))
        except ObjectMissing as error:
            found.append(error.fact)
    return sorted(set(found))


def tensors(store: Store, manifest: Manifest) -> Iterator[tuple[dict[str, Any], bytes]]:
    """(entry, verified bytes) of each tensor; aliases come with the bytes of what they name."""
    reader = restore.BlockReader(manifest, Segments(store))
    by_name = {entry["name"]: entry for entry in manifest.tensors}
    for entry in manifest.tensors:
        source = by_name[entry["alias"]] if "alias" in entry else entry
        rows = manifest.blocks[source["first"] : source["last"]]
        yield {**source, "name": entry["name"]}, b"".join(reader.block(row) for row in rows)
