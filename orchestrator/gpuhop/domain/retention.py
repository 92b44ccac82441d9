"""What of a job's objects is needed and why, and what may be removed when. Pure: marks and time come in as values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuhop_worker import retention, wire
from gpuhop_worker.retention import Keep, Place

DAMAGED = "damaged"  # it may name packs that cannot be known, and a person may want to look
PINNED = "pinned"
LIVE = "live"  # its session lives, and prunes its own
IN_USE = "in use"  # a live session may start from it

PRUNED = "pruned"  # no rule keeps it
LEFTOVER = "leftover"  # of a session that is over, and no checkpoint that counts ever named it
UNFINISHED = "unfinished"  # a temporary file, an upload that was not completed


@dataclass(frozen=True)
class Checkpoint:
    """One that counts (format.md R33). `step` is None for a damaged manifest, whose packs nobody knows."""

    place: Place
    step: int | None
    packs: frozenset[str] = frozenset()
    measured: tuple[int, float] | None = None


@dataclass(frozen=True)
class Use:
    """Who else needs something. `holds`: place -> words of pins and forks. `live`: tokens of live sessions; `places`
    and `packs`: what their grants name. `blind`: such a grant cannot be read, so it may name anything."""

    holds: Mapping[Place, tuple[str, ...]] = field(default_factory=dict)
    live: frozenset[int] = frozenset()
    places: frozenset[Place] = frozenset()
    packs: frozenset[str] = frozenset()
    blind: bool = False


@dataclass(frozen=True)
class Decision:
    """`why`: place -> words, for each kept checkpoint. `packs`: that they name. `old_packs`: that the others name.
    `unknown`: a kept one is damaged, so any pack may be needed."""

    why: Mapping[Place, tuple[str, ...]]
    packs: frozenset[str]
    old_packs: frozenset[str]
    unknown: bool


def decide(found: Collection[Checkpoint], keep: Keep, use: Use) -> Decision:
    """Which checkpoints stay. A damaged one neither counts as one of the newest nor goes before it is older than all of
    them; when none can be read, all stay."""
    good = [retention.Saved(one.place, one.step, one.measured) for one in found if one.step is not None]
    why = {place: list(words) for place, words in retention.chosen(good, keep).items()}
    newest = sorted((one.place for one in good), reverse=True)[: keep.last]
    edge = newest[-1] if len(newest) == keep.last else (0, 0)
    for one in found:
        words = why.setdefault(one.place, [])
        words += [DAMAGED] if one.step is None and one.place > edge else []
        words += use.holds.get(one.place, ())
        words += [IN_USE] if one.place in use.places else []
        words += [LIVE] if one.place[0] in use.live else []
    kept = [one for one in found if why[one.place]]
    return Decision(
        {one.place: tuple(why[one.place]) for one in kept},
        frozenset(key for one in kept for key in one.packs),
        frozenset(key for one in found if not why[one.place] for key in one.packs),
        any(one.step is None for one in kept),
    )


def unneeded(keys: Iterable[str], counting: Collection[Place], decision: Decision, use: Use) -> dict[str, str]:
    """key -> PRUNED or LEFTOVER for manifests and packs that nobody needs. Nothing else is ever named."""
    found: dict[str, str] = {}
    for key in keys if not use.blind else ():
        token, place = wire.token_of(key), wire.manifest_place(key)
        if token is None or token in use.live:
            continue
        if place is not None:
            if place not in decision.why and place not in use.places:
                found[key] = PRUNED if place in counting else LEFTOVER
        elif is_pack(key) and not decision.unknown and key not in decision.packs and key not in use.packs:
            found[key] = PRUNED if key in decision.old_packs else LEFTOVER
    return found


def is_pack(key: str) -> bool:
    return "/pack-" in key and wire.token_of(key) is not None


# ---------------------------------------------------------------- mark, wait, sweep

GRACE_S = 3600.0
"""How long something must have been unneeded before it goes, in seconds of the scheduler's clock. Longer than the
longest lease (300 s, Profile.lease_s: a session that was frozen may not know yet that it lost its token) and the
longest upload of one object (a pack of 36 MB over 16 KB/s takes 2,250 s; over a slower link no training hops)."""


@dataclass(frozen=True)
class Mark:
    """Seen unneeded since `at`. `going`: its removal was begun."""

    key: str
    size: int
    why: str
    at: datetime
    going: bool = False


@dataclass(frozen=True)
class Turn:
    """`fresh`: to be marked now. `spared`: marks to take back. `due`: to be removed, in this order (R34). `gone`: marks
    of what was removed before its end was written down."""

    fresh: tuple[Mark, ...]
    spared: tuple[str, ...]
    due: tuple[Mark, ...]
    gone: tuple[str, ...]


def turn(
    there: Mapping[str, int],
    unwanted: Mapping[str, str],
    marks: Mapping[str, Mark],
    named_by: Mapping[str, frozenset[str]],
    now: datetime,
    grace_s: float,
) -> Turn:
    """One look. `there`: key -> size; `unwanted`: key -> why; `named_by`: key of a manifest -> packs that it names.

    What has another size than when it was marked is still being written, and waits anew. A pack waits for the manifests
    that name it.
    """
    current = {key: _mark(key, there[key], why, marks.get(key), now) for key, why in unwanted.items()}
    ripe = {key for key, mark in current.items() if now - mark.at >= timedelta(seconds=grace_s)}
    held = {pack for key, packs in named_by.items() if key in there and key not in ripe for pack in packs}
    due = sorted(ripe - held, key=lambda key: (wire.manifest_place(key) is None, key))
    return Turn(
        fresh=tuple(mark for key, mark in current.items() if marks.get(key) != mark),
        spared=tuple(
            key for key, mark in marks.items() if key not in current and not (mark.going and key not in there)
        ),
        due=tuple(current[key] for key in due),
        gone=tuple(key for key, mark in marks.items() if mark.going and key not in there),
    )


def _mark(key: str, size: int, why: str, before: Mark | None, now: datetime) -> Mark:
    return before if before is not None and before.size == size else Mark(key, size, why, now)
