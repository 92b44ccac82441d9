"""Object access over file: addresses."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpuhop_worker.store import GrantStore, StoreFailure


def store_of(path: Path, patience_s: float = 0.0) -> GrantStore:
    return GrantStore({"k": dict.fromkeys(("get", "put", "put_new", "delete"), path.as_uri())}, patience_s=patience_s)


def test_put_get_replace_delete(tmp_path: Path) -> None:
    store = store_of(tmp_path / "deep" / "er" / "k")
    store.put("k", b"one")
    store.put("k", b"two")
    assert store.get("k") == b"two"
    store.delete("k")
    store.delete("k")
    with pytest.raises(StoreFailure) as caught:
        store.get("k")
    assert caught.value.missing
    assert os.listdir(tmp_path / "deep" / "er") == []


def test_create_once(tmp_path: Path) -> None:
    store = store_of(tmp_path / "k")
    store.put_once("k", b"one")
    store.put_once("k", b"one")
    with pytest.raises(StoreFailure) as caught:
        store.put_once("k", b"other")
    assert caught.value.taken
    assert (tmp_path / "k").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["k"]


def test_one_of_many_writers_wins_a_key(tmp_path: Path) -> None:
    store = store_of(tmp_path / "k")
    won: list[bytes] = []

    def write(body: bytes) -> None:
        try:
            store.put_once("k", body)
            won.append(body)
        except StoreFailure as failure:
            assert failure.taken

    threads = [threading.Thread(target=write, args=(b"%d" % n * 1000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "k").read_bytes() == won[0]


def test_odd_characters_in_the_address(tmp_path: Path) -> None:
    path = tmp_path / "a b%20c#d?e ü"
    store = store_of(path)
    store.put("k", b"x")
    assert path.read_bytes() == b"x"
    assert store.get("k") == b"x"


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    store = store_of(tmp_path / "k")
    bodies = [b"a" * 300_000, b"b" * 200_000]
    store.put("k", bodies[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for body in bodies:
                store.put("k", body)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            assert store.get("k") in bodies
    finally:
        stop.set()
        thread.join()


def test_a_folder_in_the_way_is_a_failure_and_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    store = store_of(tmp_path / "k")
    for act in (lambda: store.get("k"), lambda: store.put("k", b""), lambda: store.delete("k")):
        with pytest.raises(StoreFailure):
            act()
