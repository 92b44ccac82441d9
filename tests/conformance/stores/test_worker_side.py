"""The worker's own client on every store's addresses: what `presign` gives is what a session can use."""

from __future__ import annotations

import os

import pytest
from tests.conformance.stores.cases import Case

from gpuhop.stores.base import Verb
from gpuhop_worker.store import GrantStore, StoreFailure

VERBS: tuple[Verb, ...] = ("get", "put", "put_new", "delete")


def _grant(case: Case, *keys: str) -> GrantStore:
    return GrantStore({key: {verb: case.store.presign(verb, key, 60) for verb in VERBS} for key in keys})


def test_a_session_writes_reads_and_prunes_by_its_grant(case: Case) -> None:
    worker = _grant(case, "jobs/a/t0007/pack-000001", "jobs/a/t0007/beat.json")
    pack = os.urandom(100_000)
    worker.put_once("jobs/a/t0007/pack-000001", pack)
    worker.put("jobs/a/t0007/beat.json", b"1")
    worker.put("jobs/a/t0007/beat.json", b"2")
    assert case.store.get("jobs/a/t0007/pack-000001") == pack == worker.get("jobs/a/t0007/pack-000001")
    assert case.store.get("jobs/a/t0007/beat.json") == b"2"
    worker.delete("jobs/a/t0007/pack-000001")
    worker.delete("jobs/a/t0007/pack-000001")
    assert [entry.key for entry in case.store.list("jobs/")] == ["jobs/a/t0007/beat.json"]
    with pytest.raises(StoreFailure) as caught:
        worker.get("jobs/a/t0007/pack-000001")
    assert caught.value.missing


def test_a_key_that_is_written_once_stays_as_it_is(case: Case) -> None:
    first, zombie = _grant(case, "k"), _grant(case, "k")
    first.put_once("k", b"mine")
    first.put_once("k", b"mine")  # a retry after a lost answer
    with pytest.raises(StoreFailure) as caught:
        zombie.put_once("k", b"other")
    assert caught.value.taken and case.store.get("k") == b"mine"
