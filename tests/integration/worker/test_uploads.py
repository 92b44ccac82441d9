"""Packs on their way: bounded, tried again under their own keys, compared when read back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.golden import make_chain
from tests.integration.worker.http_store import HttpStore, serving
from tests.support import jobs
from tests.support.sessions import Bench

from gpuhop_worker import checkpoint, encoder, restore, slots, wire
from gpuhop_worker.shipper import Shipper
from gpuhop_worker.slots import SlotKeeper
from gpuhop_worker.store import GrantStore, StoreFailure
from gpuhop_worker.uploads import AT_ONCE, OtherBytes, Uploads
from gpuhop_worker.wire import Grant, Manifest

KEY = "jobs/j/t0001/pack-{:06d}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpStore]:
    with serving(tmp_path / "store") as made:
        yield made


def granted(server: HttpStore, job: str = "j") -> GrantStore:
    keys = [wire.numbered_key(job, 1, what, n) for what in ("pack", "manifest") for n in range(1, 40)]
    addresses = {key: {verb: f"{server.url}/{key}" for verb in ("put", "get", "put_new", "delete")} for key in keys}
    return GrantStore(addresses, patience_s=0.0)


def key(number: int) -> str:
    return KEY.format(number + 1)


def test_no_more_than_a_few_are_in_memory(server: HttpStore) -> None:
    busy, most = 0, 0
    lock = threading.Lock()

    class Counted(GrantStore):
        def put_once(self, key: str, body: Any) -> None:
            nonlocal busy, most
            with lock:
                busy += 1
                most = max(most, busy)
            super().put_once(key, body)
            with lock:
                busy -= 1

    store = Counted(granted(server)._addresses, patience_s=0.0)
    with Uploads(store, key, set(), read_back=False) as uploads:
        assert [uploads.add([b"x" * 1000, memoryview(b"y")]) for _ in range(12)] == [key(n) for n in range(12)]
    assert uploads.rate is not None and uploads.rate > 0
    assert 1 <= most <= AT_ONCE
    assert {path.read_bytes() for path in server.root.rglob("pack-*")} == {b"x" * 1000 + b"y"}


def test_a_failure_stops_the_coding_and_what_arrived_is_not_sent_again(server: HttpStore) -> None:
    arrived: set[str] = set()
    server.refuse = "pack-000003"
    taken = 0
    with (
        pytest.raises(StoreFailure, match="pack-000003"),
        Uploads(granted(server), key, arrived, read_back=False) as uploads,
    ):
        for taken in range(1, 30):
            uploads.add([b"%d" % taken])
    assert taken < 3 + 2 * AT_ONCE + 1
    assert arrived >= {key(0), key(1)} and key(2) not in arrived
    before, server.refuse = list(server.writes), ""
    with Uploads(granted(server), key, arrived, read_back=False) as uploads:
        for number in range(1, 10):
            uploads.add([b"%d" % number])
    again = [name for _, name in server.writes[len(before) :]]
    assert sorted(again) == sorted(set(key(n) for n in range(9)) - {name for _, name in before})
    assert [(server.root / key(n)).read_bytes() for n in range(9)] == [b"%d" % (n + 1) for n in range(9)]


def test_the_last_pack_fails_too(server: HttpStore) -> None:
    server.refuse = "pack-000002"
    with pytest.raises(StoreFailure, match="403"), Uploads(granted(server), key, set(), read_back=False) as uploads:
        uploads.add([b"1"])
        uploads.add([b"2"])


def test_a_pack_that_comes_back_otherwise_is_no_pack(server: HttpStore) -> None:
    arrived: set[str] = set()
    server.spoil[key(1)] = b"other bytes"
    with (
        pytest.raises(OtherBytes, match="pack-000002"),
        Uploads(granted(server), key, arrived, read_back=True) as uploads,
    ):
        for number in range(3):
            uploads.add([b"bytes of %d" % number])
    assert key(1) not in arrived
    with Uploads(granted(server), lambda n: key(n + 10), set(), read_back=True) as uploads:
        uploads.add([b"a" * 100, b"b"])
    assert server.reads.count(key(10)) == 1


class Ship:
    """A shipper and a snapshot of the chain of golden states, without a session around them."""

    def __init__(self, server: HttpStore, root: Path, **grant: Any) -> None:
        made = Grant("j", 1, "s", "p", "", "", "", 1e9, **grant)
        (root / "spool").mkdir()
        self.root, self.keeper = root, SlotKeeper(str(root), memory=False)
        self.shipper = Shipper(made, granted(server), str(root / "spool"), self.keeper, lambda: 0, lambda: True)

    def snapshot(self, step: int, slot: str) -> None:
        parts = make_chain.expected(step)
        places, size = slots.layout([len(body) for *_, body in parts.values()])
        self.keeper.slot(slot).reserve(size)
        rows = []
        for (name, (dtype, shape, stride, body)), place in zip(parts.items(), places, strict=True):
            self.keeper.slot(slot).view(place, len(body))[:] = body
            row = {"name": name, "dtype": dtype, "shape": shape, "stride": stride}
            rows.append({**row, "offset": place, "size": len(body)})
        folder = self.root / "spool" / f"snap-{step + 1:06d}"
        folder.mkdir()
        draft = {"step": step, "slot": slot, "state": {"step": step}, "fingerprint": {}, "tensors": rows}
        checkpoint.write_snapshot(str(folder), draft)


def whole(server: HttpStore, seq: int, into: Path) -> int:
    """The step of a checkpoint, every byte of it as it must be."""
    path = server.root / wire.numbered_key("j", 1, "manifest", seq)
    manifest = Manifest.from_bytes(path.read_bytes())
    restored = restore.fill(manifest, granted(server), slots.Slot(str(into / f"restored-{seq}")))
    for name, _, size in restore.part_sizes(manifest):
        assert bytes(restored.slot.view(restored.offsets[name], size)) == make_chain.expected(manifest.step)[name][3]
    return manifest.step


@pytest.mark.parametrize("fails", [1, 2, 3, 4])
def test_a_snapshot_tried_again_has_equal_bytes_under_equal_keys(
    server: HttpStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    monkeypatch.setattr(encoder, "FIRST_PACK", 5_000)
    monkeypatch.setattr(encoder.Encoder.__init__, "__kwdefaults__", {"code": True, "block": 66_048, "pack": 5_000})
    ship = Ship(server, tmp_path)
    ship.snapshot(0, "a")
    assert ship.shipper.ship_newest()
    used = len(list(server.root.rglob("pack-*")))
    ship.snapshot(1, "b")
    server.refuse = f"pack-{used + fails:06d}"
    with pytest.raises(StoreFailure):
        ship.shipper.ship_newest()
    first = {path.name: path.read_bytes() for path in server.root.rglob("pack-*")}
    server.refuse = ""
    assert ship.shipper.ship_newest()
    for name, body in first.items():
        assert (server.root / "jobs/j/t0001" / name).read_bytes() == body
    assert [whole(server, seq, tmp_path) for seq in (1, 2)] == [0, 1]
    named = {pack["key"] for seq in (1, 2) for pack in _manifest(server, seq).packs}
    assert {str(path.relative_to(server.root)) for path in server.root.rglob("pack-*")} == named


def _manifest(server: HttpStore, seq: int) -> Manifest:
    return Manifest.from_bytes((server.root / wire.numbered_key("j", 1, "manifest", seq)).read_bytes())


def test_other_bytes_read_back_and_the_next_try_takes_other_keys(server: HttpStore, tmp_path: Path) -> None:
    ship = Ship(server, tmp_path, read_back=True)
    ship.snapshot(0, "a")
    server.spoil[KEY.format(1)] = b"x" * 100
    with pytest.raises(OtherBytes):
        ship.shipper.ship_newest()
    assert not list(server.root.rglob("manifest-*"))
    assert ship.shipper.ship_newest()
    assert [pack["key"] for pack in _manifest(server, 2).packs] == [KEY.format(2)]
    assert whole(server, 2, tmp_path) == 0


def test_a_session_reads_back_what_it_ships(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as server:
        bench = Bench(
            tmp_path, {"train.py": jobs.PACKED}, base_url=server.url, target_steps=60, every_steps=20, read_back=True
        )
        code, output = bench.run({"PAUSE": "0.01"})
        assert code == 0, output
        packs = {name for method, name in server.writes if method == "PUT" and "/pack-" in name}
        assert packs and packs == {name for name in server.reads if "/pack-" in name}
