"""Which checkpoints stay and why; what is marked, spared and due. Pure values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuhop.domain.retention import LEFTOVER, PRUNED, Checkpoint, Mark, Use, decide, turn, unneeded
from gpuhop_worker import wire
from gpuhop_worker.retention import Best, Keep

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def pack(token: int, number: int) -> str:
    return wire.numbered_key("j", token, "pack", number)


def manifest(token: int, seq: int) -> str:
    return wire.numbered_key("j", token, "manifest", seq)


def one(token: int, seq: int, step: int | None, *packs: str, value: float | None = None) -> Checkpoint:
    measured = None if value is None or step is None else (step - 1, value)
    return Checkpoint((token, seq), step, frozenset(packs or [pack(token, seq)]), measured)


def test_every_kept_one_has_its_reasons() -> None:
    found = [one(1, n, 10 * n, value=1 / n if n != 2 else 0.01) for n in range(1, 7)]
    use = Use(holds={(1, 1): ("pinned",), (9, 9): ("pinned",)}, places=frozenset({(1, 4)}))
    why = decide(found, Keep(1, 30, Best("loss")), use).why
    assert why == {
        (1, 1): ("pinned",),
        (1, 2): ("best",),
        (1, 3): ("every",),
        (1, 4): ("in use",),
        (1, 6): ("last", "every"),
    }


def test_what_a_live_session_saved_stays_and_counts() -> None:
    found = [one(1, 1, 10), one(1, 2, 20), one(2, 1, 30), one(2, 2, 40)]
    why = decide(found, Keep(1), Use(live=frozenset({2}))).why
    assert why == {(2, 1): ("live",), (2, 2): ("last", "live")}


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([10, 20, None], {(1, 2), (1, 3)}),  # newer than the newest readable one
        ([10, None, 30], {(1, 3)}),
        ([None, None, None], {(1, 1), (1, 2), (1, 3)}),  # nothing readable: a person may want to look
        ([None, 20], {(1, 2)}),
    ],
)
def test_damaged_ones(steps: list[int | None], kept: set[tuple[int, int]]) -> None:
    found = [one(1, n, step) for n, step in enumerate(steps, 1)]
    decision = decide(found, Keep(1), Use())
    assert set(decision.why) == kept
    assert decision.unknown is any(steps[seq - 1] is None for _, seq in kept)


def test_what_is_unneeded() -> None:
    found = [one(1, 1, 10), one(1, 2, 20, pack(1, 2), pack(1, 1)), one(1, 3, 30, pack(1, 3), pack(1, 1))]
    decision = decide(found, Keep(1), Use())
    keys = [manifest(1, n) for n in (1, 2, 3, 4)] + [pack(1, n) for n in (1, 2, 3, 9)]
    others = ["jobs/j/spec.json", "jobs/j/t0001/result.json", "jobs/j/t0001/log-000001.gz", "jobs/j/pack-000001"]
    counting = {place for place in [(1, 1), (1, 2), (1, 3)]}
    assert unneeded([*keys, *others], counting, decision, Use()) == {
        manifest(1, 1): PRUNED,
        manifest(1, 2): PRUNED,
        manifest(1, 4): LEFTOVER,  # written after the session was closed
        pack(1, 2): PRUNED,
        pack(1, 9): LEFTOVER,
    }
    named = Use(live=frozenset({1}))
    assert unneeded(keys, counting, decision, named) == {}
    assert unneeded(keys, counting, decision, Use(blind=True)) == {}


def test_packs_that_a_live_grant_names_stay_whatever_became_of_their_manifest() -> None:
    decision = decide([one(1, 2, 20)], Keep(1), Use())
    use = Use(live=frozenset({2}), places=frozenset({(1, 1)}), packs=frozenset({pack(1, 1)}))
    assert unneeded([manifest(1, 1), pack(1, 1), pack(1, 5)], [(1, 2)], decision, use) == {pack(1, 5): LEFTOVER}


def test_while_a_kept_one_is_damaged_no_pack_goes() -> None:
    decision = decide([one(1, 1, 10), one(1, 2, 20), one(1, 3, None)], Keep(1), Use())
    keys = [manifest(1, 1), pack(1, 1), pack(1, 7)]
    assert unneeded(keys, [(1, 1), (1, 2), (1, 3)], decision, Use()) == {manifest(1, 1): PRUNED}


# ---------------------------------------------------------------- mark, wait, sweep


def mark(key: str, ago_s: float, size: int = 1, going: bool = False) -> Mark:
    return Mark(key, size, PRUNED, NOW - timedelta(seconds=ago_s), going)


def test_marked_waited_due() -> None:
    there = {"new": 1, "young": 1, "ripe": 1, "grew": 2, "needed": 1}
    marks = {key: mark(key, 99 if key == "young" else 100) for key in ("young", "ripe", "grew", "needed", "vanished")}
    marks["mine"] = mark("mine", 100, going=True)  # removed, and its end was not written down
    found = turn(there, dict.fromkeys(("new", "young", "ripe", "grew"), PRUNED), marks, {}, NOW, 100)
    assert found.fresh == (Mark("new", 1, PRUNED, NOW), Mark("grew", 2, PRUNED, NOW))
    assert set(found.spared) == {"needed", "vanished"}
    assert [one.key for one in found.due] == ["ripe"]
    assert found.gone == ("mine",)


def test_what_is_going_is_spared_when_it_is_needed_again() -> None:
    found = turn({"a": 1}, {}, {"a": mark("a", 500, going=True)}, {}, NOW, 100)
    assert found.spared == ("a",) and found.due == () and found.gone == ()


def test_manifests_go_first_and_a_pack_waits_for_all_that_name_it() -> None:
    """R34, also for checkpoints that nobody needs: what still has its manifest is whole."""
    keys = [pack(1, 1), pack(1, 2), manifest(1, 1), manifest(1, 2)]
    there = dict.fromkeys(keys, 1)
    marks = {key: mark(key, 5 if key == manifest(1, 2) else 500) for key in keys}
    named = {manifest(1, 1): frozenset({pack(1, 1)}), manifest(1, 2): frozenset({pack(1, 1), pack(1, 2)})}
    found = turn(there, dict.fromkeys(keys, PRUNED), marks, named, NOW, 100)
    assert [one.key for one in found.due] == [manifest(1, 1)]
    found = turn(there, dict.fromkeys(keys, PRUNED), marks, named, NOW, 5)
    assert [one.key for one in found.due] == [manifest(1, 1), manifest(1, 2), pack(1, 1), pack(1, 2)]
