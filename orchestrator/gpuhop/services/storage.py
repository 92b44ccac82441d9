"""What a job holds in the store, why, and until when; pins; pruning by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuhop.db import storage
from gpuhop.db.records import Freed
from gpuhop.domain.retention import UNFINISHED, Mark
from gpuhop.engine import checkpoints, retention, survey
from gpuhop.engine.parts import Parts
from gpuhop.engine.retention import Swept
from gpuhop.engine.survey import Survey
from gpuhop.errors import InvalidInput, NotFound
from gpuhop.services.checkpoints import Line
from gpuhop_worker import wire
from gpuhop_worker.retention import Keep, Place

_PLACE = re.compile(r"t?0*([1-9][0-9]{0,8})/0*([1-9][0-9]{0,8})\Z")


@dataclass(frozen=True)
class Going:
    """An object that is to go: at `at`, or, where that is None, an hour or so after the next look."""

    key: str
    size: int
    why: str
    at: datetime | None


@dataclass(frozen=True)
class Storage:
    """`stock`: kind -> (objects, bytes), as the store is now. `freed`: what sweeps removed, in order of time."""

    stock: dict[str, tuple[int, int]]
    going: tuple[Going, ...]
    freed: tuple[Freed, ...]
    seen: Survey

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.stock.values())


def look(parts: Parts, job_id: str, keep: Keep | None = None) -> Storage:
    """The job's part of the store as it is now; nothing is changed. Raises StoreError."""
    with parts.db.read() as c:
        ledger = survey.known(c, job_id)
        marks = {**storage.marks_of(c, job_id), **storage.unfinished_marks(c, wire.job_prefix(job_id))}
        freed = tuple(storage.freed_of(c, job_id))
    seen = survey.look(parts.store, ledger, keep)
    unfinished = list(parts.store.leftovers(wire.job_prefix(job_id)))
    sums = retention.stock(seen)
    objects, size = sums[retention.LEFTOVERS]
    sums[retention.LEFTOVERS] = (objects + len(unfinished), size + sum(one.size for one in unfinished))
    wait = timedelta(seconds=parts.grace_s)
    going = [Going(key, seen.sizes[key], why, _at(marks.get(key), wait)) for key, why in seen.unwanted.items()]
    going += [Going(one.key, one.size, UNFINISHED, _at(marks.get(one.key), wait)) for one in unfinished]
    return Storage(
        sums, tuple(sorted(going, key=lambda one: (wire.manifest_place(one.key) is None, one.key))), freed, seen
    )


def _at(mark: Mark | None, wait: timedelta) -> datetime | None:
    return None if mark is None else mark.at + wait


def explained(lines: Sequence[Line], found: Storage) -> list[Line]:
    """The listing, with why each checkpoint is kept or when it goes."""
    at = {one.key: one.at for one in found.going}
    return [
        replace(
            line,
            kept=found.seen.decision.why.get((line.token, line.seq), ()),
            goes_at=at.get(found.seen.keys.get((line.token, line.seq), "")),
        )
        for line in lines
    ]


# ---------------------------------------------------------------- pins


def place_of(text: str) -> Place:
    """(token, seq) of what the listing shows as t0007/3. Raises InvalidInput."""
    found = _PLACE.match(text)
    if found is None:
        raise InvalidInput(f"{text!r} names no checkpoint", "use a name of the listing, such as t0007/3")
    return int(found.group(1)), int(found.group(2))


def pin(parts: Parts, job_id: str, place: Place) -> None:
    """Keep a checkpoint whatever the rules say. Raises NotFound, InvalidInput (it cannot be kept any more)."""
    with parts.db.read() as c:
        ledger = survey.known(c, job_id)
    key = wire.numbered_key(job_id, place[0], "manifest", place[1])
    name, listing = f"t{place[0]:04d}/{place[1]}", f"gpuhop checkpoints {job_id}"
    if place[1] > ledger.sealed.get(place[0], -1) or checkpoints.read(parts.store, key) is None:
        raise NotFound(f"job {job_id} has no readable checkpoint {name} that counts", listing)
    if place[0] in ledger.live:
        # It prunes its own without asking, and may be doing so now: a pin that does not hold is worse than none.
        raise InvalidInput(
            f"the session of {name} lives and removes its own old checkpoints", "pin it when the session is over"
        )
    with parts.db.write() as c:
        if key in storage.going(c, job_id):
            raise InvalidInput(f"checkpoint {name} is being removed", listing)
        storage.pin(c, job_id, place, parts.clock.now())


def unpin(parts: Parts, job_id: str, place: Place) -> None:
    """Let the rules decide again. Raises NotFound."""
    with parts.db.write() as c:
        if not storage.unpin(c, job_id, place):
            name = f"t{place[0]:04d}/{place[1]}"
            raise NotFound(f"checkpoint {name} of {job_id} is not pinned", f"gpuhop checkpoints {job_id}")
        # What it held may go some time after the next look.
        storage.look_again(c, job_id, parts.clock.now())


# ---------------------------------------------------------------- by hand


def prune(parts: Parts, job_id: str, keep: Keep | None) -> tuple[Swept, Swept]:
    """(checkpoints and packs, unfinished writes): at once where no session of the job lives, else what has waited long
    enough. Raises StoreError."""
    return (
        retention.sweep(parts, job_id, keep=keep, at_once=True),
        retention.tidy(parts, wire.job_prefix(job_id)),
    )
