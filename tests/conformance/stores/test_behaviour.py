"""What every store does, whoever implements it."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pytest
from tests.conformance.stores.cases import Case

from gpuhop.errors import InvalidInput, NotFound, ObjectMissing
from gpuhop.stores.check import SAME_KEY_PAUSE_S, check, probe_create_once
from gpuhop.stores.http import plain_http
from gpuhop.stores.s3 import PART_BYTES

BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "../a",
    "a/../b",
    "a/./b",
    ".",
    "a b",
    "a\nb",
    "a\n",
    "~a",
    "a/.tmp-1",
    "ä",
    "a" * 256,
    "a/" * 600,
]


def _expiry_only(seconds: float) -> None:
    """Waits for the short-lived address; R2's pause between writes to one key is not needed on these servers."""
    if seconds != SAME_KEY_PAUSE_S:
        time.sleep(seconds)


def _no_wait(_seconds: float) -> None:
    return None


def _keys(case: Case, prefix: str = "") -> list[str]:
    return [entry.key for entry in case.store.list(prefix)]


@pytest.mark.parametrize("size", [0, 1, 70_000, 1 << 20])
def test_what_was_put_comes_back(case: Case, size: int) -> None:
    body = os.urandom(size)
    case.store.put("jobs/a/t0007/pack-000001", body)
    assert case.store.get("jobs/a/t0007/pack-000001") == body
    assert [(e.key, e.size) for e in case.store.list("")] == [("jobs/a/t0007/pack-000001", size)]


def test_put_replaces(case: Case) -> None:
    case.store.put("k", b"a long first body")
    case.store.put("k", b"short")
    assert case.store.get("k") == b"short"


def test_a_missing_object_is_said_by_its_key(case: Case) -> None:
    case.store.put("there/a", b"")
    for key in ("nowhere", "there/b", "there"):
        with pytest.raises(ObjectMissing) as caught:
            case.store.get(key)
        assert caught.value.key == key


def test_delete_removes_and_is_silent_the_second_time(case: Case) -> None:
    case.store.put("d/a", b"x")
    case.store.put("d/b", b"x")
    case.store.delete("d/a")
    assert _keys(case) == ["d/b"]
    case.store.delete("d/a")
    case.store.delete("d")
    case.store.delete("never/was")
    assert _keys(case) == ["d/b"]
    with pytest.raises(ObjectMissing):
        case.store.get("d/a")


def test_list_is_sorted_by_key_not_by_folder(case: Case) -> None:
    keys = ["a-b", "a.c", "a/b", "a/b-c", "a0", "b/c/d", "b/c/e"]
    for key in reversed(keys):
        case.store.put(key, b"x")
    assert _keys(case) == keys == sorted(keys)
    assert _keys(case, "a/") == ["a/b", "a/b-c"]
    assert _keys(case, "a") == ["a-b", "a.c", "a/b", "a/b-c", "a0"]
    assert _keys(case, "b/c/d") == ["b/c/d"]
    assert _keys(case, "c") == []


def test_every_acknowledged_write_is_listed_at_once(case: Case) -> None:
    for number in range(20):
        case.store.put(f"seq/{number:06d}", b"x")
        assert len(_keys(case, "seq/")) == number + 1


def test_a_neighbour_is_neither_seen_nor_touched(case: Case) -> None:
    neighbour = case.neighbour()
    neighbour.put("k", b"neighbour")
    case.store.put("k", b"mine")
    assert _keys(case) == ["k"]
    case.store.delete("k")
    assert neighbour.get("k") == b"neighbour"


@pytest.mark.parametrize("size", [0, 5, PART_BYTES, 2 * PART_BYTES + 12_345])
def test_put_file(case: Case, size: int, tmp_path: Path) -> None:
    path = tmp_path / "source"
    body = os.urandom(size)
    path.write_bytes(body)
    case.store.put_file("out/file", str(path))
    assert hashlib.sha256(case.store.get("out/file")).digest() == hashlib.sha256(body).digest()
    assert [entry.size for entry in case.store.list("out/")] == [size]


def test_put_file_without_a_file(case: Case, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        case.store.put_file("k", str(tmp_path / "none"))
    assert _keys(case) == []


def test_bad_keys_are_refused_before_anything_happens(case: Case, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    acts: list[Callable[[str], object]] = [
        case.store.get,
        lambda key: case.store.put(key, b"x"),
        lambda key: case.store.put_file(key, str(source)),
        case.store.delete,
        lambda key: case.store.presign("get", key, 60),
    ]
    for key in BAD_KEYS:
        for act in acts:
            with pytest.raises(InvalidInput):
                act(key)
    assert _keys(case) == []


def test_a_reader_sees_the_old_or_the_new_object_never_a_mix(case: Case) -> None:
    bodies = [bytes([letter]) * 300_000 for letter in b"AB"]
    case.store.put("k", bodies[0])
    stop = threading.Event()

    def write() -> int:
        count = 0
        while not stop.is_set():
            count += 1
            case.store.put("k", bodies[count % 2])
        return count

    with ThreadPoolExecutor(1) as pool:
        writes = pool.submit(write)
        end = time.monotonic() + 0.5
        reads = 0
        try:
            while time.monotonic() < end:
                assert case.store.get("k") in bodies
                reads += 1
        finally:
            stop.set()
        assert writes.result() > 2 and reads > 2


def test_threads_may_share_a_store(case: Case) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: case.store.put(f"deep/{n % 4}/k-{n:03d}", str(n).encode()), range(64)))
        got = list(pool.map(lambda n: case.store.get(f"deep/{n % 4}/k-{n:03d}"), range(64)))
        assert got == [str(n).encode() for n in range(64)]
        list(pool.map(lambda n: case.store.delete(f"deep/{n % 4}/k-{n:03d}"), range(64)))
    assert _keys(case) == []


