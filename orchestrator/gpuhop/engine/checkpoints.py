"""The scheduler's view of a job's checkpoints in the store: which count, which to resume from, which to remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuhop.db.records import SessionRow
from gpuhop.errors import ObjectMissing
from gpuhop.stores.base import Entry, Store
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


def read(store: Store, key: str) -> Manifest | None:
    """The manifest, or None when it is damaged or gone."""
    try:
        return Manifest.from_bytes(store.get(key))
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


def doomed(store: Store, job: str, sealed: Mapping[int, int], keep: int) -> list[Entry]:
    """Checkpoints beyond the newest `keep` that count, and packs that no kept manifest names; in the order in which
    they may be removed: manifests first (R34). Only while the job has no live session."""
    saved = counting(store, job, sealed, keep)
    good = [one for one in saved if one.manifest is not None]
    if saved and not good:
        return []  # nothing readable: remove nothing, a person may want to look
    kept = {one.key for one in saved}
    needed = {pack["key"] for one in good if one.manifest is not None for pack in one.manifest.packs}
    every = list(store.list(wire.job_prefix(job)))
    manifests = [entry for entry in every if wire.manifest_place(entry.key) is not None and entry.key not in kept]
    packs = [entry for entry in every if _is_pack(entry.key) and entry.key not in needed]
    if len(good) < len(saved):
        packs = []  # a damaged kept manifest may name packs that cannot be known
    return [*manifests, *packs]


def sweep(store: Store, job: str, sealed: Mapping[int, int], keep: int) -> list[str]:
    """Remove what `doomed` names. Returns the removed keys. A crash in between is harmless: the rest goes next time."""
    going = [entry.key for entry in doomed(store, job, sealed, keep)]
    for key in going:
        store.delete(key)
    return going


def _is_pack(key: str) -> bool:
    return "/pack-" in key and wire.token_of(key) is not None
