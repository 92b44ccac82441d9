"""The scheduler's view of a job's checkpoints in the store: which count, which to resume from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuhop.db.records import SessionRow
from gpuhop.errors import ObjectMissing
from gpuhop.stores.base import Store
from gpuhop_worker import wire
from gpuhop_worker.wire import Manifest, WireError


@dataclass(frozen=True)
class Saved:
    """One checkpoint: its manifest's key and place; `manifest` is None when it cannot be trusted."""

    key: str
    token: int
    seq: int
    manifest: Manifest | None


def sealed_by(rows: Iterable[SessionRow]) -> dict[int, int]:
    """token -> the last seq of it that counts, for every session that is closed."""
    return {row.token: row.sealed_seq for row in rows if row.sealed_seq is not None}


def places(store: Store, prefix: str) -> list[tuple[int, int, str]]:
    """(token, seq, key) of every manifest under a prefix, newest first."""
    found = [(wire.manifest_place(entry.key), entry.key) for entry in store.list(prefix)]
    return sorted(((*place, key) for place, key in found if place is not None), reverse=True)


def counting(store: Store, job: str, sealed: Mapping[int, int], limit: int) -> list[Saved]:
    """The newest checkpoints that count (format.md R33), newest first, as far as `limit` readable ones: a damaged one
    must not push a good one out. `sealed`: token -> its last seq."""
    found: list[Saved] = []
    for token, seq, key in places(store, wire.job_prefix(job)):
        if seq <= sealed.get(token, -1):
            found.append(Saved(key, token, seq, read(store, key)))
            if sum(one.manifest is not None for one in found) >= limit:
                break
    return found


def read_whole(store: Store, key: str) -> Manifest:
    """Raises ObjectMissing, WireError (it is damaged)."""
    return Manifest.from_bytes(store.get(key))


def read(store: Store, key: str) -> Manifest | None:
    """The manifest, or None when it is damaged or gone."""
    try:
        return read_whole(store, key)
    except (WireError, ObjectMissing):
        return None


def newest_of(store: Store, job: str, token: int) -> tuple[int, int]:
    """(highest seq, step of the newest readable manifest) of one session; (0, 0) when it saved nothing."""
    rows = places(store, wire.session_prefix(job, token))
    step = 0
    for _, _, key in rows:
        manifest = read(store, key)
        if manifest is not None:
            step = manifest.step
            break
    return (rows[0][1] if rows else 0), step
