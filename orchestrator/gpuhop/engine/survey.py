"""What lies in the store for one job, what of it is needed, and why: retention's view of the world."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gpuhop.db import jobs, sessions, storage
from gpuhop.db.connect import Connection
from gpuhop.db.records import Pin, SessionRow
from gpuhop.domain import retention
from gpuhop.domain.retention import Checkpoint, Decision, Use
from gpuhop.domain.states import LIVE_SESSIONS
from gpuhop.engine import checkpoints, segments
from gpuhop.errors import ObjectMissing
from gpuhop.spec import codec
from gpuhop.stores.base import Store
from gpuhop_worker import wire
from gpuhop_worker.retention import Keep, Measurements, Place
from gpuhop_worker.wire import Grant, WireError

ALL = 10**9
"""The seal of a session that lives: all that it has saved so far counts."""


@dataclass(frozen=True)
class Known:
    """What the ledger knows of a job that matters here."""

    job: str
    keep: Keep
    rows: tuple[SessionRow, ...]
    pins: tuple[Pin, ...]

    @property
    def live(self) -> frozenset[int]:
        return frozenset(row.token for row in self.rows if row.state in LIVE_SESSIONS)

    @property
    def sealed(self) -> dict[int, int]:
        return {**checkpoints.sealed_by(self.rows), **dict.fromkeys(self.live, ALL)}


def known(c: Connection, job_id: str) -> Known:
    """Raises NotFound, InvalidInput (a spec that cannot be read)."""
    keep = codec.loads(jobs.get(c, job_id).spec).checkpoint.keep
    return Known(job_id, keep, tuple(sessions.of_job(c, job_id)), storage.pins_of(c, job_id))


@dataclass(frozen=True)
class Survey:
    """`sizes`: of every object of the job. `found`: the checkpoints that count, with `keys` of their manifests.
    `unwanted`: key -> why, for what nobody needs."""

    sizes: Mapping[str, int]
    found: tuple[Checkpoint, ...]
    keys: Mapping[Place, str]
    decision: Decision
    use: Use
    unwanted: Mapping[str, str]

    @property
    def named_by(self) -> dict[str, frozenset[str]]:
        return {self.keys[one.place]: one.packs for one in self.found}


def look(store: Store, ledger: Known, keep: Keep | None = None) -> Survey:
    """`keep`: another rule than the job's own. Raises StoreError.

    The listing comes first: a manifest that a session writes after it names packs under the session's own prefix, or
    packs that its grant or its last manifest names, and none of them is touched.
    """
    keep = keep or ledger.keep
    sizes = {entry.key: entry.size for entry in store.list(wire.job_prefix(ledger.job))}
    keys = {place: key for key in sizes if (place := wire.manifest_place(key)) is not None}
    counting = [place for place in keys if place[1] <= ledger.sealed.get(place[0], -1)]
    found = _checkpoints(store, {place: keys[place] for place in counting})
    if keep.best is not None:
        found = _measured(store, ledger, found, keep.best.metric)
    use = _use(store, ledger)
    decision = retention.decide(found, keep, use)
    unwanted = retention.unneeded(sizes, frozenset(counting), decision, use)
    return Survey(sizes, tuple(found), keys, decision, use, unwanted)


def _checkpoints(store: Store, keys: Mapping[Place, str]) -> list[Checkpoint]:
    """Newest first. One that its session removes meanwhile is none."""
    found = []
    for place in sorted(keys, reverse=True):
        try:
            manifest = checkpoints.read_whole(store, keys[place])
        except WireError:
            found.append(Checkpoint(place, None))
        except ObjectMissing:
            continue
        else:
            found.append(Checkpoint(place, manifest.step, frozenset(pack["key"] for pack in manifest.packs)))
    return found


def _use(store: Store, ledger: Known) -> Use:
    holds: dict[Place, tuple[str, ...]] = {}
    for pin in ledger.pins:
        word = retention.PINNED if pin.holder == storage.USER else pin.holder
        holds[pin.place] = (*holds.get(pin.place, ()), word)
    places: set[Place] = set()
    packs: set[str] = set()
    blind = False
    for token in ledger.live:
        try:
            grant = Grant.from_gzip(store.get(wire.grant_key(ledger.job, token)))
        except (ObjectMissing, WireError):
            blind = True  # it is being launched, or nobody can tell what it may read
            continue
        places |= {place for key in grant.parents if (place := wire.manifest_place(key)) is not None}
        packs |= {key for key in grant.addresses if retention.is_pack(key)}
    return Use(holds, ledger.live, frozenset(places), frozenset(packs), blind)


def _measured(store: Store, ledger: Known, found: list[Checkpoint], metric: str) -> list[Checkpoint]:
    """With the newest value of the metric at or before each one, in the history that its own session knew (R50)."""
    values = Measurements(metric)
    by_token: dict[int, list[Checkpoint]] = {}
    for one in found:
        by_token.setdefault(one.place[0], []).append(one)
    filled: list[Checkpoint] = []
    for row in ledger.rows:
        lines = segments.text_of(store, ledger.job, row.token, "metrics").splitlines()
        if lines:
            values.cut(min(row.start_step, _first_step(lines[0], row.start_step)))
        for line in lines:
            values.add(line)
        for one in by_token.get(row.token, ()):
            measured = None if one.step is None else values.before(one.step)
            filled.append(Checkpoint(one.place, one.step, one.packs, measured))
    return sorted(filled, key=lambda one: one.place, reverse=True)


def _first_step(line: bytes, default: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return default
