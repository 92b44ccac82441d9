"""Mark, wait, sweep: what a job no longer needs is marked in the ledger, and removed when it has been marked for a
while and is still unneeded (docs/adr/0011).

Every write may be the last one: what was marked stays marked, what was removed is missed at the next look, and its
bytes are counted once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuhop.db import jobs, sessions, storage
from gpuhop.db.connect import Connection
from gpuhop.domain import retention
from gpuhop.domain.retention import LEFTOVER, PRUNED, UNFINISHED, Mark, Turn
from gpuhop.engine import survey
from gpuhop.engine.parts import Parts
from gpuhop.engine.survey import Known, Survey
from gpuhop.errors import DiskFull, InvalidInput, NotFound, StoreError
from gpuhop_worker import wire
from gpuhop_worker.retention import Keep

log = logging.getLogger("gpuhop")

LOOK_EVERY_S = 3600.0
"""Between two looks at a job with a live session: one listing and a few reads, against free tiers of 50,000 requests a
month (facts on platforms, section 3)."""

RETRY_S = 600.0
"""After a look that failed, or that the world overtook."""

CHECKPOINTS, RECORDS, WAITING, LEFTOVERS = "checkpoints", "records", "waiting", "leftovers"
"""Kinds of the storage ledger: what is kept; logs, metrics, outputs, code and documents; old checkpoints that wait for
their removal; what dead sessions left."""


@dataclass(frozen=True)
class Swept:
    """`removed`: what went. `waiting`: marked, with the time at which it may go. `overtaken`: a session began or ended,
    or a pin changed, during the look, so that nothing was done."""

    removed: tuple[Mark, ...] = ()
    waiting: tuple[tuple[Mark, datetime], ...] = ()
    overtaken: bool = False


def sweep(parts: Parts, job_id: str, *, keep: Keep | None = None, at_once: bool = False) -> Swept:
    """One look at a job. `keep`: another rule than its own; `at_once`: without waiting, where no session lives (a
    person's word). Raises StoreError, DiskFull: what is left is done next time."""
    now = parts.clock.now()
    with parts.db.read() as c:
        ledger = survey.known(c, job_id)
    seen = survey.look(parts.store, ledger, keep)
    grace_s = 0.0 if at_once and not ledger.live else parts.grace_s
    with parts.db.write() as c:
        if not _still(c, ledger):
            storage.look_again(c, job_id, now + timedelta(seconds=RETRY_S))
            return Swept(overtaken=True)
        marks = storage.marks_of(c, job_id)
        turn = retention.turn(seen.sizes, seen.unwanted, marks, seen.named_by, now, grace_s)
        _note(c, turn, lambda mark: job_id)
    for mark in turn.due:
        parts.store.delete(mark.key)
    with parts.db.write() as c:
        storage.removed(c, [*turn.gone, *(mark.key for mark in turn.due)], now)
        left = storage.marks_of(c, job_id)
        storage.set_stock(c, job_id, stock(seen, turn.due), now)
        storage.look_again(c, job_id, _next_look(ledger, left, now, parts.grace_s))
    if turn.due:
        size = sum(mark.size for mark in turn.due)
        log.info("removed %d objects of %s, %d bytes", len(turn.due), job_id, size, extra={"action": "swept"})
    wait = timedelta(seconds=parts.grace_s)
    return Swept(turn.due, tuple((mark, mark.at + wait) for mark in left.values()))


def _still(c: Connection, ledger: Known) -> bool:
    """Under the write lock: no session was granted or closed, or both, and no pin changed since the look. From here on
    a new session sees what is going (launching.start_session), and so does who pins (`pin`)."""
    before, now = (
        [(row.token, row.token in one.live) for row in one.rows] for one in (ledger, survey.known(c, ledger.job))
    )
    return before == now and storage.pins_of(c, ledger.job) == ledger.pins


def _note(c: Connection, turn: Turn, job_of: Callable[[Mark], str | None]) -> None:
    storage.unmark(c, turn.spared)
    for mark in turn.fresh:
        storage.mark(c, job_of(mark), mark)
    storage.begin_removal(c, [mark.key for mark in turn.due])


def _next_look(ledger: Known, marks: Mapping[str, Mark], now: datetime, grace_s: float) -> datetime | None:
    """When the first mark is ripe; while a session lives, from time to time; once more when a session that has ended
    can write nothing any more."""
    grace = timedelta(seconds=grace_s)
    times = [mark.at + grace for mark in marks.values()]
    times += [row.ended_at + grace for row in ledger.rows if row.ended_at is not None and row.ended_at + grace > now]
    if ledger.live:
        times.append(now + timedelta(seconds=LOOK_EVERY_S))
    return max(min(times), now + timedelta(seconds=min(RETRY_S, grace_s))) if times else None


def stock(seen: Survey, without: Iterable[Mark] = ()) -> dict[str, tuple[int, int]]:
    """kind -> (objects, bytes)."""
    sums = {kind: (0, 0) for kind in (CHECKPOINTS, WAITING, LEFTOVERS, RECORDS)}
    gone = {mark.key for mark in without}
    kinds = {PRUNED: WAITING, LEFTOVER: LEFTOVERS}
    for key, size in seen.sizes.items():
        if key in gone:
            continue
        state = wire.manifest_place(key) is not None or retention.is_pack(key)
        kind = kinds[seen.unwanted[key]] if key in seen.unwanted else CHECKPOINTS if state else RECORDS
        objects, total = sums[kind]
        sums[kind] = (objects + 1, total + size)
    return sums


# ---------------------------------------------------------------- what killed writers left


def tidy(parts: Parts, prefix: str = "") -> Swept:
    """One look at leftovers under a prefix, of whatever job: temporary files, uploads that were not completed. What is
    under the prefix of a live session is its own. Raises StoreError."""
    now = parts.clock.now()
    found = {one.key: one for one in parts.store.leftovers(prefix)}
    with parts.db.write() as c:
        live = {wire.session_prefix(row.job_id, row.token) for row in sessions.live(c)}
        unwanted = {key: UNFINISHED for key in found if not any(key.startswith(one) for one in live)}
        marks = storage.unfinished_marks(c, prefix)
        sizes = {key: one.size for key, one in found.items()}
        turn = retention.turn(sizes, unwanted, marks, {}, now, parts.grace_s)
        _note(c, turn, lambda mark: _job_of(c, mark.key))
    for mark in turn.due:
        found[mark.key].remove()
    with parts.db.write() as c:
        storage.removed(c, [*turn.gone, *(mark.key for mark in turn.due)], now)
        left = storage.unfinished_marks(c, prefix)
    wait = timedelta(seconds=parts.grace_s)
    return Swept(turn.due, tuple((mark, mark.at + wait) for mark in left.values()))


def _job_of(c: Connection, key: str) -> str | None:
    """The job of a key; None for one that the ledger does not know (a submit that was killed)."""
    head, _, rest = key.partition("/")
    job_id = rest.partition("/")[0]
    try:
        return jobs.get(c, job_id).id if head == "jobs" else None
    except NotFound:
        return None


# ---------------------------------------------------------------- in the loop


def sweep_later(parts: Parts, job_id: str) -> None:
    """A sweep that must not stop anything: what fails is tried again in a while."""
    try:
        sweep(parts, job_id)
    except (StoreError, DiskFull, InvalidInput, ValueError) as error:
        fact = error.fact if isinstance(error, StoreError | DiskFull | InvalidInput) else str(error)
        log.warning("retention of %s waits: %s", job_id, fact, extra={"action": "sweep-failed"})
        with parts.db.write() as c:
            storage.look_again(c, job_id, parts.clock.now() + timedelta(seconds=RETRY_S))
