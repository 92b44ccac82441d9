"""Which checkpoints count, and pruning at once that never removes what is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.engine import quick_folder
from tests.support.faults import HookedStore
from tests.support.ledgered import ledgered

from gpuhop.engine import checkpoints, retention
from gpuhop.errors import StoreError
from gpuhop.stores.base import Store
from gpuhop.stores.local import LocalStore
from gpuhop_worker import wire
from gpuhop_worker.wire import Manifest

JOB = "j"


def save(store: LocalStore, token: int, seq: int, step: int, packs: list[tuple[int, int]] | None = None) -> str:
    """A checkpoint; `packs`: (token, number) of each pack that it names, its own by default."""
    keys = [wire.numbered_key(JOB, t, "pack", n) for t, n in (packs or [(token, seq)])]
    for key in keys:
        store.put(key, b"pack")
    manifest = Manifest(JOB, token, seq, step, "api", [{"key": key, "size": 4} for key in keys], [])
    key = wire.numbered_key(JOB, token, "manifest", seq)
    store.put(key, manifest.to_bytes())
    return key


def keys(store: LocalStore, what: str) -> list[str]:
    return [entry.key for entry in store.list(wire.job_prefix(JOB)) if f"/{what}-" in entry.key]


def places(saved: list[checkpoints.Saved]) -> list[tuple[int, int]]:
    return [(one.token, one.seq) for one in saved]


def sweep(store: Store, sealed: dict[int, int], keep: int) -> list[str]:
    """By hand, while no session lives: nothing waits. Returns the removed keys."""
    with ledgered(store, JOB, sealed, keep) as rig:
        return [mark.key for mark in retention.sweep(rig.parts, JOB, at_once=True).removed]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_newest_by_token_and_sequence_as_numbers(store: LocalStore) -> None:
    for token, seq in [(9, 1), (10, 2), (10, 10), (10, 9), (10000, 1), (10000, 1000000)]:
        save(store, token, seq, token)
    sealed = {9: 1, 10: 10, 10000: 1000000}
    assert places(checkpoints.counting(store, JOB, sealed, 4)) == [(10000, 1000000), (10000, 1), (10, 10), (10, 9)]


def test_what_lies_beyond_the_seal_does_not_count(store: LocalStore) -> None:
    for seq in (1, 2, 3):
        save(store, 1, seq, seq)
    save(store, 2, 1, 9)  # a session that is not closed
    assert places(checkpoints.counting(store, JOB, {1: 2}, 5)) == [(1, 2), (1, 1)]
    assert checkpoints.counting(store, JOB, {}, 5) == []
    assert places(checkpoints.counting(store, JOB, {1: 0}, 5)) == []


def test_a_damaged_one_is_named_and_does_not_push_a_good_one_out(store: LocalStore) -> None:
    save(store, 1, 1, 10)
    bad = save(store, 1, 2, 20)
    store.put(bad, store.get(bad)[:-1])
    found = checkpoints.counting(store, JOB, {1: 2}, 1)
    assert [(one.seq, one.manifest is not None) for one in found] == [(2, False), (1, True)]
    assert checkpoints.newest_of(store, JOB, 1) == (2, 10)
    assert checkpoints.newest_of(store, JOB, 2) == (0, 0)


def test_sweep_keeps_the_newest_and_all_that_they_name(store: LocalStore) -> None:
    for seq in range(1, 6):
        save(store, 1, seq, seq)
    save(store, 2, 1, 6, packs=[(1, 2), (2, 1)])  # refers to a pack of an old checkpoint
    sweep(store, {1: 5, 2: 1}, 2)
    assert keys(store, "manifest") == ["jobs/j/t0001/manifest-000005.json", "jobs/j/t0002/manifest-000001.json"]
    assert keys(store, "pack") == ["jobs/j/t0001/pack-000002", "jobs/j/t0001/pack-000005", "jobs/j/t0002/pack-000001"]
    assert sweep(store, {1: 5, 2: 1}, 2) == []


def test_sweep_touches_nothing_but_manifests_and_packs(store: LocalStore) -> None:
    others = ["spec.json", "code-00.tar.gz", "control.json", "t0001/beat.json", "t0001/log-000001.gz"]
    for name in [*others, "t0001/result.json", "t0001/metrics-000001.gz", "t0001/output-000001.tar.gz"]:
        store.put(wire.job_prefix(JOB) + name, b"x")
    store.put("jobs/j2/t0001/pack-000001", b"x")
    before = [entry.key for entry in store.list("")]
    save(store, 1, 1, 1)
    save(store, 1, 2, 2)
    sweep(store, {1: 2}, 1)
    assert set(before) <= {entry.key for entry in store.list("")}


def test_sweep_removes_nothing_when_nothing_can_be_read(store: LocalStore) -> None:
    for seq in (1, 2):
        key = save(store, 1, seq, seq)
        store.put(key, b"rubbish")
    assert sweep(store, {1: 2}, 1) == []
    assert len(keys(store, "pack")) == 2


def test_packs_stay_while_a_damaged_manifest_may_name_them(store: LocalStore) -> None:
    for seq in range(1, 5):
        save(store, 1, seq, seq)
    store.put("jobs/j/t0001/manifest-000004.json", b"rubbish")
    sweep(store, {1: 4}, 1)
    assert len(keys(store, "pack")) == 4
    assert keys(store, "manifest") == ["jobs/j/t0001/manifest-000003.json", "jobs/j/t0001/manifest-000004.json"]


def complete(store: LocalStore, sealed: dict[int, int]) -> list[tuple[int, int]]:
    """Checkpoints that can be restored: every pack that they name is there."""
    there = set(keys(store, "pack"))
    found = checkpoints.counting(store, JOB, sealed, 100)
    return [
        (one.token, one.seq)
        for one in found
        if one.manifest is not None and {pack["key"] for pack in one.manifest.packs} <= there
    ]


HISTORY = st.lists(
    st.tuples(st.integers(1, 4), st.lists(st.integers(1, 6), max_size=3)), min_size=1, max_size=8
)  # (token, numbers of older packs referred to)


def build(store: LocalStore, history: list[tuple[int, list[int]]]) -> dict[int, int]:
    seqs: dict[int, int] = {}
    made: list[tuple[int, int]] = []
    for step, (token, olds) in enumerate(sorted(history, key=lambda row: row[0]), 1):
        seqs[token] = seqs.get(token, 0) + 1
        refs = [made[n % len(made)] for n in olds if made]
        save(store, token, seqs[token], step, [*refs, (token, seqs[token])])
        made.append((token, seqs[token]))
    return seqs


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORY, st.integers(1, 3))
def test_a_crash_at_any_delete_leaves_the_kept_ones_whole(history: list[tuple[int, list[int]]], keep: int) -> None:
    """Raise before and after each delete; what must be kept can be restored then, and the next sweep finishes."""

    class Crash(BaseException):
        pass

    index = 0
    while True:
        with quick_folder() as folder:
            store = LocalStore(folder)
            sealed = build(store, history)
            newest = complete(store, sealed)[:keep]
            count = [0]
            try:
                sweep(HookedStore(store, crash_at(index, count, Crash)), sealed, keep)
                crashed = False
            except Crash:
                crashed = True
            assert complete(store, sealed)[:keep] == newest
            # R34: what is still a checkpoint is a whole one, the unneeded ones too.
            assert len(complete(store, sealed)) == len(checkpoints.counting(store, JOB, sealed, 100))
            sweep(store, sealed, keep)
            assert complete(store, sealed) == newest
            assert len(keys(store, "manifest")) == len(newest)
        if not crashed:
            return
        index += 1


def crash_at(index: int, count: list[int], crash: type[BaseException]) -> Callable[[str, str, str], None]:
    def hook(verb: str, key: str, moment: str) -> None:
        if verb == "delete":
            if count[0] == index:
                raise crash
            count[0] += 1

    return hook


def test_a_store_that_fails_is_not_a_damaged_manifest(store: LocalStore) -> None:
    save(store, 1, 1, 1)

    def hook(verb: str, key: str, moment: str) -> None:
        if verb == "get":
            raise StoreError("away", "wait")

    with pytest.raises(StoreError):
        checkpoints.counting(HookedStore(store, hook), JOB, {1: 1}, 1)