def test_leftovers_of_killed_writers_are_found_and_removed(case: Case) -> None:
    assert list(case.store.leftovers("")) == []
    case.store.put("jobs/a/t0001/pack-000001", b"whole")
    case.unfinished("jobs/a/code-0123.tar.gz", b"x" * 1000)
    case.unfinished("jobs/a/t0002/pack-000007", b"")
    case.unfinished("jobs/b/code-4567.tar.gz", b"y" * 70)
    found = list(case.store.leftovers("jobs/a/"))
    assert [one.size for one in found if "code" in one.key] == [1000] and len(found) == 2
    assert all(one.key.startswith("jobs/a/") for one in found)
    assert [one.key for one in case.store.leftovers("jobs/a/")] == [one.key for one in found]
    assert len(list(case.store.leftovers(""))) == 3
    keys = _keys(case)
    assert keys == ["jobs/a/t0001/pack-000001"] and not set(keys) & {one.key for one in found}
    for one in found:
        one.remove()
        one.remove()  # silent: another may have been quicker
    assert list(case.store.leftovers("jobs/a/")) == []
    assert [one.size for one in case.store.leftovers("jobs/b")] == [70]
    assert case.store.get("jobs/a/t0001/pack-000001") == b"whole"


def test_leftovers_of_a_neighbour_are_not_ours(case: Case) -> None:
    neighbour = case.neighbour()
    case.unfinished("jobs/a/code", b"x")
    assert list(neighbour.leftovers("")) == []
    assert len(list(case.store.leftovers("jobs/a/"))) == 1
    with pytest.raises(InvalidInput):
        case.store.leftovers("../")


def test_addresses_do_their_verb(case: Case) -> None:
    assert plain_http("PUT", case.store.presign("put", "p/a", 60), b"one").status == 200
    assert plain_http("PUT", case.store.presign("put", "p/a", 60), b"two").status == 200
    assert case.store.get("p/a") == b"two"
    reply = plain_http("GET", case.store.presign("get", "p/a", 60))
    assert (reply.status, reply.body) == (200, b"two")
    assert plain_http("GET", case.store.presign("get", "p/none", 60)).status == 404
    assert plain_http("DELETE", case.store.presign("delete", "p/a", 60)).status in (200, 204)
    assert _keys(case) == []


def test_a_create_once_address_creates_once(case: Case) -> None:
    address = case.store.presign("put_new", "once", 60)
    assert plain_http("PUT", address, b"first").status == 200
    assert plain_http("PUT", address, b"second").status == 412
    assert case.store.get("once") == b"first"
    assert case.store.traits.create_once and probe_create_once(case.store, sleep=lambda _s: None)


def test_one_of_many_wins_a_create_once_race(case: Case) -> None:
    address = case.store.presign("put_new", "race", 60)
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda n: plain_http("PUT", address, b"%d" % n).status, range(6)))
    assert replies.count(200) == 1 and set(replies) <= {200, 409, 412}
    assert case.store.get("race") == b"%d" % replies.index(200)


def test_addresses_live_no_longer_than_the_store_allows(case: Case) -> None:
    address = case.store.presign("get", "k", 1e12)
    life = parse_qs(urlsplit(address).query).get("X-Amz-Expires")
    assert life == (None if case.name == "local" else ["604800"])
    assert case.store.traits.max_presign_s >= 604800


def test_an_address_opens_its_own_door_only(case: Case) -> None:
    """LocalStore signs nothing and moto looks at no signature: there the walls are known to be absent."""
    case.store.put("w/a", b"mine")
    case.store.put("w/b", b"other")
    parts = urlsplit(case.store.presign("get", "w/a", 60))
    signature = parts.query[-1:]
    bent = parts.query[:-1] + ("1" if signature == "0" else "0")
    tries = {
        "other key": ("GET", urlunsplit(parts._replace(path=parts.path[:-1] + "b"))),
        "tampered": ("GET", urlunsplit(parts._replace(query=bent if parts.query else ""))),
        "other verb": ("PUT", urlunsplit(parts)),
    }
    for name, (method, address) in tries.items():
        status = plain_http(method, address, b"intruder" if method == "PUT" else None).status
        assert (status == 403) is case.can.signatures, name
    assert (case.store.get("w/a") == b"mine") is case.can.signatures
    anonymous = plain_http("GET", urlunsplit(parts._replace(query=""))).status
    assert (anonymous == 403) is case.can.private


def test_check_finds_exactly_the_known_gaps_and_leaves_nothing(case: Case) -> None:
    sleep = _expiry_only if case.can.expiry else _no_wait
    findings = {finding.name: finding for finding in check(case.store, lambda: datetime.now(UTC), sleep=sleep)}
    gaps = {name for name, finding in findings.items() if not finding.ok}
    expected = set()
    if case.name != "local":
        if not case.can.signatures:
            expected |= {"walls: other key", "walls: tampered", "walls: other verb"}
        if not case.can.expiry:
            expected |= {"walls: expiry"}
        assert "clock" in findings
    assert gaps == expected
    assert all(finding.hint for finding in findings.values() if not finding.ok)
    assert _keys(case) == []
    assert "X-Amz-Signature" not in repr(findings)
